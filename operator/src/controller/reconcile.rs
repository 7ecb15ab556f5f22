//! One look at one object: read, decide, write the status, act. The order matters: what was decided is in the status before
//! anything is done about it, so that another operator would go on from there.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use kube::{
    Api, Resource, ResourceExt,
    runtime::{controller::Action as Requeue, reflector::ObjectRef},
};
use mqtt_loadtest_crds::{MqttLoadTest, MqttLoadTestStatus, plan::RunPlan, status::Verdict, validate::validate};
use tracing::{debug, info, warn};

use super::{
    build::plan_config_map,
    context::{Memory, Scope},
    current::{Current, Loaded, identity, leftovers, remains, runs_left},
    error::{Error, timed},
    health::{Watched, version_number},
    status,
    step::{self, Begun},
    teardown::{is_kept, teardown},
    unreadable,
    watch::Guarded,
};
use crate::run::{RunState, lifecycle, lifecycle::Decision, plan_lost, report};

/// A reconcile that takes longer is given up and tried again.
const TOO_LONG: Duration = Duration::from_secs(60);
/// A thousand pods that start touch their run a thousand times; it is looked at no more often than this.
const LEAST_PAUSE: Duration = Duration::from_millis(100);
/// While something is being deleted.
const SOON: Duration = Duration::from_millis(500);
/// Largest plan that fits a ConfigMap (1 MiB) with its metadata.
const LARGEST_PLAN: usize = 1_000_000;

/// One look at one object.
///
/// # Errors
/// What trying again may cure.
pub async fn reconcile(seen: Arc<Guarded>, scope: Arc<Scope>) -> Result<Requeue, Error> {
    let begun = Instant::now();
    let uid = seen.meta().uid.clone().unwrap_or_default();
    let done = tokio::time::timeout(TOO_LONG, look(seen.clone(), scope.clone())).await.unwrap_or(Err(Error::TooLong(TOO_LONG)));
    scope.shared.metrics.reconciled(begun.elapsed(), done.as_ref().err().map(Error::kind));
    match done {
        Ok(requeue) => {
            scope.shared.succeeded(&uid);
            Ok(requeue)
        }
        // Someone wrote in between: read again and decide anew.
        Err(error) if error.is(409) => {
            debug!(namespace = seen.namespace(), name = seen.name_any(), "the object has changed in between");
            refresh(scope.clone(), seen.clone()).await?;
            Ok(Requeue::requeue(LEAST_PAUSE))
        }
        Err(error) => Err(error),
    }
}

/// What to do after an error.
pub fn error_policy(seen: Arc<Guarded>, error: &Error, scope: Arc<Scope>) -> Requeue {
    let wait = scope.shared.back_off(&seen.meta().uid.clone().unwrap_or_default());
    warn!(namespace = seen.namespace(), name = seen.name_any(), %error, retry_in_ms = wait.as_millis(), "a reconcile failed");
    Requeue::requeue(wait)
}

/// Reads the object past the watch.
async fn refresh(scope: Arc<Scope>, seen: Arc<Guarded>) -> Result<(), Error> {
    let api: Api<Guarded> = Api::namespaced(scope.shared.client.clone(), &seen.namespace().unwrap_or_default());
    let fresh = timed("read the MqttLoadTest", api.get_opt(&seen.name_any())).await?;
    let uid = seen.meta().uid.clone().unwrap_or_default();
    if let Some(fresh) = fresh.filter(|fresh| fresh.meta().uid.as_deref() == Some(&uid)) {
        // Of one that cannot be read the watch will tell.
        scope.shared.memory(&uid).lock().await.latest = fresh.0.ok().map(Arc::new);
    }
    Ok(())
}

async fn look(seen: Arc<Guarded>, scope: Arc<Scope>) -> Result<Requeue, Error> {
    let (scope, uid) = (&scope, seen.meta().uid.clone().unwrap_or_default());
    if seen.meta().deletion_timestamp.is_some() {
        // Garbage collection takes everything; nothing is made any more.
        return Ok(Requeue::await_change());
    }
    let memory = scope.shared.memory(&uid);
    let mut memory = memory.lock().await;
    if let Some(pause) = memory.last_look.map(|last| LEAST_PAUSE.saturating_sub(last.elapsed())).filter(|pause| !pause.is_zero())
    {
        return Ok(Requeue::requeue(pause));
    }
    memory.last_look = Some(Instant::now());
    let readable = seen.0.is_ok();
    let test = match &seen.0 {
        Ok(test) => newest(test, &mut memory),
        Err(unreadable) => match unreadable::stand_in(scope, unreadable, &mut memory).await? {
            Some(test) => test,
            None => return unreadable::report(scope, &seen, &mut memory).await,
        },
    };
    let stored = test.status.clone().unwrap_or_default();
    let problems = if readable { problems(test.clone(), &mut memory).await } else { Arc::default() };
    let generation = test.metadata.generation.unwrap_or(0);
    let now = Timestamp::now();
    match lifecycle::decide(&test.spec, problems.is_empty(), generation, &stored) {
        Decision::Begin(state) => begin(scope, &test, &mut memory, state, &stored).await,
        Decision::Continue { state, .. } if replan(&state, &test) => {
            // It waits in the queue and nothing was made yet: the edited spec takes its place.
            let hash = mqtt_loadtest_crds::hash::spec_hash(&test.spec);
            let counter = state.id.split('-').next().unwrap_or("1").to_owned();
            let id = format!("{counter}-{}", hash.get(..8).unwrap_or(&hash));
            begin(scope, &test, &mut memory, RunState::begin(id, hash, generation), &stored).await
        }
        Decision::Continue { state, spec_pending } => {
            let spec_pending = spec_pending || !readable;
            go_on(scope, &test, &mut memory, &Begun { state: &state, previous: &stored, spec_pending }).await
        }
        Decision::Rest(state) | Decision::Rebase(state) => {
            scope.shared.capacity.leave(&uid);
            go_on(scope, &test, &mut memory, &Begun { state: &state, previous: &stored, spec_pending: false }).await
        }
        Decision::Hold(last) => {
            scope.shared.capacity.leave(&uid);
            let message = "spec.suspend is true: nothing is made until it is false";
            let status = report::held(&stored, generation, "Suspended", message, now);
            apart(scope, &test, &mut memory, last.as_ref(), &stored, status).await
        }
        Decision::Invalid(last) => {
            scope.shared.capacity.leave(&uid);
            let status = report::invalid(&stored, generation, &problems, now);
            apart(scope, &test, &mut memory, last.as_ref(), &stored, status).await
        }
    }
}

/// Whether a run that waits in the queue is about another spec than the one that is there now.
fn replan(state: &RunState, test: &MqttLoadTest) -> bool {
    state.started_at.is_none() && mqtt_loadtest_crds::hash::spec_hash(&test.spec) != state.spec_hash
}

/// The object as it is known best: as the watch shows it, or as our own last write left it.
fn newest(seen: &MqttLoadTest, memory: &mut Memory) -> Arc<MqttLoadTest> {
    let version = |test: &MqttLoadTest| version_number(test.metadata.resource_version.as_deref());
    match &memory.latest {
        Some(latest) if version(latest) > version(seen) => latest.clone(),
        _ => {
            memory.latest = None;
            Arc::new(seen.clone())
        }
    }
}

/// Problems of the spec, found once for each generation: comparing a million client ids takes its time.
async fn problems(test: Arc<MqttLoadTest>, memory: &mut Memory) -> Arc<Vec<String>> {
    let generation = test.metadata.generation.unwrap_or(0);
    if let Some((about, problems)) = &memory.validity
        && *about == generation
    {
        return problems.clone();
    }
    let found = tokio::task::spawn_blocking(move || {
        let mut found: Vec<String> = validate(&test.spec).iter().map(ToString::to_string).collect();
        let plan = plan_config_map(&RunPlan::new(identity(test.as_ref(), ""), test.spec.clone()));
        let size = plan.ok().and_then(|map| map.data).map_or(0, |data| data.values().map(String::len).sum());
        if found.is_empty() && size > LARGEST_PLAN {
            found.push(format!("spec: the plan has {size} bytes and must have at most {LARGEST_PLAN}: shorten payload texts"));
        }
        found
    });
    let problems = Arc::new(found.await.unwrap_or_else(|panic| vec![format!("spec: could not be checked: {panic}")]));
    memory.validity = Some((generation, problems.clone()));
    problems
}

/// A new run: first nothing may be left of the runs before it, whose clients would take over the new one's.
async fn begin(
    scope: &Arc<Scope>,
    test: &MqttLoadTest,
    memory: &mut Memory,
    state: RunState,
    stored: &MqttLoadTestStatus,
) -> Result<Requeue, Error> {
    let left: Vec<String> = runs_left(scope, test).into_iter().filter(|id| *id != state.id).collect();
    if !left.is_empty() {
        memory.current = None;
        for id in left {
            let run = identity(test, &id);
            teardown(&scope.shared.client, &run, &remains(scope, &run), &mut memory.deleted, false).await?;
        }
        return Ok(Requeue::requeue(SOON));
    }
    info!(namespace = test.namespace(), name = test.name_any(), run = state.id, "a run begins");
    memory.current = Some(Current::new(RunPlan::new(identity(test, &state.id), test.spec.clone()), scope));
    let previous = report::cleared(stored);
    step::step(scope, test, memory, &Begun { state: &state, previous: &previous, spec_pending: false }).await
}

/// One step of a run that has begun, or of the teardown of one that has ended.
async fn go_on(scope: &Arc<Scope>, test: &MqttLoadTest, memory: &mut Memory, begun: &Begun<'_>) -> Result<Requeue, Error> {
    let state = begun.state;
    if state.ended() && state.to_run() == begun.previous.run.clone().unwrap_or_default() {
        let left = leftovers(scope, &identity(test, &state.id));
        if !left.pods && !left.others {
            // The usual case of an object at rest: no plan is made, no worker is asked.
            memory.current = None;
        }
    }
    if memory.current.as_ref().is_none_or(|current| current.id() != state.id) {
        memory.current = match Current::load(scope, test, state).await? {
            Loaded::Ready(current) => Some(*current),
            Loaded::PlanLost => {
                let lost = plan_lost(state, Timestamp::now());
                let plan = RunPlan::new(identity(test, &state.id), test.spec.clone());
                memory.current = Some(Current::new(plan, scope));
                return step::end(scope, test, memory, &lost, begun).await;
            }
        };
    }
    step::step(scope, test, memory, begun).await
}

/// A status that is not about a run, while the run before it may still have something to tear down.
async fn apart(
    scope: &Arc<Scope>,
    test: &MqttLoadTest,
    memory: &mut Memory,
    last: Option<&RunState>,
    stored: &MqttLoadTestStatus,
    status: MqttLoadTestStatus,
) -> Result<Requeue, Error> {
    memory.current = None;
    if report::is_due(stored, &status, memory.last_write, Timestamp::now()) {
        write(scope, test, memory, stored, &status).await?;
    }
    let keep = last.and_then(|last| last.outcome.as_ref()).is_some_and(|outcome| outcome.verdict != Verdict::Passed);
    take_down_all(scope, test, memory, keep).await
}

/// Takes down what is left of any run of an object; with `keep` finished pods stay for their logs.
pub(super) async fn take_down_all<K: Resource>(
    scope: &Scope,
    test: &K,
    memory: &mut Memory,
    keep: bool,
) -> Result<Requeue, Error> {
    let left: Vec<String> = runs_left(scope, test);
    let mut busy = false;
    for id in left {
        let run = identity(test, &id);
        let remains = remains(scope, &run);
        let kept = keep && remains.maps.is_empty() && remains.jobs.iter().all(|job| is_kept(job));
        if !kept {
            teardown(&scope.shared.client, &run, &remains, &mut memory.deleted, keep).await?;
            busy = true;
        }
    }
    Ok(if busy { Requeue::requeue(SOON) } else { Requeue::await_change() })
}

/// Writes the status, tells of what is new in it, and remembers the object as it is then.
pub(super) async fn write(
    scope: &Scope,
    test: &MqttLoadTest,
    memory: &mut Memory,
    stored: &MqttLoadTestStatus,
    new: &MqttLoadTestStatus,
) -> Result<(), Error> {
    let shared = &scope.shared;
    let read = memory.latest.as_deref().unwrap_or(test);
    let meta = status::write(&shared.client, &read.metadata, new).await?;
    shared.metrics.status_written();
    shared.health.expect(
        Watched::Tests,
        meta.uid.as_deref().unwrap_or_default(),
        meta.resource_version.as_deref(),
        Instant::now(),
    );
    // It was written over exactly what was read, or refused; so this is the object now.
    memory.latest = Some(Arc::new(MqttLoadTest { metadata: meta, spec: read.spec.clone(), status: Some(new.clone()) }));
    memory.last_write = Some(Timestamp::now());
    shared.events.tell(test, stored, new).await;
    Ok(())
}

/// The object's reference, as triggers name it.
pub fn reference(test: &MqttLoadTest) -> ObjectRef<Guarded> {
    ObjectRef::new(&test.name_any()).within(&test.namespace().unwrap_or_default())
}
