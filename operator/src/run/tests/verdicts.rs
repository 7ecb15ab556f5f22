//! The criteria, one by one, on numbers that break exactly one of them.

use mqtt_loadtest_crds::status::Verdict;
use mqtt_loadtest_worker::accounting::{Fingerprint, Stage};

use super::*;
use crate::run::verdict::judge;

/// The end of a run that passes: 100 messages to one listener.
fn end() -> (RunPlan, RunState, Totals) {
    let plan = plan_of(
        json!([
            {"name": "devices", "clients": 10, "publish": [{"name": "t", "topic": "a", "qos": 1, "interval": "1s"}]},
            {"name": "listeners", "clients": 1, "subscribe": [{"name": "all", "filter": "a", "qos": 1}]}
        ]),
        json!({"duration": "10s"}),
    );
    let start = Timestamp::from_second(1_800_000_000).unwrap();
    let mut state = RunState::begin("1-abc".into(), "abc".into(), 1);
    state.barrier_at = Some(start);
    state.ends_at = Some(start + SignedDuration::from_secs(10));
    let mut devices = Snapshot::new();
    for (counter, value) in [
        (Counter::Planned, 100),
        (Counter::Scheduled, 100),
        (Counter::SentQos1, 100),
        (Counter::Acked, 100),
        (Counter::ExpectedMin, 100),
        (Counter::ExpectedMax, 100),
        (Counter::ConnectsSucceeded, 10),
    ] {
        devices.set(counter, value);
    }
    let mut listeners = Snapshot::new();
    for counter in [Counter::Received, Counter::Unique] {
        listeners.set(counter, 100);
    }
    listeners.set(Counter::ConnectsSucceeded, 1);
    let group = |place: usize, counts: Snapshot| GroupTotals {
        name: plan.groups[place].name.clone(),
        clients: u64::from(plan.groups[place].clients),
        coverage: Coverage { planned: 100, covered: 100 },
        counts,
        shards: Default::default(),
        uncertain: 0,
        unacked_by_death: 0,
        deaths: 0,
        causes: vec![],
    };
    let groups = vec![group(0, devices), group(1, listeners)];
    let totals = Totals { groups, all: Snapshot::new(), complete: true, at: state.ends_at.unwrap() };
    (plan, state, totals)
}

fn judged(edit: impl FnOnce(&mut Totals)) -> Outcome {
    let (plan, state, mut totals) = end();
    edit(&mut totals);
    for group in &totals.groups {
        totals.all.merge(&group.counts);
    }
    judge(&plan, &state, &totals, 0)
}

fn move_from(counts: &mut Snapshot, from: Counter, to: Counter, n: u64) {
    counts.set(from, counts.get(from) - n);
    counts.add(to, n);
}

#[test]
fn numbers_without_a_flaw_pass() {
    let outcome = judged(|_| {});
    assert_eq!((outcome.verdict, outcome.reason.as_str()), (Verdict::Passed, "AllCriteriaMet"));
    assert!(outcome.message.contains("100 messages sent, 100 acknowledged, 100 delivered, none lost"), "{}", outcome.message);
}

#[test]
fn each_criterion_has_a_reason_of_its_own() {
    type Edit = fn(&mut Totals);
    let cases: [(&str, Verdict, &str, Edit); 15] = [
        ("ClientsNotConnected", Verdict::Failed, "1 of 11 clients (9 %) never connected", |t| {
            t.groups[0].counts.set(Counter::ConnectsSucceeded, 9)
        }),
        ("ClientsNotConnected", Verdict::Inconclusive, "noSourcePorts", |t| {
            t.groups[0].counts.set(Counter::ConnectsSucceeded, 9);
            t.groups[0].counts.set(Counter::ConnectNoSourcePorts, 1);
        }),
        (
            "RateMissed",
            Verdict::Failed,
            "98 of 100 scheduled messages were sent (98 %), fewer than 99 %; skipped: 2 windowFull",
            |t| {
                let c = &mut t.groups[0].counts;
                move_from(c, Counter::SentQos1, Counter::SkippedWindowFull, 2);
                for counter in [Counter::Acked, Counter::ExpectedMin, Counter::ExpectedMax] {
                    c.set(counter, 98);
                }
                t.groups[1].counts.set(Counter::Received, 98);
                t.groups[1].counts.set(Counter::Unique, 98);
            },
        ),
        ("MessagesLost", Verdict::Failed, "1 of 100 deliveries were lost", |t| {
            t.groups[1].counts.set(Counter::Received, 99);
            t.groups[1].counts.set(Counter::Unique, 99);
        }),
        ("MessagesLost", Verdict::Failed, "some messages were lost and others came twice", |t| {
            t.groups[0].counts.fold(Fingerprint::Expected, 7);
            t.groups[1].counts.fold(Fingerprint::Received, 8);
        }),
        ("MessagesRefused", Verdict::Failed, "the broker refused 3 messages: 3 quotaExceeded", |t| {
            move_from(&mut t.groups[0].counts, Counter::Acked, Counter::RefusedQuota, 3)
        }),
        ("MessagesUnacknowledged", Verdict::Failed, "2 messages were never acknowledged", |t| {
            let c = &mut t.groups[0].counts;
            c.set(Counter::Acked, 98);
            c.set_gauge(Gauge::Unacked, 1);
            c.set(Counter::Abandoned, 1);
        }),
        ("DuplicatesAtQos2", Verdict::Failed, "5 QoS 2 messages were delivered more than once", |t| {
            let c = &mut t.groups[1].counts;
            c.add(Counter::Received, 5);
            c.set(Counter::Duplicates, 5);
            c.set(Counter::DuplicatesQos2, 5);
        }),
        ("Surplus", Verdict::Inconclusive, "4 more deliveries than", |t| {
            t.groups[1].counts.set(Counter::Received, 104);
            t.groups[1].counts.set(Counter::Unique, 104);
        }),
        (
            "LawBroken",
            Verdict::Inconclusive,
            "group devices: QoS 1 and 2: sent = acked + refused + abandoned + unacked is off by 1",
            |t| t.groups[0].counts.set(Counter::Acked, 99),
        ),
        ("LawBroken", Verdict::Inconclusive, "100 messages are in the plan, 99 in the workers' counts", |t| {
            let c = &mut t.groups[0].counts;
            for counter in [Counter::Planned, Counter::Scheduled, Counter::SentQos1, Counter::Acked] {
                c.set(counter, 99);
            }
            c.set(Counter::ExpectedMin, 99);
        }),
        ("CoverageTooLow", Verdict::Inconclusive, "group listeners: 98.99 % of the planned load was there", |t| {
            t.groups[1].coverage = Coverage { planned: 10_000, covered: 9_899 }
        }),
        ("TakenOver", Verdict::Inconclusive, "1 sessions were taken over", |t| {
            t.groups[0].counts.set(Counter::DisconnectTakenOver, 1)
        }),
        (
            "GeneratorLimited",
            Verdict::Inconclusive,
            "but the load generator was the limit: 1 % of the messages were taken up",
            |t| {
                t.groups[1].counts.set(Counter::Received, 99);
                t.groups[1].counts.set(Counter::Unique, 99);
                (0..100).for_each(|_| t.groups[0].counts.record(Stage::EngineLag, 20_000_000));
            },
        ),
        ("AllCriteriaMet", Verdict::Passed, "upper bounds, because the load generator was at its limit", |t| {
            t.groups[0].counts.set(Counter::LoopTurns, 100);
            t.groups[0].counts.set(Counter::LoopTurnsOver5Ms, 1);
        }),
    ];
    for (reason, verdict, part, edit) in cases {
        let outcome = judged(edit);
        assert_eq!((outcome.reason.as_str(), outcome.verdict), (reason, verdict), "{}", outcome.message);
        assert!(outcome.message.contains(part), "{reason}: {}", outcome.message);
    }
}

#[test]
fn bounds_that_come_from_overlapping_filters_do_not_fail_a_run() {
    let outcome = judged(|t| t.groups[0].counts.set(Counter::ExpectedMax, 200));
    assert_eq!(outcome.verdict, Verdict::Passed);
}

#[test]
fn a_breach_with_the_cpu_throttled_is_the_generators() {
    let outcome = judged(|t| {
        t.groups[1].counts.set(Counter::Received, 99);
        t.groups[1].counts.set(Counter::Unique, 99);
        // Two shards ran ten seconds each; 1 % of that is 0.2 s.
        t.groups[0].counts.set(Counter::CpuThrottled, 210_000_000);
    });
    assert_eq!(outcome.reason, "GeneratorLimited");
    assert!(outcome.message.contains("the CPU limit stopped the workers for 0.2 s"), "{}", outcome.message);
}
