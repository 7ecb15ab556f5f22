//! Whether an object starts a run: by what its spec asks for, and only after an edit.
//!
//! A run starts anew when the hash of the spec differs from that of the last run and `metadata.generation` moved too: suspending,
//! a TTL, or an edit that self-heal undid must fire no load, and neither must a new CRD version that adds a default. Also
//! when the last run ended as `Suspended` and is no longer suspended.

use mqtt_loadtest_crds::{MqttLoadTestSpec, MqttLoadTestStatus, hash::spec_hash, status::Phase};

use super::RunState;

/// What to do with an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// A new run begins. First the run before it (`status.run`), if any, is torn down, kept pods included; then the status is
    /// cleared with [`report::cleared`](super::report::cleared) and the state given to [`next`](super::next()).
    Begin(RunState),
    /// A run goes on.
    Continue {
        /// The run.
        state: RunState,
        /// Whether the spec was edited since, and waits for the end.
        spec_pending: bool,
    },
    /// The newest run has ended and nothing new is asked for: only its teardown goes on, with [`next`](super::next()).
    Rest(RunState),
    /// As [`Decision::Rest`]; what is read has another hash though nobody edited it, so the new one is stored.
    Rebase(RunState),
    /// Suspended before the start: nothing is made. The run before it may still have something to tear down.
    Hold(Option<RunState>),
    /// The spec is invalid, and waits for an edit. The run before it may still have something to tear down.
    Invalid(Option<RunState>),
}

/// Decides by the spec (with its generation), whether it is valid, and the status.
pub fn decide(spec: &MqttLoadTestSpec, valid: bool, generation: i64, status: &MqttLoadTestStatus) -> Decision {
    let hash = spec_hash(spec);
    let edited = generation != status.observed_generation;
    let Some(last) = RunState::from_status(status) else {
        return match (valid, spec.suspend) {
            (false, _) => Decision::Invalid(None),
            (true, true) => Decision::Hold(None),
            (true, false) => Decision::Begin(RunState::begin(run_id(None, &hash), hash, generation)),
        };
    };
    if !last.ended() {
        let spec_pending = hash != last.spec_hash && edited;
        return Decision::Continue { state: last, spec_pending };
    }
    if !valid {
        return Decision::Invalid(Some(last));
    }
    let other = hash != last.spec_hash;
    let held = status.phase == Some(Phase::Pending);
    let begin = || Decision::Begin(RunState::begin(run_id(Some(&last.id), &hash), hash.clone(), generation));
    if spec.suspend {
        return if other && (edited || held) { Decision::Hold(Some(last)) } else { Decision::Rest(last) };
    }
    let resumed = last.outcome.as_ref().is_some_and(|outcome| outcome.reason == "Suspended");
    match (other, edited) {
        (true, true) => begin(),
        _ if resumed => begin(),
        (true, false) if status.verdict.is_some() => Decision::Rebase(RunState { spec_hash: hash, ..last }),
        _ => Decision::Rest(last),
    }
}

/// `<counter>-<hash8>`: the counter goes up with every run of the object.
fn run_id(last: Option<&str>, hash: &str) -> String {
    let counter: u64 = last.and_then(|id| id.split('-').next()).and_then(|counter| counter.parse().ok()).unwrap_or(0);
    format!("{}-{}", counter + 1, hash.get(..8).unwrap_or(hash))
}
