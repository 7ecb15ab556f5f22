//! The scraper against real HTTP servers that behave, hang, lie or talk too much.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, Uri},
    response::{IntoResponse, Response},
};
use jiff::Timestamp;
use mqtt_loadtest_operator::{
    run::{Action, Target},
    scrape::{Endpoint, Error, Memory, Scraper, deliver},
};
use mqtt_loadtest_worker::{
    accounting::{
        Counter, Snapshot, Stage,
        metrics::{Format, encode},
    },
    protocol::{Clock, METRICS, STATUS_HEADER, ShardPhase, ShardStatus, Token},
};

/// What a fake worker does when it is asked for its metrics.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Manner {
    Behaves,
    Hangs,
    TalksForEver,
    SaysSomethingElse,
    HasNoStatus,
    HasALongHead,
    Conflicts,
}

#[derive(Debug)]
struct Fake {
    manner: Manner,
    phase: ShardPhase,
    metrics: Vec<u8>,
    posts: Mutex<Vec<(String, String)>>,
}

impl Fake {
    fn new(manner: Manner) -> Arc<Self> {
        let mut snapshot = Snapshot::new();
        snapshot.set(Counter::Acked, 7);
        (0..1000).for_each(|i| snapshot.record(Stage::PublishAck, 100_000 + i * 1000));
        let metrics = encode(snapshot.into(), &[], Format::Protobuf).unwrap();
        Arc::new(Self { manner, phase: ShardPhase::Running, metrics, posts: Mutex::default() })
    }
}

fn status(fake: &Fake) -> String {
    let status = ShardStatus {
        phase: fake.phase,
        group: "devices".into(),
        shard: 3,
        attempt: 0,
        run_id: "1-abc".into(),
        release_unix_ns: None,
        start: None,
        clock: Clock { unix_ns: 1, monotonic_ns: 1, boot_id: "b".into() },
        message: None,
    };
    serde_json::to_string(&status).unwrap()
}

async fn handle(State(fake): State<Arc<Fake>>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    if headers.get("authorization").and_then(|value| value.to_str().ok()) != Some("Bearer secret") {
        return (StatusCode::UNAUTHORIZED, r#"{"message":"this needs the bearer token"}"#).into_response();
    }
    let with_status = |body: Vec<u8>| ([(STATUS_HEADER, status(&fake))], body).into_response();
    match (uri.path(), fake.manner) {
        (METRICS, Manner::Hangs) => std::future::pending().await,
        (METRICS, Manner::TalksForEver) => with_status(vec![b'x'; 300_000]),
        (METRICS, Manner::SaysSomethingElse) => with_status(b"<html>".to_vec()),
        (METRICS, Manner::HasNoStatus) => fake.metrics.clone().into_response(),
        (METRICS, Manner::HasALongHead) => ([(STATUS_HEADER, "x".repeat(40_000))], fake.metrics.clone()).into_response(),
        (METRICS, _) => {
            assert!(headers["accept"].to_str().unwrap().contains("application/vnd.google.protobuf"));
            with_status(fake.metrics.clone())
        }
        (_, Manner::Conflicts) => (StatusCode::CONFLICT, r#"{"message":"the first one counts"}"#).into_response(),
        (path, _) => {
            fake.posts.lock().unwrap().push((path.to_owned(), String::from_utf8(body.to_vec()).unwrap()));
            StatusCode::OK.into_response()
        }
    }
}

async fn serve(address: SocketAddr, fake: Arc<Fake>) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let bound = listener.local_addr().unwrap();
    let router = Router::new().fallback(handle).with_state(fake);
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    bound
}

fn endpoint(address: SocketAddr, token: &str, run_id: &str) -> Endpoint {
    Endpoint { base: format!("http://{address}"), token: Token::from_text(token), run_id: run_id.into() }
}

async fn start(manner: Manner) -> (Arc<Fake>, Endpoint) {
    let fake = Fake::new(manner);
    let address = serve(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), fake.clone()).await;
    (fake, endpoint(address, "secret", "1-abc"))
}

#[tokio::test]
async fn status_and_counts_come_back_as_they_were() {
    let (_, worker) = start(Manner::Behaves).await;
    let scraped = Scraper::new().scrape(&worker).await.unwrap();
    assert_eq!((scraped.status.phase, scraped.status.shard), (ShardPhase::Running, 3));
    assert_eq!(scraped.snapshot.get(Counter::Acked), 7);
    assert_eq!(scraped.snapshot.histogram(Stage::PublishAck).count(), 1000);
}

#[tokio::test]
async fn a_stranger_and_another_run_are_noticed() {
    let (_, worker) = start(Manner::Behaves).await;
    let scraper = Scraper::new();
    let wrong = Endpoint { token: Token::from_text("guess"), ..worker.clone() };
    let Err(Error::Refused { status, message }) = scraper.scrape(&wrong).await else { panic!() };
    assert_eq!((status.as_u16(), message.as_str()), (401, "this needs the bearer token"));
    let other = Endpoint { run_id: "2-def".into(), ..worker };
    assert!(matches!(scraper.scrape(&other).await, Err(Error::AnotherRun(run)) if run == "1-abc"));
}

#[tokio::test]
async fn what_a_broken_worker_says_is_bounded_and_refused() {
    let scraper = Scraper::new();
    let (_, hangs) = start(Manner::Hangs).await;
    let since = Instant::now();
    assert!(matches!(scraper.scrape(&hangs).await, Err(Error::Timeout)));
    assert!(since.elapsed() < Duration::from_millis(800), "{:?}", since.elapsed());
    let (_, talks) = start(Manner::TalksForEver).await;
    assert!(matches!(scraper.scrape(&talks).await, Err(Error::TooLong(_))));
    let (_, other) = start(Manner::SaysSomethingElse).await;
    assert!(matches!(scraper.scrape(&other).await, Err(Error::NotMetrics(_))));
    let (_, bare) = start(Manner::HasNoStatus).await;
    assert!(matches!(scraper.scrape(&bare).await, Err(Error::NotAStatus(_))));
    let (_, head) = start(Manner::HasALongHead).await;
    assert!(matches!(scraper.scrape(&head).await, Err(Error::Connection(_))));
    let nobody = endpoint(SocketAddr::from((Ipv4Addr::LOCALHOST, 1)), "secret", "1-abc");
    let error = scraper.scrape(&nobody).await.unwrap_err();
    assert!(matches!(&error, Error::Connection(why) if why.contains("refused")), "{error}");
}

#[tokio::test]
async fn the_last_good_counts_stay_when_a_worker_falls_silent() {
    let (_, worker) = start(Manner::Behaves).await;
    let scraper = Scraper::new();
    let mut memory = Memory::default();
    let now = Timestamp::from_second(1_800_000_000).unwrap();
    memory.take("uid", scraper.scrape(&worker).await, now);
    memory.take("uid", Err(Error::Timeout), now);
    let known = memory.get("uid").unwrap();
    assert_eq!((known.counts.snapshot.get(Counter::Acked), known.counts.at, known.reachable), (7, now, false));
    assert!(!known.counts.last);
    memory.retain(&["other"].into());
    assert!(memory.get("uid").is_none());
}

#[tokio::test]
async fn control_messages_reach_their_targets_and_conflicts_are_told() {
    let (first, a) = start(Manner::Behaves).await;
    let (_, b) = start(Manner::Conflicts).await;
    let target = |uid: &str| Target { group: 0, index: 0, uid: uid.into() };
    let at = Timestamp::from_nanosecond(1_800_000_000_123_456_789).unwrap();
    let action = Action::Start {
        start: at,
        end: at + jiff::SignedDuration::from_secs(1),
        to: vec![target("a"), target("b"), target("gone")],
    };
    let scraper = Scraper::new();
    let missed = deliver(&scraper, &action, |target| match target.uid.as_str() {
        "a" => Some(a.clone()),
        "b" => Some(b.clone()),
        _ => None,
    })
    .await;
    assert_eq!(missed, 2);
    assert_eq!(deliver(&scraper, &Action::Finish { to: vec![target("a")] }, |_| Some(a.clone())).await, 0);
    let posts = first.posts.lock().unwrap().clone();
    let body = r#"{"startUnixNs":1800000000123456789,"endUnixNs":1800000001123456789}"#;
    assert_eq!(posts, [("/v1/start".to_owned(), body.to_owned()), ("/v1/finish".to_owned(), String::new())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_round_of_a_thousand_workers_ends_within_two_seconds_while_a_hundred_hang() {
    // As many addresses as pods would have, on one port.
    let behaves = Fake::new(Manner::Behaves);
    let hangs = Fake::new(Manner::Hangs);
    let mut workers = Vec::new();
    let mut port = 0;
    for i in 0..1000u32 {
        let ip = Ipv4Addr::new(127, 9, (i / 250) as u8, (i % 250 + 1) as u8);
        let fake = if i % 10 == 0 { hangs.clone() } else { behaves.clone() };
        let address = serve(SocketAddr::from((ip, port)), fake).await;
        port = address.port();
        workers.push((i, endpoint(address, "secret", "1-abc")));
    }
    let scraper = Scraper::new();
    // Unoptimised, with all workers in the same process, and beside other tests: the best of a few rounds is the scraper's doing.
    let mut seen = Vec::new();
    for _ in 0..6 {
        let since = Instant::now();
        let mut answers = Vec::new();
        scraper.round(workers.clone(), |i, answer| answers.push((i, answer))).await;
        let took = since.elapsed();
        assert_eq!(answers.len(), 1000);
        let good = answers.iter().filter(|(_, answer)| answer.is_ok()).count();
        let hanging = answers.iter().filter(|(i, answer)| i % 10 == 0 && matches!(answer, Err(Error::Timeout))).count();
        assert_eq!(hanging, 100);
        if good == 900 && took < Duration::from_secs(2) {
            return;
        }
        seen.push((good, took));
    }
    panic!("no round had 900 answers within 2 s: {seen:?}");
}
