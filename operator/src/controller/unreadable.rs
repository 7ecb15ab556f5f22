//! An object that cannot be read, for example one that was written under another version of the CRD. It is reported on the
//! object itself; the watch goes on for all others.

use std::sync::Arc;

use jiff::Timestamp;
use kube::{
    Api,
    api::{ApiResource, DynamicObject},
    core::error_boundary::InvalidObject,
    runtime::controller::Action as Requeue,
};
use mqtt_loadtest_crds::{MqttLoadTest, MqttLoadTestStatus, status::Phase};
use tracing::warn;

use super::{
    context::Scope,
    error::{Error, timed},
    status,
};
use crate::run::report;

/// Says on the object why it cannot be read. A run that is under way is left alone: it ends by itself.
///
/// # Errors
/// When the API server does not answer.
pub async fn report(scope: Arc<Scope>, unreadable: InvalidObject) -> Result<Requeue, Error> {
    let name = unreadable.metadata.name.clone().unwrap_or_default();
    let namespace = unreadable.metadata.namespace.clone().unwrap_or_default();
    warn!(namespace, name, error = unreadable.error, "a MqttLoadTest cannot be read");
    let client = &scope.shared.client;
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &ApiResource::erase::<MqttLoadTest>(&()));
    let Some(raw) = timed("read the MqttLoadTest", api.get_opt(&name)).await? else { return Ok(Requeue::await_change()) };
    let stored: MqttLoadTestStatus =
        raw.data.get("status").and_then(|status| serde_json::from_value(status.clone()).ok()).unwrap_or_default();
    let under_way = stored.run.as_ref().is_some_and(|run| run.completed_at.is_none() && stored.phase != Some(Phase::Pending));
    if under_way {
        return Ok(Requeue::requeue(std::time::Duration::from_secs(60)));
    }
    let problem = format!("spec: cannot be read: {}", unreadable.error);
    let generation = unreadable.metadata.generation.unwrap_or(0);
    let new = report::invalid(&stored, generation, &[problem], Timestamp::now());
    if report::is_due(&stored, &new, None, Timestamp::now()) {
        status::write_raw(client, &raw.metadata, &new).await?;
    }
    Ok(Requeue::await_change())
}
