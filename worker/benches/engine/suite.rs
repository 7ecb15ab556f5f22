//! Runs every contender on every workload, in rounds, and takes one sample from each.
//!
//! A sample is the CPU that the contender's process used in the measured window over the messages that were
//! acknowledged, sent or received in the same window. The order of contenders changes from round to round, so
//! that a machine that gets slower or busier does so for all of them.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::broker::Broker;
use crate::contender::{Contender, Running};
use crate::frames::Protocol;
use crate::load::{Kind, Load};
use crate::process::{Process, cpu, descriptors, resident_kib};
use crate::worker;
use crate::workload::{Effort, Measure, SOURCE_CLIENTS, Workload};

/// Longest wait for 10,000 clients to connect.
const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// Connections of the smaller of the two processes whose memory is compared.
const FEW: usize = 100;
/// Time for allocations of connecting to be done with.
const SETTLE: Duration = Duration::from_secs(1);

/// Time in which every client sends a few messages.
const BUSY: Duration = Duration::from_secs(3);

/// One measured run of one contender.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// In the unit of the workload's measure.
    pub value: f64,
    /// Messages over what was asked for in the window; 1 where no rate was asked for.
    pub achieved: f64,
    /// Messages a second of wall time.
    pub rate: f64,
}

/// All samples of one contender on one workload, by round; `None` where the run failed.
pub type Samples = Vec<Option<Sample>>;

/// Runs one workload for all contenders. Failures are said on standard error and returned as their number.
pub fn run(workload: &Workload, contenders: &[Contender], protocol: Protocol, effort: Effort) -> (Vec<Samples>, usize) {
    let mut samples = vec![vec![None; effort.rounds]; contenders.len()];
    let mut failures = 0;
    let turns = (0..effort.rounds).flat_map(|round| order(round, contenders.len()).map(move |which| (round, which)));
    for (round, which) in turns {
        let name = contenders[which].name();
        eprint!("  {} round {}/{} {name}: ", workload.name, round + 1, effort.rounds);
        match sample(workload, &contenders[which], protocol, effort, round) {
            Ok(sample) => {
                let (unit, share) = (workload.measure.unit(), sample.achieved * 100.0);
                eprintln!("{:.2} {unit} ({:.0}/s, {share:.1} % of the asked rate)", sample.value, sample.rate);
                samples[which][round] = Some(sample);
            }
            Err(error) => {
                eprintln!("FAILED: {error:#}");
                failures += 1;
            }
        }
    }
    (samples, failures)
}

/// Order of the contenders in a round: rotated, and every second round backwards, so that none has a fixed place or a
/// fixed predecessor.
fn order(round: usize, contenders: usize) -> impl Iterator<Item = usize> {
    (0..contenders).map(move |turn| {
        let turn = if round.is_multiple_of(2) { turn } else { contenders - 1 - turn };
        (round / 2 + turn) % contenders
    })
}

fn sample(workload: &Workload, contender: &Contender, protocol: Protocol, effort: Effort, round: usize) -> Result<Sample> {
    // A new one for each sample, so that nothing is left of the one before.
    let mut broker = match workload.measure {
        Measure::RatePerCore { .. } => Broker::sink(workload.payload)?,
        Measure::CpuPerMessage { .. } | Measure::Memory { .. } => Broker::mosquitto()?,
    };
    let load = Load {
        kind: workload.kind,
        broker: broker.address,
        clients: workload.clients,
        rate: workload.rate,
        qos: workload.qos,
        payload: workload.payload,
        protocol,
        id: format!("{}-{round}", contender.name()),
        topic: if workload.kind == Kind::Receive { "bench/all".into() } else { "bench/%i".into() },
        run_tag: None,
    };
    match workload.measure {
        Measure::Memory { .. } => memory(contender, &load, effort),
        Measure::CpuPerMessage { .. } | Measure::RatePerCore { .. } => window(workload, contender, &load, &mut broker, effort),
    }
}

/// Runs a load and reads count and CPU at both ends of the window.
///
/// Against the sink it is the sink that counts: only what arrived was sent.
fn window(workload: &Workload, contender: &Contender, load: &Load, broker: &mut Broker, effort: Effort) -> Result<Sample> {
    let by_sink = matches!(workload.measure, Measure::RatePerCore { .. });
    let mut running = start(contender, load)?;
    let mut source = if load.kind == Kind::Receive { Some(source(load)?) } else { None };
    running.go()?;
    if let Some(source) = &mut source {
        source.say("go")?;
    }
    sleep(effort.warmup);
    let mut counted = |running: &mut Box<dyn Running>| if by_sink { broker.count() } else { running.count() };
    let (at, count, used) = (Instant::now(), counted(&mut running)?, cpu(running.pid())?);
    sleep(effort.window);
    let wall = at.elapsed().as_secs_f64();
    let messages = counted(&mut running)?.saturating_sub(count) as f64;
    let used = cpu(running.pid())?.saturating_sub(used).as_secs_f64();
    ensure!(messages > 0.0, "no message in the measured window");
    ensure!(used > 0.0, "no CPU time in the measured window");
    let value = if by_sink { messages / used } else { used * 1e6 / messages };
    let rate = messages / wall;
    let achieved = if load.rate == 0 { 1.0 } else { rate / load.rate as f64 };
    Ok(Sample { value, achieved, rate })
}

/// The publishers behind a receiving workload: the floor itself, in a process of its own. For every contender alike its
/// messages carry the accounting header, which the worker reads and the others pass over.
fn source(load: &Load) -> Result<Process> {
    let load = Load {
        kind: Kind::Send,
        clients: SOURCE_CLIENTS,
        rate: load.rate / load.clients as u64,
        id: format!("source-{}", load.id),
        run_tag: Some(worker::run_tag(load)?),
        ..load.clone()
    };
    let mut source = Process::role("floor", &load.to_args())?;
    source.expect("ready", READY_TIMEOUT)?;
    Ok(source)
}

/// Resident memory of many connections less that of a few, per connection.
fn memory(contender: &Contender, load: &Load, effort: Effort) -> Result<Sample> {
    let resident = |clients: usize| -> Result<f64> {
        // A client that publishes does so once a second.
        let rate = if load.kind == Kind::Send { clients as u64 } else { 0 };
        let load = Load { clients, rate, id: format!("{}-{clients}", load.id), ..load.clone() };
        let mut running = start(contender, &load)?;
        if load.kind == Kind::Send {
            running.go()?;
            sleep(BUSY);
            ensure!(running.count()? >= clients as u64, "not every client has sent within {BUSY:?}");
        }
        sleep(SETTLE);
        let open = descriptors(running.pid())?;
        ensure!(open >= clients, "only {open} descriptors are open: {clients} clients cannot be connected");
        resident_kib(running.pid())
    };
    let few = resident(FEW)?;
    let many = resident(effort.connections)?;
    let value = (many - few) / (effort.connections - FEW) as f64;
    Ok(Sample { value, achieved: 1.0, rate: 0.0 })
}

fn start(contender: &Contender, load: &Load) -> Result<Box<dyn Running>> {
    let mut running = contender.start(load)?;
    running.ready(READY_TIMEOUT).with_context(|| format!("{} with {} clients", contender.name(), load.clients))?;
    Ok(running)
}
