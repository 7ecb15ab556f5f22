//! A mosquitto for one test, in the test's namespace, and what it says of itself: its counters under `$SYS` and its log.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::{PodProcess, TestBed, eventually};

const NAME: &str = "mosquitto";

/// The whole configuration but for the listeners of the test. Without the two zeros it drops QoS 1 messages for a slow
/// subscriber. Port 1885 is for its probe and for reading its counters, so that all of 1883 is the test's own.
const CONFIG: &str = "per_listener_settings true
sys_interval 1
max_queued_messages 0
max_inflight_messages 0
set_tcp_nodelay true
log_dest stderr
listener 1885
allow_anonymous true
";

/// Anybody on 1883; on 1884 the user `loadtest` with the password `secret`.
const LISTENERS: &str = "listener 1883
allow_anonymous true
listener 1884
allow_anonymous false
password_file /etc/mosquitto/passwords
";

const PASSWORDS: &str =
    "loadtest:$7$101$3lRe65B/3UVyQvEI$ZvxUvzCHOMhu8xEKsXkQ35/TBlcKYpOBuxB0LuLogYRL86q8t63LdQthc7yEhwymn0TzC11Pe5fbCq3DgbQsDQ==\n";

/// A running broker.
pub struct Mosquitto<'a> {
    bed: &'a TestBed,
    /// The pod's address, which this machine reaches too on the development cluster.
    pub ip: String,
}

impl<'a> Mosquitto<'a> {
    /// Starts one and waits until it takes connections: 1883 for anybody, 1884 for `loadtest` / `secret`.
    ///
    /// # Errors
    /// When it does not come up within 60 s.
    pub async fn start(bed: &'a TestBed) -> Result<Self> {
        Self::start_with(bed, LISTENERS).await
    }

    /// Starts one with lines of configuration of the test's own, listeners included (1885 is there already).
    ///
    /// # Errors
    /// As for [`Self::start`].
    pub async fn start_with(bed: &'a TestBed, config: &str) -> Result<Self> {
        bed.apply(manifest(&bed.cluster.mosquitto_image(), &format!("{CONFIG}{config}")).to_string()).await?;
        let ip = eventually("mosquitto to be ready", Duration::from_secs(60), async || {
            let pod = bed.api::<Pod>().get(NAME).await?;
            let status = pod.status.unwrap_or_default();
            let ready = status.conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
            Ok(status.pod_ip.filter(|_| ready))
        })
        .await?;
        Ok(Self { bed, ip })
    }

    /// Its address for a manifest: `mqtt://mosquitto.NAMESPACE.svc:PORT`.
    #[must_use]
    pub fn url(&self, port: u16) -> String {
        format!("mqtt://{NAME}.{}.svc:{port}", self.bed.namespace)
    }

    /// One of its counters, such as `publish/messages/received`: the value it last published under `$SYS/broker/`, at most a
    /// second old.
    ///
    /// # Errors
    /// When there is no such topic within 5 s, or its value is no number.
    pub async fn sys(&self, topic: &str) -> Result<u64> {
        let topic = format!("$SYS/broker/{topic}");
        let args = ["exec", NAME, "--", "mosquitto_sub", "-p", "1885", "-t", &topic, "-C", "1", "-W", "5"];
        let said = self.bed.kubectl(args).output().await?;
        said.trim().parse().with_context(|| format!("{topic} is {said:?}"))
    }

    /// One of its counters, once it no longer moves: two readings more than its interval apart are the same.
    ///
    /// # Errors
    /// As for [`Self::sys`], and when it still moves after 30 s.
    pub async fn settled(&self, topic: &str) -> Result<u64> {
        let mut last = None;
        eventually(&format!("{topic} to stand still"), Duration::from_secs(30), async || {
            tokio::time::sleep(Duration::from_millis(1200)).await;
            let now = self.sys(topic).await?;
            Ok((last.replace(now) == Some(now)).then_some(now))
        })
        .await
    }

    /// Its log since its (last) start: who connected, and how each left.
    ///
    /// # Errors
    /// When the API server cannot get it.
    pub async fn log(&self) -> Result<String> {
        self.bed.kubectl(["logs", NAME]).output().await
    }

    /// Its process, to be killed (it starts again under the same address) or held still.
    ///
    /// # Errors
    /// When the cluster is not one of ours.
    pub async fn process(&self) -> Result<PodProcess> {
        PodProcess::find(&self.bed.api::<Pod>().get(NAME).await?, "mosquitto")
    }
}

fn manifest(image: &str, config: &str) -> serde_json::Value {
    let configuration = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME},
        "data": {"mosquitto.conf": config, "passwords": PASSWORDS},
    });
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": NAME},
        "spec": {"selector": {"app": NAME}, "ports": [
            {"name": "mqtt", "port": 1883}, {"name": "mqtt-auth", "port": 1884},
        ]},
    });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": NAME, "labels": {"app": NAME}},
        "spec": {
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": NAME, "image": image, "imagePullPolicy": "IfNotPresent",
                "command": ["/usr/sbin/mosquitto", "-c", "/etc/mosquitto/mosquitto.conf"],
                "startupProbe": {"tcpSocket": {"port": 1885}, "periodSeconds": 1, "failureThreshold": 60},
                "securityContext": {
                    "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": [{"name": "config", "mountPath": "/etc/mosquitto"}],
            }],
            "volumes": [{"name": "config", "configMap": {"name": NAME}}],
        },
    });
    json!({"apiVersion": "v1", "kind": "List", "items": [configuration, service, pod]})
}
