//! Events on a MqttLoadTest: one at each turn of a run, for `kubectl describe`. Losing one loses nothing: the status says it all.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client, Resource,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use mqtt_loadtest_crds::{
    MqttLoadTest, MqttLoadTestStatus,
    status::{Phase, Verdict},
};
use tracing::debug;

use super::{build::MANAGER, error::timed};

/// Longest note that the API server takes (1 kB).
const LONGEST_NOTE: usize = 1000;

/// Publishes events.
#[derive(Clone)]
pub struct Events {
    recorder: Recorder,
}

impl Events {
    /// On behalf of this pod.
    pub fn new(client: Client, pod_name: &str) -> Self {
        let reporter = Reporter { controller: MANAGER.into(), instance: Some(pod_name.to_owned()) };
        Self { recorder: Recorder::new(client, reporter) }
    }

    /// Tells what changed from one status to the next, if it is worth telling.
    pub async fn tell(&self, test: &MqttLoadTest, before: &MqttLoadTestStatus, after: &MqttLoadTestStatus) {
        let Some((type_, reason, note)) = news(before, after) else { return };
        let note: String = note.chars().take(LONGEST_NOTE).collect();
        let event = Event { type_, reason: reason.clone(), note: Some(note), action: "Run".into(), secondary: None };
        let regarding: ObjectReference = test.object_ref(&());
        if let Err(error) = timed("publish an event", self.recorder.publish(&event, &regarding)).await {
            debug!(%error, reason, "an event was not published");
        }
    }
}

/// Type, reason and note of the event for a change; None when there is nothing to tell.
fn news(before: &MqttLoadTestStatus, after: &MqttLoadTestStatus) -> Option<(EventType, String, String)> {
    let id = |status: &MqttLoadTestStatus| status.run.as_ref().map(|run| run.id.clone()).unwrap_or_default();
    let same_run = id(before) == id(after);
    if let Some(verdict) = after.verdict.filter(|verdict| !same_run || before.verdict != Some(*verdict)) {
        let (type_, reason) = match verdict {
            Verdict::Passed => (EventType::Normal, "Passed"),
            Verdict::Failed => (EventType::Warning, "Failed"),
            Verdict::Inconclusive => (EventType::Warning, "Inconclusive"),
        };
        return Some((type_, reason.into(), format!("run {}: {}: {}", id(after), after.reason, after.message)));
    }
    let phase = after.phase?;
    let moved = !same_run || before.phase != after.phase;
    // While a run starts, what keeps it from starting is the news; its reason is that of Kubernetes.
    let troubled = phase == Phase::Starting && after.reason != "WaitingForWorkers" && (moved || before.reason != after.reason);
    let invalid = after.reason == "InvalidSpec" && before.message != after.message;
    if troubled || invalid {
        return Some((EventType::Warning, after.reason.clone(), after.message.clone()));
    }
    let note = match phase {
        Phase::Starting => format!("run {}: worker pods are made", id(after)),
        Phase::Connecting => format!("run {}: all worker pods are ready; clients connect", id(after)),
        Phase::Running => format!("run {}: {}", id(after), after.message),
        Phase::Draining => format!("run {}: publishing has ended", id(after)),
        Phase::Pending if !after.reason.is_empty() => after.message.clone(),
        _ => return None,
    };
    let reason = if phase == Phase::Pending { after.reason.clone() } else { format!("{phase:?}") };
    moved.then_some((EventType::Normal, reason, note))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqtt_loadtest_crds::status::Run;

    fn status(phase: Phase, reason: &str) -> MqttLoadTestStatus {
        let run = Run { id: "1-a".into(), ..Run::default() };
        MqttLoadTestStatus { phase: Some(phase), reason: reason.into(), run: Some(run), ..MqttLoadTestStatus::default() }
    }

    fn reason(before: &MqttLoadTestStatus, after: &MqttLoadTestStatus) -> Option<String> {
        news(before, after).map(|(_, reason, _)| reason)
    }

    #[test]
    fn each_turn_of_a_run_is_told_once() {
        let none = MqttLoadTestStatus::default();
        let starting = status(Phase::Starting, "WaitingForWorkers");
        assert_eq!(reason(&none, &starting).as_deref(), Some("Starting"));
        assert_eq!(reason(&starting, &starting), None);
        let running = status(Phase::Running, "Publishing");
        assert_eq!(reason(&starting, &running).as_deref(), Some("Running"));
        let mut passed = status(Phase::Completed, "Passed");
        passed.verdict = Some(Verdict::Passed);
        assert_eq!(reason(&running, &passed).as_deref(), Some("Passed"));
        assert_eq!(reason(&passed, &passed), None);
    }

    #[test]
    fn what_keeps_a_run_from_starting_is_told_with_its_own_reason() {
        let starting = status(Phase::Starting, "WaitingForWorkers");
        let unschedulable = status(Phase::Starting, "Unschedulable");
        assert_eq!(reason(&starting, &unschedulable).as_deref(), Some("Unschedulable"));
        assert_eq!(reason(&unschedulable, &unschedulable), None);
        let invalid =
            MqttLoadTestStatus { message: "spec.groups[0].clientId: ...".into(), ..status(Phase::Failed, "InvalidSpec") };
        assert_eq!(reason(&MqttLoadTestStatus::default(), &invalid).as_deref(), Some("InvalidSpec"));
    }
}
