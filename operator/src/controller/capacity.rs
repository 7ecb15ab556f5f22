//! The operator's limit of concurrent runs. Who may start is decided in one place, oldest object first; what is under way
//! is read from the statuses, so that a restarted operator counts the same.

use std::{
    collections::{BTreeSet, HashSet},
    sync::{Mutex, PoisonError},
};

use jiff::Timestamp;

/// Lets runs start, up to the limit.
#[derive(Debug, Default)]
pub struct Capacity {
    limit: Option<usize>,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    /// Let in, and perhaps not yet visible in a status.
    admitted: HashSet<String>,
    /// By age of the object, then by its name: many are created within one second. The UID is last.
    waiting: BTreeSet<(Timestamp, String, String)>,
}

impl Capacity {
    /// With a limit, or without.
    pub fn new(limit: Option<usize>) -> Self {
        Self { limit, queue: Mutex::default() }
    }

    /// Asks to start a run of the object with this UID, age and name; `under_way` are the UIDs whose statuses tell of a run that has
    /// begun and not ended. Who is let in stays so until [`Capacity::leave`].
    pub fn admit(&self, uid: &str, created: Timestamp, name: &str, under_way: impl Iterator<Item = String>) -> bool {
        let Some(limit) = self.limit else { return true };
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let mut active: HashSet<String> = under_way.collect();
        active.extend(queue.admitted.iter().cloned());
        if active.contains(uid) {
            return true;
        }
        let entry = (created, name.to_owned(), uid.to_owned());
        queue.waiting.insert(entry.clone());
        let before = queue.waiting.iter().take_while(|other| **other != entry).count();
        if active.len() + before >= limit {
            return false;
        }
        queue.waiting.remove(&entry);
        queue.admitted.insert(entry.2);
        true
    }

    /// The run ended, or its object is gone or no longer wants one.
    pub fn leave(&self, uid: &str) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.admitted.remove(uid);
        queue.waiting.retain(|(_, _, other)| other != uid);
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn none() -> std::vec::IntoIter<String> {
        Vec::new().into_iter()
    }

    #[test]
    fn without_a_limit_everyone_starts() {
        let capacity = Capacity::new(None);
        assert!((0..100).all(|i| capacity.admit(&i.to_string(), at(0), "n", none())));
    }

    #[test]
    fn the_oldest_waits_least() {
        let capacity = Capacity::new(Some(1));
        assert!(capacity.admit("a", at(5), "n", none()));
        assert!(capacity.admit("a", at(5), "n", none()), "who is in stays in");
        assert!(!capacity.admit("young", at(9), "n", none()));
        assert!(!capacity.admit("old", at(7), "n", none()));
        assert_eq!(capacity.waiting(), 2);
        capacity.leave("a");
        assert!(!capacity.admit("young", at(9), "n", none()));
        assert!(capacity.admit("old", at(7), "n", none()));
    }

    #[test]
    fn of_the_same_age_the_name_decides() {
        let capacity = Capacity::new(Some(1));
        assert!(capacity.admit("running", at(1), "r", none()));
        assert!(!capacity.admit("uid-1", at(2), "b", none()));
        assert!(!capacity.admit("uid-2", at(2), "a", none()));
        capacity.leave("running");
        assert!(!capacity.admit("uid-1", at(2), "b", none()));
        assert!(capacity.admit("uid-2", at(2), "a", none()));
    }

    #[test]
    fn runs_of_an_operator_before_this_one_count() {
        let capacity = Capacity::new(Some(2));
        let under_way = || vec!["x".to_owned(), "y".to_owned()].into_iter();
        assert!(!capacity.admit("z", at(1), "n", under_way()));
        assert!(capacity.admit("x", at(2), "n", under_way()));
        assert!(capacity.admit("z", at(1), "n", vec!["x".to_owned()].into_iter()));
    }
}
