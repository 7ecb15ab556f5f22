//! Reading a worker's protobuf exposition back into a snapshot.
//!
//! The bytes may come from anything that answers on a pod's port, so sizes, spans, counts and names are checked before
//! anything is added. Families that this version does not know are passed over.

use super::{FINGERPRINT_METRIC, INFINITE_BUCKET, PREFIX, gauge_name};
use crate::accounting::{Counter, Fingerprint, Gauge, Histogram, MAX_SCHEMA, MIN_SCHEMA, Snapshot, Stage};
use prometheus_client::encoding::prometheus_protobuf::prometheus_data_model as model;
use prost::Message;
use std::collections::HashMap;
use std::sync::LazyLock;

/// Bounds on what is decoded.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of the whole exposition. A shard's is about 15 KiB; in memory it grows by less than two orders of magnitude.
    pub bytes: usize,
    /// Buckets of one histogram. Schema 5 over 40 doublings has 1,280.
    pub buckets: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: 256 * 1024, buckets: 2_048 }
    }
}

/// Why an exposition was not taken.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DecodeError {
    /// More than [`Limits::bytes`].
    #[error("the exposition has {0} bytes, more than the {1} allowed")]
    TooLarge(usize, usize),
    /// Not a sequence of length-delimited `MetricFamily` messages.
    #[error("the exposition is not delimited protobuf: {0}")]
    NotProtobuf(String),
    /// A value that no worker writes.
    #[error("{metric}: {problem}")]
    Invalid {
        /// The metric's whole name.
        metric: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// Nothing in it is ours: another program answered.
    #[error("no metric begins with {PREFIX}_: is this a worker?")]
    NotAWorker,
}

enum Target {
    Counters(Vec<Counter>),
    Gauge(Gauge),
    Fingerprints,
    Histogram(Stage),
    Maximum(Stage),
}

static TARGETS: LazyLock<HashMap<String, Target>> = LazyLock::new(|| {
    let mut targets = HashMap::new();
    let mut put = |name: String, target| {
        let before = targets.insert(format!("{PREFIX}_{name}"), target);
        debug_assert!(before.is_none(), "two tables share a metric name");
    };
    for family in Counter::ALL.chunk_by(|a, b| a.family() == b.family() && a.unit() == b.unit()) {
        put(family[0].metric_name(), Target::Counters(family.to_vec()));
    }
    Gauge::ALL.iter().for_each(|gauge| put(gauge_name(*gauge), Target::Gauge(*gauge)));
    put(FINGERPRINT_METRIC.to_owned(), Target::Fingerprints);
    for stage in Stage::ALL {
        put(format!("{}_seconds", stage.metric()), Target::Histogram(*stage));
        put(format!("{}_max_nanoseconds", stage.metric()), Target::Maximum(*stage));
    }
    targets
});

/// Decodes one worker's exposition.
///
/// # Errors
/// See [`DecodeError`]. A snapshot is returned whole or not at all.
pub fn decode(mut bytes: &[u8], limits: &Limits) -> Result<Snapshot, DecodeError> {
    if bytes.len() > limits.bytes {
        return Err(DecodeError::TooLarge(bytes.len(), limits.bytes));
    }
    let mut snapshot = Snapshot::new();
    let mut ours = false;
    while !bytes.is_empty() {
        let family =
            model::MetricFamily::decode_length_delimited(&mut bytes).map_err(|e| DecodeError::NotProtobuf(e.to_string()))?;
        if let Some(target) = TARGETS.get(&family.name) {
            ours = true;
            apply(target, &family, limits, &mut snapshot)
                .map_err(|problem| DecodeError::Invalid { metric: family.name.chars().take(100).collect(), problem })?;
        }
    }
    if ours { Ok(snapshot) } else { Err(DecodeError::NotAWorker) }
}

fn apply(target: &Target, family: &model::MetricFamily, limits: &Limits, snapshot: &mut Snapshot) -> Result<(), &'static str> {
    let one = || match &family.metric[..] {
        [metric] => Ok(metric),
        _ => Err("one series is expected"),
    };
    match target {
        Target::Counters(members) => {
            let mut seen = 0u128;
            for metric in &family.metric {
                let value = count(metric.counter.as_ref().ok_or("not a counter")?.value)?;
                let Some(place) = members.iter().position(|c| c.label().is_none_or(|l| has(metric, l))) else {
                    continue; // a reason that a newer worker knows
                };
                if seen & (1 << place) != 0 {
                    return Err("the same series twice");
                }
                seen |= 1 << place;
                snapshot.set(members[place], value);
            }
        }
        Target::Gauge(gauge) => snapshot.set_gauge(*gauge, integer(gauge_value(one()?)?)?),
        Target::Fingerprints => {
            for fingerprint in Fingerprint::ALL {
                let half = |half| {
                    let found = family.metric.iter().find(|m| has(m, ("of", fingerprint.name())) && has(m, ("half", half)));
                    u32::try_from(count(gauge_value(found.ok_or("half a fingerprint")?)?)?).map_err(|_| "more than 32 bits")
                };
                snapshot.set_fingerprint(*fingerprint, u64::from(half("high")?) << 32 | u64::from(half("low")?));
            }
        }
        Target::Histogram(stage) => {
            let histogram = histogram(one()?.histogram.as_ref().ok_or("not a histogram")?, limits)?;
            snapshot.set_stage(*stage, histogram, snapshot.maximum_ns(*stage));
        }
        Target::Maximum(stage) => {
            let maximum = count(gauge_value(one()?)?)?;
            snapshot.set_stage(*stage, snapshot.histogram(*stage).clone(), maximum);
        }
    }
    Ok(())
}

fn has(metric: &model::Metric, (name, value): (&str, &str)) -> bool {
    metric.label.iter().any(|label| label.name == name && label.value == value)
}

fn gauge_value(metric: &model::Metric) -> Result<f64, &'static str> {
    Ok(metric.gauge.as_ref().ok_or("not a gauge")?.value)
}

/// A double that is a whole number and keeps every digit (below 2^53).
fn integer(value: f64) -> Result<i64, &'static str> {
    if value.fract() == 0.0 && value.abs() <= 9_007_199_254_740_992.0 {
        Ok(value as i64)
    } else {
        Err("not a whole number below 2^53")
    }
}

fn count(value: f64) -> Result<u64, &'static str> {
    u64::try_from(integer(value)?).map_err(|_| "negative")
}

fn histogram(wire: &model::Histogram, limits: &Limits) -> Result<Histogram, &'static str> {
    let schema = u8::try_from(wire.schema).ok().filter(|s| (MIN_SCHEMA..=MAX_SCHEMA).contains(s)).ok_or("unknown schema")?;
    if !wire.negative_span.is_empty() || !wire.positive_count.is_empty() || wire.sample_count_float != 0.0 {
        return Err("not an integer histogram of durations");
    }
    if !(wire.sample_sum >= 0.0 && wire.sample_sum < 1e18) {
        return Err("impossible sum");
    }
    let infinite_bucket = ((INFINITE_BUCKET - 1) >> (MAX_SCHEMA - schema)) + 1;
    let length: u64 = wire.positive_span.iter().map(|span| u64::from(span.length)).sum();
    if length != wire.positive_delta.len() as u64 || length > limits.buckets as u64 {
        return Err("spans and counts differ, or too many buckets");
    }
    let (mut buckets, mut infinite) = (Vec::with_capacity(wire.positive_delta.len()), 0);
    let (mut index, mut value, mut deltas) = (0i64, 0i64, wire.positive_delta.iter());
    for span in &wire.positive_span {
        index += i64::from(span.offset);
        for delta in deltas.by_ref().take(span.length as usize) {
            value = value.checked_add(*delta).filter(|v| *v >= 0).ok_or("negative bucket")?;
            let at = i32::try_from(index).map_err(|_| "bucket out of range")?;
            if at == infinite_bucket {
                infinite = value as u64;
            } else {
                buckets.push((at, value as u64));
            }
            index += 1;
        }
    }
    let sum_ns = (wire.sample_sum * 1e9).round() as u128;
    let histogram = Histogram::from_parts(schema, &buckets, wire.zero_count, infinite, sum_ns).ok_or("bucket out of range")?;
    if histogram.count() == wire.sample_count { Ok(histogram) } else { Err("count and buckets differ") }
}

#[cfg(test)]
mod tests {
    use super::super::{Format, encode};
    use super::*;
    use crate::accounting::snapshot::tests::snapshots;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn wire(snapshot: &Snapshot) -> Vec<u8> {
        encode(Arc::new(snapshot.clone()), &[("group", "devices".to_owned()), ("shard", "3".to_owned())], Format::Protobuf)
            .unwrap()
    }

    fn families(bytes: &[u8]) -> Vec<model::MetricFamily> {
        let mut rest = bytes;
        std::iter::from_fn(|| (!rest.is_empty()).then(|| model::MetricFamily::decode_length_delimited(&mut rest).unwrap()))
            .collect()
    }

    fn refused(change: impl FnOnce(&mut model::Histogram)) -> bool {
        let mut snapshot = Snapshot::new();
        [1_000, 5_000, 5_001, 90_000_000].iter().for_each(|ns| snapshot.record(Stage::PublishAck, *ns));
        let mut list = families(&wire(&snapshot));
        let family = list.iter_mut().find(|f| f.name == "mqtt_loadtest_publish_ack_seconds").unwrap();
        change(family.metric[0].histogram.as_mut().unwrap());
        let bytes: Vec<u8> = list.iter().flat_map(|f| f.encode_length_delimited_to_vec()).collect();
        matches!(decode(&bytes, &Limits::default()), Err(DecodeError::Invalid { .. }))
    }

    #[test]
    fn histograms_that_lie_are_refused() {
        assert!(!refused(|_| ()));
        assert!(refused(|h| h.sample_count += 1));
        assert!(refused(|h| h.schema = 8));
        assert!(refused(|h| h.positive_delta[1] = i64::MIN));
        assert!(refused(|h| h.positive_span[0].offset = i32::MAX));
        assert!(refused(|h| h.positive_span[0].length = u32::MAX));
        assert!(refused(|h| h.sample_sum = f64::NAN));
        assert!(refused(|h| h.zero_count = u64::MAX));
    }

    #[test]
    fn another_program_and_too_much_are_refused() {
        assert_eq!(decode(&[], &Limits::default()), Err(DecodeError::NotAWorker));
        assert!(matches!(decode(&[0; 300_000], &Limits::default()), Err(DecodeError::TooLarge(..))));
        assert!(matches!(decode(b"<html>", &Limits::default()), Err(DecodeError::NotProtobuf(_))));
    }

    #[test]
    fn a_busy_shard_is_about_as_small_as_promised() {
        let mut snapshot = Snapshot::new();
        for stage in Stage::ALL {
            (0..10_000u64).for_each(|i| snapshot.record(*stage, 200_000 + i * i));
        }
        let wire = wire(&snapshot);
        assert!(wire.len() < 32 * 1024, "{} bytes", wire.len());
        let decoded = decode(&wire, &Limits::default()).unwrap();
        let buckets: usize = Stage::ALL.iter().map(|stage| decoded.histogram(*stage).bucket_bytes()).sum();
        let memory = size_of::<Snapshot>() + buckets;
        assert!(memory < 32 * 1024, "{memory} bytes in memory, times a thousand in an operator");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn what_is_encoded_decodes_to_the_same(snapshot in snapshots()) {
            let again = decode(&wire(&snapshot), &Limits::default()).unwrap();
            prop_assert_eq!(again, snapshot);
        }

        #[test]
        fn damaged_bytes_are_an_error_or_a_valid_snapshot_and_never_a_panic(
            snapshot in snapshots(), at in any::<prop::sample::Index>(), with in any::<u8>(), cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = wire(&snapshot);
            let at = at.index(bytes.len());
            bytes[at] = with;
            let _ = decode(&bytes, &Limits::default());
            let _ = decode(&bytes[..cut.index(bytes.len())], &Limits::default());
        }
    }
}
