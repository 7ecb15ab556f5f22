//! The conditions of a MqttLoadTest: what `kubectl wait`, Flux, Argo CD and Helm look at.
//!
//! | | Ready | Reconciling | Stalled | Complete | Failed | Finished |
//! | --- | --- | --- | --- | --- | --- | --- |
//! | active | False | True | False | False | False | False |
//! | Passed | True | False | False | True | False | True |
//! | Failed, Inconclusive | False | False | True | False | True | True |
//! | invalid spec | False | False | True | False | True | True |
//! | held back before the start | False | False | False | False | False | False |
//!
//! A condition changes only on a transition (another status or reason), so that a controller that refreshes on every update
//! is left in peace; its `observedGeneration` follows every edit that the run honours, or `kubectl wait` would take it for stale.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// In which row of the table an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    /// A run goes on.
    Active,
    /// The newest run passed.
    Passed,
    /// The newest run failed or was inconclusive.
    NotPassed,
    /// The spec is invalid.
    Invalid,
    /// Suspended before the start, or queued.
    Held,
}

impl Row {
    /// Ready, Reconciling, Stalled, Complete, Failed, Finished.
    const fn statuses(self) -> [bool; 6] {
        match self {
            Self::Active => [false, true, false, false, false, false],
            Self::Passed => [true, false, false, true, false, true],
            Self::NotPassed | Self::Invalid => [false, false, true, false, true, true],
            Self::Held => [false; 6],
        }
    }
}

const TYPES: [&str; 6] = ["Ready", "Reconciling", "Stalled", "Complete", "Failed", "Finished"];

/// Whether the clients are connected, with the broker's own reason where they are not.
pub const CLIENTS_CONNECTED: &str = "ClientsConnected";
/// Whether an edited spec waits for the end of the run.
pub const SPEC_PENDING: &str = "SpecPending";

/// A condition as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// True or False.
    pub status: bool,
    /// One CamelCase word.
    pub reason: String,
    /// In words, without numbers that change.
    pub message: String,
}

impl Wanted {
    /// A condition.
    pub fn new(status: bool, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { status, reason: reason.into(), message: message.into() }
    }
}

/// The six conditions of a row, and the two that stand for themselves.
pub fn update(
    previous: &[Condition],
    row: Row,
    summary: (&str, &str),
    own: [(&str, Wanted); 2],
    observed_generation: i64,
    now: Timestamp,
) -> Vec<Condition> {
    let (reason, message) = summary;
    let rows = TYPES.iter().zip(row.statuses()).map(|(type_, status)| (*type_, Wanted::new(status, reason, message)));
    rows.chain(own).map(|(type_, wanted)| transition(previous, type_, wanted, observed_generation, now)).collect()
}

fn transition(previous: &[Condition], type_: &str, wanted: Wanted, observed_generation: i64, now: Timestamp) -> Condition {
    let status = if wanted.status { "True" } else { "False" };
    let before = previous.iter().find(|condition| condition.type_ == type_);
    let same_status = before.filter(|before| before.status == status);
    let observed_generation = Some(observed_generation);
    if let Some(same) = same_status.filter(|same| same.reason == wanted.reason) {
        return Condition { observed_generation, ..same.clone() };
    }
    Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        // A condition's reason must not be empty (Kubernetes API conventions).
        reason: if wanted.reason.is_empty() { "Unknown".to_owned() } else { wanted.reason },
        message: wanted.message,
        observed_generation,
        // "The last time the condition transitioned from one status to another": a new reason does not count.
        last_transition_time: same_status.map_or(Time(now), |same| same.last_transition_time.clone()),
    }
}

/// Whether two sets differ in a status or a reason.
pub fn differ(a: &[Condition], b: &[Condition]) -> bool {
    let essence = |conditions: &[Condition]| -> Vec<(String, String, String)> {
        let mut list: Vec<_> = conditions.iter().map(|c| (c.type_.clone(), c.status.clone(), c.reason.clone())).collect();
        list.sort();
        list
    };
    essence(a) != essence(b)
}
