//! A group of clients that behave alike.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Publish, Subscribe, WorkerPod};
use crate::value::{Rate, TestDuration};

/// Clients that behave alike; one Indexed Job runs them.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "self.clients == 1 || self.clientId.contains('%i') || self.clientId.contains('%{number}')", "message": "clientId needs %i when there is more than one client, or all would share one identifier", "fieldPath": ".clientId"}
]))]
pub struct Group {
    /// Name of the group, unique within the test.
    #[schemars(length(min = 1, max = 40), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,

    /// How many clients.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub clients: i32,

    /// The first client's number (%i).
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub start_number: i64,

    /// The client identifier; placeholders: %i (client number), %{group}, %{shard}; %% is a percent sign.
    #[serde(default = "default_client_id")]
    #[schemars(
        length(min = 1, max = 256),
        extend("x-kubernetes-validations" = [
            {"rule": "self.matches('^([^%]|%%|%i|%\\\\{(number|group|shard)\\\\})*$')", "message": "unknown placeholder: a client id knows %i, %{number}, %{group}, %{shard} and %%"}
        ])
    )]
    pub client_id: String,

    /// Keep alive of every client, in whole seconds; 0s turns it off (MQTT 5.0 section 3.1.2.10).
    #[serde(default = "default_keep_alive")]
    pub keep_alive: TestDuration,

    /// Whether each first connection starts a new session (clean session in MQTT 3.1.1).
    #[serde(default = "default_true")]
    pub clean_start: bool,

    /// How fast clients connect.
    #[serde(default)]
    pub connect: Connect,

    /// What a client does when its connection is lost.
    #[serde(default)]
    pub reconnect: Reconnect,

    /// Most QoS 1 and 2 messages of one client that may await their acknowledgement; the server's Receive Maximum lowers it.
    #[serde(default = "default_max_inflight")]
    #[schemars(range(min = 1, max = 65_535))]
    pub max_inflight: i32,

    /// What each client publishes.
    #[serde(default)]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub publish: Vec<Publish>,

    /// What each client subscribes to.
    #[serde(default)]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub subscribe: Vec<Subscribe>,

    /// Over how many worker pods the clients are spread.
    #[serde(default)]
    pub shards: Shards,

    /// The worker pods.
    #[serde(default)]
    pub worker: WorkerPod,
}

fn default_client_id() -> String {
    "%{group}-%i".into()
}

fn default_keep_alive() -> TestDuration {
    TestDuration::seconds(60)
}

fn default_true() -> bool {
    true
}

fn default_max_inflight() -> i32 {
    1000
}

/// How fast clients connect.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Connect {
    /// New connections per second, over all shards together, evenly spaced.
    #[serde(default = "default_connect_rate")]
    pub rate_per_second: Rate,

    /// Longest time from the first SYN to the CONNACK.
    #[serde(default = "default_connect_timeout")]
    pub timeout: TestDuration,
}

fn default_connect_rate() -> Rate {
    // 500 is not zero, so this is always Some.
    Rate::new(500, 1).unwrap_or_else(|| unreachable!())
}

fn default_connect_timeout() -> TestDuration {
    TestDuration::seconds(10)
}

impl Default for Connect {
    fn default() -> Self {
        Self { rate_per_second: default_connect_rate(), timeout: default_connect_timeout() }
    }
}

/// What a client does when its connection is lost or refused.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Reconnect {
    /// Whether it connects again.
    #[serde(default)]
    pub policy: ReconnectPolicy,
    /// Wait before the first new attempt; doubled at each further one, with full jitter.
    #[serde(default = "default_min_backoff")]
    pub min_backoff: TestDuration,
    /// Longest wait between attempts.
    #[serde(default = "default_max_backoff")]
    pub max_backoff: TestDuration,
}

fn default_min_backoff() -> TestDuration {
    TestDuration::seconds(1)
}

fn default_max_backoff() -> TestDuration {
    TestDuration::seconds(30)
}

impl Default for Reconnect {
    fn default() -> Self {
        Self { policy: ReconnectPolicy::default(), min_backoff: default_min_backoff(), max_backoff: default_max_backoff() }
    }
}

/// When a client connects again.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReconnectPolicy {
    /// After every loss, unless the failure cannot be cured by trying again.
    #[default]
    Always,
    /// Never: a client that lost its connection stays away.
    Never,
}

/// How clients are spread over worker pods. By default a pod runs up to 10,000 clients.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "!(has(self.count) && has(self.clientsPerShard))", "message": "give count or clientsPerShard, not both"}
]))]
pub struct Shards {
    /// Number of worker pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub count: Option<i32>,
    /// Most clients of one worker pod; 10000 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub clients_per_shard: Option<i32>,
}
