//! The Secret with the control token of a run. The plan's ConfigMap owns it, so that garbage collection removes it: the
//! operator may create Secrets and nothing else.

use std::collections::BTreeMap;

use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::OwnerReference};
use mqtt_loadtest_crds::plan::RunIdentity;
use mqtt_loadtest_worker::protocol::Token;

use super::{Names, child};

/// Key of the token in its Secret, and the name of the file that the workers read.
pub(super) const TOKEN_KEY: &str = "token";

/// The Secret with the control token. `plan_uid` is the UID of the plan's ConfigMap.
pub fn token_secret(run: &RunIdentity, token: &Token, plan_uid: &str) -> Secret {
    let names = Names::new(run);
    let mut metadata = child(run, &names.token, "token");
    metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        name: names.plan,
        uid: plan_uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(false),
    }]);
    Secret {
        metadata,
        immutable: Some(true),
        type_: Some("Opaque".into()),
        data: Some(BTreeMap::from([(TOKEN_KEY.into(), ByteString(token.expose().as_bytes().to_vec()))])),
        ..Secret::default()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::plan, *};
    use mqtt_loadtest_worker::protocol::token;

    #[test]
    fn the_token_goes_with_the_plan() {
        let run = plan().run;
        let secret = token_secret(&run, &token(b"key", &run.uid, &run.id), "plan-uid");
        let owner = &secret.metadata.owner_references.unwrap()[0];
        assert_eq!((owner.kind.as_str(), owner.uid.as_str(), &owner.name), ("ConfigMap", "plan-uid", &Names::new(&run).plan));
        assert_eq!(secret.data.unwrap()[TOKEN_KEY].0.len(), 64);
    }
}
