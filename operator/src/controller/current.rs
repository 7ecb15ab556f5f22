//! The newest run of an object, as this process has it at hand: its plan, what was seen of it, what was made for it.
//! Everything in it is read again after a restart.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::api::{batch::v1::Job, core::v1::ConfigMap};
use kube::{Api, Client, Resource, ResourceExt, core::PartialObjectMeta, runtime::reflector::ObjectRef};
use mqtt_loadtest_crds::{
    MqttLoadTest,
    hash::spec_hash,
    plan::{RunIdentity, RunPlan},
};
use mqtt_loadtest_worker::protocol;
use tracing::error;

use super::{
    build::{CONTROL_PORT, Names, PLAN_KEY, RUN_LABEL, RUN_STATE_KEY, UID_LABEL},
    context::Scope,
    error::{Error, timed},
    observe::{self, Summaries},
    pods::{PodFacts, PodState, RunKey},
    rounds::Rounds,
    teardown::Remains,
    watch::{Stores, test_of},
};
use crate::{
    run::{Children, Ledger, Leftovers, Observations, RunState, StartProblem, rates::Meter},
    scrape::Endpoint,
};

/// How long a child that was just made may be missing from its watch.
const WATCH_LAG: Duration = Duration::from_secs(10);

/// The newest run of an object.
pub struct Current {
    /// Its plan.
    pub plan: Arc<RunPlan>,
    /// Since when this process watches it.
    pub observing_since: Timestamp,
    /// The counts of its dead pods, as they are stored.
    pub ledger: Ledger,
    /// Rates between two looks.
    pub meter: Meter,
    /// What the mounted run state says, if it was made.
    pub run_state: Option<protocol::RunState>,
    /// When its children were last made.
    pub made_at: Option<Instant>,
    /// Why the API server refuses its children.
    pub refused: Option<StartProblem>,
    /// What events tell of its start, and when they were last read.
    pub troubles: (Vec<StartProblem>, Option<Instant>),
    /// UIDs of the pods that were told to exit.
    pub let_go: HashSet<String>,
    /// Its workers' answers.
    pub rounds: Rounds,
    summaries: Summaries,
}

/// A run's plan, or the news that it is lost.
pub enum Loaded {
    /// Here it is.
    Ready(Box<Current>),
    /// The plan was deleted in mid-run and cannot be made again.
    PlanLost,
}

impl Current {
    /// A run of which nothing exists yet.
    pub fn new(plan: RunPlan, scope: &Arc<Scope>) -> Self {
        let shared = &scope.shared;
        let test = ObjectRef::new(&plan.run.name).within(&plan.run.namespace);
        let waker = Arc::downgrade(scope);
        let rounds = Rounds::start(shared.scraper.clone(), shared.metrics.clone(), move || {
            if let Some(scope) = waker.upgrade() {
                scope.wake(&test);
            }
        });
        Self {
            plan: Arc::new(plan),
            observing_since: Timestamp::now(),
            ledger: Ledger::default(),
            meter: Meter::default(),
            run_state: None,
            made_at: None,
            refused: None,
            troubles: (Vec::new(), None),
            let_go: HashSet::new(),
            rounds,
            summaries: Summaries::new(),
        }
    }

    /// A run that an operator before this one may have begun: plan, ledger and run state are read back.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn load(scope: &Arc<Scope>, test: &MqttLoadTest, state: &RunState) -> Result<Loaded, Error> {
        let run = identity(test, &state.id);
        let names = Names::new(&run);
        let again = spec_hash(&test.spec) == state.spec_hash;
        let client = &scope.shared.client;
        // An object at rest costs no request: of a run that is torn down nothing is left to read.
        let made = state.started_at.is_some() && (!state.ended() || leftovers(scope, &run).others);
        let stored = if made { stored_plan(client, &run).await? } else { None };
        let plan = match stored {
            Some(plan) => plan,
            None if again || state.ended() => RunPlan::new(run.clone(), test.spec.clone()),
            None => return Ok(Loaded::PlanLost),
        };
        let mut current = Self::new(plan, scope);
        if state.started_at.is_some() && !state.ended() {
            let ledger = data(client, &run, &names.ledger).await?.unwrap_or_default();
            current.ledger = Ledger::from_data(&ledger).unwrap_or_else(|problem| {
                error!(namespace = run.namespace, name = run.name, run = run.id, %problem, "counts of dead pods are lost");
                Ledger::default()
            });
            let run_state = data(client, &run, &names.run_state).await?.unwrap_or_default();
            current.run_state = run_state.get(RUN_STATE_KEY).and_then(|text| serde_json::from_str(text).ok());
        }
        Ok(Loaded::Ready(Box::new(current)))
    }

    /// Identity of the run.
    pub fn id(&self) -> &str {
        &self.plan.run.id
    }

    fn key(&self) -> RunKey {
        (self.plan.run.uid.clone(), self.plan.run.id.clone())
    }

    /// Its Jobs.
    pub fn jobs(&self, stores: &Stores) -> Vec<Arc<Job>> {
        jobs_of(stores, &self.plan.run)
    }

    /// Its pods, the dead ones included.
    pub fn pods(&self, scope: &Scope) -> Vec<PodFacts> {
        scope.shared.pods.of(&self.key())
    }

    /// What is seen of the run now.
    pub fn observe(&mut self, scope: &Scope, now: Timestamp) -> Observations {
        let jobs = self.jobs(&scope.stores);
        let pods = self.pods(scope);
        let mut problems: Vec<StartProblem> = self.refused.iter().chain(&self.troubles.0).cloned().collect();
        if self.rounds.token_refused() {
            let message =
                "the workers refuse the operator's token: someone else made its Secret; delete the Secret and run again";
            problems.push(StartProblem { reason: "TokenMismatch".into(), message: message.into(), incurable: true });
        }
        let rounds = &self.rounds;
        let shards = observe::shards(&self.plan, &jobs, &pods, &|uid| rounds.known(uid), &mut self.summaries, now);
        let suspended = jobs.iter().find(|job| observe::is_suspended(job));
        Observations {
            observing_since: self.observing_since,
            children: self.children(&scope.stores, &jobs),
            leftovers: leftovers(scope, &self.plan.run),
            shards,
            problems: observe::problems(&jobs, &pods, &problems),
            ledger: self.ledger.clone(),
            preempted: suspended.map(|job| format!("Job {} was suspended by someone else", job.name_any())),
        }
    }

    fn children(&self, stores: &Stores, jobs: &[Arc<Job>]) -> Children {
        if self.made_at.is_some_and(|made| made.elapsed() < WATCH_LAG) {
            return Children::Complete;
        }
        let names = Names::new(&self.plan.run);
        let plan = ObjectRef::new(&names.plan).within(&self.plan.run.namespace);
        let plan_is_there = stores.maps.get(&plan).is_some_and(|map| map.metadata.deletion_timestamp.is_none());
        let living = jobs.iter().filter(|job| job.metadata.deletion_timestamp.is_none()).count();
        if plan_is_there && living == self.plan.groups.len() { Children::Complete } else { Children::Missing }
    }

    /// Where the workers listen that run now, by the UID of their pods.
    pub fn endpoints(&self, scope: &Scope, pods: &[PodFacts]) -> BTreeMap<String, Endpoint> {
        let run = &self.plan.run;
        let token = scope.shared.token(&run.uid, &run.id);
        pods.iter()
            .filter(|pod| pod.exists && matches!(pod.state, PodState::Running { .. }))
            .filter_map(|pod| {
                let ip = pod.ip.as_ref()?;
                let host = if ip.contains(':') { format!("[{ip}]") } else { ip.clone() };
                let base = format!("http://{host}:{CONTROL_PORT}");
                Some((pod.uid.clone(), Endpoint { base, token: token.clone(), run_id: run.id.clone() }))
            })
            .collect()
    }
}

/// Identity of a run of an object.
pub fn identity<K: Resource>(test: &K, id: &str) -> RunIdentity {
    RunIdentity {
        namespace: test.namespace().unwrap_or_default(),
        name: test.name_any(),
        uid: test.uid().unwrap_or_default(),
        id: id.to_owned(),
    }
}

/// The Jobs of a run that their watch shows.
fn jobs_of(stores: &Stores, run: &RunIdentity) -> Vec<Arc<Job>> {
    let is = |job: &Job, label: &str, value: &str| job.labels().get(label).is_some_and(|other| other == value);
    stores.jobs.state_filter(|job: &Job| is(job, UID_LABEL, &run.uid) && is(job, RUN_LABEL, &run.id))
}

/// Names of the ConfigMaps of a run that their watch shows.
fn maps_of(stores: &Stores, run: &RunIdentity) -> Vec<String> {
    let is = |map: &PartialObjectMeta<ConfigMap>, label: &str, value: &str| {
        map.labels().get(label).is_some_and(|other| other == value)
    };
    let maps = stores.maps.state_filter(|map| is(map, UID_LABEL, &run.uid) && is(map, RUN_LABEL, &run.id));
    maps.iter().map(|map| map.name_any()).collect()
}

/// What the watches show of a run, for its teardown.
pub fn remains(scope: &Scope, run: &RunIdentity) -> Remains {
    let pods = scope.shared.pods.of(&(run.uid.clone(), run.id.clone()));
    let is_busy = |pod: &PodFacts| pod.exists && matches!(pod.state, PodState::Pending(_) | PodState::Running { .. });
    let has_run = |pod: &PodFacts| pod.exists && matches!(pod.state, PodState::Running { .. } | PodState::Ended { .. });
    Remains {
        jobs: jobs_of(&scope.stores, run),
        maps: maps_of(&scope.stores, run),
        busy: pods.iter().filter(|pod| is_busy(pod)).map(|pod| pod.group.clone()).collect(),
        ran: pods.iter().filter(|pod| has_run(pod)).map(|pod| pod.group.clone()).collect(),
    }
}

/// What is left of a run.
pub fn leftovers(scope: &Scope, run: &RunIdentity) -> Leftovers {
    let pods = !jobs_of(&scope.stores, run).is_empty() || scope.shared.pods.any_left(&(run.uid.clone(), run.id.clone()));
    Leftovers { pods, others: !maps_of(&scope.stores, run).is_empty() }
}

/// Ids of the runs of an object of which anything is left.
pub fn runs_left<K: Resource>(scope: &Scope, test: &K) -> Vec<String> {
    let uid = test.uid().unwrap_or_default();
    let of_test = |labels: &BTreeMap<String, String>| {
        labels.get(UID_LABEL).filter(|other| **other == uid).and(labels.get(RUN_LABEL)).cloned()
    };
    let jobs = scope.stores.jobs.state().into_iter().filter_map(|job| of_test(job.labels()));
    let maps = scope.stores.maps.state().into_iter().filter_map(|map| of_test(map.labels()));
    let pods = scope.stores.pods.state().into_iter().filter_map(|pod| of_test(pod.labels()));
    let mut ids: Vec<String> = jobs.chain(maps).chain(pods).collect();
    ids.sort();
    ids.dedup();
    ids
}

/// The plan of a run as it was stored; None when it is not there, or is not ours.
///
/// # Errors
/// When the API server does not answer.
pub async fn stored_plan(client: &Client, run: &RunIdentity) -> Result<Option<RunPlan>, Error> {
    let stored = data(client, run, &Names::new(run).plan).await?;
    let plan = stored.and_then(|data| serde_json::from_str::<RunPlan>(data.get(PLAN_KEY)?).ok());
    Ok(plan.filter(|plan| plan.run == *run))
}

/// The content of a ConfigMap of a run; None when it does not exist.
async fn data(client: &Client, run: &RunIdentity, name: &str) -> Result<Option<BTreeMap<String, String>>, Error> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), &run.namespace);
    let map = timed("read a ConfigMap", api.get_opt(name)).await?;
    // One with our name that a stranger made says nothing about the run.
    let ours = map.filter(|map| map.labels().get(UID_LABEL) == Some(&run.uid) && test_of(map).is_some());
    Ok(ours.map(|map| map.data.unwrap_or_default()))
}
