//! Child processes of the suite: start, ask, measure from outside, and surely end.
//!
//! CPU is the kernel's own figure for the process, user and system time of all its threads in nanoseconds
//! (`clock_getcpuclockid(3)`; the same time as utime + stime of `/proc/PID/stat`, which is rounded to 10 ms).

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::time::ClockId;
use nix::unistd::Pid;

/// Longest wait for an answer to `count`.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a program to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);
/// Exit status after SIGTERM: 128 + 15, as a shell reports it.
const EXIT_TERMINATED: i32 = 143;

/// A child that speaks the lines of `control.rs`; ends when dropped.
pub struct Process {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Process {
    /// Starts `command` with its standard input and output in our hands.
    pub fn spawn(name: &str, command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {name}: {command:?}"))?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().context("no standard output")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self { name: name.to_owned(), child, stdin, lines })
    }

    /// Starts this very program in another role.
    pub fn role(role: &str, args: &[String]) -> Result<Self> {
        let program = std::env::current_exe()?;
        Self::spawn(role, Command::new(program).arg("role").arg(role).args(args))
    }

    /// Starts a program that does not speak our lines under the role `guard`, with its process id.
    pub fn guarded(program: &str, args: &[String], variables: &[(&str, &str)]) -> Result<(Self, Pid)> {
        let guard = std::env::current_exe()?;
        let mut command = Command::new(guard);
        command.args(["role", "guard", program]).args(args).envs(variables.iter().copied());
        let mut process = Self::spawn(program, &mut command)?;
        let pid = process.expect("pid", ANSWER_TIMEOUT)?.parse()?;
        Ok((process, Pid::from_raw(pid)))
    }

    /// An error once the process has ended.
    pub fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("{} ended by itself: {status}", self.name),
            None => Ok(()),
        }
    }

    /// Process id.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Waits for the line `word` or `word VALUE` and returns the value.
    pub fn expect(&mut self, word: &str, timeout: Duration) -> Result<String> {
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else {
                self.check()?;
                bail!("{} did not say {word:?} within {timeout:?}", self.name);
            };
            if let Some(value) = line.strip_prefix(word) {
                return Ok(value.trim().to_owned());
            }
        }
    }

    /// Sends one line.
    pub fn say(&mut self, line: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("standard input is closed")?;
        writeln!(stdin, "{line}").with_context(|| format!("{} no longer listens", self.name))
    }

    /// Messages acknowledged, sent (QoS 0) or received so far.
    pub fn count(&mut self) -> Result<u64> {
        self.say("count")?;
        Ok(self.expect("count", ANSWER_TIMEOUT)?.parse()?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The end of standard input asks for the end; a process that does not follow within 15 s is killed.
        self.stdin = None;
        for _ in 0..1_500 {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// CPU time of a process, its own kernel time included.
pub fn cpu(pid: Pid) -> Result<Duration> {
    let clock = ClockId::pid_cpu_clock_id(pid).context("CPU clock of a process that has ended?")?;
    Ok(clock.now()?.into())
}

/// Resident memory of a process in KiB (`VmRSS` of `/proc/PID/status`, proc_pid_status(5)).
pub fn resident_kib(pid: Pid) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).context("no VmRSS")?;
    Ok(line.split_whitespace().nth(1).context("no figure")?.parse()?)
}

/// How many descriptors a process has open.
pub fn descriptors(pid: Pid) -> Result<usize> {
    Ok(std::fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

/// The role `guard`: runs a program that does not speak our lines, says `pid N`, and ends it when the suite has gone.
pub fn guard(args: &[String]) -> Result<()> {
    let (program, args) = args.split_first().context("guard needs a program")?;
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot start {program}"))?;
    println!("pid {}", child.id());
    let pid = Pid::from_raw(child.id().cast_signed());
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            if line.is_err() {
                break;
            }
        }
        for (signal, patience) in [(Signal::SIGTERM, GRACE), (Signal::SIGKILL, GRACE)] {
            // It fails when the program has ended already, and then this process ends too.
            let _ = kill(pid, signal);
            std::thread::sleep(patience);
        }
    });
    let status = child.wait()?;
    ensure!(status.success() || status.code() == Some(EXIT_TERMINATED), "{program} ended: {status}");
    Ok(())
}
