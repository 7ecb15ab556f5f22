//! The operator's side: rounds over all workers, what they said is remembered, and a step of the run adds it up.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use mqtt_loadtest_crds::{
    plan::{RunIdentity, RunPlan},
    status::Phase,
};
use mqtt_loadtest_operator::{
    run::{AttemptObservation, AttemptState, Children, Observations, Requests, RunState, ShardObservation, next},
    scrape::{Endpoint, Memory, Scraper},
};
use mqtt_loadtest_worker::{accounting::Counter, protocol::Token};
use nix::time::ClockId;
use serde_json::json;

use crate::{
    fleet::{Fleet, RUN_ID, TOKEN, WORKERS},
    report::{Row, median},
};

/// Rounds before anything is measured: connections are made, memory finds its size.
const WARM_UP: u32 = 3;
/// Workers that hang in the second half.
const HANGING: u32 = 100;

/// Scrapes all workers again and again; the figures are medians, and the largest for memory.
pub fn measure(rounds: u32) -> Result<Vec<Row>> {
    let mut fleet = Fleet::start()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut operator = Operator::new(&fleet)?;
    let (mut scraped, mut merged, mut took, mut resident) = (Vec::new(), Vec::new(), Vec::new(), resident()?);
    for round in 0..WARM_UP + rounds {
        let answered = runtime.block_on(operator.round())?;
        ensure!(answered.failures == 0, "{} of {WORKERS} workers did not answer", answered.failures);
        resident = resident.max(self::resident()?);
        if round >= WARM_UP {
            scraped.push(answered.scraping.as_secs_f64());
            merged.push(answered.merging.as_secs_f64());
            took.push(answered.took.as_secs_f64());
        }
    }
    let quiet = resident;
    fleet.hang(HANGING)?;
    let mut with_hanging = Vec::new();
    for _ in 0..rounds.min(5) {
        let answered = runtime.block_on(operator.round())?;
        ensure!(answered.failures == HANGING, "{} workers did not answer, and {HANGING} hang", answered.failures);
        with_hanging.push(answered.took.as_secs_f64());
        resident = resident.max(self::resident()?);
    }
    let both: Vec<f64> = scraped.iter().zip(&merged).map(|(a, b)| a + b).collect();
    eprintln!("an exposition has {} bytes; resident memory before the workers hung: {quiet:.1} MiB", fleet.exposition);
    Ok(vec![
        Row::new("round-of-1000/cpu", median(&both), "CPU-seconds", Some(0.1)),
        Row::new("round-of-1000/cpu-of-scraping", median(&scraped), "CPU-seconds", None),
        Row::new("round-of-1000/cpu-of-merging", median(&merged), "CPU-seconds", None),
        Row::new("round-of-1000/time", median(&took), "seconds", None),
        Row::new("round-of-1000/time-with-100-hanging", median(&with_hanging), "seconds", Some(2.0)),
        Row::new("round-of-1000/resident-memory", resident, "MiB", Some(100.0)),
    ])
}

/// What one round cost.
struct Round {
    scraping: Duration,
    merging: Duration,
    took: Duration,
    failures: u32,
}

struct Operator {
    plan: RunPlan,
    state: RunState,
    scraper: Scraper,
    workers: Vec<(String, Endpoint)>,
    memory: Memory,
    since: Timestamp,
    acked: u64,
}

impl Operator {
    fn new(fleet: &Fleet) -> Result<Self> {
        let run = RunIdentity { namespace: "ns".into(), name: "test".into(), uid: "uid".into(), id: RUN_ID.into() };
        let spec = json!({
            "broker": {"endpoints": ["mqtt://b"]},
            "groups": [{"name": "devices", "clients": 1_000_000, "shards": {"count": WORKERS},
                        "publish": [{"name": "t", "topic": "a/%i", "qos": 1, "interval": "10s"}]}],
            "load": {"duration": "1h"}
        });
        let since = Timestamp::now();
        let mut state = RunState::begin(RUN_ID.into(), "abcdef12".into(), 1);
        state.phase = Phase::Running;
        state.started_at = Some(since);
        state.released_at = Some(since);
        state.barrier_at = Some(since);
        state.ends_at = Some(since + SignedDuration::from_hours(1));
        let token = Token::from_text(TOKEN);
        let endpoint = |address| Endpoint { base: format!("http://{address}"), token: token.clone(), run_id: RUN_ID.into() };
        Ok(Self {
            plan: RunPlan::new(run, serde_json::from_value(spec)?),
            state,
            scraper: Scraper::new(),
            workers: (0..).zip(fleet.addresses()).map(|(i, address)| (uid(i), endpoint(address))).collect(),
            memory: Memory::default(),
            since,
            acked: 0,
        })
    }

    async fn round(&mut self) -> Result<Round> {
        let (began, at_first) = (Instant::now(), cpu()?);
        let now = Timestamp::now();
        let mut failures = 0;
        let memory = &mut self.memory;
        let take = |uid: String, answer: Result<_, _>| {
            failures += u32::from(answer.is_err());
            memory.take(&uid, answer, now);
        };
        self.scraper.round(self.workers.clone(), take).await;
        let (took, then) = (began.elapsed(), cpu()?);
        let step = next(&self.plan, &self.state, &self.observe(), &Requests::default(), now);
        let totals = step.totals.context("a running test has totals")?;
        let acked = totals.all.get(Counter::Acked);
        ensure!(totals.complete && acked >= self.acked.max(1), "the counts do not add up: {acked}");
        self.acked = acked;
        Ok(Round { scraping: then - at_first, merging: cpu()? - then, took, failures })
    }

    fn observe(&self) -> Observations {
        let shard = |index: u32| {
            let uid = uid(index);
            let known = self.memory.get(&uid);
            let state = AttemptState::Live {
                status: known.map(|known| known.status.clone()),
                reachable: known.is_some_and(|known| known.reachable),
            };
            let counts = known.map(|known| known.counts.clone());
            let attempt = AttemptObservation { uid, attempt: 0, started_at: Some(self.since), state, counts };
            ShardObservation { group: 0, index, attempts: vec![attempt], given_up: false }
        };
        Observations { children: Children::Complete, shards: (0..WORKERS).map(shard).collect(), ..Observations::none(self.since) }
    }
}

fn uid(index: u32) -> String {
    format!("00000000-0000-4000-8000-{index:012}")
}

/// CPU time of this process, its kernel time included.
fn cpu() -> Result<Duration> {
    Ok(ClockId::CLOCK_PROCESS_CPUTIME_ID.now()?.into())
}

/// Resident memory of this process in MiB.
fn resident() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
    let kib: f64 = line.split_whitespace().nth(1).context("no figure")?.parse()?;
    Ok(kib / 1024.0)
}
