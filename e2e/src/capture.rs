//! A packet capture in the network namespace of a pod, so that a test sees what came to the broker and when, and need not
//! believe the load generator's own figures. Only on the development cluster, whose nodes are on this machine.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, ChildStderr};

use crate::{Cluster, Flows, repository};

/// A running capture.
#[derive(Debug)]
pub struct Capture {
    tcpdump: Child,
    said: BufReader<ChildStderr>,
    file: PathBuf,
    port: u16,
}

impl Capture {
    /// Captures everything to and from `port` of the pod with this address, whole frames; returns once it does.
    ///
    /// # Errors
    /// When the cluster is not one of ours or `tcpdump` does not start.
    pub async fn start(cluster: &Cluster, pod_ip: &str, port: u16) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        cluster.state()?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let file = std::env::temp_dir().join(format!("mqtt-loadtest-{}-{number}.pcap", std::process::id()));
        let mut tcpdump = tokio::process::Command::new(repository().join("e2e/cluster/cluster"))
            .args(["in-pod-net", pod_ip, "tcpdump", "--interface", "eth0", "--snapshot-length", "0"])
            // 64 MiB between kernel and file, and no change of user, who could not write there.
            .args(["--buffer-size", "65536", "--relinquish-privileges", "root", "-n", "-w"])
            .arg(&file)
            .arg(format!("tcp port {port}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut said = BufReader::new(tcpdump.stderr.take().context("a pipe was asked for")?);
        let started = async {
            let mut line = String::new();
            while said.read_line(&mut line).await? > 0 {
                if line.contains("listening on") {
                    return Ok(());
                }
            }
            bail!("tcpdump did not start: {line}")
        };
        tokio::time::timeout(Duration::from_secs(10), started).await.context("tcpdump did not start within 10 s")??;
        Ok(Self { tcpdump, said, file, port })
    }

    /// Ends the capture and reads it. Takes a second and a half longer, until what is in the kernel's buffer is out of it.
    ///
    /// # Errors
    /// When frames were dropped, as then no count from it would be worth anything.
    pub async fn stop(mut self) -> Result<Flows> {
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let pid = self.tcpdump.id().context("tcpdump ended before it was told to")?;
        kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGINT)?;
        let mut summary = String::new();
        self.said.read_to_string(&mut summary).await?;
        self.tcpdump.wait().await?;
        ensure!(summary.contains("\n0 packets dropped by kernel"), "the capture is not whole: {summary}");
        let (file, port) = (self.file.clone(), self.port);
        let flows = tokio::task::spawn_blocking(move || Flows::read(&file, port)).await??;
        if std::env::var_os("E2E_KEEP").is_none() {
            let _ = std::fs::remove_file(&self.file);
        }
        Ok(flows)
    }
}
