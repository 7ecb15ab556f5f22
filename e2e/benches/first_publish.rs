//! How long it takes from apply to the first PUBLISH, on a warm cluster: 1,000 clients that connect at 2,000/s, without settling.
//! The end is read from a packet capture at the broker, not from our own figures. Prints a table; judges nothing but the
//! run's verdict. `make bench-start`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use mqtt_loadtest_crds::status::Verdict;
use mqtt_loadtest_e2e::{Capture, Lane, LoadTest, Mosquitto, Operator, PacketType, Sender, TestBed, test_bed};
use serde_json::{Value, json};

/// One more than is reported: the first run finds cold caches.
const RUNS: usize = 6;

fn spec(endpoint: &str) -> Value {
    json!({
        "broker": {"endpoints": [endpoint], "protocolVersion": "5"},
        "groups": [{
            "name": "devices", "clients": 1000, "clientId": "device-%i", "connect": {"ratePerSecond": 2000},
            "publish": [{"name": "telemetry", "topic": "bench/%i", "qos": 1, "payload": {"size": "1Ki"}, "interval": "1s"}],
            "shards": {"count": 2},
        }],
        "load": {"duration": "2s", "drain": "5s", "barrier": {"settle": "0s"}},
    })
}

/// Seconds from apply to the first PUBLISH, to the first SYN and to the last CONNACK.
async fn run(bed: &TestBed, broker: &Mosquitto<'_>, number: usize) -> Result<[f64; 3]> {
    let capture = Capture::start(bed.cluster, &broker.ip, 1883).await?;
    let applied = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let test = LoadTest::apply(bed, &format!("start-{number}"), spec(&broker.url(1883))).await?;
    let status = test.finished(Duration::from_secs(120)).await?;
    ensure!(status.verdict == Some(Verdict::Passed), "{}: {}", status.reason, status.message);
    let flows = capture.stop().await?;
    let publish = flows.of(Sender::Client, PacketType::Publish).map(|p| p.at).min().context("no PUBLISH")?;
    let syn = flows.opened.iter().map(|(at, _)| *at).min().context("no SYN")?;
    let connack = flows.of(Sender::Broker, PacketType::Connack).map(|p| p.at).max().context("no CONNACK")?;
    Ok([syn, connack, publish].map(|at| (at - applied).as_secs_f64()))
}

#[tokio::main]
async fn main() -> Result<()> {
    test_bed("start", Lane::Alone, async |bed| {
        Operator::installed(bed).await?;
        let broker = Mosquitto::start(bed).await?;
        println!("from apply, in seconds     first SYN   last CONNACK   first PUBLISH");
        let mut publishes = Vec::new();
        for number in 0..RUNS {
            let [syn, connack, publish] = run(bed, &broker, number).await?;
            let note = if number == 0 { "  (warm-up)" } else { "" };
            println!("run {number}                      {syn:9.2} {connack:14.2} {publish:15.2}{note}");
            if number > 0 {
                publishes.push(publish);
            }
        }
        publishes.sort_by(f64::total_cmp);
        println!("median of {}: {:.2} s to the first PUBLISH", publishes.len(), publishes[publishes.len() / 2]);
        Ok(())
    })
    .await
}
