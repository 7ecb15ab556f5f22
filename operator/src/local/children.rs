//! Worker processes: started, watched, replaced after a death as a Job replaces its pods, and ended.

use std::{
    fs,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::{Arc, OnceLock},
    time::Duration,
};

use jiff::Timestamp;
use mqtt_loadtest_crds::plan::RunPlan;
use mqtt_loadtest_worker::{
    accounting::summary,
    protocol::{EXIT_REFUSED, Token},
};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child as Process, Command},
};

use super::{Directory, Error};
use crate::{
    run::{AttemptObservation, AttemptState, Counts, ShardObservation},
    scrape::{Endpoint, Memory},
};

/// Further attempts at a shard, as the Jobs have in a cluster (`backoffLimitPerIndex`).
const FURTHER_ATTEMPTS: u32 = 6;
/// Wait before the first of them; doubled at each.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// How long a worker may take for its DISCONNECTs when it is told to end.
const GRACE: Duration = Duration::from_secs(8);

/// All worker processes of a run.
#[derive(Debug)]
pub(super) struct Children {
    executable: PathBuf,
    token: Token,
    run_id: String,
    threads: usize,
    shards: Vec<Shard>,
    made: bool,
    /// Whether no more workers are wanted.
    closed: bool,
}

#[derive(Debug)]
struct Shard {
    group: usize,
    index: u32,
    attempts: Vec<Attempt>,
}

#[derive(Debug)]
struct Attempt {
    uid: String,
    number: u32,
    process: Process,
    address: Arc<OnceLock<String>>,
    started_at: Timestamp,
    ended: Option<Ended>,
}

#[derive(Debug)]
struct Ended {
    status: ExitStatus,
    at: Timestamp,
    counts: Option<Counts>,
    message: String,
}

impl Children {
    pub(super) fn new(plan: &RunPlan, executable: PathBuf, token: Token) -> Self {
        let shards: Vec<Shard> = plan
            .groups
            .iter()
            .enumerate()
            .flat_map(|(group, plan)| (0..plan.shards).map(move |index| Shard { group, index, attempts: Vec::new() }))
            .collect();
        // Workers share this machine, while a pod has its own CPUs.
        let cpus = std::thread::available_parallelism().map_or(1, Into::into);
        let threads = (cpus / shards.len().max(1)).max(1);
        Self { executable, token, run_id: plan.run.id.clone(), threads, shards, made: false, closed: false }
    }

    /// Whether every shard has been started.
    pub(super) fn made(&self) -> bool {
        self.made
    }

    /// Starts the first attempt of every shard that has none.
    pub(super) fn create(&mut self, directory: &Directory) -> Result<(), Error> {
        for place in 0..self.shards.len() {
            if self.shards[place].attempts.is_empty() {
                self.start(place, directory)?;
            }
        }
        self.made = true;
        Ok(())
    }

    fn start(&mut self, place: usize, directory: &Directory) -> Result<(), Error> {
        let shard = &self.shards[place];
        let number = u32::try_from(shard.attempts.len()).unwrap_or(u32::MAX);
        let uid = format!("{}-{}-{number}", shard.group, shard.index);
        let mut command = Command::new(&self.executable);
        command
            .arg("--plan")
            .arg(directory.plan())
            .args(["--group-index", &shard.group.to_string(), "--shard", &shard.index.to_string()])
            .args(["--attempt", &number.to_string(), "--listen", "127.0.0.1:0", "--threads", &self.threads.to_string()])
            .arg("--token-file")
            .arg(directory.token())
            .arg("--run-state-file")
            .arg(directory.run_state())
            .arg("--termination-log")
            .arg(directory.termination_log(&uid))
            .arg("--end-with-stdin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A process group of its own: Ctrl-C reaches this process alone, which then lets the workers disconnect.
            .process_group(0)
            .kill_on_drop(true);
        for (flag, file) in directory.secrets() {
            command.arg(flag).arg(file);
        }
        if std::env::var_os("RUST_LOG").is_none() {
            command.env("RUST_LOG", "error");
        }
        let mut process = command.spawn().map_err(|error| Error::Spawn { worker: self.executable.clone(), error })?;
        let address = Arc::new(OnceLock::new());
        if let Some(stdout) = process.stdout.take() {
            tokio::spawn(read_address(stdout, address.clone()));
        }
        let attempt = Attempt { uid, number, process, address, started_at: Timestamp::now(), ended: None };
        self.shards[place].attempts.push(attempt);
        Ok(())
    }

    /// Notices processes that ended, and replaces them when their time has come.
    pub(super) fn look(&mut self, directory: &Directory) {
        let now = Timestamp::now();
        for place in 0..self.shards.len() {
            for attempt in &mut self.shards[place].attempts {
                attempt.look(directory, now);
            }
            if !self.closed
                && self.shards[place].wants_replacement(now)
                && let Err(error) = self.start(place, directory)
            {
                tracing::warn!(%error, "a worker could not be replaced");
            }
        }
    }

    /// Workers that answer and have not said their last word.
    pub(super) fn to_ask(&self, memory: &Memory) -> Vec<(String, Endpoint)> {
        let live = self.attempts().filter(|attempt| attempt.ended.is_none() && !memory.is_final(&attempt.uid));
        live.filter_map(|attempt| Some((attempt.uid.clone(), self.endpoint_of(attempt)?))).collect()
    }

    /// Where an attempt listens.
    pub(super) fn endpoint(&self, uid: &str) -> Option<Endpoint> {
        self.endpoint_of(self.attempts().find(|attempt| attempt.uid == uid)?)
    }

    fn endpoint_of(&self, attempt: &Attempt) -> Option<Endpoint> {
        let base = format!("http://{}", attempt.address.get()?);
        Some(Endpoint { base, token: self.token.clone(), run_id: self.run_id.clone() })
    }

    fn attempts(&self) -> impl Iterator<Item = &Attempt> {
        self.shards.iter().flat_map(|shard| &shard.attempts)
    }

    /// What the state machine looks at.
    pub(super) fn observe(&self, memory: &Memory) -> Vec<ShardObservation> {
        let observe = |attempt: &Attempt| {
            let known = memory.get(&attempt.uid);
            let state = match &attempt.ended {
                Some(ended) => ended.state(),
                None if attempt.address.get().is_none() => AttemptState::Starting,
                None => AttemptState::Live {
                    status: known.map(|known| known.status.clone()),
                    reachable: known.is_some_and(|known| known.reachable),
                },
            };
            let last_word = attempt.ended.as_ref().and_then(|ended| ended.counts.clone());
            AttemptObservation {
                uid: attempt.uid.clone(),
                attempt: attempt.number,
                started_at: Some(attempt.started_at),
                state,
                counts: last_word.or_else(|| known.map(|known| known.counts.clone())),
            }
        };
        self.shards
            .iter()
            .map(|shard| ShardObservation {
                group: shard.group,
                index: shard.index,
                attempts: shard.attempts.iter().map(observe).collect(),
                given_up: shard.given_up(),
            })
            .collect()
    }

    /// Whether no process is left.
    pub(super) fn all_ended(&self) -> bool {
        self.attempts().all(|attempt| attempt.ended.is_some())
    }

    /// Ends every process: gracefully, then for good.
    pub(super) async fn end(&mut self) {
        self.closed = true;
        let mut left: Vec<&mut Attempt> =
            self.shards.iter_mut().flat_map(|shard| &mut shard.attempts).filter(|attempt| attempt.ended.is_none()).collect();
        // Closing its standard input tells a worker to leave.
        left.iter_mut().for_each(|attempt| drop(attempt.process.stdin.take()));
        let graceful = async {
            for attempt in &mut left {
                let _ = attempt.process.wait().await;
            }
        };
        if tokio::time::timeout(GRACE, graceful).await.is_err() {
            for attempt in &mut left {
                let _ = attempt.process.kill().await;
            }
        }
        let now = Timestamp::now();
        for attempt in left {
            if let Ok(Some(status)) = attempt.process.try_wait() {
                attempt.ended = Some(Ended { status, at: now, counts: None, message: String::new() });
            }
        }
    }
}

impl Shard {
    fn given_up(&self) -> bool {
        self.attempts.len() > FURTHER_ATTEMPTS as usize && self.attempts.iter().all(|attempt| attempt.ended.is_some())
    }

    /// A shard is tried again after each death, later every time; a refusal would only be repeated.
    fn wants_replacement(&self, now: Timestamp) -> bool {
        let Some(Attempt { number, ended: Some(ended), .. }) = self.attempts.last() else { return false };
        let over = ended.status.success() || ended.status.code() == Some(i32::from(EXIT_REFUSED));
        !over && *number < FURTHER_ATTEMPTS && now >= ended.at + FIRST_WAIT * (1 << *number)
    }
}

impl Attempt {
    fn look(&mut self, directory: &Directory, now: Timestamp) {
        if self.ended.is_some() {
            return;
        }
        let Ok(Some(status)) = self.process.try_wait() else { return };
        let text = fs::read_to_string(directory.termination_log(&self.uid)).unwrap_or_default();
        let (counts, message) = match summary::decode(&text) {
            Ok(snapshot) => (Some(Counts { snapshot: Arc::new(snapshot), at: now, last: true }), String::new()),
            Err(summary::Error::NotASummary) => (None, text),
            Err(error) => (None, error.to_string()),
        };
        self.ended = Some(Ended { status, at: now, counts, message });
    }
}

impl Ended {
    fn state(&self) -> AttemptState {
        let reason = match self.status.code() {
            Some(0) => "Completed".to_owned(),
            Some(_) => "Error".to_owned(),
            None => self.status.to_string(),
        };
        AttemptState::Ended { exit_code: self.status.code(), reason, message: self.message.clone(), at: Some(self.at) }
    }
}

/// Reads the one line that a worker prints: where it listens.
async fn read_address(stdout: tokio::process::ChildStdout, address: Arc<OnceLock<String>>) {
    let mut lines = BufReader::new(stdout).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let told = serde_json::from_str::<serde_json::Value>(&line).ok();
        if let Some(told) = told.as_ref().and_then(|line| line["listening"].as_str()) {
            let _ = address.set(told.to_owned());
        }
    }
}
