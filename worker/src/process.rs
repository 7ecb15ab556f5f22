//! What the process knows about itself: file descriptors, CPU, throttling, memory. All read from the kernel, nothing kept.

use crate::accounting::{Counter, Gauge, Snapshot};
use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
use std::fs;
use std::path::Path;

/// Descriptors beside the clients' sockets: epoll, control connections, files.
const RESERVED: u64 = 100;

/// Raises the limit on file descriptors as far as it may be and checks that the clients fit.
///
/// # Errors
/// A sentence with the numbers, for the termination message.
pub fn reserve_descriptors(clients: u64) -> Result<u64, String> {
    let (soft, hard) =
        getrlimit(Resource::RLIMIT_NOFILE).map_err(|e| format!("the limit on file descriptors cannot be read: {e}"))?;
    let limit = if soft < hard && setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok() { hard } else { soft };
    let needed = clients + RESERVED;
    if needed > limit {
        return Err(format!(
            "{clients} clients need {needed} file descriptors, but this process may open only {limit}: give the group more shards \
             (at most {} clients each) or raise the limit of the node's container runtime",
            limit.saturating_sub(RESERVED)
        ));
    }
    Ok(limit)
}

/// Adds the process's own figures to a snapshot of the whole shard.
pub fn describe(snapshot: &mut Snapshot) {
    if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
        let ns = |t: nix::sys::time::TimeVal| t.tv_sec() as u64 * 1_000_000_000 + t.tv_usec() as u64 * 1_000;
        snapshot.set(Counter::CpuUsed, ns(usage.user_time()) + ns(usage.system_time()));
    }
    if let Some(ns) = throttled(Path::new("/sys/fs/cgroup"), &fs::read_to_string("/proc/self/cgroup").unwrap_or_default()) {
        snapshot.set(Counter::CpuThrottled, ns);
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        snapshot.set_gauge(Gauge::FileDescriptors, open.count() as i64);
    }
    if let Ok((soft, _)) = getrlimit(Resource::RLIMIT_NOFILE) {
        snapshot.set_gauge(Gauge::FileDescriptorsLimit, i64::try_from(soft).unwrap_or(i64::MAX));
    }
    if let Some(kib) = fs::read_to_string("/proc/self/status").ok().and_then(|text| {
        text.lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .and_then(|rest| rest.split_whitespace().next()?.parse::<i64>().ok())
    }) {
        snapshot.set_gauge(Gauge::MemoryResident, kib * 1024);
    }
    for (gauge, file) in [(Gauge::ConntrackUsed, "nf_conntrack_count"), (Gauge::ConntrackLimit, "nf_conntrack_max")] {
        let value = fs::read_to_string(Path::new("/proc/sys/net/netfilter").join(file)).ok().and_then(|t| t.trim().parse().ok());
        snapshot.set_gauge(gauge, value.unwrap_or(0));
    }
}

/// Time for which the CPU quota stopped this control group, in ns: `throttled_usec` of version 2, `throttled_time` of
/// version 1 (<https://docs.kernel.org/admin-guide/cgroup-v2.html>). `None` where no quota is visible.
fn throttled(root: &Path, membership: &str) -> Option<u64> {
    let field = |path: &Path, name: &str| -> Option<u64> {
        let text = fs::read_to_string(path).ok()?;
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    };
    // In a container the group's own directory is usually mounted at the root of the hierarchy.
    for line in membership.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let path = path.trim_start_matches('/');
        if controllers.is_empty() {
            for dir in [root.join(path), root.to_owned()] {
                if let Some(usec) = field(&dir.join("cpu.stat"), "throttled_usec ") {
                    return Some(usec * 1000);
                }
            }
        } else if controllers.split(',').any(|c| c == "cpu") {
            for dir in [root.join(controllers).join(path), root.join("cpu").join(path), root.join(controllers), root.join("cpu")]
            {
                if let Some(ns) = field(&dir.join("cpu.stat"), "throttled_time ") {
                    return Some(ns);
                }
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_that_cannot_fit_is_refused_with_the_numbers() {
        let limit = reserve_descriptors(1).unwrap();
        let refused = reserve_descriptors(limit).unwrap_err();
        assert!(refused.contains(&limit.to_string()) && refused.contains("shards"), "{refused}");
    }

    #[test]
    fn throttling_is_read_from_both_versions_of_control_groups() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("pod/cpu.stat", "usage_usec 5\nthrottled_usec 7\n");
        assert_eq!(throttled(root.path(), "0::/pod\n"), Some(7_000));
        write("cpu,cpuacct/pod/cpu.stat", "nr_periods 1\nthrottled_time 9\n");
        assert_eq!(throttled(root.path(), "4:memory:/pod\n3:cpu,cpuacct:/pod\n"), Some(9));
        assert_eq!(throttled(root.path(), "1:memory:/pod\n"), None);
    }

    #[test]
    fn the_process_describes_itself() {
        let mut snapshot = Snapshot::new();
        describe(&mut snapshot);
        assert!(snapshot.get(Counter::CpuUsed) > 0);
        assert!(snapshot.gauge(Gauge::FileDescriptors) > 2);
        assert!(snapshot.gauge(Gauge::MemoryResident) > 1 << 20);
    }
}
