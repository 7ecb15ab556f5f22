//! What holds in every run, whatever dies, hangs or restarts.

use mqtt_loadtest_crds::status::Verdict;
use mqtt_loadtest_worker::accounting::{Histogram, Stage, laws};
use proptest::prelude::*;

use super::*;
use crate::run::{merge, numbers};

/// Something that happens to the fleet.
#[derive(Clone, Debug)]
enum Event {
    Kill { shard: u32, last_words: bool },
    Hang { shard: u32 },
    Answer { shard: u32 },
    Replace { shard: u32 },
    Vanish { shard: u32 },
    OperatorAway { seconds: i64 },
    Suspend,
}

fn events() -> impl Strategy<Value = Vec<(i64, Event)>> {
    let event = prop_oneof![
        3 => (0..4u32, any::<bool>()).prop_map(|(shard, last_words)| Event::Kill { shard, last_words }),
        2 => (0..4u32).prop_map(|shard| Event::Hang { shard }),
        3 => (0..4u32).prop_map(|shard| Event::Answer { shard }),
        4 => (0..4u32).prop_map(|shard| Event::Replace { shard }),
        1 => (0..4u32).prop_map(|shard| Event::Vanish { shard }),
        2 => (1..60i64).prop_map(|seconds| Event::OperatorAway { seconds }),
        1 => Just(Event::Suspend),
    ];
    proptest::collection::vec((0..15_000i64, event), 0..8)
}

fn fleet() -> RunPlan {
    plan_of(
        json!([{"name": "devices", "clients": 97, "shards": {"count": 4},
                "publish": [{"name": "t", "topic": "a/%i", "qos": 1, "interval": "700ms"}]}]),
        json!({"duration": "30s", "startTimeout": "60s", "drain": "5s", "barrier": {"settle": "1s", "timeout": "60s"}}),
    )
}

fn happen(world: &mut World, event: &Event) {
    let alive =
        |world: &World, shard: u32| world.shards.get(&(0, shard)).and_then(|w| w.last()).is_some_and(|w| w.state.is_alive());
    match *event {
        Event::Kill { shard, last_words } if alive(world, shard) => world.kill(0, shard, last_words),
        Event::Hang { shard } if alive(world, shard) => world.worker(0, shard).reachable = false,
        Event::Answer { shard } if alive(world, shard) => world.worker(0, shard).reachable = true,
        Event::Replace { shard } if world.shards.contains_key(&(0, shard)) && !alive(world, shard) => world.add_attempt(0, shard),
        Event::Vanish { shard } if alive(world, shard) => {
            let now = world.now;
            world.worker(0, shard).state = AttemptState::Gone { noticed_at: now };
        }
        Event::OperatorAway { seconds } => {
            for _ in 0..seconds * 5 {
                world.now += SignedDuration::from_millis(200);
                world.work();
            }
            world.since = world.now;
        }
        Event::Suspend => world.requests.suspend = true,
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn every_run_ends_in_bounded_time_with_one_start_and_counts_that_add_up(events in events()) {
        let mut world = World::new(fleet());
        world.step();
        let begun = world.now;
        let mut starts = std::collections::BTreeSet::new();
        let mut folded = 0;
        for (wait, event) in events {
            for _ in 0..wait / 500 {
                world.pass(500);
            }
            if world.state().ended() {
                break;
            }
            happen(&mut world, &event);
            let next = world.pass(100);
            starts.extend(next.state.barrier_at);
            // The ledger only grows, and holds nobody twice.
            let uids: Vec<&String> = world.ledger.groups.values().flat_map(|g| &g.deaths).map(|d| &d.uid).collect();
            let unique: std::collections::BTreeSet<_> = uids.iter().collect();
            prop_assert_eq!(unique.len(), uids.len());
            prop_assert!(uids.len() >= folded);
            folded = uids.len();
            if let Some(totals) = &next.totals {
                for law in laws::residuals(&totals.all) {
                    prop_assert_eq!(law.residual, 0, "{}", law.law);
                }
            }
        }
        // Start timeout, barrier timeout, duration, drain, collection, and what the operator was away.
        for _ in 0..(60 + 60 + 30 + 5 + 30 + 15 + 10) * 2 {
            starts.extend(world.pass(500).state.barrier_at);
            if world.state().ended() {
                break;
            }
        }
        prop_assert!(world.state().ended(), "{:?} {} after {:?}", world.phase(), world.status.message, world.now.duration_since(begun));
        prop_assert!(starts.len() <= 1);
        prop_assert!(world.status.verdict.is_some());
        let messages = &world.status.messages;
        prop_assert_eq!(messages.planned, messages.absent + messages.scheduled);
        if world.status.verdict == Some(Verdict::Passed) {
            prop_assert_eq!(messages.sent, messages.acked + messages.abandoned);
            prop_assert!(messages.scheduled * 100 >= messages.planned * 99);
        }
        // And everything is taken down.
        world.run_for(20);
        prop_assert!(world.torn_down.is_some() || !world.made);
    }

    #[test]
    fn merged_percentiles_are_those_of_the_concatenated_samples(
        shards in proptest::collection::vec(proptest::collection::vec(1_000u64..60_000_000_000, 1..300), 1..8),
        q in prop::sample::select(vec![0.5, 0.9, 0.95, 0.99, 0.999]),
    ) {
        // Through the exposition, as the operator gets them.
        let mut merged = Snapshot::new();
        for samples in &shards {
            let mut shard = Snapshot::new();
            samples.iter().for_each(|ns| shard.record(Stage::PublishAck, *ns));
            let wire = mqtt_loadtest_worker::accounting::metrics::encode(
                shard.into(), &[], mqtt_loadtest_worker::accounting::metrics::Format::Protobuf).unwrap();
            merged.merge(&mqtt_loadtest_worker::accounting::metrics::decode(&wire, &Default::default()).unwrap());
        }
        let mut all: Vec<u64> = shards.concat();
        all.sort_unstable();
        let rank = ((q * all.len() as f64).ceil() as usize).clamp(1, all.len());
        let exact = all[rank - 1] as f64 / 1e9;
        let told = merged.histogram(Stage::PublishAck).percentile(q).unwrap();
        prop_assert!((told / exact - 1.0).abs() <= 0.011, "{} against {}", told, exact);
        // And it is not the average of the shards' percentiles, except by chance: the count is that of all.
        let count = numbers::latency(&merged)["publishAck"].count;
        prop_assert_eq!(count, all.len() as i64);
    }

    #[test]
    fn the_ledger_and_the_living_add_up_in_any_order(parts in proptest::collection::vec(0u64..1000, 1..6), dead in 0usize..6) {
        let mut direct = Snapshot::new();
        let mut ledger = Ledger::default();
        let mut living = Snapshot::new();
        for (i, count) in parts.iter().enumerate() {
            let mut counts = Snapshot::new();
            counts.set(Counter::Acked, *count);
            direct.merge(&counts);
            if i < dead {
                let death = Death { uid: i.to_string(), index: 0, attempt: i as u32, at: Timestamp::UNIX_EPOCH, last_words: true, uncertain: 0, unacked: 0, reason: String::new() };
                ledger.fold(0, death, Some(&counts));
            } else {
                living.merge(&counts);
            }
        }
        let ledger = Ledger::from_data(&ledger.to_data()).unwrap();
        let mut sum = ledger.groups.get(&0).map(|g| g.snapshot.clone()).unwrap_or_default();
        sum.merge(&living);
        prop_assert_eq!(sum, direct);
    }
}

#[test]
fn an_average_of_percentiles_would_be_wrong() {
    let mut fast = Histogram::new();
    let mut slow = Histogram::new();
    (0..9_900).for_each(|_| fast.record(1_000_000));
    (0..100).for_each(|_| slow.record(1_000_000_000));
    let average = (fast.percentile(0.99).unwrap() + slow.percentile(0.99).unwrap()) / 2.0;
    fast.merge(&slow);
    let merged = fast.percentile(0.99).unwrap();
    assert!(merged < 0.0011 && average > 0.4);
    assert_eq!(merge::unsigned(-1), 0);
}
