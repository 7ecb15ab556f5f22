//! Deleting what was made for a run. The plan goes last, and with it the token, which it owns.

use std::{
    collections::{HashMap, HashSet},
    fmt::Debug,
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::{
    NamespaceResourceScope,
    api::{batch::v1::Job, core::v1::ConfigMap, networking::v1::NetworkPolicy},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use mqtt_loadtest_crds::plan::RunIdentity;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tracing::info;

use super::{
    build::{GROUP_LABEL, Names},
    error::{Error, timed},
};

/// An object that is still there so long after its deletion is deleted again.
const AGAIN: Duration = Duration::from_secs(10);
/// Seconds for which the Jobs of a run that did not pass are kept, with their pods and the pods' logs.
pub const KEEP_SECONDS: i32 = 3600;

/// What was deleted, and when. A watch shows it a moment later, and until then it must not be deleted again.
#[derive(Debug, Default)]
pub struct Deleted(HashMap<(&'static str, String), Instant>);

impl Deleted {
    /// Whether an object is to be deleted: once, and again when it is still there long after.
    fn is_due(&mut self, kind: &'static str, name: &str, now: Instant) -> bool {
        let key = (kind, name.to_owned());
        let due = self.0.get(&key).is_none_or(|at| now.saturating_duration_since(*at) > AGAIN);
        if due {
            self.0.retain(|_, at| now.saturating_duration_since(*at) <= AGAIN);
            self.0.insert(key, now);
        }
        due
    }
}

/// What a run still has, as its watches show it.
pub struct Remains {
    /// Its Jobs.
    pub jobs: Vec<Arc<Job>>,
    /// Names of its ConfigMaps.
    pub maps: Vec<String>,
    /// Groups that have a pod which is not over.
    pub busy: HashSet<String>,
    /// Groups that have a pod whose container ran, and so has logs. The Job's own counts lag behind.
    pub ran: HashSet<String>,
}

/// Deletes everything of a run. With `keep_pods` its finished pods stay for an hour: the Jobs are ended instead, which deletes
/// pods that still run and leaves the others with their logs.
///
/// # Errors
/// At the first object that the API server does not let go; the next call goes on from there.
pub async fn teardown(
    client: &Client,
    run: &RunIdentity,
    remains: &Remains,
    deleted: &mut Deleted,
    keep_pods: bool,
) -> Result<(), Error> {
    let names = Names::new(run);
    let namespace = &run.namespace;
    let now = Instant::now();
    for job in &remains.jobs {
        let name = job.name_any();
        let is_among = |groups: &HashSet<String>| job.labels().get(GROUP_LABEL).is_some_and(|group| groups.contains(group));
        if keep_pods && is_among(&remains.ran) {
            let busy = is_among(&remains.busy);
            keep(client, namespace, job, busy).await?;
        } else if job.metadata.deletion_timestamp.is_none() && deleted.is_due("Job", &name, now) {
            delete::<Job>(client, namespace, &name, "delete a Job").await?;
        }
    }
    if remains.maps.contains(&names.plan) && deleted.is_due("NetworkPolicy", &names.network_policy, now) {
        delete::<NetworkPolicy>(client, namespace, &names.network_policy, "delete the NetworkPolicy").await?;
    }
    for name in [&names.run_state, &names.ledger, &names.plan] {
        if remains.maps.contains(name) && deleted.is_due("ConfigMap", name, now) {
            delete::<ConfigMap>(client, namespace, name, "delete a ConfigMap").await?;
        }
    }
    Ok(())
}

/// Whether the Job controller has finished with a Job.
pub fn is_finished(job: &Job) -> bool {
    let conditions = job.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|c| matches!(c.type_.as_str(), "Complete" | "Failed") && c.status == "True"))
}

/// Whether a Job is on its way out by itself.
pub fn is_kept(job: &Job) -> bool {
    job.spec.as_ref().and_then(|spec| spec.ttl_seconds_after_finished) == Some(KEEP_SECONDS)
}

async fn keep(client: &Client, namespace: &str, job: &Job, busy: bool) -> Result<(), Error> {
    let Some(patch) = keeping(job, busy) else { return Ok(()) };
    let api: Api<Job> = Api::namespaced(client.clone(), namespace);
    match timed("keep a finished Job", api.patch(&job.name_any(), &PatchParams::default(), &Patch::Merge(patch))).await {
        Err(error) if error.is(404) => Ok(()),
        done => done.map(drop),
    }
}

/// What has to be changed of a Job so that its finished pods stay for a while and no other does. A Job over its deadline
/// fails and has its running pods deleted; where all have ended, the deadline would only hit those that the Job controller has
/// not seen end yet.
fn keeping(job: &Job, busy: bool) -> Option<Value> {
    let mut spec = serde_json::Map::new();
    if !is_kept(job) {
        spec.insert("ttlSecondsAfterFinished".into(), KEEP_SECONDS.into());
    }
    let over = job.spec.as_ref().and_then(|spec| spec.active_deadline_seconds) == Some(1);
    if busy && !over && !is_finished(job) {
        spec.insert("activeDeadlineSeconds".into(), 1.into());
    }
    (!spec.is_empty()).then(|| json!({"spec": spec}))
}

/// Deletes an object, and in the background what it owns. One that is not there is fine.
async fn delete<K>(client: &Client, namespace: &str, name: &str, doing: &'static str) -> Result<(), Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    match timed(doing, api.delete(name, &DeleteParams::background())).await {
        Err(error) if error.is(404) => Ok(()),
        Err(error) => Err(error),
        Ok(_) => {
            info!(kind = %K::kind(&()), namespace, name, "deleted");
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(status: serde_json::Value) -> Job {
        serde_json::from_value(json!({"metadata": {"name": "j"}, "status": status})).unwrap()
    }

    #[test]
    fn what_was_deleted_is_not_deleted_again_while_its_watch_lags() {
        let (mut deleted, now) = (Deleted::default(), Instant::now());
        assert!(deleted.is_due("Job", "a", now));
        assert!(!deleted.is_due("Job", "a", now + AGAIN));
        assert!(deleted.is_due("ConfigMap", "a", now));
        assert!(deleted.is_due("Job", "a", now + AGAIN * 2));
    }

    #[test]
    fn a_kept_job_is_ended_only_while_a_pod_of_it_runs() {
        let running = job(json!({"active": 1}));
        assert_eq!(keeping(&running, false), Some(json!({"spec": {"ttlSecondsAfterFinished": 3600}})));
        let both = json!({"spec": {"ttlSecondsAfterFinished": 3600, "activeDeadlineSeconds": 1}});
        assert_eq!(keeping(&running, true), Some(both.clone()));
        let kept: Job = serde_json::from_value(json!({"metadata": {"name": "j"}, "spec": {
            "template": {}, "ttlSecondsAfterFinished": 3600, "activeDeadlineSeconds": 1}}))
        .unwrap();
        assert_eq!(keeping(&kept, true), None);
    }

    #[test]
    fn a_job_is_finished_when_its_controller_says_so() {
        assert!(!is_finished(&job(json!({"conditions": [{"type": "FailureTarget", "status": "True"}]}))));
        assert!(is_finished(&job(json!({"conditions": [{"type": "Failed", "status": "True"}]}))));
    }
}
