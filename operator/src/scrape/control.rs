//! Delivering the actions that are messages to workers. What is not delivered now is asked for again by the next step.

use futures::{StreamExt, stream};
use mqtt_loadtest_worker::protocol::{FINISH, RELEASE, Release, START, STOP, Start, Stop};

use super::{AT_ONCE, Endpoint, Error, Scraper};
use crate::run::{Action, Target, unix_ns};

/// Sends a [`Action::Release`], [`Action::Start`], [`Action::Stop`] or [`Action::Finish`] to its targets, a bounded number at once;
/// `endpoint` says where a target listens. Other actions are none of its business. Returns how many were not reached.
pub async fn deliver(scraper: &Scraper, action: &Action, endpoint: impl Fn(&Target) -> Option<Endpoint>) -> usize {
    let to = match action {
        Action::Release { to, .. } | Action::Start { to, .. } | Action::Stop { to, .. } | Action::Finish { to } => to,
        Action::CreateChildren | Action::WriteLedger(_) | Action::Teardown { .. } => return 0,
    };
    let known: Vec<(Target, Endpoint)> = to.iter().filter_map(|target| Some((target.clone(), endpoint(target)?))).collect();
    let unknown = to.len() - known.len();
    let failed: usize = stream::iter(known)
        .map(|(target, worker)| async move {
            match send(scraper, action, &worker).await {
                Ok(()) => 0,
                Err(error) => {
                    let (group, shard) = (target.group, target.index);
                    tracing::warn!(group, shard, uid = target.uid, %error, "a worker did not take a control message");
                    1
                }
            }
        })
        .buffer_unordered(AT_ONCE)
        .fold(0, |sum, failed| async move { sum + failed })
        .await;
    unknown + failed
}

async fn send(scraper: &Scraper, action: &Action, worker: &Endpoint) -> Result<(), Error> {
    // Instants before 1970 do not occur; zero would be refused by the worker as a conflict.
    match action {
        Action::Release { at, .. } => {
            let body = Release { at_unix_ns: unix_ns(*at).unwrap_or(0) };
            scraper.post(worker, RELEASE, Some(&body)).await
        }
        Action::Start { start, end, .. } => {
            let body = Start { start_unix_ns: unix_ns(*start).unwrap_or(0), end_unix_ns: unix_ns(*end).unwrap_or(0) };
            scraper.post(worker, START, Some(&body)).await
        }
        Action::Stop { reason, .. } => scraper.post(worker, STOP, Some(&Stop { reason: reason.clone() })).await,
        Action::Finish { .. } => scraper.post::<()>(worker, FINISH, None).await,
        Action::CreateChildren | Action::WriteLedger(_) | Action::Teardown { .. } => Ok(()),
    }
}
