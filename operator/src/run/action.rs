//! What the state machine asks a runtime to do. Every action may be repeated: a runtime that finds it done does nothing.

use std::time::Duration;

use jiff::Timestamp;

use super::{Ledger, RunState, Totals};

/// What the user asks of a run while it goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// `spec.suspend`.
    pub suspend: bool,
    /// `spec.stopRun`.
    pub stop_run: Option<String>,
    /// Another run must end first: the operator's limit of concurrent runs is reached.
    pub queued: bool,
}

/// One attempt that an action is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    /// Place of the group in the plan.
    pub group: usize,
    /// Completion index.
    pub index: u32,
    /// UID of the attempt.
    pub uid: String,
}

/// Something to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Make what the run needs and does not have: plan, token, network policy, Jobs (or processes).
    CreateChildren,
    /// `POST /v1/release`.
    Release {
        /// When the connect schedule begins.
        at: Timestamp,
        /// To whom.
        to: Vec<Target>,
    },
    /// `POST /v1/start`.
    Start {
        /// First instant of the window.
        start: Timestamp,
        /// First instant after it.
        end: Timestamp,
        /// To whom.
        to: Vec<Target>,
    },
    /// `POST /v1/stop`.
    Stop {
        /// Why.
        reason: String,
        /// To whom.
        to: Vec<Target>,
    },
    /// `POST /v1/finish`: the counts are safe, the worker may exit.
    Finish {
        /// To whom.
        to: Vec<Target>,
    },
    /// Store this ledger in place of the one that was observed.
    WriteLedger(Ledger),
    /// Delete what was made for the run.
    Teardown {
        /// Leave finished pods for their logs, and delete everything else at once (the token first of all).
        keep_pods: bool,
    },
}

/// What follows from an observation.
///
/// The caller stores `state` (status with its `resourceVersion`, then the run-state ConfigMap from
/// [`RunState::to_protocol`]) when it differs from the one it passed in, and only then executes the actions, in their order.
#[derive(Clone, Debug)]
pub struct Next {
    /// The new state.
    pub state: RunState,
    /// What to do.
    pub actions: Vec<Action>,
    /// When to look again at the latest, whatever happens; none when nothing more will come by itself.
    pub requeue_after: Option<Duration>,
    /// The numbers as far as they are known; none once a run has ended (its numbers are in the status).
    pub totals: Option<Totals>,
}
