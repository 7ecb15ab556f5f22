//! The cluster itself does what the other tests take for granted.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use mqtt_loadtest_e2e::{AuditLog, Capture, Command, Lane, Mosquitto, PacketType, Sender, TestBed, eventually, test_bed};
use serde_json::{Value, json};

/// A pod's specification that the restricted Pod Security Standard admits, made of the mosquitto image.
fn restricted(image: &str, command: &[&str]) -> Value {
    json!({
        "restartPolicy": "Never",
        "automountServiceAccountToken": false,
        "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{
            "name": "main", "image": image, "imagePullPolicy": "IfNotPresent", "command": command,
            "resources": {"limits": {"cpu": "500m", "memory": "32Mi"}},
            "securityContext": {
                "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]},
            },
        }],
    })
}

async fn run_job(bed: &TestBed, name: &str, completions: u32, command: &[&str]) -> Result<Job> {
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
        "spec": {
            "completions": completions, "parallelism": completions, "completionMode": "Indexed", "backoffLimit": 0,
            "template": {"spec": restricted(&bed.cluster.mosquitto_image(), command)},
        },
    });
    bed.apply(job.to_string()).await?;
    eventually(&format!("job {name} to end"), Duration::from_secs(60), async || {
        let job = bed.api::<Job>().get(name).await?;
        let ended = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let ended = ended.filter(|c| c.status == "True" && ["Complete", "Failed"].contains(&c.type_.as_str())).count() > 0;
        Ok(ended.then_some(job))
    })
    .await
}

fn completed(job: &Job) -> Option<&str> {
    job.status.as_ref()?.completed_indexes.as_deref()
}

#[tokio::test]
async fn all_nodes_are_ready() -> Result<()> {
    test_bed("nodes", Lane::Shared, async |bed| {
        let nodes: Api<Node> = Api::all(bed.client.clone());
        let nodes = nodes.list(&kube::api::ListParams::default()).await?;
        ensure!(!nodes.items.is_empty());
        for node in nodes {
            let status = node.status.context("a status")?;
            ensure!(status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True"));
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_restricted_indexed_job_reaches_a_broker_by_its_service_name() -> Result<()> {
    test_bed("indexed", Lane::Shared, async |bed| {
        let broker = Mosquitto::start(bed).await?;
        let host = format!("mosquitto.{}.svc", bed.namespace);
        let publish = ["/usr/bin/mosquitto_pub", "-h", &host, "-q", "1", "-t", "smoke/$(JOB_COMPLETION_INDEX)", "-m", "here"];
        let job = run_job(bed, "publishers", 4, &publish).await?;
        ensure!(completed(&job) == Some("0-3"), "{:?}", job.status);
        assert_eq!(broker.settled("publish/messages/received").await?, 4);
        let log = broker.log().await?;
        assert_eq!(log.matches("on port 1883.").count() - log.matches("listen socket on port 1883.").count(), 4, "{log}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_broker_tells_the_right_password_from_a_wrong_one() -> Result<()> {
    test_bed("password", Lane::Shared, async |bed| {
        Mosquitto::start(bed).await?;
        let host = format!("mosquitto.{}.svc", bed.namespace);
        for (password, expected) in [("secret", Some("0")), ("wrong", None)] {
            let command = [
                "/usr/bin/mosquitto_pub",
                "-h",
                &host,
                "-p",
                "1884",
                "-u",
                "loadtest",
                "-P",
                password,
                "-t",
                "t",
                "-m",
                "m",
                "-q",
                "1",
            ];
            let job = run_job(bed, &format!("with-{password}"), 1, &command).await?;
            assert_eq!(completed(&job).filter(|indexes| !indexes.is_empty()), expected, "{password}");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_name_outside_the_cluster_does_not_exist() -> Result<()> {
    test_bed("names", Lane::Shared, async |bed| {
        let command = ["/usr/bin/mosquitto_pub", "-h", "broker.example.com", "-t", "t", "-m", "m"];
        let job = run_job(bed, "lost", 1, &command).await?;
        ensure!(completed(&job).is_none_or(str::is_empty), "{:?}", job.status);
        let log = bed.kubectl(["logs", "job/lost"]).output().await?;
        ensure!(
            log.contains("Unable to connect") || log.contains("Lookup error") || log.contains("Name or service not known"),
            "{log}"
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn nothing_leaves_for_an_address_outside_the_cluster() -> Result<()> {
    test_bed("blackhole", Lane::Shared, async |bed| {
        bed.cluster.state()?;
        let broker = Mosquitto::start(bed).await?;
        // An address reserved for documentation (RFC 5737), of a subnet this machine may have a route to.
        let outside = ["192.0.2.1", "198.51.100.1", "10.99.0.1", "172.16.0.1", "8.8.8.8"];
        for address in outside {
            let route = Command::new("ip").args(["route", "get", address, "from", &broker.ip, "iif", "mlt0"]).output().await;
            ensure!(route.is_err(), "this machine would forward to {address}: {route:?}");
            for netns in ["mlt-node-1", "mlt-node-2"] {
                if std::path::Path::new("/run/netns").join(netns).exists() {
                    let route = Command::new("ip").args(["-n", netns, "route", "get", address]).output().await;
                    ensure!(route.is_err(), "{netns} has a route to {address}: {route:?}");
                }
            }
        }
        // And as a pod sees it: no answer, of whatever kind.
        let connect = ["in-pod-net", &broker.ip, "curl", "--silent", "--max-time", "2", "http://192.0.2.1:1883/"];
        let error = bed.cluster.script(connect).output().await.expect_err("nobody answers");
        ensure!(format!("{error:#}").contains("exit status: 28"), "not a time-out: {error:#}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_capture_at_the_broker_sees_every_packet() -> Result<()> {
    test_bed("capture", Lane::Shared, async |bed| {
        let broker = Mosquitto::start(bed).await?;
        let capture = Capture::start(bed.cluster, &broker.ip, 1883).await?;
        let host = format!("mosquitto.{}.svc", bed.namespace);
        let publish = ["/usr/bin/mosquitto_pub", "-h", &host, "-q", "1", "-t", "t", "-m", "hello", "--repeat", "20"];
        run_job(bed, "publishers", 3, &publish).await?;
        let flows = capture.stop().await?;
        assert_eq!(flows.opened.len(), 3);
        assert_eq!(flows.of(Sender::Client, PacketType::Connect).count(), 3);
        assert_eq!(flows.of(Sender::Broker, PacketType::Connack).count(), 3);
        assert_eq!(flows.of(Sender::Client, PacketType::Publish).count(), 60);
        assert_eq!(flows.of(Sender::Broker, PacketType::Puback).count(), 60);
        assert_eq!(flows.of(Sender::Client, PacketType::Disconnect).count(), 3);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_killed_broker_comes_back_under_its_address() -> Result<()> {
    test_bed("restart", Lane::Shared, async |bed| {
        let broker = Mosquitto::start(bed).await?;
        broker.process().await?.kill()?;
        eventually("a restarted broker to answer", Duration::from_secs(30), async || {
            let restarts = bed.kubectl([
                "get",
                "pod",
                "mosquitto",
                "-o",
                "jsonpath={.status.containerStatuses[0].restartCount} {.status.podIP}",
            ]);
            let restarted = restarts.output().await? == format!("1 {}", broker.ip);
            Ok((restarted && broker.sys("clients/connected").await.is_ok()).then_some(()))
        })
        .await
    })
    .await
}

#[tokio::test]
async fn the_audit_log_counts_what_an_account_writes() -> Result<()> {
    test_bed("audit", Lane::Shared, async |bed| {
        let log = AuditLog::from_now(bed.cluster)?;
        let account = format!("system:serviceaccount:{}:default", bed.namespace);
        let token = bed.kubectl(["create", "token", "default"]).output().await?;
        // It may do nothing, and asks for two things nevertheless, one of them a write.
        for args in [&["get", "pods"][..], &["create", "configmap", "mine"]] {
            let token = format!("--token={}", token.trim());
            let server = bed.cluster.kubectl(["config", "view", "-o", "jsonpath={.clusters[0].cluster.server}"]).output().await?;
            let kubectl =
                bed.kubectl(["--kubeconfig=/dev/null", "--insecure-skip-tls-verify", "--server", &server, &token]).args(args);
            let refused = kubectl.output().await.expect_err("no rights");
            ensure!(format!("{refused:#}").contains("forbidden"), "{refused:#}");
        }
        let events = eventually("two audit events", Duration::from_secs(10), async || {
            let events = log.of(&account)?;
            Ok((events.iter().filter(|e| e.is_about("pods") || e.is_about("configmaps")).count() == 2).then_some(events))
        })
        .await?;
        let writes: Vec<_> = events.iter().filter(|event| event.is_write()).collect();
        assert_eq!(writes.len(), 1, "{events:?}");
        assert_eq!(writes[0].response_status.as_ref().map(|status| status.code), Some(403));
        Ok(())
    })
    .await
}
