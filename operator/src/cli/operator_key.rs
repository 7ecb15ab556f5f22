//! `mqtt-loadtest operator-key`: makes the Secret with the key from which every run's control token derives. It only ever
//! creates: a key that is there already stays, and is not read.

use std::{collections::BTreeMap, process::ExitCode};

use anyhow::Context;
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use rand::{TryRngCore, rngs::OsRng};
use tracing::info;

/// Bytes of the key.
const KEY_BYTES: usize = 32;

/// Arguments of `operator-key`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Namespace of the Secret.
    #[arg(long)]
    namespace: String,
    /// Name of the Secret.
    #[arg(long)]
    name: String,
}

pub(super) async fn main(args: Args) -> anyhow::Result<ExitCode> {
    let client = Client::try_default().await.context("no access to a cluster")?;
    let mut key = vec![0; KEY_BYTES];
    OsRng.try_fill_bytes(&mut key).context("the system gives no random bytes")?;
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(args.name.clone()),
            labels: Some(BTreeMap::from([("app.kubernetes.io/part-of".into(), "mqtt-loadtest".into())])),
            ..ObjectMeta::default()
        },
        immutable: Some(true),
        data: Some(BTreeMap::from([("key".into(), ByteString(key))])),
        type_: Some("Opaque".into()),
        ..Secret::default()
    };
    match Api::<Secret>::namespaced(client, &args.namespace).create(&PostParams::default(), &secret).await {
        Ok(_) => info!(namespace = args.namespace, name = args.name, "key created"),
        Err(kube::Error::Api(status)) if status.code == 409 => {
            info!(namespace = args.namespace, name = args.name, "the key is there already and stays");
        }
        Err(error) => return Err(error).with_context(|| format!("cannot create Secret {}/{}", args.namespace, args.name)),
    }
    Ok(ExitCode::SUCCESS)
}
