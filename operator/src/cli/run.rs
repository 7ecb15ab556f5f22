//! `mqtt-loadtest run FILE`: runs a manifest without a cluster. The result goes to standard output, progress to standard error;
//! the exit status tells the verdict.

use std::{
    env,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::ValueEnum;
use mqtt_loadtest_crds::{
    MqttLoadTest,
    hash::spec_hash,
    plan::{RunIdentity, RunPlan},
    spec::Endpoint,
};
use tokio::signal::unix::{SignalKind, signal};

use super::{EXIT_USAGE, secret_files::SecretFiles};
use crate::{
    local::{self, Options, embedded, table, verdict},
    manifest,
    run::report::exit_status,
};

/// Exit status after Ctrl-C: 128 and the number of SIGINT, as shells have it.
const EXIT_INTERRUPTED: u8 = 130;
/// Exit status when the run could not be gone through with: nothing can be said about the broker.
const EXIT_INCONCLUSIVE: u8 = 3;
const WORKER: &str = "MQTT_LOADTEST_WORKER";

/// Arguments of `run`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Manifest with one MqttLoadTest document; other kinds are passed over. `-` is standard input.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Broker to use instead of the manifest's endpoints: an address like mqtt://127.0.0.1:1883, or `embedded` for one within
    /// this process.
    #[arg(long, value_name = "URL|embedded")]
    broker: Option<String>,
    /// How the result is printed: a table, or the object's status as JSON.
    #[arg(long, default_value = "text")]
    output: Output,
    #[command(flatten)]
    secrets: SecretFiles,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

pub(super) async fn main(args: Args) -> anyhow::Result<ExitCode> {
    let (plan, hash, options) = match prepare(&args) {
        Ok(prepared) => prepared,
        Err(problems) => {
            for problem in problems {
                eprintln!("error: {}: {problem}", args.file.display());
            }
            return Ok(ExitCode::from(EXIT_USAGE));
        }
    };
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let interrupted = async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        eprintln!("interrupted: ending the workers");
    };
    match local::run(&plan, hash, &options, interrupted).await {
        Ok(Some(status)) => {
            match args.output {
                Output::Text => print!("{}", table::render(&plan.run.name, &status)),
                Output::Json => println!("{}", serde_json::to_string_pretty(&status)?),
            }
            Ok(ExitCode::from(exit_status(verdict(&status))))
        }
        Ok(None) => Ok(ExitCode::from(EXIT_INTERRUPTED)),
        Err(error) => {
            eprintln!("error: the run could not be completed: {error}");
            Ok(ExitCode::from(EXIT_INCONCLUSIVE))
        }
    }
}

/// Everything that can be wrong before anything starts.
fn prepare(args: &Args) -> Result<(RunPlan, String, Options), Vec<String>> {
    let one = |problem: String| vec![problem];
    let mut test = the_test(&args.file)?;
    let embed = args.broker.as_deref() == Some("embedded");
    if let Some(broker) = args.broker.as_ref().filter(|_| !embed) {
        Endpoint::parse(broker).map_err(|problem| one(format!("--broker: {problem}")))?;
        test.spec.broker.endpoints = vec![broker.clone()];
    }
    let mut broker = test.spec.broker.clone();
    if embed {
        // The broker within this process speaks no TLS, whatever the manifest's endpoints do.
        broker.endpoints.clear();
    }
    let secrets = args.secrets.read(&broker)?;
    let worker = worker().map_err(one)?;
    let hash = spec_hash(&test.spec);
    let name = test.metadata.name.clone().unwrap_or_default();
    let run = RunIdentity {
        namespace: test.metadata.namespace.clone().unwrap_or_default(),
        uid: format!("local-{}", std::process::id()),
        id: format!("1-{}", &hash[..8.min(hash.len())]),
        name,
    };
    let mut plan = RunPlan::new(run, test.spec);
    if embed {
        let endpoint = embedded::start(&plan).map_err(|error| one(format!("the embedded broker did not start: {error}")))?;
        plan.spec.broker.endpoints = vec![endpoint];
    }
    Ok((plan, hash, Options { worker, secrets, progress: true }))
}

/// The one test of a manifest.
fn the_test(file: &Path) -> Result<MqttLoadTest, Vec<String>> {
    let mut documents = manifest::read(file).map_err(|error| vec![error.to_string()])?;
    match documents.len() {
        0 => Err(vec!["holds no MqttLoadTest".to_owned()]),
        1 => {
            let document = documents.remove(0);
            document.result.map(|test| *test)
        }
        _ => {
            let names: Vec<&str> = documents.iter().map(|document| document.name.as_str()).collect();
            Err(vec![format!("holds {} MqttLoadTests ({}): run needs a file with one", names.len(), names.join(", "))])
        }
    }
}

/// The worker's executable: named by the environment, or beside this one.
fn worker() -> Result<PathBuf, String> {
    let path = match env::var_os(WORKER) {
        Some(path) => PathBuf::from(path),
        None => env::current_exe().map_err(|error| error.to_string())?.with_file_name("mqtt-loadtest-worker"),
    };
    if path.is_file() {
        return Ok(path);
    }
    Err(format!("there is no worker at {}: build or install mqtt-loadtest-worker there, or name it in {WORKER}", path.display()))
}
