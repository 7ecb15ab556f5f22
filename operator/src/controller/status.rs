//! Writing a status: server-side apply by one field manager, always with the resource version that the decision was based on,
//! so that of two leaders only one can set the instants of a run.

use kube::{
    Api, Client, Resource,
    api::{ApiResource, DynamicObject, ObjectMeta, Patch, PatchParams},
};
use mqtt_loadtest_crds::{MqttLoadTest, MqttLoadTestStatus};
use serde_json::{Value, json};

use super::{
    build::MANAGER,
    error::{Error, timed},
};

/// Writes the status of the object that `meta` was read from. The answer is its metadata as it is now; nothing else of the object
/// is read back, so that one whose spec cannot be read has a status too.
///
/// # Errors
/// A conflict when the object has changed since it was read.
pub async fn write(client: &Client, meta: &ObjectMeta, status: &MqttLoadTestStatus) -> Result<ObjectMeta, Error> {
    let (namespace, name) = (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default());
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &ApiResource::erase::<MqttLoadTest>(&()));
    let written = timed("write the status", api.patch_status(&name, &params(), &Patch::Apply(patch(meta, status)))).await?;
    Ok(ObjectMeta { managed_fields: None, ..written.metadata })
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
