//! The ConfigMap with the instants of a run. It is mounted into the workers, so that a pod that is replaced while no operator
//! is there still learns when to join and when to end. It repeats what the status says and is written after it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use mqtt_loadtest_crds::plan::RunIdentity;
use mqtt_loadtest_worker::protocol::RunState;

use super::{Names, child};

/// Key of the run state in its ConfigMap, and the name of the file that the workers read.
pub const RUN_STATE_KEY: &str = "run-state.json";

/// The ConfigMap with the instants of a run.
///
/// # Errors
/// When the state does not serialize.
pub fn run_state(run: &RunIdentity, state: &RunState) -> Result<ConfigMap, serde_json::Error> {
    Ok(ConfigMap {
        metadata: child(run, &Names::new(run).run_state, "run-state"),
        data: Some(BTreeMap::from([(RUN_STATE_KEY.into(), serde_json::to_string(state)?)])),
        ..ConfigMap::default()
    })
}
