//! From the object to the release: nothing connects before every shard is ready.

use mqtt_loadtest_crds::status::Verdict;

use super::*;

#[test]
fn children_are_asked_for_until_they_exist() {
    let mut world = World::new(small());
    assert_eq!(world.step().actions, [Action::CreateChildren]);
    assert_eq!(world.phase(), Phase::Starting);
    world.made = false;
    assert!(world.pass(500).actions.contains(&Action::CreateChildren));
}

#[test]
fn no_client_connects_before_all_shards_are_ready() {
    let mut world = World::new(small());
    world.step();
    world.worker(0, 1).state = AttemptState::Starting;
    world.run_for(5);
    assert_eq!(world.phase(), Phase::Starting);
    assert!(!world.log.iter().any(|action| matches!(action, Action::Release { .. })));
    world.worker(0, 1).state = AttemptState::Live { status: None, reachable: true };
    let next = world.pass(200);
    let released = next.state.released_at.unwrap();
    assert!(released > world.now && released < world.now + SignedDuration::from_secs(1));
    let Some(Action::Release { at, to }) = next.actions.first() else { panic!("{:?}", next.actions) };
    assert_eq!((*at, to.len()), (released, 3));
}

#[test]
fn a_release_is_repeated_until_every_shard_has_heard_of_it() {
    let mut world = World::new(small());
    world.step();
    world.worker(0, 1).reachable = false;
    world.pass(200);
    let again = world.pass(200);
    let to: Vec<_> =
        again.actions.iter().filter_map(|a| if let Action::Release { to, .. } = a { Some(to.clone()) } else { None }).collect();
    assert_eq!(to, [vec![Target { group: 0, index: 1, uid: "0-1-0".into() }]]);
    world.worker(0, 1).reachable = true;
    world.pass(200);
    world.pass(200);
    assert!(!world.pass(200).actions.iter().any(|action| matches!(action, Action::Release { .. })));
}

#[test]
fn a_start_that_takes_too_long_is_inconclusive_and_says_what_held_it_up() {
    let mut world = World::new(small());
    world.step();
    world.worker(0, 0).state = AttemptState::Pending;
    world.problems = vec![StartProblem {
        reason: "Unschedulable".into(),
        message: "0/3 nodes are available: insufficient cpu".into(),
        incurable: false,
    }];
    world.pass(200);
    assert_eq!(world.status.reason, "Unschedulable");
    assert!(world.status.message.contains("2 of 3 workers are ready") && world.status.message.contains("insufficient cpu"));
    world.run_for(58);
    assert_eq!(world.phase(), Phase::Starting);
    world.run_for(3);
    assert_eq!((world.phase(), world.status.verdict), (Phase::Failed, Some(Verdict::Inconclusive)));
    assert_eq!(world.status.reason, "StartTimeout");
    assert!(world.status.message.contains("startTimeout (60s)") && world.status.message.contains("insufficient cpu"));
}

#[test]
fn what_waiting_cannot_cure_ends_the_start_at_once() {
    let mut world = World::new(small());
    world.step();
    world.worker(0, 0).state = AttemptState::Pending;
    world.problems =
        vec![StartProblem { reason: "ExceededQuota".into(), message: "pods \"x\" is forbidden".into(), incurable: true }];
    world.pass(200);
    assert_eq!((world.phase(), world.status.reason.as_str()), (Phase::Failed, "ExceededQuota"));
}

#[test]
fn a_worker_that_refuses_its_slice_ends_the_run_with_its_message() {
    let mut world = World::new(small());
    world.step();
    world.worker(0, 0).state = AttemptState::Ended {
        exit_code: Some(2),
        reason: "Error".into(),
        message: "50 clients need 150 file descriptors".into(),
        at: Some(world.now),
    };
    world.pass(200);
    assert_eq!((world.status.reason.as_str(), world.status.verdict), ("SliceRefused", Some(Verdict::Inconclusive)));
    assert!(world.status.message.contains("150 file descriptors"));
}

#[test]
fn an_operator_that_comes_back_late_gives_the_shards_time_to_answer() {
    let mut world = World::new(small());
    world.step();
    world.worker(0, 0).state = AttemptState::Starting;
    // Nobody looked for longer than the timeout; then an operator begins to watch.
    world.now += SignedDuration::from_secs(300);
    world.since = world.now;
    world.step();
    assert_eq!(world.phase(), Phase::Starting);
    world.worker(0, 0).state = AttemptState::Live { status: None, reachable: true };
    world.pass(1000);
    assert_eq!(world.phase(), Phase::Connecting);
}

#[test]
fn a_queued_run_makes_nothing_until_its_turn() {
    let mut world = World::new(small());
    world.requests.queued = true;
    assert_eq!(world.step().actions, []);
    assert_eq!((world.phase(), world.status.reason.as_str()), (Phase::Pending, "WaitingForCapacity"));
    assert_eq!(condition(&world.status, "Reconciling").0, "False");
    world.requests.queued = false;
    assert_eq!(world.step().actions, [Action::CreateChildren]);
}
