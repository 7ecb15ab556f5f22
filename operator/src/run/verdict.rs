//! The verdict of a run whose window is over.
//!
//! What makes the numbers unusable is looked at first and gives Inconclusive; then the criteria, each of which the broker
//! must meet. A breach while the load generator was at its limit, or while pods died that had a part in it, is Inconclusive
//! too: it does not say whose fault it was.

use mqtt_loadtest_crds::{plan::RunPlan, status::Verdict};
use mqtt_loadtest_worker::accounting::{Counter, Gauge, Snapshot, laws};

use super::{
    GroupTotals, Outcome, RunState, Totals, failures, generator,
    merge::{group_messages, unsigned},
};

/// One criterion that was not met.
struct Breach {
    reason: &'static str,
    message: String,
    /// Whether dead pods may be the cause.
    deaths_excuse: bool,
}

/// Judges the final numbers. `missing` is the number of shards whose last counts were not obtained.
pub fn judge(plan: &RunPlan, state: &RunState, totals: &Totals, missing: usize) -> Outcome {
    if let Some(stop) = &state.stop {
        return Outcome::new(Verdict::Inconclusive, stop.cause.reason(), stop.cause.message());
    }
    let breaches = breaches(plan, totals);
    // That clients could not connect is known whatever else is not.
    if let Some(breach) = breaches.iter().find(|breach| breach.reason == "ClientsNotConnected") {
        let verdict = if failures::are_the_generators(totals) { Verdict::Inconclusive } else { Verdict::Failed };
        return Outcome::new(verdict, breach.reason, all_messages(&breaches));
    }
    if let Some(outcome) = unusable(plan, state, totals, missing) {
        return outcome;
    }
    let generator = generator::limits(plan, state, totals);
    if let Some(first) = breaches.first() {
        let message = all_messages(&breaches);
        if !generator.is_empty() {
            let message = format!("{message}; but the load generator was the limit: {}", generator.join(", "));
            return Outcome::new(Verdict::Inconclusive, "GeneratorLimited", message);
        }
        if let Some(deaths) = totals.deaths_in_words()
            && breaches.iter().all(|breach| breach.deaths_excuse)
        {
            let message = format!("{message}; but {deaths}, which may be the cause");
            return Outcome::new(Verdict::Inconclusive, "ShardsLost", message);
        }
        return Outcome::new(Verdict::Failed, first.reason, message);
    }
    let known = laws::deliveries(&totals.all, 0);
    let bound = laws::deliveries(&totals.all, totals.uncertain_deliveries());
    if bound.lost_max > known.lost_max {
        let message = format!(
            "{} messages of pods that died unseen cannot be accounted for: between {} and {} were lost",
            totals.uncertain(),
            bound.lost_min,
            bound.lost_max
        );
        return Outcome::new(Verdict::Inconclusive, "Uncertain", message);
    }
    let mut message = passed(totals);
    if !generator.is_empty() {
        message.push_str(&format!(
            " Latencies are upper bounds, because the load generator was at its limit: {}.",
            generator.join(", ")
        ));
    }
    Outcome::new(Verdict::Passed, "AllCriteriaMet", message)
}

fn all_messages(breaches: &[Breach]) -> String {
    breaches.iter().map(|breach| breach.message.as_str()).collect::<Vec<_>>().join("; ")
}

fn passed(totals: &Totals) -> String {
    let all = &totals.all;
    let sent = all.total("sent");
    let mut message = format!("{} clients connected", totals.ever_connected());
    if sent > 0 {
        message.push_str(&format!(", {sent} messages sent, {} acknowledged", all.get(Counter::Acked)));
    }
    if all.get(Counter::ExpectedMax) > 0 {
        message.push_str(&format!(", {} delivered", all.get(Counter::Unique)));
        let missing = laws::deliveries(all, 0).lost_max;
        if missing > 0 && all.get(Counter::Excused) > 0 {
            message.push_str(&format!(", {missing} missed by subscribers while they were not connected"));
        } else {
            message.push_str(", none lost");
        }
    }
    message + "."
}

/// Whether the numbers allow no judgement.
fn unusable(plan: &RunPlan, state: &RunState, totals: &Totals, missing: usize) -> Option<Outcome> {
    let inconclusive = |reason, message| Some(Outcome::new(Verdict::Inconclusive, reason, message));
    let residuals: Vec<String> = residuals(plan, state, totals, missing);
    if !residuals.is_empty() {
        return inconclusive("LawBroken", format!("the counts do not add up: {}", residuals.join("; ")));
    }
    if missing > 0 {
        let deaths = totals.deaths_in_words().map(|deaths| format!("; {deaths}")).unwrap_or_default();
        return inconclusive("ShardsLost", format!("the last counts of {missing} workers were not obtained{deaths}"));
    }
    let taken_over = totals.all.get(Counter::DisconnectTakenOver);
    if taken_over > 0 && totals.groups.iter().all(|group| group.deaths == 0) {
        let message = format!("{taken_over} sessions were taken over: somebody else uses the same client identifiers");
        return inconclusive("TakenOver", message);
    }
    let least = &plan.spec.load.min_coverage;
    let thin = totals.groups.iter().find(|group| group.coverage.covered < least.of(group.coverage.planned));
    if let Some(group) = thin {
        let deaths = totals.deaths_in_words().map(|deaths| format!("; {deaths}")).unwrap_or_default();
        let away = match group.clients - group.ever_connected() {
            0 => String::new(),
            clients => format!("; {clients} clients never connected"),
        };
        let message = format!(
            "group {}: {} % of the planned load was there, less than load.minCoverage ({least}){deaths}{away}",
            group.name,
            group.coverage.percent(),
        );
        return inconclusive("CoverageTooLow", message);
    }
    let surplus = laws::deliveries(&totals.all, totals.uncertain_deliveries()).surplus;
    if surplus > 0 {
        let message =
            format!("{surplus} more deliveries than the run's messages explain: does somebody else publish to these topics?");
        return inconclusive("Surplus", message);
    }
    None
}

/// The laws that do not close, in words, group by group.
pub fn residuals(plan: &RunPlan, state: &RunState, totals: &Totals, missing: usize) -> Vec<String> {
    let mut open = Vec::new();
    for (place, group) in totals.groups.iter().enumerate() {
        for law in laws::residuals(&group.counts) {
            if law.residual != 0 {
                open.push(format!("group {}: {} is off by {}", group.name, law.law, law.residual));
            }
        }
        // In a full run in which nobody died the workers must have planned exactly what the plan says.
        if group.deaths == 0 && missing == 0 && state.stop.is_none() && state.ends_at.is_some() {
            let planned = group_messages(plan, place, plan.spec.load.duration.as_nanos());
            let counted = group.counts.get(Counter::Planned);
            if planned != counted {
                open.push(format!("group {}: {planned} messages are in the plan, {counted} in the workers' counts", group.name));
            }
        }
    }
    open
}

fn breaches(plan: &RunPlan, totals: &Totals) -> Vec<Breach> {
    let mut found = Vec::new();
    let clients = totals.clients();
    let missing = clients - totals.ever_connected();
    if totals.ever_connected() < plan.spec.load.barrier.min_connected.of(clients) {
        let reasons = failures::in_words(totals, missing);
        let why = if reasons.is_empty() { String::new() } else { format!(": {reasons}") };
        let message = format!("{missing} of {clients} clients ({}) never connected{why}", failures::share(missing, clients));
        found.push(Breach { reason: "ClientsNotConnected", message, deaths_excuse: true });
    }
    for group in &totals.groups {
        group_breaches(group, &mut found);
    }
    deliveries(&totals.all, totals, &mut found);
    found
}

fn group_breaches(group: &GroupTotals, found: &mut Vec<Breach>) {
    let (counts, name) = (&group.counts, &group.name);
    let (scheduled, sent) = (counts.get(Counter::Scheduled), counts.total("sent"));
    if u128::from(sent) * 100 < u128::from(scheduled) * 99 {
        let skipped: Vec<String> = counts.by_label("skipped").iter().map(|(why, n)| format!("{n} {why}")).collect();
        let message = format!(
            "group {name}: {sent} of {scheduled} scheduled messages were sent ({}), fewer than 99 %; skipped: {}",
            failures::share(sent, scheduled),
            skipped.join(", ")
        );
        found.push(Breach { reason: "RateMissed", message, deaths_excuse: false });
    }
    let refused = counts.total("refused");
    if refused > 0 {
        let why: Vec<String> = counts.by_label("refused").iter().map(|(why, n)| format!("{n} {why}")).collect();
        let message = format!("group {name}: the broker refused {refused} messages: {}", why.join(", "));
        found.push(Breach { reason: "MessagesRefused", message, deaths_excuse: false });
    }
    let open = counts.get(Counter::Abandoned) + unsigned(counts.gauge(Gauge::Unacked));
    let open = open.saturating_sub(group.unacked_by_death);
    if open > 0 {
        let message = format!("group {name}: {open} messages were never acknowledged");
        found.push(Breach { reason: "MessagesUnacknowledged", message, deaths_excuse: false });
    }
    let duplicates = counts.get(Counter::DuplicatesQos2);
    if duplicates > 0 {
        let message = format!("group {name}: {duplicates} QoS 2 messages were delivered more than once");
        found.push(Breach { reason: "DuplicatesAtQos2", message, deaths_excuse: false });
    }
}

fn deliveries(all: &Snapshot, totals: &Totals, found: &mut Vec<Breach>) {
    let deliveries = laws::deliveries(all, totals.uncertain_deliveries());
    if deliveries.lost_min > 0 {
        let expected = all.get(Counter::ExpectedMin);
        let message = format!("{} of {expected} deliveries were lost", lost(&deliveries));
        found.push(Breach { reason: "MessagesLost", message, deaths_excuse: true });
    }
    if deliveries.fingerprints_agree == Some(false) {
        let message = "the number of deliveries is right but not their identity: some messages were lost and others came twice";
        found.push(Breach { reason: "MessagesLost", message: message.into(), deaths_excuse: true });
    }
}

/// Lost deliveries as the status shows them: `N`, or `MIN-MAX`.
pub fn lost(deliveries: &laws::Deliveries) -> String {
    if deliveries.lost_min == deliveries.lost_max {
        deliveries.lost_min.to_string()
    } else {
        format!("{}-{}", deliveries.lost_min, deliveries.lost_max)
    }
}
