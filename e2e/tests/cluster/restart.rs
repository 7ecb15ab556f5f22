//! The operator dies, or the test is deleted, while clients are at work.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use mqtt_loadtest_crds::status::{Phase, Verdict};
use mqtt_loadtest_e2e::{Capture, Lane, LoadTest, Mosquitto, Operator, PacketType, Sender, test_bed};
use serde_json::json;

use crate::spec;

async fn the_operator_deleted_in(phase: Phase) -> Result<()> {
    let name = format!("killed-{phase:?}").to_lowercase();
    test_bed(&name, Lane::Alone, async |bed| {
        let operator = Operator::installed(bed).await?;
        let broker = Mosquitto::start(bed).await?;
        let capture = Capture::start(bed.cluster, &broker.ip, 1883).await?;
        let mut spec = spec::devices(&broker.url(1883), 200, 2, 10, 1);
        // Long enough to be met in the phase.
        spec["groups"][0]["connect"]["ratePerSecond"] = json!(if phase == Phase::Connecting { 40 } else { 500 });
        let test = LoadTest::apply(bed, &name, spec).await?;
        test.in_phase(phase, Duration::from_secs(60)).await?;
        operator.delete_pods().await?;
        let status = test.finished(Duration::from_secs(120)).await?;
        ensure!(status.verdict == Some(Verdict::Passed), "{:?}, {}: {}", status.verdict, status.reason, status.message);
        let m = &status.messages;
        assert_eq!((m.scheduled, m.sent, m.acked, m.received), (2000, 2000, 2000, 2000));
        assert_eq!(broker.settled("publish/messages/received").await?, 2000);
        let flows = capture.stop().await?;
        let mut publishes = flows.of(Sender::Client, PacketType::Publish).map(|publish| publish.at);
        let first = publishes.next().context("publishes")?;
        let took = publishes.last().context("publishes")? - first;
        ensure!((9..=11).contains(&took.as_secs()) && took <= Duration::from_secs(11), "10 s were asked for, it took {took:?}");
        test.leaves_nothing(Duration::from_secs(30)).await
    })
    .await
}

#[tokio::test]
async fn the_operator_deleted_while_clients_connect_changes_no_count() -> Result<()> {
    the_operator_deleted_in(Phase::Connecting).await
}

#[tokio::test]
async fn the_operator_deleted_while_clients_publish_changes_no_count() -> Result<()> {
    the_operator_deleted_in(Phase::Running).await
}

#[tokio::test]
async fn the_operator_deleted_while_clients_drain_changes_no_count() -> Result<()> {
    the_operator_deleted_in(Phase::Draining).await
}

#[tokio::test]
async fn a_deleted_test_is_gone_with_everything_and_its_clients_say_goodbye() -> Result<()> {
    test_bed("deleted", Lane::Alone, async |bed| {
        Operator::installed(bed).await?;
        let broker = Mosquitto::start(bed).await?;
        let capture = Capture::start(bed.cluster, &broker.ip, 1883).await?;
        let test = LoadTest::apply(bed, "deleted", spec::devices(&broker.url(1883), 200, 2, 300, 1)).await?;
        test.in_phase(Phase::Running, Duration::from_secs(60)).await?;
        test.delete().await?;
        test.leaves_nothing(Duration::from_secs(30)).await?;
        let flows = capture.stop().await?;
        assert_eq!(flows.of(Sender::Client, PacketType::Disconnect).count(), 201);
        // Mosquitto's words for a connection that ends without one; the startup probe's has no name.
        let log = broker.log().await?;
        let dead = log.lines().filter(|line| line.contains("closed its connection") && !line.contains("<unknown>"));
        assert_eq!(dead.collect::<Vec<_>>(), Vec::<&str>::new());
        Ok(())
    })
    .await
}
