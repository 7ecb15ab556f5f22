//! What goes wrong at the broker's side: each has its own name, is told soon, and loses no message from the books.

#![allow(clippy::unwrap_used)]

mod support;

use mqtt_loadtest_worker::accounting::{Counter, Gauge, Snapshot, laws};
use mqtt_loadtest_worker::protocol::ShardPhase;
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;
use support::{Broker, Worker, free_port, plan, wait_until};

fn assert_laws(snapshot: &Snapshot) {
    let open: Vec<_> = laws::residuals(snapshot).into_iter().filter(|r| r.residual != 0).collect();
    assert!(open.is_empty(), "{open:?}");
}

fn connect_only(url: &str, clients: u32) -> mqtt_loadtest_crds::plan::RunPlan {
    plan(
        json!({"endpoints": [url], "protocolVersion": "5", "credentials": {"username": "u"}}),
        json!([{"name": "g", "clients": clients, "connect": {"ratePerSecond": 1000, "timeout": "1s"}, "reconnect": {"minBackoff": "100ms"}}]),
        json!({"duration": "1s"}),
    )
}

/// Releases a worker, waits until a reason shows, stops it.
fn reason_of(plan: &mqtt_loadtest_crds::plan::RunPlan, extra: &[&str]) -> (Vec<(&'static str, u64)>, i64) {
    let worker = Worker::start(plan, 0, 0, extra);
    worker.release();
    wait_until("a reason", Duration::from_secs(10), || worker.snapshot().total("connects_failed") > 0);
    std::thread::sleep(Duration::from_millis(200));
    worker.stop("test");
    let (s, _) = worker.collect();
    assert_laws(&s);
    (s.by_label("connects_failed"), s.gauge(Gauge::ClientsFailed))
}

#[test]
fn a_wrong_password_is_incurable_and_counted_once_a_client() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("passwords");
    std::fs::write(&file, "").unwrap();
    let broker = Broker::start(&format!("allow_anonymous false\npassword_file {}", file.display()));
    let (reasons, failed) = reason_of(&connect_only(&broker.url(), 20), &[]);
    let expected = ["badUserNameOrPassword", "notAuthorized"];
    assert!(reasons.len() == 1 && expected.contains(&reasons[0].0) && reasons[0].1 == 20, "{reasons:?}");
    assert_eq!(failed, 20);
}

#[test]
fn a_refused_connection_is_tried_again() {
    let (reasons, failed) = reason_of(&connect_only(&format!("mqtt://127.0.0.1:{}", free_port()), 5), &[]);
    assert_eq!(reasons[0].0, "tcpRefused");
    assert!(reasons[0].1 > 5, "tried again: {reasons:?}");
    assert_eq!(failed, 0);
}

#[test]
fn an_unknown_host_is_told_by_name() {
    // RFC 2606 reserves .invalid; without a name server the failure has the other name.
    let (reasons, _) = reason_of(&connect_only("mqtt://no-such-broker.invalid", 3), &[]);
    assert!(["dnsNotFound", "dnsFailed"].contains(&reasons[0].0), "{reasons:?}");
}

/// A server that reads something and answers with fixed bytes.
fn strange_server(answer: &'static [u8], then_close: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming().take(200) {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 512]);
            let _ = stream.write_all(answer);
            if !then_close {
                kept.push(stream);
            }
        }
    });
    format!("mqtt://127.0.0.1:{port}")
}

#[test]
fn strangers_on_the_port_are_told_apart() {
    for (answer, close, reason) in [
        (&[0x15, 3, 3, 0, 2, 2, 40][..], true, "plainOnTlsPort"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", true, "protocolError"),
        (b"", true, "closedByPeer"),
        (b"", false, "connackTimeout"),
        (&[0x20, 3, 0, 0x89, 0], true, "serverBusy"),
    ] {
        let (reasons, failed) = reason_of(&connect_only(&strange_server(answer, close), 1), &[]);
        assert_eq!(reasons[0].0, reason, "{answer:?}");
        assert_eq!(failed, i64::from(reason == "plainOnTlsPort"));
    }
}

#[test]
fn a_broker_that_restarts_in_mid_run_leaves_bounds_that_hold() {
    for (clean, protocol) in [(true, "5"), (false, "3.1.1")] {
        let broker = Broker::start("");
        let plan = plan(
            json!({"endpoints": [broker.url()], "protocolVersion": protocol}),
            json!([{"name": "g", "clients": 20, "cleanStart": clean, "connect": {"ratePerSecond": 1000},
                "reconnect": {"minBackoff": "100ms", "maxBackoff": "500ms"},
                "publish": [{"name": "zero", "topic": "t/%i", "qos": 0, "payload": {"size": 64}, "ratePerSecond": 400},
                    {"name": "one", "topic": "t/%i", "qos": 1, "payload": {"size": 64}, "ratePerSecond": 400},
                    {"name": "two", "topic": "t/%i", "qos": 2, "payload": {"size": 64}, "ratePerSecond": 400}],
                "subscribe": [{"name": "s", "filter": "t/%i", "qos": 2}]}]),
            json!({"duration": "4s", "drain": "10s"}),
        );
        let worker = Worker::start(&plan, 0, 0, &[]);
        worker.release();
        worker.wait_for(ShardPhase::Connected, Duration::from_secs(10));
        worker.begin(4.0);
        std::thread::sleep(Duration::from_millis(1500));
        let broker = broker.restart("");
        let (s, status) = worker.collect();
        assert_eq!(status, 0);
        assert_laws(&s);
        assert_eq!(s.get(Counter::Planned), 3 * 1600);
        assert_eq!(s.total("disconnects"), 20, "{:?}", s.by_label("disconnects"));
        assert_eq!(s.get(Counter::Reconnects), 20);
        assert!(s.get(Counter::SkippedDisconnected) > 0);
        // mosquitto keeps nothing over this restart: what was in flight is gone and said to be.
        assert_eq!(s.get(Counter::Acked) + s.get(Counter::Abandoned), s.get(Counter::SentQos1) + s.get(Counter::SentQos2));
        let unique = s.get(Counter::Unique);
        assert!(unique <= s.get(Counter::ExpectedMax), "{unique} of at most {}", s.get(Counter::ExpectedMax));
        drop(broker);
    }
}

#[test]
fn a_broker_that_stops_reading_fills_no_memory_and_skips_with_the_reason() {
    // Answers CONNECT, then reads nothing more.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("mqtt://127.0.0.1:{}", listener.local_addr().unwrap().port());
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming().take(1000) {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 512]);
            stream.write_all(&[0x20, 2, 0, 0]).unwrap();
            kept.push(stream);
        }
    });
    let plan = plan(
        json!({"endpoints": [url], "protocolVersion": "3.1.1"}),
        json!([{"name": "g", "clients": 10, "keepAlive": "0s", "publish": [{"name": "p", "topic": "t", "payload": {"size": "16Ki"}, "interval": "5ms"}]}]),
        json!({"duration": "4s", "drain": "1s"}),
    );
    let worker = Worker::start(&plan, 0, 0, &["--linger", "1s"]);
    let before = {
        worker.release();
        worker.wait_for(ShardPhase::Connected, Duration::from_secs(10));
        worker.snapshot().gauge(Gauge::MemoryResident)
    };
    worker.begin(4.0);
    std::thread::sleep(Duration::from_millis(3500));
    let now = worker.snapshot();
    assert_laws(&now);
    assert!(now.get(Counter::SkippedSocketFull) > 1000, "{:?}", now.by_label("skipped"));
    let grown = now.gauge(Gauge::MemoryResident) - before;
    assert!(grown < 4 << 20, "{grown} bytes for 10 stalled clients");
    let busy = now.gauge(Gauge::ThreadBusyMax);
    assert!(busy < 200, "a full socket must not be polled in a circle: busy {busy} of 1000");
    worker.wait_for(ShardPhase::Finished, Duration::from_secs(15));
}
