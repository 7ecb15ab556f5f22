//! Writing a status: server-side apply by one field manager, always with the resource version that the decision was based on,
//! so that of two leaders only one can set the instants of a run.

use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ApiResource, DynamicObject, ObjectMeta, Patch, PatchParams},
};
use mqtt_loadtest_crds::{MqttLoadTest, MqttLoadTestStatus};
use serde_json::{Value, json};

use super::{
    build::MANAGER,
    error::{Error, timed},
};

/// Writes the status of an object that was read as `test`. The answer is the object as it is now.
///
/// # Errors
/// A conflict when the object has changed since it was read.
pub async fn write(client: &Client, test: &MqttLoadTest, status: &MqttLoadTestStatus) -> Result<MqttLoadTest, Error> {
    let api: Api<MqttLoadTest> = Api::namespaced(client.clone(), &test.namespace().unwrap_or_default());
    timed("write the status", api.patch_status(&test.name_any(), &params(), &Patch::Apply(patch(&test.metadata, status)))).await
}

/// The same for an object that cannot be read as a MqttLoadTest.
///
/// # Errors
/// As [`write`].
pub async fn write_raw(client: &Client, meta: &ObjectMeta, status: &MqttLoadTestStatus) -> Result<(), Error> {
    let (namespace, name) = (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default());
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &ApiResource::erase::<MqttLoadTest>(&()));
    timed("write the status", api.patch_status(&name, &params(), &Patch::Apply(patch(meta, status)))).await.map(drop)
}

fn params() -> PatchParams {
    PatchParams::apply(MANAGER).force()
}

fn patch(meta: &ObjectMeta, status: &MqttLoadTestStatus) -> Value {
    json!({
        "apiVersion": MqttLoadTest::api_version(&()),
        "kind": MqttLoadTest::kind(&()),
        "metadata": {"name": meta.name, "resourceVersion": meta.resource_version, "uid": meta.uid},
        "status": status,
    })
}
