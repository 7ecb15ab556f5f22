//! Writing a snapshot as Prometheus exposition.

use super::{FINGERPRINT_METRIC, INFINITE_BUCKET, PREFIX};
use crate::accounting::{Counter, Fingerprint, Gauge, Histogram, Snapshot, Stage};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, NativeHistogram, NativeHistogramBuckets, prometheus_protobuf, prometheus_text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::{Registry, Unit};
use std::borrow::Cow;
use std::fmt::Error;
use std::sync::Arc;

/// Classic bucket bounds of the text exposition, in seconds.
const CLASSIC_BOUNDS: [f64; 14] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Observations at most 2^-128 count as zero; a threshold of 0 would make an empty native histogram look like a classic one.
const ZERO_THRESHOLD: f64 = 2.938_735_877_055_719e-39;

/// The two expositions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `application/vnd.google.protobuf`, length-delimited `MetricFamily` messages with native histograms.
    Protobuf,
    /// Prometheus text format 0.0.4 with classic buckets.
    Text,
}

impl Format {
    /// Chooses by an `Accept` header: protobuf for who asks for it, else text.
    pub fn negotiate(accept: Option<&str>) -> Format {
        match accept {
            Some(accept) if accept.contains("application/vnd.google.protobuf") => Format::Protobuf,
            _ => Format::Text,
        }
    }

    /// The `Content-Type` of the exposition.
    pub const fn content_type(self) -> &'static str {
        match self {
            Format::Protobuf => "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited",
            Format::Text => prometheus_text::CONTENT_TYPE,
        }
    }
}

/// Writes a snapshot with `labels` on every series (`group`, `shard`: bounded sets only).
///
/// # Errors
/// The encoder's own, which writing to memory does not meet.
pub fn encode(snapshot: Arc<Snapshot>, labels: &[(&'static str, String)], format: Format) -> Result<Vec<u8>, Error> {
    let labels = labels.iter().map(|(name, value)| (Cow::Borrowed(*name), Cow::Owned(value.clone())));
    let mut registry = Registry::with_prefix_and_labels(PREFIX, labels);
    registry.register_collector(Box::new(Series { snapshot, classic: format == Format::Text }));
    match format {
        Format::Protobuf => prometheus_protobuf::encode_to_vec(&registry).map_err(|_| Error),
        Format::Text => {
            let mut text = String::with_capacity(64 * 1024);
            prometheus_text::encode(&mut text, &registry)?;
            Ok(text.into_bytes())
        }
    }
}

#[derive(Debug)]
struct Series {
    snapshot: Arc<Snapshot>,
    classic: bool,
}

impl Collector for Series {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), Error> {
        self.counters(&mut encoder)?;
        self.gauges(&mut encoder)?;
        for stage in Stage::ALL {
            self.stage(&mut encoder, *stage)?;
        }
        Ok(())
    }
}

fn unit(name: &str) -> Option<Unit> {
    (!name.is_empty()).then(|| Unit::Other(name.to_owned()))
}

impl Series {
    fn counters(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        // Members of a family stand together in the table: one descriptor, then its series.
        for family in Counter::ALL.chunk_by(|a, b| a.family() == b.family() && a.unit() == b.unit()) {
            let first = family[0];
            let unit = unit(first.unit());
            let mut metric = encoder.encode_descriptor(first.family(), first.help(), unit.as_ref(), MetricType::Counter)?;
            for counter in family {
                let value = self.snapshot.get(*counter);
                match counter.label() {
                    None => metric.encode_counter(&value, no_exemplar())?,
                    // Series of a label that never counted are left out; the decoder reads them as zero.
                    Some(_) if value == 0 => {}
                    Some(label) => metric.encode_family(&[label])?.encode_counter(&value, no_exemplar())?,
                }
            }
        }
        Ok(())
    }

    fn gauges(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        for gauge in Gauge::ALL {
            let unit = unit(gauge.unit());
            let mut metric = encoder.encode_descriptor(gauge.name(), gauge.help(), unit.as_ref(), MetricType::Gauge)?;
            metric.encode_gauge(&self.snapshot.gauge(*gauge))?;
        }
        let help = "Wrapping sum over messages, in two halves of 32 bits because a sample is a double.";
        let mut metric = encoder.encode_descriptor(FINGERPRINT_METRIC, help, None, MetricType::Gauge)?;
        for fingerprint in Fingerprint::ALL {
            let value = self.snapshot.fingerprint(*fingerprint);
            for (half, bits) in [("high", (value >> 32) as u32), ("low", value as u32)] {
                metric.encode_family(&[("of", fingerprint.name()), ("half", half)])?.encode_gauge(&i64::from(bits))?;
            }
        }
        Ok(())
    }

    fn stage(&self, encoder: &mut DescriptorEncoder<'_>, stage: Stage) -> Result<(), Error> {
        let seconds = Some(Unit::Seconds);
        let histogram = self.snapshot.histogram(stage);
        let metric = encoder.encode_descriptor(stage.metric(), stage.help(), seconds.as_ref(), MetricType::Histogram)?;
        self.histogram(metric, histogram)?;
        let name = format!("{}_max", stage.metric());
        let help = format!("Maximum. {}", stage.help());
        let nanoseconds = unit("nanoseconds");
        let mut metric = encoder.encode_descriptor(&name, &help, nanoseconds.as_ref(), MetricType::Gauge)?;
        metric.encode_gauge(&(self.snapshot.maximum_ns(stage) as i64))
    }

    fn histogram(&self, mut metric: prometheus_client::encoding::MetricEncoder<'_>, histogram: &Histogram) -> Result<(), Error> {
        // Every recorder is at schema 5; a coarser one (a summary re-exposed) keeps its own.
        let infinite_bucket = ((INFINITE_BUCKET - 1) >> (crate::accounting::MAX_SCHEMA - histogram.schema())) + 1;
        let infinite = (histogram.infinite() > 0).then_some((infinite_bucket, histogram.infinite()));
        let (spans, deltas) = spans(histogram.buckets().chain(infinite));
        let native = NativeHistogram {
            schema: i32::from(histogram.schema()),
            zero_threshold: ZERO_THRESHOLD,
            zero_count: histogram.zero(),
            negative: NativeHistogramBuckets { spans: &[], deltas: &[] },
            positive: NativeHistogramBuckets { spans: &spans, deltas: &deltas },
            created: None,
        };
        let classic = if self.classic { classic_buckets(histogram) } else { Vec::new() };
        let sum = histogram.sum_ns() as f64 / 1e9;
        metric.encode_histogram_with_native::<Vec<(String, String)>>(sum, histogram.count(), &classic, None, native)
    }
}

/// The sparse form: runs of neighbouring buckets as (gap, length), counts as differences to the bucket before.
fn spans(buckets: impl Iterator<Item = (i32, u64)>) -> (Vec<(i32, u32)>, Vec<i64>) {
    let (mut spans, mut deltas) = (Vec::<(i32, u32)>::new(), Vec::new());
    let (mut next, mut last) = (0i32, 0i64);
    for (index, count) in buckets {
        match spans.last_mut() {
            Some((_, length)) if index == next => *length += 1,
            _ => spans.push((index - next, 1)),
        }
        next = index + 1;
        deltas.push(count as i64 - last);
        last = count as i64;
    }
    if spans.is_empty() {
        // A no-op span marks an empty histogram as a native one.
        spans.push((0, 0));
    }
    (spans, deltas)
}

/// Counts per classic bucket, not cumulated: the encoder adds them up.
fn classic_buckets(histogram: &Histogram) -> Vec<(f64, u64)> {
    let mut below = 0;
    CLASSIC_BOUNDS
        .iter()
        .map(|bound| {
            let count = histogram.count_below(*bound);
            let own = count - below;
            below = count;
            (*bound, own)
        })
        .chain(std::iter::once(()).map(|()| (f64::INFINITY, histogram.count())))
        .scan(0, |sum, (bound, own)| {
            // The last element is the total, from which all that came before is taken.
            let own = if bound.is_infinite() { own - *sum } else { own };
            *sum += own;
            Some((bound, own))
        })
        .collect()
}

fn no_exemplar() -> Option<&'static Exemplar<Vec<(String, String)>, f64>> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(snapshot: Snapshot) -> String {
        String::from_utf8(encode(Arc::new(snapshot), &[("group", "devices".to_owned())], Format::Text).unwrap()).unwrap()
    }

    #[test]
    fn text_names_units_labels_and_cumulative_buckets() {
        let mut snapshot = Snapshot::new();
        snapshot.add(Counter::SentQos1, 7);
        snapshot.add(Counter::SkippedBehind, 2);
        snapshot.record(Stage::PublishAck, 700_000);
        snapshot.record(Stage::PublishAck, 700_000);
        snapshot.record(Stage::PublishAck, 3_000_000);
        snapshot.record_infinite(Stage::PublishAck, 1);
        let text = text(snapshot);
        for line in [
            "mqtt_loadtest_sent_messages_total{group=\"devices\",qos=\"1\"} 7",
            "mqtt_loadtest_skipped_messages_total{group=\"devices\",reason=\"behind\"} 2",
            "mqtt_loadtest_acked_messages_total{group=\"devices\"} 0",
            "mqtt_loadtest_publish_ack_seconds_bucket{group=\"devices\",le=\"0.001\"} 2",
            "mqtt_loadtest_publish_ack_seconds_bucket{group=\"devices\",le=\"0.005\"} 3",
            "mqtt_loadtest_publish_ack_seconds_bucket{group=\"devices\",le=\"10\"} 3",
            "mqtt_loadtest_publish_ack_seconds_bucket{group=\"devices\",le=\"+Inf\"} 4",
            "mqtt_loadtest_publish_ack_seconds_count{group=\"devices\"} 4",
            "mqtt_loadtest_publish_ack_max_nanoseconds{group=\"devices\"} 3000000",
        ] {
            assert!(text.lines().any(|l| l == line), "no line {line} in:\n{text}");
        }
    }

    #[test]
    fn every_metric_has_one_descriptor() {
        let text = text(Snapshot::new());
        let types: Vec<_> = text.lines().filter(|l| l.starts_with("# TYPE")).collect();
        let unique: std::collections::HashSet<_> = types.iter().collect();
        assert_eq!(types.len(), unique.len());
    }

    #[test]
    fn protobuf_is_chosen_by_who_asks_for_it() {
        assert_eq!(
            Format::negotiate(Some("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;q=0.6")),
            Format::Protobuf
        );
        assert_eq!(Format::negotiate(Some("text/plain")), Format::Text);
        assert_eq!(Format::negotiate(None), Format::Text);
    }
}
