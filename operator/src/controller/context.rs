//! What all reconciles of one term of leadership share. It is made when the term begins and dropped when it ends, and with it
//! every task and everything remembered.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use futures::channel::mpsc::UnboundedSender;
use jiff::Timestamp;
use kube::{Client, Resource, ResourceExt, runtime::reflector::ObjectRef};
use mqtt_loadtest_crds::{MqttLoadTest, status::Phase};
use mqtt_loadtest_worker::protocol;

use super::{
    apply::Maker,
    capacity::Capacity,
    current::Current,
    events::Events,
    health::{Health, Watched},
    metrics::Metrics,
    pods::PodLog,
    settings::Settings,
    teardown::Deleted,
    watch::{Guarded, Stores},
};
use crate::scrape::Scraper;

/// What all reconciles share.
pub struct Shared {
    /// Access to the API server.
    pub client: Client,
    /// Configuration.
    pub settings: Settings,
    /// The key from which tokens derive.
    pub key: Vec<u8>,
    /// Health of the process.
    pub health: Arc<Health>,
    /// Metrics of the process.
    pub metrics: Arc<Metrics>,
    /// Events on MqttLoadTests.
    pub events: Events,
    /// The limit of concurrent runs.
    pub capacity: Capacity,
    /// All pods of all runs.
    pub pods: Arc<PodLog>,
    /// Access to the workers.
    pub scraper: Scraper,
    scopes: OnceLock<Vec<Arc<Scope>>>,
    memories: Mutex<HashMap<String, Arc<tokio::sync::Mutex<Memory>>>>,
    failures: Mutex<HashMap<String, u32>>,
}

/// A namespace that is watched, or the whole cluster.
pub struct Scope {
    /// What is shared with the other scopes.
    pub shared: Arc<Shared>,
    /// What its watches have shown.
    pub stores: Stores,
    /// Wakes the reconcile of an object.
    pub wake: UnboundedSender<ObjectRef<Guarded>>,
}

/// What is remembered of one object between reconciles. Losing it costs a few reads.
#[derive(Default)]
pub struct Memory {
    /// The object as our own last write left it; the watch may lag behind.
    pub latest: Option<Arc<MqttLoadTest>>,
    /// When its status was last written.
    pub last_write: Option<Timestamp>,
    /// When it was last reconciled.
    pub last_look: Option<Instant>,
    /// Problems of the spec, and the generation that they are about.
    pub validity: Option<(i64, Arc<Vec<String>>)>,
    /// What was deleted of its runs.
    pub deleted: Deleted,
    /// Its newest run.
    pub current: Option<Current>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Nothing remembered yet.
    pub fn new(
        client: Client,
        settings: Settings,
        key: Vec<u8>,
        health: Arc<Health>,
        metrics: Arc<Metrics>,
        scraper: Scraper,
    ) -> Self {
        Self {
            events: Events::new(client.clone(), &settings.pod_name),
            capacity: Capacity::new(settings.max_concurrent_runs),
            client,
            settings,
            key,
            health,
            metrics,
            pods: Arc::default(),
            scraper,
            scopes: OnceLock::new(),
            memories: Mutex::default(),
            failures: Mutex::default(),
        }
    }

    /// Tells of all scopes, once.
    pub fn set_scopes(&self, scopes: Vec<Arc<Scope>>) {
        // It is called once, by the one who made this.
        let _ = self.scopes.set(scopes);
    }

    fn scopes(&self) -> &[Arc<Scope>] {
        self.scopes.get().map(Vec::as_slice).unwrap_or_default()
    }

    /// All objects that can be read.
    fn tests(&self) -> Vec<Arc<Guarded>> {
        self.scopes().iter().flat_map(|scope| scope.stores.tests.state()).collect()
    }

    /// UIDs of the objects whose statuses tell of a run that has begun and not ended.
    pub fn under_way(&self) -> Vec<String> {
        let begun = |test: &MqttLoadTest| {
            let run = test.status.as_ref().and_then(|status| status.run.as_ref());
            run.is_some_and(|run| run.started_at.is_some() && run.completed_at.is_none())
        };
        self.tests()
            .iter()
            .filter_map(|test| test.0.as_ref().ok().filter(|test| begun(test)).and_then(ResourceExt::uid))
            .collect()
    }

    /// A run has ended: those that wait look again.
    pub fn wake_waiting(&self) {
        if self.capacity.waiting() == 0 {
            return;
        }
        for scope in self.scopes() {
            for test in scope.stores.tests.state() {
                if test.0.as_ref().is_ok_and(|test| phase(test) == Some(Phase::Pending)) {
                    scope.wake(&ObjectRef::from_obj(test.as_ref()));
                }
            }
        }
    }

    /// The memory of an object; only one reconcile at a time holds it.
    pub fn memory(&self, uid: &str) -> Arc<tokio::sync::Mutex<Memory>> {
        lock(&self.memories).entry(uid.to_owned()).or_default().clone()
    }

    /// An object was deleted.
    pub fn forget(&self, uid: &str) {
        lock(&self.memories).remove(uid);
        lock(&self.failures).remove(uid);
        self.capacity.leave(uid);
        self.health.forget(Watched::Tests, Some(uid));
        self.wake_waiting();
    }

    /// Forgets the pods of objects that are gone.
    pub fn sweep(&self) {
        let there: std::collections::HashSet<String> = self.tests().iter().filter_map(|test| test.meta().uid.clone()).collect();
        self.pods.sweep(|(uid, _)| there.contains(uid));
    }

    /// Refreshes the metrics that count objects.
    pub fn refresh_metrics(&self) {
        let tests = self.tests();
        let phases = tests.iter().filter_map(|test| test.0.as_ref().ok().and_then(phase));
        self.metrics.set_runs(phases, self.capacity.waiting());
    }

    /// Makes children of runs.
    pub fn maker(&self) -> Maker<'_> {
        Maker {
            client: &self.client,
            health: &self.health,
            worker: &self.settings.worker,
            operator_namespace: &self.settings.pod_namespace,
            key: &self.key,
        }
    }

    /// The control token of a run.
    pub fn token(&self, uid: &str, run_id: &str) -> protocol::Token {
        protocol::token(&self.key, uid, run_id)
    }

    /// How long to wait after one more failure of an object's reconcile: twice as long each time, with jitter.
    pub fn back_off(&self, uid: &str) -> Duration {
        let mut failures = lock(&self.failures);
        let count = failures.entry(uid.to_owned()).or_insert(0);
        let base = Duration::from_millis(500) * 2u32.pow((*count).min(6));
        *count += 1;
        base.mul_f64(rand::random_range(0.5..1.5))
    }

    /// A reconcile of the object succeeded.
    pub fn succeeded(&self, uid: &str) {
        lock(&self.failures).remove(uid);
    }
}

impl Scope {
    /// Wakes the reconcile of an object.
    pub fn wake(&self, test: &ObjectRef<Guarded>) {
        // The receiver is gone when the term is over.
        let _ = self.wake.unbounded_send(test.clone());
    }
}

fn phase(test: &MqttLoadTest) -> Option<Phase> {
    test.status.as_ref().and_then(|status| status.phase)
}
