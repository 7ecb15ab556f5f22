//! Reading a worker's protobuf exposition back into a snapshot.
//!
//! The bytes may come from anything that answers on a pod's port, so sizes, spans, counts and names are checked before
//! anything is added. Families that this version does not know are passed over.

use super::native::{Scratch, histogram};
use super::wire::{self, Message, damaged};
use super::{FINGERPRINT_METRIC, PREFIX, gauge_name};
use crate::accounting::{Counter, Fingerprint, Gauge, Snapshot, Stage};
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
    NotProtobuf(&'static str),
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
    let mut scratch = Scratch::default();
    let mut ours = false;
    while !bytes.is_empty() {
        let family = Message(wire::delimited(&mut bytes)?);
        let name = name(family)?;
        if let Some(target) = TARGETS.get(name) {
            ours = true;
            apply(target, family, limits, &mut snapshot, &mut scratch).map_err(|problem| problem.of(name))?;
        }
    }
    if ours { Ok(snapshot) } else { Err(DecodeError::NotAWorker) }
}

/// What is wrong with a family.
pub(super) enum Problem {
    Wire(DecodeError),
    Value(&'static str),
}

impl Problem {
    fn of(self, name: &str) -> DecodeError {
        match self {
            Problem::Wire(error) => error,
            Problem::Value(problem) => DecodeError::Invalid { metric: name.chars().take(100).collect(), problem },
        }
    }
}

impl From<DecodeError> for Problem {
    fn from(error: DecodeError) -> Self {
        Self::Wire(error)
    }
}

impl From<&'static str> for Problem {
    fn from(problem: &'static str) -> Self {
        Self::Value(problem)
    }
}

/// Name of a `MetricFamily`.
fn name(family: Message<'_>) -> Result<&str, DecodeError> {
    let mut name: &[u8] = &[];
    for field in family {
        if let (1, value) = field? {
            name = value.bytes()?;
        }
    }
    std::str::from_utf8(name).map_err(|_| damaged("a name is not text"))
}

/// The metrics of a `MetricFamily`.
fn metrics(family: Message<'_>) -> impl Iterator<Item = Result<Message<'_>, DecodeError>> {
    family.filter_map(|field| match field {
        Ok((4, value)) => Some(value.message()),
        Ok(_) => None,
        Err(error) => Some(Err(error)),
    })
}

fn apply(
    target: &Target,
    family: Message<'_>,
    limits: &Limits,
    snapshot: &mut Snapshot,
    scratch: &mut Scratch,
) -> Result<(), Problem> {
    let one = || {
        let mut metrics = metrics(family);
        match (metrics.next(), metrics.next()) {
            (Some(metric), None) => Ok(metric?),
            _ => Err(Problem::Value("one series is expected")),
        }
    };
    match target {
        Target::Counters(members) => {
            let mut seen = 0u128;
            for metric in metrics(family) {
                let metric = metric?;
                let value = count(value_of(metric, COUNTER)?.ok_or("not a counter")?)?;
                let Some(place) = place(metric, members)? else {
                    continue; // a reason that a newer worker knows
                };
                if seen & (1 << place) != 0 {
                    return Err("the same series twice".into());
                }
                seen |= 1 << place;
                snapshot.set(members[place], value);
            }
        }
        Target::Gauge(gauge) => snapshot.set_gauge(*gauge, integer(gauge_value(one()?)?)?),
        Target::Fingerprints => {
            let mut halves = [[None; 2]; Fingerprint::COUNT];
            for metric in metrics(family) {
                let metric = metric?;
                let value = u32::try_from(count(gauge_value(metric)?)?).map_err(|_| "more than 32 bits")?;
                for fingerprint in Fingerprint::ALL {
                    for (place, half) in ["high", "low"].into_iter().enumerate() {
                        if has(metric, ("of", fingerprint.name()))? && has(metric, ("half", half))? {
                            halves[*fingerprint as usize][place] = Some(value);
                        }
                    }
                }
            }
            for fingerprint in Fingerprint::ALL {
                let [Some(high), Some(low)] = halves[*fingerprint as usize] else { return Err("half a fingerprint".into()) };
                snapshot.set_fingerprint(*fingerprint, u64::from(high) << 32 | u64::from(low));
            }
        }
        Target::Histogram(stage) => {
            let mut found = None;
            for field in one()? {
                if let (HISTOGRAM, value) = field? {
                    found = Some(value);
                }
            }
            let histogram = histogram(found.ok_or("not a histogram")?, limits, scratch)?;
            snapshot.set_histogram(*stage, histogram);
        }
        Target::Maximum(stage) => snapshot.set_maximum(*stage, count(gauge_value(one()?)?)?),
    }
    Ok(())
}

/// Fields of a `Metric`.
const LABEL: u64 = 1;
const GAUGE: u64 = 2;
const COUNTER: u64 = 3;
const HISTOGRAM: u64 = 7;

/// The labels of a `Metric`, as names and values.
fn labels(metric: Message<'_>) -> impl Iterator<Item = Result<(&[u8], &[u8]), DecodeError>> {
    metric.filter_map(|field| match field {
        Ok((LABEL, value)) => Some(value.message().and_then(pair)),
        Ok(_) => None,
        Err(error) => Some(Err(error)),
    })
}

fn pair(label: Message<'_>) -> Result<(&[u8], &[u8]), DecodeError> {
    let mut pair: (&[u8], &[u8]) = (&[], &[]);
    for field in label {
        match field? {
            (1, value) => pair.0 = value.bytes()?,
            (2, value) => pair.1 = value.bytes()?,
            _ => {}
        }
    }
    Ok(pair)
}

fn has(metric: Message<'_>, (name, value): (&str, &str)) -> Result<bool, DecodeError> {
    for label in labels(metric) {
        if label? == (name.as_bytes(), value.as_bytes()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Which member of a family a series is, by the one label that tells.
fn place(metric: Message<'_>, members: &[Counter]) -> Result<Option<usize>, DecodeError> {
    let Some((name, _)) = members[0].label() else { return Ok(Some(0)) };
    for label in labels(metric) {
        let (own, value) = label?;
        if own == name.as_bytes() {
            let is = |member: &Counter| member.label().is_some_and(|(_, known)| known.as_bytes() == value);
            return Ok(members.iter().position(is));
        }
    }
    Ok(None)
}

/// The value of a metric's `Gauge` or `Counter`; zero is not written.
fn value_of(metric: Message<'_>, kind: u64) -> Result<Option<f64>, DecodeError> {
    let mut found = None;
    for field in metric {
        let (number, value) = field?;
        if number == kind {
            let mut own = 0.0;
            for field in value.message()? {
                if let (1, value) = field? {
                    own = value.double()?;
                }
            }
            found = Some(own);
        }
    }
    Ok(found)
}

fn gauge_value(metric: Message<'_>) -> Result<f64, Problem> {
    Ok(value_of(metric, GAUGE)?.ok_or("not a gauge")?)
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

#[cfg(test)]
mod tests {
    use super::super::{Format, encode};
    use super::*;
    use crate::accounting::snapshot::tests::snapshots;
    use prometheus_client::encoding::prometheus_protobuf::prometheus_data_model as model;
    use proptest::prelude::*;
    use prost::Message as _;
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
