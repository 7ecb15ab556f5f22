//! The ConfigMap with the ledger: the merged counts of pods that died. It is written on a death only.

use k8s_openapi::api::core::v1::ConfigMap;
use mqtt_loadtest_crds::plan::RunIdentity;

use super::{Names, child};
use crate::run::Ledger;

/// The ConfigMap with the ledger of a run.
pub fn ledger(run: &RunIdentity, ledger: &Ledger) -> ConfigMap {
    ConfigMap { metadata: child(run, &Names::new(run).ledger, "ledger"), data: Some(ledger.to_data()), ..ConfigMap::default() }
}
