//! The ingress NetworkPolicy of a run's pods: the control port is for the operator alone. Kubelet probes are always let
//! through (<https://kubernetes.io/docs/concepts/services-networking/network-policies/>). What the workers connect to is not
//! restricted.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::networking::v1::{NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec},
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};
use mqtt_loadtest_crds::plan::RunIdentity;

use super::{CONTROL_PORT, Names, child, run_labels};

/// The NetworkPolicy of a run, for an operator in `operator_namespace`.
pub fn network_policy(run: &RunIdentity, operator_namespace: &str) -> NetworkPolicy {
    let operator = NetworkPolicyPeer {
        namespace_selector: Some(selector(BTreeMap::from([("kubernetes.io/metadata.name".into(), operator_namespace.into())]))),
        ..NetworkPolicyPeer::default()
    };
    NetworkPolicy {
        metadata: child(run, &Names::new(run).network_policy, "worker"),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(selector(run_labels(run))),
            policy_types: Some(vec!["Ingress".into()]),
            ingress: Some(vec![NetworkPolicyIngressRule {
                from: Some(vec![operator]),
                ports: Some(vec![NetworkPolicyPort {
                    port: Some(IntOrString::Int(CONTROL_PORT)),
                    protocol: Some("TCP".into()),
                    ..NetworkPolicyPort::default()
                }]),
            }]),
            ..NetworkPolicySpec::default()
        }),
    }
}

fn selector(match_labels: BTreeMap<String, String>) -> LabelSelector {
    LabelSelector { match_labels: Some(match_labels), ..LabelSelector::default() }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::plan, *};

    #[test]
    fn only_the_operators_namespace_reaches_the_control_port_of_this_runs_pods() {
        let spec = network_policy(&plan().run, "mqtt-loadtest-system").spec.unwrap();
        assert_eq!(spec.policy_types.unwrap(), ["Ingress"]);
        assert_eq!(spec.pod_selector.unwrap().match_labels.unwrap(), run_labels(&plan().run));
        let rules = spec.ingress.unwrap();
        assert_eq!(rules.len(), 1);
        assert_eq!(rules[0].ports.as_ref().unwrap()[0].port, Some(IntOrString::Int(8081)));
        let from = rules[0].from.as_ref().unwrap()[0].namespace_selector.as_ref().unwrap().match_labels.as_ref().unwrap();
        assert_eq!(from["kubernetes.io/metadata.name"], "mqtt-loadtest-system");
    }
}
