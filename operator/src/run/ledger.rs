//! The counts of attempts that died, so that they outlive the pods. Per group one merged snapshot and the record of each death;
//! written only when an attempt died.

use std::collections::{BTreeMap, BTreeSet};

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use mqtt_loadtest_worker::accounting::{Snapshot, metrics};
use serde::{Deserialize, Serialize};

/// The dead attempts of a run, by place of their group in the plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ledger {
    /// Groups in which an attempt died.
    pub groups: BTreeMap<usize, GroupLedger>,
}

/// The dead attempts of a group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupLedger {
    /// Their counts, added up.
    pub snapshot: Snapshot,
    /// One record of each.
    pub deaths: Vec<Death>,
}

/// One attempt that died.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Death {
    /// UID of the attempt.
    pub uid: String,
    /// Completion index.
    pub index: u32,
    /// Number of the attempt.
    pub attempt: u32,
    /// Latest instant at which it may have died.
    pub at: Timestamp,
    /// Whether its counts are those of its last word; else some of what it did was seen by nobody.
    pub last_words: bool,
    /// Messages that it may have sent beyond its last known counts.
    pub uncertain: u64,
    /// Messages whose acknowledgement its death left open: nobody's fault but the pod's.
    pub unacked: u64,
    /// Why, for people: `OOMKilled`, exit status 143.
    pub reason: String,
}

/// A stored ledger that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("the ledger of group {group} cannot be read ({problem}): was it edited? Counts of dead workers are missing without it")]
pub struct LedgerError {
    /// Place of the group in the plan.
    pub group: usize,
    /// What is wrong.
    pub problem: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    deaths: Vec<Death>,
    /// The exposition of the snapshot, protobuf in base64: all digits of counts and histograms.
    snapshot: String,
}

impl Ledger {
    /// Whether the attempt is in it.
    pub fn holds(&self, group: usize, uid: &str) -> bool {
        self.groups.get(&group).is_some_and(|ledger| ledger.deaths.iter().any(|death| death.uid == uid))
    }

    /// UIDs of all attempts in it.
    pub fn uids(&self) -> BTreeSet<&str> {
        self.groups.values().flat_map(|group| group.deaths.iter().map(|death| death.uid.as_str())).collect()
    }

    /// Adds a dead attempt; one that is already there is not counted again.
    pub fn fold(&mut self, group: usize, death: Death, counts: Option<&Snapshot>) {
        if self.holds(group, &death.uid) {
            return;
        }
        let ledger = self.groups.entry(group).or_default();
        if let Some(counts) = counts {
            ledger.snapshot.merge(counts);
        }
        ledger.deaths.push(death);
    }

    /// The text that is stored for each group: values of a ConfigMap under `group-<place>`.
    pub fn to_data(&self) -> BTreeMap<String, String> {
        self.groups
            .iter()
            .map(|(group, ledger)| {
                let snapshot = metrics::encode(ledger.snapshot.clone().into(), &[], metrics::Format::Protobuf);
                // Encoding into memory does not fail.
                let snapshot = STANDARD.encode(snapshot.unwrap_or_default());
                let stored = Stored { deaths: ledger.deaths.clone(), snapshot };
                (format!("group-{group}"), serde_json::to_string(&stored).unwrap_or_default())
            })
            .collect()
    }

    /// Reads what [`Ledger::to_data`] wrote; other keys are passed over.
    ///
    /// # Errors
    /// When a group's text is not what was written.
    pub fn from_data(data: &BTreeMap<String, String>) -> Result<Self, LedgerError> {
        let mut groups = BTreeMap::new();
        for (key, text) in data {
            let Some(group) = key.strip_prefix("group-").and_then(|place| place.parse().ok()) else { continue };
            let wrong = |problem: &dyn std::fmt::Display| LedgerError { group, problem: problem.to_string() };
            let stored: Stored = serde_json::from_str(text).map_err(|error| wrong(&error))?;
            let bytes = STANDARD.decode(stored.snapshot).map_err(|error| wrong(&error))?;
            let snapshot = metrics::decode(&bytes, &metrics::Limits::default()).map_err(|error| wrong(&error))?;
            groups.insert(group, GroupLedger { snapshot, deaths: stored.deaths });
        }
        Ok(Self { groups })
    }
}
