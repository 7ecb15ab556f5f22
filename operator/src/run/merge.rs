//! The numbers of a run: the ledger of dead attempts plus the best snapshot of every other one, added up per group and over
//! all. Merging is addition; what a death leaves open is named, never dropped.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use mqtt_loadtest_crds::{
    plan::{RunPlan, publish_schedule},
    status::ShardCounts,
};
use mqtt_loadtest_worker::{
    accounting::{Counter, Gauge, Snapshot},
    protocol::ShardPhase,
};

use super::{AttemptObservation, AttemptState, Death, Ledger, Observations, RunState, ShardObservation};

/// Numbers of a run at one instant.
#[derive(Clone, Debug, PartialEq)]
pub struct Totals {
    /// Group by group, in the plan's order.
    pub groups: Vec<GroupTotals>,
    /// All groups together.
    pub all: Snapshot,
    /// Whether every live shard has reported; else the numbers are too small and older ones stand.
    pub complete: bool,
    /// When the oldest of the newest counts was taken.
    pub at: Timestamp,
}

/// Numbers of a group.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupTotals {
    /// Name of the group.
    pub name: String,
    /// Planned clients.
    pub clients: u64,
    /// Counts, those of dead attempts included.
    pub counts: Snapshot,
    /// Its shards.
    pub shards: ShardCounts,
    /// What was due, and how much of it was there.
    pub coverage: Coverage,
    /// Messages that attempts which died unseen may have sent beyond their last counts.
    pub uncertain: u64,
    /// Messages whose acknowledgement a death left open.
    pub unacked_by_death: u64,
    /// Attempts that died.
    pub deaths: usize,
    /// Why, each reason once.
    pub causes: Vec<String>,
}

/// How much of what was due was done: messages, or client-milliseconds in a group that does not publish.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Due so far.
    pub planned: u64,
    /// Of it, done.
    pub covered: u64,
}

impl Coverage {
    /// In percent, rounded down to two digits so that 100 means everything; `100` before anything was due.
    pub fn percent(&self) -> String {
        if self.planned == 0 || self.covered >= self.planned {
            return "100".into();
        }
        let hundredths = u128::from(self.covered) * 10_000 / u128::from(self.planned);
        format!("{}.{:02}", hundredths / 100, hundredths % 100)
    }

    /// Done as a share of what was due.
    pub fn fraction(&self) -> f64 {
        if self.planned == 0 { 1.0 } else { self.covered as f64 / self.planned as f64 }
    }
}

impl GroupTotals {
    /// Clients that were connected at least once.
    pub fn ever_connected(&self) -> u64 {
        let first = self.counts.get(Counter::ConnectsSucceeded).saturating_sub(self.counts.get(Counter::Reconnects));
        first.min(self.clients)
    }

    /// Clients that are connected and subscribed.
    pub fn ready(&self) -> u64 {
        unsigned(self.counts.gauge(Gauge::ClientsReady))
    }

    /// Clients that gave up.
    pub fn failed(&self) -> u64 {
        unsigned(self.counts.gauge(Gauge::ClientsFailed)).min(self.clients)
    }
}

impl Totals {
    /// Planned clients.
    pub fn clients(&self) -> u64 {
        self.groups.iter().map(|group| group.clients).sum()
    }

    /// Clients that are connected and subscribed.
    pub fn ready(&self) -> u64 {
        self.groups.iter().map(GroupTotals::ready).sum()
    }

    /// Clients that gave up.
    pub fn failed(&self) -> u64 {
        self.groups.iter().map(GroupTotals::failed).sum()
    }

    /// Clients that were connected at least once.
    pub fn ever_connected(&self) -> u64 {
        self.groups.iter().map(GroupTotals::ever_connected).sum()
    }

    /// Messages that attempts which died unseen may have sent beyond their last counts.
    pub fn uncertain(&self) -> u64 {
        self.groups.iter().map(|group| group.uncertain).sum()
    }

    /// The same as deliveries: times the deliveries that a message of this run has.
    pub fn uncertain_deliveries(&self) -> u64 {
        let (sent, expected) = (u128::from(self.all.total("sent")), u128::from(self.all.get(Counter::ExpectedMax)));
        let uncertain = u128::from(self.uncertain());
        if uncertain == 0 || expected == 0 || sent == 0 {
            return 0;
        }
        u64::try_from((uncertain * expected).div_ceil(sent)).unwrap_or(u64::MAX)
    }

    /// The workers that died, in words: `2 workers died (OOMKilled, exit status 137)`; none when none did.
    pub fn deaths_in_words(&self) -> Option<String> {
        let deaths: usize = self.groups.iter().map(|group| group.deaths).sum();
        let causes: BTreeSet<&str> = self.groups.iter().flat_map(|group| &group.causes).map(String::as_str).collect();
        let causes: Vec<&str> = causes.into_iter().take(3).collect();
        let workers = if deaths == 1 { "worker" } else { "workers" };
        (deaths > 0).then(|| format!("{deaths} {workers} died ({})", causes.join("; ")))
    }

    /// Worker pods of all groups; the coverage is that of the worst group.
    pub fn shards(&self) -> ShardCounts {
        let worst = self.groups.iter().map(|group| group.coverage).min_by(|a, b| a.fraction().total_cmp(&b.fraction()));
        let mut sum = ShardCounts { coverage_percent: worst.unwrap_or_default().percent(), ..ShardCounts::default() };
        for group in &self.groups {
            sum.desired += group.shards.desired;
            sum.ready += group.shards.ready;
            sum.finished += group.shards.finished;
            sum.lost += group.shards.lost;
        }
        sum
    }
}

/// Folds every dead attempt that the ledger does not hold yet into a copy of it.
pub fn fold_dead(plan: &RunPlan, state: &RunState, observed: &Observations, now: Timestamp) -> Ledger {
    let mut ledger = observed.ledger.clone();
    for (shard, attempt) in observed.attempts() {
        if !is_dead(attempt) || ledger.holds(shard.group, &attempt.uid) || did_nothing(attempt, state) {
            continue;
        }
        let counts = attempt.counts.as_ref().map(|counts| buried(&counts.snapshot));
        let unacked = attempt.counts.as_ref().map_or(0, |counts| unsigned(counts.snapshot.gauge(Gauge::Unacked)));
        let last_words = attempt.counts.as_ref().is_some_and(|counts| counts.last);
        let (reason, at) = match &attempt.state {
            AttemptState::Ended { exit_code, reason, message, at } => (cause(*exit_code, reason, message), *at),
            AttemptState::Gone { noticed_at } => ("gone".to_owned(), Some(*noticed_at)),
            _ => continue,
        };
        // Without an instant of its own the death lies somewhere before now.
        let at = at.unwrap_or(now).min(now);
        let uncertain = if last_words { 0 } else { unseen_messages(plan, state, shard, attempt, at) };
        let death = Death {
            uid: attempt.uid.clone(),
            index: shard.index,
            attempt: attempt.attempt,
            at,
            last_words,
            uncertain,
            unacked,
            reason,
        };
        ledger.fold(shard.group, death, counts.as_ref());
    }
    ledger
}

/// Longest last word of a dead worker that is kept.
const LONGEST_CAUSE: usize = 300;

/// Why an attempt ended, in words: `OOMKilled, exit status 137`.
pub fn cause(exit_code: Option<i32>, reason: &str, message: &str) -> String {
    let status = exit_code.map_or_else(String::new, |code| format!(", exit status {code}"));
    let message = message.trim();
    let message = if message.is_empty() { String::new() } else { format!(": {message}") };
    format!("{reason}{status}{message}").chars().take(LONGEST_CAUSE).collect()
}

/// The reasons of deaths, each once.
fn causes(deaths: &[Death]) -> Vec<String> {
    deaths.iter().map(|death| death.reason.clone()).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Adds everything up. `ledger` is what [`fold_dead`] gave for the same observations.
pub fn totals(plan: &RunPlan, state: &RunState, observed: &Observations, ledger: &Ledger, now: Timestamp) -> Totals {
    let mut complete = true;
    let mut oldest = now;
    let shards: BTreeMap<(usize, u32), &ShardObservation> =
        observed.shards.iter().map(|shard| ((shard.group, shard.index), shard)).collect();
    let mut groups = Vec::with_capacity(plan.groups.len());
    for (place, group) in plan.groups.iter().enumerate() {
        let dead = ledger.groups.get(&place);
        let deaths = dead.map_or(&[][..], |dead| &dead.deaths);
        let mut counts = dead.map(|dead| dead.snapshot.clone()).unwrap_or_default();
        let mut tally = ShardCounts { desired: i32::try_from(group.shards).unwrap_or(i32::MAX), ..ShardCounts::default() };
        // In a group where nobody died the workers' own figures count; else what was due comes from the plan, per shard up to
        // the instant of its newest counts, as a replaced pod cannot know what the one before it did.
        let (mut due, mut missing) = (0, 0);
        for index in 0..group.shards {
            let shard = shards.get(&(place, index)).copied();
            let mut seen_until = now;
            for attempt in shard.map_or(&[][..], |shard| &shard.attempts) {
                if ledger.holds(place, &attempt.uid) || did_nothing(attempt, state) {
                    continue;
                }
                match &attempt.counts {
                    Some(own) => {
                        counts.merge(&own.snapshot);
                        seen_until = own.at;
                        if !own.last {
                            oldest = oldest.min(own.at);
                        }
                    }
                    None if matches!(attempt.state, AttemptState::Live { .. }) => complete = false,
                    None => {}
                }
            }
            due += slice_messages(plan, place, index, state.elapsed_ns(seen_until));
            missing += absent_client_ms(plan, state, shard, deaths, place, index, now);
            if let Some(shard) = shard {
                tally.ready += i32::from(shard.attempts.iter().any(|attempt| matches!(attempt.state, AttemptState::Live { .. })));
                tally.finished += i32::from(is_final(shard, ledger, state, now));
                tally.lost += i32::from(is_lost(shard, ledger, state, now));
            }
        }
        let publishes = plan.spec.groups.get(place).is_some_and(|group| !group.publish.is_empty());
        if publishes && !deaths.is_empty() {
            let planned = if all_final(plan, place, &shards, ledger, state, now) {
                group_messages(plan, place, state.elapsed_ns(now))
            } else {
                due
            };
            let scheduled = counts.get(Counter::Scheduled);
            counts.set(Counter::Planned, planned.max(scheduled));
            counts.set(Counter::Absent, planned.saturating_sub(scheduled));
        }
        let coverage = if publishes {
            Coverage { planned: counts.get(Counter::Planned), covered: counts.get(Counter::Scheduled) }
        } else {
            let planned = u64::from(group.clients) * (state.elapsed_ns(now) / 1_000_000);
            Coverage { planned, covered: planned.saturating_sub(missing) }
        };
        tally.coverage_percent = coverage.percent();
        groups.push(GroupTotals {
            name: group.name.clone(),
            clients: u64::from(group.clients),
            counts,
            shards: tally,
            coverage,
            uncertain: deaths.iter().map(|death| death.uncertain).sum(),
            unacked_by_death: deaths.iter().map(|death| death.unacked).sum(),
            deaths: deaths.len(),
            causes: causes(deaths),
        });
    }
    let mut all = Snapshot::new();
    groups.iter().for_each(|group| all.merge(&group.counts));
    Totals { groups, all, complete, at: oldest }
}

/// Whether nothing more will come from a shard: its last attempt has said its last word, or the window is over and nobody
/// is left who could add to it.
pub fn is_final(shard: &ShardObservation, ledger: &Ledger, state: &RunState, now: Timestamp) -> bool {
    let finished = shard.attempts.iter().any(|attempt| match &attempt.state {
        AttemptState::Live { status: Some(status), .. } => {
            status.phase == ShardPhase::Finished && attempt.counts.as_ref().is_some_and(|counts| counts.last)
        }
        AttemptState::Ended { exit_code: Some(0), .. } => attempt.counts.as_ref().is_some_and(|counts| counts.last),
        _ => false,
    });
    let over = state.window_end().is_some_and(|end| now >= end);
    let nobody_left =
        shard.attempts.iter().all(|attempt| !matches!(attempt.state, AttemptState::Live { .. } | AttemptState::Starting))
            && shard.attempts.iter().any(|attempt| ledger.holds(shard.group, &attempt.uid));
    finished || (over && nobody_left)
}

/// Whether the shard's numbers were not obtained, or nobody runs its clients any more before the end.
fn is_lost(shard: &ShardObservation, ledger: &Ledger, state: &RunState, now: Timestamp) -> bool {
    let alive = shard.attempts.iter().any(|attempt| attempt.state.is_alive());
    let dead = || ledger.groups.get(&shard.group).into_iter().flat_map(|group| &group.deaths).filter(|d| d.index == shard.index);
    let over = state.window_end().is_some_and(|end| now >= end);
    let finished = is_final(shard, ledger, state, now) && !dead().any(|death| !death.last_words);
    !alive && !finished && dead().next().is_some() && (shard.given_up || over)
}

fn all_final(
    plan: &RunPlan,
    place: usize,
    shards: &BTreeMap<(usize, u32), &ShardObservation>,
    ledger: &Ledger,
    state: &RunState,
    now: Timestamp,
) -> bool {
    (0..plan.groups[place].shards)
        .all(|index| shards.get(&(place, index)).is_some_and(|shard| is_final(shard, ledger, state, now)))
}

/// Whether an attempt is over without having finished its part.
pub fn is_dead(attempt: &AttemptObservation) -> bool {
    match &attempt.state {
        AttemptState::Ended { exit_code: Some(0), .. } => !attempt.counts.as_ref().is_some_and(|counts| counts.last),
        AttemptState::Ended { .. } | AttemptState::Gone { .. } => true,
        _ => false,
    }
}

/// Whether an attempt that is over had no part in the run, so that there is nothing to count: its process never ran, or only
/// after the window.
fn did_nothing(attempt: &AttemptObservation, state: &RunState) -> bool {
    let too_late = |started| state.window_end().is_some_and(|end| started >= end);
    is_dead(attempt) && attempt.counts.is_none() && attempt.started_at.is_none_or(too_late)
}

/// The counts of a dead attempt as they enter the ledger: what describes the present is gone with it, what was open is
/// abandoned, and what was due but not handled was not there.
fn buried(snapshot: &Snapshot) -> Snapshot {
    let mut counts = snapshot.clone();
    let unacked = unsigned(counts.gauge(Gauge::Unacked));
    counts.add(Counter::Abandoned, unacked);
    let unfenced = unsigned(counts.gauge(Gauge::Unfenced));
    counts.add(Counter::UnfencedLost, unfenced);
    let pending = unsigned(counts.gauge(Gauge::Pending));
    let scheduled = counts.get(Counter::Scheduled).saturating_sub(pending);
    counts.set(Counter::Scheduled, scheduled);
    counts.set(Counter::Planned, scheduled);
    counts.set(Counter::Absent, 0);
    for gauge in Gauge::ALL {
        counts.set_gauge(*gauge, 0);
    }
    counts
}

/// Messages that a shard may have sent between its last known counts and the latest instant of its death.
fn unseen_messages(
    plan: &RunPlan,
    state: &RunState,
    shard: &ShardObservation,
    attempt: &AttemptObservation,
    died: Timestamp,
) -> u64 {
    let since = attempt.counts.as_ref().map(|counts| counts.at).or(attempt.started_at);
    let Some(since) = since else { return 0 };
    let slots = |at| slice_messages(plan, shard.group, shard.index, state.elapsed_ns(at));
    slots(died).saturating_sub(slots(since))
}

/// Messages that a shard's slice has planned before an instant: its share of the group's, rounded up.
fn slice_messages(plan: &RunPlan, group: usize, index: u32, elapsed_ns: u64) -> u64 {
    let Some(slice) = plan.slice(group, index) else { return 0 };
    let share = u128::from(group_messages(plan, group, elapsed_ns)) * u128::from(slice.clients());
    u64::try_from(share.div_ceil(u128::from(slice.group_clients.max(1)))).unwrap_or(u64::MAX)
}

/// Messages that a group has planned before an instant.
pub fn group_messages(plan: &RunPlan, group: usize, elapsed_ns: u64) -> u64 {
    let Some(group) = plan.spec.groups.get(group) else { return 0 };
    group.publish.iter().map(|entry| publish_schedule(group, entry).slots_before(elapsed_ns)).sum()
}

/// Client-milliseconds of the window in which nobody ran a shard's clients: from each death to the start of the next attempt.
fn absent_client_ms(
    plan: &RunPlan,
    state: &RunState,
    shard: Option<&ShardObservation>,
    deaths: &[Death],
    group: usize,
    index: u32,
    now: Timestamp,
) -> u64 {
    let Some(slice) = plan.slice(group, index) else { return 0 };
    let until = |attempt: u32| {
        let next = shard.into_iter().flat_map(|shard| &shard.attempts).filter(|other| other.attempt > attempt);
        next.filter_map(|other| other.started_at).min().unwrap_or(now)
    };
    let gaps = deaths
        .iter()
        .filter(|death| death.index == index)
        .map(|death| state.elapsed_ns(until(death.attempt)).saturating_sub(state.elapsed_ns(death.at)) / 1_000_000);
    gaps.sum::<u64>() * u64::from(slice.clients())
}

/// A gauge that counts something.
pub fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}
