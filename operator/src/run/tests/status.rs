//! What the status says of a run, and when it is written.

use mqtt_loadtest_crds::status::Verdict;
use mqtt_loadtest_worker::accounting::Stage;

use super::*;
use crate::run::{conditions::Row, numbers, rates::Meter};

fn row(status: &MqttLoadTestStatus) -> [bool; 6] {
    ["Ready", "Reconciling", "Stalled", "Complete", "Failed", "Finished"].map(|type_| condition(status, type_).0 == "True")
}

#[test]
fn the_conditions_follow_the_table_in_every_phase() {
    let mut world = World::new(small());
    let active = [false, true, false, false, false, false];
    for phase in [Phase::Starting, Phase::Connecting, Phase::Running, Phase::Draining] {
        world.until(phase);
        assert_eq!(row(&world.status), active, "{phase:?}");
    }
    world.until(Phase::Completed);
    assert_eq!(row(&world.status), [true, false, false, true, false, true]);

    let mut world = World::new(small());
    world.until(Phase::Running);
    world.requests.suspend = true;
    world.until(Phase::Failed);
    assert_eq!(row(&world.status), [false, false, true, false, true, true]);

    let invalid = report::invalid(&MqttLoadTestStatus::default(), 3, &["spec.groups[0].clients: is 0".into()], world.now);
    assert_eq!(row(&invalid), [false, false, true, false, true, true]);
    assert_eq!((invalid.phase, invalid.verdict, invalid.observed_generation), (Some(Phase::Failed), None, 3));
    assert!(invalid.message.contains("spec.groups[0].clients"));

    let held = report::held(&MqttLoadTestStatus::default(), 3, "Suspended", "spec.suspend is true", world.now);
    assert_eq!(row(&held), [false; 6]);
    assert_eq!(held.phase, Some(Phase::Pending));
}

#[test]
fn a_condition_changes_only_on_a_transition_but_its_generation_follows() {
    let mut world = World::new(small());
    world.until(Phase::Running);
    let before = world.status.conditions.clone();
    world.run_for(5);
    assert_eq!(world.status.conditions, before);
    let later = crate::run::conditions::update(
        &before,
        Row::Active,
        ("Running", "another message"),
        [("ClientsConnected", Wanted::new(true, "Connected", "")), ("SpecPending", Wanted::new(false, "UpToDate", ""))],
        9,
        world.now,
    );
    for (old, new) in before.iter().zip(&later) {
        assert_eq!((&old.last_transition_time, &old.message), (&new.last_transition_time, &new.message));
        assert_eq!(new.observed_generation, Some(9));
    }
}

use crate::run::conditions::Wanted;

#[test]
fn a_new_run_shows_nothing_of_the_last_one_that_a_wait_could_take_for_it() {
    let mut world = World::new(small());
    world.until(Phase::Completed);
    let cleared = report::cleared(&world.status);
    assert_eq!((cleared.verdict, cleared.reason.as_str(), cleared.messages.sent), (None, "", 0));
    assert_eq!(cleared.history.len(), 1);
    let past = &cleared.history[0];
    assert_eq!((past.id.as_str(), past.verdict, past.sent, past.lost.as_str()), ("1-abc", Some(Verdict::Passed), 2000, "0"));

    let mut again = World::new(small());
    let state = RunState::begin("2-def".into(), "def".into(), 2);
    let observed = again.observe();
    let next = next(&again.plan, &state, &observed, &Requests::default(), again.now);
    let view = View {
        plan: &again.plan,
        next: &next,
        observed: &observed,
        rates: None,
        generation: 2,
        spec_pending: false,
        now: again.now,
    };
    again.status = report::status(&cleared, &view);
    assert_eq!(row(&again.status), [false, true, false, false, false, false]);
    assert_eq!((again.status.observed_generation, again.status.verdict), (2, None));
    assert_eq!(again.status.run.as_ref().unwrap().id, "2-def");
}

#[test]
fn the_history_keeps_the_last_ten_runs_newest_first() {
    let mut world = World::new(small());
    world.until(Phase::Completed);
    let mut status = world.status.clone();
    for number in 1..=15 {
        status.run.as_mut().unwrap().id = format!("{number}-x");
        let history = report::cleared(&status).history;
        status.history = history;
    }
    let ids: Vec<&str> = status.history.iter().map(|past| past.id.as_str()).collect();
    assert_eq!(ids, ["15-x", "14-x", "13-x", "12-x", "11-x", "10-x", "9-x", "8-x", "7-x", "6-x"]);
}

#[test]
fn counts_do_not_go_backwards_while_shards_are_unheard_after_a_restart() {
    let mut world = World::new(small());
    world.until(Phase::Running);
    world.run_for(5);
    let before = world.status.messages.sent;
    assert!(before > 400);
    world.worker(0, 0).reachable = false;
    world.worker(0, 0).counts = None;
    world.pass(200);
    assert_eq!(world.status.messages.sent, before);
}

#[test]
fn numbers_are_written_every_ten_seconds_and_transitions_at_once() {
    let mut world = World::new(small());
    world.until(Phase::Running);
    let old = world.status.clone();
    let wrote = world.now;
    world.run_for(5);
    assert!(!report::is_due(&old, &world.status, Some(wrote), world.now));
    assert!(report::is_due(&old, &world.status, Some(wrote), wrote + SignedDuration::from_secs(10)));
    assert!(report::is_due(&old, &world.status, None, world.now));
    assert!(!report::is_due(&old, &old, None, world.now));
    world.until(Phase::Draining);
    assert!(report::is_due(&old, &world.status, Some(world.now), world.now));
}

#[test]
fn the_state_survives_the_status() {
    let mut world = World::new(small());
    for phase in [Phase::Pending, Phase::Starting, Phase::Connecting, Phase::Running, Phase::Draining, Phase::Completed] {
        world.until(phase);
        let state = world.state();
        assert_eq!(state.phase, phase);
        let status = MqttLoadTestStatus { run: Some(state.to_run()), ..world.status.clone() };
        let text = serde_json::to_string(&status).unwrap();
        assert_eq!(RunState::from_status(&serde_json::from_str(&text).unwrap()).unwrap(), state);
    }
}

#[test]
fn the_verdict_of_a_run_is_found_again_after_an_invalid_edit_was_undone() {
    let mut world = World::new(small());
    world.until(Phase::Completed);
    let invalid = report::invalid(&world.status, 2, &["spec.x: no".into()], world.now);
    assert_eq!(invalid.verdict, None);
    let state = RunState::from_status(&invalid).unwrap();
    assert_eq!((state.phase, state.outcome.as_ref().unwrap().verdict), (Phase::Completed, Verdict::Passed));
    let observed = world.observe();
    let next = next(&world.plan, &state, &observed, &Requests::default(), world.now);
    let view = View {
        plan: &world.plan,
        next: &next,
        observed: &observed,
        rates: None,
        generation: 3,
        spec_pending: false,
        now: world.now,
    };
    let restored = report::status(&invalid, &view);
    assert_eq!((restored.verdict, restored.phase), (Some(Verdict::Passed), Some(Phase::Completed)));
    assert_eq!(row(&restored), [true, false, false, true, false, true]);
    assert_eq!((restored.observed_generation, restored.messages.sent), (3, 2000));
}

#[test]
fn an_edit_in_mid_run_shows_and_leaves_the_observed_generation() {
    let mut world = World::new(small());
    world.until(Phase::Running);
    let observed = world.observe();
    let next = next(&world.plan, &world.state(), &observed, &Requests::default(), world.now);
    let mut view = View {
        plan: &world.plan,
        next: &next,
        observed: &observed,
        rates: None,
        generation: 2,
        spec_pending: true,
        now: world.now,
    };
    let pending = report::status(&world.status, &view);
    assert_eq!((condition(&pending, "SpecPending").0.as_str(), pending.observed_generation), ("True", 1));
    // An edit that the run honours (a TTL) moves it.
    view.spec_pending = false;
    let honoured = report::status(&world.status, &view);
    assert_eq!((condition(&honoured, "SpecPending").0.as_str(), honoured.observed_generation), ("False", 2));
    assert!(honoured.conditions.iter().all(|condition| condition.observed_generation == Some(2)));
}

#[test]
fn latencies_are_duration_strings_and_what_never_came_is_infinite() {
    let mut counts = Snapshot::new();
    (0..98).for_each(|_| counts.record(Stage::PublishAck, 12_000_000));
    counts.record_infinite(Stage::PublishAck, 2);
    let latency = numbers::latency(&counts);
    assert_eq!(latency.keys().collect::<Vec<_>>(), ["publishAck"]);
    let ack = &latency["publishAck"];
    assert_eq!((ack.count, ack.p50.as_str(), ack.p99.as_str(), ack.max.as_str()), (100, "11.9ms", "+Inf", "12ms"));
}

#[test]
fn rates_come_from_two_looks_and_incomplete_ones_are_passed_over() {
    let totals = |sent: u64, complete| {
        let mut all = Snapshot::new();
        all.set(Counter::SentQos1, sent);
        Totals { groups: vec![], all, complete, at: Timestamp::UNIX_EPOCH }
    };
    let at = |ms: i64| Timestamp::from_millisecond(ms).unwrap();
    let mut meter = Meter::default();
    assert_eq!(meter.update(&totals(1000, true), at(0)).sent, "");
    assert_eq!(meter.update(&totals(1500, true), at(500)).sent, "");
    assert_eq!(meter.update(&totals(5, false), at(1000)).sent, "");
    assert_eq!(meter.update(&totals(3000, true), at(2000)).sent, "1000");
    assert_eq!(meter.update(&totals(3001, true), at(4000)).sent, "0.5");
}
