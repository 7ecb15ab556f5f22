//! Counts and histograms as the numbers of the status.

use std::collections::BTreeMap;

use mqtt_loadtest_crds::status::{ClientCounts, LatencySummary, MessageCounts};
use mqtt_loadtest_worker::accounting::{Counter, Gauge, Snapshot, Stage, laws};

use super::{duration, failures::camel_case, verdict};

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Clients. Once a run has ended `connected` is how many were connected at all, as by then all have left.
pub fn clients(desired: u64, ever_connected: u64, failed: u64, counts: &Snapshot, ended: bool) -> ClientCounts {
    let mut failures = BTreeMap::new();
    for (family, prefix) in [("connects_failed", ""), ("disconnects", "disconnect"), ("subscribes_failed", "subscribe")] {
        for (reason, count) in counts.by_label(family) {
            let name = if prefix.is_empty() { reason.to_owned() } else { format!("{prefix}{}", camel_case(reason)) };
            failures.insert(name, signed(count));
        }
    }
    ClientCounts {
        desired: signed(desired),
        connected: if ended { signed(ever_connected) } else { counts.gauge(Gauge::ClientsReady).max(0) },
        reconnects: signed(counts.get(Counter::Reconnects)),
        failed: signed(failed),
        failures,
    }
}

/// Messages. Lost deliveries are told once a run has ended (before, what is under way would look lost).
pub fn messages(counts: &Snapshot, uncertain: u64, uncertain_deliveries: u64, ended: bool) -> MessageCounts {
    let get = |counter| signed(counts.get(counter));
    let gauge = |gauge| counts.gauge(gauge).max(0);
    let deliveries = laws::deliveries(counts, uncertain_deliveries);
    let expects = counts.get(Counter::ExpectedMax) > 0 || counts.get(Counter::Received) > 0;
    MessageCounts {
        planned: get(Counter::Planned),
        absent: get(Counter::Absent),
        scheduled: get(Counter::Scheduled),
        sent: signed(counts.total("sent")),
        skipped: counts.by_label("skipped").into_iter().map(|(why, count)| (why.to_owned(), signed(count))).collect(),
        pending: gauge(Gauge::Pending),
        retransmitted: get(Counter::Retransmitted),
        acked: get(Counter::Acked),
        no_subscribers: get(Counter::NoSubscribers),
        refused: signed(counts.total("refused")),
        abandoned: get(Counter::Abandoned),
        unacked: gauge(Gauge::Unacked),
        fenced: get(Counter::Fenced),
        unfenced: gauge(Gauge::Unfenced).saturating_add(get(Counter::UnfencedLost)),
        received: get(Counter::Received),
        unique: get(Counter::Unique),
        duplicates: get(Counter::Duplicates),
        retained: get(Counter::Retained),
        expected_min: get(Counter::ExpectedMin),
        expected_max: get(Counter::ExpectedMax),
        excused: get(Counter::Excused),
        lost: if ended && expects { verdict::lost(&deliveries) } else { String::new() },
        surplus: if ended { signed(deliveries.surplus) } else { 0 },
        uncertain: signed(uncertain),
    }
}

/// Latencies of the stages in which something was observed, by their names. Percentiles come from the merged histogram.
pub fn latency(counts: &Snapshot) -> BTreeMap<String, LatencySummary> {
    Stage::ALL.iter().filter_map(|stage| Some((stage.name().to_owned(), stage_latency(counts, *stage)?))).collect()
}

fn stage_latency(counts: &Snapshot, stage: Stage) -> Option<LatencySummary> {
    let histogram = counts.histogram(stage);
    if histogram.count() == 0 {
        return None;
    }
    let max = counts.maximum_ns(stage) as f64 / 1e9;
    // The middle of the last bucket may lie above the largest observation.
    let at = |q| {
        let value = histogram.percentile(q).unwrap_or(0.0);
        duration::seconds(if value.is_finite() { value.min(max) } else { value })
    };
    Some(LatencySummary {
        count: signed(histogram.count()),
        p50: at(0.5),
        p90: at(0.9),
        p95: at(0.95),
        p99: at(0.99),
        p999: at(0.999),
        max: duration::seconds(max),
    })
}
