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
    // Before the first failure it is False too.
    let early = ["NotReleased", "Connecting"].contains(&condition.reason.as_str());
    (!early).then(|| format!("{}: {}", condition.reason, condition.message))
}

/// Why clients are not connected, told within 10 s of the moment at which they may begin to connect.
async fn told_soon(test: &LoadTest<'_>) -> Result<String> {
    let released = |status: &MqttLoadTestStatus| status.run.as_ref().is_some_and(|run| run.released_at.is_some());
    test.until("the release of the connects", Duration::from_secs(60), released).await?;
    let told = test.until("ClientsConnected=False", Duration::from_secs(10), |status| not_connected(status).is_some()).await?;
    Ok(not_connected(&told).unwrap_or_default())
}

/// Failed, and says which share of the clients failed.
fn all_failed(status: &MqttLoadTestStatus) -> Result<()> {
    ensure!(status.verdict == Some(Verdict::Failed), "{:?}: {}", status.verdict, status.message);
    ensure!(status.message.contains("100 %"), "no share in {:?}", status.message);
    Ok(())
}

#[tokio::test]
async fn a_wrong_password_ends_the_run_at_once_with_the_brokers_reason() -> Result<()> {
    test_bed("wrong-password", Lane::Shared, async |bed| {
        Operator::installed(bed).await?;
        let broker = Mosquitto::start(bed).await?;
        bed.apply(
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "login"}, "stringData": {"password": "wrong"}})
                .to_string(),
        )
        .await?;
        let mut spec = spec::devices(&broker.url(1884), 10, 1, 5, 0);
        let from = json!({"secret": {"name": "login", "key": "password"}});
        spec["broker"]["credentials"] = json!({"username": "loadtest", "passwordFrom": from});
        let test = LoadTest::apply(bed, "wrong-password", spec).await?;
        let reason = told_soon(&test).await?;
        ensure!(reason.contains("NotAuthorized"), "{reason}");
        // No retry cures it: the run does not wait for the barrier's timeout of a minute.
        all_failed(&test.finished(Duration::from_secs(15)).await?)
    })
    .await
}

#[tokio::test]
async fn the_right_password_from_a_secret_lets_every_client_in() -> Result<()> {
    test_bed("right-password", Lane::Shared, async |bed| {
        Operator::installed(bed).await?;
        let broker = Mosquitto::start(bed).await?;
        bed.apply(
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "login"}, "stringData": {"password": "secret"}})
                .to_string(),
        )
        .await?;
        let mut spec = spec::devices(&broker.url(1884), 10, 1, 3, 0);
        let from = json!({"secret": {"name": "login", "key": "password"}});
        spec["broker"]["credentials"] = json!({"username": "loadtest", "passwordFrom": from});
        let test = LoadTest::apply(bed, "right-password", spec).await?;
        let status = test.finished(Duration::from_secs(90)).await?;
        ensure!(status.verdict == Some(Verdict::Passed), "{:?}: {}", status.verdict, status.message);
        assert_eq!(broker.settled("publish/messages/received").await?, 30);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_unknown_host_is_told_within_seconds() -> Result<()> {
    test_bed("unknown-host", Lane::Shared, async |bed| {
        Operator::installed(bed).await?;
        let mut spec = spec::devices("mqtt://no-such.broker.example:1883", 10, 1, 5, 0);
        spec["load"]["barrier"]["timeout"] = json!("15s");
        let test = LoadTest::apply(bed, "unknown-host", spec).await?;
        let reason = told_soon(&test).await?.to_lowercase();
        ensure!(["host", "dns", "resol"].iter().any(|word| reason.contains(word)), "{reason}");
        all_failed(&test.finished(Duration::from_secs(45)).await?)
    })
    .await
}

#[tokio::test]
async fn a_refused_connection_is_told_within_seconds() -> Result<()> {
    test_bed("refused", Lane::Shared, async |bed| {
        Operator::installed(bed).await?;
        let broker = Mosquitto::start(bed).await?;
        let mut spec = spec::devices(&format!("mqtt://{}:1999", broker.ip), 10, 1, 5, 0);
        spec["load"]["barrier"]["timeout"] = json!("15s");
        let test = LoadTest::apply(bed, "refused", spec).await?;
        let reason = told_soon(&test).await?;
        ensure!(reason.to_lowercase().contains("refused"), "{reason}");
        all_failed(&test.finished(Duration::from_secs(45)).await?)
    })
    .await
}

#[tokio::test]
async fn an_image_that_cannot_be_pulled_says_so_and_fails_at_the_start_timeout() -> Result<()> {
    test_bed("image", Lane::Alone, async |bed| {
        let operator = Operator::installed(bed).await?;
        // The worker's image is the operator's setting: another one, for this test alone.
        operator.install(["--set", "worker.image.repository=localhost/no-such-worker"]).await?;
        let mut spec = spec::devices("mqtt://broker:1883", 10, 1, 5, 0);
        spec["load"]["startTimeout"] = json!("20s");
        let run = async {
            let test = LoadTest::apply(bed, "image", spec).await?;
            test.until("the kubelet's words", Duration::from_secs(18), |s| s.message.contains("Pull")).await?;
            let status = test.finished(Duration::from_secs(60)).await?;
            anyhow::Ok((test, status))
        };
        let outcome = run.await;
        operator.install([]).await?;
        let (test, status) = outcome?;
        assert_eq!(status.verdict, Some(Verdict::Inconclusive), "{}", status.message);
        ensure!(status.message.contains("Pull"), "{}", status.message);
        test.leaves_nothing(Duration::from_secs(30)).await
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
            ("/groups/0/publish/0/payload", json!({"size": "99999999999999999999"}), "size"),
            ("/groups/0/connect", json!({"ratePerSecond": "0.0"}), "ratePerSecond"),
            ("/groups/0/connect", json!({"ratePerSecond": 100_000_001}), "ratePerSecond"),
            ("/load/duration", json!("8761h"), "365 days"),
            ("/load/duration", json!("99999999999h"), "duration"),
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
