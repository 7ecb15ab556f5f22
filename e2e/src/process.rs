//! Processes of pods, seen from this machine: to crash one, or to hold it still, as nothing inside the cluster could.
//! Only on the development cluster.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// One process of a pod.
#[derive(Clone, Copy, Debug)]
pub struct PodProcess(Pid);

impl PodProcess {
    /// The pod's process of this name (the first 15 characters count, as in `/proc/PID/comm`).
    ///
    /// # Errors
    /// When there is none on this machine.
    pub fn find(pod: &Pod, name: &str) -> Result<Self> {
        let uid = pod.metadata.uid.as_deref().context("the pod has no UID yet")?;
        let group = format!("/pod{uid}/");
        let name = name.get(..15).unwrap_or(name);
        for entry in fs::read_dir("/proc")? {
            let path = entry?.path();
            let Some(pid) = path.file_name().and_then(|name| name.to_str()?.parse().ok()) else { continue };
            if reads(&path, "comm").trim_end() == name && reads(&path, "cgroup").contains(&group) {
                return Ok(Self(Pid::from_raw(pid)));
            }
        }
        anyhow::bail!("no process {name} of pod {uid} on this machine")
    }

    /// Kills it at once.
    ///
    /// # Errors
    /// When it is gone already.
    pub fn kill(self) -> Result<()> {
        self.signal(Signal::SIGKILL)
    }

    /// Stops it in its tracks, until [`Self::resume`].
    ///
    /// # Errors
    /// When it is gone.
    pub fn pause(self) -> Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// When it is gone.
    pub fn resume(self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    fn signal(self, signal: Signal) -> Result<()> {
        ensure!(self.0.as_raw() > 1);
        kill(self.0, signal).with_context(|| format!("{signal} to process {}", self.0))
    }
}

/// Processes come and go while the folder is read: what is gone says nothing.
fn reads(process: &Path, file: &str) -> String {
    fs::read_to_string(process.join(file)).unwrap_or_default()
}
