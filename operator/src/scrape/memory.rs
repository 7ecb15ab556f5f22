//! The last good answer of each worker. Without it merged counts would go backwards whenever one does not answer.
//!
//! Losing it (a restart) loses nothing that the next round does not bring back: what a dead worker last said is in the
//! ledger by then, or was seen by nobody.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use jiff::Timestamp;
use mqtt_loadtest_worker::protocol::{ShardPhase, ShardStatus};

use super::{Error, Scraped};
use crate::run::Counts;

/// What is known of one worker.
#[derive(Clone, Debug)]
pub struct Remembered {
    /// Its last status.
    pub status: ShardStatus,
    /// Its last counts.
    pub counts: Counts,
    /// Whether it answered in the last round.
    pub reachable: bool,
}

/// Answers by the UID of the attempt.
#[derive(Clone, Debug, Default)]
pub struct Memory(HashMap<String, Remembered>);

impl Memory {
    /// Takes the answer of one worker.
    pub fn take(&mut self, uid: &str, answer: Result<Scraped, Error>, now: Timestamp) {
        match answer {
            Ok(Scraped { status, snapshot }) => {
                let last = status.phase == ShardPhase::Finished;
                let counts = Counts { snapshot: Arc::new(snapshot), at: now, last };
                self.0.insert(uid.to_owned(), Remembered { status, counts, reachable: true });
            }
            Err(error) => {
                tracing::debug!(uid, %error, "a worker did not answer");
                if let Some(known) = self.0.get_mut(uid) {
                    known.reachable = false;
                }
            }
        }
    }

    /// What is known of a worker.
    pub fn get(&self, uid: &str) -> Option<&Remembered> {
        self.0.get(uid)
    }

    /// Whether a worker has said its last word, so that asking again brings nothing.
    pub fn is_final(&self, uid: &str) -> bool {
        self.0.get(uid).is_some_and(|known| known.counts.last)
    }

    /// Forgets every worker that is not among these.
    pub fn retain(&mut self, uids: &HashSet<&str>) {
        self.0.retain(|uid, _| uids.contains(uid.as_str()));
    }
}
