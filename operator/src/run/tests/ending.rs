//! The end: by the clock, after the drain, with or without an operator; and the early ends.

use mqtt_loadtest_crds::status::Verdict;

use super::*;

#[test]
fn a_run_passes_and_its_numbers_are_those_of_the_plan() {
    let mut world = World::new(small());
    world.until(Phase::Completed);
    assert_eq!(world.status.verdict, Some(Verdict::Passed), "{}", world.status.message);
    let messages = &world.status.messages;
    assert_eq!((messages.planned, messages.sent, messages.acked, messages.received), (2000, 2000, 2000, 4000));
    assert_eq!((messages.lost.as_str(), messages.surplus), ("0", 0));
    assert_eq!((world.status.clients.connected, world.status.clients.desired), (102, 102));
    assert_eq!(world.status.rates.sent, "100");
    assert_eq!(world.status.shards.finished, 3);
}

#[test]
fn workers_are_let_go_only_after_the_verdict_is_in_the_status_and_then_everything_is_deleted() {
    let mut world = World::new(small());
    world.until(Phase::Draining);
    loop {
        let before = world.phase();
        let next = world.pass(200);
        let finish = next.actions.iter().any(|action| matches!(action, Action::Finish { .. }));
        assert!(!finish || next.state.ended());
        if before == Phase::Completed {
            break;
        }
    }
    world.run_for(2);
    assert_eq!(world.torn_down, Some(false));
    let quiet = world.pass(200);
    assert_eq!((quiet.actions, quiet.requeue_after), (vec![], None));
}

#[test]
fn a_drain_ends_as_soon_as_all_shards_together_have_everything() {
    let mut world = World::new(small());
    world.until(Phase::Completed);
    let state = world.state();
    let drained = state.completed_at.unwrap().duration_since(state.ends_at.unwrap());
    assert!(drained < SignedDuration::from_secs(3), "{drained:?}");
    assert!(world.log.iter().any(|action| matches!(action, Action::Stop { reason, .. } if reason == "drained")));
}

#[test]
fn an_operator_that_was_away_for_the_whole_run_finds_the_same_numbers_at_the_end() {
    let mut world = World::new(small());
    world.until(Phase::Connecting);
    while world.state().barrier_at.is_none() {
        world.pass(200);
    }
    // The workers go on by themselves.
    for _ in 0..200 {
        world.now += SignedDuration::from_millis(200);
        world.work();
    }
    world.since = world.now;
    world.step();
    world.until(Phase::Completed);
    assert_eq!(world.status.verdict, Some(Verdict::Passed), "{}", world.status.message);
    assert_eq!((world.status.messages.sent, world.status.messages.received), (2000, 4000));
}

#[test]
fn termination_messages_are_enough_for_the_verdict() {
    let mut world = World::new(small());
    world.until(Phase::Connecting);
    while world.state().barrier_at.is_none() {
        world.pass(200);
    }
    for _ in 0..200 {
        world.now += SignedDuration::from_millis(200);
        world.work();
    }
    // Nobody collected: the workers lingered, left their summaries, and exited.
    let at = Some(world.now);
    for worker in world.shards.values_mut().flatten() {
        worker.state = AttemptState::Ended { exit_code: Some(0), reason: "Completed".into(), message: String::new(), at };
    }
    world.now += SignedDuration::from_secs(900);
    world.since = world.now;
    world.step();
    assert_eq!((world.phase(), world.status.verdict), (Phase::Completed, Some(Verdict::Passed)), "{}", world.status.message);
    assert_eq!(world.status.messages.acked, 2000);
}

#[test]
fn a_shard_that_never_gives_its_last_counts_makes_the_run_inconclusive_in_bounded_time() {
    let mut world = World::new(small());
    world.until(Phase::Running);
    world.run_for(5);
    world.worker(0, 0).reachable = false;
    world.until(Phase::Completed);
    assert_eq!((world.status.verdict, world.status.reason.as_str()), (Some(Verdict::Inconclusive), "ShardsLost"));
    let state = world.state();
    assert!(state.completed_at.unwrap().duration_since(state.ends_at.unwrap()) <= SignedDuration::from_secs(37));
}

#[test]
fn suspending_a_running_test_drains_it_and_is_inconclusive() {
    let mut world = World::new(small());
    world.until(Phase::Running);
    world.run_for(5);
    world.requests.suspend = true;
    world.pass(200);
    assert_eq!((world.phase(), world.status.reason.as_str()), (Phase::Draining, "Suspended"));
    // Undone while it drains: the run ends all the same.
    world.requests.suspend = false;
    world.until(Phase::Failed);
    assert_eq!((world.status.verdict, world.status.reason.as_str()), (Some(Verdict::Inconclusive), "Suspended"));
    let sent = world.status.messages.sent;
    assert!((500..=540).contains(&sent), "{sent}");
    assert_eq!(world.status.messages.acked, sent);
}

#[test]
fn suspending_before_the_common_start_ends_the_run_at_once() {
    for phase in [Phase::Starting, Phase::Connecting] {
        let mut world = World::new(small());
        world.until(phase);
        world.requests.suspend = true;
        world.pass(200);
        assert_eq!((world.phase(), world.status.reason.as_str()), (Phase::Failed, "Suspended"));
        world.run_for(20);
        assert!(world.torn_down.is_some());
    }
}

#[test]
fn stop_run_ends_the_run_that_it_names_and_no_other() {
    let mut world = World::new(small());
    world.requests.stop_run = Some("2-def".into());
    world.until(Phase::Running);
    world.run_for(2);
    assert_eq!(world.phase(), Phase::Running);
    world.requests.stop_run = Some("1-abc".into());
    world.pass(200);
    assert_eq!(world.phase(), Phase::Draining);
    world.until(Phase::Failed);
    assert_eq!((world.status.verdict, world.status.reason.as_str()), (Some(Verdict::Inconclusive), "Stopped"));
}

#[test]
fn pods_taken_away_in_mid_run_are_a_preemption() {
    let mut world = World::new(small());
    world.until(Phase::Running);
    world.preempted = Some("Job devices is suspended".into());
    world.pass(200);
    world.until(Phase::Failed);
    assert_eq!(world.status.reason, "Preempted");
}

#[test]
fn finished_pods_of_a_run_that_did_not_pass_stay_an_hour() {
    let mut world = World::new(small());
    world.until(Phase::Running);
    world.requests.suspend = true;
    world.until(Phase::Failed);
    world.run_for(5);
    assert_eq!(world.torn_down, Some(true));
    let wait = world.pass(200).requeue_after.unwrap();
    assert!(wait > std::time::Duration::from_secs(3500), "{wait:?}");
    world.now += SignedDuration::from_secs(3601);
    assert!(world.step().actions.contains(&Action::Teardown { keep_pods: false }));
}

#[test]
fn a_lost_plan_is_inconclusive() {
    let mut world = World::new(small());
    world.until(Phase::Running);
    let state = next::plan_lost(&world.state(), world.now);
    let outcome = state.outcome.unwrap();
    assert_eq!((state.phase, outcome.verdict, outcome.reason.as_str()), (Phase::Failed, Verdict::Inconclusive, "PlanLost"));
}
