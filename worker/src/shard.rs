//! A shard's life: waiting, connecting, running, draining, finished. What it is told (by HTTP or by the run-state file)
//! comes in here, and what the engine does follows from it.
//!
//! The drain ends when this shard's own messages are settled (acknowledged, or fenced at QoS 0), and no delivery came for
//! 5 s where it subscribes; at the latest after `load.drain`. A shard cannot know what the others still send; the operator,
//! which can, ends a drain early with a second stop.

use crate::accounting::{Counter, Gauge, Snapshot};
use crate::engine::Engine;
use crate::engine::clock::unix_now;
use crate::engine::plan::ShardPlan;
use crate::engine::run::Window;
use crate::engine::targets::Targets;
use crate::engine::thread::Command;
use crate::process;
use crate::protocol::{Clock, RunState, ShardPhase, ShardStatus, Start};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// How long a snapshot may take before a scrape is answered with an error.
const SNAPSHOT_PATIENCE: Duration = Duration::from_millis(400);
/// Silence after which nothing more is expected to come.
const SILENCE: u64 = 5_000_000_000;
/// How often the shard looks where it stands.
const STEP: Duration = Duration::from_millis(20);
/// Between two snapshots that look whether the drain is over.
const DRAIN_STEP: Duration = Duration::from_millis(100);
/// Longest wait for all clients to have left; each of them waits up to 1 s for its FIN.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(3);
/// A release further back than this is another attempt's: its connect schedule starts anew instead of all at once.
const STALE_RELEASE: u64 = 1_000_000_000;

/// A request that contradicts an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict;

/// One shard of a run.
#[derive(Debug)]
pub struct Shard {
    plan: Arc<ShardPlan>,
    run_id: String,
    engine: Engine,
    state: Mutex<State>,
    collected: Notify,
}

#[derive(Debug)]
struct State {
    phase: ShardPhase,
    release: Option<u64>,
    start: Option<Start>,
    window: Option<Window>,
    /// A stop came; the second one during a drain ends it.
    stopped: bool,
    drained: bool,
    /// When the drain began, on the engine's clock.
    drain_since: u64,
    last: Option<Arc<Snapshot>>,
    is_final: bool,
}

/// What the clock and the clients ask for.
enum Step {
    /// The drain has not begun.
    Before,
    /// It has, at this instant on the engine's clock.
    Draining { since: u64 },
    /// It need not go on.
    Over,
}

impl Shard {
    /// A shard that waits for its release.
    pub fn new(plan: Arc<ShardPlan>, run_id: String, engine: Engine) -> Arc<Self> {
        let state = State {
            phase: ShardPhase::Waiting,
            release: None,
            start: None,
            window: None,
            stopped: false,
            drained: false,
            drain_since: 0,
            last: None,
            is_final: false,
        };
        Arc::new(Self { plan, run_id, engine, state: Mutex::new(state), collected: Notify::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while the lock was held cannot have left it half changed: every change is one assignment.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Hands new addresses to the engine.
    pub fn set_targets(&self, targets: Targets) {
        let targets = Arc::new(targets);
        self.engine.tell(|| Command::Targets(targets.clone()));
    }

    /// Clients may connect, counted from an instant in ns since the Unix epoch.
    ///
    /// # Errors
    /// When the shard was released for another instant.
    pub fn release(&self, at_unix_ns: u64) -> Result<(), Conflict> {
        let mut state = self.state();
        if let Some(earlier) = state.release {
            return if earlier == at_unix_ns { Ok(()) } else { Err(Conflict) };
        }
        state.release = Some(at_unix_ns);
        if state.phase == ShardPhase::Waiting && !state.stopped {
            state.phase = ShardPhase::Connecting;
            let now = self.engine.clock.now();
            let at = self.engine.clock.at_unix(at_unix_ns);
            let at = if now.saturating_sub(at) > STALE_RELEASE { now } else { at };
            self.engine.tell(|| Command::Release(at));
        }
        Ok(())
    }

    /// The window in which all shards publish.
    ///
    /// # Errors
    /// When another window is known.
    pub fn start(&self, start: Start) -> Result<(), Conflict> {
        let mut state = self.state();
        if let Some(earlier) = state.start {
            return if earlier == start { Ok(()) } else { Err(Conflict) };
        }
        state.start = Some(start);
        if !state.stopped {
            let window = Window {
                start: self.engine.clock.at_unix(start.start_unix_ns),
                end: self.engine.clock.at_unix(start.end_unix_ns),
                start_unix: start.start_unix_ns,
            };
            // Start and end keep their exact distance whatever the two readings of the clocks were.
            let end = window.start + start.end_unix_ns.saturating_sub(start.start_unix_ns);
            let window = Window { end, ..window };
            state.window = Some(window);
            self.engine.tell(|| Command::Window(window));
        }
        Ok(())
    }

    /// A graceful end now; while the shard drains, the end of the drain.
    pub fn stop(&self, reason: &str) {
        let mut state = self.state();
        if state.phase >= ShardPhase::Draining {
            state.drained = true;
            return;
        }
        if !state.stopped {
            tracing::info!(reason, "stop");
            state.stopped = true;
            let now = self.engine.clock.now();
            if let Some(window) = state.window.filter(|w| now < w.end) {
                let window = Window { end: now.max(window.start), ..window };
                state.window = Some(window);
                self.engine.tell(|| Command::Window(window));
            }
        }
    }

    /// The final snapshot was collected.
    pub fn finish(&self) {
        self.collected.notify_one();
    }

    /// Takes over what a run-state file says.
    pub fn apply(&self, run_state: &RunState) {
        if let Some(at) = run_state.release_unix_ns
            && self.release(at).is_err()
        {
            tracing::warn!("the run-state file has another release than the one received first, which stays");
        }
        if let Some(start) = run_state.start()
            && self.start(start).is_err()
        {
            tracing::warn!("the run-state file has another start than the one received first, which stays");
        }
        if let Some(reason) = &run_state.stop
            && !self.state().stopped
        {
            self.stop(reason);
        }
    }

    /// `GET /v1/status`.
    pub fn status(&self) -> ShardStatus {
        let state = self.state();
        ShardStatus {
            phase: state.phase,
            group: self.plan.group.clone(),
            shard: self.plan.slice.shard,
            attempt: u32::from(self.plan.attempt),
            run_id: self.run_id.clone(),
            release_unix_ns: state.release,
            start: state.start,
            clock: clock(),
            message: self.trouble(),
        }
    }

    /// A bit for each endpoint that closed connections without having sent a single byte.
    pub fn silent_endpoints(&self) -> u64 {
        self.engine.silent_endpoints()
    }

    /// The first failed connection, in words.
    fn trouble(&self) -> Option<String> {
        let trouble = self.engine.trouble()?;
        let endpoint = self.plan.endpoints.get(trouble.endpoint)?;
        Some(format!("{endpoint}: {}", trouble.words))
    }

    /// Labels of every series.
    pub fn labels(&self) -> Vec<(&'static str, String)> {
        vec![("group", self.plan.group.clone()), ("shard", self.plan.slice.shard.to_string())]
    }

    /// All counts now; the final ones once the shard has finished. `None` when the engine does not answer.
    pub async fn snapshot(&self) -> Option<Arc<Snapshot>> {
        {
            let state = self.state();
            if state.is_final {
                return state.last.clone();
            }
        }
        let mut snapshot = self.engine.snapshot(SNAPSHOT_PATIENCE).await?;
        process::describe(&mut snapshot);
        let snapshot = Arc::new(snapshot);
        self.state().last = Some(snapshot.clone());
        Some(snapshot)
    }

    /// Lives until the counts are final. The drain's end, DISCONNECTs and the last snapshot are included.
    pub async fn live(&self) -> Arc<Snapshot> {
        let mut looked: Option<Instant> = None;
        loop {
            tokio::time::sleep(STEP).await;
            match self.step() {
                Step::Before => {}
                Step::Over => break,
                Step::Draining { since } => {
                    if looked.is_none_or(|at| at.elapsed() >= DRAIN_STEP) {
                        looked = Some(Instant::now());
                        if self.quiet(since) && self.nothing_open().await {
                            break;
                        }
                    }
                }
            }
        }
        self.leave().await
    }

    /// Moves the phase on to where the clock and the clients are.
    fn step(&self) -> Step {
        let now = self.engine.clock.now();
        let standing = self.engine.standing();
        let mut state = self.state();
        if state.phase >= ShardPhase::Draining {
            // A run that never began has nothing to drain.
            let over = state.drained || state.window.is_none() || now >= state.drain_since.saturating_add(self.plan.drain);
            return if over { Step::Over } else { Step::Draining { since: state.drain_since } };
        }
        if state.stopped || state.window.is_some_and(|w| now >= w.end) {
            state.phase = ShardPhase::Draining;
            state.drain_since = now;
        } else if state.window.is_some_and(|w| now >= w.start) {
            state.phase = ShardPhase::Running;
        } else if state.phase == ShardPhase::Connecting
            && standing.ready + standing.failed >= u64::from(self.plan.slice.clients())
        {
            state.phase = ShardPhase::Connected;
        }
        Step::Before
    }

    /// Whether no delivery has come for long enough, where any could.
    fn quiet(&self, since: u64) -> bool {
        let last = self.engine.standing().last_received.max(since);
        self.plan.subscriptions.is_empty() || self.engine.clock.now().saturating_sub(last) >= SILENCE
    }

    async fn nothing_open(&self) -> bool {
        let open = [Gauge::Pending, Gauge::Unacked, Gauge::Unfenced];
        self.snapshot().await.is_some_and(|snapshot| open.iter().all(|gauge| snapshot.gauge(*gauge) == 0))
    }

    /// Disconnects every client and takes the final snapshot.
    pub async fn leave(&self) -> Arc<Snapshot> {
        self.state().phase = ShardPhase::Draining;
        self.engine.tell(|| Command::Leave);
        let since = Instant::now();
        while !self.engine.standing().left && since.elapsed() < LEAVE_TIMEOUT {
            tokio::time::sleep(STEP).await;
        }
        let snapshot = match self.snapshot().await {
            Some(snapshot) => snapshot,
            None => {
                tracing::error!("the engine does not answer: the counts are those of the last scrape");
                self.state().last.clone().unwrap_or_default()
            }
        };
        let mut state = self.state();
        state.last = Some(snapshot.clone());
        state.is_final = true;
        state.phase = ShardPhase::Finished;
        snapshot
    }

    /// Waits until the final counts were collected, or long enough.
    pub async fn linger(&self, longest: Duration) -> bool {
        tokio::time::timeout(longest, self.collected.notified()).await.is_ok()
    }

    /// Whether the run had ended before this process began.
    pub fn came_too_late(&self) -> bool {
        self.state().start.is_some_and(|start| unix_now() >= start.end_unix_ns)
    }

    /// One line about the counts, for the log.
    pub fn summary_line(snapshot: &Snapshot) -> String {
        format!(
            "{} connected, {} sent, {} acked, {} received, {} skipped, {} connects failed, {} disconnects",
            snapshot.get(Counter::ConnectsSucceeded),
            snapshot.total("sent"),
            snapshot.get(Counter::Acked),
            snapshot.get(Counter::Received),
            snapshot.total("skipped"),
            snapshot.total("connects_failed"),
            snapshot.total("disconnects"),
        )
    }
}

/// The process's clocks now.
fn clock() -> Clock {
    let monotonic = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)
        .map_or(0, |t| t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64);
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    Clock { unix_ns: unix_now(), monotonic_ns: monotonic, boot_id: boot_id.trim().to_owned() }
}
