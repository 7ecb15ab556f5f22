//! Bucket bounds of Prometheus native histograms, schema 5, for durations in whole nanoseconds.
//!
//! Bucket `i` holds the values in (2^((i-1)/32), 2^(i/32)] seconds. Because durations are whole nanoseconds, comparing with
//! the floor of a bound is exact. The index is found by a table over the leading bits and at most two comparisons.

use std::sync::LazyLock;

/// Smallest index that is kept: below 1 ns.
pub(super) const MIN_INDEX: i32 = -960;
/// Largest index that is kept: 2^20 s, 12 days; longer durations are counted there.
pub(super) const MAX_INDEX: i32 = 640;
/// Buckets per doubling at schema 5.
const PER_OCTAVE: i32 = 32;
const BITS: u32 = 6;

/// The bounds and the table that finds them.
#[derive(Debug)]
pub(super) struct Buckets {
    /// `bounds[i - MIN_INDEX]`: largest duration of bucket `i`, in ns.
    bounds: Vec<u64>,
    /// For the position of the leading one and the next [`BITS`] bits: position of the first bucket that may hold it.
    first: Vec<u16>,
}

static BUCKETS: LazyLock<Buckets> = LazyLock::new(Buckets::new);

impl Buckets {
    pub(super) fn shared() -> &'static Buckets {
        &BUCKETS
    }

    fn new() -> Self {
        let bounds: Vec<u64> = (MIN_INDEX..=MAX_INDEX)
            .map(|i| {
                let octave = i.div_euclid(PER_OCTAVE);
                let part = f64::from(i.rem_euclid(PER_OCTAVE)) / f64::from(PER_OCTAVE);
                (part.exp2() * 1e9 * f64::from(octave).exp2()).floor() as u64
            })
            .collect();
        let first = (0..64u32 << BITS)
            .map(|slot| {
                let (exponent, fraction) = (slot >> BITS, u128::from(slot & ((1 << BITS) - 1)));
                let low = (1u128 << exponent) | ((fraction << exponent) >> BITS);
                bounds.partition_point(|bound| u128::from(*bound) < low).min(bounds.len() - 1) as u16
            })
            .collect();
        Self { bounds, first }
    }

    /// Position (index minus [`MIN_INDEX`]) of the bucket for a duration above zero.
    #[inline]
    pub(super) fn position(&self, ns: u64) -> usize {
        let exponent = 63 - (ns | 1).leading_zeros();
        let fraction = if exponent >= BITS { ns >> (exponent - BITS) } else { ns << (BITS - exponent) } & ((1 << BITS) - 1);
        let mut position = usize::from(self.first[((exponent as usize) << BITS) | fraction as usize]);
        while position + 1 < self.bounds.len() && self.bounds[position] < ns {
            position += 1;
        }
        position
    }
}

/// Upper bound of bucket `index` at `schema`, in seconds.
pub(super) fn upper_bound(index: i32, schema: u8) -> f64 {
    (f64::from(index) / f64::from(1u32 << schema)).exp2()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn index(ns: u64) -> i32 {
        Buckets::shared().position(ns) as i32 + MIN_INDEX
    }

    #[test]
    fn powers_of_two_of_a_second_are_upper_bounds() {
        assert_eq!(index(1_000_000_000), 0);
        assert_eq!(index(1_000_000_001), 1);
        assert_eq!(index(500_000_000), -32);
        assert_eq!(index(500_000_001), -31);
        assert_eq!(index(8_000_000_000), 96);
        assert_eq!(index(1), -956, "1 ns is 2^-29.897 s");
        assert_eq!(index(u64::MAX), MAX_INDEX);
    }

    proptest! {
        #[test]
        fn a_duration_lies_within_the_bounds_of_its_bucket(ns in 1u64..1_000_000_000_000_000) {
            let i = index(ns);
            let seconds = ns as f64 / 1e9;
            prop_assert!(seconds <= upper_bound(i, 5) * (1.0 + 1e-12));
            prop_assert!(seconds > upper_bound(i - 1, 5) * (1.0 - 1e-12));
        }

        #[test]
        fn positions_never_decrease(ns in 1u64..1_000_000_000_000_000, more in 0u64..1_000_000_000) {
            prop_assert!(index(ns) <= index(ns + more));
        }
    }
}
