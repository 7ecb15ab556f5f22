//! From what the watches and the scraper have shown to the observations that the state machine judges. Pure: everything
//! comes in as data.

use std::{collections::HashMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use mqtt_loadtest_crds::plan::RunPlan;
use mqtt_loadtest_worker::{
    accounting::{Snapshot, summary},
    protocol::ShardStatus,
};

use super::{
    pods::{PodFacts, PodState},
    teardown::is_finished,
};
use crate::run::{AttemptObservation, AttemptState, Counts, ShardObservation, StartProblem};

/// How long after its time a deleted pod that does not answer is taken for gone: its node is.
const OVERDUE: SignedDuration = SignedDuration::from_secs(5);
/// Longest list of problems.
const MOST_PROBLEMS: usize = 8;

/// What the scraper knows of a worker.
#[derive(Clone, Debug, Default)]
pub struct Scraped {
    /// Its last answer to `GET /v1/status`.
    pub status: Option<ShardStatus>,
    /// Its last counts, and when they were taken.
    pub counts: Option<Counts>,
    /// Whether the last attempt to reach it succeeded; None before the first.
    pub reachable: Option<bool>,
}

/// Looks up what the scraper knows, by the UID of the pod.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<Scraped>;

/// Summaries of pods that ended, by UID: each is unpacked once.
pub type Summaries = HashMap<String, Option<Arc<Snapshot>>>;

/// Every shard of the plan that has an attempt, with its attempts.
pub fn shards(
    plan: &RunPlan,
    jobs: &[Arc<Job>],
    pods: &[PodFacts],
    scraped: Lookup<'_>,
    summaries: &mut Summaries,
    now: Timestamp,
) -> Vec<ShardObservation> {
    let mut shards: Vec<ShardObservation> = Vec::new();
    for (group, planned) in plan.groups.iter().enumerate() {
        let job = jobs.iter().find(|job| job.metadata.name.as_deref() == Some(&planned.job_name));
        let failed = job.and_then(|job| job.status.as_ref()?.failed_indexes.clone()).unwrap_or_default();
        let first = shards.len();
        for index in 0..planned.shards {
            shards.push(ShardObservation { group, index, attempts: Vec::new(), given_up: holds(&failed, index) });
        }
        for pod in pods.iter().filter(|pod| pod.group == planned.name && pod.index < planned.shards) {
            let place = first + usize::try_from(pod.index).unwrap_or(usize::MAX);
            if let Some(shard) = shards.get_mut(place) {
                shard.attempts.push(attempt(pod, scraped(&pod.uid), summaries, now));
            }
        }
    }
    shards
}

fn attempt(pod: &PodFacts, scraped: Option<Scraped>, summaries: &mut Summaries, now: Timestamp) -> AttemptObservation {
    let Scraped { status, mut counts, reachable } = scraped.unwrap_or_default();
    let state = match &pod.state {
        PodState::Pending(_) => AttemptState::Pending,
        PodState::Running { .. } if reachable == Some(false) && pod.delete_by.is_some_and(|by| now > by + OVERDUE) => {
            AttemptState::Gone { noticed_at: pod.delete_by.unwrap_or(now) + OVERDUE }
        }
        PodState::Running { ready } if *ready || status.is_some() => {
            AttemptState::Live { status, reachable: reachable.unwrap_or(false) }
        }
        PodState::Running { .. } => AttemptState::Starting,
        PodState::Ended { exit_code, reason, message, at } => {
            let summary = summaries.entry(pod.uid.clone()).or_insert_with(|| {
                Some(message.trim()).filter(|text| !text.is_empty()).and_then(|text| summary::decode(text).ok()).map(Arc::new)
            });
            let words = if summary.is_some() { String::new() } else { message.clone() };
            // A scrape of a finished shard has all digits of the histograms, a summary may have fewer.
            if let Some(snapshot) = summary.as_ref().filter(|_| !counts.as_ref().is_some_and(|counts| counts.last)) {
                counts = Some(Counts { snapshot: snapshot.clone(), at: at.unwrap_or(now), last: true });
            }
            AttemptState::Ended { exit_code: *exit_code, reason: reason.clone(), message: words, at: *at }
        }
        PodState::Gone(noticed_at) => AttemptState::Gone { noticed_at: *noticed_at },
    };
    AttemptObservation { uid: pod.uid.clone(), attempt: pod.attempt, started_at: pod.started_at, state, counts }
}

/// Whether a list of indexes as Jobs write them (`1,3-5,7`) holds an index.
fn holds(indexes: &str, index: u32) -> bool {
    indexes.split(',').any(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        matches!((first.parse::<u32>(), last.parse::<u32>()), (Ok(first), Ok(last)) if (first..=last).contains(&index))
    })
}

/// Why the start does not get on, each reason once, with the number of pods that have it.
pub fn problems(jobs: &[Arc<Job>], pods: &[PodFacts], others: &[StartProblem]) -> Vec<StartProblem> {
    let mut found: Vec<StartProblem> = others.to_vec();
    for job in jobs {
        let name = job.metadata.name.as_deref().unwrap_or_default();
        if is_suspended(job) {
            let message = format!("Job {name} is suspended: its queue (Kueue) has not admitted it yet, or someone suspended it");
            found.push(StartProblem { reason: "JobSuspended".into(), message, incurable: false });
        }
        if is_finished(job) {
            let failed = job.status.iter().flat_map(|status| status.conditions.iter().flatten()).find(|c| c.type_ == "Failed");
            if let Some(failed) = failed {
                let why = failed.message.clone().unwrap_or_default();
                found.push(StartProblem {
                    reason: "JobFailed".into(),
                    message: format!("Job {name} failed: {why}"),
                    incurable: true,
                });
            }
        }
    }
    let mut by_reason: Vec<(&StartProblem, usize)> = Vec::new();
    for problem in pods.iter().filter(|pod| pod.exists).filter_map(|pod| match &pod.state {
        PodState::Pending(problem) => problem.as_ref(),
        _ => None,
    }) {
        match by_reason.iter_mut().find(|(other, _)| other.reason == problem.reason) {
            Some((_, count)) => *count += 1,
            None => by_reason.push((problem, 1)),
        }
    }
    found.extend(by_reason.into_iter().map(|(problem, count)| StartProblem {
        message: format!("{count} worker pod{}: {}", if count == 1 { "" } else { "s" }, problem.message),
        ..problem.clone()
    }));
    found.truncate(MOST_PROBLEMS);
    found
}

/// Whether somebody suspended a Job, which deletes its pods.
pub fn is_suspended(job: &Job) -> bool {
    job.spec.as_ref().and_then(|spec| spec.suspend) == Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::build::tests::plan;
    use mqtt_loadtest_worker::accounting::Counter;
    use serde_json::json;

    fn now() -> Timestamp {
        "2026-01-01T00:10:00Z".parse().unwrap()
    }

    fn pod(uid: &str, group: &str, index: u32, state: PodState) -> PodFacts {
        PodFacts {
            uid: uid.into(),
            name: uid.into(),
            group: group.into(),
            index,
            attempt: 0,
            ip: Some("10.0.0.1".into()),
            created_at: None,
            started_at: None,
            delete_by: None,
            state,
            exists: true,
        }
    }

    fn observe(pods: &[PodFacts], scraped: &HashMap<String, Scraped>) -> Vec<ShardObservation> {
        shards(&plan(), &[], pods, &|uid| scraped.get(uid).cloned(), &mut Summaries::new(), now())
    }

    #[test]
    fn every_shard_of_the_plan_is_there_and_holds_its_attempts_in_order() {
        let gone = PodState::Gone(now());
        let pods = [
            pod("a", "devices", 2, gone),
            pod("b", "devices", 2, PodState::Pending(None)),
            pod("c", "strangers", 0, PodState::Pending(None)),
        ];
        let shards = observe(&pods, &HashMap::new());
        let places: Vec<(usize, u32, usize)> =
            shards.iter().map(|shard| (shard.group, shard.index, shard.attempts.len())).collect();
        assert_eq!(places, [(0, 0, 0), (0, 1, 0), (0, 2, 2), (0, 3, 0), (1, 0, 0)]);
        assert_eq!(shards[2].attempts[1].uid, "b");
    }

    #[test]
    fn the_summary_of_an_ended_pod_becomes_its_counts_and_other_words_stay_words() {
        let mut snapshot = Snapshot::default();
        snapshot.add(Counter::Acked, 7);
        let ended =
            |message: String, code| PodState::Ended { exit_code: Some(code), reason: "Completed".into(), message, at: None };
        let pods = [
            pod("a", "devices", 0, ended(summary::encode(&snapshot), 0)),
            pod("b", "devices", 1, ended("too few file descriptors".into(), 2)),
        ];
        let shards = observe(&pods, &HashMap::new());
        let counts = shards[0].attempts[0].counts.as_ref().unwrap();
        assert_eq!((counts.snapshot.get(Counter::Acked), counts.last), (7, true));
        let AttemptState::Ended { message, .. } = &shards[1].attempts[0].state else { panic!() };
        assert_eq!(message, "too few file descriptors");
        assert!(shards[1].attempts[0].counts.is_none());
    }

    #[test]
    fn a_running_pod_is_live_once_it_is_ready_or_has_answered() {
        let running = |ready| PodState::Running { ready };
        let pods = [pod("a", "devices", 0, running(false)), pod("b", "devices", 1, running(true))];
        let shards = observe(&pods, &HashMap::new());
        assert_eq!(shards[0].attempts[0].state, AttemptState::Starting);
        assert_eq!(shards[1].attempts[0].state, AttemptState::Live { status: None, reachable: false });
    }

    #[test]
    fn a_deleted_pod_on_a_dead_node_is_gone_when_its_time_is_over() {
        let mut facts = pod("a", "devices", 0, PodState::Running { ready: true });
        facts.delete_by = Some(now() - SignedDuration::from_secs(6));
        let unreachable = HashMap::from([("a".to_owned(), Scraped { reachable: Some(false), ..Scraped::default() })]);
        let noticed_at = now() - SignedDuration::from_secs(1);
        assert_eq!(observe(&[facts.clone()], &unreachable)[0].attempts[0].state, AttemptState::Gone { noticed_at });
        let reachable = HashMap::from([("a".to_owned(), Scraped { reachable: Some(true), ..Scraped::default() })]);
        assert!(matches!(observe(&[facts], &reachable)[0].attempts[0].state, AttemptState::Live { .. }));
    }

    #[test]
    fn indexes_that_a_job_has_given_up_are_known() {
        assert!(holds("1,3-5,7", 4) && holds("1,3-5,7", 7) && holds("0", 0));
        assert!(!holds("1,3-5,7", 2) && !holds("", 0));
    }

    #[test]
    fn the_same_problem_of_many_pods_is_said_once() {
        let pending = |reason: &str| {
            PodState::Pending(Some(StartProblem { reason: reason.into(), message: "no room".into(), incurable: false }))
        };
        let pods = [
            pod("a", "devices", 0, pending("Unschedulable")),
            pod("b", "devices", 1, pending("Unschedulable")),
            pod("c", "devices", 2, pending("ErrImagePull")),
        ];
        let found = problems(&[], &pods, &[]);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].message, "2 worker pods: no room");
        let suspended: Job =
            serde_json::from_value(json!({"metadata": {"name": "j"}, "spec": {"suspend": true, "template": {}}})).unwrap();
        assert_eq!(problems(&[Arc::new(suspended)], &[], &[])[0].reason, "JobSuspended");
    }
}
