//! A run without a cluster: worker processes instead of pods, the same plan, state machine, scraper and verdict.
//!
//! Everything lives in a directory of its own and ends with this process: workers end when their standard input closes,
//! which the kernel does for them even when this process is killed.

pub mod embedded;
pub mod progress;
pub mod table;

mod children;
mod directory;

use std::{io, path::PathBuf, time::Duration};

use jiff::Timestamp;
use mqtt_loadtest_crds::{MqttLoadTestStatus, plan::RunPlan, status::Verdict};
use mqtt_loadtest_worker::{engine::secrets::Secrets, protocol::Token};

use crate::{
    run::{
        Action, Children as Made, Ledger, Leftovers, Next, Observations, Requests, RunState, StartProblem, next,
        rates::Meter,
        report::{self, View},
    },
    scrape::{Memory, Scraper, deliver},
};
use children::Children;
use directory::Directory;
use progress::Progress;

/// How a run is made from a plan.
#[derive(Debug)]
pub struct Options {
    /// The worker's executable.
    pub worker: PathBuf,
    /// What the manifest takes from Secrets and ConfigMaps.
    pub secrets: Secrets,
    /// Whether progress is told on standard error.
    pub progress: bool,
}

/// Why a run could not be gone through with.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Files of the run.
    #[error("the run's directory: {0}")]
    Directory(io::Error),
    /// The executable.
    #[error("{} cannot be started: {error}", worker.display())]
    Spawn {
        /// Its path.
        worker: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// Runs a plan to its end. The status is that of a finished object.
///
/// `interrupted` resolves when the person at the keyboard has had enough; then everything is ended and the result is `None`.
///
/// # Errors
/// See [`Error`].
pub async fn run(
    plan: &RunPlan,
    hash: String,
    options: &Options,
    interrupted: impl Future<Output = ()>,
) -> Result<Option<MqttLoadTestStatus>, Error> {
    let token = Token::from_text(&random_token());
    let directory = Directory::new(plan, &token, &options.secrets).map_err(Error::Directory)?;
    let scraper = Scraper::new();
    let mut children = Children::new(plan, options.worker.clone(), token);
    let mut run = Run {
        plan,
        state: RunState::begin(plan.run.id.clone(), hash, 1),
        status: MqttLoadTestStatus::default(),
        ledger: Ledger::default(),
        memory: Memory::default(),
        meter: Meter::default(),
        since: Timestamp::now(),
        progress: Progress::new(options.progress),
    };
    let result = tokio::select! {
        result = run.go_through(&directory, &scraper, &mut children) => result.map(Some),
        () = interrupted => Ok(None),
    };
    children.end().await;
    result
}

struct Run<'a> {
    plan: &'a RunPlan,
    state: RunState,
    status: MqttLoadTestStatus,
    ledger: Ledger,
    memory: Memory,
    meter: Meter,
    since: Timestamp,
    progress: Progress,
}

impl Run<'_> {
    async fn go_through(
        &mut self,
        directory: &Directory,
        scraper: &Scraper,
        children: &mut Children,
    ) -> Result<MqttLoadTestStatus, Error> {
        loop {
            children.look(directory);
            let asked = children.to_ask(&self.memory);
            scraper.round(asked, |uid, answer| self.memory.take(&uid, answer, Timestamp::now())).await;
            let observed = self.observe(children);
            let next = next(self.plan, &self.state, &observed, &Requests::default(), Timestamp::now());
            self.take(&next, &observed, directory)?;
            let requeue = next.requeue_after;
            for action in next.actions {
                self.execute(action, directory, scraper, children).await?;
            }
            if self.state.ended() && children.all_ended() {
                return Ok(self.status.clone());
            }
            let Some(requeue) = requeue else { return Ok(self.status.clone()) };
            // Progress is told every second or so, however rarely the run itself needs a look.
            tokio::time::sleep(requeue.min(Duration::from_secs(1))).await;
        }
    }

    fn observe(&self, children: &Children) -> Observations {
        Observations {
            observing_since: self.since,
            children: if children.made() { Made::Complete } else { Made::Missing },
            leftovers: Leftovers { pods: !children.all_ended(), others: false },
            shards: children.observe(&self.memory),
            problems: Vec::<StartProblem>::new(),
            ledger: self.ledger.clone(),
            preempted: None,
        }
    }

    /// Stores the new state (here: in this process, and in the run-state file for workers that start later).
    fn take(&mut self, next: &Next, observed: &Observations, directory: &Directory) -> Result<(), Error> {
        let now = Timestamp::now();
        let rates = next.totals.as_ref().map(|totals| self.meter.update(totals, now).clone());
        let view = View { plan: self.plan, next, observed, rates: rates.as_ref(), generation: 1, spec_pending: false, now };
        self.status = report::status(&self.status, &view);
        if self.state != next.state {
            directory.write_run_state(&next.state.to_protocol()).map_err(Error::Directory)?;
            self.state = next.state.clone();
        }
        self.progress.tell(&self.state, &self.status, now);
        Ok(())
    }

    async fn execute(
        &mut self,
        action: Action,
        directory: &Directory,
        scraper: &Scraper,
        children: &mut Children,
    ) -> Result<(), Error> {
        match action {
            Action::CreateChildren => children.create(directory)?,
            Action::WriteLedger(ledger) => self.ledger = ledger,
            Action::Teardown { .. } => children.end().await,
            message => {
                deliver(scraper, &message, |target| children.endpoint(&target.uid)).await;
            }
        }
        Ok(())
    }
}

/// A token for one run: 32 random bytes.
fn random_token() -> String {
    let bytes: [u8; 32] = rand::random();
    mqtt_loadtest_crds::hash::hex(&bytes)
}

/// The verdict of a status as a run left it.
pub fn verdict(status: &MqttLoadTestStatus) -> Verdict {
    status.verdict.unwrap_or(Verdict::Inconclusive)
}
