//! One `MqttLoadTest` of a test, from apply to what it leaves.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use k8s_openapi::api::{batch::v1::Job, networking::v1::NetworkPolicy};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use mqtt_loadtest_crds::status::{MqttLoadTestStatus, Phase};
use mqtt_loadtest_crds::{GROUP, MqttLoadTest, VERSION};
use serde_json::{Value, json};

use crate::{TestBed, eventually, is_gone};

/// An object in the cluster.
pub struct LoadTest<'a> {
    bed: &'a TestBed,
    api: Api<MqttLoadTest>,
    /// Its name.
    pub name: String,
}

impl<'a> LoadTest<'a> {
    /// Applies a test with this spec.
    ///
    /// # Errors
    /// When the API server refuses it, in its own words.
    pub async fn apply(bed: &'a TestBed, name: &str, spec: Value) -> Result<Self> {
        let test = Self { bed, api: bed.api(), name: name.to_owned() };
        test.edit(spec).await?;
        Ok(test)
    }

    /// Applies another spec to it, as `kubectl apply --server-side` does: fields that are no longer there go.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn edit(&self, spec: Value) -> Result<()> {
        let object = json!({
            "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "MqttLoadTest", "metadata": {"name": self.name}, "spec": spec,
        });
        self.api.patch(&self.name, &PatchParams::apply("e2e").force(), &Patch::Apply(&object)).await?;
        Ok(())
    }

    /// Changes some fields by a merge patch, and leaves the others.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn patch(&self, change: Value) -> Result<()> {
        self.api.patch(&self.name, &PatchParams::default(), &Patch::Merge(&change)).await?;
        Ok(())
    }

    /// The object as it is.
    ///
    /// # Errors
    /// When it is gone.
    pub async fn get(&self) -> Result<MqttLoadTest> {
        Ok(self.api.get(&self.name).await?)
    }

    /// Its status as it is.
    ///
    /// # Errors
    /// When it is gone, or has none.
    pub async fn status(&self) -> Result<MqttLoadTestStatus> {
        self.get().await?.status.context("no status yet")
    }

    /// Waits for the status to be as `wanted`, and returns it.
    ///
    /// # Errors
    /// After `deadline`, with the last status.
    pub async fn until(
        &self,
        what: &str,
        deadline: Duration,
        wanted: impl Fn(&MqttLoadTestStatus) -> bool,
    ) -> Result<MqttLoadTestStatus> {
        let mut last = None;
        let outcome = eventually(&format!("{}: {what}", self.name), deadline, async || {
            let status = self.get().await?.status.unwrap_or_default();
            let done = wanted(&status);
            last = Some(status.clone());
            Ok(done.then_some(status))
        })
        .await;
        outcome.with_context(|| {
            let s = last.unwrap_or_default();
            format!("last seen: phase {:?}, verdict {:?}, reason {}, message {}", s.phase, s.verdict, s.reason, s.message)
        })
    }

    /// Waits until it is in this phase.
    ///
    /// # Errors
    /// After `deadline`, or at once when the run has ended in another phase.
    pub async fn in_phase(&self, phase: Phase, deadline: Duration) -> Result<MqttLoadTestStatus> {
        let ended = |status: &MqttLoadTestStatus| matches!(status.phase, Some(Phase::Completed | Phase::Failed));
        let status = self.until(&format!("phase {phase:?}"), deadline, |s| s.phase == Some(phase) || ended(s)).await?;
        if status.phase != Some(phase) {
            bail!("{} ended before it was {phase:?}: {:?}, {}: {}", self.name, status.verdict, status.reason, status.message);
        }
        Ok(status)
    }

    /// Waits for the verdict on the spec as it is now: the condition Finished, at the object's generation.
    ///
    /// # Errors
    /// After `deadline`.
    pub async fn finished(&self, deadline: Duration) -> Result<MqttLoadTestStatus> {
        let generation = self.get().await?.metadata.generation;
        self.until("Finished", deadline, |status| {
            Some(status.observed_generation) == generation && condition(status, "Finished") == Some("True")
        })
        .await
    }

    /// Deletes it and waits until it is gone; what it owns may take longer ([`Self::leftovers`]).
    ///
    /// # Errors
    /// When it is still there after 30 s.
    pub async fn delete(&self) -> Result<()> {
        self.api.delete(&self.name, &DeleteParams::default()).await?;
        is_gone(&self.api, &self.name, Duration::from_secs(30)).await
    }

    /// Whatever is in the test's namespace and was not there without a run: Jobs, their pods, ConfigMaps, Secrets,
    /// NetworkPolicies, as `KIND/NAME`.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn leftovers(&self) -> Result<Vec<String>> {
        let mut left = Vec::new();
        left.extend(names::<Job>(self.bed, "Job").await?);
        left.extend(names::<Pod>(self.bed, "Pod").await?);
        left.extend(names::<ConfigMap>(self.bed, "ConfigMap").await?);
        left.extend(names::<Secret>(self.bed, "Secret").await?);
        left.extend(names::<NetworkPolicy>(self.bed, "NetworkPolicy").await?);
        // The test's own, and the cluster's.
        left.retain(|name| !["Pod/mosquitto", "ConfigMap/mosquitto", "ConfigMap/kube-root-ca.crt"].contains(&name.as_str()));
        Ok(left)
    }

    /// Waits until there are none.
    ///
    /// # Errors
    /// After `deadline`, naming them.
    pub async fn leaves_nothing(&self, deadline: Duration) -> Result<()> {
        eventually("nothing of the run to be left", deadline, async || {
            let left = self.leftovers().await?;
            if left.is_empty() { Ok(Some(())) } else { bail!("there is still {}", left.join(", ")) }
        })
        .await
    }
}

/// The status of a condition: `True`, `False`, `Unknown`.
#[must_use]
pub fn condition<'s>(status: &'s MqttLoadTestStatus, name: &str) -> Option<&'s str> {
    status.conditions.iter().find(|condition| condition.type_ == name).map(|condition| condition.status.as_str())
}

async fn names<K>(bed: &TestBed, kind: &str) -> Result<Vec<String>>
where
    K: kube::Resource<Scope = kube::core::NamespaceResourceScope> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
    K::DynamicType: Default,
{
    let list = bed.api::<K>().list(&ListParams::default()).await?;
    Ok(list.items.iter().map(|object| format!("{kind}/{}", object.name_any())).collect())
}
