//! What cannot work says so, in words and soon: specs, brokers, passwords, images, nodes.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use kube::api::ListParams;
use mqtt_loadtest_crds::status::{MqttLoadTestStatus, Phase, Verdict};
use mqtt_loadtest_e2e::{Lane, LoadTest, Mosquitto, Operator, condition, test_bed};
use serde_json::{Value, json};

use crate::spec;

/// Why clients are not connected, when the condition says so.
fn not_connected(status: &MqttLoadTestStatus) -> Option<String> {
    let condition = status.conditions.iter().find(|c| c.type_ == "ClientsConnected" && c.status == "False")?;
    (condition.reason != "Connecting").then(|| format!("{}: {}", condition.reason, condition.message))
}

/// All clients fail for a reason that no retry cures: the condition tells it, and the run ends at once.
async fn fails_at_once(name: &str, endpoint: impl Fn(&Mosquitto<'_>) -> String, change: Value, word: &str) -> Result<()> {
    test_bed(name, Lane::Shared, async |bed| {
        Operator::installed(bed).await?;
        let broker = Mosquitto::start(bed).await?;
        let mut spec = spec::devices(&endpoint(&broker), 10, 1, 5, 0);
        json_patch(&mut spec, change.clone());
        let test = LoadTest::apply(bed, name, spec).await?;
        test.in_phase(Phase::Connecting, Duration::from_secs(60)).await.or_else(|error| {
            // It may be over before anybody looked.
            if format!("{error:#}").contains("ended before") { Ok(MqttLoadTestStatus::default()) } else { Err(error) }
        })?;
        let told = test.until("ClientsConnected=False", Duration::from_secs(10), |s| not_connected(s).is_some()).await?;
        let reason = not_connected(&told).unwrap_or_default();
        ensure!(reason.to_lowercase().contains(word), "{reason:?} does not say {word:?}");
        let status = test.finished(Duration::from_secs(30)).await?;
        ensure!(status.verdict == Some(Verdict::Failed), "{:?}: {}", status.verdict, status.message);
        ensure!(status.message.contains("100 %") || status.message.contains("100%"), "no share in {:?}", status.message);
        Ok(())
    })
    .await
}

fn json_patch(target: &mut Value, change: Value) {
    match (target, change) {
        (Value::Object(target), Value::Object(change)) => {
            for (key, value) in change {
                json_patch(target.entry(key).or_insert(Value::Null), value);
            }
        }
        (target, change) => *target = change,
    }
}

#[tokio::test]
async fn a_wrong_password_ends_the_run_at_once_with_the_brokers_reason() -> Result<()> {
    let credentials = json!({"broker": {"credentials": {"username": "nobody"}}});
    fails_at_once("wrong-password", |broker| broker.url(1884), credentials, "not authorized").await
}

#[tokio::test]
async fn an_unknown_host_is_told_within_seconds() -> Result<()> {
    test_bed("unknown-host", Lane::Shared, async |bed| {
        Operator::installed(bed).await?;
        let test = LoadTest::apply(bed, "unknown-host", spec::devices("mqtt://no-such.broker.example:1883", 10, 1, 5, 0)).await?;
        let told = test.until("ClientsConnected=False", Duration::from_secs(30), |s| not_connected(s).is_some()).await?;
        let reason = not_connected(&told).unwrap_or_default();
        ensure!(reason.contains("no-such.broker.example") || reason.to_lowercase().contains("dns"), "{reason}");
        let status = test.finished(Duration::from_secs(90)).await?;
        ensure!(status.verdict == Some(Verdict::Failed), "{:?}: {}", status.verdict, status.message);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_refused_connection_is_told_within_seconds() -> Result<()> {
    test_bed("refused", Lane::Shared, async |bed| {
        Operator::installed(bed).await?;
        let broker = Mosquitto::start(bed).await?;
        let endpoint = format!("mqtt://{}:1999", broker.ip);
        let mut spec = spec::devices(&endpoint, 10, 1, 5, 0);
        spec["load"]["barrier"]["timeout"] = json!("10s");
        let test = LoadTest::apply(bed, "refused", spec).await?;
        let told = test.until("ClientsConnected=False", Duration::from_secs(30), |s| not_connected(s).is_some()).await?;
        let reason = not_connected(&told).unwrap_or_default();
        ensure!(reason.to_lowercase().contains("refused"), "{reason}");
        let status = test.finished(Duration::from_secs(60)).await?;
        ensure!(status.verdict == Some(Verdict::Failed), "{:?}: {}", status.verdict, status.message);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_api_server_refuses_what_the_schema_can_tell() -> Result<()> {
    test_bed("schema", Lane::Shared, async |bed| {
        Operator::installed(bed).await?;
        let good = spec::devices("mqtt://broker:1883", 10, 1, 5, 1);
        for (pointer, wrong, word) in [
            ("/groups/0/clientId", json!("same"), "%i"),
            ("/groups/0/publish/0/ratePerSecond", json!(5), "exactly one"),
            ("/groups/0/publish/0/topic", json!("a/%z"), "placeholder"),
            ("/groups/0/publish/0/topic", json!("a/#"), "wildcard"),
            ("/groups/0/publish/0/qos", json!(3), "qos"),
            ("/groups/0/clients", json!(0), "clients"),
            ("/load/duration", json!("1d"), "duration"),
            ("/broker/endpoints", json!([]), "endpoints"),
        ] {
            let mut spec = good.clone();
            let (parent, field) = pointer.rsplit_once('/').unwrap_or_default();
            spec.pointer_mut(parent).and_then(Value::as_object_mut).map(|object| object.insert(field.to_owned(), wrong));
            let refused = LoadTest::apply(bed, "wrong", spec).await.map(|_| ());
            let error = format!("{:#}", refused.expect_err(pointer));
            ensure!(error.contains(word), "{pointer}: {error}");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_invalid_spec_stalls_with_the_fields_path_and_makes_no_job() -> Result<()> {
    test_bed("invalid", Lane::Shared, async |bed| {
        Operator::installed(bed).await?;
        // Two groups whose client ids overlap: more than CEL can tell.
        let mut spec = spec::devices("mqtt://broker:1883", 10, 1, 5, 0);
        let mut twin = spec["groups"][0].clone();
        twin["name"] = json!("twins");
        spec["groups"] = json!([spec["groups"][0], twin]);
        let test = LoadTest::apply(bed, "invalid", spec).await?;
        let status = test.until("Stalled", Duration::from_secs(5), |s| condition(s, "Stalled") == Some("True")).await?;
        ensure!(status.message.contains("groups"), "no path in {:?}", status.message);
        assert_eq!((status.phase, status.verdict), (Some(Phase::Failed), None));
        assert_eq!(bed.api::<Job>().list(&ListParams::default()).await?.items.len(), 0);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_pod_that_no_node_takes_says_why_and_fails_at_the_start_timeout() -> Result<()> {
    test_bed("unschedulable", Lane::Shared, async |bed| {
        Operator::installed(bed).await?;
        let mut spec = spec::devices("mqtt://broker:1883", 10, 1, 5, 0);
        spec["groups"][0]["worker"] = json!({"nodeSelector": {"no": "such-node"}});
        spec["load"]["startTimeout"] = json!("20s");
        let test = LoadTest::apply(bed, "unschedulable", spec).await?;
        test.until("the scheduler's words", Duration::from_secs(15), |s| s.message.contains("node")).await?;
        let status = test.finished(Duration::from_secs(60)).await?;
        assert_eq!(status.verdict, Some(Verdict::Inconclusive), "{}", status.message);
        ensure!(status.message.contains("node"), "{}", status.message);
        test.leaves_nothing(Duration::from_secs(30)).await
    })
    .await
}
