//! Pods that die: nothing they did is forgotten, what they did not do is absent, what nobody saw is uncertain.

use mqtt_loadtest_crds::status::Verdict;

use super::*;

/// Publishers only, so that a death cannot lose deliveries: 100 messages a second for 100 s.
fn publishers() -> RunPlan {
    plan_of(
        json!([{"name": "devices", "clients": 100, "shards": {"count": 4},
                "publish": [{"name": "t", "topic": "a/%i", "qos": 1, "interval": "1s"}]}]),
        json!({"duration": "100s", "drain": "5s", "barrier": {"settle": "0s"}, "minCoverage": "90%"}),
    )
}

#[test]
fn the_counts_of_a_dead_pod_stay_and_its_replacement_adds_to_them() {
    let mut world = World::new(publishers());
    world.until(Phase::Running);
    world.run_for(20);
    world.kill(0, 1, true);
    world.pass(200);
    let death = &world.ledger.groups[&0].deaths[0];
    assert!(death.last_words && death.reason.contains("exit status 143"), "{death:?}");
    world.run_for(10);
    world.add_attempt(0, 1);
    world.until(Phase::Completed);
    let messages = &world.status.messages;
    assert_eq!(messages.planned, 10_000);
    assert_eq!(messages.planned, messages.absent + messages.scheduled);
    // A quarter of 100 a second, for the ten seconds and a bit in which nobody was there.
    assert!((250..=275).contains(&messages.absent), "{}", messages.absent);
    assert_eq!(world.status.verdict, Some(Verdict::Passed), "{}", world.status.message);
    assert_eq!((messages.uncertain, messages.sent), (0, messages.scheduled));
}

#[test]
fn a_pod_that_vanishes_from_the_api_does_not_take_its_counts_along() {
    let mut world = World::new(publishers());
    world.until(Phase::Running);
    world.run_for(20);
    world.kill(0, 1, true);
    world.pass(200);
    let before = world.status.messages.sent;
    let kept = world.ledger.groups[&0].snapshot.total("sent");
    world.shards.get_mut(&(0, 1)).unwrap().clear();
    world.add_attempt(0, 1);
    world.pass(200);
    world.pass(200);
    assert!(kept > 400 && world.status.messages.sent >= before, "{kept} {before}");
    assert_eq!(world.ledger.groups[&0].deaths.len(), 1);
}

#[test]
fn a_death_that_nobody_saw_is_uncertain_by_what_may_have_been_sent_since() {
    let mut world = World::new(publishers());
    world.until(Phase::Running);
    world.run_for(20);
    // Its node is cut off: the last scrape is two seconds old when it is found dead.
    world.worker(0, 1).reachable = false;
    world.run_for(2);
    world.kill(0, 1, false);
    world.pass(200);
    let death = world.ledger.groups[&0].deaths[0].clone();
    assert!(!death.last_words);
    assert!((48..=56).contains(&death.uncertain), "{death:?}");
    assert_eq!(world.status.messages.uncertain, death.uncertain as i64);
}

#[test]
fn uncertain_messages_make_a_pass_inconclusive_where_somebody_counts_deliveries() {
    let mut world = World::new(small());
    world.plan.spec.load.min_coverage = "50%".parse().unwrap();
    world.until(Phase::Running);
    world.run_for(5);
    world.worker(0, 1).reachable = false;
    world.run_for(1);
    world.kill(0, 1, false);
    world.pass(200);
    world.add_attempt(0, 1);
    world.until(Phase::Completed);
    assert_eq!(
        (world.status.verdict, world.status.reason.as_str()),
        (Some(Verdict::Inconclusive), "Uncertain"),
        "{}",
        world.status.message
    );
    assert!(world.status.messages.lost.starts_with("0-"), "{}", world.status.messages.lost);
}

#[test]
fn too_much_absence_makes_the_run_inconclusive() {
    let mut world = World::new(publishers());
    world.plan.spec.load.min_coverage = "99%".parse().unwrap();
    world.until(Phase::Running);
    world.run_for(20);
    world.kill(0, 1, true);
    world.run_for(2);
    assert_eq!(world.phase(), Phase::Running);
    world.until(Phase::Draining);
    assert_eq!(world.status.reason, "CoverageTooLow");
    // One percent of 10,000 messages is what a quarter of the fleet misses in four seconds.
    let waited = world.state().stop.unwrap().at.duration_since(world.ledger.groups[&0].deaths[0].at);
    assert!(waited >= SignedDuration::from_secs(4) && waited <= SignedDuration::from_secs(5), "{waited:?}");
    world.until(Phase::Failed);
    assert_eq!((world.status.verdict, world.status.reason.as_str()), (Some(Verdict::Inconclusive), "CoverageTooLow"));
}

#[test]
fn a_death_before_the_common_start_costs_nothing() {
    let mut world = World::new(publishers());
    world.until(Phase::Connecting);
    world.pass(200);
    world.kill(0, 0, false);
    world.pass(200);
    world.add_attempt(0, 0);
    world.until(Phase::Completed);
    assert_eq!(world.status.verdict, Some(Verdict::Passed), "{}", world.status.message);
    assert_eq!((world.status.messages.sent, world.status.messages.absent, world.status.messages.uncertain), (10_000, 0, 0));
}

#[test]
fn messages_left_open_by_a_death_are_not_held_against_the_broker() {
    let mut world = World::new(publishers());
    world.until(Phase::Running);
    world.worker(0, 2).unacked = 3;
    world.run_for(20);
    world.kill(0, 2, true);
    world.pass(200);
    world.add_attempt(0, 2);
    world.until(Phase::Completed);
    assert_eq!(world.status.messages.abandoned, 3);
    assert_eq!(world.status.verdict, Some(Verdict::Passed), "{}", world.status.message);
}

#[test]
fn a_pod_that_starts_after_the_end_changes_nothing() {
    let mut world = World::new(publishers());
    world.until(Phase::Running);
    world.until(Phase::Running).run_for(99);
    world.kill(0, 3, true);
    world.pass(1500);
    world.add_attempt(0, 3);
    let worker = world.worker(0, 3);
    worker.reachable = false;
    worker.state = AttemptState::Ended { exit_code: Some(0), reason: "Completed".into(), message: String::new(), at: None };
    world.until(Phase::Completed);
    assert_eq!((world.status.verdict, world.status.shards.lost), (Some(Verdict::Passed), 0), "{}", world.status.message);
    assert_eq!(world.ledger.groups[&0].deaths.len(), 1);
}

#[test]
fn deliveries_missed_by_a_dead_subscriber_are_not_the_brokers_fault() {
    let mut world = World::new(small());
    world.plan.spec.load.min_coverage = "10%".parse().unwrap();
    world.until(Phase::Running);
    world.run_for(5);
    world.kill(1, 0, true);
    world.pass(200);
    world.add_attempt(1, 0);
    world.worker(1, 0).lost = 2000;
    world.until(Phase::Completed);
    assert_eq!(
        (world.status.verdict, world.status.reason.as_str()),
        (Some(Verdict::Inconclusive), "ShardsLost"),
        "{}",
        world.status.message
    );
}

#[test]
fn the_ledger_survives_its_storage_and_counts_nobody_twice() {
    let mut ledger = Ledger::default();
    let mut counts = Snapshot::new();
    counts.set(Counter::Acked, 7);
    counts.record(mqtt_loadtest_worker::accounting::Stage::PublishAck, 1_000_000);
    let death = |uid: &str| Death {
        uid: uid.into(),
        index: 1,
        attempt: 0,
        at: Timestamp::from_second(1_800_000_000).unwrap(),
        last_words: true,
        uncertain: 0,
        unacked: 0,
        reason: "gone".into(),
    };
    ledger.fold(2, death("a"), Some(&counts));
    ledger.fold(2, death("a"), Some(&counts));
    ledger.fold(2, death("b"), Some(&counts));
    assert_eq!(ledger.groups[&2].snapshot.get(Counter::Acked), 14);
    let mut data = ledger.to_data();
    data.insert("other".into(), "x".into());
    assert_eq!(Ledger::from_data(&data).unwrap(), ledger);
    data.insert("group-2".into(), "{}".into());
    assert!(Ledger::from_data(&data).unwrap_err().to_string().contains("group 2"));
}

#[test]
fn a_death_shows_in_words_while_the_run_goes_on() {
    let mut world = World::new(publishers());
    world.until(Phase::Running);
    world.run_for(3);
    world.kill(0, 1, false);
    world.pass(200);
    assert!(world.status.message.contains("1 worker died (OOMKilled, exit status 137)"), "{}", world.status.message);
}

#[test]
fn a_shard_that_is_not_tried_again_before_the_start_ends_the_run_with_its_last_words() {
    let mut world = World::new(publishers());
    world.step();
    world.worker(0, 1).state = AttemptState::Ended {
        exit_code: Some(1),
        reason: "Error".into(),
        message: "the token cannot be read".into(),
        at: Some(world.now),
    };
    world.pass(200);
    assert_eq!(world.phase(), Phase::Starting);
    world.given_up = true;
    world.pass(200);
    assert_eq!((world.phase(), world.status.reason.as_str()), (Phase::Failed, "ShardsLost"));
    assert!(world.status.message.contains("exit status 1: the token cannot be read"), "{}", world.status.message);
}
