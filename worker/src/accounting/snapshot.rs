//! All counts of a thread, a shard, a group or a run at one instant. Merging is addition.

use super::{Combine, Counter, Gauge, Histogram, Stage};

/// Wrapping sums over messages of `m * mix64(client, entry, seq)`, compared where what is expected is exact: equal counts
/// could hide one message lost and another one delivered twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Fingerprint {
    /// Over acknowledged and fenced messages, times the deliveries each must have.
    Expected,
    /// Over first deliveries.
    Received,
}

impl Fingerprint {
    /// Both.
    pub const ALL: &'static [Fingerprint] = &[Fingerprint::Expected, Fingerprint::Received];
    /// How many there are.
    pub const COUNT: usize = Self::ALL.len();

    /// The label's value in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Fingerprint::Expected => "expected",
            Fingerprint::Received => "received",
        }
    }
}

/// Counts, gauges, histograms and maxima. Every thread owns one and adds to it without synchronisation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    counters: [u64; Counter::COUNT],
    gauges: [i64; Gauge::COUNT],
    fingerprints: [u64; Fingerprint::COUNT],
    maxima: [u64; Stage::COUNT],
    histograms: [Histogram; Stage::COUNT],
}

impl Default for Snapshot {
    fn default() -> Self {
        Self::new()
    }
}

impl Snapshot {
    /// All zero.
    pub fn new() -> Self {
        Self {
            counters: [0; Counter::COUNT],
            gauges: [0; Gauge::COUNT],
            fingerprints: [0; Fingerprint::COUNT],
            maxima: [0; Stage::COUNT],
            histograms: std::array::from_fn(|_| Histogram::new()),
        }
    }

    /// Adds one to a counter.
    #[inline]
    pub fn inc(&mut self, counter: Counter) {
        self.counters[counter as usize] += 1;
    }

    /// Adds to a counter.
    #[inline]
    pub fn add(&mut self, counter: Counter, by: u64) {
        self.counters[counter as usize] += by;
    }

    /// Sets a counter (for those that are computed, as `Planned`).
    pub fn set(&mut self, counter: Counter, value: u64) {
        self.counters[counter as usize] = value;
    }

    /// Moves a gauge.
    #[inline]
    pub fn adjust(&mut self, gauge: Gauge, by: i64) {
        self.gauges[gauge as usize] += by;
    }

    /// Sets a gauge.
    pub fn set_gauge(&mut self, gauge: Gauge, value: i64) {
        self.gauges[gauge as usize] = value;
    }

    /// Adds to a fingerprint, wrapping.
    #[inline]
    pub fn fold(&mut self, fingerprint: Fingerprint, value: u64) {
        let slot = &mut self.fingerprints[fingerprint as usize];
        *slot = slot.wrapping_add(value);
    }

    /// Counts a latency in nanoseconds and keeps its maximum.
    #[inline]
    pub fn record(&mut self, stage: Stage, ns: u64) {
        self.histograms[stage as usize].record(ns);
        let max = &mut self.maxima[stage as usize];
        *max = (*max).max(ns);
    }

    /// Counts what never came.
    #[inline]
    pub fn record_infinite(&mut self, stage: Stage, count: u64) {
        self.histograms[stage as usize].record_infinite(count);
    }

    /// A counter's value.
    pub fn get(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    /// A gauge's value.
    pub fn gauge(&self, gauge: Gauge) -> i64 {
        self.gauges[gauge as usize]
    }

    /// A fingerprint's value.
    pub fn fingerprint(&self, fingerprint: Fingerprint) -> u64 {
        self.fingerprints[fingerprint as usize]
    }

    /// The largest latency of a stage in nanoseconds; 0 when there was none.
    pub fn maximum_ns(&self, stage: Stage) -> u64 {
        self.maxima[stage as usize]
    }

    /// A stage's histogram.
    pub fn histogram(&self, stage: Stage) -> &Histogram {
        &self.histograms[stage as usize]
    }

    /// Replaces a stage's histogram and maximum (for decoders).
    pub fn set_stage(&mut self, stage: Stage, histogram: Histogram, maximum_ns: u64) {
        self.histograms[stage as usize] = histogram;
        self.maxima[stage as usize] = maximum_ns;
    }

    /// Replaces a stage's histogram (for decoders).
    pub fn set_histogram(&mut self, stage: Stage, histogram: Histogram) {
        self.histograms[stage as usize] = histogram;
    }

    /// Replaces a stage's maximum (for decoders).
    pub fn set_maximum(&mut self, stage: Stage, maximum_ns: u64) {
        self.maxima[stage as usize] = maximum_ns;
    }

    /// Replaces a fingerprint (for decoders).
    pub fn set_fingerprint(&mut self, fingerprint: Fingerprint, value: u64) {
        self.fingerprints[fingerprint as usize] = value;
    }

    /// Sum over a family's members: `sent`, `skipped`, `refused`, `connects_failed`, `disconnects`, `subscribes_failed`.
    pub fn total(&self, family: &str) -> u64 {
        Counter::members(family).map(|counter| self.get(counter)).sum()
    }

    /// The members of a family that are not zero, as (label value, count).
    pub fn by_label(&self, family: &str) -> Vec<(&'static str, u64)> {
        Counter::members(family).map(|c| (c.name(), self.get(c))).filter(|(_, count)| *count > 0).collect()
    }

    /// Adds another snapshot: of another thread, shard or dead attempt.
    pub fn merge(&mut self, other: &Snapshot) {
        for (mine, theirs) in self.counters.iter_mut().zip(&other.counters) {
            *mine = mine.saturating_add(*theirs);
        }
        for gauge in Gauge::ALL {
            let (mine, theirs) = (&mut self.gauges[*gauge as usize], other.gauges[*gauge as usize]);
            *mine = match gauge.combine() {
                Combine::Sum => mine.saturating_add(theirs),
                Combine::Max => (*mine).max(theirs),
            };
        }
        for (mine, theirs) in self.fingerprints.iter_mut().zip(&other.fingerprints) {
            *mine = mine.wrapping_add(*theirs);
        }
        for (mine, theirs) in self.maxima.iter_mut().zip(&other.maxima) {
            *mine = (*mine).max(*theirs);
        }
        for (mine, theirs) in self.histograms.iter_mut().zip(&other.histograms) {
            mine.merge(theirs);
        }
    }

    /// Coarsens every histogram to `schema` (for the termination message).
    pub fn downscale(&self, schema: u8) -> Snapshot {
        Snapshot { histograms: std::array::from_fn(|i| self.histograms[i].downscale(schema)), ..self.clone() }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// Any snapshot whose counts survive a trip through doubles (below 2^53), as those of a real run do.
    pub(in crate::accounting) fn snapshots() -> impl Strategy<Value = Snapshot> {
        (
            vec(0u64..1 << 50, Counter::COUNT),
            vec(-1_000_000i64..1 << 50, Gauge::COUNT),
            vec(any::<u64>(), Fingerprint::COUNT),
            vec((vec(0u64..1 << 42, 0..40), 0u64..100), Stage::COUNT),
        )
            .prop_map(|(counters, gauges, fingerprints, stages)| {
                let mut snapshot = Snapshot::new();
                for (counter, value) in Counter::ALL.iter().zip(counters) {
                    snapshot.set(*counter, value);
                }
                for (gauge, value) in Gauge::ALL.iter().zip(gauges) {
                    snapshot.set_gauge(*gauge, value);
                }
                for (fingerprint, value) in Fingerprint::ALL.iter().zip(fingerprints) {
                    snapshot.set_fingerprint(*fingerprint, value);
                }
                for (stage, (samples, infinite)) in Stage::ALL.iter().zip(stages) {
                    samples.iter().for_each(|ns| snapshot.record(*stage, *ns));
                    snapshot.record_infinite(*stage, infinite);
                }
                snapshot
            })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn merging_is_commutative_and_associative(a in snapshots(), b in snapshots(), c in snapshots()) {
            let merged = |list: &[&Snapshot]| {
                let mut sum = Snapshot::new();
                list.iter().for_each(|s| sum.merge(s));
                sum
            };
            // Gauges merged by maximum start from zero, so both orders do.
            prop_assert_eq!(merged(&[&a, &b, &c]), merged(&[&c, &a, &b]));
            let mut bc = b.clone();
            bc.merge(&c);
            prop_assert_eq!(merged(&[&a, &bc]), merged(&[&a, &b, &c]));
        }
    }
}
