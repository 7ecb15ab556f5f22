//! The API server's audit log: who asked it for what. Only of the development cluster, which writes one
//! (<https://kubernetes.io/docs/tasks/debug/debug-cluster/audit/>).

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::Cluster;

/// One answered request.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditEvent {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, ...
    pub verb: String,
    /// Who asked.
    pub user: AuditUser,
    /// What for; none for paths such as `/healthz`.
    pub object_ref: Option<ObjectRef>,
    /// When it came in, as in RFC 3339, with microseconds.
    pub request_received_timestamp: String,
    /// How it was answered.
    pub response_status: Option<ResponseStatus>,
}

/// Who asked.
#[derive(Clone, Debug, Deserialize)]
pub struct AuditUser {
    /// A service account is `system:serviceaccount:NAMESPACE:NAME`.
    pub username: String,
}

/// What was asked for.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ObjectRef {
    /// The plural, such as `jobs`.
    pub resource: String,
    /// Such as `status`.
    pub subresource: String,
    /// Empty for what lies in none.
    pub namespace: String,
    /// Empty for lists and creations.
    pub name: String,
}

/// How it was answered.
#[derive(Clone, Debug, Deserialize)]
pub struct ResponseStatus {
    /// The HTTP status.
    pub code: u16,
}

impl AuditEvent {
    /// Whether the request changes something, if it is granted.
    #[must_use]
    pub fn is_write(&self) -> bool {
        matches!(self.verb.as_str(), "create" | "update" | "patch" | "delete" | "deletecollection")
    }

    /// Whether it is about this resource, such as `leases`, with or without a subresource.
    #[must_use]
    pub fn is_about(&self, resource: &str) -> bool {
        self.object_ref.as_ref().is_some_and(|object| object.resource == resource)
    }
}

/// The log, read from a point in it.
#[derive(Debug)]
pub struct AuditLog {
    path: PathBuf,
    from: u64,
}

impl AuditLog {
    /// The log from now on.
    ///
    /// # Errors
    /// When the cluster is not one of ours.
    pub fn from_now(cluster: &Cluster) -> Result<Self> {
        let path = cluster.state()?.join("audit.log");
        let from = std::fs::metadata(&path).with_context(|| path.display().to_string())?.len();
        Ok(Self { path, from })
    }

    /// The requests of a user since then, in the order in which they were answered.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn of(&self, username: &str) -> Result<Vec<AuditEvent>> {
        let text = std::fs::read_to_string(&self.path)?;
        events(text.get(usize::try_from(self.from)?..).unwrap_or_default(), username)
    }
}

/// A last line without an end is still being written.
fn events(log: &str, username: &str) -> Result<Vec<AuditEvent>> {
    let whole = log.rfind('\n').map_or("", |end| &log[..end]);
    let mut events = Vec::new();
    for line in whole.lines() {
        let event: AuditEvent = serde_json::from_str(line).with_context(|| format!("audit log: {line}"))?;
        if event.user.username == username {
            events.push(event);
        }
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_lines_of_that_user_are_read() {
        let line = |user: &str, verb: &str| {
            format!(
                r#"{{"verb":"{verb}","user":{{"username":"{user}"}},"objectRef":{{"resource":"jobs","namespace":"a"}},"requestReceivedTimestamp":"t","responseStatus":{{"code":201}}}}"#
            )
        };
        let log = format!("{}\n{}\n{}\n{}", line("me", "create"), line("you", "create"), line("me", "watch"), "{\"half");
        let events = events(&log, "me").expect("a log");
        assert_eq!(events.iter().map(AuditEvent::is_write).collect::<Vec<_>>(), [true, false]);
        assert!(events[0].is_about("jobs") && !events[0].is_about("pods"));
    }
}
