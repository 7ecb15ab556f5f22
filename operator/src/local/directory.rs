//! The files of a local run: what a pod has mounted, and the termination messages. Deleted with the value.

use std::{
    fs, io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use mqtt_loadtest_crds::plan::RunPlan;
use mqtt_loadtest_worker::protocol::{RunState, Token};
use tempfile::TempDir;

/// A directory that only this user can read.
#[derive(Debug)]
pub(super) struct Directory {
    root: TempDir,
    has_password: bool,
}

impl Directory {
    /// Writes plan, token and password.
    pub(super) fn new(plan: &RunPlan, token: &Token, password: Option<&str>) -> io::Result<Self> {
        let root = tempfile::Builder::new().prefix("mqtt-loadtest-").tempdir()?;
        let directory = Self { root, has_password: password.is_some() };
        fs::write(directory.plan(), serde_json::to_vec(plan)?)?;
        secret(&directory.token(), token.expose())?;
        if let Some(password) = password {
            secret(&directory.path("password"), password)?;
        }
        Ok(directory)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub(super) fn plan(&self) -> PathBuf {
        self.path("plan.json")
    }

    pub(super) fn token(&self) -> PathBuf {
        self.path("token")
    }

    pub(super) fn password(&self) -> Option<PathBuf> {
        self.has_password.then(|| self.path("password"))
    }

    pub(super) fn run_state(&self) -> PathBuf {
        self.path("run-state.json")
    }

    /// Where an attempt leaves its last word.
    pub(super) fn termination_log(&self, uid: &str) -> PathBuf {
        self.path(&format!("last-word-{uid}"))
    }

    /// Replaces the run state at once, so that no reader sees half of it.
    pub(super) fn write_run_state(&self, state: &RunState) -> io::Result<()> {
        let new = self.path("run-state.json.new");
        fs::write(&new, serde_json::to_vec(state)?)?;
        fs::rename(new, self.run_state())
    }
}

fn secret(path: &Path, text: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    io::Write::write_all(&mut file, text.as_bytes())
}
