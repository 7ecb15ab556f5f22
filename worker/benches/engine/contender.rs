//! The programs that are compared, behind one trait: a process that becomes ready, is let go, and counts.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::unistd::Pid;

use crate::load::Load;
use crate::process::Process;
use crate::worker::Worker;

/// A started contender. It ends when dropped.
pub trait Running {
    /// The process whose CPU and memory are measured.
    fn pid(&self) -> Pid;
    /// Waits until every client is connected and subscribed.
    fn ready(&mut self, timeout: Duration) -> Result<()>;
    /// Lets the load start.
    fn go(&mut self) -> Result<()>;
    /// Messages acknowledged (QoS 1), sent (QoS 0) or received so far.
    fn count(&mut self) -> Result<u64>;
}

impl Running for Process {
    fn pid(&self) -> Pid {
        Process::pid(self)
    }

    fn ready(&mut self, timeout: Duration) -> Result<()> {
        self.expect("ready", timeout).map(drop)
    }

    fn go(&mut self) -> Result<()> {
        self.say("go")
    }

    fn count(&mut self) -> Result<u64> {
        Process::count(self)
    }
}

/// One of the compared programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contender {
    /// Raw epoll.
    Floor,
    /// rumqttc's `EventLoop`.
    EventLoop,
    /// The worker of this workspace, with this program.
    Worker(PathBuf),
    /// Another client library: a program that speaks our lines.
    Peer {
        /// Its name in the table.
        name: String,
        /// The program.
        program: PathBuf,
    },
}

impl Contender {
    /// Name in tables, filters and JSON.
    pub fn name(&self) -> &str {
        match self {
            Self::Floor => "floor",
            Self::EventLoop => "eventloop",
            Self::Worker(_) => "worker",
            Self::Peer { name, .. } => name,
        }
    }

    /// Starts it with a load.
    pub fn start(&self, load: &Load) -> Result<Box<dyn Running>> {
        Ok(match self {
            Self::Floor | Self::EventLoop => Box::new(Process::role(self.name(), &load.to_args())?),
            Self::Worker(program) => Box::new(Worker::start(program, load)?),
            Self::Peer { name, program } => Box::new(Process::spawn(name, Command::new(program).args(load.to_args()))?),
        })
    }

    /// Builds the peer from its folder, when a Go toolchain is there; says why not otherwise.
    pub fn paho(target: &Path) -> Result<Self> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peer-paho");
        let program = target.join("bench-peer-paho");
        let status = Command::new("go")
            .args(["build", "-o"])
            .arg(&program)
            .arg(".")
            .current_dir(&source)
            .status()
            .context("no Go toolchain: the peer \"paho\" is left out")?;
        anyhow::ensure!(status.success(), "go build of {} failed: {status}", source.display());
        Ok(Self::Peer { name: "paho".into(), program })
    }
}
