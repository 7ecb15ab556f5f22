//! What the operator and a worker say to each other: control messages, run state, status, and the bearer token.
//!
//! Instants on the wire are nanoseconds since the Unix epoch. A worker maps them to its monotonic clock once, on receipt.
//! The first release and the first start of a run win: the same again is fine, another one is a conflict.

mod token;

pub use token::{Token, token};

use serde::{Deserialize, Serialize};

/// Path of the liveness probe; needs no token.
pub const HEALTHZ: &str = "/healthz";
/// Path of the readiness probe, which says that the shard may be released; needs no token.
pub const READYZ: &str = "/readyz";
/// Path of the metrics.
pub const METRICS: &str = "/metrics";
/// Path of [`Release`], by POST.
pub const RELEASE: &str = "/v1/release";
/// Path of [`Start`], by POST.
pub const START: &str = "/v1/start";
/// Path of [`Stop`], by POST.
pub const STOP: &str = "/v1/stop";
/// Path of the message, by POST and without a body, that the final snapshot was collected: the worker exits 0.
pub const FINISH: &str = "/v1/finish";
/// Path of [`ShardStatus`], by GET.
pub const STATUS: &str = "/v1/status";

/// Header of a response to [`METRICS`] that carries the [`ShardStatus`] as JSON, so that a scrape is one request. The status
/// was taken first: metrics of a shard that says it has finished are its last ones.
pub const STATUS_HEADER: &str = "mqtt-loadtest-status";

/// Exit status of a worker that refuses its slice; the reason is its termination message.
pub const EXIT_REFUSED: u8 = 2;
/// Exit status after SIGTERM before the end.
pub const EXIT_TERMINATED: u8 = 143;

/// How far a shard is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ShardPhase {
    /// The plan is read and the slice fits; nothing connects yet.
    Waiting,
    /// Released: clients connect at their instants.
    Connecting,
    /// Every client is connected and subscribed, or given up.
    Connected,
    /// The start instant has passed: clients publish.
    Running,
    /// The end has passed or a stop came: acknowledgements and deliveries under way are awaited.
    Draining,
    /// Disconnected; the counts are final and wait to be collected.
    Finished,
}

/// `POST /v1/release`: the instant from which the connect schedule counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Release {
    /// Nanoseconds since the Unix epoch.
    pub at_unix_ns: u64,
}

/// `POST /v1/start`: the common window in which all shards publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Start {
    /// First instant, in nanoseconds since the Unix epoch.
    pub start_unix_ns: u64,
    /// First instant after the last, in nanoseconds since the Unix epoch.
    pub end_unix_ns: u64,
}

/// `POST /v1/stop`: a graceful early end. Publishers stop, what is under way drains, clients disconnect. A stop while the
/// shard already drains ends the drain: the operator says so when it sees that all shards together have everything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Stop {
    /// Why, for the log: `suspended`, `stopRun`, `thresholdBreached`, `drained`...
    pub reason: String,
}

/// The same facts as a file (`run-state.json`), so that a pod that is replaced while no operator is there learns them.
/// Fields appear in the course of a run and never change afterwards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunState {
    /// See [`Release::at_unix_ns`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release_unix_ns: Option<u64>,
    /// See [`Start::start_unix_ns`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_unix_ns: Option<u64>,
    /// See [`Start::end_unix_ns`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_unix_ns: Option<u64>,
    /// See [`Stop::reason`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<String>,
}

impl RunState {
    /// The start, once both instants are there.
    pub fn start(&self) -> Option<Start> {
        Some(Start { start_unix_ns: self.start_unix_ns?, end_unix_ns: self.end_unix_ns? })
    }
}

/// `GET /v1/status`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShardStatus {
    /// How far the shard is.
    pub phase: ShardPhase,
    /// Name of its group.
    pub group: String,
    /// Completion index.
    pub shard: u32,
    /// Number of attempts of this index before this one.
    pub attempt: u32,
    /// `status.run.id` of the run it belongs to.
    pub run_id: String,
    /// When it was released, if it was.
    pub release_unix_ns: Option<u64>,
    /// Its window, once known.
    pub start: Option<Start>,
    /// Its clocks at the instant of the answer.
    pub clock: Clock,
    /// Why it could not go on, for people: a refused slice, a failed name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// A reading of a worker's clocks, from which the operator bounds the offset between pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Clock {
    /// CLOCK_REALTIME in nanoseconds.
    pub unix_ns: u64,
    /// CLOCK_MONOTONIC in nanoseconds.
    pub monotonic_ns: u64,
    /// `/proc/sys/kernel/random/boot_id`: pods with the same one share their monotonic clock.
    pub boot_id: String,
}

/// The body of an answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// What is wrong and what to do.
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_state_grows_field_by_field() {
        let none: RunState = serde_json::from_str("{}").unwrap();
        assert_eq!(none.start(), None);
        let released: RunState = serde_json::from_str(r#"{"releaseUnixNs":5,"startUnixNs":7}"#).unwrap();
        assert_eq!((released.release_unix_ns, released.start()), (Some(5), None));
        let started: RunState = serde_json::from_str(r#"{"startUnixNs":7,"endUnixNs":9}"#).unwrap();
        assert_eq!(started.start(), Some(Start { start_unix_ns: 7, end_unix_ns: 9 }));
    }

    #[test]
    fn phases_are_in_the_order_in_which_they_come() {
        use ShardPhase::*;
        let mut phases = [Finished, Waiting, Running, Connected, Draining, Connecting];
        phases.sort();
        assert_eq!(phases, [Waiting, Connecting, Connected, Running, Draining, Finished]);
        assert_eq!(serde_json::to_string(&Finished).unwrap(), "\"finished\"");
    }
}
