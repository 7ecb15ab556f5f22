//! TLS against a real mosquitto: every version, mutual, and everything that can be wrong with certificates and ports.

#![allow(clippy::unwrap_used)]

mod support;

use mqtt_loadtest_crds::plan::RunPlan;
use mqtt_loadtest_worker::accounting::{Counter, Gauge, Snapshot, Stage, laws};
use mqtt_loadtest_worker::protocol::ShardPhase;
use serde_json::{Value, json};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;
use support::certificates::{Authority, Issued, version_1};
use support::proxy::Proxy;
use support::{Broker, OLD_TLS, Worker, free_port, plan, wait_until};

fn assert_laws(snapshot: &Snapshot) {
    let open: Vec<_> = laws::residuals(snapshot).into_iter().filter(|r| r.residual != 0).collect();
    assert!(open.is_empty(), "{open:?}");
}

/// A mosquitto with a TLS listener beside the plain one.
struct TlsBroker {
    broker: Broker,
    port: u16,
}

fn tls_broker(issued: &Issued, ca: &Path, extra: &str) -> TlsBroker {
    let port = free_port();
    let broker = Broker::start(&format!("{}{extra}", issued.listener(port, ca)));
    wait_until("the TLS listener", Duration::from_secs(5), || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
    TlsBroker { broker, port }
}

fn echo(url: &str, tls: Value) -> RunPlan {
    let echo = json!({"name": "echo", "clients": 30, "connect": {"ratePerSecond": 1000},
        "publish": [{"name": "p", "topic": "bench/%i", "qos": 1, "payload": {"size": 100}, "ratePerSecond": 300}],
        "subscribe": [{"name": "s", "filter": "bench/%i", "qos": 1}]});
    plan(json!({"endpoints": [url], "tls": tls}), json!([echo]), json!({"duration": "2s", "drain": "20s"}))
}

/// What a client of the test's own is told of a server's TLS.
fn version_of(port: u16) -> String {
    let output = std::process::Command::new("openssl")
        .args(["s_client", "-brief", "-connect", &format!("127.0.0.1:{port}")])
        .stdin(std::process::Stdio::null())
        .output()
        .expect("openssl is installed");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn every_message_is_counted_over_tls_1_2_and_1_3_and_with_client_certificates() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(dir.path(), "ca");
    let ca = authority.file("ca");
    let server = authority.issue("server", &["127.0.0.1"]);
    let client = authority.issue("client", &["device"]);
    let check = |extra: &str, version: &str, mutual: bool| {
        let require = if mutual { "require_certificate true\nuse_identity_as_username true\n" } else { "" };
        let broker = tls_broker(&server, &ca, &format!("{extra}{require}"));
        assert!(mutual || version_of(broker.port).contains(version));
        let plan = echo(&format!("mqtts://127.0.0.1:{}", broker.port), json!({}));
        let files = [
            ["--ca-file", ca.to_str().unwrap()],
            ["--client-certificate-file", client.certificate.to_str().unwrap()],
            ["--client-key-file", client.key.to_str().unwrap()],
        ];
        let args: Vec<&str> = files[..if mutual { 3 } else { 1 }].concat();
        let s = Worker::start(&plan, 0, 0, &args).whole_run(2.0);
        assert_laws(&s);
        assert_eq!((s.get(Counter::Acked), s.get(Counter::Received)), (600, 600), "{version}, mutual {mutual}");
        assert_eq!(laws::deliveries(&s, 0).fingerprints_agree, Some(true));
        assert_eq!((s.get(Counter::TlsFull), s.get(Counter::TlsResumed)), (30, 0));
        assert_eq!(s.histogram(Stage::ConnectTls).count(), 30);
        assert_eq!(s.total("disconnects") + s.total("connects_failed"), 0);
        assert_eq!(broker.broker.counts(), (600, 600));
    };
    std::thread::scope(|scope| {
        for (extra, version) in [("", "TLSv1.3"), (OLD_TLS, "TLSv1.2")] {
            for mutual in [false, true] {
                scope.spawn(move || check(extra, version, mutual));
            }
        }
    });
}

/// Why clients of a plan fail, how many were given up, and what the worker says about it.
fn failure_of(plan: &RunPlan, extra: &[&str]) -> (Vec<(&'static str, u64)>, i64, String) {
    let worker = Worker::start(plan, 0, 0, extra);
    worker.release();
    wait_until("a reason", Duration::from_secs(10), || worker.snapshot().total("connects_failed") > 0);
    std::thread::sleep(Duration::from_millis(300));
    let words = worker.status().message.unwrap_or_default();
    worker.stop("test");
    let (s, _) = worker.collect();
    assert_laws(&s);
    (s.by_label("connects_failed"), s.gauge(Gauge::ClientsFailed), words)
}

fn connect_only(url: &str, tls: Value) -> RunPlan {
    plan(
        json!({"endpoints": [url], "tls": tls}),
        json!([{"name": "g", "clients": 5, "connect": {"ratePerSecond": 1000, "timeout": "1s"}, "reconnect": {"minBackoff": "100ms", "maxBackoff": "200ms"}}]),
        json!({"duration": "1s"}),
    )
}

fn connects(plan: &RunPlan, extra: &[&str]) {
    let worker = Worker::start(plan, 0, 0, extra);
    worker.release();
    worker.wait_for(ShardPhase::Connected, Duration::from_secs(10));
    let s = worker.snapshot();
    assert_eq!((s.gauge(Gauge::ClientsReady), s.total("connects_failed")), (5, 0), "{:?}", worker.status().message);
}

#[test]
fn what_is_wrong_with_a_certificate_is_told_in_words_and_ends_the_clients_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(dir.path(), "ca");
    let _other = Authority::new(dir.path(), "other");
    let ca = ["--ca-file", &authority.file("ca").display().to_string()].map(ToOwned::to_owned);
    let ca: Vec<&str> = ca.iter().map(String::as_str).collect();
    let wrong_ca = ["--ca-file", &authority.file("other").display().to_string()].map(ToOwned::to_owned);
    let wrong_ca: Vec<&str> = wrong_ca.iter().map(String::as_str).collect();
    let good = tls_broker(&authority.issue("good", &["broker.example"]), &authority.file("ca"), "");
    let expired = tls_broker(&authority.issue_until("expired", &["127.0.0.1"], 2020), &authority.file("ca"), "");
    let old = tls_broker(&version_1(dir.path()), &authority.file("ca"), "");
    let url = |broker: &TlsBroker| format!("mqtts://127.0.0.1:{}", broker.port);
    let named = json!({"serverName": "broker.example"});
    for (broker, tls, args, words) in [
        (&good, named.clone(), &wrong_ca, "authority that is not trusted"),
        (&good, named.clone(), &vec![], "authority that is not trusted"),
        (&good, json!({}), &ca, "not for 127.0.0.1: set spec.broker.tls.serverName"),
        (&expired, json!({}), &ca, "expired"),
        (&expired, json!({"verification": "CertificateOnly"}), &ca, "expired"),
        (&good, json!({"verification": "CertificateOnly"}), &wrong_ca, "authority that is not trusted"),
    ] {
        let (reasons, failed, told) = failure_of(&connect_only(&url(broker), tls), args);
        assert_eq!((reasons, failed), (vec![("tlsCertificateInvalid", 5)], 5), "{words}");
        assert!(told.starts_with(&url(broker)) && told.contains(words), "{words}: {told}");
    }
    connects(&connect_only(&url(&good), named), &ca);
    connects(&connect_only(&url(&good), json!({"verification": "CertificateOnly"})), &ca);
    for broker in [&good, &expired, &old] {
        connects(&connect_only(&url(broker), json!({"verification": "None"})), &[]);
    }
    let old_1_2 = tls_broker(&version_1(dir.path()), &authority.file("ca"), OLD_TLS);
    connects(&connect_only(&url(&old_1_2), json!({"verification": "None"})), &[]);
}

#[test]
fn a_client_certificate_that_is_missing_or_not_trusted_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(dir.path(), "ca");
    let stranger = Authority::new(dir.path(), "stranger").issue("strange", &["device"]);
    let ca = authority.file("ca").display().to_string();
    let server = authority.issue("server", &["127.0.0.1"]);
    let broker = tls_broker(&server, &authority.file("ca"), "require_certificate true\n");
    let plan = connect_only(&format!("mqtts://127.0.0.1:{}", broker.port), json!({}));
    let (reasons, failed, words) = failure_of(&plan, &["--ca-file", &ca]);
    assert_eq!((reasons, failed), (vec![("tlsClientCertificateRefused", 5)], 5));
    assert!(words.contains("clientCertificateFrom"), "{words}");
    let (certificate, key) = (stranger.certificate.display().to_string(), stranger.key.display().to_string());
    let (reasons, failed, words) =
        failure_of(&plan, &["--ca-file", &ca, "--client-certificate-file", &certificate, "--client-key-file", &key]);
    assert_eq!((reasons, failed), (vec![("tlsClientCertificateRefused", 5)], 5));
    assert!(words.contains("refused our client certificate"), "{words}");
    drop(broker);
    let broker = tls_broker(&server, &authority.file("ca"), &format!("{OLD_TLS}require_certificate true\n"));
    let plan = connect_only(&format!("mqtts://127.0.0.1:{}", broker.port), json!({}));
    let (reasons, failed, words) = failure_of(&plan, &["--ca-file", &ca]);
    assert_eq!((reasons, failed), (vec![("tlsFailed", 5)], 5));
    assert!(words.contains("asks for a client certificate"), "{words}");
}

/// Waits until all clients of a plan are given up and returns the last reason.
fn given_up(plan: &RunPlan, extra: &[&str]) -> Vec<(&'static str, u64)> {
    let worker = Worker::start(plan, 0, 0, extra);
    worker.release();
    wait_until("all are given up", Duration::from_secs(10), || worker.snapshot().gauge(Gauge::ClientsFailed) == 5);
    worker.stop("test");
    let (s, _) = worker.collect();
    assert_laws(&s);
    s.by_label("connects_failed")
}

#[test]
fn the_wrong_kind_of_port_is_found_out_and_ends_the_clients() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(dir.path(), "ca");
    let broker = tls_broker(&authority.issue("server", &["127.0.0.1"]), &authority.file("ca"), "");
    let ca = authority.file("ca").display().to_string();
    let on_plain = given_up(&connect_only(&format!("mqtts://127.0.0.1:{}", broker.broker.port), json!({})), &["--ca-file", &ca]);
    assert!(on_plain.contains(&("tlsOnPlainPort", 5)), "{on_plain:?}");
    let plain = plan(
        json!({"endpoints": [format!("mqtt://127.0.0.1:{}", broker.port)]}),
        json!([{"name": "g", "clients": 5, "connect": {"ratePerSecond": 1000}, "reconnect": {"minBackoff": "100ms"}}]),
        json!({"duration": "1s"}),
    );
    let plain = given_up(&plain, &[]);
    assert!(plain.contains(&("plainOnTlsPort", 5)), "{plain:?}");
}

#[test]
fn a_silent_server_is_a_tls_timeout_and_one_that_hangs_up_is_tried_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("mqtts://{}", listener.local_addr().unwrap());
    let (reasons, failed, _) = failure_of(&connect_only(&url, json!({})), &[]);
    assert_eq!(reasons[0].0, "tlsTimeout");
    assert_eq!(failed, 0);
    // A load balancer without a backend: nobody knows what would be behind it.
    std::thread::spawn(move || listener.incoming().take(200).for_each(drop));
    let worker = Worker::start(&connect_only(&url, json!({})), 0, 0, &[]);
    worker.release();
    wait_until("several tries", Duration::from_secs(10), || worker.snapshot().total("connects_failed") > 20);
    let s = worker.snapshot();
    assert_eq!((s.by_label("connects_failed")[0].0, s.gauge(Gauge::ClientsFailed)), ("tlsFailed", 0));
}

#[test]
fn sessions_are_resumed_only_on_wish_and_by_the_client_that_had_them() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(dir.path(), "ca");
    let ca = authority.file("ca").display().to_string();
    for extra in ["", OLD_TLS] {
        let broker = tls_broker(&authority.issue("server", &["127.0.0.1"]), &authority.file("ca"), extra);
        for (resumption, resumed) in [("Disabled", 0), ("PerClient", 5)] {
            let proxy = Proxy::start(broker.port);
            let plan = connect_only(&format!("mqtts://127.0.0.1:{}", proxy.port), json!({"resumption": resumption}));
            let worker = Worker::start(&plan, 0, 0, &["--ca-file", &ca]);
            worker.release();
            worker.wait_for(ShardPhase::Connected, Duration::from_secs(10));
            // The tickets of TLS 1.3 come after the handshake.
            std::thread::sleep(Duration::from_millis(200));
            proxy.cut();
            wait_until("all are back", Duration::from_secs(10), || {
                let s = worker.snapshot();
                s.get(Counter::Reconnects) == 5 && s.gauge(Gauge::ClientsReady) == 5
            });
            let s = worker.snapshot();
            assert_eq!((s.get(Counter::TlsFull), s.get(Counter::TlsResumed)), (10 - resumed, resumed), "{resumption} {extra}");
        }
    }
}

#[test]
fn a_socket_that_fills_up_and_empties_again_loses_and_repeats_no_message() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(dir.path(), "ca");
    let ca = authority.file("ca").display().to_string();
    let broker = tls_broker(&authority.issue("server", &["127.0.0.1"]), &authority.file("ca"), "");
    let proxy = Proxy::start(broker.port);
    let plan = plan(
        json!({"endpoints": [format!("mqtts://127.0.0.1:{}", proxy.port)]}),
        json!([{"name": "g", "clients": 4, "keepAlive": "0s", "connect": {"ratePerSecond": 1000}, "publish": [
            {"name": "large", "topic": "t", "payload": {"size": "40Ki"}, "interval": "20ms", "maxBehind": "200ms"},
            {"name": "small", "topic": "t", "payload": {"size": 50}, "qos": 1, "interval": "1ms", "maxBehind": "200ms"}]}]),
        json!({"duration": "5s", "drain": "20s"}),
    );
    let worker = Worker::start(&plan, 0, 0, &["--ca-file", &ca]);
    worker.release();
    worker.wait_for(ShardPhase::Connected, Duration::from_secs(10));
    let before = worker.snapshot().gauge(Gauge::MemoryResident);
    worker.begin(5.0);
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(300));
        proxy.hold(true);
        std::thread::sleep(Duration::from_millis(900));
        let s = worker.snapshot();
        assert_laws(&s);
        assert!(s.gauge(Gauge::MemoryResident) - before < 8 << 20, "memory grows while the broker stalls");
        proxy.hold(false);
    }
    let (s, _) = worker.collect();
    assert_laws(&s);
    assert!(s.get(Counter::SkippedSocketFull) > 0, "{:?}", s.by_label("skipped"));
    assert_eq!(s.total("disconnects"), 0, "{:?}", s.by_label("disconnects"));
    assert_eq!(s.get(Counter::Acked), s.get(Counter::SentQos1));
    assert_eq!(s.get(Counter::Fenced) + s.get(Counter::UnfencedLost), s.get(Counter::SentQos0));
    assert_eq!(broker.broker.counts().0, s.total("sent"));
}
