//! Whole reconciles against a fake API server: what is written, in which order, and what is left alone. What the state
//! machine decides is tested beside it; these are about doing it.

mod fake_api;

use std::sync::Arc;

use fake_api::FakeApi;
use futures::channel::mpsc;
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{ConfigMap, Pod},
};
use kube::{
    core::PartialObjectMeta,
    runtime::{
        reflector::{self, store::Writer},
        watcher::Event,
    },
};
use mqtt_loadtest_crds::hash::spec_hash;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{
    build::WorkerSettings,
    context::{Scope, Shared},
    error::Error,
    health::Health,
    metrics::Metrics,
    reconcile::reconcile,
    settings::Settings,
    watch::{ALL, Guarded, Stores},
};
use crate::scrape::Scraper;

const TEST: &str = "/apis/mqttloadtest.dev/v1alpha1/namespaces/ns/mqttloadtests/t";

/// The operator's side of a cluster, without watches: what they would show is put into their stores by hand.
struct Bed {
    api: FakeApi,
    scope: Arc<Scope>,
    jobs: Writer<Job>,
    maps: Writer<PartialObjectMeta<ConfigMap>>,
    _tests: Writer<Guarded>,
    _pods: Writer<Pod>,
}

impl Bed {
    async fn new() -> Self {
        let (api, client) = FakeApi::start().await;
        let settings = Settings {
            pod_name: "operator-0".into(),
            pod_namespace: "system".into(),
            lease_name: "lease".into(),
            key_file: "unused".into(),
            worker: WorkerSettings { image: "worker:1".into(), pull_policy: "IfNotPresent".into() },
            namespaces: Vec::new(),
            max_concurrent_runs: None,
            listen: "127.0.0.1:0".parse().unwrap(),
        };
        let (health, metrics) = (Arc::new(Health::default()), Arc::new(Metrics::default()));
        let shared = Arc::new(Shared::new(client, settings, b"0123456789abcdef".to_vec(), health, metrics, Scraper::new()));
        let (tests, tests_writer) = reflector::store();
        let (jobs, jobs_writer) = reflector::store();
        let (pods, pods_writer) = reflector::store();
        let (maps, maps_writer) = reflector::store();
        let (wake, _) = mpsc::unbounded();
        let scope = Arc::new(Scope { shared, stores: Stores { tests, jobs, pods, maps, listed: watch::channel(ALL).1 }, wake });
        Self { api, scope, jobs: jobs_writer, maps: maps_writer, _tests: tests_writer, _pods: pods_writer }
    }

    /// Puts a test there, with changes to its spec and a status.
    fn test(&self, edit: impl Fn(&mut Value), status: Value) {
        let mut object = json!({
            "apiVersion": "mqttloadtest.dev/v1alpha1", "kind": "MqttLoadTest",
            "metadata": {"name": "t", "namespace": "ns", "uid": "u-1", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"broker": {"endpoints": ["mqtt://b"]}, "groups": [{"name": "g", "clients": 2}]},
        });
        edit(&mut object["spec"]);
        if !status.is_null() {
            object["status"] = status;
        }
        self.api.put(TEST, &object);
    }

    async fn reconcile(&self) -> Result<(), Error> {
        tokio::time::sleep(std::time::Duration::from_millis(110)).await;
        let seen: Guarded = serde_json::from_value(self.api.get(TEST).unwrap()).unwrap();
        reconcile(Arc::new(seen), self.scope.clone()).await.map(drop)
    }

    fn status(&self) -> Value {
        self.api.get(TEST).unwrap()["status"].clone()
    }

    /// Shows the Jobs and ConfigMaps that were created to the stores, as their watches would.
    fn show_children(&mut self) -> Vec<String> {
        let mut names = Vec::new();
        for path in self.api.paths() {
            let object = self.api.get(&path).unwrap();
            if path.contains("/jobs/") {
                self.jobs.apply_watcher_event(&Event::Apply(read(object)));
                names.push(path);
            } else if path.contains("/configmaps/") {
                self.maps.apply_watcher_event(&Event::Apply(read(object)));
                names.push(path);
            }
        }
        names
    }
}

fn read<K: DeserializeOwned>(object: Value) -> K {
    serde_json::from_value(object).unwrap()
}

fn kinds(writes: &[String]) -> Vec<String> {
    let short = |write: &String| {
        let (method, path) = write.split_once(' ').unwrap();
        let parts: Vec<&str> = path.split('/').collect();
        let at = parts.iter().position(|part| *part == "namespaces").unwrap() + 2;
        let status = if path.ends_with("/status") { "/status" } else { "" };
        format!("{method} {}{status}", parts[at])
    };
    writes.iter().map(short).collect()
}

#[tokio::test]
async fn a_new_object_has_its_status_before_its_children_and_each_child_once() {
    let bed = Bed::new().await;
    bed.test(|_| {}, Value::Null);
    bed.reconcile().await.unwrap();
    let expected =
        ["PATCH mqttloadtests/status", "POST configmaps", "POST secrets", "POST configmaps", "POST networkpolicies", "POST jobs"];
    assert_eq!(kinds(&bed.api.writes()), expected);
    let status = bed.status();
    assert_eq!((status["phase"].as_str(), status["observedGeneration"].as_i64()), (Some("Starting"), Some(1)));
    bed.reconcile().await.unwrap();
    assert_eq!(bed.api.writes(), Vec::<String>::new(), "nothing is made or written again");
}

#[tokio::test]
async fn who_loses_the_race_for_the_status_makes_nothing() {
    let bed = Bed::new().await;
    bed.test(|_| {}, Value::Null);
    bed.api.refuse(&format!("PATCH {TEST}/status"), (409, "Conflict", "the object has been modified"));
    bed.reconcile().await.unwrap();
    assert_eq!(kinds(&bed.api.writes()), ["PATCH mqttloadtests/status"]);
}

#[tokio::test]
async fn an_invalid_spec_is_stalled_with_the_fields_path_and_makes_nothing() {
    let bed = Bed::new().await;
    bed.test(|spec| spec["groups"][0]["clientId"] = json!("same"), Value::Null);
    bed.reconcile().await.unwrap();
    assert_eq!(kinds(&bed.api.writes()), ["PATCH mqttloadtests/status"]);
    let status = bed.status();
    let stalled = status["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "Stalled").unwrap();
    assert_eq!((stalled["status"].as_str(), stalled["reason"].as_str()), (Some("True"), Some("InvalidSpec")));
    assert!(status["message"].as_str().unwrap().starts_with("spec.groups[0].clientId: "), "{status}");
    bed.reconcile().await.unwrap();
    assert_eq!(bed.api.writes(), Vec::<String>::new());
}

#[tokio::test]
async fn an_object_that_cannot_be_read_is_stalled_with_the_fields_path() {
    let bed = Bed::new().await;
    bed.test(|spec| spec["load"] = json!({"duration": "9999999h"}), Value::Null);
    bed.reconcile().await.unwrap();
    assert_eq!(kinds(&bed.api.writes()), ["PATCH mqttloadtests/status"]);
    let status = bed.status();
    let stalled = status["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "Stalled").unwrap();
    assert_eq!(stalled["status"].as_str(), Some("True"));
    assert!(status["message"].as_str().unwrap().starts_with("spec.load.duration: cannot be read: "), "{status}");
    bed.reconcile().await.unwrap();
    assert_eq!(bed.api.writes(), Vec::<String>::new());
}

#[tokio::test]
async fn a_run_goes_on_from_its_plan_when_its_object_becomes_unreadable() {
    let mut bed = Bed::new().await;
    bed.test(|_| {}, Value::Null);
    bed.reconcile().await.unwrap();
    bed.show_children();
    // Also for an operator that knows nothing of the run but what is stored.
    for restarted in [false, true] {
        if restarted {
            bed.scope.shared.forget("u-1");
        }
        bed.test(|spec| spec["groups"][0]["clients"] = json!("many"), bed.status());
        bed.reconcile().await.unwrap();
        let status = bed.status();
        assert_eq!((status["phase"].as_str(), status["verdict"].as_str()), (Some("Starting"), None), "{status}");
        let pending = status["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "SpecPending").unwrap();
        assert_eq!(pending["status"].as_str(), Some("True"));
    }
    let spec = |spec: &mut Value| {
        spec["groups"][0]["clients"] = json!("many");
        spec["stopRun"] = bed.status()["run"]["id"].clone();
    };
    bed.test(spec, bed.status());
    bed.reconcile().await.unwrap();
    let status = bed.status();
    assert_eq!((status["verdict"].as_str(), status["reason"].as_str()), (Some("Inconclusive"), Some("Stopped")), "{status}");
    bed.reconcile().await.unwrap();
    assert!(bed.status()["message"].as_str().unwrap().contains("cannot be read"), "{}", bed.status());
    assert!(bed.api.paths().iter().all(|path| !path.contains("/jobs/")), "{:?}", bed.api.paths());
}

#[tokio::test]
async fn a_suspended_object_makes_nothing_until_it_is_resumed() {
    let bed = Bed::new().await;
    bed.test(|spec| spec["suspend"] = json!(true), Value::Null);
    bed.reconcile().await.unwrap();
    assert_eq!(kinds(&bed.api.writes()), ["PATCH mqttloadtests/status"]);
    assert_eq!((bed.status()["phase"].as_str(), bed.status()["reason"].as_str()), (Some("Pending"), Some("Suspended")));
    bed.test(|_| {}, bed.status());
    bed.reconcile().await.unwrap();
    assert!(kinds(&bed.api.writes()).contains(&"POST jobs".to_owned()));
}

#[tokio::test]
async fn a_refused_child_is_said_in_the_status_in_the_api_servers_words() {
    let bed = Bed::new().await;
    bed.test(|_| {}, Value::Null);
    bed.api.refuse("POST /apis/batch/v1/namespaces/ns/jobs", (403, "Forbidden", "jobs is forbidden: exceeded quota: small"));
    bed.reconcile().await.unwrap();
    bed.reconcile().await.unwrap();
    let status = bed.status();
    assert_eq!(status["reason"].as_str(), Some("ExceededQuota"), "{status}");
    assert!(status["message"].as_str().unwrap().contains("exceeded quota: small"), "{status}");
}

#[tokio::test]
async fn a_child_of_somebody_else_with_our_name_is_not_adopted() {
    let bed = Bed::new().await;
    bed.test(|_| {}, Value::Null);
    bed.reconcile().await.unwrap();
    let path = bed.api.paths().into_iter().find(|path| path.contains("/jobs/")).unwrap();
    let bed = Bed::new().await;
    bed.test(|_| {}, Value::Null);
    bed.api.put(
        &path,
        &json!({"metadata": {"name": path.rsplit('/').next().unwrap(), "namespace": "ns"}, "spec": {"template": {}}}),
    );
    bed.reconcile().await.unwrap();
    bed.reconcile().await.unwrap();
    assert_eq!(bed.status()["reason"].as_str(), Some("NameTaken"), "{}", bed.status());
}

#[tokio::test]
async fn a_new_operator_adopts_the_children_of_the_one_before() {
    let bed = Bed::new().await;
    bed.test(|_| {}, Value::Null);
    bed.reconcile().await.unwrap();
    bed.api.writes();
    bed.scope.shared.forget("u-1");
    // Its watches show nothing of them yet.
    bed.reconcile().await.unwrap();
    let created: Vec<String> = kinds(&bed.api.writes()).into_iter().filter(|write| write.starts_with("POST")).collect();
    assert_eq!(created.len(), 5, "creating is tried, and 409 is taken for done: {created:?}");
    assert_eq!(bed.status()["phase"].as_str(), Some("Starting"));
}

/// Status of a run of the test as it is now, which ended with this verdict.
fn ended(bed: &Bed, verdict: &str) -> Value {
    let seen: Guarded = serde_json::from_value(bed.api.get(TEST).unwrap()).unwrap();
    let hash = spec_hash(&seen.0.unwrap().spec);
    let mut status = bed.status();
    status["phase"] = json!("Completed");
    status["verdict"] = json!(verdict);
    status["reason"] = json!("Because");
    status["run"]["specHash"] = json!(hash);
    status["run"]["completedAt"] = json!(k8s_openapi::jiff::Timestamp::now().to_string());
    status
}

#[tokio::test]
async fn a_passed_run_leaves_nothing_and_is_torn_down_once() {
    let mut bed = Bed::new().await;
    bed.test(|_| {}, Value::Null);
    bed.reconcile().await.unwrap();
    assert_eq!(bed.show_children().len(), 3);
    bed.test(|_| {}, ended(&bed, "Passed"));
    bed.scope.shared.forget("u-1");
    bed.api.writes();
    bed.reconcile().await.unwrap();
    let mut deletes: Vec<String> = kinds(&bed.api.writes()).into_iter().filter(|write| write.starts_with("DELETE")).collect();
    deletes.sort();
    assert_eq!(deletes, ["DELETE configmaps", "DELETE configmaps", "DELETE jobs", "DELETE networkpolicies"]);
    bed.reconcile().await.unwrap();
    let again: Vec<String> = bed.api.writes().into_iter().filter(|write| write.starts_with("DELETE")).collect();
    assert_eq!(again, Vec::<String>::new(), "the watch lags, and nothing is deleted twice");
}

#[tokio::test]
async fn pods_of_a_failed_run_stay_an_hour_for_their_logs() {
    let mut bed = Bed::new().await;
    bed.test(|_| {}, Value::Null);
    bed.reconcile().await.unwrap();
    let job = bed.show_children().into_iter().find(|path| path.contains("/jobs/")).unwrap();
    let labels = bed.api.get(&job).unwrap()["metadata"]["labels"].clone();
    let pod = json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "p-1", "labels": labels,
                     "annotations": {"batch.kubernetes.io/job-completion-index": "0"}},
        "status": {"phase": "Succeeded", "containerStatuses": [
            {"name": "worker", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": 0}}}]}
    });
    bed.scope.shared.pods.note(&Event::Apply(read(pod)), k8s_openapi::jiff::Timestamp::now());
    bed.test(|_| {}, ended(&bed, "Failed"));
    bed.scope.shared.forget("u-1");
    bed.api.writes();
    bed.reconcile().await.unwrap();
    let writes = kinds(&bed.api.writes());
    assert!(writes.contains(&"PATCH jobs".to_owned()) && !writes.contains(&"DELETE jobs".to_owned()), "{writes:?}");
    assert_eq!(bed.api.get(&job).unwrap()["spec"]["ttlSecondsAfterFinished"], 3600);
    assert!(!bed.api.paths().iter().any(|path| path.contains("/configmaps/")), "the plan, and with it the token, goes at once");
}

#[tokio::test]
async fn a_run_does_not_begin_before_the_one_before_it_is_gone() {
    let mut bed = Bed::new().await;
    bed.test(|_| {}, Value::Null);
    bed.reconcile().await.unwrap();
    bed.show_children();
    bed.test(|spec| spec["runId"] = json!("2"), {
        let mut status = ended(&bed, "Passed");
        status["run"]["specHash"] = json!("another");
        status["observedGeneration"] = json!(0);
        status
    });
    bed.scope.shared.forget("u-1");
    bed.api.writes();
    bed.reconcile().await.unwrap();
    let writes = kinds(&bed.api.writes());
    assert!(writes.iter().all(|write| write.starts_with("DELETE")) && writes.len() == 4, "{writes:?}");
    for event in [Event::Init, Event::InitDone] {
        bed.maps.apply_watcher_event(&event);
    }
    for event in [Event::Init, Event::InitDone] {
        bed.jobs.apply_watcher_event(&event);
    }
    bed.reconcile().await.unwrap();
    assert!(kinds(&bed.api.writes()).contains(&"POST jobs".to_owned()));
    assert_eq!(bed.status()["run"]["id"].as_str().unwrap().split('-').next(), Some("2"));
    assert_eq!(bed.status()["history"][0]["verdict"], "Passed");
}

#[tokio::test]
async fn an_object_that_is_being_deleted_is_left_to_garbage_collection() {
    let bed = Bed::new().await;
    bed.test(|_| {}, Value::Null);
    let mut deleted = bed.api.get(TEST).unwrap();
    deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:01:00Z");
    bed.api.put(TEST, &deleted);
    bed.reconcile().await.unwrap();
    assert_eq!(bed.api.writes(), Vec::<String>::new());
}
