//! The one cluster that all tests of a process share: started by the first that asks, ended by the kernel closing a pipe
//! when the process is gone, however it went. `E2E_KUBECONFIG` names a cluster to use instead.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Stdio};

use anyhow::{Context, Result, anyhow, bail};
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::sync::OnceCell;

use crate::{Command, repository};

static CLUSTER: OnceCell<Result<Cluster, String>> = OnceCell::const_new();

/// A running cluster and the way to it.
#[derive(Debug)]
pub struct Cluster {
    kubeconfig: PathBuf,
    kubectl: String,
    /// What the cluster writes, where it is one of ours.
    state: Option<PathBuf>,
    /// The cluster lives as long as this pipe is open.
    _lifeline: Option<ChildStdin>,
}

impl Cluster {
    /// The process's cluster; the first caller waits for its start (10 s, and minutes where it must be built first).
    /// `E2E_NODES` (default 2) is the number of its nodes.
    ///
    /// # Errors
    /// When it cannot be started, to every caller alike.
    pub async fn acquire() -> Result<&'static Self> {
        CLUSTER
            .get_or_init(|| async { Self::start().await.map_err(|error| format!("{error:#}")) })
            .await
            .as_ref()
            .map_err(|error| anyhow!("no cluster: {error}"))
    }

    async fn start() -> Result<Self> {
        let (kubeconfig, lifeline) = match std::env::var_os("E2E_KUBECONFIG") {
            Some(path) => (PathBuf::from(path), None),
            None => tokio::task::spawn_blocking(spawn).await?.map(|(path, pipe)| (path, Some(pipe)))?,
        };
        let kubectl = script(["tool", "kubectl"]).output().await?.trim().to_owned();
        // The audit log lies beside the kubeconfig of a cluster of ours.
        let state = kubeconfig.parent().filter(|folder| folder.join("audit.log").exists()).map(Path::to_owned);
        Ok(Self { kubeconfig, kubectl, state, _lifeline: lifeline })
    }

    /// A client for the calling test. Not shared: a client's tasks end with the runtime that made it, and every test has
    /// its own.
    ///
    /// # Errors
    /// When the kubeconfig cannot be read.
    pub async fn client(&self) -> Result<kube::Client> {
        let file = Kubeconfig::read_from(&self.kubeconfig)?;
        let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
        Ok(kube::Client::try_from(config)?)
    }

    /// The path of the kubeconfig.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// `kubectl` with these arguments.
    #[must_use]
    pub fn kubectl<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Command {
        Command::new(&self.kubectl).env("KUBECONFIG", &self.kubeconfig).args(args)
    }

    /// A command of `e2e/cluster/cluster`, such as `install` or `kill-node`.
    #[must_use]
    pub fn script<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Command {
        script(args).env("E2E_KUBECONFIG", &self.kubeconfig)
    }

    /// An image with `mosquitto`, `mosquitto_pub` and `mosquitto_sub` under `/usr`, that the cluster's nodes have or can pull.
    #[must_use]
    pub fn mosquitto_image(&self) -> String {
        let usual = if self.state.is_some() { "localhost/mosquitto:dev" } else { "eclipse-mosquitto:2" };
        std::env::var("E2E_MOSQUITTO_IMAGE").unwrap_or_else(|_| usual.to_owned())
    }

    /// Where the cluster keeps its logs, sockets and process numbers.
    ///
    /// # Errors
    /// When it is not one that was started here, but given by `E2E_KUBECONFIG`.
    pub fn state(&self) -> Result<&Path> {
        self.state.as_deref().context("this needs the development cluster, not just any: leave E2E_KUBECONFIG unset")
    }
}

fn script<'a>(args: impl IntoIterator<Item = &'a str>) -> Command {
    Command::new(repository().join("e2e/cluster/cluster")).args(args)
}

/// Starts a cluster that ends when the returned pipe is closed.
fn spawn() -> Result<(PathBuf, ChildStdin)> {
    let nodes = std::env::var("E2E_NODES").unwrap_or_else(|_| "2".to_owned());
    let mut child = std::process::Command::new(repository().join("e2e/cluster/cluster"))
        .arg("run")
        .env("NODES", nodes)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // An interrupt from the keyboard is for the tests; the cluster follows them in good order.
        .process_group(0)
        .spawn()
        .context("cannot run e2e/cluster/cluster")?;
    let lifeline = child.stdin.take().context("a pipe was asked for")?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("a pipe was asked for")?).read_line(&mut line)?;
    if line.trim().is_empty() {
        bail!("the development cluster did not start ({}); what it said is above", child.wait()?);
    }
    Ok((PathBuf::from(line.trim()), lifeline))
}
