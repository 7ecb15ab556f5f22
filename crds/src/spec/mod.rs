//! What a user writes. Field names follow the Kubernetes API conventions
//! (<https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api-conventions.md>); every string
//! has a `maxLength` and every list a `maxItems`, which also keeps the CEL rules within the API server's cost budget.

mod broker;
mod endpoint;
mod group;
mod load;
mod publish;
mod tls;
mod worker_pod;

pub use broker::{Broker, Credentials, KeyReference, ProtocolVersion, SecretSource};
pub use endpoint::{Endpoint, Scheme};
pub use group::{Connect, Group, Reconnect, ReconnectPolicy, Shards};
pub use load::{Barrier, Load, OnTimeout};
pub use publish::{Payload, Publish, Subscribe};
pub use tls::{CaSource, ClientCertificateSource, Header, NameReference, Resumption, Tls, Verification, WebSocket};
pub use worker_pod::{ImagePullSecret, Sysctl, WorkerPod};

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::status::MqttLoadTestStatus;

/// A load test of an MQTT platform: who connects, what they publish and subscribe to, and for how long. Applying it runs
/// it once; it runs again when the spec changes.
#[derive(CustomResource, JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "mqttloadtest.dev",
    version = "v1alpha1",
    kind = "MqttLoadTest",
    plural = "mqttloadtests",
    singular = "mqttloadtest",
    shortname = "mlt",
    namespaced,
    status = "MqttLoadTestStatus",
    derive = "PartialEq",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Verdict", type_ = "string", json_path = ".status.verdict"),
    printcolumn(name = "Clients", type_ = "integer", json_path = ".status.clients.connected"),
    printcolumn(name = "Sent/s", type_ = "string", json_path = ".status.rates.sent"),
    printcolumn(name = "Ack p99", type_ = "string", json_path = ".status.latency.publishAck.p99"),
    printcolumn(name = "Lost", type_ = "string", json_path = ".status.messages.lost"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
// Printer columns share their type, which the lint takes for a repetition.
#[allow(clippy::duplicated_attributes)]
pub struct MqttLoadTestSpec {
    /// The MQTT platform under test.
    pub broker: Broker,

    /// Groups of clients that behave alike. Each group becomes one Indexed Job.
    #[schemars(length(min = 1, max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub groups: Vec<Group>,

    /// When the run starts and ends.
    #[serde(default)]
    pub load: Load,

    /// Part of the identity of a run: change it to run the same test again.
    #[serde(default = "default_run_id")]
    #[schemars(length(max = 63))]
    pub run_id: String,

    /// True before the start: nothing is made. True during a run: the run stops gracefully with verdict Inconclusive; false
    /// again starts a new run.
    #[serde(default)]
    pub suspend: bool,

    /// The `status.run.id` of a run that must end now, and only of that one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub stop_run: Option<String>,

    /// Seconds for which the detailed report of a finished run is kept.
    #[serde(default = "default_report_ttl", rename = "reportTTLSeconds")]
    #[schemars(range(min = 0, max = 31_536_000))]
    pub report_ttl_seconds: i32,
}

fn default_run_id() -> String {
    "1".into()
}

fn default_report_ttl() -> i32 {
    604_800
}
