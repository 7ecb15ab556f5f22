//! The worker as a contender: the real program, with a plan file, released, started and read over its control port as the
//! operator does it. Everything it accounts for in a pod it accounts for here.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use mqtt_loadtest_crds::MqttLoadTestSpec;
use mqtt_loadtest_crds::plan::{RunIdentity, RunPlan};
use mqtt_loadtest_worker::accounting::metrics::{Format, Limits, decode};
use mqtt_loadtest_worker::accounting::{Counter, Snapshot};
use mqtt_loadtest_worker::engine::plan::ShardPlan;
use mqtt_loadtest_worker::protocol::{METRICS, READYZ, RELEASE, Release, START, STATUS, ShardPhase, ShardStatus, Start};
use nix::unistd::Pid;
use serde::Serialize;
use serde_json::{Value, json};

use crate::contender::Running;
use crate::load::{Kind, Load};
use crate::process::Process;
use crate::workload::SOURCE_CLIENTS;

/// Asked for where there is no limit: more than any engine sends on one core. Slots that cannot be sent are skipped.
const UNLIMITED_RATE: u64 = 50_000_000;
/// Clients that connect per second; connecting is not measured.
const CONNECT_RATE: u64 = 2_000;
/// Longer than any measurement.
const DURATION: Duration = Duration::from_secs(240);
/// Between the start message and the first slot.
const LEAD: Duration = Duration::from_millis(50);
/// Longest wait for one answer on the control port.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two looks at the phase.
const POLL: Duration = Duration::from_millis(50);
/// Index of the measured group: the publishers behind a receiving workload are the plan's first group.
const MEASURED_GROUP: usize = 1;

/// A running worker; ends with its guard when dropped.
pub struct Worker {
    pid: Pid,
    guard: Process,
    url: String,
    token: String,
    clients: u64,
    counter: fn(&Snapshot) -> u64,
    runtime: tokio::runtime::Runtime,
    http: reqwest::Client,
    _files: tempfile::TempDir,
}

impl Worker {
    /// Starts the program with the plan of a load; nothing connects yet.
    pub fn start(program: &Path, load: &Load) -> Result<Self> {
        let files = tempfile::tempdir()?;
        let path = |name: &str| files.path().join(name).display().to_string();
        let token = format!("bench-{}", load.id);
        std::fs::write(path("plan.json"), serde_json::to_vec(&plan(load)?)?)?;
        std::fs::write(path("token"), &token)?;
        let address: SocketAddr = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut args = vec![
            format!("--plan={}", path("plan.json")),
            format!("--group-index={}", group(load)),
            format!("--listen={address}"),
            format!("--token-file={}", path("token")),
            format!("--run-state-file={}", path("run-state.json")),
            format!("--termination-log={}", path("termination-log")),
            "--linger=1s".into(),
        ];
        if load.kind == Kind::Send && load.rate == 0 {
            // How much one core sends is the question there.
            args.push("--threads=1".into());
        }
        let variables = [("JOB_COMPLETION_INDEX", "0"), ("ATTEMPT", "0"), ("RUST_LOG", "error")];
        let (guard, pid) = Process::guarded(&program.display().to_string(), &args, &variables)?;
        Ok(Self {
            pid,
            guard,
            url: format!("http://{address}"),
            token,
            clients: load.clients as u64,
            counter: match (load.kind, load.qos) {
                (Kind::Send, 0) => |snapshot| snapshot.get(Counter::SentQos0),
                (Kind::Send, _) => |snapshot| snapshot.get(Counter::Acked),
                (Kind::Receive | Kind::Idle, _) => |snapshot| snapshot.get(Counter::Received),
            },
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build()?,
            http: reqwest::Client::builder().timeout(ANSWER_TIMEOUT).build()?,
            _files: files,
        })
    }

    fn get(&self, path: &str) -> Result<Vec<u8>> {
        let request = self.http.get(format!("{}{path}", self.url)).header("accept", Format::Protobuf.content_type());
        self.send(request, path)
    }

    fn post(&self, path: &str, body: &impl Serialize) -> Result<()> {
        self.send(self.http.post(format!("{}{path}", self.url)).json(body), path).map(drop)
    }

    fn send(&self, request: reqwest::RequestBuilder, path: &str) -> Result<Vec<u8>> {
        self.runtime.block_on(async {
            let response = request.bearer_auth(&self.token).send().await.with_context(|| format!("worker: {path}"))?;
            let status = response.status();
            let body = response.bytes().await?;
            ensure!(status.is_success(), "worker: {path} answered {status}: {}", String::from_utf8_lossy(&body));
            Ok(body.to_vec())
        })
    }

    fn counts(&self) -> Result<Snapshot> {
        Ok(decode(&self.get(METRICS)?, &Limits::default())?)
    }

    fn until(&mut self, deadline: Instant, what: &str, reached: impl Fn(&Self) -> Result<bool>) -> Result<()> {
        loop {
            self.guard.check()?;
            let answer = reached(self);
            if matches!(answer, Ok(true)) {
                return Ok(());
            }
            if Instant::now() > deadline {
                answer.with_context(|| format!("the worker is not {what} in time"))?;
                bail!("the worker is not {what} in time");
            }
            std::thread::sleep(POLL);
        }
    }
}

impl Running for Worker {
    fn pid(&self) -> Pid {
        self.pid
    }

    fn ready(&mut self, timeout: Duration) -> Result<()> {
        let deadline = Instant::now() + timeout;
        self.until(deadline, "ready", |worker| worker.get(READYZ).map(|_| true))?;
        self.post(RELEASE, &Release { at_unix_ns: unix_ns()? })?;
        self.until(deadline, "connected", |worker| {
            let status: ShardStatus = serde_json::from_slice(&worker.get(STATUS)?)?;
            Ok(status.phase >= ShardPhase::Connected)
        })?;
        // That phase is reached too when clients were given up.
        let counts = self.counts()?;
        let (connected, failed) = (counts.get(Counter::ConnectsSucceeded), counts.total("connects_failed"));
        ensure!(
            (connected, failed) == (self.clients, 0),
            "{connected} of {} clients connected, {failed} attempts failed",
            self.clients
        );
        Ok(())
    }

    fn go(&mut self) -> Result<()> {
        let start_unix_ns = unix_ns()? + LEAD.as_nanos() as u64;
        self.post(START, &Start { start_unix_ns, end_unix_ns: start_unix_ns + DURATION.as_nanos() as u64 })
    }

    fn count(&mut self) -> Result<u64> {
        self.counts().map(|counts| (self.counter)(&counts))
    }
}

/// Tag in the headers of the run that a load belongs to.
pub fn run_tag(load: &Load) -> Result<u32> {
    Ok(ShardPlan::new(&plan(load)?, group(load), 0, 0, &Default::default())?.run_tag)
}

fn group(load: &Load) -> usize {
    if load.kind == Kind::Receive { MEASURED_GROUP } else { 0 }
}

/// The plan of a load. A receiving load has the publishers in its plan too, so that the worker knows what to expect.
fn plan(load: &Load) -> Result<RunPlan> {
    let measured = |publish: Value, subscribe: Value| {
        json!({
            "name": "measured", "clients": load.clients, "clientId": format!("{}-%i", load.id), "keepAlive": "600s",
            "connect": {"ratePerSecond": CONNECT_RATE}, "publish": publish, "subscribe": subscribe, "shards": {"count": 1},
        })
    };
    let publish = |rate: u64| {
        json!([{
            "name": "load", "topic": load.topic, "qos": load.qos, "ratePerSecond": rate, "payload": {"size": load.payload.to_string()},
        }])
    };
    let groups = match load.kind {
        Kind::Send if load.rate == 0 => json!([measured(publish(UNLIMITED_RATE), json!([]))]),
        Kind::Send => json!([measured(publish(load.rate), json!([]))]),
        Kind::Receive => json!([
            {
                "name": "source", "clients": SOURCE_CLIENTS, "clientId": "source-%i",
                "publish": publish(load.rate / load.clients as u64),
            },
            measured(json!([]), json!([{"name": "all", "filter": load.topic, "qos": load.qos}])),
        ]),
        Kind::Idle => json!([measured(json!([]), json!([]))]),
    };
    let spec: MqttLoadTestSpec = serde_json::from_value(json!({
        "broker": {"endpoints": [format!("mqtt://{}", load.broker)], "protocolVersion": load.protocol.to_string()},
        "groups": groups,
        "load": {"duration": format!("{}s", DURATION.as_secs())},
    }))
    .context("the spec of a benchmark load")?;
    let run = RunIdentity { namespace: String::new(), name: "bench".into(), uid: "bench".into(), id: "1-bench".into() };
    Ok(RunPlan::new(run, spec))
}

fn unix_ns() -> Result<u64> {
    Ok(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_nanos() as u64)
}
