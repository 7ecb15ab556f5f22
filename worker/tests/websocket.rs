//! MQTT over WebSocket, plain and over TLS, against a real mosquitto, and servers that are none.

#![allow(clippy::unwrap_used)]

mod support;

use mqtt_loadtest_crds::plan::RunPlan;
use mqtt_loadtest_worker::accounting::{Counter, Gauge, Snapshot, Stage, laws};
use mqtt_loadtest_worker::protocol::ShardPhase;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::Duration;
use support::certificates::Authority;
use support::proxy::Proxy;
use support::{Broker, Worker, free_port, plan, wait_until};

fn assert_laws(snapshot: &Snapshot) {
    let open: Vec<_> = laws::residuals(snapshot).into_iter().filter(|r| r.residual != 0).collect();
    assert!(open.is_empty(), "{open:?}");
}

/// A mosquitto with a further listener for WebSocket: one with that alone does not start.
fn web_socket_broker(listener: &str) -> (Broker, u16) {
    let port = free_port();
    let broker = Broker::start(&format!("listener {port} 127.0.0.1\nprotocol websockets\n{listener}"));
    wait_until("the WebSocket listener", Duration::from_secs(5), || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
    (broker, port)
}

fn echo(broker: Value, qos: u8, size: &str) -> RunPlan {
    plan(
        broker,
        json!([{"name": "echo", "clients": 30, "connect": {"ratePerSecond": 1000},
            "publish": [{"name": "p", "topic": "bench/%i", "qos": qos, "payload": {"size": size}, "ratePerSecond": 300}],
            "subscribe": [{"name": "s", "filter": "bench/%i", "qos": qos}]}]),
        json!({"duration": "2s", "drain": "20s"}),
    )
}

#[test]
fn every_message_is_counted_over_web_socket_and_over_web_socket_in_tls() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(dir.path(), "ca");
    let ca = authority.file("ca");
    let server = authority.issue("server", &["127.0.0.1"]);
    let tls = format!("cafile {}\ncertfile {}\nkeyfile {}\n", ca.display(), server.certificate.display(), server.key.display());
    let check = |scheme: &str, listener: &str, qos: u8, size: &str, protocol: &str| {
        let (broker, port) = web_socket_broker(listener);
        let endpoint = json!({"endpoints": [format!("{scheme}://127.0.0.1:{port}/mqtt")], "protocolVersion": protocol});
        let s = Worker::start(&echo(endpoint, qos, size), 0, 0, &["--ca-file", ca.to_str().unwrap()]).whole_run(2.0);
        let what = format!("{scheme}, QoS {qos}, {size} B, MQTT {protocol}");
        assert_laws(&s);
        assert_eq!((s.get(Counter::sent(qos)), s.get(Counter::Received)), (600, 600), "{what}");
        let settled = if qos == 0 { Counter::Fenced } else { Counter::Acked };
        assert_eq!((s.get(settled), s.total("disconnects") + s.total("connects_failed")), (600, 0), "{what}");
        assert_eq!(s.histogram(Stage::ConnectWebSocket).count(), 30, "{what}");
        assert_eq!(s.get(Counter::TlsFull), if scheme == "wss" { 30 } else { 0 }, "{what}");
        // mosquitto 2.0.11 leaves QoS 2 out of this count.
        assert_eq!(broker.counts().0, if qos < 2 { 600 } else { 0 }, "{what}");
    };
    std::thread::scope(|scope| {
        for (scheme, listener) in [("ws", ""), ("wss", tls.as_str())] {
            // 40 KiB are several frames and several TLS records.
            for (qos, size, protocol) in [(0, "16", "5"), (1, "100", "3.1.1"), (2, "100", "5"), (1, "40Ki", "5")] {
                scope.spawn(move || check(scheme, listener, qos, size, protocol));
            }
        }
    });
}

#[test]
fn a_socket_that_fills_up_and_empties_again_loses_and_repeats_no_message() {
    let (broker, port) = web_socket_broker("");
    let proxy = Proxy::start(port);
    let plan = plan(
        json!({"endpoints": [format!("ws://127.0.0.1:{}", proxy.port)]}),
        json!([{"name": "g", "clients": 4, "keepAlive": "0s", "connect": {"ratePerSecond": 1000}, "publish": [
            {"name": "large", "topic": "t", "payload": {"size": "40Ki"}, "interval": "20ms", "maxBehind": "200ms"},
            {"name": "small", "topic": "t", "payload": {"size": 50}, "qos": 1, "interval": "1ms", "maxBehind": "200ms"}]}]),
        json!({"duration": "5s", "drain": "20s"}),
    );
    let worker = Worker::start(&plan, 0, 0, &[]);
    worker.release();
    worker.wait_for(ShardPhase::Connected, Duration::from_secs(10));
    worker.begin(5.0);
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(300));
        proxy.hold(true);
        std::thread::sleep(Duration::from_millis(900));
        assert_laws(&worker.snapshot());
        proxy.hold(false);
    }
    let (s, _) = worker.collect();
    assert_laws(&s);
    assert!(s.get(Counter::SkippedSocketFull) > 0, "{:?}", s.by_label("skipped"));
    assert_eq!(s.total("disconnects"), 0, "{:?}", s.by_label("disconnects"));
    assert_eq!(s.get(Counter::Acked), s.get(Counter::SentQos1));
    assert_eq!(broker.counts().0, s.total("sent"));
}

/// A server that shows the request it got and answers with fixed text.
fn http_server(answer: &'static str) -> (u16, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (requests, received) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().take(200) {
            let mut stream = stream.unwrap();
            let mut buffer = [0; 4096];
            let length = stream.read(&mut buffer).unwrap_or(0);
            let _ = requests.send(String::from_utf8_lossy(&buffer[..length]).into_owned());
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    (port, received)
}

fn connect_only(endpoint: &str, headers: Value) -> RunPlan {
    plan(
        json!({"endpoints": [endpoint], "webSocket": {"headers": headers}}),
        json!([{"name": "g", "clients": 3, "connect": {"ratePerSecond": 1000, "timeout": "1s"}, "reconnect": {"minBackoff": "100ms"}}]),
        json!({"duration": "1s"}),
    )
}

#[test]
fn a_refused_upgrade_is_told_with_its_status_and_ends_the_clients_unless_the_server_is_busy() {
    for (answer, words, given_up) in [
        ("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "404 Not Found", 3),
        ("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", "503", 0),
        (
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: x\r\n\r\n",
            "Accept",
            3,
        ),
        ("SSH-2.0-OpenSSH_9.2\r\n", "upgrade failed", 3),
    ] {
        let (port, requests) = http_server(answer);
        let headers = json!([{"name": "Origin", "value": "https://load.example"}]);
        let worker = Worker::start(&connect_only(&format!("ws://127.0.0.1:{port}/a/b?c=d"), headers), 0, 0, &[]);
        worker.release();
        wait_until("a reason", Duration::from_secs(10), || worker.snapshot().total("connects_failed") >= 3);
        let told = worker.status().message.unwrap();
        assert!(told.contains(words), "{told}");
        worker.stop("test");
        let (s, _) = worker.collect();
        assert_eq!(s.by_label("connects_failed")[0].0, "webSocketFailed");
        assert_eq!(s.gauge(Gauge::ClientsFailed), given_up, "{told}");
        let request = requests.recv().unwrap().to_ascii_lowercase();
        for line in ["get /a/b?c=d http/1.1\r\n", "sec-websocket-protocol: mqtt\r\n", "origin: https://load.example\r\n"] {
            assert!(request.contains(line), "{line}: {request}");
        }
        assert!(request.contains(&format!("host: 127.0.0.1:{port}\r\n")), "{request}");
    }
}

#[test]
fn a_web_socket_url_for_a_tls_port_and_the_other_way_round_is_found_out() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(dir.path(), "ca");
    let (ca, server) = (authority.file("ca"), authority.issue("server", &["127.0.0.1"]));
    let tls = format!("cafile {}\ncertfile {}\nkeyfile {}\n", ca.display(), server.certificate.display(), server.key.display());
    let (_plain, plain) = web_socket_broker("");
    let (_tls, tls) = web_socket_broker(&tls);
    for (url, reason) in
        [(format!("wss://127.0.0.1:{plain}"), "tlsOnPlainPort"), (format!("ws://127.0.0.1:{tls}"), "plainOnTlsPort")]
    {
        let worker = Worker::start(&connect_only(&url, json!([])), 0, 0, &["--ca-file", ca.to_str().unwrap()]);
        worker.release();
        wait_until(reason, Duration::from_secs(10), || worker.snapshot().gauge(Gauge::ClientsFailed) == 3);
        let reasons = worker.snapshot().by_label("connects_failed");
        assert!(reasons.contains(&(reason, 3)), "{url}: {reasons:?}");
    }
}
