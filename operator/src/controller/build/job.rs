//! The Indexed Job of a group: one pod per completion index, each replaced up to six times.
//!
//! No `podFailurePolicy`: it would force `podReplacementPolicy: Failed`, with which the index of a dead node is never
//! replaced (<https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-replacement-policy>).

use std::time::Duration;

use k8s_openapi::api::batch::v1::{Job, JobSpec};
use mqtt_loadtest_crds::{plan::RunPlan, spec::Load};

use super::{GROUP_LABEL, WorkerSettings, child, pod};

/// Replacements of one index.
const BACKOFF_LIMIT_PER_INDEX: i32 = 6;
/// A Job that the operator could not delete is gone after a day.
const TTL_SECONDS: i32 = 24 * 3600;
/// How long a worker keeps its final counts for collection.
pub(super) const LINGER: Duration = Duration::from_secs(600);
/// Beyond everything that is planned.
const MARGIN: Duration = Duration::from_secs(600);
/// The label with which Kueue queues a Job (<https://kueue.sigs.k8s.io/docs/tasks/run/jobs/>).
const QUEUE_LABEL: &str = "kueue.x-k8s.io/queue-name";

/// The Job of a group of the plan, by its position; None when there is no such group. `queue` is the name of a Kueue queue.
pub fn job(plan: &RunPlan, group: usize, settings: &WorkerSettings, queue: Option<&str>) -> Option<Job> {
    let planned = plan.groups.get(group)?;
    let mut metadata = child(&plan.run, &planned.job_name, "worker");
    if let Some(labels) = metadata.labels.as_mut() {
        labels.insert(GROUP_LABEL.into(), planned.name.clone());
        if let Some(queue) = queue {
            labels.insert(QUEUE_LABEL.into(), queue.to_owned());
        }
    }
    let shards = i32::try_from(planned.shards).unwrap_or(i32::MAX);
    Some(Job {
        metadata,
        spec: Some(JobSpec {
            completion_mode: Some("Indexed".into()),
            completions: Some(shards),
            parallelism: Some(shards),
            backoff_limit_per_index: Some(BACKOFF_LIMIT_PER_INDEX),
            pod_replacement_policy: Some("TerminatingOrFailed".into()),
            active_deadline_seconds: i64::try_from(backstop(&plan.spec.load).as_secs()).ok(),
            ttl_seconds_after_finished: Some(TTL_SECONDS),
            template: pod::template(plan, group, settings)?,
            ..JobSpec::default()
        }),
        ..Job::default()
    })
}

/// When the Job controller ends what should have ended long before. It deletes running pods with their counts, so it must
/// never come first.
pub fn backstop(load: &Load) -> Duration {
    load.start_timeout.get()
        + load.barrier.timeout.get()
        + load.barrier.settle.get()
        + load.duration.get()
        + load.drain.get()
        + LINGER
        + MARGIN
}

#[cfg(test)]
mod tests {
    use super::{super::tests::plan, *};

    fn settings() -> WorkerSettings {
        WorkerSettings { image: "worker:1".into(), pull_policy: "IfNotPresent".into() }
    }

    #[test]
    fn a_group_becomes_an_indexed_job_with_a_pod_per_shard() {
        let plan = plan();
        let job = job(&plan, 0, &settings(), Some("q")).unwrap();
        assert_eq!(job.metadata.name.as_deref(), Some(plan.groups[0].job_name.as_str()));
        let labels = job.metadata.labels.unwrap();
        assert_eq!((labels[GROUP_LABEL].as_str(), labels[QUEUE_LABEL].as_str()), ("devices", "q"));
        let spec = job.spec.unwrap();
        assert_eq!((spec.completion_mode.as_deref(), spec.completions, spec.parallelism), (Some("Indexed"), Some(4), Some(4)));
        assert_eq!((spec.backoff_limit_per_index, spec.backoff_limit), (Some(6), None));
        assert_eq!(spec.pod_failure_policy, None);
        assert_eq!(spec.pod_replacement_policy.as_deref(), Some("TerminatingOrFailed"));
        assert_eq!(spec.ttl_seconds_after_finished, Some(86_400));
        // 15 m + 10 m + 5 s + 60 s + 10 s + 10 m + 10 m
        assert_eq!(spec.active_deadline_seconds, Some(900 + 600 + 5 + 60 + 10 + 1200));
    }

    #[test]
    fn there_is_no_job_without_a_group() {
        assert!(job(&plan(), 2, &settings(), None).is_none());
    }
}
