//! A run does what was asked, counts it exactly, and leaves a verdict and nothing else.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use mqtt_loadtest_crds::status::{MqttLoadTestStatus, Phase, Verdict};
use mqtt_loadtest_e2e::{
    AuditEvent, AuditLog, Capture, Lane, LoadTest, Mosquitto, Operator, PacketType, PodRecorder, Sender, condition, test_bed,
};
use mqtt_loadtest_worker::accounting::{Counter, summary};
use serde_json::json;

use crate::spec;

const START: Duration = Duration::from_secs(60);

fn passed(status: &MqttLoadTestStatus) -> Result<()> {
    let s = status;
    ensure!(s.verdict == Some(Verdict::Passed), "{:?}, {}: {}\n{:#?}", s.verdict, s.reason, s.message, s.messages);
    ensure!(s.phase == Some(Phase::Completed));
    Ok(())
}

/// The acceptance of the whole: 120,000 messages from four pods, each of them delivered to ten subscribers.
#[tokio::test]
async fn two_thousand_clients_are_counted_to_the_message() -> Result<()> {
    test_bed("exact", Lane::Alone, async |bed| {
        Operator::installed(bed).await?;
        let broker = Mosquitto::start(bed).await?;
        let pods = PodRecorder::start(bed);
        let test = LoadTest::apply(bed, "exact", spec::devices(&broker.url(1883), 2000, 4, 60, 10)).await?;
        let status = test.finished(Duration::from_secs(180)).await?;
        passed(&status)?;

        let counted = broker.settled("publish/messages/received").await?;
        let m = &status.messages;
        assert_eq!((m.scheduled, m.sent, m.acked), (120_000, 120_000, 120_000));
        assert_eq!(counted, 120_000, "what the broker received");
        assert_eq!((m.expected_min, m.expected_max, m.received, m.unique), (1_200_000, 1_200_000, 1_200_000, 1_200_000));
        assert_eq!(m.lost, "0");
        assert_eq!(status.clients.failed, 0);

        // What the pods themselves said at their end adds up to the same.
        let ended = pods.ended();
        assert_eq!(ended.iter().filter(|pod| pod.exit_code == 0).count(), 5, "{ended:?}");
        let mut sums = HashMap::new();
        for pod in ended.iter().filter(|pod| pod.exit_code == 0) {
            let counts = summary::decode(&pod.message).with_context(|| format!("{}: {}", pod.name, pod.message))?;
            *sums.entry("sent").or_insert(0) += counts.total("sent");
            *sums.entry("acked").or_insert(0) += counts.get(Counter::Acked);
            *sums.entry("unique").or_insert(0) += counts.get(Counter::Unique);
        }
        assert_eq!(sums, HashMap::from([("sent", 120_000), ("acked", 120_000), ("unique", 1_200_000)]));

        test.leaves_nothing(Duration::from_secs(30)).await
    })
    .await
}

#[tokio::test]
async fn all_shards_start_together_and_none_before_the_last_client_is_ready() -> Result<()> {
    test_bed("together", Lane::Alone, async |bed| {
        Operator::installed(bed).await?;
        let broker = Mosquitto::start(bed).await?;
        let capture = Capture::start(bed.cluster, &broker.ip, 1883).await?;
        let test = LoadTest::apply(bed, "together", spec::devices(&broker.url(1883), 400, 4, 10, 2)).await?;
        passed(&test.finished(Duration::from_secs(120)).await?)?;
        let flows = capture.stop().await?;

        let mut first: HashMap<IpAddr, Duration> = HashMap::new();
        for publish in flows.of(Sender::Client, PacketType::Publish) {
            first.entry(publish.client.ip()).or_insert(publish.at);
        }
        assert_eq!(first.len(), 4, "pods that publish: {first:?}");
        let (earliest, latest) = (first.values().min().context("four")?, first.values().max().context("four")?);
        let spread = *latest - *earliest;
        ensure!(spread <= Duration::from_millis(100), "the first publishes of the shards are {spread:?} apart");

        let ready = [PacketType::Connack, PacketType::Suback].map(|kind| flows.of(Sender::Broker, kind).last().map(|p| p.at));
        let ready = ready.into_iter().flatten().max().context("clients connected")?;
        ensure!(*earliest > ready, "a publish came {:?} before the last client was ready", ready - *earliest);
        assert_eq!(flows.of(Sender::Broker, PacketType::Connack).count(), 402);
        assert_eq!(flows.of(Sender::Client, PacketType::Publish).count(), 4000);
        assert_eq!(flows.of(Sender::Client, PacketType::Disconnect).count(), 402);
        // The connects follow the asked rate over both groups' ramps: 400 at 500/s.
        let devices: Vec<_> = flows.opened.iter().filter(|(_, client)| first.contains_key(&client.ip())).collect();
        let ramp = devices.last().context("SYNs")?.0 - devices[0].0;
        ensure!((Duration::from_millis(760)..Duration::from_millis(1000)).contains(&ramp), "400 at 500/s took {ramp:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn kubectl_wait_returns_for_every_verdict() -> Result<()> {
    test_bed("verdicts", Lane::Shared, async |bed| {
        Operator::installed(bed).await?;
        let broker = Mosquitto::start(bed).await?;
        let wait = async |name: &str, condition: &str, timeout: &str| {
            let condition = format!("--for=condition={condition}");
            let timeout_flag = format!("--timeout={timeout}");
            bed.kubectl(["wait", &format!("mqttloadtest/{name}"), &condition, &timeout_flag])
                .deadline(Duration::from_secs(150))
                .output()
                .await
        };
        LoadTest::apply(bed, "good", spec::small(&broker)).await?;
        // Nobody listens there: the broker refuses every client.
        LoadTest::apply(bed, "bad", spec::devices(&broker.url(1884), 5, 1, 3, 0)).await?;
        wait("good", "Finished", "90s").await?;
        wait("good", "Complete", "1s").await?;
        ensure!(wait("good", "Failed", "1s").await.is_err());
        wait("bad", "Finished", "90s").await?;
        wait("bad", "Failed", "1s").await?;
        ensure!(wait("bad", "Complete", "1s").await.is_err());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_run_starts_again_for_another_run_id_and_not_for_a_label_or_a_ttl() -> Result<()> {
    test_bed("again", Lane::Shared, async |bed| {
        Operator::installed(bed).await?;
        let broker = Mosquitto::start(bed).await?;
        let test = LoadTest::apply(bed, "again", spec::small(&broker)).await?;
        let first = test.finished(Duration::from_secs(90)).await?;
        passed(&first)?;
        let id = |status: &MqttLoadTestStatus| status.run.as_ref().map(|run| run.id.clone());

        test.patch(json!({"metadata": {"labels": {"some": "label"}}, "spec": {"reportTTLSeconds": 1000}})).await?;
        let same = test.finished(Duration::from_secs(20)).await?;
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!((id(&same), id(&test.status().await?)), (id(&first), id(&first)));

        test.patch(json!({"spec": {"runId": "2"}})).await?;
        let second = test.finished(Duration::from_secs(90)).await?;
        passed(&second)?;
        assert_ne!(id(&second), id(&first));
        assert_eq!(second.history.first().map(|run| run.id.clone()), id(&first));
        assert_eq!(broker.settled("publish/messages/received").await?, 120, "two runs of 60 messages");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_edit_in_mid_run_waits_for_its_turn() -> Result<()> {
    test_bed("edit", Lane::Shared, async |bed| {
        Operator::installed(bed).await?;
        let broker = Mosquitto::start(bed).await?;
        let test = LoadTest::apply(bed, "edit", spec::devices(&broker.url(1883), 20, 1, 10, 1)).await?;
        let running = test.in_phase(Phase::Running, START).await?;
        let first = running.run.context("a run")?.id;
        test.patch(json!({"spec": {"load": {"duration": "3s"}}})).await?;
        let pending =
            test.until("SpecPending", Duration::from_secs(10), |status| condition(status, "SpecPending") == Some("True")).await?;
        assert_eq!(pending.phase, Some(Phase::Running), "the run goes on");
        assert_eq!(pending.observed_generation, running.observed_generation);

        let second = test.finished(Duration::from_secs(120)).await?;
        passed(&second)?;
        assert_eq!(second.messages.sent, 60, "the new spec: 20 messages a second for 3 s");
        let before = second.history.first().context("the first run is in the history")?;
        assert_eq!((before.id.as_str(), before.verdict, before.sent), (first.as_str(), Some(Verdict::Passed), 200));
        ensure!(condition(&second, "SpecPending") != Some("True"));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_run_writes_its_status_rarely_and_an_idle_operator_asks_for_nothing() -> Result<()> {
    test_bed("quiet", Lane::Alone, async |bed| {
        Operator::installed(bed).await?;
        let broker = Mosquitto::start(bed).await?;
        let log = AuditLog::from_now(bed.cluster)?;
        let test = LoadTest::apply(bed, "quiet", spec::devices(&broker.url(1883), 20, 1, 60, 1)).await?;
        test.in_phase(Phase::Running, START).await?;
        let writes = || -> Result<usize> {
            let events = log.of(&Operator::username())?;
            let ours = |event: &&AuditEvent| event.object_ref.as_ref().is_some_and(|object| object.namespace == bed.namespace);
            let status = |event: &&AuditEvent| event.is_write() && event.is_about("mqttloadtests");
            Ok(events.iter().filter(ours).filter(status).count())
        };
        let before = writes()?;
        tokio::time::sleep(Duration::from_secs(50)).await;
        // One every 10 s at most, and a change of phase or two.
        let written = writes()? - before;
        ensure!(written <= 7, "{written} status writes in 50 s");
        passed(&test.finished(Duration::from_secs(60)).await?)?;
        test.leaves_nothing(Duration::from_secs(30)).await?;

        // What it still does for the run that ended is done after some seconds.
        tokio::time::sleep(Duration::from_secs(10)).await;
        let idle = AuditLog::from_now(bed.cluster)?;
        tokio::time::sleep(Duration::from_secs(20)).await;
        let asked = idle.of(&Operator::username())?;
        let asked: BTreeSet<_> = asked
            .iter()
            .filter(|event| !event.is_about("leases") && event.verb != "watch")
            .map(|event| format!("{} {:?}", event.verb, event.object_ref))
            .collect();
        ensure!(asked.is_empty(), "an idle operator asked for {asked:#?}");
        Ok(())
    })
    .await
}
