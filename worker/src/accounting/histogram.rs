//! A latency histogram in the buckets of a Prometheus native histogram.
//!
//! Recording costs a table look-up and an addition. Memory is kept for the used range of buckets only, since an operator holds
//! ten histograms for each of a thousand shards. What never came (unacknowledged, abandoned, skipped) is counted as
//! infinite, so percentiles do not come from the survivors alone. Merging is addition; two schemas merge at the coarser one.

use super::buckets::{self, Buckets, MAX_INDEX, MIN_INDEX};

/// The finest schema, and the one that is recorded: 32 buckets per doubling, relative error at most 1.1 %.
pub const MAX_SCHEMA: u8 = 5;
/// The coarsest schema that [`Histogram::downscale`] reaches: 2 buckets per doubling.
pub const MIN_SCHEMA: u8 = 1;

/// Counts of durations by native bucket.
#[derive(Clone)]
pub struct Histogram {
    schema: u8,
    /// Position (index minus the lowest one of the schema) of the first kept bucket.
    first: usize,
    /// The kept buckets; all others are empty.
    counts: Vec<u64>,
    zero: u64,
    infinite: u64,
    sum_ns: u128,
}

/// The same counts, whatever empty buckets are kept.
impl PartialEq for Histogram {
    fn eq(&self, other: &Self) -> bool {
        let scalars = |h: &Self| (h.schema, h.zero, h.infinite, h.sum_ns);
        scalars(self) == scalars(other) && self.buckets().eq(other.buckets())
    }
}

impl Eq for Histogram {}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Histogram")
            .field("schema", &self.schema)
            .field("buckets", &self.buckets().collect::<Vec<_>>())
            .field("zero", &self.zero)
            .field("infinite", &self.infinite)
            .field("sum_ns", &self.sum_ns)
            .finish()
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

/// Buckets per doubling at [`MAX_SCHEMA`].
const DOUBLING: usize = 1 << MAX_SCHEMA;

/// Smallest and largest index at a schema: an index halves, rounded up, with each step down.
fn index_range(schema: u8) -> (i32, i32) {
    let steps = MAX_SCHEMA - schema;
    (MIN_INDEX >> steps, MAX_INDEX >> steps)
}

impl Histogram {
    /// An empty histogram at [`MAX_SCHEMA`].
    pub fn new() -> Self {
        Self::with_schema(MAX_SCHEMA)
    }

    fn with_schema(schema: u8) -> Self {
        Self { schema, first: 0, counts: Vec::new(), zero: 0, infinite: 0, sum_ns: 0 }
    }

    /// Keeps the buckets at `first..end` too (positions, not empty).
    fn cover(&mut self, first: usize, end: usize) {
        if self.counts.is_empty() {
            self.first = first;
            self.counts = vec![0; end - first];
            return;
        }
        let old_end = self.first + self.counts.len();
        if first >= self.first && end <= old_end {
            return;
        }
        let (low, high) = (first.min(self.first), end.max(old_end));
        let mut counts = Vec::with_capacity(high - low);
        counts.resize(self.first - low, 0);
        counts.append(&mut self.counts);
        counts.resize(high - low, 0);
        (self.first, self.counts) = (low, counts);
    }

    /// A count outside of the kept range: whole doublings are added to it, so that this is rare.
    #[cold]
    #[inline(never)]
    fn record_outside(&mut self, position: usize) {
        let (low, high) = index_range(self.schema);
        let first = position / DOUBLING * DOUBLING;
        self.cover(first, (first + DOUBLING).min((high - low + 1) as usize));
        self.counts[position - self.first] += 1;
    }

    /// Rebuilds a histogram from its parts; `buckets` are (index, count) pairs at `schema`.
    ///
    /// `None` when the schema or an index is out of range or a count overflows.
    pub fn from_parts(schema: u8, buckets: &[(i32, u64)], zero: u64, infinite: u64, sum_ns: u128) -> Option<Self> {
        if !(MIN_SCHEMA..=MAX_SCHEMA).contains(&schema) {
            return None;
        }
        let (low, high) = index_range(schema);
        let mut histogram = Self { zero, infinite, sum_ns, ..Self::with_schema(schema) };
        let (mut least, mut most) = (i32::MAX, i32::MIN);
        for (index, count) in buckets {
            if !(low..=high).contains(index) {
                return None;
            }
            if *count > 0 {
                (least, most) = (least.min(*index), most.max(*index));
            }
        }
        if least <= most {
            histogram.cover((least - low) as usize, (most - low) as usize + 1);
        }
        let mut total = zero.checked_add(infinite)?;
        for (index, count) in buckets.iter().filter(|(_, count)| *count > 0) {
            let slot = &mut histogram.counts[(index - least) as usize];
            *slot = slot.checked_add(*count)?;
            total = total.checked_add(*count)?;
        }
        Some(histogram)
    }

    /// Counts a duration in nanoseconds.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        debug_assert_eq!(self.schema, MAX_SCHEMA, "only merged histograms are coarser");
        if ns == 0 {
            self.zero += 1;
        } else {
            let position = Buckets::shared().position(ns);
            match self.counts.get_mut(position.wrapping_sub(self.first)) {
                Some(count) => *count += 1,
                None => self.record_outside(position),
            }
            self.sum_ns += u128::from(ns);
        }
    }

    /// Counts what never came.
    #[inline]
    pub fn record_infinite(&mut self, count: u64) {
        self.infinite += count;
    }

    /// Adds another histogram. The result has the coarser of the two schemas.
    pub fn merge(&mut self, other: &Histogram) {
        let schema = self.schema.min(other.schema);
        if self.schema > schema {
            *self = self.downscale(schema);
        }
        let coarser;
        let other = if other.schema > schema {
            coarser = other.downscale(schema);
            &coarser
        } else {
            other
        };
        if !other.counts.is_empty() {
            self.cover(other.first, other.first + other.counts.len());
            for (mine, theirs) in self.counts[other.first - self.first..].iter_mut().zip(&other.counts) {
                *mine = mine.saturating_add(*theirs);
            }
        }
        self.zero = self.zero.saturating_add(other.zero);
        self.infinite = self.infinite.saturating_add(other.infinite);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }

    /// The same counts at a coarser schema (exact: bucket `i` goes to bucket `ceil(i / 2)` at each step).
    pub fn downscale(&self, schema: u8) -> Histogram {
        let schema = schema.clamp(MIN_SCHEMA, self.schema);
        if schema == self.schema {
            return self.clone();
        }
        let up = |index: i32| (schema..self.schema).fold(index, |i, _| (i + 1) >> 1);
        let low = index_range(schema).0;
        let mut coarse = Self { zero: self.zero, infinite: self.infinite, sum_ns: self.sum_ns, ..Self::with_schema(schema) };
        if let (Some((least, _)), Some((most, _))) = (self.buckets().next(), self.buckets().next_back()) {
            coarse.cover((up(least) - low) as usize, (up(most) - low) as usize + 1);
        }
        for (index, count) in self.buckets() {
            coarse.counts[(up(index) - low) as usize - coarse.first] += count;
        }
        coarse
    }

    /// What was counted since `earlier`, a snapshot of the same histogram (for the thresholds that watch a window).
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let schema = self.schema.min(earlier.schema);
        let (mut delta, earlier) = (self.downscale(schema), earlier.downscale(schema));
        for (at, theirs) in (earlier.first..).zip(&earlier.counts) {
            if let Some(mine) = delta.counts.get_mut(at.wrapping_sub(delta.first)) {
                *mine = mine.saturating_sub(*theirs);
            }
        }
        delta.zero = delta.zero.saturating_sub(earlier.zero);
        delta.infinite = delta.infinite.saturating_sub(earlier.infinite);
        delta.sum_ns = delta.sum_ns.saturating_sub(earlier.sum_ns);
        delta
    }

    /// The value below which the share `q` (0 to 1) of the observations lies, in seconds: the geometric middle of its bucket.
    ///
    /// `None` when nothing was counted; infinity when the rank falls on what never came.
    pub fn percentile(&self, q: f64) -> Option<f64> {
        let total = self.count();
        if total == 0 {
            return None;
        }
        let rank = ((q.clamp(0.0, 1.0) * total as f64).ceil() as u64).clamp(1, total);
        let mut seen = self.zero;
        if rank <= seen {
            return Some(0.0);
        }
        for (index, count) in self.buckets() {
            seen += count;
            if rank <= seen {
                return Some((buckets::upper_bound(index, self.schema) * buckets::upper_bound(index - 1, self.schema)).sqrt());
            }
        }
        Some(f64::INFINITY)
    }

    /// Observations that are surely at most `seconds`: those in buckets whose upper bound is at most `seconds`.
    pub fn count_below(&self, seconds: f64) -> u64 {
        let bound = seconds * (1.0 + 1e-12);
        self.zero + self.buckets().filter(|(i, _)| buckets::upper_bound(*i, self.schema) <= bound).map(|(_, c)| c).sum::<u64>()
    }

    /// All observations, what never came included.
    pub fn count(&self) -> u64 {
        self.finite_count() + self.infinite
    }

    /// Observations that came.
    pub fn finite_count(&self) -> u64 {
        self.zero + self.counts.iter().sum::<u64>()
    }

    /// Observations of zero.
    pub fn zero(&self) -> u64 {
        self.zero
    }

    /// What never came.
    pub fn infinite(&self) -> u64 {
        self.infinite
    }

    /// Sum of the finite observations in nanoseconds.
    pub fn sum_ns(&self) -> u128 {
        self.sum_ns
    }

    /// Mean of the finite observations in seconds.
    pub fn mean(&self) -> Option<f64> {
        let count = self.finite_count();
        (count > 0).then(|| self.sum_ns as f64 / 1e9 / count as f64)
    }

    /// The schema: 2^schema buckets per doubling.
    pub fn schema(&self) -> u8 {
        self.schema
    }

    /// Bytes that its buckets take in memory.
    pub fn bucket_bytes(&self) -> usize {
        self.counts.capacity() * size_of::<u64>()
    }

    /// The buckets that are not empty, as (index, count), in ascending order.
    pub fn buckets(&self) -> impl DoubleEndedIterator<Item = (i32, u64)> + '_ {
        let low = index_range(self.schema).0 + self.first as i32;
        self.counts.iter().enumerate().filter(|(_, count)| **count > 0).map(move |(i, count)| (i as i32 + low, *count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn of(samples: &[u64]) -> Histogram {
        let mut histogram = Histogram::new();
        for sample in samples {
            histogram.record(*sample);
        }
        histogram
    }

    fn exact(samples: &mut [u64], q: f64) -> f64 {
        samples.sort_unstable();
        let rank = ((q * samples.len() as f64).ceil() as usize).clamp(1, samples.len());
        samples[rank - 1] as f64 / 1e9
    }

    #[test]
    fn what_never_came_moves_the_percentiles() {
        let mut histogram = of(&[1_000_000; 90]);
        histogram.record_infinite(10);
        assert!(histogram.percentile(0.9).unwrap() < 0.0011);
        assert_eq!(histogram.percentile(0.91), Some(f64::INFINITY));
        assert_eq!(Histogram::new().percentile(0.5), None);
    }

    #[test]
    fn counts_below_a_bound_include_the_bound() {
        let histogram = of(&[1_000_000_000, 2_000_000_000, 2_000_000_001]);
        assert_eq!(histogram.count_below(1.0), 1);
        assert_eq!(histogram.count_below(2.0), 2);
    }

    #[test]
    fn memory_is_kept_for_the_used_range_only() {
        assert_eq!(Histogram::new().bucket_bytes(), 0);
        // 100 us to 100 ms are ten doublings of 32 buckets.
        let histogram = of(&(0..1000).map(|i| 100_000 + i * 100_000).collect::<Vec<_>>());
        assert!(histogram.bucket_bytes() <= 12 * 32 * 8, "{}", histogram.bucket_bytes());
        let parts: Vec<_> = histogram.buckets().collect();
        let again = Histogram::from_parts(5, &parts, 0, 0, histogram.sum_ns()).unwrap();
        assert_eq!(again.bucket_bytes(), (parts.last().unwrap().0 - parts[0].0 + 1) as usize * 8);
        assert_eq!(again, histogram, "however much is kept");
        let mut merged = Histogram::new();
        merged.merge(&again);
        merged.merge(&again);
        assert_eq!(merged.bucket_bytes(), again.bucket_bytes());
    }

    #[test]
    fn the_extremes_have_buckets() {
        let mut histogram = of(&[u64::MAX, 1, 0]);
        histogram.record(1_000_000_000);
        assert_eq!(histogram.buckets().collect::<Vec<_>>(), [(-956, 1), (0, 1), (MAX_INDEX, 1)]);
        assert_eq!((histogram.count(), histogram.zero()), (4, 1));
    }

    proptest! {
        #[test]
        fn what_was_counted_since_is_the_difference(
            before in vec(0u64..1 << 45, 0..50), after in vec(0u64..1 << 45, 0..50), schema in 1u8..=5,
        ) {
            let earlier = of(&before).downscale(schema);
            let all = of(&[before, after.clone()].concat());
            prop_assert_eq!(all.since(&earlier), of(&after).downscale(schema));
            prop_assert_eq!(earlier.since(&all).count(), 0);
        }

        #[test]
        fn merged_percentiles_are_those_of_the_concatenated_samples(
            shards in vec(vec(1u64..100_000_000_000, 1..200), 1..6), q in 0.0f64..=1.0,
        ) {
            let mut merged = Histogram::new();
            for shard in &shards {
                merged.merge(&of(shard));
            }
            let mut all: Vec<u64> = shards.concat();
            prop_assert_eq!(&merged, &of(&all));
            let truth = exact(&mut all, q);
            let told = merged.percentile(q).unwrap();
            prop_assert!((told / truth - 1.0).abs() <= 0.011, "{told} against {truth}");
        }

        #[test]
        fn a_coarser_schema_keeps_every_count_and_its_own_error(samples in vec(1u64..100_000_000_000, 1..200), q in 0.0f64..=1.0) {
            let fine = of(&samples);
            let mut all = samples;
            for (schema, error) in [(4u8, 0.022), (3, 0.045), (2, 0.091), (1, 0.19)] {
                let coarse = fine.downscale(schema);
                prop_assert_eq!(coarse.count(), fine.count());
                prop_assert_eq!(&coarse, &fine.downscale(4.max(schema)).downscale(schema));
                let truth = exact(&mut all, q);
                prop_assert!((coarse.percentile(q).unwrap() / truth - 1.0).abs() <= error);
            }
        }

        #[test]
        fn merging_in_any_order_and_schema_gives_the_same(a in vec(0u64..1 << 40, 0..50), b in vec(0u64..1 << 40, 0..50)) {
            let (a, b) = (of(&a), of(&b).downscale(3));
            let (mut ab, mut ba) = (a.clone(), b.clone());
            ab.merge(&b);
            ba.merge(&a);
            prop_assert_eq!(ab, ba);
        }

        #[test]
        fn parts_rebuild_the_histogram(samples in vec(0u64..1 << 50, 0..100), infinite in 0u64..10) {
            let mut histogram = of(&samples);
            histogram.record_infinite(infinite);
            let parts: Vec<_> = histogram.buckets().collect();
            let again = Histogram::from_parts(5, &parts, histogram.zero(), infinite, histogram.sum_ns());
            prop_assert_eq!(again, Some(histogram));
        }
    }
}
