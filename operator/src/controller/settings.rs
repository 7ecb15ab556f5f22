//! Configuration of the operator process.

use std::{net::SocketAddr, path::PathBuf};

use super::build::WorkerSettings;

/// Configuration of the operator process.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name of this pod: the identity in the leader election and in events.
    pub pod_name: String,
    /// Namespace of this pod: where the lease is, and from where workers accept control.
    pub pod_namespace: String,
    /// Name of the Lease.
    pub lease_name: String,
    /// File with the key from which control tokens derive.
    pub key_file: PathBuf,
    /// Worker pods.
    pub worker: WorkerSettings,
    /// Namespaces whose tests are run; empty means all.
    pub namespaces: Vec<String>,
    /// How many runs may be under way at once; None means any number.
    pub max_concurrent_runs: Option<usize>,
    /// Where `/healthz`, `/readyz` and `/metrics` are served.
    pub listen: SocketAddr,
}
