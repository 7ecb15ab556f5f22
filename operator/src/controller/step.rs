//! One step of a run: observe, ask the state machine, store its state, then do what it says.

use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use kube::{ResourceExt, runtime::controller::Action as Requeue};
use mqtt_loadtest_crds::{MqttLoadTest, MqttLoadTestStatus, status::Phase};
use tracing::{info, warn};

use super::{
    build::Names,
    context::{Memory, Scope},
    current::{Current, remains},
    error::Error,
    reconcile::write,
    teardown::{Deleted, teardown},
    trouble,
};
use crate::{
    run::{
        Action, Next, Requests, RunState, StartProblem, Target, next,
        report::{self, View},
    },
    scrape,
};

/// The label with which a MqttLoadTest names a Kueue queue for its Jobs.
const QUEUE_LABEL: &str = "kueue.x-k8s.io/queue-name";
/// Workers are asked no more often, and no more seldom while any is there.
const FASTEST: Duration = Duration::from_millis(200);
const SLOWEST: Duration = Duration::from_secs(2);
/// Events of a start that does not get on are read this often.
const EVENTS_EVERY: Duration = Duration::from_secs(4);
/// Numbers of a long run are written this far apart, which keeps a run under ten writes a minute.
const NUMBERS_EVERY: SignedDuration = SignedDuration::from_secs(15);
/// A run that has published for so long is a long one.
const LONG: SignedDuration = SignedDuration::from_secs(60);
/// Refused children are tried again this often.
const REFUSED_RETRY: Duration = Duration::from_secs(5);

/// A run as the last look left it.
pub struct Begun<'a> {
    /// Its state.
    pub state: &'a RunState,
    /// The status that the new one is made from.
    pub previous: &'a MqttLoadTestStatus,
    /// Whether the spec was edited and waits.
    pub spec_pending: bool,
}

/// One step of the run in `memory.current`.
///
/// # Errors
/// What trying again may cure; a conflict when the object has changed since it was read.
pub async fn step(scope: &Scope, test: &MqttLoadTest, memory: &mut Memory, begun: &Begun<'_>) -> Result<Requeue, Error> {
    let now = Timestamp::now();
    let Some(current) = memory.current.as_mut() else { return Ok(Requeue::await_change()) };
    if begun.state.phase == Phase::Starting {
        read_troubles(scope, current, now).await;
    }
    let observed = current.observe(scope, now);
    let next = next(&current.plan, begun.state, &observed, &requests(scope, test, begun.state), now);
    let rates = next.totals.as_ref().map(|totals| current.meter.update(totals, now).clone());
    let view = View {
        plan: &current.plan,
        next: &next,
        observed: &observed,
        rates: rates.as_ref(),
        generation: test.metadata.generation.unwrap_or(0),
        spec_pending: begun.spec_pending,
        now,
    };
    let status = report::status(begun.previous, &view);
    store(scope, test, memory, begun, &next, &status, now).await?;
    let Some(current) = memory.current.as_mut() else { return Ok(Requeue::await_change()) };
    let mut soonest = next.requeue_after;
    for action in &next.actions {
        if let Some(wait) = act(scope, test, current, &mut memory.deleted, &next.state, action).await? {
            soonest = Some(soonest.map_or(wait, |other| other.max(wait)));
        }
    }
    ask(scope, current, &next);
    Ok(soonest.map_or_else(Requeue::await_change, Requeue::requeue))
}

/// Stores a state that came about otherwise than by a step, as the end of the run.
///
/// # Errors
/// As [`step`].
pub async fn end(
    scope: &Scope,
    test: &MqttLoadTest,
    memory: &mut Memory,
    state: &RunState,
    begun: &Begun<'_>,
) -> Result<Requeue, Error> {
    let now = Timestamp::now();
    let Some(current) = memory.current.as_mut() else { return Ok(Requeue::await_change()) };
    let observed = current.observe(scope, now);
    let next = Next { state: state.clone(), actions: Vec::new(), requeue_after: None, totals: None };
    let view = View {
        plan: &current.plan,
        next: &next,
        observed: &observed,
        rates: None,
        generation: test.metadata.generation.unwrap_or(0),
        spec_pending: begun.spec_pending,
        now,
    };
    let status = report::status(begun.previous, &view);
    store(scope, test, memory, begun, &next, &status, now).await?;
    Ok(Requeue::requeue(FASTEST))
}

fn requests(scope: &Scope, test: &MqttLoadTest, state: &RunState) -> Requests {
    let shared = &scope.shared;
    let waits = state.phase == Phase::Pending && !state.ended();
    let queued = waits && {
        let created = test.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        let uid = test.uid().unwrap_or_default();
        let name = format!("{}/{}", test.namespace().unwrap_or_default(), test.name_any());
        !shared.capacity.admit(&uid, created, &name, shared.under_way().into_iter().filter(|other| *other != uid))
    };
    Requests { suspend: test.spec.suspend, stop_run: test.spec.stop_run.clone(), queued }
}

/// The status first, then the file that the pods read.
async fn store(
    scope: &Scope,
    test: &MqttLoadTest,
    memory: &mut Memory,
    begun: &Begun<'_>,
    next: &Next,
    status: &MqttLoadTestStatus,
    now: Timestamp,
) -> Result<(), Error> {
    let stored = test.status.clone().unwrap_or_default();
    let moved = next.state != *begun.state;
    let long = next.state.phase == Phase::Running && next.state.barrier_at.is_some_and(|at| now.duration_since(at) > LONG);
    let last_write = match memory.last_write {
        // As if it had been just now: only a transition is due.
        Some(last) if long && now.duration_since(last) < NUMBERS_EVERY => Some(now),
        other => other,
    };
    if moved || report::is_due(&stored, status, last_write, now) {
        write(scope, test, memory, &stored, status).await?;
    }
    if next.state.ended() && !begun.state.ended() {
        let outcome = next.state.outcome.as_ref();
        let (verdict, reason) = (outcome.map(|o| o.verdict), outcome.map(|o| o.reason.as_str()));
        info!(namespace = test.namespace(), name = test.name_any(), run = next.state.id, ?verdict, reason, "a run has ended");
        if let Some(verdict) = verdict {
            scope.shared.metrics.finished(verdict);
        }
        scope.shared.capacity.leave(&test.uid().unwrap_or_default());
        scope.shared.wake_waiting();
    } else if next.state.phase != begun.state.phase {
        info!(namespace = test.namespace(), name = test.name_any(), run = next.state.id, phase = ?next.state.phase, "a run moved on");
    }
    let Some(current) = memory.current.as_mut() else { return Ok(()) };
    let wanted = next.state.to_protocol();
    if next.state.phase > Phase::Starting && !next.state.ended() && current.run_state.as_ref() != Some(&wanted) {
        scope.shared.maker().write_run_state(&current.plan, &wanted).await?;
        current.run_state = Some(wanted);
    }
    Ok(())
}

/// Does one action. The answer is how long to wait before it is worth trying again, where that is longer than usual.
async fn act(
    scope: &Scope,
    test: &MqttLoadTest,
    current: &mut Current,
    deleted: &mut Deleted,
    state: &RunState,
    action: &Action,
) -> Result<Option<Duration>, Error> {
    let shared = &scope.shared;
    match action {
        Action::CreateChildren => {
            let run_state = state.to_protocol();
            let queue = test.labels().get(QUEUE_LABEL).map(String::as_str);
            match shared.maker().create_all(&current.plan, &run_state, queue).await {
                Ok(()) => {
                    current.made_at = Some(Instant::now());
                    current.run_state.get_or_insert(run_state);
                    current.refused = None;
                }
                Err(error) => {
                    let Some(problem) = refusal(&error) else { return Err(error) };
                    warn!(namespace = test.namespace(), name = test.name_any(), %error, "a child is refused");
                    current.refused = Some(problem);
                    return Ok(Some(REFUSED_RETRY));
                }
            }
        }
        Action::Finish { to } => {
            // A worker that was told exits; telling it again would only find nobody.
            let to: Vec<Target> = to.iter().filter(|target| !current.let_go.contains(&target.uid)).cloned().collect();
            let endpoints = current.endpoints(scope, &current.pods(scope));
            let finish = Action::Finish { to: to.clone() };
            let missed = scrape::deliver(&shared.scraper, &finish, |target| endpoints.get(&target.uid).cloned()).await;
            if missed == 0 {
                current.let_go.extend(to.into_iter().map(|target| target.uid));
            }
        }
        Action::Release { .. } | Action::Start { .. } | Action::Stop { .. } => {
            let endpoints = current.endpoints(scope, &current.pods(scope));
            scrape::deliver(&shared.scraper, action, |target| endpoints.get(&target.uid).cloned()).await;
        }
        Action::WriteLedger(ledger) => {
            shared.maker().write_ledger(&current.plan, ledger).await?;
            current.ledger = ledger.clone();
        }
        Action::Teardown { keep_pods } => {
            let run = &current.plan.run;
            teardown(&shared.client, run, &remains(scope, run), deleted, *keep_pods).await?;
            current.made_at = None;
        }
    }
    Ok(None)
}

/// A refusal of the API server that only a change of the cluster or the spec cures, in its own words.
fn refusal(error: &Error) -> Option<StartProblem> {
    if let Error::Foreign { .. } = error {
        return Some(StartProblem { reason: "NameTaken".into(), message: error.to_string(), incurable: false });
    }
    let status = error.status().filter(|status| (400..500).contains(&status.code) && ![408, 409, 429].contains(&status.code))?;
    let quota = status.message.contains("exceeded quota");
    Some(StartProblem {
        reason: if quota { "ExceededQuota".into() } else { status.reason.clone() },
        message: error.to_string(),
        incurable: status.code == 422,
    })
}

/// What events tell of a start that does not get on. A Secret's deletion shows in no watch of ours: the token's is made
/// again where pods wait for it.
async fn read_troubles(scope: &Scope, current: &mut Current, now: Timestamp) {
    if current.troubles.1.is_some_and(|last| last.elapsed() < EVENTS_EVERY) {
        return;
    }
    current.troubles.1 = Some(Instant::now());
    let run = current.plan.run.clone();
    let (jobs, pods) = (current.jobs(&scope.stores), current.pods(scope));
    match trouble::from_events(&scope.shared.client, &run.namespace, &jobs, &pods, now).await {
        Ok(problems) => current.troubles.0 = problems,
        Err(error) => warn!(namespace = run.namespace, name = run.name, %error, "events cannot be read"),
    }
    let names = Names::new(&run);
    if current.troubles.0.iter().any(|problem| problem.message.contains(&names.token)) {
        let plan = kube::runtime::reflector::ObjectRef::new(&names.plan).within(&run.namespace);
        let plan_uid = scope.stores.maps.get(&plan).and_then(|map| map.metadata.uid.clone());
        if let Some(plan_uid) = plan_uid
            && let Err(error) = scope.shared.maker().create_token(&current.plan, &plan_uid).await
        {
            warn!(namespace = run.namespace, name = run.name, %error, "the token cannot be made again");
        }
    }
}

/// Whom the scraper asks from now on.
fn ask(scope: &Scope, current: &Current, next: &Next) {
    let asked = matches!(next.state.phase, Phase::Starting | Phase::Connecting | Phase::Running | Phase::Draining)
        || next.state.ended() && next.requeue_after.is_some();
    let workers = if asked { current.endpoints(scope, &current.pods(scope)) } else { std::collections::BTreeMap::new() };
    current.rounds.ask(workers, next.requeue_after.unwrap_or(SLOWEST).clamp(FASTEST, SLOWEST));
}
