//! Child objects of a run, built purely from its plan: no client, no clock. Each is created once and never re-applied, so a
//! builder may change between versions of the operator without disturbing a run.

mod job;
mod ledger;
mod network_policy;
mod plan_config_map;
mod pod;
mod resources;
mod run_state;
mod token_secret;

pub use job::{backstop, job};
pub use ledger::ledger;
pub use network_policy::network_policy;
pub use plan_config_map::{PLAN_KEY, plan_config_map};
pub use pod::{CONTAINER, CONTROL_PORT, WorkerSettings};
pub use run_state::{RUN_STATE_KEY, run_state};
pub use token_secret::token_secret;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, api::ObjectMeta};
use mqtt_loadtest_crds::{
    MqttLoadTest,
    plan::{RunIdentity, child_name},
};

/// What the operator names itself in labels and as field manager.
pub const MANAGER: &str = "mqtt-loadtest-operator";
/// Label on every child: UID of its MqttLoadTest.
pub const UID_LABEL: &str = "mqttloadtest.dev/uid";
/// Label on every child: `status.run.id`.
pub const RUN_LABEL: &str = "mqttloadtest.dev/run";
/// Label on Jobs and pods: name of the group.
pub const GROUP_LABEL: &str = "mqttloadtest.dev/group";
/// Annotation on every child: whole name of its MqttLoadTest, which may be longer than a label.
pub const NAME_ANNOTATION: &str = "mqttloadtest.dev/name";
/// Label selector of everything that operators of this kind made.
pub const MANAGED: &str = "app.kubernetes.io/managed-by=mqtt-loadtest-operator,mqttloadtest.dev/uid";

/// Names of the children of a run, beside the Jobs, whose names are in the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// The ConfigMap with the plan.
    pub plan: String,
    /// The ConfigMap with the instants.
    pub run_state: String,
    /// The ConfigMap with the counts of dead pods.
    pub ledger: String,
    /// The Secret with the control token.
    pub token: String,
    /// The NetworkPolicy of the pods.
    pub network_policy: String,
}

impl Names {
    /// The names for a run.
    pub fn new(run: &RunIdentity) -> Self {
        Self {
            plan: child_name(run, "plan"),
            run_state: child_name(run, "run-state"),
            ledger: child_name(run, "ledger"),
            token: child_name(run, "token"),
            network_policy: child_name(run, "workers"),
        }
    }
}

/// Labels that tell the children of one run from everything else.
pub fn run_labels(run: &RunIdentity) -> BTreeMap<String, String> {
    BTreeMap::from([(UID_LABEL.into(), run.uid.clone()), (RUN_LABEL.into(), run.id.clone())])
}

/// The usual labels (<https://kubernetes.io/docs/concepts/overview/working-with-objects/common-labels/>) and those of the run.
fn labels(run: &RunIdentity, component: &str) -> BTreeMap<String, String> {
    let mut labels = run_labels(run);
    for (name, value) in [
        ("name", "mqtt-loadtest"),
        ("component", component),
        ("part-of", "mqtt-loadtest"),
        ("managed-by", MANAGER),
        ("instance", &instance(&run.name)),
    ] {
        labels.insert(format!("app.kubernetes.io/{name}"), value.to_owned());
    }
    labels
}

/// A name as a label value: at most 63 characters, letters and digits at both ends.
fn instance(name: &str) -> String {
    let cut: String = name.chars().take(63).collect();
    cut.trim_end_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned()
}

fn annotations(run: &RunIdentity) -> BTreeMap<String, String> {
    BTreeMap::from([(NAME_ANNOTATION.into(), run.name.clone())])
}

/// Metadata of a child that the MqttLoadTest owns.
fn child(run: &RunIdentity, name: &str, component: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(run.namespace.clone()),
        labels: Some(labels(run, component)),
        annotations: Some(annotations(run)),
        owner_references: Some(vec![owner(run)]),
        ..ObjectMeta::default()
    }
}

/// The MqttLoadTest as the owner. It does not block the deletion of the object: blocking would need rights on finalizers.
pub fn owner(run: &RunIdentity) -> OwnerReference {
    OwnerReference {
        api_version: MqttLoadTest::api_version(&()).into_owned(),
        kind: MqttLoadTest::kind(&()).into_owned(),
        name: run.name.clone(),
        uid: run.uid.clone(),
        controller: Some(true),
        block_owner_deletion: Some(false),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use mqtt_loadtest_crds::plan::RunPlan;
    use serde_json::json;

    /// A plan with a publishing group of 4 shards and a subscribing one.
    pub(crate) fn plan() -> RunPlan {
        plan_of(json!({
            "broker": {"endpoints": ["mqtt://b:1883"], "credentials": {"username": "u", "passwordFrom": {"secret": {"name": "login", "key": "pw"}}}},
            "groups": [
                {"name": "devices", "clients": 2000, "shards": {"count": 4}, "connect": {"ratePerSecond": 500},
                 "publish": [{"name": "p", "topic": "t/%i", "qos": 1, "interval": "1s"}],
                 "worker": {"podLabels": {"team": "iot", "mqttloadtest.dev/run": "forged"}, "podAnnotations": {"a": "b"},
                            "sysctls": [{"name": "net.ipv4.ip_local_port_range", "value": "1024 65535"}]}},
                {"name": "listeners", "clients": 10, "subscribe": [{"name": "s", "filter": "t/#", "qos": 1}]}
            ],
            "load": {"duration": "60s", "drain": "10s"}
        }))
    }

    pub(crate) fn plan_of(spec: serde_json::Value) -> RunPlan {
        let run = RunIdentity { namespace: "ns".into(), name: "my.test".into(), uid: "u-1".into(), id: "1-abcdef12".into() };
        RunPlan::new(run, serde_json::from_value(spec).unwrap())
    }

    #[test]
    fn children_are_owned_labelled_and_carry_the_whole_name() {
        let plan = plan();
        let meta = child(&plan.run, "x", "plan");
        let owner = &meta.owner_references.unwrap()[0];
        assert_eq!((owner.kind.as_str(), owner.uid.as_str(), owner.controller), ("MqttLoadTest", "u-1", Some(true)));
        assert_eq!(owner.api_version, "mqttloadtest.dev/v1alpha1");
        let labels = meta.labels.unwrap();
        assert_eq!(labels[UID_LABEL], "u-1");
        assert_eq!(labels[RUN_LABEL], "1-abcdef12");
        assert_eq!(labels["app.kubernetes.io/managed-by"], MANAGER);
        assert_eq!(labels["app.kubernetes.io/instance"], "my.test");
        assert_eq!(meta.annotations.unwrap()[NAME_ANNOTATION], "my.test");
    }

    #[test]
    fn names_of_253_characters_become_valid_names_and_labels() {
        let mut plan = plan();
        plan.run.name = format!("{}.x", "a".repeat(62) + &".b".repeat(95));
        let names = Names::new(&plan.run);
        for name in [&names.plan, &names.run_state, &names.ledger, &names.token, &names.network_policy] {
            assert!(name.len() <= 52 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'), "{name}");
        }
        let value = instance(&plan.run.name);
        assert!(value.len() <= 63 && value.ends_with(|c: char| c.is_ascii_alphanumeric()), "{value}");
    }
}
