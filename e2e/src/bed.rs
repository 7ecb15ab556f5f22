//! A place for one test: a namespace of its own in the shared cluster, emptied at the end, described when it failed.

use std::panic::AssertUnwindSafe;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, anyhow};
use futures::FutureExt;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Resource};
use serde_json::json;
use tokio::sync::RwLock;

use crate::{Cluster, Command};

/// Whether other tests may run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// The test only watches what happens, whenever it does.
    Shared,
    /// The test measures times or loads the machine: it runs alone.
    Alone,
}

static LANES: RwLock<()> = RwLock::const_new(());

/// What a test works with.
pub struct TestBed {
    /// The cluster that all tests share.
    pub cluster: &'static Cluster,
    /// The test's own client.
    pub client: kube::Client,
    /// The test's own namespace; it enforces the restricted Pod Security Standard.
    pub namespace: String,
}

/// Runs a test in a namespace named after it, which is deleted afterwards. If the test fails, its objects, events and logs
/// are printed first, and with `E2E_KEEP` set the namespace stays.
///
/// # Errors
/// The test's own, and those of the cluster.
pub async fn test_bed(name: &str, lane: Lane, test: impl AsyncFnOnce(&TestBed) -> Result<()>) -> Result<()> {
    let (_shared, _alone) = match lane {
        Lane::Shared => (Some(LANES.read().await), None),
        Lane::Alone => (None, Some(LANES.write().await)),
    };
    let bed = TestBed::create(name).await?;
    let outcome = AssertUnwindSafe(test(&bed)).catch_unwind().await;
    let failed = !matches!(outcome, Ok(Ok(())));
    if failed {
        eprintln!("---- {} failed; what its namespace held:\n{}", bed.namespace, bed.describe().await);
    }
    if !(failed && std::env::var_os("E2E_KEEP").is_some()) {
        bed.delete().await?;
    }
    match outcome {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

impl TestBed {
    async fn create(name: &str) -> Result<Self> {
        let cluster = Cluster::acquire().await?;
        let client = cluster.client().await?;
        let stamp = SystemTime::now().duration_since(UNIX_EPOCH)?.subsec_micros();
        let namespace = format!("{}-{stamp:05x}", name.replace('_', "-").chars().take(50).collect::<String>());
        let object: Namespace = serde_json::from_value(json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": namespace, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
        }))?;
        Api::all(client.clone()).create(&PostParams::default(), &object).await?;
        Ok(Self { cluster, client, namespace })
    }

    /// An API of the test's namespace.
    #[must_use]
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// `kubectl` in the test's namespace.
    #[must_use]
    pub fn kubectl<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Command {
        self.cluster.kubectl(["--namespace", &self.namespace]).args(args)
    }

    /// Applies a manifest (YAML or JSON, several documents allowed) and returns what `kubectl` said, warnings apart.
    ///
    /// # Errors
    /// When the API server refuses it, in its own words.
    pub async fn apply(&self, manifest: impl Into<String>) -> Result<String> {
        self.kubectl(["apply", "-f", "-"]).stdin(manifest).output().await
    }

    async fn describe(&self) -> String {
        let mut text = self.said(&["get", "jobs,pods,configmaps", "-o", "wide"]).await;
        text += &self.said(&["get", "mqttloadtests", "-o", "yaml"]).await;
        text += &self.said(&["get", "events", "--sort-by", ".lastTimestamp"]).await;
        let pods = self.kubectl(["get", "pods", "-o", "name"]).output().await.unwrap_or_default();
        for pod in pods.lines() {
            text += &self.said(&["logs", pod, "--all-containers", "--tail", "40"]).await;
        }
        text
    }

    async fn said(&self, args: &[&str]) -> String {
        let said = self.kubectl(args.iter().copied()).output().await;
        format!("$ kubectl {}\n{}\n", args.join(" "), said.unwrap_or_else(|error| format!("{error:#}")))
    }

    async fn delete(&self) -> Result<()> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let how = DeleteParams::default();
        let deleted = tokio::time::timeout(Duration::from_secs(30), api.delete(&self.namespace, &how));
        deleted.await.map_err(|_| anyhow!("the namespace {} could not be deleted in 30 s", self.namespace))??;
        Ok(())
    }
}
