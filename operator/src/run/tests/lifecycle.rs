//! When an object starts a run, and when it must not.

use mqtt_loadtest_crds::{MqttLoadTestSpec, hash::spec_hash, status::Verdict};

use super::*;
use crate::run::lifecycle::{Decision, decide};

fn spec(edit: impl FnOnce(&mut Value)) -> MqttLoadTestSpec {
    let mut spec = json!({"broker": {"endpoints": ["mqtt://b"]}, "groups": [{"name": "g", "clients": 2}]});
    edit(&mut spec);
    serde_json::from_value(spec).unwrap()
}

/// The status after a run of `spec` at generation 1.
fn after_run(spec: &MqttLoadTestSpec, reason: &str) -> MqttLoadTestStatus {
    let now = Timestamp::from_second(1_800_000_000).unwrap();
    let mut state = RunState::begin("7-abc".into(), spec_hash(spec), 1);
    state.completed_at = Some(now);
    MqttLoadTestStatus {
        observed_generation: 1,
        phase: Some(Phase::Failed),
        verdict: Some(Verdict::Inconclusive),
        reason: reason.into(),
        run: Some(state.to_run()),
        ..MqttLoadTestStatus::default()
    }
}

fn unseen() -> MqttLoadTestStatus {
    MqttLoadTestStatus { observed_generation: -1, ..MqttLoadTestStatus::default() }
}

#[test]
fn a_new_object_starts_its_first_run() {
    let spec = spec(|_| {});
    let Decision::Begin(state) = decide(&spec, true, 1, &unseen()) else { panic!() };
    assert_eq!(state.id, format!("1-{}", &spec_hash(&spec)[..8]));
    assert_eq!((state.phase, state.generation), (Phase::Pending, 1));
}

#[test]
fn an_edit_of_the_load_or_the_run_id_starts_again_and_counts_up() {
    let status = after_run(&spec(|_| {}), "AllCriteriaMet");
    for edit in [|s: &mut Value| s["runId"] = json!("2"), |s: &mut Value| s["groups"][0]["clients"] = json!(3)] {
        let Decision::Begin(state) = decide(&spec(edit), true, 2, &status) else { panic!() };
        assert!(state.id.starts_with("8-"), "{}", state.id);
    }
}

#[test]
fn a_ttl_a_suspension_or_an_edit_undone_starts_nothing() {
    let status = after_run(&spec(|_| {}), "AllCriteriaMet");
    for edit in [
        |s: &mut Value| s["reportTTLSeconds"] = json!(5),
        |s: &mut Value| s["suspend"] = json!(true),
        |s: &mut Value| s["stopRun"] = json!("7-abc"),
        |_: &mut Value| {},
    ] {
        assert!(matches!(decide(&spec(edit), true, 4, &status), Decision::Rest(_)));
    }
}

#[test]
fn another_hash_without_an_edit_is_stored_and_starts_nothing_even_after_the_next_harmless_edit() {
    // As after an upgrade of the CRD that changes what is read.
    let other = spec(|s| s["groups"][0]["clients"] = json!(3));
    let mut status = after_run(&spec(|_| {}), "AllCriteriaMet");
    let Decision::Rebase(state) = decide(&other, true, 1, &status) else { panic!() };
    status.run = Some(state.to_run());
    assert!(matches!(decide(&other, true, 1, &status), Decision::Rest(_)));
    let ttl = spec(|s| {
        s["groups"][0]["clients"] = json!(3);
        s["reportTTLSeconds"] = json!(5);
    });
    assert!(matches!(decide(&ttl, true, 2, &status), Decision::Rest(_)));
}

#[test]
fn suspended_before_the_start_nothing_begins_until_it_is_resumed() {
    let suspended = spec(|s| s["suspend"] = json!(true));
    let now = Timestamp::from_second(1_800_000_000).unwrap();
    assert_eq!(decide(&suspended, true, 1, &unseen()), Decision::Hold(None));
    let held = report::held(&unseen(), 1, "Suspended", "", now);
    assert_eq!(decide(&suspended, true, 1, &held), Decision::Hold(None));
    assert!(matches!(decide(&spec(|_| {}), true, 2, &held), Decision::Begin(_)));
}

#[test]
fn an_edit_made_while_suspended_waits_and_then_runs() {
    let status = after_run(&spec(|_| {}), "AllCriteriaMet");
    let edited = |suspend: bool| {
        spec(|s| {
            s["runId"] = json!("2");
            s["suspend"] = json!(suspend);
        })
    };
    assert!(matches!(decide(&edited(true), true, 2, &status), Decision::Hold(Some(_))));
    let now = Timestamp::from_second(1_800_000_100).unwrap();
    let held = report::held(&status, 2, "Suspended", "", now);
    assert!(matches!(decide(&edited(true), true, 2, &held), Decision::Hold(Some(_))));
    let Decision::Begin(state) = decide(&edited(false), true, 3, &held) else { panic!() };
    assert!(state.id.starts_with("8-"));
}

#[test]
fn a_run_that_ended_as_suspended_starts_again_when_it_is_resumed() {
    let status = after_run(&spec(|_| {}), "Suspended");
    assert!(matches!(decide(&spec(|s| s["suspend"] = json!(true)), true, 2, &status), Decision::Rest(_)));
    assert!(matches!(decide(&spec(|_| {}), true, 3, &status), Decision::Begin(_)));
}

#[test]
fn an_edit_during_a_run_waits_for_its_end() {
    let mut status = after_run(&spec(|_| {}), "");
    status.phase = Some(Phase::Running);
    status.verdict = None;
    status.run.as_mut().unwrap().completed_at = None;
    let edited = spec(|s| s["runId"] = json!("2"));
    let Decision::Continue { spec_pending, .. } = decide(&edited, true, 2, &status) else { panic!() };
    assert!(spec_pending);
    let Decision::Continue { spec_pending, .. } = decide(&spec(|s| s["suspend"] = json!(true)), true, 2, &status) else {
        panic!()
    };
    assert!(!spec_pending);
    // An upgrade of the CRD in mid-run is not an edit.
    let Decision::Continue { spec_pending, .. } = decide(&edited, true, 1, &status) else { panic!() };
    assert!(!spec_pending);
    // An invalid edit does not touch the run either.
    assert!(matches!(decide(&edited, false, 2, &status), Decision::Continue { .. }));
}

#[test]
fn an_invalid_spec_starts_nothing_and_undoing_it_restores_what_was() {
    let good = spec(|_| {});
    let status = after_run(&good, "AllCriteriaMet");
    assert!(matches!(decide(&good, false, 2, &status), Decision::Invalid(Some(_))));
    let now = Timestamp::from_second(1_800_000_100).unwrap();
    let invalid = report::invalid(&status, 2, &["spec.x: no".into()], now);
    let Decision::Rest(state) = decide(&good, true, 3, &invalid) else { panic!() };
    assert_eq!(state.outcome.unwrap().reason, "AllCriteriaMet");
    let mended = spec(|s| s["runId"] = json!("2"));
    assert!(matches!(decide(&mended, true, 3, &invalid), Decision::Begin(_)));
    assert!(matches!(decide(&good, true, 1, &report::invalid(&unseen(), 1, &[], now)), Decision::Begin(_)));
}
