//! The equations between counts. A law that does not close by even one message makes a run Inconclusive.
//!
//! These are pure checks over a merged snapshot; who merges, and what a verdict makes of a residual, is decided elsewhere.

use super::{Counter, Fingerprint, Gauge, Snapshot};

/// One equation and by how much it fails to close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Residual {
    /// The equation, as it is shown to people.
    pub law: &'static str,
    /// Left side minus right side, in messages; 0 when it closes.
    pub residual: i128,
}

/// `planned = absent + scheduled`.
pub const PLANNED: &str = "planned = absent + scheduled";
/// `scheduled = sent + skipped + pending`.
pub const SCHEDULED: &str = "scheduled = sent + skipped + pending";
/// For QoS 1 and 2: `sent = acked + refused + abandoned + unacked`.
pub const ACKNOWLEDGED: &str = "QoS 1 and 2: sent = acked + refused + abandoned + unacked";
/// For QoS 0: `sent = fenced + unfenced`.
pub const FENCED: &str = "QoS 0: sent = fenced + unfenced";
/// `received = unique + duplicates`.
pub const RECEIVED: &str = "received = unique + duplicates";

/// The laws of publishing and of receiving within the shards, each with its residual.
pub fn residuals(snapshot: &Snapshot) -> Vec<Residual> {
    let count = |counter| i128::from(snapshot.get(counter));
    let family = |name| i128::from(snapshot.total(name));
    let gauge = |gauge| i128::from(snapshot.gauge(gauge));
    let law = |law, left: i128, right: i128| Residual { law, residual: left - right };
    vec![
        law(PLANNED, count(Counter::Planned), count(Counter::Absent) + count(Counter::Scheduled)),
        law(SCHEDULED, count(Counter::Scheduled), family("sent") + family("skipped") + gauge(Gauge::Pending)),
        law(
            ACKNOWLEDGED,
            count(Counter::SentQos1) + count(Counter::SentQos2),
            count(Counter::Acked) + family("refused") + count(Counter::Abandoned) + gauge(Gauge::Unacked),
        ),
        law(FENCED, count(Counter::SentQos0), count(Counter::Fenced) + count(Counter::UnfencedLost) + gauge(Gauge::Unfenced)),
        law(RECEIVED, count(Counter::Received), count(Counter::Unique) + count(Counter::Duplicates)),
    ]
}

/// How many deliveries are missing, within bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deliveries {
    /// Surely lost: `max(0, expectedMin - unique - excused)`.
    pub lost_min: u64,
    /// At most lost: `max(0, expectedMax - unique)`.
    pub lost_max: u64,
    /// Unique deliveries beyond what could be expected: must be 0.
    pub surplus: u64,
    /// Where expectedMin = expectedMax, nothing is excused and every delivery was followed: whether the fingerprints agree.
    pub fingerprints_agree: Option<bool>,
}

/// Compares what was expected with what came, over a snapshot merged from all shards of all groups.
///
/// `uncertain` are messages that a pod which died without a last word may have sent: they widen `expectedMax`.
pub fn deliveries(snapshot: &Snapshot, uncertain: u64) -> Deliveries {
    let (min, max) = (snapshot.get(Counter::ExpectedMin), snapshot.get(Counter::ExpectedMax).saturating_add(uncertain));
    let (unique, excused) = (snapshot.get(Counter::Unique), snapshot.get(Counter::Excused));
    let exact = min == max && excused == 0 && snapshot.gauge(Gauge::StreamsUntracked) == 0 && unique == min;
    let agree = snapshot.fingerprint(Fingerprint::Expected) == snapshot.fingerprint(Fingerprint::Received);
    // Without the accounting header nobody folds anything, and two zeros say nothing.
    let known = snapshot.fingerprint(Fingerprint::Expected) != 0 && snapshot.fingerprint(Fingerprint::Received) != 0;
    Deliveries {
        lost_min: min.saturating_sub(unique).saturating_sub(excused),
        lost_max: max.saturating_sub(unique),
        surplus: unique.saturating_sub(max),
        fingerprints_agree: (exact && known).then_some(agree),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> Snapshot {
        let mut s = Snapshot::new();
        s.set(Counter::Planned, 100);
        s.set(Counter::Absent, 10);
        s.set(Counter::Scheduled, 90);
        s.set(Counter::SentQos0, 20);
        s.set(Counter::SentQos1, 60);
        s.set(Counter::SkippedBehind, 7);
        s.set_gauge(Gauge::Pending, 3);
        s.set(Counter::Acked, 50);
        s.set(Counter::RefusedQuota, 5);
        s.set(Counter::Abandoned, 1);
        s.set_gauge(Gauge::Unacked, 4);
        s.set(Counter::Fenced, 15);
        s.set(Counter::UnfencedLost, 3);
        s.set_gauge(Gauge::Unfenced, 2);
        s.set(Counter::Received, 70);
        s.set(Counter::Unique, 65);
        s.set(Counter::Duplicates, 5);
        s.set(Counter::ExpectedMin, 65);
        s.set(Counter::ExpectedMax, 80);
        s
    }

    #[test]
    fn a_run_that_adds_up_has_no_residuals() {
        assert!(residuals(&run()).iter().all(|r| r.residual == 0), "{:?}", residuals(&run()));
    }

    #[test]
    fn one_message_too_many_or_too_few_shows_in_its_law_alone() {
        let mut s = run();
        s.inc(Counter::Acked);
        let open: Vec<_> = residuals(&s).into_iter().filter(|r| r.residual != 0).collect();
        assert_eq!(open, [Residual { law: ACKNOWLEDGED, residual: -1 }]);
        let mut s = run();
        s.inc(Counter::Planned);
        let open: Vec<_> = residuals(&s).into_iter().filter(|r| r.residual != 0).collect();
        assert_eq!(open, [Residual { law: PLANNED, residual: 1 }]);
    }

    #[test]
    fn losses_are_bounds_and_a_surplus_shows() {
        assert_eq!(deliveries(&run(), 0), Deliveries { lost_min: 0, lost_max: 15, surplus: 0, fingerprints_agree: None });
        assert_eq!(deliveries(&run(), 5).lost_max, 20);
        let mut s = run();
        s.set(Counter::Unique, 60);
        s.set(Counter::Excused, 2);
        assert_eq!(deliveries(&s, 0).lost_min, 3);
        s.set(Counter::Unique, 81);
        assert_eq!(deliveries(&s, 0).surplus, 1);
    }

    #[test]
    fn equal_counts_with_unequal_fingerprints_are_noticed() {
        let mut s = run();
        s.set(Counter::ExpectedMax, 65);
        s.fold(Fingerprint::Expected, 7);
        s.fold(Fingerprint::Received, 7);
        assert_eq!(deliveries(&s, 0).fingerprints_agree, Some(true));
        s.fold(Fingerprint::Received, 1);
        assert_eq!(deliveries(&s, 0).fingerprints_agree, Some(false));
    }
}
