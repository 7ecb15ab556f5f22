//! Runs in a simulated fleet: workers that behave as the real ones do, on a clock that the test moves. Every step goes through
//! the status as JSON, as it would with an operator that is restarted between any two steps.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod barrier;
mod deaths;
mod ending;
mod lifecycle;
mod properties;
mod starting;
mod status;
mod verdicts;

use std::{collections::BTreeMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use mqtt_loadtest_crds::{
    MqttLoadTestStatus,
    plan::{RunIdentity, RunPlan, publish_schedule},
    status::Phase,
};
use mqtt_loadtest_worker::{
    accounting::{Counter, Gauge, Snapshot},
    protocol::{Clock, ShardPhase, ShardStatus, Start},
};
use serde_json::{Value, json};

use super::*;
use crate::run::report::{self, View};

pub fn plan_of(groups: Value, load: Value) -> RunPlan {
    let spec = json!({"broker": {"endpoints": ["mqtt://b"]}, "groups": groups, "load": load});
    let run = RunIdentity { namespace: "ns".into(), name: "test".into(), uid: "uid".into(), id: "1-abc".into() };
    RunPlan::new(run, serde_json::from_value(spec).unwrap())
}

/// 100 devices over two shards, 100 messages a second for 20 s, and two listeners that get everything.
pub fn small() -> RunPlan {
    plan_of(
        json!([
            {"name": "devices", "clients": 100, "shards": {"count": 2},
             "publish": [{"name": "t", "topic": "a/%i", "qos": 1, "interval": "1s"}]},
            {"name": "listeners", "clients": 2, "subscribe": [{"name": "all", "filter": "a/#", "qos": 1}]}
        ]),
        json!({"duration": "20s", "startTimeout": "60s", "drain": "5s", "barrier": {"timeout": "30s", "settle": "2s"}}),
    )
}

/// A worker as the state machine sees it.
#[derive(Clone, Debug)]
pub struct Worker {
    pub uid: String,
    pub number: u32,
    pub started_at: Option<Timestamp>,
    pub state: AttemptState,
    pub released: Option<Timestamp>,
    pub start: Option<Start>,
    pub stopped: Option<Timestamp>,
    pub drained: bool,
    pub counts: Option<Counts>,
    /// Clients that never come, and why.
    pub refused: Option<(u64, Counter)>,
    /// Messages that the broker does not acknowledge.
    pub unacked: u64,
    /// Deliveries that do not arrive.
    pub lost: u64,
    /// Whether it takes control messages and is seen by scrapes.
    pub reachable: bool,
}

/// A whole world around the state machine.
pub struct World {
    pub plan: RunPlan,
    pub now: Timestamp,
    pub since: Timestamp,
    pub status: MqttLoadTestStatus,
    pub ledger: Ledger,
    pub shards: BTreeMap<(usize, u32), Vec<Worker>>,
    pub made: bool,
    pub torn_down: Option<bool>,
    pub problems: Vec<StartProblem>,
    pub requests: Requests,
    pub preempted: Option<String>,
    /// Whether dead shards are not tried again.
    pub given_up: bool,
    pub log: Vec<Action>,
}

impl World {
    pub fn new(plan: RunPlan) -> Self {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let state = RunState::begin("1-abc".into(), "abc".into(), 1);
        let status = MqttLoadTestStatus {
            observed_generation: 1,
            phase: Some(Phase::Pending),
            run: Some(state.to_run()),
            ..MqttLoadTestStatus::default()
        };
        Self {
            plan,
            now,
            since: now,
            status,
            ledger: Ledger::default(),
            shards: BTreeMap::new(),
            made: false,
            torn_down: None,
            problems: Vec::new(),
            requests: Requests::default(),
            preempted: None,
            given_up: false,
            log: Vec::new(),
        }
    }

    pub fn state(&self) -> RunState {
        RunState::from_status(&self.status).unwrap()
    }

    pub fn phase(&self) -> Phase {
        self.status.phase.unwrap()
    }

    pub fn worker(&mut self, group: usize, index: u32) -> &mut Worker {
        self.shards.get_mut(&(group, index)).unwrap().last_mut().unwrap()
    }

    /// One look of the operator.
    pub fn step(&mut self) -> Next {
        self.work();
        let observed = self.observe();
        let next = next(&self.plan, &self.state(), &observed, &self.requests, self.now);
        let view = View {
            plan: &self.plan,
            next: &next,
            observed: &observed,
            rates: None,
            generation: 1,
            spec_pending: false,
            now: self.now,
        };
        let status = report::status(&self.status, &view);
        // Through the API server and back.
        self.status = serde_json::from_str(&serde_json::to_string(&status).unwrap()).unwrap();
        for action in &next.actions {
            self.execute(action);
        }
        self.log.extend(next.actions.clone());
        next
    }

    /// Lets time pass in steps of 200 ms until the phase is reached.
    pub fn until(&mut self, phase: Phase) -> &mut Self {
        for _ in 0..3000 {
            if self.phase() == phase {
                return self;
            }
            self.pass(200);
        }
        panic!("{phase:?} is not reached: {:?} {}", self.status.phase, self.status.message);
    }

    /// One step after some milliseconds.
    pub fn pass(&mut self, ms: i64) -> Next {
        self.now += SignedDuration::from_millis(ms);
        self.step()
    }

    /// Steps for some seconds.
    pub fn run_for(&mut self, seconds: i64) -> &mut Self {
        for _ in 0..seconds * 5 {
            self.pass(200);
        }
        self
    }

    fn execute(&mut self, action: &Action) {
        match action {
            Action::CreateChildren => {
                self.made = true;
                for (group, plan) in self.plan.groups.clone().iter().enumerate() {
                    for index in 0..plan.shards {
                        if self.shards.entry((group, index)).or_default().is_empty() {
                            self.add_attempt(group, index);
                        }
                    }
                }
            }
            Action::Release { at, to } => self.tell(to, |worker| {
                worker.released.get_or_insert(*at);
            }),
            Action::Start { start, end, to } => {
                let start = Start { start_unix_ns: unix_ns(*start).unwrap(), end_unix_ns: unix_ns(*end).unwrap() };
                self.tell(to, |worker| {
                    assert_eq!(*worker.start.get_or_insert(start), start, "a second start");
                });
            }
            Action::Stop { to, .. } => {
                let now = self.now;
                self.tell(to, |worker| {
                    if worker.state.phase() == Some(ShardPhase::Draining) {
                        worker.drained = true;
                    } else {
                        worker.stopped.get_or_insert(now);
                    }
                });
            }
            Action::Finish { to } => {
                let now = self.now;
                self.tell(to, |worker| {
                    worker.state = AttemptState::Ended {
                        exit_code: Some(0),
                        reason: "Completed".into(),
                        message: String::new(),
                        at: Some(now),
                    };
                });
            }
            Action::WriteLedger(ledger) => self.ledger = Ledger::from_data(&ledger.to_data()).unwrap(),
            Action::Teardown { keep_pods } => {
                self.torn_down = Some(*keep_pods);
                if !keep_pods {
                    self.shards.clear();
                }
            }
        }
    }

    fn tell(&mut self, to: &[Target], message: impl Fn(&mut Worker)) {
        for target in to {
            let workers = self.shards.get_mut(&(target.group, target.index)).unwrap();
            let worker = workers.iter_mut().find(|worker| worker.uid == target.uid).unwrap();
            if worker.reachable {
                message(worker);
            }
        }
    }

    /// A new pod of a shard: it knows what the run-state file says.
    pub fn add_attempt(&mut self, group: usize, index: u32) {
        let known = self.state().to_protocol();
        let workers = self.shards.get_mut(&(group, index)).unwrap();
        let number = workers.len() as u32;
        let at = |ns: u64| Timestamp::from_nanosecond(i128::from(ns)).unwrap();
        workers.push(Worker {
            uid: format!("{group}-{index}-{number}"),
            number,
            started_at: Some(self.now),
            state: AttemptState::Live { status: None, reachable: true },
            released: known.release_unix_ns.map(at),
            start: known.start(),
            stopped: None,
            drained: false,
            counts: None,
            refused: None,
            unacked: 0,
            lost: 0,
            reachable: true,
        });
    }

    /// The pod of a shard dies; with its last words or without.
    pub fn kill(&mut self, group: usize, index: u32, last_words: bool) {
        self.work();
        let now = self.now;
        let worker = self.worker(group, index);
        if last_words && let Some(counts) = &mut worker.counts {
            counts.last = true;
        }
        worker.state = AttemptState::Ended {
            exit_code: Some(if last_words { 143 } else { 137 }),
            reason: if last_words { "Error" } else { "OOMKilled" }.into(),
            message: String::new(),
            at: Some(now),
        };
    }

    /// Lets the workers do what they do until now.
    fn work(&mut self) {
        let now = self.now;
        let plan = self.plan.clone();
        // Every message goes to each listener.
        let sent: u64 = self
            .shards
            .values()
            .flatten()
            .filter_map(|worker| worker.counts.as_ref())
            .map(|counts| counts.snapshot.total("sent"))
            .sum();
        let finished =
            self.shards.iter().filter(|((group, _), _)| !plan.spec.groups[*group].publish.is_empty()).all(|(_, workers)| {
                workers
                    .last()
                    .is_none_or(|worker| matches!(worker.state.phase(), Some(ShardPhase::Draining | ShardPhase::Finished) | None))
            });
        for ((group, index), workers) in &mut self.shards {
            for worker in workers {
                worker.work(&plan, *group, *index, now, sent, finished);
            }
        }
    }

    pub fn observe(&self) -> Observations {
        let shards = self.shards.iter().map(|((group, index), workers)| ShardObservation {
            group: *group,
            index: *index,
            attempts: workers
                .iter()
                .map(|worker| AttemptObservation {
                    uid: worker.uid.clone(),
                    attempt: worker.number,
                    started_at: worker.started_at,
                    state: worker.state.clone(),
                    counts: worker.counts.clone(),
                })
                .collect(),
            given_up: self.given_up,
        });
        Observations {
            observing_since: self.since,
            children: if self.made { Children::Complete } else { Children::Missing },
            leftovers: Leftovers { pods: !self.shards.is_empty(), others: self.torn_down.is_none() && self.made },
            shards: shards.collect(),
            problems: self.problems.clone(),
            ledger: self.ledger.clone(),
            preempted: self.preempted.clone(),
        }
    }
}

impl Worker {
    fn work(&mut self, plan: &RunPlan, group: usize, index: u32, now: Timestamp, all_sent: u64, publishers_done: bool) {
        if !matches!(self.state, AttemptState::Live { .. }) || !self.reachable {
            return;
        }
        if self.state.phase() == Some(ShardPhase::Finished) {
            return;
        }
        let slice = plan.slice(group, index).unwrap();
        let clients = u64::from(slice.clients());
        let (refused, why) = self.refused.unwrap_or((0, Counter::ConnectNotAuthorized));
        let spec = &plan.spec.groups[group];
        let mut counts = Snapshot::new();
        counts.set_gauge(Gauge::ClientsDesired, clients as i64);
        let connected_from = self.released.map(|at| at.max(self.started_at.unwrap()) + SignedDuration::from_millis(500));
        let connected = connected_from.is_some_and(|at| now >= at);
        let ready = if connected { clients - refused } else { 0 };
        if connected {
            counts.set(Counter::ConnectsSucceeded, ready);
            counts.set(why, refused);
            counts.set_gauge(Gauge::ClientsFailed, refused as i64);
        }
        let ns = |at: Timestamp| unix_ns(at).unwrap();
        let stopped = self.stopped.map_or(u64::MAX, ns);
        let window = self.start.map(|start| (start.start_unix_ns, start.end_unix_ns.min(stopped).max(start.start_unix_ns)));
        let mut phase = match (self.released, connected) {
            (None, _) => ShardPhase::Waiting,
            (_, false) => ShardPhase::Connecting,
            _ => ShardPhase::Connected,
        };
        if let Some((start, end)) = window.filter(|(start, _)| ns(now) >= *start) {
            phase = if ns(now) >= end { ShardPhase::Draining } else { ShardPhase::Running };
            let elapsed = ns(now).min(end) - start;
            let joined = connected_from.map_or(0, |at| ns(at).saturating_sub(start));
            for entry in &spec.publish {
                let schedule = publish_schedule(spec, entry);
                let count = |until: u64| -> u64 {
                    (0..slice.clients()).map(|j| schedule.client_slots_before(slice.rank(j), until)).sum()
                };
                let planned = count(elapsed);
                let absent = count(joined.min(elapsed));
                let sent = planned - absent;
                counts.add(Counter::Planned, planned);
                counts.add(Counter::Absent, absent);
                counts.add(Counter::Scheduled, sent);
                counts.add(Counter::SentQos1, sent);
                let unacked = self.unacked.min(sent);
                counts.add(Counter::Acked, sent - unacked);
                counts.set_gauge(Gauge::Unacked, unacked as i64);
                let listeners = 2 * u64::from(plan.groups.len() > 1);
                counts.add(Counter::ExpectedMin, (sent - unacked) * listeners);
                counts.add(Counter::ExpectedMax, sent * listeners);
            }
            if !spec.subscribe.is_empty() {
                let received = (all_sent * clients).saturating_sub(self.lost);
                counts.set(Counter::Received, received);
                counts.set(Counter::Unique, received);
            }
        } else if self.stopped.is_some() {
            phase = ShardPhase::Draining;
        }
        let drain_over = window.is_none_or(|(_, end)| ns(now) >= end + plan.spec.load.drain.as_nanos());
        let settled = if spec.subscribe.is_empty() { self.unacked == 0 } else { self.drained && publishers_done };
        if phase == ShardPhase::Draining && (drain_over || settled) {
            phase = ShardPhase::Finished;
        }
        counts.set_gauge(Gauge::ClientsReady, if phase == ShardPhase::Finished { 0 } else { ready as i64 });
        self.counts = Some(Counts { snapshot: Arc::new(counts), at: now, last: phase == ShardPhase::Finished });
        let status = ShardStatus {
            phase,
            group: spec.name.clone(),
            shard: index,
            attempt: self.number,
            run_id: "1-abc".into(),
            release_unix_ns: self.released.map(ns),
            start: self.start,
            clock: Clock { unix_ns: ns(now), monotonic_ns: 0, boot_id: String::new() },
            message: None,
        };
        self.state = AttemptState::Live { status: Some(status), reachable: true };
    }
}

/// The status of a condition.
pub fn condition(status: &MqttLoadTestStatus, type_: &str) -> (String, String) {
    let found = status.conditions.iter().find(|condition| condition.type_ == type_).unwrap();
    (found.status.clone(), found.reason.clone())
}
