//! What can go wrong while a run is reconciled. All of it is tried again with back-off; what trying again cannot cure is
//! reported in the status instead of being an error.

use std::{future::Future, time::Duration};

/// Longest wait for an answer of the API server.
const API_TIMEOUT: Duration = Duration::from_secs(10);

/// An error of a reconcile.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused or could not be reached.
    #[error("cannot {doing}: {source}")]
    Api {
        /// What was tried.
        doing: &'static str,
        /// Its answer.
        source: Box<kube::Error>,
    },
    /// The API server did not answer in time.
    #[error("cannot {doing}: no answer of the API server within {} s", API_TIMEOUT.as_secs())]
    Timeout {
        /// What was tried.
        doing: &'static str,
    },
    /// A reconcile took too long.
    #[error("a reconcile was given up after {} s", .0.as_secs())]
    TooLong(Duration),
    /// An object of ours that does not serialize.
    #[error("cannot write {what}: {source}")]
    Serialize {
        /// Which object.
        what: &'static str,
        /// Why.
        source: serde_json::Error,
    },
    /// A child's name is taken by an object of somebody else.
    #[error("{kind} {name} exists and belongs to something else: delete or rename it")]
    Foreign {
        /// Kind of the object.
        kind: String,
        /// Its name.
        name: String,
    },
}

impl Error {
    /// The answer of the API server, if it was one.
    pub fn status(&self) -> Option<&kube::core::Status> {
        match self {
            Self::Api { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => Some(status),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether the API server answered with this HTTP status.
    pub fn is(&self, code: u16) -> bool {
        self.status().is_some_and(|status| status.code == code)
    }

    /// A short static name, for metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Api { .. } if self.is(409) => "conflict",
            Self::Api { .. } if self.status().is_some() => "refused",
            Self::Api { .. } => "unreachable",
            Self::Timeout { .. } | Self::TooLong(_) => "timeout",
            Self::Serialize { .. } => "serialize",
            Self::Foreign { .. } => "foreign",
        }
    }
}

/// Awaits a call to the API server, with a deadline. `doing` completes "cannot ...".
///
/// # Errors
/// When the API server refuses, cannot be reached, or does not answer in time.
pub async fn timed<T>(doing: &'static str, call: impl Future<Output = kube::Result<T>>) -> Result<T, Error> {
    match tokio::time::timeout(API_TIMEOUT, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(source)) => Err(Error::Api { doing, source: Box::new(source) }),
        Err(_) => Err(Error::Timeout { doing }),
    }
}
