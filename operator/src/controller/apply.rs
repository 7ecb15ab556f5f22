//! Creating children: each once, never re-applied. An object that is there already is adopted when it belongs to the same
//! MqttLoadTest; a Secret cannot be read, so one that is there is used as it is.

use std::{fmt::Debug, time::Instant};

use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        core::v1::{ConfigMap, Secret},
        networking::v1::NetworkPolicy,
    },
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use mqtt_loadtest_crds::plan::RunPlan;
use mqtt_loadtest_worker::protocol;
use serde::{Serialize, de::DeserializeOwned};
use tracing::info;

use super::{
    build::{self, MANAGER, WorkerSettings},
    error::{Error, timed},
    health::{Health, Watched},
};

/// Makes the children of runs.
pub struct Maker<'a> {
    /// Access to the API server.
    pub client: &'a Client,
    /// Told of what the watches must show.
    pub health: &'a Health,
    /// What the configuration says of worker pods.
    pub worker: &'a WorkerSettings,
    /// Namespace of the operator.
    pub operator_namespace: &'a str,
    /// Key from which the tokens derive.
    pub key: &'a [u8],
}

impl Maker<'_> {
    /// Makes everything that a run needs: plan, token, run state, network policy, Jobs. `queue` is the name of a Kueue queue.
    ///
    /// # Errors
    /// At the first child that the API server refuses; what was made stays, and the next call goes on from there.
    pub async fn create_all(&self, plan: &RunPlan, state: &protocol::RunState, queue: Option<&str>) -> Result<(), Error> {
        let run = &plan.run;
        let map = build::plan_config_map(plan).map_err(|source| Error::Serialize { what: "the plan", source })?;
        let made = self.create(&map, &run.namespace, "create the plan's ConfigMap").await?;
        self.expect(Watched::ConfigMaps, &made);
        self.create_token(plan, &made.uid().unwrap_or_default()).await?;
        let map = build::run_state(run, state).map_err(|source| Error::Serialize { what: "the run state", source })?;
        let made = self.create(&map, &run.namespace, "create the run state's ConfigMap").await?;
        self.expect(Watched::ConfigMaps, &made);
        let policy = build::network_policy(run, self.operator_namespace);
        self.create::<NetworkPolicy>(&policy, &run.namespace, "create the NetworkPolicy").await?;
        for group in 0..plan.groups.len() {
            let Some(job) = build::job(plan, group, self.worker, queue) else { continue };
            let made = self.create(&job, &run.namespace, "create a Job").await?;
            self.expect(Watched::Jobs, &made);
        }
        Ok(())
    }

    /// Makes the token's Secret alone, where a stranger deleted it.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn create_token(&self, plan: &RunPlan, plan_uid: &str) -> Result<(), Error> {
        let token = protocol::token(self.key, &plan.run.uid, &plan.run.id);
        let secret = build::token_secret(&plan.run, &token, plan_uid);
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &plan.run.namespace);
        match timed("create the token's Secret", api.create(&PostParams::default(), &secret)).await {
            Err(error) if error.is(409) => Ok(()),
            done => done.map(drop),
        }
    }

    /// Creates an object, or adopts the one that is there.
    async fn create<K>(&self, object: &K, namespace: &str, doing: &'static str) -> Result<K, Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Serialize + DeserializeOwned,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        match timed(doing, api.create(&PostParams::default(), object)).await {
            Ok(made) => {
                info!(kind = %K::kind(&()), namespace, name = object.name_any(), "created");
                Ok(made)
            }
            Err(error) if error.is(409) => {
                let there = timed(doing, api.get(&object.name_any())).await?;
                if owner(&there) == owner(object) {
                    Ok(there)
                } else {
                    Err(Error::Foreign { kind: K::kind(&()).into_owned(), name: object.name_any() })
                }
            }
            Err(error) => Err(error),
        }
    }

    fn expect<K: Resource>(&self, kind: Watched, made: &K) {
        let meta = made.meta();
        self.health.expect(kind, meta.uid.as_deref().unwrap_or_default(), meta.resource_version.as_deref(), Instant::now());
    }

    /// Writes the run state's ConfigMap, whatever it says now.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn write_run_state(&self, plan: &RunPlan, state: &protocol::RunState) -> Result<(), Error> {
        let map = build::run_state(&plan.run, state).map_err(|source| Error::Serialize { what: "the run state", source })?;
        self.write(map, &plan.run.namespace, "write the run state's ConfigMap").await
    }

    /// Writes the ledger's ConfigMap, whatever it says now.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn write_ledger(&self, plan: &RunPlan, ledger: &crate::run::Ledger) -> Result<(), Error> {
        self.write(build::ledger(&plan.run, ledger), &plan.run.namespace, "write the ledger's ConfigMap").await
    }

    async fn write(&self, mut map: ConfigMap, namespace: &str, doing: &'static str) -> Result<(), Error> {
        map.metadata.managed_fields = None;
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        let params = PatchParams::apply(MANAGER).force();
        let made = timed(doing, api.patch(&map.name_any(), &params, &Patch::Apply(&map))).await?;
        self.expect(Watched::ConfigMaps, &made);
        Ok(())
    }
}

/// UID of the controlling owner.
fn owner<K: Resource>(object: &K) -> Option<&str> {
    object.meta().owner_references.iter().flatten().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.as_str())
}
