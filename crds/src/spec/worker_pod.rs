//! What users may set on the worker pods. The embedded Kubernetes types keep their own schema.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, ResourceRequirements, Toleration, TopologySpreadConstraint};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The worker pods of a group.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct WorkerPod {
    /// Requests and limits; by default derived from the number of clients, without a CPU limit.
    #[serde(default)]
    pub resources: ResourceRequirements,

    /// Labels a node must have.
    #[serde(default)]
    #[schemars(extend("maxProperties" = 32))]
    pub node_selector: BTreeMap<String, String>,

    /// Taints the pods tolerate, beside not-ready and unreachable for 30 s.
    #[serde(default)]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub tolerations: Vec<Toleration>,

    /// Scheduling constraints.
    #[serde(default)]
    pub affinity: Affinity,

    /// How pods spread over nodes; by default over hosts, as far as possible.
    #[serde(default)]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,

    /// Kernel parameters of the pod's network namespace.
    #[serde(default)]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub sysctls: Vec<Sysctl>,

    /// Priority class of the pods.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub priority_class_name: String,

    /// Secrets with which the worker's image is pulled.
    #[serde(default)]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub image_pull_secrets: Vec<ImagePullSecret>,

    /// Service account of the pods; its token is never mounted.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub service_account_name: String,

    /// Further labels of the pods.
    #[serde(default)]
    #[schemars(extend("maxProperties" = 32))]
    pub pod_labels: BTreeMap<String, String>,

    /// Further annotations of the pods.
    #[serde(default)]
    #[schemars(extend("maxProperties" = 32))]
    pub pod_annotations: BTreeMap<String, String>,

    /// Runtime class of the pods.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub runtime_class_name: String,
}

/// A kernel parameter (<https://kubernetes.io/docs/tasks/administer-cluster/sysctl-cluster/>).
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Sysctl {
    /// Name, for example `net.ipv4.ip_local_port_range`.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Value.
    #[schemars(length(max = 253))]
    pub value: String,
}

/// A Secret of type `kubernetes.io/dockerconfigjson` in the same namespace.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ImagePullSecret {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}
