//! State and totals as the object's status. The same for both runtimes; `--output json` of a local run prints it.

use jiff::{SignedDuration, Timestamp};
use mqtt_loadtest_crds::{
    MqttLoadTestStatus,
    plan::RunPlan,
    status::{GeneratorStatus, GroupStatus, PastRun, Phase, Rates, Verdict},
};

use super::{
    Next, Observations, Totals,
    conditions::{self, CLIENTS_CONNECTED, Row, SPEC_PENDING, Wanted},
    failures, generator, numbers, rates,
};

/// Runs that are kept in the history.
const HISTORY: usize = 10;
/// Longest message; problems of a cluster can be long.
const LONGEST_MESSAGE: usize = 2048;
/// Writes of the status in a run are at least this far apart, transitions apart.
const INTERVAL: SignedDuration = SignedDuration::from_secs(10);

/// What a status is made of.
#[derive(Debug)]
pub struct View<'a> {
    /// The plan of the run.
    pub plan: &'a RunPlan,
    /// What [`next`](super::next()) said.
    pub next: &'a Next,
    /// What it said it about.
    pub observed: &'a Observations,
    /// Current rates, from a [`Meter`](super::rates::Meter).
    pub rates: Option<&'a Rates>,
    /// `metadata.generation` of the object.
    pub generation: i64,
    /// Whether its spec waits for the end of this run.
    pub spec_pending: bool,
    /// Now.
    pub now: Timestamp,
}

/// The status with which a new run begins: the last run is in the history, and nothing of it is left that a `kubectl wait` could
/// take for the new one. It is to be passed to [`status`] and written with the first state of the run, in one write.
pub fn cleared(previous: &MqttLoadTestStatus) -> MqttLoadTestStatus {
    MqttLoadTestStatus {
        observed_generation: previous.observed_generation,
        conditions: previous.conditions.iter().filter(|c| c.type_ != CLIENTS_CONNECTED).cloned().collect(),
        history: with_past_run(previous),
        ..MqttLoadTestStatus::default()
    }
}

/// The history with the newest run at its head, once.
fn with_past_run(status: &MqttLoadTestStatus) -> Vec<PastRun> {
    let mut history = status.history.clone();
    let Some(run) = status.run.as_ref().filter(|run| run.completed_at.is_some()) else { return history };
    if history.first().is_some_and(|newest| newest.id == run.id) {
        return history;
    }
    history.insert(
        0,
        PastRun {
            id: run.id.clone(),
            verdict: status.verdict,
            reason: status.reason.clone(),
            started_at: run.started_at.clone(),
            completed_at: run.completed_at.clone(),
            sent: status.messages.sent,
            acked: status.messages.acked,
            lost: status.messages.lost.clone(),
            ack_p99: status.latency.get("publishAck").map(|latency| latency.p99.clone()).unwrap_or_default(),
        },
    );
    history.truncate(HISTORY);
    history
}

/// The status of an object whose run is held back before it began.
pub fn held(previous: &MqttLoadTestStatus, generation: i64, reason: &str, message: &str, now: Timestamp) -> MqttLoadTestStatus {
    without_run(previous, generation, Phase::Pending, Row::Held, (reason, message), now)
}

/// The status of an object whose spec is invalid; `problems` name their fields.
pub fn invalid(previous: &MqttLoadTestStatus, generation: i64, problems: &[String], now: Timestamp) -> MqttLoadTestStatus {
    let message = clip(&problems.join("; "));
    without_run(previous, generation, Phase::Failed, Row::Invalid, ("InvalidSpec", &message), now)
}

fn without_run(
    previous: &MqttLoadTestStatus,
    generation: i64,
    phase: Phase,
    row: Row,
    (reason, message): (&str, &str),
    now: Timestamp,
) -> MqttLoadTestStatus {
    let own = [
        (CLIENTS_CONNECTED, Wanted::new(false, "NotRunning", "no run is under way")),
        (SPEC_PENDING, Wanted::new(false, "UpToDate", "no edit waits")),
    ];
    // A message that changed is news here: the next edit of an invalid spec may be invalid for another reason.
    let stale = previous.message != message;
    let before = if stale { &[][..] } else { &previous.conditions };
    let mut conditions = conditions::update(before, row, (reason, message), own, generation, now);
    for condition in &mut conditions {
        let same = previous.conditions.iter().find(|c| c.type_ == condition.type_ && c.status == condition.status);
        if let Some(same) = same {
            condition.last_transition_time = same.last_transition_time.clone();
        }
    }
    MqttLoadTestStatus {
        observed_generation: generation,
        phase: Some(phase),
        verdict: None,
        reason: reason.to_owned(),
        message: message.to_owned(),
        conditions,
        history: with_past_run(previous),
        ..previous.clone()
    }
}

/// The status of a run, from the status before.
pub fn status(previous: &MqttLoadTestStatus, view: &View<'_>) -> MqttLoadTestStatus {
    let state = &view.next.state;
    let mut status = previous.clone();
    status.run = Some(state.to_run());
    status.phase = Some(state.phase);
    if !view.spec_pending {
        status.observed_generation = view.generation;
    }
    if let Some(totals) = &view.next.totals {
        fill_numbers(&mut status, view, totals);
    }
    let (row, reason, message) = summary(view);
    status.verdict = state.outcome.as_ref().map(|outcome| outcome.verdict);
    status.reason = reason;
    status.message = clip(&message);
    let own = [(CLIENTS_CONNECTED, clients_connected(previous, view)), (SPEC_PENDING, spec_pending(view.spec_pending))];
    // A condition's reason is stable while its message would change: the phase while a run goes on.
    let short = match row {
        Row::Active => (phase_name(state.phase), "a run is under way"),
        _ => (status.reason.as_str(), status.message.as_str()),
    };
    status.conditions = conditions::update(&previous.conditions, row, short, own, status.observed_generation, view.now);
    status
}

fn fill_numbers(status: &mut MqttLoadTestStatus, view: &View<'_>, totals: &Totals) {
    let state = &view.next.state;
    let ended = state.ended();
    status.shards = totals.shards();
    // Shards that have not answered since a restart of the operator would make counts go backwards.
    if totals.complete || ended || status.groups.is_empty() {
        status.clients = numbers::clients(totals.clients(), totals.ever_connected(), totals.failed(), &totals.all, ended);
        status.messages = numbers::messages(&totals.all, totals.uncertain(), totals.uncertain_deliveries(), ended);
        status.latency = numbers::latency(&totals.all);
        status.groups = totals.groups.iter().map(|group| group_status(group, ended)).collect();
    }
    if ended {
        status.rates = rates::over_the_window(state, totals, view.now);
    } else if let Some(rates) = view.rates {
        status.rates = rates.clone();
    }
    if state.barrier_at.is_some() {
        let reasons = generator::limits(view.plan, state, totals);
        status.generator = Some(GeneratorStatus { limited: !reasons.is_empty(), reasons });
    }
}

fn group_status(group: &super::GroupTotals, ended: bool) -> GroupStatus {
    GroupStatus {
        name: group.name.clone(),
        shards: group.shards.clone(),
        clients: numbers::clients(group.clients, group.ever_connected(), group.failed(), &group.counts, ended),
        // Deliveries are compared over all groups: who publishes and who subscribes are different ones.
        messages: numbers::messages(&group.counts, group.uncertain, 0, false),
        latency: numbers::latency(&group.counts),
    }
}

/// The row of the condition table, and reason and message of the status.
fn summary(view: &View<'_>) -> (Row, String, String) {
    let state = &view.next.state;
    if state.ended() {
        let row = match &state.outcome {
            Some(outcome) if outcome.verdict == Verdict::Passed => Row::Passed,
            _ => Row::NotPassed,
        };
        let (reason, message) =
            state.outcome.as_ref().map(|outcome| (outcome.reason.clone(), outcome.message.clone())).unwrap_or_default();
        return (row, reason, message);
    }
    let clients = view.next.totals.as_ref().map_or((0, 0), |totals| (totals.ready(), totals.clients()));
    let (row, reason, message) = match state.phase {
        Phase::Pending => {
            (Row::Held, "WaitingForCapacity".to_owned(), "as many runs as the operator may run are under way".to_owned())
        }
        Phase::Starting => starting(view),
        Phase::Connecting => match state.barrier_at {
            Some(at) => (
                Row::Active,
                "Settling".to_owned(),
                format!("clients are connected and subscribed; publishing begins at {at:.0}"),
            ),
            None => (
                Row::Active,
                connecting_reason(view),
                format!("{} of {} clients are connected and subscribed{}", clients.0, clients.1, failures_so_far(view)),
            ),
        },
        Phase::Running => {
            let until = state.ends_at.map(|end| format!(" until {end:.0}")).unwrap_or_default();
            let deaths = view.next.totals.as_ref().and_then(Totals::deaths_in_words);
            let deaths = deaths.map(|deaths| format!("; {deaths}")).unwrap_or_default();
            (Row::Active, "Publishing".to_owned(), format!("clients publish{until}{deaths}"))
        }
        _ => match &state.stop {
            Some(stop) => {
                (Row::Active, stop.cause.reason().to_owned(), format!("{}; what is under way is awaited", stop.cause.message()))
            }
            None => (Row::Active, "Draining".to_owned(), "acknowledgements and deliveries under way are awaited".to_owned()),
        },
    };
    (row, reason, message)
}

fn starting(view: &View<'_>) -> (Row, String, String) {
    let shards = view.next.totals.as_ref().map(Totals::shards).unwrap_or_default();
    let mut message = format!("{} of {} workers are ready", shards.ready, shards.desired);
    for problem in view.observed.problems.iter().take(3) {
        message.push_str(&format!("; {}: {}", problem.reason, problem.message));
    }
    let reason = view.observed.problems.first().map_or("WaitingForWorkers", |problem| &problem.reason);
    (Row::Active, reason.to_owned(), message)
}

fn connecting_reason(view: &View<'_>) -> String {
    let totals = view.next.totals.as_ref();
    totals.filter(|totals| !failures::by_reason(&totals.all).is_empty()).map_or("Connecting".to_owned(), failures::reason)
}

fn failures_so_far(view: &View<'_>) -> String {
    let reasons = view.next.totals.as_ref().map(|totals| failures::in_words(totals, totals.failed())).unwrap_or_default();
    if reasons.is_empty() { reasons } else { format!("; failures: {reasons}") }
}

/// Whether the clients are connected, with the broker's own reason. After the run it stays as it was.
fn clients_connected(previous: &MqttLoadTestStatus, view: &View<'_>) -> Wanted {
    let state = &view.next.state;
    let kept = previous.conditions.iter().find(|condition| condition.type_ == CLIENTS_CONNECTED);
    let kept = kept.map(|kept| Wanted::new(kept.status == "True", kept.reason.clone(), kept.message.clone()));
    let failed_start = state.ended() && state.barrier_at.is_none();
    let Some(totals) = view.next.totals.as_ref().filter(|totals| totals.complete && (!state.ended() || failed_start)) else {
        return kept.unwrap_or_else(|| Wanted::new(false, "NotReleased", "clients have not begun to connect"));
    };
    if state.released_at.is_none() {
        return Wanted::new(false, "NotReleased", "clients have not begun to connect");
    }
    let needed = view.plan.spec.load.barrier.min_connected.of(totals.clients());
    if totals.ready() >= needed {
        return Wanted::new(true, "Connected", "the clients are connected and subscribed");
    }
    if state.phase == Phase::Draining {
        // Clients leave now because they are done.
        return kept.unwrap_or_else(|| Wanted::new(false, "Draining", "clients disconnect"));
    }
    let reasons: Vec<&str> = failures::by_reason(&totals.all).iter().take(3).map(|(reason, _)| *reason).collect();
    if reasons.is_empty() {
        return Wanted::new(false, "Connecting", "clients connect");
    }
    Wanted::new(false, failures::reason(totals), format!("connects and subscriptions fail: {}", reasons.join(", ")))
}

fn spec_pending(pending: bool) -> Wanted {
    if pending {
        Wanted::new(true, "RunInProgress", "the edited spec runs after this run has ended; the run keeps the spec it began with")
    } else {
        Wanted::new(false, "UpToDate", "no edit waits")
    }
}

/// Whether a new status is worth a write: a transition is at once, numbers only every ten seconds.
pub fn is_due(old: &MqttLoadTestStatus, new: &MqttLoadTestStatus, last_write: Option<Timestamp>, now: Timestamp) -> bool {
    if old == new {
        return false;
    }
    let transition = old.phase != new.phase
        || old.run != new.run
        || old.verdict != new.verdict
        || old.reason != new.reason
        || old.observed_generation != new.observed_generation
        || conditions::differ(&old.conditions, &new.conditions);
    transition || last_write.is_none_or(|last| now.duration_since(last) >= INTERVAL)
}

/// The name of a phase.
pub const fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Pending => "Pending",
        Phase::Starting => "Starting",
        Phase::Connecting => "Connecting",
        Phase::Running => "Running",
        Phase::Draining => "Draining",
        Phase::Completed => "Completed",
        Phase::Failed => "Failed",
    }
}

/// The exit status of a verdict, for the command line.
pub const fn exit_status(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Passed => 0,
        Verdict::Failed => 1,
        Verdict::Inconclusive => 3,
    }
}

fn clip(message: &str) -> String {
    if message.len() <= LONGEST_MESSAGE {
        return message.to_owned();
    }
    let end = (0..=LONGEST_MESSAGE - 3).rev().find(|at| message.is_char_boundary(*at)).unwrap_or(0);
    format!("{}...", &message[..end])
}
