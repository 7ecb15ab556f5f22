//! The operator of the working tree, installed by its chart once for all tests of the process, and the ways to hurt it.

use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use tokio::sync::OnceCell;

use crate::{Cluster, PodProcess, TestBed, eventually};

const NAMESPACE: &str = "mqtt-loadtest-system";
const NAME: &str = "mqtt-loadtest-operator";

static INSTALLED: OnceCell<Result<(), String>> = OnceCell::const_new();

/// The installed operator, by the calling test's client.
pub struct Operator {
    cluster: &'static Cluster,
    pods: Api<Pod>,
    leases: Api<Lease>,
}

impl Operator {
    /// Installs the chart with the images of `make images`, unless a test did before.
    ///
    /// # Errors
    /// When the images are not built, or the operator does not become ready within two minutes.
    pub async fn installed(bed: &TestBed) -> Result<Self> {
        let operator = Self {
            cluster: bed.cluster,
            pods: Api::namespaced(bed.client.clone(), NAMESPACE),
            leases: Api::namespaced(bed.client.clone(), NAMESPACE),
        };
        let install = || async { operator.install([]).await.map_err(|error| format!("{error:#}")) };
        INSTALLED.get_or_init(install).await.as_ref().map_err(|error| anyhow!("no operator: {error}"))?;
        Ok(operator)
    }

    /// Installs or upgrades the chart, with further arguments for helm, and waits until the new pod leads: only then is a
    /// change answered within seconds. A test that does this runs alone.
    ///
    /// # Errors
    /// When it does not install, or no pod leads within half a minute.
    pub async fn install<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Result<()> {
        let arguments = std::iter::once("install").chain(arguments);
        self.cluster.script(arguments).deadline(Duration::from_secs(180)).output().await?;
        self.leads(Duration::from_secs(30)).await
    }

    /// As the audit log names it.
    #[must_use]
    pub fn username() -> String {
        format!("system:serviceaccount:{NAMESPACE}:{NAME}")
    }

    /// Its running pods that are not being deleted.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn pods(&self) -> Result<Vec<Pod>> {
        let labels = ListParams::default().labels(&format!("app.kubernetes.io/name={NAME}"));
        let pods = self.pods.list(&labels).await?;
        Ok(pods.items.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect())
    }

    /// Deletes its pods with no grace: another one is made.
    ///
    /// # Errors
    /// When there is none.
    pub async fn delete_pods(&self) -> Result<()> {
        let pods = self.pods().await?;
        anyhow::ensure!(!pods.is_empty(), "there is no operator pod to delete");
        for pod in pods {
            let name = pod.metadata.name.context("a pod has a name")?;
            self.pods.delete(&name, &DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() }).await?;
        }
        Ok(())
    }

    /// Its process, to be killed (it starts again in the same pod) or held still. Only on the development cluster.
    ///
    /// # Errors
    /// When there is none on this machine.
    pub async fn process(&self) -> Result<PodProcess> {
        self.cluster.state()?;
        let pod = self.pods().await?.pop().context("there is no operator pod")?;
        PodProcess::find(&pod, "mqtt-loadtest")
    }

    /// Waits until a pod of it is ready.
    ///
    /// # Errors
    /// When none is after `deadline`.
    pub async fn ready(&self, deadline: Duration) -> Result<()> {
        eventually("the operator to be ready", deadline, async || {
            let pods = self.pods().await?;
            let conditions = pods.into_iter().filter_map(|pod| pod.status?.conditions).flatten();
            Ok(conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True").then_some(()))
        })
        .await
    }

    /// Waits until one of its pods leads.
    ///
    /// # Errors
    /// When none does after `deadline`.
    pub async fn leads(&self, deadline: Duration) -> Result<()> {
        eventually("an operator pod to lead", deadline, async || {
            let lease = self.leases.get(NAME).await?;
            let holder = lease.spec.and_then(|spec| spec.holder_identity);
            Ok(self.pods().await?.into_iter().any(|pod| pod.metadata.name == holder).then_some(()))
        })
        .await
    }

    /// The last lines of its log.
    ///
    /// # Errors
    /// When the API server cannot get it.
    pub async fn log(&self, lines: u32) -> Result<String> {
        let selector = format!("app.kubernetes.io/name={NAME}");
        let tail = lines.to_string();
        self.cluster.kubectl(["--namespace", NAMESPACE, "logs", "--selector", &selector, "--tail", &tail]).output().await
    }
}
