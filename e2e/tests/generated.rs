//! What is generated and kept in the repository is what the generator would write today.

use std::fs;

use anyhow::{Context, Result};
use mqtt_loadtest_e2e::repository;

#[test]
fn the_chart_carries_the_crd_of_the_types() -> Result<()> {
    let read = |path: &str| fs::read_to_string(repository().join(path)).with_context(|| path.to_owned());
    let types = read("crds/mqttloadtests.yaml")?;
    let chart = read("charts/mqtt-loadtest-operator/files/mqttloadtests.yaml")?;
    assert!(types == chart, "they differ: run 'make generate'");
    Ok(())
}
