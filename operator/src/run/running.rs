//! The measured window, and its early end.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use mqtt_loadtest_crds::status::{Phase, Verdict};

use super::{
    Action, AttemptState, Children, Observations, Outcome, RunState, StopCause, StopRequest, connecting,
    merge::group_messages,
    next::{Step, Turn, end},
};

pub(super) fn step(state: &mut RunState, step: &Step<'_>) -> Turn {
    let Step { observed, now, .. } = step;
    if state.window_end().is_none_or(|end| *now >= end) {
        state.phase = Phase::Draining;
        return Turn::Moved;
    }
    if coverage_is_out_of_reach(state, step) && stop(state, StopCause::CoverageTooLow, *now) {
        return Turn::Moved;
    }
    let mut actions = Vec::new();
    if observed.children == Children::Missing {
        actions.push(Action::CreateChildren);
    }
    // A replaced pod joins for the remaining time.
    actions.extend(connecting::release(state, observed));
    actions.extend(start(state, observed));
    let left = state.window_end().map_or(SignedDuration::ZERO, |end| end.duration_since(*now));
    let left = Duration::try_from(left).unwrap_or_default();
    Turn::Stay(actions, left.clamp(Duration::from_millis(50), Duration::from_secs(2)))
}

/// Tells the window to every live shard that does not know it.
pub(super) fn start(state: &RunState, observed: &Observations) -> Option<Action> {
    let (start, end) = (state.barrier_at?, state.ends_at?);
    let to = connecting::targets(observed, |state| match state {
        AttemptState::Live { status, .. } => status.as_ref().is_none_or(|status| status.start.is_none()),
        _ => false,
    });
    (!to.is_empty()).then_some(Action::Start { start, end, to })
}

/// An early end. Before the common start there is nothing to drain and the run ends at once; a run that already drains ends as
/// it would. True when the state has changed.
pub(super) fn stop(state: &mut RunState, cause: StopCause, now: Timestamp) -> bool {
    match state.phase {
        Phase::Draining | Phase::Completed | Phase::Failed => return false,
        Phase::Running => {
            state.stop = Some(StopRequest { at: now, cause });
            state.phase = Phase::Draining;
        }
        Phase::Pending | Phase::Starting | Phase::Connecting => {
            state.stop = Some(StopRequest { at: now, cause });
            end(state, Outcome::new(Verdict::Inconclusive, cause.reason(), cause.message()), now);
        }
    }
    true
}

/// Whether so much of the load was already missing that `load.minCoverage` cannot be met by the end.
fn coverage_is_out_of_reach(state: &RunState, step: &Step<'_>) -> bool {
    let load = &step.plan.spec.load;
    let duration = load.duration.as_nanos();
    step.totals.groups.iter().enumerate().any(|(place, group)| {
        // Only what dead pods left undone; a group where nobody died is judged at the end.
        if group.deaths == 0 || state.barrier_at.is_none() {
            return false;
        }
        let whole = match group_messages(step.plan, place, duration) {
            0 => group.clients * (duration / 1_000_000),
            messages => messages,
        };
        let missing = group.coverage.planned.saturating_sub(group.coverage.covered);
        missing > whole - load.min_coverage.of(whole).min(whole)
    })
}
