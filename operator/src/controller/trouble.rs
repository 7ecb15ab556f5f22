//! Why pods do not come or do not start, where neither the Job nor the pod says it but only an Event: quotas and admission
//! (`FailedCreate` on the Job), missing Secrets (`FailedMount` on the pod). Events are listed for single objects, and only
//! while a run starts and something is missing.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{batch::v1::Job, core::v1::Event};
use kube::{Api, Client, ResourceExt, api::ListParams};

use super::{
    error::{Error, timed},
    pods::{PodFacts, PodState},
};
use crate::run::StartProblem;

/// Pods of a Job are normally there after this time.
const JOB_PATIENCE: SignedDuration = SignedDuration::from_secs(2);
/// A pod on a node normally has a container after this time, or a reason of its own.
const POD_PATIENCE: SignedDuration = SignedDuration::from_secs(4);

/// The problems that Events tell of: the newest of each object that lacks something, at most one pod.
///
/// # Errors
/// When Events cannot be listed.
pub async fn from_events(
    client: &Client,
    namespace: &str,
    jobs: &[std::sync::Arc<Job>],
    pods: &[PodFacts],
    now: Timestamp,
) -> Result<Vec<StartProblem>, Error> {
    let mut found = Vec::new();
    for uid in suspects(jobs, pods, now) {
        let api: Api<Event> = Api::namespaced(client.clone(), namespace);
        let of_object = ListParams::default().fields(&format!("involvedObject.uid={uid},type=Warning")).limit(50);
        let events = timed("list the events of a child", api.list(&of_object)).await?;
        let newest = events.items.into_iter().max_by_key(when);
        found.extend(newest.as_ref().and_then(problem));
    }
    Ok(found)
}

/// UIDs of the objects whose Events are worth reading.
fn suspects(jobs: &[std::sync::Arc<Job>], pods: &[PodFacts], now: Timestamp) -> Vec<String> {
    let older = |since: Option<Timestamp>, patience| since.is_some_and(|since| now.duration_since(since) > patience);
    let mut uids: Vec<String> = jobs
        .iter()
        .filter(|job| {
            let wanted = job.spec.as_ref().and_then(|spec| spec.completions).unwrap_or(0);
            let group = job.labels().get(super::build::GROUP_LABEL);
            let there = pods.iter().filter(|pod| pod.exists && Some(&pod.group) == group).count();
            let created = job.metadata.creation_timestamp.as_ref().map(|time| time.0);
            i32::try_from(there).unwrap_or(i32::MAX) < wanted && older(created, JOB_PATIENCE)
        })
        .filter_map(|job| job.uid())
        .collect();
    let silent =
        pods.iter().find(|pod| pod.exists && pod.state == PodState::Pending(None) && older(pod.created_at, POD_PATIENCE));
    uids.extend(silent.map(|pod| pod.uid.clone()));
    uids
}

fn when(event: &Event) -> Option<Timestamp> {
    let series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref()).map(|time| time.0);
    series.or(event.last_timestamp.as_ref().map(|time| time.0)).or(event.event_time.as_ref().map(|time| time.0)).or(event
        .metadata
        .creation_timestamp
        .as_ref()
        .map(|time| time.0))
}

fn problem(event: &Event) -> Option<StartProblem> {
    let message = event.message.clone()?;
    // A readiness probe that fails at first belongs to a normal start.
    let reason = match event.reason.as_deref()? {
        "Unhealthy" => return None,
        "FailedCreate" if message.contains("exceeded quota") => "ExceededQuota",
        "FailedCreate" if message.contains("violates PodSecurity") => "PodSecurity",
        reason => reason,
    };
    Some(StartProblem { reason: reason.to_owned(), message, incurable: false })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::Arc;

    fn job() -> Arc<Job> {
        Arc::new(
            serde_json::from_value(json!({
                "metadata": {"name": "j", "uid": "job-1", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"mqttloadtest.dev/group": "g"}},
                "spec": {"completions": 1, "template": {}}
            }))
            .unwrap(),
        )
    }

    #[test]
    fn only_what_lacks_something_for_long_is_asked_about() {
        let at = |second: i64| Timestamp::from_second(1_767_225_600 + second).unwrap();
        assert_eq!(suspects(&[job()], &[], at(1)), Vec::<String>::new());
        assert_eq!(suspects(&[job()], &[], at(3)), ["job-1"]);
        let pod = PodFacts {
            uid: "pod-1".into(),
            name: "p".into(),
            group: "g".into(),
            index: 0,
            attempt: 0,
            ip: None,
            created_at: Some(at(0)),
            started_at: None,
            delete_by: None,
            state: PodState::Pending(None),
            exists: true,
        };
        assert_eq!(suspects(&[job()], std::slice::from_ref(&pod), at(3)), Vec::<String>::new());
        assert_eq!(suspects(&[job()], std::slice::from_ref(&pod), at(5)), ["pod-1"]);
        let running = PodFacts { state: PodState::Running { ready: true }, ..pod };
        assert_eq!(suspects(&[job()], &[running], at(60)), Vec::<String>::new());
    }

    #[test]
    fn quota_and_pod_security_have_reasons_of_their_own() {
        let event = |reason: &str, message: &str| -> Event {
            serde_json::from_value(json!({"metadata": {}, "involvedObject": {}, "reason": reason, "message": message})).unwrap()
        };
        let reason = |event: Event| problem(&event).map(|problem| problem.reason);
        let quota =
            "Error creating: pods \"x\" is forbidden: exceeded quota: small, requested: pods=1, used: pods=1, limited: pods=1";
        assert_eq!(reason(event("FailedCreate", quota)).as_deref(), Some("ExceededQuota"));
        assert_eq!(reason(event("FailedMount", "secret \"login\" not found")).as_deref(), Some("FailedMount"));
        assert_eq!(reason(event("Unhealthy", "Readiness probe failed")), None);
    }
}
