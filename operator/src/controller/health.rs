//! Whether the process is alive and ready. A watch that hangs looks like a quiet cluster; so every write of ours is expected
//! to come back on the watch of its kind, and the process counts as dead when one does not. An API server that cannot be reached
//! is no reason: a restart would not help.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// How long a write of ours may take to come back on its watch.
const LATE: Duration = Duration::from_secs(120);

/// What is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Watched {
    /// MqttLoadTests.
    Tests,
    /// Jobs.
    Jobs,
    /// ConfigMaps.
    ConfigMaps,
    /// Pods.
    Pods,
}

/// Health of the process.
#[derive(Debug, Default)]
pub struct Health {
    ready: AtomicBool,
    expected: Mutex<HashMap<(Watched, String), Expected>>,
}

#[derive(Debug)]
struct Expected {
    version: u64,
    since: Instant,
}

/// A resource version as a number: comparable for objects of one kind since Kubernetes 1.35, and in fact before
/// (<https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions>). Zero when it is none.
pub fn version_number(resource_version: Option<&str>) -> u64 {
    resource_version.and_then(|version| version.parse().ok()).unwrap_or(0)
}

impl Health {
    fn expected(&self) -> MutexGuard<'_, HashMap<(Watched, String), Expected>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The process does its work, or stands by for it.
    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Relaxed);
    }

    /// See [`Health::set_ready`].
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    /// An object was written: its watch must show it.
    pub fn expect(&self, kind: Watched, uid: &str, resource_version: Option<&str>, now: Instant) {
        let version = version_number(resource_version);
        self.expected()
            .entry((kind, uid.to_owned()))
            .and_modify(|expected| expected.version = version)
            .or_insert(Expected { version, since: now });
    }

    /// A watch showed an object.
    pub fn seen(&self, kind: Watched, uid: &str, resource_version: Option<&str>) {
        let mut expected = self.expected();
        let key = (kind, uid.to_owned());
        if expected.get(&key).is_some_and(|expected| version_number(resource_version) >= expected.version) {
            expected.remove(&key);
        }
    }

    /// An object is no longer there, or its watch began anew with a full list: nothing of it is awaited.
    pub fn forget(&self, kind: Watched, uid: Option<&str>) {
        self.expected().retain(|(other, id), _| *other != kind || uid.is_some_and(|uid| uid != id));
    }

    /// A watch failed and is tried again: what it owes is awaited from now on.
    pub fn excuse(&self, kind: Watched, now: Instant) {
        for ((other, _), expected) in self.expected().iter_mut() {
            if *other == kind {
                expected.since = now;
            }
        }
    }

    /// Forgets everything: this process no longer leads, and watches nothing.
    pub fn clear(&self) {
        self.expected().clear();
    }

    /// The watch that does not show what was written, if there is one.
    pub fn stuck(&self, now: Instant) -> Option<Watched> {
        self.expected()
            .iter()
            .find(|(_, expected)| now.saturating_duration_since(expected.since) > LATE)
            .map(|((kind, _), _)| *kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_does_not_come_back_on_its_watch_means_that_the_watch_is_stuck() {
        let health = Health::default();
        let start = Instant::now();
        health.expect(Watched::Tests, "a", Some("10"), start);
        health.seen(Watched::Tests, "a", Some("9"));
        assert_eq!(health.stuck(start + LATE), None);
        assert_eq!(health.stuck(start + LATE * 2), Some(Watched::Tests));
        // A later write does not set the clock back: a stuck watch must not be hidden by more writes.
        health.expect(Watched::Tests, "a", Some("11"), start + LATE);
        assert_eq!(health.stuck(start + LATE * 2), Some(Watched::Tests));
        health.seen(Watched::Tests, "a", Some("11"));
        assert_eq!(health.stuck(start + LATE * 2), None);
    }

    #[test]
    fn an_unreachable_api_server_and_deleted_objects_do_not_count() {
        let health = Health::default();
        let start = Instant::now();
        health.expect(Watched::Jobs, "a", Some("10"), start);
        health.excuse(Watched::Jobs, start + LATE);
        assert_eq!(health.stuck(start + LATE * 2), None);
        health.forget(Watched::Jobs, Some("b"));
        assert_eq!(health.stuck(start + LATE * 3), Some(Watched::Jobs));
        health.forget(Watched::Jobs, Some("a"));
        assert_eq!(health.stuck(start + LATE * 3), None);
        health.expect(Watched::Jobs, "a", Some("10"), start);
        health.forget(Watched::Jobs, None);
        assert_eq!(health.stuck(start + LATE * 3), None);
    }
}
