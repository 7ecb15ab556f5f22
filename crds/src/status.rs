//! What the operator reports. Numbers and their laws are defined in the worker's accounting module; the names are the
//! same here. Field meanings follow the Kubernetes conventions for status and conditions.

use std::collections::BTreeMap;

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// State of the test and of its newest run.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct MqttLoadTestStatus {
    /// Generation of the spec that this status is about; -1 until the operator has seen the object.
    #[schemars(default = "unseen")]
    pub observed_generation: i64,
    /// Where the newest run is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// What the newest run found; absent until it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// Why, in one CamelCase word.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Why, in words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The newest run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<Run>,
    /// Worker pods.
    pub shards: ShardCounts,
    /// Clients.
    pub clients: ClientCounts,
    /// Messages.
    pub messages: MessageCounts,
    /// Current rates per second.
    pub rates: Rates,
    /// Latencies over the run, by stage.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub latency: BTreeMap<String, LatencySummary>,
    /// The same, group by group.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub groups: Vec<GroupStatus>,
    /// Whether the load generator, not the broker, was the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generator: Option<GeneratorStatus>,
    /// Ready, Reconciling, Stalled, Complete, Failed, Finished, ClientsConnected, SpecPending.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Earlier runs, newest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10), extend("x-kubernetes-list-type" = "atomic"))]
    pub history: Vec<PastRun>,
}

fn unseen() -> i64 {
    -1
}

/// Where a run is.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Seen, nothing made yet.
    Pending,
    /// Worker pods are being made.
    Starting,
    /// Clients connect and subscribe.
    Connecting,
    /// Clients publish.
    Running,
    /// Acknowledgements and deliveries under way are awaited.
    Draining,
    /// The measured window ended, whatever the verdict.
    Completed,
    /// The run ended before the end of the measured window.
    Failed,
}

/// What a run found.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Every criterion was met.
    Passed,
    /// The broker did not meet a criterion.
    Failed,
    /// The numbers do not allow a judgement of the broker.
    Inconclusive,
}

/// Identity and instants of a run.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct Run {
    /// `<counter>-<hash8>`.
    pub id: String,
    /// Hash of the spec it runs.
    pub spec_hash: String,
    /// Generation of the spec it runs.
    pub generation: i64,
    /// When its objects were made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When clients may begin to connect.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Time>")]
    pub released_at: Option<MicroTime>,
    /// When publishing begins, everywhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Time>")]
    pub barrier_at: Option<MicroTime>,
    /// When publishing ends, everywhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Time>")]
    pub ends_at: Option<MicroTime>,
    /// When the run was asked to end early, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Time>")]
    pub stopped_at: Option<MicroTime>,
    /// Why it was asked to end early, in one CamelCase word.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stop_reason: String,
    /// When the numbers were final.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Time>,
}

/// An instant with all its digits (RFC 3339): the common start must not be rounded to a second.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(transparent)]
pub struct MicroTime(pub Timestamp);

/// Worker pods.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct ShardCounts {
    /// Planned.
    pub desired: i32,
    /// Ready, or running clients.
    pub ready: i32,
    /// With final numbers.
    pub finished: i32,
    /// That died without being replaced, or whose final numbers were not obtained.
    pub lost: i32,
    /// Scheduled messages (client-seconds in groups that do not publish) as a share of the planned ones so far, in percent.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub coverage_percent: String,
}

/// Clients.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientCounts {
    /// Planned.
    pub desired: i64,
    /// Connected and subscribed now.
    pub connected: i64,
    /// Connections made again after a loss.
    pub reconnects: i64,
    /// Clients that gave up.
    pub failed: i64,
    /// Failed connects and lost connections, by reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub failures: BTreeMap<String, i64>,
}

/// Messages, as the accounting defines them.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct MessageCounts {
    /// Due by the plan so far.
    pub planned: i64,
    /// Due while no worker was alive, or before the client's first connection.
    pub absent: i64,
    /// Due and seen by a worker.
    pub scheduled: i64,
    /// Given to the kernel, first transmissions only.
    pub sent: i64,
    /// Not sent, by reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub skipped: BTreeMap<String, i64>,
    /// Scheduled, neither sent nor skipped yet.
    pub pending: i64,
    /// Sent again after a reconnect.
    pub retransmitted: i64,
    /// Acknowledged by the broker (QoS 1 and 2).
    pub acked: i64,
    /// Of the acknowledged: the broker had no subscriber.
    pub no_subscribers: i64,
    /// Refused by the broker with a reason code of 0x80 or above.
    pub refused: i64,
    /// Sent, but the session they belong to is gone.
    pub abandoned: i64,
    /// Sent and not acknowledged yet (QoS 1 and 2).
    pub unacked: i64,
    /// QoS 0 messages that the broker has certainly read.
    pub fenced: i64,
    /// QoS 0 messages sent and not fenced.
    pub unfenced: i64,
    /// Live deliveries to this run's subscribers, duplicates included.
    pub received: i64,
    /// Deliveries without duplicates.
    pub unique: i64,
    /// Deliveries of a message seen before.
    pub duplicates: i64,
    /// Deliveries of retained messages.
    pub retained: i64,
    /// Deliveries that must have come.
    pub expected_min: i64,
    /// Deliveries that may have come.
    pub expected_max: i64,
    /// Deliveries that a subscriber without a session missed while it was disconnected.
    pub excused: i64,
    /// Lost deliveries: `N`, or `MIN-MAX` where only bounds are known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub lost: String,
    /// Deliveries beyond what may have come.
    pub surplus: i64,
    /// Messages that a worker which died unseen may have sent beyond its last report.
    pub uncertain: i64,
}

/// Rates per second over the last scrape interval.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct Rates {
    /// Messages due.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub scheduled: String,
    /// Messages sent.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sent: String,
    /// Messages acknowledged.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub acked: String,
    /// Messages received.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub received: String,
}

/// Percentiles of one stage, as duration strings; `+Inf` where the share never came.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct LatencySummary {
    /// Observations, those that never came included.
    pub count: i64,
    /// Median.
    pub p50: String,
    /// 90th percentile.
    pub p90: String,
    /// 95th percentile.
    pub p95: String,
    /// 99th percentile.
    pub p99: String,
    /// 99.9th percentile.
    pub p999: String,
    /// Largest.
    pub max: String,
}

/// One group's share of the numbers.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupStatus {
    /// The group.
    pub name: String,
    /// Its worker pods.
    pub shards: ShardCounts,
    /// Its clients.
    pub clients: ClientCounts,
    /// Its messages.
    pub messages: MessageCounts,
    /// Its latencies.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub latency: BTreeMap<String, LatencySummary>,
}

/// Whether the load generator was the limit.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct GeneratorStatus {
    /// True when a figure below may be the generator's doing.
    pub limited: bool,
    /// Why, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub reasons: Vec<String>,
}

/// A run that ended.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct PastRun {
    /// Its identity.
    pub id: String,
    /// Its verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// Why.
    pub reason: String,
    /// When its objects were made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When its numbers were final.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Time>,
    /// Messages sent.
    pub sent: i64,
    /// Messages acknowledged.
    pub acked: i64,
    /// Lost deliveries.
    pub lost: String,
    /// 99th percentile of the time from due to acknowledged.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ack_p99: String,
}
