//! Scrape benchmark: what a round over a thousand workers costs the operator, in CPU, time and memory, measured on real HTTP.
//!
//! Run with `cargo bench -p mqtt-loadtest-operator --bench scrape -- [--quick]`. The workers are endpoints of a second process
//! (this program in another role), each with an address of its own on the loopback interface, so that this process holds
//! only what an operator holds. Results are added to `bench.json` in the target directory.

mod fleet;
mod report;
mod rounds;

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// CPU, time and memory of an operator that scrapes a thousand workers.
#[derive(Parser)]
#[command(name = "scrape")]
struct Options {
    /// Three rounds instead of twenty. The figures mean less.
    #[arg(long)]
    quick: bool,
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
    let done = if std::env::args().nth(1).as_deref() == Some(fleet::ROLE) { fleet::serve() } else { suite(&Options::parse()) };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn suite(options: &Options) -> Result<()> {
    raise_descriptors()?;
    let rounds = if options.quick { 3 } else { 20 };
    let rows = rounds::measure(rounds)?;
    report::print(&rows);
    let output = match &options.output {
        Some(output) => output.clone(),
        None => report::target_directory()?.join("bench.json"),
    };
    report::add(&output, &rows).with_context(|| format!("cannot write {}", output.display()))?;
    eprintln!("added to {}", output.display());
    ensure!(!options.check || rows.iter().all(|row| row.holds), "a bar does not hold; see the table");
    Ok(())
}

/// A thousand connections need as many descriptors on either side.
fn raise_descriptors() -> Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).context("cannot raise the limit of open files")
}
