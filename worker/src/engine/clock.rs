//! The engine's monotonic clock: nanoseconds in a `u64`, and the one mapping between it and the Unix epoch.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Where the clock stands when the process starts. Far from 0, so that instants before the process (a run that a replaced
/// pod joins) have a place too: 400 days.
const ORIGIN: u64 = 400 * 24 * 3600 * 1_000_000_000;

/// A clock that only goes forward.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    base: Instant,
}

impl Default for Clock {
    fn default() -> Self {
        Self { base: Instant::now() }
    }
}

impl Clock {
    /// The instant now, in ns.
    #[inline]
    pub fn now(&self) -> u64 {
        ORIGIN + self.base.elapsed().as_nanos() as u64
    }

    /// Maps ns since the Unix epoch to this clock, by the offset between both clocks at this moment.
    pub fn at_unix(&self, unix_ns: u64) -> u64 {
        // The reading with the shortest bracket has the smallest error.
        let reading = (0..5).map(|_| {
            let before = self.now();
            let unix = unix_now();
            (self.now() - before, before, unix)
        });
        let (width, before, unix) = reading.min().unwrap_or_default();
        (before + width / 2).saturating_add_signed((unix_ns.wrapping_sub(unix)) as i64)
    }
}

/// CLOCK_REALTIME in ns.
pub fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unix_instants_map_to_nearby_and_far_monotonic_ones() {
        let clock = Clock::default();
        let now = clock.now();
        let hour = 3_600_000_000_000;
        let error = clock.at_unix(unix_now()).abs_diff(now);
        assert!(error < 50_000_000, "{error} ns");
        assert!(clock.at_unix(unix_now() - hour).abs_diff(now - hour) < 50_000_000);
        assert!(clock.at_unix(unix_now() + hour).abs_diff(now + hour) < 50_000_000);
    }
}
