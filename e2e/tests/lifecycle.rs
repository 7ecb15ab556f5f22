//! The cluster's own life: it starts, ends with its parent however that goes, and leaves nothing behind. Needs the machine's
//! one cluster for itself, so it is a program of its own, run before the tests that share a cluster.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use mqtt_loadtest_e2e::repository;

const STATE: &str = "/var/lib/mqtt-loadtest-cluster";

/// What a cluster makes on a machine, as far as it is there.
fn traces() -> Vec<String> {
    let mut traces = Vec::new();
    let mut note = |path: &Path| traces.push(path.display().to_string());
    for path in [STATE, "/run/netns/mlt-node-1", "/run/netns/mlt-node-2"] {
        if fs::symlink_metadata(path).is_ok() {
            note(Path::new(path));
        }
    }
    for root in [PathBuf::from("/sys/fs/cgroup")].into_iter().chain(children("/sys/fs/cgroup")) {
        for node in ["mlt-node-1", "mlt-node-2"] {
            let group = root.join(node);
            if group.exists() {
                note(&group);
            }
        }
    }
    for process in children("/proc") {
        let command = fs::read(process.join("cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&command).contains(STATE) {
            note(&process);
        }
    }
    for (args, sign) in [
        (&["link"][..], "mlt0"),
        (&["link"], "mlt-n"),
        (&["rule"], "mlt0"),
        (&["route"], "10.91."),
        (&["route", "show", "table", "8810"], "blackhole"),
    ] {
        let output = Command::new("ip").args(args).output().map(|output| output.stdout).unwrap_or_default();
        if String::from_utf8_lossy(&output).contains(sign) {
            traces.push(format!("ip {}: {sign}", args.join(" ")));
        }
    }
    traces
}

fn children(folder: &str) -> Vec<PathBuf> {
    fs::read_dir(folder).map(|entries| entries.flatten().map(|entry| entry.path()).collect()).unwrap_or_default()
}

fn no_trace_within(deadline: Duration) -> Result<()> {
    let started = Instant::now();
    loop {
        let traces = traces();
        if traces.is_empty() {
            return Ok(());
        }
        ensure!(started.elapsed() < deadline, "left behind after {deadline:?}: {traces:#?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn cluster() -> PathBuf {
    repository().join("e2e/cluster/cluster")
}

/// Starts a cluster under a shell that is its parent and holds the other end of its standard input.
fn parent_with_cluster() -> Result<(Child, String)> {
    let script = format!("sleep 600 | NODES=2 '{}' run & echo $!; wait", cluster().display());
    let mut parent = Command::new("bash").args(["-c", &script]).stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(parent.stdout.take().context("a pipe")?).lines();
    let supervisor = lines.next().context("the shell says the process")??;
    match lines.next() {
        Some(path) if path.as_ref().is_ok_and(|path| path.ends_with("admin.kubeconfig")) => Ok((parent, supervisor)),
        other => bail!("no cluster: {other:?}, {:?}", parent.wait()),
    }
}

fn kill(signal: &str, pid: u32) -> Result<()> {
    let status = Command::new("kill").args([signal, &pid.to_string()]).status()?;
    ensure!(status.success(), "kill {signal} {pid}");
    Ok(())
}

/// Ends the `sleep` that stands for the end of the test process: the process is gone and its end of the pipe with it.
fn child_named(parent: u32, name: &str) -> Result<u32> {
    let list = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"))?;
    let pids = list.split_whitespace().filter_map(|pid| pid.parse().ok());
    let mut named = pids.filter(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name));
    named.next().with_context(|| format!("{name} among the children of {parent}: {list}"))
}

#[test]
fn a_cluster_ends_when_the_process_that_wanted_it_is_killed() -> Result<()> {
    let (mut parent, _) = parent_with_cluster()?;
    ensure!(!traces().is_empty(), "a running cluster is seen");
    let holder = child_named(parent.id(), "sleep")?;
    kill("-KILL", parent.id())?;
    kill("-KILL", holder)?;
    parent.wait()?;
    no_trace_within(Duration::from_secs(20))
}

#[test]
fn a_killed_cluster_takes_its_processes_along_and_the_next_start_clears_the_rest() -> Result<()> {
    let (mut parent, supervisor) = parent_with_cluster()?;
    kill("-KILL", supervisor.parse()?)?;
    let started = Instant::now();
    while traces().iter().any(|trace| trace.starts_with("/proc/")) {
        ensure!(started.elapsed() < Duration::from_secs(20), "processes live on: {:#?}", traces());
        std::thread::sleep(Duration::from_millis(100));
    }
    kill("-KILL", child_named(parent.id(), "sleep")?)?;
    parent.wait()?;

    let (mut again, _) = parent_with_cluster()?;
    let holder = child_named(again.id(), "sleep")?;
    kill("-KILL", holder)?;
    again.wait()?;
    no_trace_within(Duration::from_secs(20))
}

#[test]
fn a_kept_cluster_is_found_again_refuses_a_second_and_ends_on_request() -> Result<()> {
    let run = |args: &[&str]| Command::new(cluster()).args(args).env("NODES", "1").stdin(Stdio::null()).output();
    let up = run(&["up"])?;
    ensure!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
    let started = Instant::now();
    let again = run(&["up"])?;
    assert_eq!(up.stdout, again.stdout);
    ensure!(started.elapsed() < Duration::from_secs(3), "the second start takes {:?}", started.elapsed());
    let path = run(&["kubeconfig"])?;
    assert_eq!(path.stdout, up.stdout);

    let mut second = Command::new(cluster()).arg("run").stdin(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut said = String::new();
    second.stderr.take().context("a pipe")?.read_to_string(&mut said)?;
    ensure!(!second.wait()?.success() && said.contains("make cluster-down"), "{said}");

    let down = run(&["down"])?;
    ensure!(down.status.success(), "{}", String::from_utf8_lossy(&down.stderr));
    no_trace_within(Duration::from_secs(1))
}
