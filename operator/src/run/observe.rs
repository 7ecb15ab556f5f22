//! What a runtime (Kubernetes or child processes) sees of a run: the only input of the state machine beside the clock.
//!
//! A runtime reports facts and judges nothing: what a dead pod means for the counts, or when a shard is late, is decided by
//! [`next`](super::next()).

use std::sync::Arc;

use jiff::Timestamp;
use mqtt_loadtest_worker::{
    accounting::Snapshot,
    protocol::{ShardPhase, ShardStatus},
};

use super::Ledger;

/// Everything seen of one run at one instant.
#[derive(Clone, Debug)]
pub struct Observations {
    /// Since when this process has watched the run. After a restart nothing is called missing before it had a chance to answer.
    pub observing_since: Timestamp,
    /// How much of what the run needs exists.
    pub children: Children,
    /// What is left of the run, for the teardown.
    pub leftovers: Leftovers,
    /// Every shard of the plan, in any order. One that is missing here has no attempt yet.
    pub shards: Vec<ShardObservation>,
    /// Why the start does not get on: unschedulable pods, refused objects, images that cannot be pulled.
    pub problems: Vec<StartProblem>,
    /// The counts of dead attempts, as they are stored.
    pub ledger: Ledger,
    /// Why someone else took the run's resources away in mid-run (a Job that was suspended), if someone did.
    pub preempted: Option<String>,
}

impl Observations {
    /// Nothing seen yet.
    pub fn none(observing_since: Timestamp) -> Self {
        Self {
            observing_since,
            children: Children::Missing,
            leftovers: Leftovers::default(),
            shards: Vec::new(),
            problems: Vec::new(),
            ledger: Ledger::default(),
            preempted: None,
        }
    }

    /// All attempts with the shard they belong to.
    pub fn attempts(&self) -> impl Iterator<Item = (&ShardObservation, &AttemptObservation)> {
        self.shards.iter().flat_map(|shard| shard.attempts.iter().map(move |attempt| (shard, attempt)))
    }
}

/// How much of what a run needs exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Children {
    /// Something the run needs is not there (nothing yet, or a stranger deleted it).
    Missing,
    /// Plan, token and all Jobs (or processes) exist.
    Complete,
}

/// What is left of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Pods, or the Jobs that own them.
    pub pods: bool,
    /// Anything else: plan, run state, token, ledger, network policy.
    pub others: bool,
}

/// One shard: a completion index of a group's Indexed Job.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardObservation {
    /// Place of the group in the plan.
    pub group: usize,
    /// Completion index.
    pub index: u32,
    /// Its attempts (pods), oldest first.
    pub attempts: Vec<AttemptObservation>,
    /// Whether no further attempt will come (the index's back-off limit is reached).
    pub given_up: bool,
}

/// One attempt at a shard: a pod, or a process.
#[derive(Clone, Debug, PartialEq)]
pub struct AttemptObservation {
    /// UID of the pod; anything unique in a local run.
    pub uid: String,
    /// Attempts of the same index before this one.
    pub attempt: u32,
    /// When its process started.
    pub started_at: Option<Timestamp>,
    /// How it is.
    pub state: AttemptState,
    /// The best counts there are of it.
    pub counts: Option<Counts>,
}

/// How an attempt is.
#[derive(Clone, Debug, PartialEq)]
pub enum AttemptState {
    /// Not running yet.
    Pending,
    /// Running, not ready.
    Starting,
    /// Ready: it answers.
    Live {
        /// Its last answer to `GET /v1/status`; none before the first.
        status: Option<ShardStatus>,
        /// Whether the last attempt to reach it succeeded.
        reachable: bool,
    },
    /// Its process ended and someone saw how.
    Ended {
        /// Exit status; none when a signal ended it and the runtime names no status.
        exit_code: Option<i32>,
        /// Why, in one word, as the runtime says it: `OOMKilled`, `Error`, `Completed`, `Evicted`.
        reason: String,
        /// Its last words where they are not a summary: the message of a worker that refused its slice.
        message: String,
        /// When.
        at: Option<Timestamp>,
    },
    /// It is no longer there and nobody saw how it ended.
    Gone {
        /// When that was noticed.
        noticed_at: Timestamp,
    },
}

impl AttemptState {
    /// The phase of a live shard.
    pub fn phase(&self) -> Option<ShardPhase> {
        match self {
            Self::Live { status: Some(status), .. } => Some(status.phase),
            _ => None,
        }
    }

    /// Whether its process may still be running.
    pub fn is_alive(&self) -> bool {
        matches!(self, Self::Pending | Self::Starting | Self::Live { .. })
    }
}

/// Counts of one attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct Counts {
    /// The counts.
    pub snapshot: Arc<Snapshot>,
    /// When they were taken.
    pub at: Timestamp,
    /// Whether nothing comes after them: a scrape of a finished shard, or a summary left as the termination message.
    pub last: bool,
}

/// Something that keeps a run from starting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartProblem {
    /// One CamelCase word: `Unschedulable`, `ErrImagePull`, `ExceededQuota`.
    pub reason: String,
    /// In words, as the API server or the scheduler says it.
    pub message: String,
    /// Whether waiting cannot help.
    pub incurable: bool,
}
