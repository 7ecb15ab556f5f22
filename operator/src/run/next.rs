//! The state machine of a run. Pure: the same arguments give the same answer, and the clock is one of them.
//!
//! Each step either stays (perhaps asking for actions that are still undone) or moves to the next phase; a run whose operator
//! was away passes through several phases in one call. The end needs no operator: it follows from the clock and from what
//! the workers left behind.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use mqtt_loadtest_crds::{
    plan::RunPlan,
    status::{Phase, Verdict},
};
use mqtt_loadtest_worker::protocol::EXIT_REFUSED;

use super::{
    Action, AttemptState, Children, Next, Observations, Outcome, Requests, RunState, StopCause, Totals, connecting, draining,
    ended,
    merge::{self, fold_dead},
    running,
};

/// What one step of a phase needs.
pub(super) struct Step<'a> {
    pub plan: &'a RunPlan,
    pub observed: &'a Observations,
    pub totals: &'a Totals,
    pub now: Timestamp,
}

/// What one step of a phase says.
pub(super) enum Turn {
    /// The phase goes on: these actions, and look again after this time.
    Stay(Vec<Action>, Duration),
    /// The state has changed: judge again.
    Moved,
}

/// A phase changes at most this often in one call: every phase once.
const MOST_TURNS: usize = 8;

/// One step of a run.
pub fn next(plan: &RunPlan, state: &RunState, observed: &Observations, requests: &Requests, now: Timestamp) -> Next {
    if state.ended() {
        return ended::next(state, observed, now);
    }
    let mut state = state.clone();
    let ledger = fold_dead(plan, &state, observed, now);
    let mut totals = merge::totals(plan, &state, observed, &ledger, now);
    let mut actions = Vec::new();
    if ledger != observed.ledger {
        actions.push(Action::WriteLedger(ledger.clone()));
    }
    let mut requeue = Duration::from_secs(2);
    for _ in 0..MOST_TURNS {
        let step = Step { plan, observed, totals: &totals, now };
        let turn = if interrupted(&mut state, &step, requests) {
            Turn::Moved
        } else {
            match state.phase {
                Phase::Pending => pending(&mut state, requests, now),
                Phase::Starting => starting(&mut state, &step),
                Phase::Connecting => connecting::step(&mut state, &step),
                Phase::Running => running::step(&mut state, &step),
                Phase::Draining => draining::step(&mut state, &step, &ledger),
                Phase::Completed | Phase::Failed => Turn::Stay(Vec::new(), Duration::ZERO),
            }
        };
        match turn {
            Turn::Moved => {
                // What the clock and a stop change is part of the numbers.
                totals = merge::totals(plan, &state, observed, &ledger, now);
                if state.ended() {
                    let end = ended::next(&state, observed, now);
                    actions.extend(end.actions);
                    return Next { state, actions, requeue_after: end.requeue_after, totals: Some(totals) };
                }
            }
            Turn::Stay(more, after) => {
                actions.extend(more);
                requeue = after;
                break;
            }
        }
    }
    Next { state, actions, requeue_after: Some(requeue), totals: Some(totals) }
}

/// The end of a run whose plan is gone and cannot be made again: its spec was edited since.
pub fn plan_lost(state: &RunState, now: Timestamp) -> RunState {
    let mut state = state.clone();
    let message = "the plan was deleted in mid-run, and the spec has changed since, so it cannot be made again";
    end(&mut state, Outcome::new(Verdict::Inconclusive, "PlanLost", message), now);
    state
}

/// Ends the run with an outcome.
pub(super) fn end(state: &mut RunState, outcome: Outcome, now: Timestamp) {
    state.completed_at = Some(now);
    state.outcome = Some(outcome);
    state.phase = state.final_phase();
}

/// What ends a run in any phase. True when the state has changed.
fn interrupted(state: &mut RunState, step: &Step<'_>, requests: &Requests) -> bool {
    if state.ended() || state.stop.is_some() {
        return false;
    }
    if let Some(message) = refused_slice(step.observed).filter(|_| state.phase < Phase::Draining) {
        end(state, Outcome::new(Verdict::Inconclusive, "SliceRefused", message), step.now);
        return true;
    }
    if let Some(message) = shard_given_up(step.observed).filter(|_| state.phase < Phase::Running) {
        end(state, Outcome::new(Verdict::Inconclusive, "ShardsLost", message), step.now);
        return true;
    }
    let cause = if requests.suspend {
        StopCause::Suspended
    } else if requests.stop_run.as_deref() == Some(&state.id) {
        StopCause::Stopped
    } else if step.observed.preempted.is_some() && state.released_at.is_some() {
        StopCause::Preempted
    } else {
        return false;
    };
    running::stop(state, cause, step.now)
}

/// The message of a worker that refused its slice: six more attempts would say the same.
fn refused_slice(observed: &Observations) -> Option<String> {
    observed.attempts().find_map(|(shard, attempt)| match &attempt.state {
        AttemptState::Ended { exit_code: Some(code), message, .. } if *code == i32::from(EXIT_REFUSED) => {
            Some(format!("the worker of shard {} refused its clients: {message}", shard.index))
        }
        _ => None,
    })
}

/// Before the start a shard that no further attempt will run keeps everyone waiting for nothing.
fn shard_given_up(observed: &Observations) -> Option<String> {
    let shard =
        observed.shards.iter().find(|shard| shard.given_up && !shard.attempts.iter().any(|attempt| attempt.state.is_alive()))?;
    let why = shard.attempts.iter().rev().find_map(|attempt| match &attempt.state {
        AttemptState::Ended { exit_code, reason, message, .. } => Some(merge::cause(*exit_code, reason, message)),
        _ => None,
    });
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    Some(format!("shard {} died {} times and is not tried again{why}", shard.index, shard.attempts.len()))
}

fn pending(state: &mut RunState, requests: &Requests, now: Timestamp) -> Turn {
    if requests.queued {
        return Turn::Stay(Vec::new(), Duration::from_secs(10));
    }
    state.phase = Phase::Starting;
    state.started_at = Some(now);
    Turn::Moved
}

/// Every shard must be ready before any client connects (a gang start), or nobody could say when "all" are there.
fn starting(state: &mut RunState, step: &Step<'_>) -> Turn {
    let Step { plan, observed, now, .. } = step;
    let ready = step.totals.shards().ready;
    let desired = i32::try_from(plan.shards()).unwrap_or(i32::MAX);
    if observed.children == Children::Complete && ready >= desired {
        state.released_at = Some(*now + connecting::release_lead(plan));
        state.phase = Phase::Connecting;
        return Turn::Moved;
    }
    let timeout = plan.spec.load.start_timeout.get();
    let started = state.started_at.unwrap_or(*now);
    let late = *now >= started + signed(timeout) && *now >= observed.observing_since + GRACE;
    if let Some(problem) = observed.problems.iter().find(|problem| problem.incurable) {
        let message = format!("the run cannot start: {}", problem.message);
        end(state, Outcome::new(Verdict::Inconclusive, &problem.reason, message), *now);
        return Turn::Moved;
    }
    if late {
        let limit = &plan.spec.load.start_timeout;
        let mut message = format!("{ready} of {desired} workers were ready within load.startTimeout ({limit})");
        for problem in observed.problems.iter().take(3) {
            message.push_str(&format!("; {}: {}", problem.reason, problem.message));
        }
        end(state, Outcome::new(Verdict::Inconclusive, "StartTimeout", message), *now);
        return Turn::Moved;
    }
    let mut actions = Vec::new();
    if observed.children == Children::Missing {
        actions.push(Action::CreateChildren);
    }
    Turn::Stay(actions, Duration::from_millis(500))
}

/// After a restart nothing counts as missing before this time.
pub(super) const GRACE: SignedDuration = SignedDuration::from_secs(15);

/// A duration as the clock counts it.
pub(super) fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}
