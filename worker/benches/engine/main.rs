//! Engine benchmark: what a message and a connection cost the load generator, as ratios to a raw epoll floor and to
//! other clients, measured from outside on real processes.
//!
//! Run with `cargo bench -p mqtt-loadtest-worker --bench engine -- [--quick] [FILTER...]`; method, contenders and results
//! are in `docs/benchmarks.md`. Every contender is a child process; most of them are this program in another role.

mod broker;
mod contender;
mod control;
mod eventloop;
mod floor;
mod frames;
mod load;
mod process;
mod report;
mod sink;
mod suite;
mod worker;
mod workload;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::contender::Contender;
use crate::frames::Protocol;
use crate::load::Load;
use crate::workload::{Effort, Workload};

/// The contender that the bars are for.
const JUDGED: &str = "worker";

/// CPU per message and memory per connection of the load generator.
#[derive(Parser)]
#[command(name = "engine")]
struct Options {
    /// Only workloads whose name contains one of these.
    filters: Vec<String>,
    /// A smoke test: one round of 2 s windows. Its figures mean little.
    #[arg(long)]
    quick: bool,
    /// Rounds; each contender runs once in each.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=50))]
    rounds: u32,
    /// Measured seconds of each run.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// MQTT version of every contender: 5 or 3.1.1.
    #[arg(long, default_value = "5")]
    protocol: Protocol,
    /// Only these contenders.
    #[arg(long, value_delimiter = ',')]
    contenders: Vec<String>,
    /// The worker's program; default: the one of this workspace, built with this benchmark.
    #[arg(long, default_value = env!("CARGO_BIN_EXE_mqtt-loadtest-worker"))]
    worker: PathBuf,
    /// Where the results go; default: bench.json in the target directory.
    #[arg(long)]
    output: Option<PathBuf>,
    /// Exit with status 1 when a bar does not hold.
    #[arg(long)]
    check: bool,
    /// Passed by cargo; means nothing here.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let result = if args.get(1).is_some_and(|a| a == "role") { role(&args[2..]) } else { suite(&Options::parse()) };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// What a child of the suite does.
fn role(args: &[String]) -> Result<()> {
    let (role, rest) = args.split_first().context("role needs a name")?;
    match role.as_str() {
        "guard" => process::guard(rest),
        "sink" => sink::run(rest.first().context("sink needs the payload size")?.parse()?),
        // The role stands where clap expects the name of the program.
        "floor" => floor::run(&Load::parse_from(args)),
        "eventloop" => eventloop::run(&Load::parse_from(args)),
        other => bail!("unknown role {other:?}"),
    }
}

fn suite(options: &Options) -> Result<()> {
    let target = target_directory()?;
    raise_descriptors()?;
    let effort = if options.quick {
        Effort { rounds: 1, warmup: Duration::from_millis(500), window: Duration::from_secs(2), connections: 2_000 }
    } else {
        Effort {
            rounds: options.rounds as usize,
            warmup: Duration::from_secs(1),
            window: Duration::from_secs(options.seconds),
            connections: 10_000,
        }
    };
    let contenders = contenders(options, &target);
    ensure!(!contenders.is_empty(), "no contender is left");
    let chosen = |w: &&Workload| options.filters.is_empty() || options.filters.iter().any(|f| w.name.contains(f));
    let workloads: Vec<&Workload> = workload::ALL.iter().filter(chosen).collect();
    ensure!(!workloads.is_empty(), "no workload has a name that contains one of {:?}", options.filters);

    let runs = workloads.len() * contenders.len() * effort.rounds;
    let each = effort.warmup + effort.window + Duration::from_secs(1);
    eprintln!("{runs} runs, MQTT {}; about {} s", options.protocol, (each * runs as u32).as_secs());
    eprintln!("load average before the start: {}", load_average());
    let mut rows = Vec::new();
    let mut failures = 0;
    for workload in workloads {
        let (samples, failed) = suite::run(workload, &contenders, options.protocol, effort);
        failures += failed;
        let named: Vec<_> = contenders.iter().map(Contender::name).zip(&samples).collect();
        rows.extend(report::rows(workload, &named, JUDGED));
    }
    report::print(&rows);
    let output = options.output.clone().unwrap_or_else(|| target.join("bench.json"));
    std::fs::write(&output, serde_json::to_string_pretty(&rows)?)
        .with_context(|| format!("cannot write {}", output.display()))?;
    eprintln!("written to {}", output.display());
    ensure!(failures == 0, "{failures} runs failed; see above");
    ensure!(!options.check || rows.iter().all(|r| r.holds != Some(false)), "a bar does not hold; see the table");
    Ok(())
}

fn contenders(options: &Options, target: &Path) -> Vec<Contender> {
    let wanted = |name: &str| options.contenders.is_empty() || options.contenders.iter().any(|c| c == name);
    let mut contenders: Vec<_> = [Contender::Floor, Contender::EventLoop, Contender::Worker(options.worker.clone())]
        .into_iter()
        .filter(|c| wanted(c.name()))
        .collect();
    if wanted("paho") {
        match Contender::paho(target) {
            Ok(paho) => contenders.push(paho),
            Err(error) => eprintln!("{error:#}"),
        }
    }
    contenders
}

/// The target directory that this program was built into.
fn target_directory() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let profile = program.ancestors().find(|dir| dir.ends_with("release") || dir.ends_with("debug"));
    Ok(profile.and_then(Path::parent).with_context(|| format!("{} is in no target directory", program.display()))?.into())
}

/// 10,000 connections need as many descriptors, here and in the broker, which inherits the limit.
fn raise_descriptors() -> Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).context("cannot raise the limit of open files")
}

fn load_average() -> String {
    std::fs::read_to_string("/proc/loadavg").map_or_else(|_| "unknown".into(), |s| s.trim().to_owned())
}
