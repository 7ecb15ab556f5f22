//! An object that cannot be read: it was written under another version of the CRD, or holds a value that the schema lets pass
//! and the types do not. It is reported on the object itself; the watch goes on for all others, and a run that is under way goes
//! on from its stored plan.

use std::sync::Arc;

use jiff::Timestamp;
use kube::{
    Api, Resource, ResourceExt,
    api::{ApiResource, DynamicObject, ObjectMeta},
    core::error_boundary::InvalidObject,
    runtime::controller::Action as Requeue,
};
use mqtt_loadtest_crds::{MqttLoadTest, MqttLoadTestSpec, MqttLoadTestStatus, status::Verdict};
use tracing::{info, warn};

use super::{
    context::{Memory, Scope},
    current::{identity, stored_plan},
    error::{Error, timed},
    health::version_number,
    reconcile::take_down_all,
    status,
    watch::Guarded,
};
use crate::run::{RunState, report};

/// The object with the spec that its run began with, while a run is under way whose plan is known. Only `suspend` and `stopRun`
/// are read from what the object says now, since they are meant for the run.
///
/// # Errors
/// When the API server does not answer.
pub async fn stand_in(
    scope: &Scope,
    unreadable: &InvalidObject,
    memory: &mut Memory,
) -> Result<Option<Arc<MqttLoadTest>>, Error> {
    let version = |meta: &ObjectMeta| version_number(meta.resource_version.as_deref());
    let known = memory.latest.as_ref().filter(|latest| version(&latest.metadata) >= version(&unreadable.metadata));
    let test = match known {
        Some(latest) => latest.clone(),
        None => {
            memory.latest = None;
            let Some(raw) = raw(scope, &unreadable.metadata).await? else { return Ok(None) };
            let status = stored_status(&raw);
            let Some(spec) = spec_of_the_run(scope, &raw, &status, memory).await? else { return Ok(None) };
            let metadata = ObjectMeta { managed_fields: None, ..raw.metadata };
            Arc::new(MqttLoadTest { metadata, spec, status: Some(status) })
        }
    };
    if !test.status.as_ref().is_some_and(is_under_way) {
        memory.latest = None;
        return Ok(None);
    }
    memory.latest = Some(test.clone());
    Ok(Some(test))
}

/// Says on the object why it cannot be read, and takes down what is left of its runs.
///
/// # Errors
/// When the API server does not answer.
pub async fn report(scope: &Scope, seen: &Guarded, memory: &mut Memory) -> Result<Requeue, Error> {
    let Err(unreadable) = &seen.0 else { return Ok(Requeue::await_change()) };
    let (namespace, name) = (seen.namespace().unwrap_or_default(), seen.name_any());
    let Some(raw) = raw(scope, &unreadable.metadata).await? else { return Ok(Requeue::await_change()) };
    let stored = stored_status(&raw);
    let problem = problem(&raw).unwrap_or_else(|| format!("spec: cannot be read: {}", unreadable.error));
    let now = Timestamp::now();
    let new = report::invalid(&stored, raw.metadata.generation.unwrap_or(0), &[problem], now);
    if report::is_due(&stored, &new, None, now) {
        warn!(namespace, name, error = unreadable.error, "a MqttLoadTest cannot be read");
        status::write(&scope.shared.client, &raw.metadata, &new).await?;
        scope.shared.metrics.status_written();
    }
    memory.current = None;
    scope.shared.capacity.leave(seen.meta().uid.as_deref().unwrap_or_default());
    let last = RunState::from_status(&stored).and_then(|last| last.outcome);
    take_down_all(scope, seen, memory, last.is_some_and(|outcome| outcome.verdict != Verdict::Passed)).await
}

/// The object as it is stored, if it is still the one that was seen.
async fn raw(scope: &Scope, meta: &ObjectMeta) -> Result<Option<DynamicObject>, Error> {
    let (namespace, name) = (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default());
    let kind = ApiResource::erase::<MqttLoadTest>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(scope.shared.client.clone(), &namespace, &kind);
    let raw = timed("read the MqttLoadTest", api.get_opt(&name)).await?;
    Ok(raw.filter(|raw| raw.metadata.uid == meta.uid))
}

fn stored_status(raw: &DynamicObject) -> MqttLoadTestStatus {
    raw.data.get("status").and_then(|status| serde_json::from_value(status.clone()).ok()).unwrap_or_default()
}

/// The field that cannot be read, and why.
fn problem(raw: &DynamicObject) -> Option<String> {
    let spec = raw.data.get("spec").cloned().unwrap_or_default();
    let error = serde_path_to_error::deserialize::<_, MqttLoadTestSpec>(spec).err()?;
    Some(format!("spec.{}: cannot be read: {}", error.path(), error.inner()))
}

/// Whether something was made for a run that has not ended.
fn is_under_way(status: &MqttLoadTestStatus) -> bool {
    status.run.as_ref().is_some_and(|run| run.started_at.is_some() && run.completed_at.is_none())
}

async fn spec_of_the_run(
    scope: &Scope,
    raw: &DynamicObject,
    status: &MqttLoadTestStatus,
    memory: &Memory,
) -> Result<Option<MqttLoadTestSpec>, Error> {
    let Some(run) = status.run.as_ref().filter(|_| is_under_way(status)) else { return Ok(None) };
    let known = memory.current.as_ref().filter(|current| current.id() == run.id).map(|current| current.plan.spec.clone());
    let spec = match known {
        Some(spec) => Some(spec),
        None => stored_plan(&scope.shared.client, &identity(raw, &run.id)).await?.map(|plan| plan.spec),
    };
    let asked = raw.data.get("spec").cloned().unwrap_or_default();
    Ok(spec.map(|spec| {
        info!(namespace = raw.namespace(), name = raw.name_any(), run = run.id, "the run goes on from its plan");
        let stop_run = asked["stopRun"].as_str().map(str::to_owned);
        MqttLoadTestSpec { suspend: asked["suspend"].as_bool().unwrap_or(false), stop_run, ..spec }
    }))
}
