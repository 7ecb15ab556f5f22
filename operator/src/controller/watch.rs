//! The watches of one scope (a namespace, or the whole cluster) and the stores that they fill. Reconciles read from the stores;
//! an idle operator lists nothing.

use std::{fmt::Debug, sync::Arc, time::Instant};

use futures::{FutureExt, Stream, StreamExt, future::BoxFuture};
use jiff::Timestamp;
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{ConfigMap, Pod},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    core::{DeserializeGuard, PartialObjectMeta},
    runtime::{
        WatchStreamExt,
        reflector::{self, ObjectRef, Store},
        watcher::{self, Event, watcher},
    },
};
use mqtt_loadtest_crds::MqttLoadTest;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::{
    build::{MANAGED, NAME_ANNOTATION, UID_LABEL},
    health::{Health, Watched},
    pods::PodLog,
};

/// An MqttLoadTest as it is read. One that cannot be read (written under another version of the CRD) must not stop the watch
/// for all others.
pub type Guarded = DeserializeGuard<MqttLoadTest>;

/// All watches of a scope have shown their first list.
pub const ALL: u8 = 0b1111;

/// The server ends a watch after so long; the client gives it up 5 s later.
const WATCH_SECONDS: u32 = 240;

/// What the watches of a scope have shown.
#[derive(Clone)]
pub struct Stores {
    /// MqttLoadTests.
    pub tests: Store<Guarded>,
    /// Jobs of runs.
    pub jobs: Store<Job>,
    /// Pods of runs, metadata only: what is known of them is in the [`PodLog`].
    pub pods: Store<Pod>,
    /// ConfigMaps of runs, metadata only.
    pub maps: Store<PartialObjectMeta<ConfigMap>>,
    /// Which of them are filled, one bit each.
    pub listed: watch::Receiver<u8>,
}

impl Stores {
    /// Resolves when every watch has shown its first list. False when they ended before.
    ///
    /// Not by the stores' own `wait_until_ready`: it wakes only one of those who wait.
    pub fn ready(&self) -> BoxFuture<'static, bool> {
        let mut listed = self.listed.clone();
        async move { listed.wait_for(|listed| *listed == ALL).await.is_ok() }.boxed()
    }
}

/// Streams that fill the stores of a scope, each item being something that was touched.
pub struct Streams {
    /// MqttLoadTests.
    pub tests: Touched<Guarded>,
    /// Jobs of runs.
    pub jobs: Touched<Job>,
    /// Pods of runs.
    pub pods: Touched<Pod>,
    /// ConfigMaps of runs.
    pub maps: Touched<PartialObjectMeta<ConfigMap>>,
}

/// Objects as a watch shows them, deleted ones included.
pub type Touched<K> = futures::stream::BoxStream<'static, Result<K, watcher::Error>>;

/// Called with the UID of a MqttLoadTest that was deleted.
pub type OnGone = Arc<dyn Fn(&str) + Send + Sync>;

/// Watches a namespace, or all.
pub fn open(
    client: &Client,
    namespace: Option<&str>,
    health: &Arc<Health>,
    pod_log: Arc<PodLog>,
    on_gone: OnGone,
) -> (Stores, Streams) {
    let all = watcher::Config::default().timeout(WATCH_SECONDS);
    let ours = all.clone().labels(MANAGED);
    let (tests, tests_writer) = reflector::store();
    let (jobs, jobs_writer) = reflector::store();
    let (pods, pods_writer) = reflector::store();
    let (maps, maps_writer) = reflector::store();
    let (sender, listed) = watch::channel(0);
    let listing = |bit: u8| {
        let sender = sender.clone();
        move || sender.send_modify(|listed| *listed |= bit)
    };
    let pod_events = watcher(api::<Pod>(client, namespace), ours.clone()).map(move |event| {
        if let Ok(event) = &event {
            pod_log.note(event, Timestamp::now());
        }
        event.map(|event| event.modify(slim))
    });
    let test_events = watcher(api::<Guarded>(client, namespace), all).inspect(move |event| {
        if let Ok(Event::Delete(test)) = event {
            on_gone(test.meta().uid.as_deref().unwrap_or_default());
        }
    });
    let map_events = watcher(api::<PartialObjectMeta<ConfigMap>>(client, namespace), ours.clone());
    let streams = Streams {
        tests: touched(test_events, Watched::Tests, health, tests_writer, listing(0b0001)),
        jobs: touched(watcher(api(client, namespace), ours), Watched::Jobs, health, jobs_writer, listing(0b0010)),
        pods: touched(pod_events, Watched::Pods, health, pods_writer, listing(0b0100)),
        maps: touched(map_events, Watched::ConfigMaps, health, maps_writer, listing(0b1000)),
    };
    (Stores { tests, jobs, pods, maps, listed }, streams)
}

fn api<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

fn touched<K>(
    events: impl Stream<Item = Result<Event<K>, watcher::Error>> + Send + 'static,
    kind: Watched,
    health: &Arc<Health>,
    writer: reflector::store::Writer<K>,
    listed: impl Fn() + Send + 'static,
) -> Touched<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let health = health.clone();
    events
        .default_backoff()
        .inspect(move |event| note(&health, kind, event))
        .modify(|object| {
            object.managed_fields_mut().clear();
        })
        .reflect(writer)
        .inspect(move |event| {
            if matches!(event, Ok(Event::InitDone)) {
                listed();
            }
        })
        .touched_objects()
        .boxed()
}

fn note<K: Resource>(health: &Health, kind: Watched, event: &Result<Event<K>, watcher::Error>) {
    match event {
        Ok(Event::Apply(object) | Event::InitApply(object)) => {
            let meta = object.meta();
            health.seen(kind, meta.uid.as_deref().unwrap_or_default(), meta.resource_version.as_deref());
        }
        Ok(Event::Delete(object)) => health.forget(kind, Some(object.meta().uid.as_deref().unwrap_or_default())),
        Ok(Event::Init) => health.excuse(kind, Instant::now()),
        Ok(Event::InitDone) => health.forget(kind, None),
        Err(error) => {
            tracing::warn!(?kind, %error, "a watch failed and is tried again");
            health.excuse(kind, Instant::now());
        }
    }
}

/// Only what tells which test was touched is passed on: the facts are in the log by then.
fn slim(pod: &mut Pod) {
    pod.spec = None;
    pod.status = None;
}

/// The MqttLoadTest that a child belongs to.
pub fn test_of<K: Resource>(child: &K) -> Option<ObjectRef<Guarded>> {
    let meta = child.meta();
    meta.labels.as_ref()?.get(UID_LABEL)?;
    let name = meta.annotations.as_ref()?.get(NAME_ANNOTATION)?;
    Some(ObjectRef::new(name).within(meta.namespace.as_deref()?))
}
