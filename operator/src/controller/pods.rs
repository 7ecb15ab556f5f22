//! What is known of the pods of every run, the dead ones included. A pod that is deleted takes its termination message with
//! it, and a store forgets it; so facts are taken from each event of the watch as it passes, and kept until the run is over.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use kube::runtime::watcher::Event;

use super::build::{CONTAINER, GROUP_LABEL, RUN_LABEL, UID_LABEL};
use crate::run::StartProblem;

const INDEX: &str = "batch.kubernetes.io/job-completion-index";
const ATTEMPT: &str = "batch.kubernetes.io/job-index-failure-count";
/// Reasons of a waiting container that belong to a normal start.
const NORMAL: [&str; 3] = ["", "ContainerCreating", "PodInitializing"];
/// Reasons of a waiting container that no waiting cures.
const INCURABLE: [&str; 1] = ["InvalidImageName"];

/// What is known of one pod.
#[derive(Clone, Debug, PartialEq)]
pub struct PodFacts {
    /// Its UID.
    pub uid: String,
    /// Its name.
    pub name: String,
    /// Name of its group.
    pub group: String,
    /// Completion index.
    pub index: u32,
    /// Failed attempts of its index before it.
    pub attempt: u32,
    /// Its address, once it has one.
    pub ip: Option<String>,
    /// When the pod was made.
    pub created_at: Option<Timestamp>,
    /// When its container started.
    pub started_at: Option<Timestamp>,
    /// Until when it should have gone, if it is being deleted.
    pub delete_by: Option<Timestamp>,
    /// How its container is.
    pub state: PodState,
    /// Whether the object is still there.
    pub exists: bool,
}

/// How the worker's container is.
#[derive(Clone, Debug, PartialEq)]
pub enum PodState {
    /// Not started.
    Pending(Option<StartProblem>),
    /// Running; true when its readiness probe succeeds.
    Running {
        /// The readiness probe succeeds.
        ready: bool,
    },
    /// It ended.
    Ended {
        /// Exit status.
        exit_code: Option<i32>,
        /// Why, as the kubelet or the one who took the pod away says it.
        reason: String,
        /// The termination message, or the reason in words.
        message: String,
        /// When.
        at: Option<Timestamp>,
    },
    /// The object went away before anyone saw how the container ended.
    Gone(Timestamp),
}

/// The run that a pod belongs to: UID of the MqttLoadTest and `status.run.id`.
pub type RunKey = (String, String);

/// Facts of one pod; None when it is not a worker.
pub fn facts(pod: &Pod) -> Option<(RunKey, PodFacts)> {
    let meta = &pod.metadata;
    let labels = meta.labels.as_ref()?;
    let annotations = meta.annotations.as_ref();
    let annotation = |name: &str| annotations.and_then(|all| all.get(name)).and_then(|text| text.parse().ok());
    let status = pod.status.clone().unwrap_or_default();
    let container = status.container_statuses.iter().flatten().find(|container| container.name == CONTAINER);
    let started_at = container.and_then(|container| {
        let state = container.state.as_ref()?;
        let running = state.running.as_ref().and_then(|running| running.started_at.as_ref());
        running.or(state.terminated.as_ref().and_then(|ended| ended.started_at.as_ref())).map(|time| time.0)
    });
    let key = (labels.get(UID_LABEL)?.clone(), labels.get(RUN_LABEL)?.clone());
    let facts = PodFacts {
        uid: meta.uid.clone()?,
        name: meta.name.clone()?,
        group: labels.get(GROUP_LABEL)?.clone(),
        index: annotation(INDEX)?,
        attempt: annotation(ATTEMPT).unwrap_or(0),
        ip: status.pod_ip.clone().filter(|ip| !ip.is_empty()),
        created_at: meta.creation_timestamp.as_ref().map(|time| time.0),
        started_at,
        delete_by: meta.deletion_timestamp.as_ref().map(|time| time.0),
        state: state(&status, container),
        exists: true,
    };
    Some((key, facts))
}

fn state(status: &PodStatus, container: Option<&ContainerStatus>) -> PodState {
    let pod_reason = status.reason.clone().unwrap_or_default();
    let pod_message = status.message.clone().unwrap_or_default();
    let phase = status.phase.as_deref().unwrap_or_default();
    if let Some(state) = container.and_then(|container| container.state.as_ref()) {
        if let Some(ended) = &state.terminated {
            // The pod's own reason says who ended it (Evicted, Preempting), the container's only how it took it.
            let reason = if pod_reason.is_empty() { ended.reason.clone().unwrap_or_default() } else { pod_reason };
            let message = ended.message.clone().filter(|message| !message.is_empty()).unwrap_or(pod_message);
            let at = ended.finished_at.as_ref().map(|time| time.0);
            return PodState::Ended { exit_code: Some(ended.exit_code), reason, message, at };
        }
        if state.running.is_some() && phase != "Failed" {
            return PodState::Running { ready: container.is_some_and(|container| container.ready) };
        }
    }
    if matches!(phase, "Failed" | "Succeeded") {
        return PodState::Ended { exit_code: None, reason: pod_reason, message: pod_message, at: None };
    }
    PodState::Pending(problem(status, container))
}

/// Why a pod does not start, in the words of the scheduler or the kubelet.
fn problem(status: &PodStatus, container: Option<&ContainerStatus>) -> Option<StartProblem> {
    let waiting = container.and_then(|container| container.state.as_ref()?.waiting.as_ref());
    if let Some(waiting) = waiting {
        let reason = waiting.reason.clone().unwrap_or_default();
        if !NORMAL.contains(&reason.as_str()) {
            let incurable = INCURABLE.contains(&reason.as_str());
            return Some(StartProblem { reason, message: waiting.message.clone().unwrap_or_default(), incurable });
        }
    }
    let unscheduled = status.conditions.iter().flatten().find(|c| c.type_ == "PodScheduled" && c.status == "False")?;
    Some(StartProblem {
        reason: unscheduled.reason.clone().unwrap_or_else(|| "Unschedulable".into()),
        message: unscheduled.message.clone().unwrap_or_default(),
        incurable: false,
    })
}

/// The pods of every run.
#[derive(Debug, Default)]
pub struct PodLog {
    runs: Mutex<HashMap<RunKey, HashMap<String, PodFacts>>>,
    /// Pods that the list under way has shown; those that it does not show are gone.
    listed: Mutex<HashSet<String>>,
}

impl PodLog {
    fn runs(&self) -> MutexGuard<'_, HashMap<RunKey, HashMap<String, PodFacts>>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listed(&self) -> MutexGuard<'_, HashSet<String>> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of an event of the pod watch.
    pub fn note(&self, event: &Event<Pod>, now: Timestamp) {
        match event {
            Event::Init => self.listed().clear(),
            Event::InitApply(pod) => {
                self.listed().extend(pod.metadata.uid.clone());
                self.put(pod);
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut *self.listed());
                for facts in self.runs().values_mut().flat_map(HashMap::values_mut) {
                    if facts.exists && !listed.contains(&facts.uid) {
                        leave(facts, now);
                    }
                }
            }
            Event::Apply(pod) => self.put(pod),
            Event::Delete(pod) => {
                self.put(pod);
                if let Some((key, facts)) = facts(pod)
                    && let Some(facts) = self.runs().get_mut(&key).and_then(|pods| pods.get_mut(&facts.uid))
                {
                    leave(facts, now);
                }
            }
        }
    }

    fn put(&self, pod: &Pod) {
        let Some((key, facts)) = facts(pod) else { return };
        self.runs().entry(key).or_default().insert(facts.uid.clone(), facts);
    }

    /// The pods of a run, oldest first.
    pub fn of(&self, key: &RunKey) -> Vec<PodFacts> {
        let mut pods: Vec<PodFacts> = self.runs().get(key).map(|pods| pods.values().cloned().collect()).unwrap_or_default();
        pods.sort_by(|a, b| (a.created_at, a.attempt, &a.uid).cmp(&(b.created_at, b.attempt, &b.uid)));
        pods
    }

    /// Whether any pod of a run is still there.
    pub fn any_left(&self, key: &RunKey) -> bool {
        self.runs().get(key).is_some_and(|pods| pods.values().any(|pod| pod.exists))
    }

    /// Forgets the runs that `keep` does not want, unless a pod of theirs is still there.
    pub fn sweep(&self, keep: impl Fn(&RunKey) -> bool) {
        self.runs().retain(|key, pods| keep(key) || pods.values().any(|pod| pod.exists));
    }
}

/// The object of a pod is no longer there.
fn leave(facts: &mut PodFacts, now: Timestamp) {
    facts.exists = false;
    if !matches!(facts.state, PodState::Ended { .. }) {
        facts.state = PodState::Gone(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(status: Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {
                "name": "p", "namespace": "ns", "uid": "pod-1", "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {UID_LABEL: "u-1", RUN_LABEL: "1-ab", GROUP_LABEL: "devices"},
                "annotations": {INDEX: "3", ATTEMPT: "2"}
            },
            "status": status
        }))
        .unwrap()
    }

    fn state_of(status: Value) -> PodState {
        facts(&pod(status)).unwrap().1.state
    }

    fn container(state: Value) -> Value {
        json!({"phase": "Pending", "podIP": "10.0.0.7", "containerStatuses": [{"name": "worker", "image": "i", "imageID": "", "ready": true, "restartCount": 0, "state": state}]})
    }

    #[test]
    fn a_running_pod_has_an_address_an_index_and_an_attempt() {
        let (key, facts) = facts(&pod(container(json!({"running": {"startedAt": "2026-01-01T00:00:02Z"}})))).unwrap();
        assert_eq!(key, ("u-1".into(), "1-ab".into()));
        assert_eq!((facts.group.as_str(), facts.index, facts.attempt, facts.ip.as_deref()), ("devices", 3, 2, Some("10.0.0.7")));
        assert_eq!(facts.started_at, Some("2026-01-01T00:00:02Z".parse().unwrap()));
        assert_eq!(facts.state, PodState::Running { ready: true });
    }

    #[test]
    fn why_a_pod_does_not_start_is_said_in_the_words_of_kubernetes() {
        let unschedulable = state_of(json!({"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available: 1 Insufficient memory."}]}));
        let PodState::Pending(Some(problem)) = unschedulable else { panic!("{unschedulable:?}") };
        assert_eq!((problem.reason.as_str(), problem.incurable), ("Unschedulable", false));
        assert!(problem.message.contains("Insufficient memory"));

        let image =
            state_of(container(json!({"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image \"x\""}})));
        let PodState::Pending(Some(problem)) = image else { panic!("{image:?}") };
        assert_eq!((problem.reason.as_str(), problem.message.as_str()), ("ImagePullBackOff", "Back-off pulling image \"x\""));

        assert_eq!(state_of(container(json!({"waiting": {"reason": "ContainerCreating"}}))), PodState::Pending(None));
    }

    #[test]
    fn an_ended_pod_leaves_its_exit_status_and_its_last_words() {
        let oom = state_of(container(
            json!({"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-01-01T00:01:00Z"}}),
        ));
        let at = Some("2026-01-01T00:01:00Z".parse().unwrap());
        assert_eq!(oom, PodState::Ended { exit_code: Some(137), reason: "OOMKilled".into(), message: String::new(), at });
        let mut status = container(json!({"terminated": {"exitCode": 143, "reason": "Error", "message": "summary"}}));
        status["reason"] = json!("Evicted");
        let PodState::Ended { exit_code, reason, message, .. } = state_of(status) else { panic!() };
        assert_eq!((exit_code, reason.as_str(), message.as_str()), (Some(143), "Evicted", "summary"));
        let evicted =
            state_of(json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}));
        let PodState::Ended { exit_code, reason, message, .. } = evicted else { panic!() };
        assert_eq!((exit_code, reason.as_str()), (None, "Evicted"));
        assert!(message.contains("low on resource"));
    }

    #[test]
    fn a_deleted_pod_is_remembered_with_its_end_or_as_gone() {
        let log = PodLog::default();
        let key = ("u-1".to_owned(), "1-ab".to_owned());
        let now: Timestamp = "2026-01-01T00:05:00Z".parse().unwrap();
        let running = pod(container(json!({"running": {}})));
        log.note(&Event::Apply(running.clone()), now);
        assert!(log.any_left(&key));
        log.note(&Event::Delete(running), now);
        assert!(!log.any_left(&key));
        assert_eq!(log.of(&key)[0].state, PodState::Gone(now));
        let ended = pod(container(json!({"terminated": {"exitCode": 0, "message": "m"}})));
        log.note(&Event::Delete(ended), now);
        assert!(matches!(log.of(&key)[0].state, PodState::Ended { exit_code: Some(0), .. }));
    }

    #[test]
    fn pods_that_a_new_list_does_not_show_are_gone() {
        let log = PodLog::default();
        let key = ("u-1".to_owned(), "1-ab".to_owned());
        let now: Timestamp = "2026-01-01T00:05:00Z".parse().unwrap();
        log.note(&Event::Apply(pod(container(json!({"running": {}})))), now);
        log.note(&Event::Init, now);
        log.note(&Event::InitDone, now);
        assert_eq!(log.of(&key)[0].state, PodState::Gone(now));
        log.sweep(|_| false);
        assert!(log.of(&key).is_empty());
    }
}
