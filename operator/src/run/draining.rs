//! After the window: what is under way is awaited, the last counts are collected, and the verdict is found.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use mqtt_loadtest_worker::{
    accounting::{Counter, Gauge},
    protocol::ShardPhase,
};

use super::{
    Action, AttemptState, Ledger, Observations, RunState, Totals, connecting,
    merge::is_final,
    next::{GRACE, Step, Turn, end, signed},
    verdict,
};

/// How long after the drain a shard may still take to answer with its last counts.
const COLLECT: SignedDuration = SignedDuration::from_secs(30);

pub(super) fn step(state: &mut RunState, step: &Step<'_>, ledger: &Ledger) -> Turn {
    let Step { plan, observed, totals, now } = step;
    let shards = usize::try_from(plan.shards()).unwrap_or(usize::MAX);
    let collected = observed.shards.iter().filter(|shard| is_final(shard, ledger, state, *now)).count();
    let late = state.window_end().is_none_or(|end| *now >= end + signed(plan.spec.load.drain.get()) + COLLECT)
        && *now >= observed.observing_since + GRACE;
    if collected >= shards || late {
        let outcome = verdict::judge(plan, state, totals, shards - collected.min(shards));
        end(state, outcome, *now);
        return Turn::Moved;
    }
    let mut actions = Vec::new();
    if let Some(stop) = &state.stop {
        // Shards that have not heard of the early end still connect or publish.
        let to = connecting::targets(observed, |state| state.phase().is_some_and(|phase| phase < ShardPhase::Draining));
        if !to.is_empty() {
            actions.push(Action::Stop { reason: stop.cause.reason().to_owned(), to });
        }
    }
    if everything_has_come(observed, totals, collected) {
        let to = connecting::targets(observed, |state| state.phase() == Some(ShardPhase::Draining));
        if !to.is_empty() {
            actions.push(Action::Stop { reason: "drained".to_owned(), to });
        }
    }
    Turn::Stay(actions, pace(plan.shards(), state, *now))
}

/// Whether waiting longer can bring nothing: all shards have stopped publishing, nothing of theirs is open, and subscribers
/// have what they could get. No shard can know that alone.
fn everything_has_come(observed: &Observations, totals: &Totals, collected: usize) -> bool {
    let live = observed.attempts().filter(|(_, attempt)| matches!(attempt.state, AttemptState::Live { .. }));
    let mut draining = 0;
    for (_, attempt) in live {
        match attempt.state.phase() {
            Some(ShardPhase::Draining) => draining += 1,
            Some(ShardPhase::Finished) => {}
            _ => return false,
        }
    }
    let none = |gauge| totals.all.gauge(gauge) == 0;
    totals.complete
        && draining + collected >= totals.groups.iter().map(|group| usize::try_from(group.shards.desired).unwrap_or(0)).sum()
        && none(Gauge::Pending)
        && none(Gauge::Unacked)
        && none(Gauge::Unfenced)
        && totals.all.get(Counter::Unique) >= totals.all.get(Counter::ExpectedMax)
}

fn pace(shards: u32, state: &RunState, now: Timestamp) -> Duration {
    let soon = state.window_end().is_some_and(|end| now < end + SignedDuration::from_secs(10));
    match (shards <= 100, soon) {
        (true, true) => Duration::from_millis(250),
        (false, false) => Duration::from_secs(2),
        _ => Duration::from_secs(1),
    }
}
