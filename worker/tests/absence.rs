//! Subscribers that are away for a while, and clients with a rival of the same identifier, against a real mosquitto.

#![allow(clippy::unwrap_used)]

mod support;

use mqtt_loadtest_crds::plan::RunPlan;
use mqtt_loadtest_worker::accounting::{Counter, Gauge, Snapshot, laws};
use mqtt_loadtest_worker::protocol::ShardPhase;
use serde_json::json;
use std::time::Duration;
use support::proxy::Proxy;
use support::{Broker, Worker, plan, wait_until};

fn assert_laws(snapshot: &Snapshot) {
    let open: Vec<_> = laws::residuals(snapshot).into_iter().filter(|r| r.residual != 0).collect();
    assert!(open.is_empty(), "{open:?}");
}

/// 10 publishers, 400 messages a second together, and 5 subscribers, one of which hears each message by a wildcard.
fn fan_out(url: &str, clean: bool, qos: u8) -> RunPlan {
    plan(
        json!({"endpoints": [url], "protocolVersion": "5"}),
        json!([
            {"name": "pubs", "clients": 10, "clientId": "p-%i", "connect": {"ratePerSecond": 1000},
             "publish": [{"name": "p", "topic": "t/%i", "qos": qos, "payload": {"size": 64}, "ratePerSecond": 400, "maxBehind": "100ms"}]},
            {"name": "subs", "clients": 5, "clientId": "s-%i", "cleanStart": clean, "connect": {"ratePerSecond": 1000},
             "reconnect": {"minBackoff": "400ms", "maxBackoff": "500ms"}, "subscribe": [{"name": "s", "filter": "t/%i", "qos": qos}]},
            {"name": "all", "clients": 1, "clientId": "all", "cleanStart": clean, "subscribe": [{"name": "s", "filter": "t/#", "qos": qos}],
             "reconnect": {"minBackoff": "400ms", "maxBackoff": "500ms"}}
        ]),
        json!({"duration": "5s", "drain": "15s", "barrier": {"settle": "200ms"}}),
    )
}

/// Runs the plan with its subscribers behind a proxy that cuts their connections twice. All counts together.
fn cut_twice(broker: &Broker, clean: bool, qos: u8) -> Snapshot {
    let proxy = Proxy::start(broker.port);
    let direct = fan_out(&broker.url(), clean, qos);
    let mut cut = direct.clone();
    cut.spec.broker.endpoints = vec![format!("mqtt://127.0.0.1:{}", proxy.port)];
    let workers = [Worker::start(&direct, 0, 0, &[]), Worker::start(&cut, 1, 0, &[]), Worker::start(&cut, 2, 0, &[])];
    workers.iter().for_each(Worker::release);
    workers.iter().for_each(|worker| worker.wait_for(ShardPhase::Connected, Duration::from_secs(10)));
    let start = workers[0].begin(5.0);
    workers[1..].iter().for_each(|worker| assert_eq!(worker.post("/v1/start", &start), 200));
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(1500));
        proxy.cut();
    }
    let mut all = Snapshot::new();
    for worker in workers {
        let (s, _) = worker.collect();
        assert_laws(&s);
        all.merge(&s);
    }
    assert_eq!(all.get(Counter::Acked) + all.get(Counter::Fenced), 2000);
    assert_eq!((all.get(Counter::ExpectedMin), all.total("disconnects")), (3000, 12));
    all
}

#[test]
fn what_clean_sessions_miss_while_they_are_away_is_excused_and_not_lost() {
    let broker = Broker::start("");
    for qos in [0, 1] {
        let s = cut_twice(&broker, true, qos);
        let missing = 3000 - s.get(Counter::Unique);
        let excused = s.get(Counter::Excused);
        assert!(missing > 50, "the cuts must cost something for this test to mean anything: {missing}");
        assert!(excused >= missing, "{excused} excused of {missing}");
        // Twice up to 0.5 s away, 0.2 s of settling, 0.1 s of publishers that are late: of 600 deliveries a second.
        assert!(excused < 1100, "{excused} excused");
        assert_eq!((laws::deliveries(&s, 0).lost_min, laws::deliveries(&s, 0).lost_max), (0, missing), "QoS {qos}");
    }
}

#[test]
fn kept_sessions_miss_nothing_and_are_excused_of_nothing() {
    let broker = Broker::start("");
    let s = cut_twice(&broker, false, 1);
    assert_eq!((s.get(Counter::Unique), s.get(Counter::Excused)), (3000, 0), "{} duplicates", s.get(Counter::Duplicates));
    assert_eq!(laws::deliveries(&s, 0).lost_max, 0);
}

#[test]
fn a_subscription_that_the_broker_forgets_is_a_loss_whatever_is_excused() {
    // A subscriber that never hears anything, though it is connected all the time: its messages go elsewhere.
    let (broker, other) = (Broker::start(""), Broker::start(""));
    let direct = fan_out(&broker.url(), true, 1);
    let mut astray = direct.clone();
    astray.spec.broker.endpoints = vec![other.url()];
    let workers = [Worker::start(&direct, 0, 0, &[]), Worker::start(&astray, 1, 0, &[]), Worker::start(&direct, 2, 0, &[])];
    workers.iter().for_each(Worker::release);
    workers.iter().for_each(|worker| worker.wait_for(ShardPhase::Connected, Duration::from_secs(10)));
    std::thread::sleep(Duration::from_millis(300));
    let start = workers[0].begin(1.0);
    workers[1..].iter().for_each(|worker| assert_eq!(worker.post("/v1/start", &start), 200));
    let mut all = Snapshot::new();
    workers.into_iter().for_each(|worker| all.merge(&worker.collect().0));
    assert_eq!(all.get(Counter::Excused), 0);
    assert_eq!(laws::deliveries(&all, 0).lost_min, 200, "half of the messages have a subscriber of their own");
}

#[test]
fn two_runs_with_the_same_client_identifiers_find_that_out_instead_of_fighting_for_ever() {
    for protocol in ["3.1.1", "5"] {
        let broker = Broker::start("");
        let plan = plan(
            json!({"endpoints": [broker.url()], "protocolVersion": protocol}),
            json!([{"name": "g", "clients": 20, "clientId": "same-%i", "connect": {"ratePerSecond": 1000},
                "publish": [{"name": "p", "topic": "t/%i", "qos": 1, "payload": {"size": 64}, "interval": "200ms"}],
                "subscribe": [{"name": "s", "filter": "t/%i", "qos": 1}]}]),
            json!({"duration": "30s", "drain": "1s"}),
        );
        let first = Worker::start(&plan, 0, 0, &[]);
        first.release();
        first.wait_for(ShardPhase::Connected, Duration::from_secs(10));
        first.begin(30.0);
        let second = Worker::start(&plan, 0, 0, &[]);
        second.release();
        let taken_over = |worker: &Worker| worker.snapshot().get(Counter::DisconnectTakenOver);
        wait_until("each identifier is given up by one of the two", Duration::from_secs(25), || {
            taken_over(&first) + taken_over(&second) >= 20
        });
        wait_until("the others are left alone", Duration::from_secs(10), || {
            [&first, &second].iter().map(|worker| worker.snapshot().gauge(Gauge::ClientsReady)).sum::<i64>() == 20
        });
        let disconnects = || first.snapshot().total("disconnects") + second.snapshot().total("disconnects");
        let before = disconnects();
        std::thread::sleep(Duration::from_secs(2));
        assert_eq!(disconnects(), before, "MQTT {protocol}");
        assert!(before <= 20 * 8, "{before}");
        assert_laws(&first.snapshot());
        assert_laws(&second.snapshot());
    }
}

#[test]
fn a_broker_that_restarts_again_and_again_is_not_taken_for_a_rival() {
    let mut broker = Broker::start("");
    let plan = plan(
        json!({"endpoints": [broker.url()], "protocolVersion": "3.1.1"}),
        json!([{"name": "g", "clients": 50, "connect": {"ratePerSecond": 1000}, "subscribe": [{"name": "s", "filter": "t/%i"}],
            "reconnect": {"minBackoff": "200ms", "maxBackoff": "300ms"}}]),
        json!({"duration": "60s"}),
    );
    let worker = Worker::start(&plan, 0, 0, &[]);
    worker.release();
    worker.wait_for(ShardPhase::Connected, Duration::from_secs(10));
    for _ in 0..4 {
        broker = broker.restart("");
        wait_until("all are back", Duration::from_secs(10), || worker.snapshot().gauge(Gauge::ClientsReady) == 50);
        std::thread::sleep(Duration::from_millis(300));
    }
    let s = worker.snapshot();
    assert_eq!((s.get(Counter::DisconnectTakenOver), s.gauge(Gauge::ClientsFailed)), (0, 0));
    assert_eq!(s.total("disconnects"), 200);
}
