//! The CRD beside this crate is the one that the types give. `UPDATE_GENERATED=1 cargo test -p mqtt-loadtest-crds` writes it.

use std::{env, fs, path::Path};

#[test]
fn the_generated_crd_has_not_drifted_from_the_types() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("mqttloadtests.yaml");
    let generated = mqtt_loadtest_crds::crd::crd_yaml();
    if env::var_os("UPDATE_GENERATED").is_some() {
        fs::write(&path, &generated).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == generated, "crds/mqttloadtests.yaml is out of date: run `make generate` and commit it");
}

#[test]
fn the_status_of_a_new_object_is_not_taken_for_a_finished_one() {
    let crd = serde_json::to_value(mqtt_loadtest_crds::crd()).unwrap();
    let status = crd.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/status").unwrap();
    assert_eq!(status["default"], serde_json::json!({"observedGeneration": -1}));
    assert!(crd.pointer("/spec/versions/0/subresources/status").is_some());
}
