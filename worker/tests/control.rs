//! The control port and the life of the process.

#![allow(clippy::unwrap_used)]

mod support;

use mqtt_loadtest_worker::accounting::{Counter, Gauge, laws, summary};
use mqtt_loadtest_worker::engine::clock::unix_now;
use mqtt_loadtest_worker::protocol::{Release, ShardPhase, Start};
use serde_json::json;
use std::time::Duration;
use support::{Broker, SECOND, Worker, plan};

fn publishers(broker: &Broker, shards: u32) -> mqtt_loadtest_crds::plan::RunPlan {
    plan(
        json!({"endpoints": [broker.url()], "protocolVersion": "5"}),
        json!([{"name": "g", "clients": 30, "shards": {"count": shards}, "connect": {"ratePerSecond": 1000},
            "publish": [{"name": "p", "topic": "t/%i", "qos": 1, "payload": {"size": 64}, "ratePerSecond": 300}]}]),
        json!({"duration": "3s", "drain": "5s"}),
    )
}

#[test]
fn only_the_probes_answer_without_the_token() {
    let broker = Broker::start("");
    let worker = Worker::start(&publishers(&broker, 1), 0, 0, &[]);
    for path in ["/healthz", "/readyz"] {
        assert_eq!(worker.raw("GET", path, None, "").0, 200, "{path}");
    }
    for (method, path) in
        [("GET", "/metrics"), ("GET", "/v1/status"), ("POST", "/v1/release"), ("POST", "/v1/stop"), ("POST", "/v1/finish")]
    {
        for token in [None, Some("wrong"), Some("")] {
            assert_eq!(worker.raw(method, path, token, "{}").0, 401, "{path} {token:?}");
        }
    }
    let text = String::from_utf8(worker.raw("GET", "/metrics", Some("test-token"), "").1).unwrap();
    assert!(text.contains("mqtt_loadtest_clients_desired{group=\"g\",shard=\"0\"} 30"), "{text}");
}

#[test]
fn the_first_release_and_the_first_start_win() {
    let broker = Broker::start("");
    let worker = Worker::start(&publishers(&broker, 1), 0, 0, &[]);
    let release = Release { at_unix_ns: unix_now() };
    assert_eq!(worker.post("/v1/release", &release), 200);
    assert_eq!(worker.post("/v1/release", &release), 200);
    assert_eq!(worker.post("/v1/release", &Release { at_unix_ns: 1 }), 409);
    let start = Start { start_unix_ns: unix_now() + 60 * SECOND, end_unix_ns: unix_now() + 70 * SECOND };
    assert_eq!(worker.post("/v1/start", &Start { start_unix_ns: 9, end_unix_ns: 9 }), 400);
    assert_eq!(worker.post("/v1/start", &start), 200);
    assert_eq!(worker.post("/v1/start", &start), 200);
    assert_eq!(worker.post("/v1/start", &Start { end_unix_ns: start.end_unix_ns + 1, ..start }), 409);
    assert_eq!(worker.raw("POST", "/v1/release", Some("test-token"), "{}").0, 422);
}

#[test]
fn four_shards_together_send_exactly_the_schedule() {
    let broker = Broker::start("");
    let plan = publishers(&broker, 4);
    let workers: Vec<_> = (0..4).map(|shard| Worker::start(&plan, 0, shard, &[])).collect();
    workers.iter().for_each(Worker::release);
    workers.iter().for_each(|w| w.wait_for(ShardPhase::Connected, Duration::from_secs(10)));
    let start = Start { start_unix_ns: unix_now() + SECOND / 5, end_unix_ns: unix_now() + SECOND / 5 + 3 * SECOND };
    let start = Start { end_unix_ns: start.start_unix_ns + 3 * SECOND, ..start };
    workers.iter().for_each(|w| assert_eq!(w.post("/v1/start", &start), 200));
    let mut sum = mqtt_loadtest_worker::accounting::Snapshot::new();
    workers.into_iter().for_each(|w| sum.merge(&w.collect().0));
    assert!(laws::residuals(&sum).iter().all(|r| r.residual == 0));
    assert_eq!((sum.get(Counter::Planned), sum.get(Counter::SentQos1), sum.get(Counter::Acked)), (900, 900, 900));
    assert_eq!(broker.counts().0, 900);
}

#[test]
fn a_stop_ends_early_and_in_order() {
    let broker = Broker::start("");
    let worker = Worker::start(&publishers(&broker, 1), 0, 0, &[]);
    worker.release();
    worker.wait_for(ShardPhase::Connected, Duration::from_secs(10));
    worker.begin(3.0);
    std::thread::sleep(Duration::from_millis(1000));
    worker.stop("threshold");
    let (s, status) = worker.collect();
    assert_eq!(status, 0);
    assert!(laws::residuals(&s).iter().all(|r| r.residual == 0), "{:?}", laws::residuals(&s));
    let sent = s.get(Counter::SentQos1);
    assert!((200..400).contains(&sent), "{sent}");
    assert_eq!((s.get(Counter::Acked), s.get(Counter::Planned)), (sent, sent));
    assert_eq!(broker.counts().0, sent);
}

#[test]
fn sigterm_before_the_end_leaves_a_summary_and_exits_143() {
    let broker = Broker::start("");
    let mut worker = Worker::start(&publishers(&broker, 1), 0, 0, &[]);
    worker.release();
    worker.wait_for(ShardPhase::Connected, Duration::from_secs(10));
    worker.begin(60.0);
    std::thread::sleep(Duration::from_millis(700));
    worker.terminate();
    assert_eq!(worker.wait(), 143);
    let s = summary::decode(&worker.last_word()).unwrap();
    assert!(s.get(Counter::SentQos1) > 100);
    assert!(laws::residuals(&s).iter().all(|r| r.residual == 0), "{:?}", laws::residuals(&s));
    assert_eq!(broker.counts().0, s.get(Counter::SentQos1));
}

#[test]
fn a_replaced_pod_learns_everything_from_the_run_state_file_and_joins_for_the_rest() {
    let broker = Broker::start("");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run-state.json");
    let start = unix_now() - SECOND;
    std::fs::write(
        &file,
        json!({"releaseUnixNs": start - 5 * SECOND, "startUnixNs": start, "endUnixNs": start + 4 * SECOND}).to_string(),
    )
    .unwrap();
    let worker = Worker::start(&publishers(&broker, 1), 0, 0, &["--attempt", "1", "--run-state-file", file.to_str().unwrap()]);
    let (s, status) = worker.collect();
    assert_eq!(status, 0);
    assert!(laws::residuals(&s).iter().all(|r| r.residual == 0), "{:?}", laws::residuals(&s));
    assert_eq!(s.get(Counter::Planned), 1200);
    assert!(s.get(Counter::Absent) >= 300, "{} were due before it came", s.get(Counter::Absent));
    assert_eq!(s.get(Counter::Absent) + s.get(Counter::SentQos1), 1200);
    assert_eq!(broker.counts().0, s.get(Counter::SentQos1));
    // And one that comes after the end has nothing to do.
    let state = json!({"releaseUnixNs": 1, "startUnixNs": 2, "endUnixNs": 3}).to_string();
    std::fs::write(&file, state).unwrap();
    let (mut child, _dir) = Worker::spawn(&publishers(&broker, 1), 0, 0, &["--run-state-file", file.to_str().unwrap()]);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_slice_that_does_not_exist_is_refused_with_status_2_and_a_reason() {
    let broker = Broker::start("");
    let (mut child, dir) = Worker::spawn(&publishers(&broker, 1), 0, 7, &[]);
    assert_eq!(child.wait().unwrap().code(), Some(2));
    let word = std::fs::read_to_string(dir.path().join("last-word")).unwrap();
    assert!(word.contains("no shard 7"), "{word}");
}

#[test]
fn clients_connect_at_the_rate_that_was_asked() {
    let broker = Broker::start("");
    let plan = plan(
        json!({"endpoints": [broker.url()]}),
        json!([{"name": "g", "clients": 400, "connect": {"ratePerSecond": 200}}]),
        json!({"duration": "1s"}),
    );
    let worker = Worker::start(&plan, 0, 0, &[]);
    worker.release();
    std::thread::sleep(Duration::from_millis(1000));
    let half = worker.snapshot();
    let attempted = half.get(Counter::ConnectsAttempted);
    assert!((190..=230).contains(&attempted), "{attempted} after 1 s");
    worker.wait_for(ShardPhase::Connected, Duration::from_secs(5));
    assert_eq!(worker.snapshot().gauge(Gauge::ClientsReady), 400);
}
