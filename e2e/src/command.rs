//! Programs of this machine, run to their end under a deadline, with an error that holds what they said.

use std::ffi::OsStr;
use std::fmt::Debug;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::AsyncWriteExt;

/// A program with its arguments, and what it reads.
#[derive(Debug)]
pub struct Command {
    inner: tokio::process::Command,
    stdin: Option<String>,
    deadline: Duration,
}

impl Command {
    /// A command that is ended, with its output lost, after a minute unless [`Self::deadline`] says otherwise.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        let mut inner = tokio::process::Command::new(program);
        inner.kill_on_drop(true);
        Self { inner, stdin: None, deadline: Duration::from_secs(60) }
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.inner.args(args);
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.inner.env(name, value);
        self
    }

    /// Text for the program's standard input; empty without it.
    #[must_use]
    pub fn stdin(mut self, text: impl Into<String>) -> Self {
        self.stdin = Some(text.into());
        self
    }

    /// How long it may take.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Runs it and returns its standard output.
    ///
    /// # Errors
    /// Also when it ends with another status than 0: the error holds both of its outputs.
    pub async fn output(mut self) -> Result<String> {
        let what = format!("{:?}", self.inner.as_std());
        self.inner.stdin(if self.stdin.is_some() { Stdio::piped() } else { Stdio::null() });
        self.inner.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.inner.spawn().with_context(|| format!("cannot start {what}"))?;
        let write = child.stdin.take().zip(self.stdin);
        let write = async {
            if let Some((mut pipe, text)) = write {
                // A program that does not read to the end says why by its status.
                let _ = pipe.write_all(text.as_bytes()).await;
            }
        };
        let run = async { tokio::join!(write, child.wait_with_output()).1 };
        let output = tokio::time::timeout(self.deadline, run)
            .await
            .with_context(|| format!("{what} did not end within {:?}", self.deadline))??;
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            bail!("{what}: {}\n{stdout}{}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        Ok(stdout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_failure_tells_what_the_program_said() {
        let error = Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"]).output().await;
        let text = format!("{:?}", error.expect_err("status 3"));
        assert!(text.contains("out") && text.contains("err") && text.contains('3'), "{text}");
    }

    #[tokio::test]
    async fn a_program_reads_its_input_and_is_ended_at_its_deadline() {
        let echoed = Command::new("cat").stdin("hello").output().await.expect("cat");
        assert_eq!(echoed, "hello");
        let started = std::time::Instant::now();
        let late = Command::new("sleep").args(["30"]).deadline(Duration::from_millis(100)).output().await;
        assert!(late.is_err() && started.elapsed() < Duration::from_secs(5));
    }
}
