//! Whole worker processes against a real mosquitto: what it counts is what we count, to the message.

#![allow(clippy::unwrap_used)]

mod support;

use mqtt_loadtest_worker::accounting::{Counter, Gauge, Snapshot, Stage, laws};
use serde_json::json;
use support::{Broker, Worker, plan};

fn assert_laws(snapshot: &Snapshot) {
    let open: Vec<_> = laws::residuals(snapshot).into_iter().filter(|r| r.residual != 0).collect();
    assert!(open.is_empty(), "{open:?}");
}

/// One group of clients that publish and subscribe on a topic of their own.
fn echo(qos: u8, size: u32, protocol: &str, broker: &Broker) -> Snapshot {
    let plan = plan(
        json!({"endpoints": [broker.url()], "protocolVersion": protocol}),
        json!([{"name": "echo", "clients": 50, "connect": {"ratePerSecond": 1000},
            "publish": [{"name": "p", "topic": "bench/%i", "qos": qos, "payload": {"size": size}, "ratePerSecond": 500}],
            "subscribe": [{"name": "s", "filter": "bench/%i", "qos": qos}]}]),
        json!({"duration": "2s", "drain": "20s"}),
    );
    Worker::start(&plan, 0, 0, &[]).whole_run(2.0)
}

fn check_echo(qos: u8, size: u32, protocol: &str) {
    let broker = Broker::start("");
    let s = echo(qos, size, protocol, &broker);
    let what = format!("QoS {qos}, {size} B, MQTT {protocol}: {}", mqtt_loadtest_worker::shard::Shard::summary_line(&s));
    assert_laws(&s);
    assert_eq!(s.get(Counter::Planned), 1000, "{what}");
    assert_eq!(s.get(Counter::sent(qos)), 1000, "{what}");
    assert_eq!(if qos == 0 { s.get(Counter::Fenced) } else { s.get(Counter::Acked) }, 1000, "{what}");
    assert_eq!(s.get(Counter::Received), 1000, "{what}");
    assert_eq!((s.get(Counter::ExpectedMin), s.get(Counter::ExpectedMax)), (1000, 1000), "{what}");
    assert_eq!(s.get(Counter::Duplicates) + s.get(Counter::OutOfOrder), 0, "{what}");
    let has_header = size >= 32 || protocol == "5";
    let deliveries = laws::deliveries(&s, 0);
    assert_eq!((deliveries.lost_max, deliveries.surplus), (0, 0), "{what}");
    assert_eq!(deliveries.fingerprints_agree, has_header.then_some(true), "{what}");
    assert_eq!(s.histogram(Stage::EndToEnd).count(), if has_header { 1000 } else { 0 }, "{what}");
    assert_eq!(s.histogram(Stage::PublishAck).count(), if qos == 0 { 0 } else { 1000 }, "{what}");
    assert_eq!(s.total("disconnects") + s.total("connects_failed"), 0, "{what}");
    assert_eq!(s.gauge(Gauge::ClientsConnected), 0, "{what}");
    let (received, sent) = broker.counts();
    assert_eq!(sent, 1000, "{what}");
    if qos < 2 {
        // mosquitto 2.0.11 leaves QoS 2 out of this count.
        assert_eq!(received, 1000, "{what}");
    }
}

#[test]
fn every_message_of_every_qos_and_version_is_counted_as_mosquitto_counts_it() {
    std::thread::scope(|scope| {
        for protocol in ["3.1.1", "5"] {
            for (qos, size) in [(0, 16), (0, 100), (1, 16), (1, 100), (2, 16), (2, 100)] {
                scope.spawn(move || check_echo(qos, size, protocol));
            }
        }
    });
}
