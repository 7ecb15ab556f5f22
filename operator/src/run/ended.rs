//! After the verdict: workers are let go, and everything made for the run is deleted.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use mqtt_loadtest_crds::status::Verdict;
use mqtt_loadtest_worker::protocol::ShardPhase;

use super::{Action, AttemptState, Next, Observations, RunState, connecting::targets};

/// How long pods of a run that did not pass are kept for their logs.
const KEEP_PODS: SignedDuration = SignedDuration::from_secs(3600);
/// How long a worker may take to leave after it was told; then its pod is deleted.
const LEAVE: SignedDuration = SignedDuration::from_secs(15);

pub(super) fn next(state: &RunState, observed: &Observations, now: Timestamp) -> Next {
    let completed = state.completed_at.unwrap_or(now);
    let mut actions = Vec::new();
    let finished = targets(observed, |state| state.phase() == Some(ShardPhase::Finished));
    let busy =
        targets(observed, |state| matches!(state, AttemptState::Live { .. }) && state.phase() != Some(ShardPhase::Finished));
    let leaving = !finished.is_empty() || !busy.is_empty();
    if !busy.is_empty() {
        let reason = state.outcome.as_ref().map_or("ended", |outcome| outcome.reason.as_str());
        actions.push(Action::Stop { reason: reason.to_owned(), to: busy });
    }
    if !finished.is_empty() {
        actions.push(Action::Finish { to: finished });
    }
    let passed = state.outcome.as_ref().is_some_and(|outcome| outcome.verdict == Verdict::Passed);
    let keep_until = completed + KEEP_PODS;
    let keep_pods = !passed && now < keep_until;
    let patient = leaving && now < completed + LEAVE;
    let left = observed.leftovers;
    if !patient && (left.others || left.pods && !keep_pods || keep_pods && unfinished_pods(observed)) {
        actions.push(Action::Teardown { keep_pods });
    }
    let requeue_after = if patient || actions.iter().any(|action| matches!(action, Action::Teardown { .. })) {
        Some(Duration::from_secs(1))
    } else if left.pods && keep_pods {
        Some(Duration::try_from(keep_until.duration_since(now)).unwrap_or(Duration::from_secs(60)))
    } else {
        None
    };
    Next { state: state.clone(), actions, requeue_after, totals: None }
}

/// Whether there are pods that are not over: they are never kept.
fn unfinished_pods(observed: &Observations) -> bool {
    observed.attempts().any(|(_, attempt)| attempt.state.is_alive())
}
