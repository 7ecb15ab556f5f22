//! The barrier: one common start once the clients are there, or a clear failure.

use mqtt_loadtest_crds::status::Verdict;

use super::*;

fn with_barrier(barrier: Value) -> RunPlan {
    let mut plan = small();
    plan.spec.load.barrier = serde_json::from_value(barrier).unwrap();
    plan
}

#[test]
fn everyone_starts_at_one_instant_after_the_settling_time_and_ends_by_the_clock() {
    let mut world = World::new(small());
    world.until(Phase::Running);
    let state = world.state();
    let starts: Vec<Start> = world.shards.values().flatten().map(|worker| worker.start.unwrap()).collect();
    assert!(starts.iter().all(|start| *start == starts[0]));
    assert_eq!(starts[0].start_unix_ns, unix_ns(state.barrier_at.unwrap()).unwrap());
    assert_eq!(starts[0].end_unix_ns - starts[0].start_unix_ns, 20_000_000_000);
    let connected = state.released_at.unwrap() + SignedDuration::from_millis(500);
    let settled = state.barrier_at.unwrap().duration_since(connected);
    assert!(settled >= SignedDuration::from_secs(2) && settled < SignedDuration::from_secs(3), "{settled:?}");
}

#[test]
fn without_settling_the_first_message_comes_within_a_second_of_the_last_client() {
    let mut world = World::new(with_barrier(json!({"settle": "0s"})));
    world.until(Phase::Running);
    let state = world.state();
    let lead = state.barrier_at.unwrap().duration_since(state.released_at.unwrap() + SignedDuration::from_millis(500));
    assert!(lead >= SignedDuration::from_millis(500) && lead < SignedDuration::from_secs(1), "{lead:?}");
}

#[test]
fn the_start_is_in_the_state_before_any_worker_is_told() {
    let mut world = World::new(small());
    world.until(Phase::Connecting);
    for _ in 0..50 {
        let before = world.state();
        let next = world.pass(200);
        let told = next.actions.iter().any(|action| matches!(action, Action::Start { .. }));
        assert!(!told || next.state.barrier_at.is_some());
        // Once there it never changes.
        assert!(before.barrier_at.is_none() || before.barrier_at == next.state.barrier_at);
    }
}

#[test]
fn clients_that_can_never_connect_end_the_run_at_once_with_their_shares_and_reasons() {
    let mut world = World::new(small());
    world.step();
    for index in 0..2 {
        world.worker(0, index).refused = Some((50, Counter::ConnectBadUserNameOrPassword));
    }
    world.worker(1, 0).refused = Some((2, Counter::ConnectNotAuthorized));
    let begun = world.now;
    world.until(Phase::Failed);
    assert!(world.now.duration_since(begun) < SignedDuration::from_secs(3));
    assert_eq!(world.status.verdict, Some(Verdict::Failed));
    assert_eq!(world.status.reason, "BadUserNameOrPassword");
    let message = &world.status.message;
    assert!(message.contains("102 of 102 clients (100 %)"), "{message}");
    assert!(message.contains("98 % badUserNameOrPassword, 1.9 % notAuthorized"), "{message}");
    assert_eq!(condition(&world.status, "ClientsConnected"), ("False".into(), "BadUserNameOrPassword".into()));
    assert_eq!(world.status.clients.failures["badUserNameOrPassword"], 100);
}

#[test]
fn a_part_of_the_clients_that_is_refused_fails_the_barrier_too() {
    let mut world = World::new(small());
    world.step();
    world.worker(0, 0).refused = Some((10, Counter::ConnectNotAuthorized));
    world.until(Phase::Failed);
    assert_eq!((world.status.reason.as_str(), world.status.verdict), ("NotAuthorized", Some(Verdict::Failed)));
    assert!(world.status.message.contains("10 of 102 clients (9.8 %)"), "{}", world.status.message);
}

#[test]
fn the_share_that_the_manifest_asks_for_is_enough() {
    let mut world = World::new(with_barrier(json!({"minConnected": "90%"})));
    world.step();
    world.worker(0, 0).refused = Some((10, Counter::ConnectNotAuthorized));
    world.until(Phase::Running);
    assert_eq!(condition(&world.status, "ClientsConnected").0, "True");
}

#[test]
fn a_barrier_that_is_not_reached_in_time_fails_the_run() {
    let mut world = World::new(with_barrier(json!({"timeout": "10s"})));
    world.step();
    // The release never arrives, so its clients neither connect nor fail.
    world.until(Phase::Connecting);
    let released = world.state().released_at.unwrap();
    for worker in world.shards.get_mut(&(0, 0)).unwrap() {
        worker.released = None;
        worker.reachable = true;
    }
    world.worker(0, 0).released = Some(released + SignedDuration::from_secs(1000));
    world.until(Phase::Failed);
    assert_eq!((world.status.reason.as_str(), world.status.verdict), ("BarrierTimeout", Some(Verdict::Failed)));
    assert!(world.status.message.contains("load.barrier.timeout (10s)"), "{}", world.status.message);
    let waited = world.now.duration_since(released);
    assert!(waited >= SignedDuration::from_secs(10) && waited < SignedDuration::from_secs(11), "{waited:?}");
}

#[test]
fn at_the_timeout_those_who_are_there_may_start_if_the_manifest_says_so() {
    let mut world = World::new(with_barrier(json!({"timeout": "10s", "onTimeout": "Proceed"})));
    world.step();
    world.until(Phase::Connecting);
    let never = world.now + SignedDuration::from_secs(1000);
    world.worker(0, 0).released = Some(never);
    world.until(Phase::Running);
    assert!(world.now.duration_since(world.state().released_at.unwrap()) >= SignedDuration::from_secs(10));
}

#[test]
fn a_worker_without_descriptors_says_nothing_about_the_broker() {
    let mut world = World::new(small());
    world.step();
    world.worker(0, 0).refused = Some((50, Counter::ConnectNoFileDescriptors));
    world.until(Phase::Failed);
    assert_eq!((world.status.reason.as_str(), world.status.verdict), ("GeneratorLimited", Some(Verdict::Inconclusive)));
}

#[test]
fn the_reason_of_refusals_is_in_the_condition_while_others_still_try() {
    let mut world = World::new(small());
    world.step();
    world.worker(0, 0).refused = Some((10, Counter::ConnectNotAuthorized));
    world.until(Phase::Connecting);
    let never = world.now + SignedDuration::from_secs(1000);
    world.worker(0, 1).released = Some(never);
    world.run_for(2);
    assert_eq!(world.phase(), Phase::Connecting);
    assert_eq!(condition(&world.status, "ClientsConnected"), ("False".into(), "NotAuthorized".into()));
}

#[test]
fn a_worker_that_does_not_answer_is_not_the_brokers_failure() {
    let mut world = World::new(with_barrier(json!({"timeout": "10s"})));
    world.until(Phase::Connecting);
    world.worker(0, 0).counts = None;
    world.worker(0, 0).reachable = false;
    world.until(Phase::Failed);
    assert_eq!((world.status.reason.as_str(), world.status.verdict), ("ShardsLost", Some(Verdict::Inconclusive)));
    assert!(world.status.message.contains("workers answer"), "{}", world.status.message);
}
