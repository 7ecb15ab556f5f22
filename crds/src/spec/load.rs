//! When a run starts and ends.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::value::{Percent, TestDuration};

/// When a run starts and ends.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Load {
    /// How long clients publish, from the common start.
    #[serde(default = "default_duration")]
    pub duration: TestDuration,

    /// Longest time until every worker pod is ready: scheduling, image pull, autoscaling.
    #[serde(default = "default_start_timeout")]
    pub start_timeout: TestDuration,

    /// What must be reached before anyone publishes.
    #[serde(default)]
    pub barrier: Barrier,

    /// Longest wait, after the end, for acknowledgements and deliveries still under way.
    #[serde(default = "default_drain")]
    pub drain: TestDuration,

    /// Share of the planned messages that must have been scheduled for a run to be conclusive.
    #[serde(default = "default_min_coverage")]
    pub min_coverage: Percent,

    /// Seed of everything random (payloads, jitter), so that a run can be repeated.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub seed: i64,
}

fn default_duration() -> TestDuration {
    TestDuration::seconds(3600)
}

fn default_start_timeout() -> TestDuration {
    TestDuration::seconds(900)
}

fn default_drain() -> TestDuration {
    TestDuration::seconds(30)
}

fn percent(text: &str) -> Percent {
    // Called with literals below only; a test reads them all.
    text.parse().unwrap_or_else(|_| unreachable!())
}

fn default_min_coverage() -> Percent {
    percent("99%")
}

impl Default for Load {
    fn default() -> Self {
        Self {
            duration: default_duration(),
            start_timeout: default_start_timeout(),
            barrier: Barrier::default(),
            drain: default_drain(),
            min_coverage: default_min_coverage(),
            seed: 0,
        }
    }
}

/// What must be reached before anyone publishes.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Barrier {
    /// Share of the clients that must be connected and subscribed.
    #[serde(default = "default_min_connected")]
    pub min_connected: Percent,

    /// Longest time from the release of the connects until that share is reached; at least 1.5 times the connect ramp.
    #[serde(default = "default_barrier_timeout")]
    pub timeout: TestDuration,

    /// Wait between the last subscription and the first message: a cluster's routes are eventually consistent.
    #[serde(default = "default_settle")]
    pub settle: TestDuration,

    /// What happens at the timeout.
    #[serde(default)]
    pub on_timeout: OnTimeout,
}

fn default_min_connected() -> Percent {
    percent("100%")
}

fn default_barrier_timeout() -> TestDuration {
    TestDuration::seconds(600)
}

fn default_settle() -> TestDuration {
    TestDuration::seconds(5)
}

impl Default for Barrier {
    fn default() -> Self {
        Self {
            min_connected: default_min_connected(),
            timeout: default_barrier_timeout(),
            settle: default_settle(),
            on_timeout: OnTimeout::default(),
        }
    }
}

/// What happens when the barrier is not reached in time.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnTimeout {
    /// The run fails.
    #[default]
    Fail,
    /// The clients that are there start.
    Proceed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_values() {
        assert_eq!(Load::default().min_coverage.of(100), 99);
        assert_eq!(Barrier::default().min_connected.of(7), 7);
    }
}
