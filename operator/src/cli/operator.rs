//! `mqtt-loadtest operator`: the process in the cluster. Its configuration comes from the environment, as the chart sets it.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use anyhow::Context;
use kube::Client;
use tokio::signal::unix::{SignalKind, signal};

use crate::controller::{self, build::WorkerSettings, settings::Settings};

/// Arguments of `operator`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Name of this pod: its identity in the leader election and in events.
    #[arg(long, env = "POD_NAME")]
    pod_name: String,
    /// Namespace of this pod, where the Lease is.
    #[arg(long, env = "POD_NAMESPACE")]
    pod_namespace: String,
    /// Name of the Lease.
    #[arg(long, env = "LEASE_NAME", default_value = "mqtt-loadtest-operator")]
    lease_name: String,
    /// File with the key from which the workers' tokens derive.
    #[arg(long, env = "OPERATOR_KEY_FILE", default_value = "/etc/mqtt-loadtest/key/key")]
    operator_key_file: PathBuf,
    /// Image of the worker pods.
    #[arg(long, env = "WORKER_IMAGE")]
    worker_image: String,
    /// Pull policy of that image.
    #[arg(long, env = "WORKER_IMAGE_PULL_POLICY", default_value = "IfNotPresent", value_parser = ["IfNotPresent", "Always", "Never"])]
    worker_image_pull_policy: String,
    /// Namespaces whose tests are run, separated by commas; all when empty.
    #[arg(long, env = "WATCH_NAMESPACES", default_value = "")]
    watch_namespaces: String,
    /// How many runs may be under way at once; 0 means any number.
    #[arg(long, env = "MAX_CONCURRENT_RUNS", default_value_t = 0)]
    max_concurrent_runs: usize,
    /// Where /healthz, /readyz and /metrics are served.
    #[arg(long, env = "LISTEN", default_value = "[::]:8080")]
    listen: SocketAddr,
}

impl Args {
    fn into_settings(self) -> Settings {
        let namespaces = self.watch_namespaces.split(',').map(str::trim).filter(|name| !name.is_empty());
        Settings {
            namespaces: namespaces.map(str::to_owned).collect(),
            pod_name: self.pod_name,
            pod_namespace: self.pod_namespace,
            lease_name: self.lease_name,
            key_file: self.operator_key_file,
            worker: WorkerSettings { image: self.worker_image, pull_policy: self.worker_image_pull_policy },
            max_concurrent_runs: (self.max_concurrent_runs > 0).then_some(self.max_concurrent_runs),
            listen: self.listen,
        }
    }
}

pub(super) async fn main(args: Args) -> anyhow::Result<ExitCode> {
    let client = Client::try_default().await.context("no access to a cluster")?;
    let (mut terminated, mut interrupted) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = async move {
        tokio::select! {
            _ = terminated.recv() => {}
            _ = interrupted.recv() => {}
        }
    };
    controller::run(client, args.into_settings(), stop).await?;
    Ok(ExitCode::SUCCESS)
}
