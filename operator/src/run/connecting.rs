//! From the release of the connects to the common start: the barrier.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use mqtt_loadtest_crds::{
    plan::RunPlan,
    spec::OnTimeout,
    status::{Phase, Verdict},
};
use mqtt_loadtest_worker::protocol::ShardPhase;

use super::{
    Action, AttemptState, Children, Observations, Outcome, RunState, Target, Totals, failures,
    next::{GRACE, Step, Turn, end, signed},
    running,
};

/// How long the release and the start travel at most before they take effect: long enough for every shard to have heard of
/// it. 256 shards are told at once, and one that does not answer holds its place for 500 ms.
fn lead(plan: &RunPlan, least_ms: i64) -> SignedDuration {
    SignedDuration::from_millis(least_ms + i64::from(plan.shards()) * 2)
}

/// From the decision to the first connect. A shard that hears of it late connects late, which harms nothing.
pub(super) fn release_lead(plan: &RunPlan) -> SignedDuration {
    lead(plan, 100)
}

pub(super) fn step(state: &mut RunState, step: &Step<'_>) -> Turn {
    let Step { plan, observed, totals, now } = step;
    if state.barrier_at.is_some_and(|barrier| *now >= barrier) {
        state.phase = Phase::Running;
        return Turn::Moved;
    }
    if state.barrier_at.is_none() {
        match judge(state, step) {
            Judgement::Wait => {}
            Judgement::Go => {
                let settle = signed(plan.spec.load.barrier.settle.get());
                let start = *now + settle.max(lead(plan, 500));
                state.barrier_at = Some(start);
                state.ends_at = Some(start + signed(plan.spec.load.duration.get()));
                return Turn::Moved;
            }
            Judgement::Fail(outcome) => {
                end(state, outcome, *now);
                return Turn::Moved;
            }
        }
    }
    let mut actions = Vec::new();
    if observed.children == Children::Missing {
        actions.push(Action::CreateChildren);
    }
    actions.extend(release(state, observed));
    actions.extend(running::start(state, observed));
    Turn::Stay(actions, pace(state, totals, plan, *now))
}

/// Tells the release to every shard that waits for it.
pub(super) fn release(state: &RunState, observed: &Observations) -> Option<Action> {
    let at = state.released_at?;
    let to = targets(observed, |state| match state {
        AttemptState::Live { status, .. } => status.as_ref().is_none_or(|status| status.phase == ShardPhase::Waiting),
        _ => false,
    });
    (!to.is_empty()).then_some(Action::Release { at, to })
}

/// Attempts in a certain state.
pub(super) fn targets(observed: &Observations, wanted: impl Fn(&AttemptState) -> bool) -> Vec<Target> {
    observed
        .attempts()
        .filter(|(_, attempt)| wanted(&attempt.state))
        .map(|(shard, attempt)| Target { group: shard.group, index: shard.index, uid: attempt.uid.clone() })
        .collect()
}

enum Judgement {
    Wait,
    Go,
    Fail(Outcome),
}

/// Whether enough clients are connected and subscribed, or never will be.
fn judge(state: &RunState, step: &Step<'_>) -> Judgement {
    let Step { plan, observed, totals, now } = step;
    let barrier = &plan.spec.load.barrier;
    let clients = totals.clients();
    let needed = barrier.min_connected.of(clients);
    let (ready, failed) = (totals.ready(), totals.failed());
    if ready >= needed {
        return Judgement::Go;
    }
    if !totals.complete && *now < observed.observing_since + GRACE {
        return Judgement::Wait;
    }
    // Nobody is left who could still come: waiting for the timeout would change nothing.
    let settled = totals.complete && ready + failed >= clients;
    let timeout = state.released_at.is_some_and(|at| *now >= at + signed(barrier.timeout.get()));
    if !settled && !timeout {
        return Judgement::Wait;
    }
    if barrier.on_timeout == OnTimeout::Proceed && ready > 0 {
        return Judgement::Go;
    }
    Judgement::Fail(failure(totals, ready, needed, timeout && !settled, &barrier.timeout.to_string()))
}

/// The outcome of a barrier that is not reached. A worker that ran out of descriptors or ports says nothing about the broker.
fn failure(totals: &Totals, ready: u64, needed: u64, timed_out: bool, timeout: &str) -> Outcome {
    let clients = totals.clients();
    let missing = clients - ready.min(clients);
    let share = failures::share(missing, clients);
    let when = if timed_out { format!(" within load.barrier.timeout ({timeout})") } else { String::new() };
    let reasons = failures::in_words(totals, missing);
    let why = if reasons.is_empty() { String::new() } else { format!(": {reasons}") };
    let message = format!("{missing} of {clients} clients ({share}) could not connect and subscribe{when}{why}; {needed} had to");
    let shards = totals.shards();
    if !totals.complete || shards.ready < shards.desired {
        let message = format!("{message}; {} of {} workers answer", shards.ready, shards.desired);
        return Outcome::new(Verdict::Inconclusive, "ShardsLost", message);
    }
    if failures::are_the_generators(totals) {
        return Outcome::new(Verdict::Inconclusive, "GeneratorLimited", message);
    }
    let reason = if timed_out { "BarrierTimeout".to_owned() } else { failures::reason(totals) };
    Outcome::new(Verdict::Failed, reason, message)
}

/// How soon to look again: often while it matters, and not more often than many shards can be asked.
fn pace(state: &RunState, totals: &Totals, plan: &RunPlan, now: Timestamp) -> Duration {
    let busy = if plan.shards() <= 100 { Duration::from_millis(200) } else { Duration::from_secs(1) };
    match state.barrier_at {
        Some(barrier) => {
            let left = Duration::try_from(barrier.duration_since(now)).unwrap_or_default();
            left.clamp(Duration::from_millis(50), busy * 2)
        }
        // The ramp is long or hopeless: no hurry.
        None if totals.ready() == 0 && state.released_at.is_some_and(|at| now > at + SignedDuration::from_secs(30)) => busy * 5,
        None => busy,
    }
}
