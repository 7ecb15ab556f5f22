//! The pod of a worker: restricted Pod Security Standard, no service account token, no fixed user id (OpenShift assigns one;
//! elsewhere the image's own applies), everything it needs mounted as files.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{
        Affinity, Capabilities, ConfigMapVolumeSource, Container, ContainerPort, EnvVar, EnvVarSource, HTTPGetAction, KeyToPath,
        LocalObjectReference, ObjectFieldSelector, PodSecurityContext, PodSpec, PodTemplateSpec, Probe, SeccompProfile,
        SecretVolumeSource, SecurityContext, Sysctl, Toleration, TopologySpreadConstraint, Volume, VolumeMount,
    },
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};
use kube::api::ObjectMeta;
use mqtt_loadtest_crds::{plan::RunPlan, spec::WorkerPod};
use mqtt_loadtest_worker::protocol::READYZ;

use super::{
    GROUP_LABEL, Names, PLAN_KEY, RUN_STATE_KEY, annotations, job::LINGER, labels, resources::resources, run_labels,
    token_secret::TOKEN_KEY,
};

/// Name of the worker's container.
pub const CONTAINER: &str = "worker";
/// Port of a worker's control interface and of the metrics that the operator scrapes.
pub const CONTROL_PORT: i32 = 8081;

const ROOT: &str = "/etc/mqtt-loadtest";
const CA_FILE: &str = "ca.crt";
/// Keys of a Secret of type kubernetes.io/tls (<https://kubernetes.io/docs/concepts/configuration/secret/#tls-secrets>).
const TLS_CERT_KEY: &str = "tls.crt";
const TLS_PRIVATE_KEY_KEY: &str = "tls.key";
/// Count of failed attempts of the pod's index (Kubernetes 1.29 and newer).
const ATTEMPT: &str = "metadata.annotations['batch.kubernetes.io/job-index-failure-count']";
/// How long a pod stays on a node that does not answer.
const NODE_GRACE_SECONDS: i64 = 30;

/// What the operator's own configuration says about worker pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerSettings {
    /// Image.
    pub image: String,
    /// Pull policy of the image: IfNotPresent, Always or Never.
    pub pull_policy: String,
}

/// The pod template of a group. None when there is no such group.
pub(super) fn template(plan: &RunPlan, group: usize, settings: &WorkerSettings) -> Option<PodTemplateSpec> {
    let planned = plan.groups.get(group)?;
    let worker = &plan.spec.groups.get(group)?.worker;
    let volumes = volumes(plan);
    Some(PodTemplateSpec {
        metadata: Some(metadata(plan, &planned.name, worker)),
        spec: Some(PodSpec {
            restart_policy: Some("Never".into()),
            // A worker that gets SIGTERM disconnects its clients and writes its summary within 8 s.
            termination_grace_period_seconds: Some(10),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            service_account_name: text(&worker.service_account_name),
            priority_class_name: text(&worker.priority_class_name),
            runtime_class_name: text(&worker.runtime_class_name),
            image_pull_secrets: some(
                worker.image_pull_secrets.iter().map(|secret| LocalObjectReference { name: secret.name.clone() }).collect(),
            ),
            node_selector: (!worker.node_selector.is_empty()).then(|| worker.node_selector.clone()),
            affinity: (worker.affinity != Affinity::default()).then(|| worker.affinity.clone()),
            tolerations: Some(tolerations(worker)),
            topology_spread_constraints: Some(spread(plan, &planned.name, worker)),
            security_context: Some(PodSecurityContext {
                run_as_non_root: Some(true),
                seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".into(), ..SeccompProfile::default() }),
                sysctls: some(
                    worker
                        .sysctls
                        .iter()
                        .map(|sysctl| Sysctl { name: sysctl.name.clone(), value: sysctl.value.clone() })
                        .collect(),
                ),
                ..PodSecurityContext::default()
            }),
            containers: vec![container(plan, group, settings, &volumes)],
            volumes: Some(volumes),
            ..PodSpec::default()
        }),
    })
}

fn metadata(plan: &RunPlan, group: &str, worker: &WorkerPod) -> ObjectMeta {
    // Proxies of a service mesh would stand between clients and broker, and be measured. What the manifest asks for wins,
    // but never over the labels that tell runs apart.
    let mut all_labels = BTreeMap::from([
        ("sidecar.istio.io/inject".to_owned(), "false".to_owned()),
        ("kuma.io/sidecar-injection".to_owned(), "disabled".to_owned()),
    ]);
    all_labels.extend(worker.pod_labels.clone());
    all_labels.extend(labels(&plan.run, "worker"));
    all_labels.insert(GROUP_LABEL.to_owned(), group.to_owned());
    let mut all_annotations = BTreeMap::from([
        ("linkerd.io/inject".to_owned(), "disabled".to_owned()),
        ("cluster-autoscaler.kubernetes.io/safe-to-evict".to_owned(), "false".to_owned()),
        ("karpenter.sh/do-not-disrupt".to_owned(), "true".to_owned()),
    ]);
    all_annotations.extend(worker.pod_annotations.clone());
    all_annotations.extend(annotations(&plan.run));
    ObjectMeta { labels: Some(all_labels), annotations: Some(all_annotations), ..ObjectMeta::default() }
}

fn tolerations(worker: &WorkerPod) -> Vec<Toleration> {
    let mut all = worker.tolerations.clone();
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        if !all.iter().any(|toleration| toleration.key.as_deref() == Some(key)) {
            all.push(Toleration {
                key: Some(key.to_owned()),
                operator: Some("Exists".into()),
                effect: Some("NoExecute".into()),
                toleration_seconds: Some(NODE_GRACE_SECONDS),
                ..Toleration::default()
            });
        }
    }
    all
}

fn spread(plan: &RunPlan, group: &str, worker: &WorkerPod) -> Vec<TopologySpreadConstraint> {
    if !worker.topology_spread_constraints.is_empty() {
        return worker.topology_spread_constraints.clone();
    }
    let mut pods = run_labels(&plan.run);
    pods.insert(GROUP_LABEL.to_owned(), group.to_owned());
    vec![TopologySpreadConstraint {
        max_skew: 1,
        topology_key: "kubernetes.io/hostname".into(),
        when_unsatisfiable: "ScheduleAnyway".into(),
        label_selector: Some(LabelSelector { match_labels: Some(pods), ..LabelSelector::default() }),
        ..TopologySpreadConstraint::default()
    }]
}

fn container(plan: &RunPlan, group: usize, settings: &WorkerSettings, volumes: &[Volume]) -> Container {
    let mut args: Vec<String> = vec![
        format!("--plan={ROOT}/plan/{PLAN_KEY}"),
        format!("--group-index={group}"),
        format!("--listen=[::]:{CONTROL_PORT}"),
        format!("--token-file={ROOT}/token/{TOKEN_KEY}"),
        format!("--run-state-file={ROOT}/run-state/{RUN_STATE_KEY}"),
        "--termination-log=/dev/termination-log".into(),
        format!("--linger={}s", LINGER.as_secs()),
        "--log-format=json".into(),
    ];
    if plan.spec.broker.credentials.password_from.is_some() {
        args.push(format!("--password-file={ROOT}/password/password"));
    }
    if let Some(tls) = &plan.spec.broker.tls {
        if tls.ca_from.is_some() {
            args.push(format!("--ca-file={ROOT}/broker-ca/{CA_FILE}"));
        }
        if tls.client_certificate_from.is_some() {
            args.push(format!("--client-certificate-file={ROOT}/client-certificate/{TLS_CERT_KEY}"));
            args.push(format!("--client-key-file={ROOT}/client-certificate/{TLS_PRIVATE_KEY_KEY}"));
        }
    }
    Container {
        name: CONTAINER.into(),
        image: Some(settings.image.clone()),
        image_pull_policy: text(&settings.pull_policy),
        args: Some(args),
        // JOB_COMPLETION_INDEX is set by the Job controller.
        env: Some(vec![EnvVar {
            name: "ATTEMPT".into(),
            value_from: Some(EnvVarSource {
                field_ref: Some(ObjectFieldSelector { field_path: ATTEMPT.into(), ..ObjectFieldSelector::default() }),
                ..EnvVarSource::default()
            }),
            ..EnvVar::default()
        }]),
        ports: Some(vec![ContainerPort {
            name: Some("control".into()),
            container_port: CONTROL_PORT,
            ..ContainerPort::default()
        }]),
        readiness_probe: Some(Probe {
            http_get: Some(HTTPGetAction {
                path: Some(READYZ.into()),
                port: IntOrString::Int(CONTROL_PORT),
                ..HTTPGetAction::default()
            }),
            period_seconds: Some(2),
            timeout_seconds: Some(2),
            failure_threshold: Some(5),
            ..Probe::default()
        }),
        resources: Some(resources(plan, group)),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".into()]), ..Capabilities::default() }),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(volumes.iter().map(mount).collect()),
        ..Container::default()
    }
}

fn mount(volume: &Volume) -> VolumeMount {
    VolumeMount {
        name: volume.name.clone(),
        mount_path: format!("{ROOT}/{}", volume.name),
        read_only: Some(true),
        ..VolumeMount::default()
    }
}

fn volumes(plan: &RunPlan) -> Vec<Volume> {
    let names = Names::new(&plan.run);
    let config_map = |volume: &str, name: &str, optional: Option<bool>| Volume {
        name: volume.into(),
        config_map: Some(ConfigMapVolumeSource { name: name.to_owned(), optional, ..ConfigMapVolumeSource::default() }),
        ..Volume::default()
    };
    // The user id is not known here, so the owner's bits alone would not do; the pod has one container.
    let secret = |volume: &str, name: &str, items: &[(&str, &str)]| Volume {
        name: volume.into(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(name.to_owned()),
            items: Some(items.iter().map(|(key, path)| item(key, path)).collect()),
            default_mode: Some(0o444),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    };
    let mut volumes = vec![
        config_map("plan", &names.plan, None),
        config_map("run-state", &names.run_state, Some(true)),
        secret("token", &names.token, &[(TOKEN_KEY, TOKEN_KEY)]),
    ];
    if let Some(source) = &plan.spec.broker.credentials.password_from {
        volumes.push(secret("password", &source.secret.name, &[(&source.secret.key, "password")]));
    }
    let Some(tls) = &plan.spec.broker.tls else { return volumes };
    if let Some(from) = &tls.ca_from {
        if let Some(key) = &from.secret {
            volumes.push(secret("broker-ca", &key.name, &[(&key.key, CA_FILE)]));
        } else if let Some(key) = &from.config_map {
            let mut volume = config_map("broker-ca", &key.name, None);
            if let Some(source) = &mut volume.config_map {
                source.items = Some(vec![item(&key.key, CA_FILE)]);
            }
            volumes.push(volume);
        }
    }
    if let Some(from) = &tls.client_certificate_from {
        let keys = [(TLS_CERT_KEY, TLS_CERT_KEY), (TLS_PRIVATE_KEY_KEY, TLS_PRIVATE_KEY_KEY)];
        volumes.push(secret("client-certificate", &from.secret.name, &keys));
    }
    volumes
}

/// One key of a Secret or ConfigMap as a file.
fn item(key: &str, path: &str) -> KeyToPath {
    KeyToPath { key: key.to_owned(), path: path.to_owned(), mode: None }
}

fn text(value: &str) -> Option<String> {
    (!value.is_empty()).then(|| value.to_owned())
}

fn some<T>(values: Vec<T>) -> Option<Vec<T>> {
    (!values.is_empty()).then_some(values)
}

#[cfg(test)]
mod tests {
    use super::{super::tests::plan, *};
    use crate::controller::build::{RUN_LABEL, UID_LABEL};

    fn built(group: usize) -> PodTemplateSpec {
        let settings = WorkerSettings { image: "worker:1".into(), pull_policy: "Always".into() };
        template(&plan(), group, &settings).unwrap()
    }

    #[test]
    fn pods_meet_the_restricted_standard_without_a_fixed_user() {
        let spec = built(0).spec.unwrap();
        let pod = spec.security_context.unwrap();
        assert_eq!((pod.run_as_non_root, pod.run_as_user, pod.fs_group), (Some(true), None, None));
        assert_eq!(pod.seccomp_profile.unwrap().type_, "RuntimeDefault");
        assert_eq!(pod.sysctls.unwrap()[0].name, "net.ipv4.ip_local_port_range");
        let container = spec.containers[0].security_context.clone().unwrap();
        assert_eq!(container.allow_privilege_escalation, Some(false));
        assert_eq!(container.read_only_root_filesystem, Some(true));
        assert_eq!(container.capabilities.unwrap().drop.unwrap(), ["ALL"]);
        assert_eq!((spec.automount_service_account_token, spec.host_network), (Some(false), None));
    }

    #[test]
    fn a_worker_is_told_its_slice_and_finds_everything_in_files() {
        let spec = built(1).spec.unwrap();
        let container = &spec.containers[0];
        let args = container.args.clone().unwrap();
        assert!(args.contains(&"--group-index=1".to_owned()), "{args:?}");
        assert!(args.contains(&"--listen=[::]:8081".to_owned()), "{args:?}");
        let env = &container.env.as_ref().unwrap()[0];
        let field = env.value_from.as_ref().unwrap().field_ref.as_ref().unwrap();
        assert_eq!((env.name.as_str(), field.field_path.as_str()), ("ATTEMPT", ATTEMPT));
        let volumes = spec.volumes.unwrap();
        let names: Vec<&str> = volumes.iter().map(|volume| volume.name.as_str()).collect();
        assert_eq!(names, ["plan", "run-state", "token", "password"]);
        assert_eq!(volumes[1].config_map.as_ref().unwrap().optional, Some(true));
        let password = volumes[3].secret.as_ref().unwrap();
        assert_eq!(password.secret_name.as_deref(), Some("login"));
        assert_eq!(password.items.as_ref().unwrap()[0].key, "pw");
        for (mount, name) in container.volume_mounts.as_ref().unwrap().iter().zip(names) {
            assert_eq!((mount.mount_path.clone(), mount.read_only), (format!("/etc/mqtt-loadtest/{name}"), Some(true)));
        }
    }

    #[test]
    fn certificates_are_mounted_from_where_the_manifest_names_them() {
        let mut plan = plan();
        let settings = WorkerSettings { image: "worker:1".into(), pull_policy: "Always".into() };
        for (source, from_config_map) in [("configMap", true), ("secret", false)] {
            let tls = serde_json::json!({"caFrom": {source: {"name": "trust", "key": "root.pem"}}, "clientCertificateFrom": {"secret": {"name": "device"}}});
            plan.spec.broker.tls = Some(serde_json::from_value(tls).unwrap());
            let spec = template(&plan, 0, &settings).unwrap().spec.unwrap();
            let args = spec.containers[0].args.clone().unwrap();
            for arg in [
                "--ca-file=/etc/mqtt-loadtest/broker-ca/ca.crt",
                "--client-certificate-file=/etc/mqtt-loadtest/client-certificate/tls.crt",
                "--client-key-file=/etc/mqtt-loadtest/client-certificate/tls.key",
            ] {
                assert!(args.contains(&arg.to_owned()), "{arg}: {args:?}");
            }
            let volumes = spec.volumes.unwrap();
            let ca = volumes.iter().find(|volume| volume.name == "broker-ca").unwrap();
            let items = match (&ca.config_map, &ca.secret) {
                (Some(map), None) if from_config_map => (map.name.clone(), map.items.clone()),
                (None, Some(secret)) if !from_config_map => (secret.secret_name.clone().unwrap(), secret.items.clone()),
                other => panic!("{other:?}"),
            };
            assert_eq!(items, ("trust".to_owned(), Some(vec![item("root.pem", "ca.crt")])));
            let device = volumes.iter().find(|volume| volume.name == "client-certificate").unwrap().secret.clone().unwrap();
            assert_eq!(device.secret_name.as_deref(), Some("device"));
            assert_eq!(device.items.unwrap().len(), 2, "nothing else of the Secret is mounted");
            assert_eq!(spec.containers[0].volume_mounts.as_ref().unwrap().len(), volumes.len());
        }
    }

    #[test]
    fn the_manifest_may_add_labels_but_not_forge_those_of_the_run() {
        let metadata = built(0).metadata.unwrap();
        let labels = metadata.labels.unwrap();
        assert_eq!(
            (labels[RUN_LABEL].as_str(), labels[UID_LABEL].as_str(), labels["team"].as_str()),
            ("1-abcdef12", "u-1", "iot")
        );
        assert_eq!(labels["sidecar.istio.io/inject"], "false");
        let annotations = metadata.annotations.unwrap();
        assert_eq!(annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"], "false");
        assert_eq!(annotations["karpenter.sh/do-not-disrupt"], "true");
        assert_eq!((annotations["linkerd.io/inject"].as_str(), annotations["a"].as_str()), ("disabled", "b"));
    }

    #[test]
    fn pods_leave_dead_nodes_after_half_a_minute_and_spread_over_hosts() {
        let spec = built(0).spec.unwrap();
        let tolerations = spec.tolerations.unwrap();
        assert_eq!(tolerations.len(), 2);
        assert!(tolerations.iter().all(|t| t.toleration_seconds == Some(30) && t.effect.as_deref() == Some("NoExecute")));
        let spread = &spec.topology_spread_constraints.unwrap()[0];
        assert_eq!(
            (spread.topology_key.as_str(), spread.when_unsatisfiable.as_str()),
            ("kubernetes.io/hostname", "ScheduleAnyway")
        );
        assert_eq!(spread.label_selector.as_ref().unwrap().match_labels.as_ref().unwrap()[GROUP_LABEL], "devices");
        assert_eq!((spec.restart_policy.as_deref(), spec.termination_grace_period_seconds), (Some("Never"), Some(10)));
    }
}
