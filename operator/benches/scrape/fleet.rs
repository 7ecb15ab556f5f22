//! The workers: a thousand endpoints in a process of their own. Each answers as a busy shard does, from expositions that were
//! made before, and any of them can be told to hang.

use std::{
    io::{BufRead, BufReader, Write},
    net::{Ipv4Addr, SocketAddr},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::{Context, Result};
use axum::{
    Router,
    body::Bytes,
    extract::State,
    response::{IntoResponse, Response},
    routing::get,
};
use mqtt_loadtest_worker::{
    accounting::{
        Counter, Gauge, Snapshot, Stage,
        metrics::{Format, encode},
    },
    protocol::{Clock, METRICS, STATUS_HEADER, ShardPhase, ShardStatus},
};
use rand::{Rng, SeedableRng, rngs::SmallRng};

/// The first argument of a process that serves the fleet.
pub const ROLE: &str = "fleet";
/// How many workers there are.
pub const WORKERS: u32 = 1_000;
/// The run that they belong to.
pub const RUN_ID: &str = "1-abcdef12";
/// What opens them.
pub const TOKEN: &str = "benchmark";
/// Different expositions, so that merging does not always meet the same buckets.
const VARIANTS: u32 = 16;
/// Messages that a shard has counted.
const SAMPLES: u32 = 100_000;

#[derive(Debug)]
struct Worker {
    index: u32,
    exposition: Bytes,
    /// Every worker whose index is a multiple of ten and below ten times this number hangs.
    hanging: Arc<AtomicUsize>,
}

/// A busy shard: all stages have been measured, over some doublings each, with a long tail.
fn snapshot(seed: u32) -> Snapshot {
    let mut random = SmallRng::seed_from_u64(seed.into());
    let mut snapshot = Snapshot::new();
    for (place, counter) in (0u64..).zip(Counter::ALL) {
        // Most reasons of failures never occur.
        if counter.label().is_none() || place % 10 == 0 {
            snapshot.set(*counter, random.random_range(1_000..100_000_000));
        }
    }
    for gauge in Gauge::ALL {
        snapshot.set_gauge(*gauge, random.random_range(0..10_000));
    }
    for stage in Stage::ALL {
        let typical = random.random_range(50_000.0..2_000_000.0f64);
        for _ in 0..SAMPLES {
            let spread: f64 = (0..4).map(|_| random.random_range(-1.0..1.0f64)).sum();
            let tail = if random.random_ratio(1, 1_000) { random.random_range(1.0..200.0) } else { 1.0 };
            snapshot.record(*stage, (typical * spread.exp() * tail) as u64);
        }
    }
    snapshot
}

/// Serves until standard input closes: says where, then takes the number of workers that shall hang, one a line.
pub fn serve() -> Result<()> {
    crate::raise_descriptors()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let hanging = Arc::new(AtomicUsize::new(0));
    let expositions: Vec<Bytes> = (0..VARIANTS).map(exposition).collect::<Result<_>>()?;
    let port = runtime.block_on(async {
        let mut port = 0;
        for index in 0..WORKERS {
            let listener = tokio::net::TcpListener::bind(SocketAddr::from((address(index), port))).await?;
            port = listener.local_addr()?.port();
            let exposition = expositions[(index % VARIANTS) as usize].clone();
            let worker = Arc::new(Worker { index, exposition, hanging: hanging.clone() });
            let router = Router::new().route(METRICS, get(metrics)).with_state(worker);
            tokio::spawn(async move { axum::serve(listener, router).await });
        }
        anyhow::Ok(port)
    })?;
    println!("{port} {}", expositions[0].len());
    for line in std::io::stdin().lock().lines() {
        hanging.store(line?.parse()?, Ordering::Relaxed);
        println!("ok");
    }
    runtime.shutdown_background();
    Ok(())
}

fn exposition(variant: u32) -> Result<Bytes> {
    let labels = [("group", "devices".to_owned()), ("shard", variant.to_string())];
    Ok(encode(snapshot(variant).into(), &labels, Format::Protobuf)?.into())
}

/// As many addresses as pods would have.
fn address(index: u32) -> Ipv4Addr {
    Ipv4Addr::new(127, 9, (index / 250) as u8, (index % 250 + 1) as u8)
}

fn status(worker: &Worker) -> ShardStatus {
    ShardStatus {
        phase: ShardPhase::Running,
        group: "devices".into(),
        shard: worker.index,
        attempt: 0,
        run_id: RUN_ID.into(),
        release_unix_ns: Some(1_800_000_000_000_000_000),
        start: None,
        clock: Clock {
            unix_ns: 1_800_000_000_000_000_000,
            monotonic_ns: 1,
            boot_id: "6b1f5c2e-0000-4000-8000-000000000000".into(),
        },
        message: None,
    }
}

async fn metrics(State(worker): State<Arc<Worker>>) -> Response {
    if worker.index % 10 == 0 && (worker.index as usize) < 10 * worker.hanging.load(Ordering::Relaxed) {
        return std::future::pending().await;
    }
    let status = serde_json::to_string(&status(&worker)).unwrap_or_default();
    ([(STATUS_HEADER, status)], worker.exposition.clone()).into_response()
}

/// The fleet's process, seen from the operator. It ends when this is dropped.
pub struct Fleet {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    port: u16,
    /// Bytes of an exposition.
    pub exposition: usize,
}

impl Fleet {
    /// Starts it.
    pub fn start() -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(ROLE)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the workers")?;
        let stdin = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().context("no standard output")?).lines();
        let mut fleet = Self { child, stdin, lines, port: 0, exposition: 0 };
        let told = fleet.line()?;
        let (port, size) = told.split_once(' ').context("the workers say something else")?;
        (fleet.port, fleet.exposition) = (port.parse()?, size.parse()?);
        Ok(fleet)
    }

    fn line(&mut self) -> Result<String> {
        Ok(self.lines.next().context("the workers have ended")??)
    }

    /// Lets so many of them hang.
    pub fn hang(&mut self, workers: u32) -> Result<()> {
        writeln!(self.stdin.as_mut().context("standard input is closed")?, "{workers}")?;
        self.line().map(drop)
    }

    /// Where they listen, in the order of their indexes.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        (0..WORKERS).map(|index| SocketAddr::from((address(index), self.port)))
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.stdin = None;
        // It ends by itself when its input closes; nothing waits on it for long.
        for _ in 0..200 {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
