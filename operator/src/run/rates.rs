//! Rates per second from two sets of totals. A caller keeps a [`Meter`] between looks; losing it loses nothing but one rate.

use jiff::{SignedDuration, Timestamp};
use mqtt_loadtest_crds::status::Rates;
use mqtt_loadtest_worker::accounting::{Counter, Snapshot};

use super::{RunState, Totals};

/// Shortest time over which a rate says anything.
const SHORTEST: SignedDuration = SignedDuration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    at: Timestamp,
    counts: [u64; 4],
}

/// Remembers the totals before, and the rate between them and the ones before those.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    last: Option<Point>,
    rates: Rates,
}

impl Meter {
    /// Takes new totals; incomplete ones are passed over, as they would look like a drop.
    pub fn update(&mut self, totals: &Totals, now: Timestamp) -> &Rates {
        if totals.complete {
            let point = Point { at: now, counts: counts(&totals.all) };
            match self.last {
                Some(last) if now.duration_since(last.at) < SHORTEST => {}
                Some(last) => {
                    self.rates = between(&last.counts, &point.counts, now.duration_since(last.at));
                    self.last = Some(point);
                }
                None => self.last = Some(point),
            }
        }
        &self.rates
    }
}

/// The rates over the whole window of a run that has ended.
pub fn over_the_window(state: &RunState, totals: &Totals, now: Timestamp) -> Rates {
    let window = i64::try_from(state.elapsed_ns(now)).unwrap_or(i64::MAX);
    if window == 0 {
        return Rates::default();
    }
    between(&[0; 4], &counts(&totals.all), SignedDuration::from_nanos(window))
}

fn counts(all: &Snapshot) -> [u64; 4] {
    [all.get(Counter::Scheduled), all.total("sent"), all.get(Counter::Acked), all.get(Counter::Received)]
}

fn between(before: &[u64; 4], after: &[u64; 4], time: SignedDuration) -> Rates {
    let rate = |i: usize| number(after[i].saturating_sub(before[i]) as f64 / time.as_secs_f64());
    Rates { scheduled: rate(0), sent: rate(1), acked: rate(2), received: rate(3) }
}

/// A rate as people read it: whole above 100, else with one decimal.
fn number(rate: f64) -> String {
    if rate >= 100.0 || rate.fract() == 0.0 { format!("{rate:.0}") } else { format!("{rate:.1}") }
}
