//! `mqtt-loadtest-worker`: one shard of a load test, from its plan to its last word. See [`mqtt_loadtest_worker`].

use anyhow::Context;
use clap::{Parser, ValueEnum};
use mqtt_loadtest_crds::plan::{PLAN_VERSION, RunPlan};
use mqtt_loadtest_worker::accounting::{Snapshot, summary};
use mqtt_loadtest_worker::engine::Engine;
use mqtt_loadtest_worker::engine::plan::ShardPlan;
use mqtt_loadtest_worker::engine::secrets::Secrets;
use mqtt_loadtest_worker::probe::Findings;
use mqtt_loadtest_worker::protocol::{EXIT_REFUSED, EXIT_TERMINATED, RunState, Token};
use mqtt_loadtest_worker::shard::Shard;
use mqtt_loadtest_worker::{http, process, resolve};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tracing_subscriber::EnvFilter;

/// One shard of an MQTT load test.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// The plan of the run.
    #[arg(long)]
    plan: PathBuf,
    /// Which group of the plan.
    #[arg(long)]
    group_index: usize,
    /// Which shard of the group: the Job's completion index.
    #[arg(long, env = "JOB_COMPLETION_INDEX")]
    shard: u32,
    /// Attempts of this shard before this one.
    #[arg(long, env = "ATTEMPT", default_value = "0", value_parser = attempt)]
    attempt: u16,
    /// Address of the control port; with port 0 the one that was chosen is printed.
    #[arg(long, default_value = "[::]:8081")]
    listen: SocketAddr,
    /// File with the bearer token of the run.
    #[arg(long)]
    token_file: PathBuf,
    /// File with the run state, which may appear and grow at any time.
    #[arg(long)]
    run_state_file: Option<PathBuf>,
    /// File that takes the last word: a summary of the counts, or why the slice was refused.
    #[arg(long, default_value = "/dev/termination-log")]
    termination_log: PathBuf,
    /// File with the clients' password.
    #[arg(long)]
    password_file: Option<PathBuf>,
    /// PEM file with the certificate authorities that the broker's certificate must lead to; by default the public roots.
    #[arg(long)]
    ca_file: Option<PathBuf>,
    /// PEM file with the clients' certificate chain.
    #[arg(long, requires = "client_key_file")]
    client_certificate_file: Option<PathBuf>,
    /// PEM file with its private key.
    #[arg(long, requires = "client_certificate_file")]
    client_key_file: Option<PathBuf>,
    /// How long the final counts wait to be collected.
    #[arg(long, default_value = "10m", value_parser = duration)]
    linger: Duration,
    /// Event-loop threads; by default as many as the load is worth, at most one for each CPU.
    #[arg(long)]
    threads: Option<usize>,
    /// End, as at SIGTERM, when standard input closes: the process that started this one is gone.
    #[arg(long)]
    end_with_stdin: bool,
    /// Format of the log on standard error.
    #[arg(long, value_enum, default_value = "text")]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    Json,
    Text,
}

fn duration(text: &str) -> Result<Duration, String> {
    text.parse::<mqtt_loadtest_crds::value::TestDuration>().map(|d| d.get()).map_err(|e| e.to_string())
}

/// The downward API gives an empty text for an annotation that is not there yet.
fn attempt(text: &str) -> Result<u16, std::num::ParseIntError> {
    if text.is_empty() { Ok(0) } else { text.parse() }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match args.log_format {
        LogFormat::Json => log.json().init(),
        LogFormat::Text => log.init(),
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "the runtime could not be started");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(&args)) {
        Ok(code) => code,
        Err(error) => {
            let message = format!("{error:#}");
            tracing::error!("{message}");
            last_word(&args.termination_log, &message);
            ExitCode::FAILURE
        }
    }
}

async fn run(args: &Args) -> anyhow::Result<ExitCode> {
    // From the first moment, so that no SIGTERM is lost.
    let mut terminate = Terminate::new(args.end_with_stdin)?;
    let (plan, run_id) = match load(args) {
        Ok(loaded) => loaded,
        Err(refused) => {
            let message = format!("{refused:#}");
            tracing::error!("refused: {message}");
            last_word(&args.termination_log, &message);
            return Ok(ExitCode::from(EXIT_REFUSED));
        }
    };
    let token = std::fs::read_to_string(&args.token_file)
        .with_context(|| format!("the token cannot be read from {}", args.token_file.display()))?;
    let processors = std::thread::available_parallelism().map_or(1, Into::into);
    let threads = args.threads.unwrap_or_else(|| plan.threads(processors));
    let engine = Engine::start(&plan, threads).context("the event loops could not be started")?;
    let shard = Shard::new(plan.clone(), run_id, engine);
    if let Some(state) = read_run_state(args.run_state_file.as_deref()) {
        shard.apply(&state);
        if shard.came_too_late() {
            tracing::info!("the run has ended already");
            return Ok(ExitCode::SUCCESS);
        }
    }

    let listener = listen(args.listen).with_context(|| format!("{} cannot be listened on", args.listen))?;
    if args.listen.port() == 0 {
        println!("{}", serde_json::json!({"listening": listener.local_addr()?.to_string()}));
    }
    let router = http::router(shard.clone(), Token::from_text(&token));
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "the control port failed");
        }
    });
    tokio::spawn(keep_resolved(shard.clone(), plan.clone()));
    if let Some(file) = args.run_state_file.clone() {
        tokio::spawn(follow(shard.clone(), file));
    }

    tokio::select! {
        snapshot = shard.live() => {
            finished(args, &snapshot);
            tokio::select! {
                collected = shard.linger(args.linger) => {
                    if !collected {
                        tracing::warn!("nobody collected the counts; the termination message has them");
                    }
                }
                _ = terminate.recv() => {}
            }
            Ok(ExitCode::SUCCESS)
        }
        _ = terminate.recv() => {
            tracing::warn!("terminated before the end");
            let snapshot = shard.leave().await;
            finished(args, &snapshot);
            Ok(ExitCode::from(EXIT_TERMINATED))
        }
    }
}

/// What ends a worker before its time.
struct Terminate {
    signal: Signal,
    parent: Option<oneshot::Receiver<()>>,
}

impl Terminate {
    fn new(end_with_stdin: bool) -> std::io::Result<Self> {
        let parent = end_with_stdin.then(|| {
            let (gone, parent) = oneshot::channel();
            // A thread of its own: a pending read of standard input would keep the runtime from ending.
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
                let _ = gone.send(());
            });
            parent
        });
        Ok(Self { signal: signal(SignalKind::terminate())?, parent })
    }

    async fn recv(&mut self) {
        match &mut self.parent {
            None => {
                self.signal.recv().await;
            }
            Some(parent) => {
                tokio::select! {
                    _ = self.signal.recv() => {}
                    _ = parent => {}
                }
                self.parent = None;
            }
        }
    }
}

/// Reads the plan and makes sure that the slice fits.
fn load(args: &Args) -> anyhow::Result<(Arc<ShardPlan>, String)> {
    let file = &args.plan;
    let text = std::fs::read_to_string(file).with_context(|| format!("the plan cannot be read from {}", file.display()))?;
    let plan: RunPlan = serde_json::from_str(&text).with_context(|| format!("{} is not a plan", file.display()))?;
    anyhow::ensure!(
        plan.version == PLAN_VERSION,
        "the plan has version {}, this worker knows {PLAN_VERSION}: use the worker image of the operator's version",
        plan.version
    );
    let secrets = secrets(args)?;
    let shard = ShardPlan::new(&plan, args.group_index, args.shard, args.attempt, &secrets)?;
    process::reserve_descriptors(u64::from(shard.slice.clients())).map_err(anyhow::Error::msg)?;
    Ok((Arc::new(shard), plan.run.id))
}

/// Reads what is mounted from Secrets and ConfigMaps.
fn secrets(args: &Args) -> anyhow::Result<Secrets> {
    let read = |what: &str, file: &Option<PathBuf>| {
        let read = |file: &PathBuf| std::fs::read(file).with_context(|| format!("{what} cannot be read from {}", file.display()));
        file.as_ref().map(read).transpose()
    };
    let password = read("the password", &args.password_file)?
        .map(|bytes| String::from_utf8(bytes).context("the password is not UTF-8"))
        .transpose()?
        .map(|text| text.trim_end_matches(['\r', '\n']).to_owned());
    Ok(Secrets {
        password,
        ca: read("the certificate authority", &args.ca_file)?,
        client_certificate: read("the clients' certificate", &args.client_certificate_file)?,
        client_key: read("the clients' private key", &args.client_key_file)?,
    })
}

/// Listens; `[::]` takes IPv4 too, and where there is no IPv6 at all, IPv4 alone.
fn listen(address: SocketAddr) -> std::io::Result<tokio::net::TcpListener> {
    let bind = |address: SocketAddr| {
        let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(128)?;
        socket.set_nonblocking(true)?;
        tokio::net::TcpListener::from_std(socket.into())
    };
    bind(address).or_else(|error| {
        let any_v6 = address.is_ipv6() && address.ip().is_unspecified();
        if any_v6 { bind(SocketAddr::from(([0, 0, 0, 0], address.port()))) } else { Err(error) }
    })
}

/// Keeps the endpoints' addresses up to date, and finds out what listens where nothing answers.
async fn keep_resolved(shard: Arc<Shard>, plan: Arc<ShardPlan>) {
    let mut findings = Findings::new(plan.endpoints.len());
    loop {
        let (targets, again) = resolve::resolve(&plan.endpoints).await;
        shard.set_targets(findings.apply(&targets));
        findings.watch(&shard, &plan.endpoints, &targets, again).await;
    }
}

async fn follow(shard: Arc<Shard>, file: PathBuf) {
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        if let Some(state) = read_run_state(Some(&file)) {
            shard.apply(&state);
        }
    }
}

/// A file that is not there yet, or is being replaced, is no error.
fn read_run_state(file: Option<&Path>) -> Option<RunState> {
    let text = std::fs::read_to_string(file?).ok()?;
    serde_json::from_str(&text).inspect_err(|error| tracing::warn!(%error, "the run-state file cannot be read")).ok()
}

fn finished(args: &Args, snapshot: &Snapshot) {
    tracing::info!("finished: {}", Shard::summary_line(snapshot));
    last_word(&args.termination_log, &summary::encode(snapshot));
}

fn last_word(file: &Path, text: &str) {
    if let Err(error) = std::fs::write(file, text) {
        tracing::warn!(%error, file = %file.display(), "the termination message could not be written");
    }
}
