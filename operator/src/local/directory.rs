//! The files of a local run: what a pod has mounted, and the termination messages. Deleted with the value.

use std::{
    fs, io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use mqtt_loadtest_crds::plan::RunPlan;
use mqtt_loadtest_worker::{
    engine::secrets::Secrets,
    protocol::{RunState, Token},
};
use tempfile::TempDir;

/// A directory that only this user can read.
#[derive(Debug)]
pub(super) struct Directory {
    root: TempDir,
    /// Flags of a worker, and the files that they name.
    secrets: Vec<(&'static str, PathBuf)>,
}

impl Directory {
    /// Writes plan, token, password and certificates.
    pub(super) fn new(plan: &RunPlan, token: &Token, secrets: &Secrets) -> io::Result<Self> {
        let root = tempfile::Builder::new().prefix("mqtt-loadtest-").tempdir()?;
        let mut directory = Self { root, secrets: Vec::new() };
        fs::write(directory.plan(), serde_json::to_vec(plan)?)?;
        secret(&directory.token(), token.expose().as_bytes())?;
        let files = [
            ("--password-file", "password", secrets.password.as_ref().map(String::as_bytes)),
            ("--ca-file", "ca.crt", secrets.ca.as_deref()),
            ("--client-certificate-file", "tls.crt", secrets.client_certificate.as_deref()),
            ("--client-key-file", "tls.key", secrets.client_key.as_deref()),
        ];
        for (flag, name, content) in files {
            if let Some(content) = content {
                let path = directory.path(name);
                secret(&path, content)?;
                directory.secrets.push((flag, path));
            }
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

    /// Flags of a worker that name files with secrets.
    pub(super) fn secrets(&self) -> &[(&'static str, PathBuf)] {
        &self.secrets
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

fn secret(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    io::Write::write_all(&mut file, content)
}
