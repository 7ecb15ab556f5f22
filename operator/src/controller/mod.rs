//! The Kubernetes runtime of a run: it reads objects, turns them into observations, lets [`crate::run`] decide, and does what
//! was decided. It decides nothing about load itself.
//!
//! [`run`] serves health and metrics, takes part in the leader election, and while it leads runs one controller per scope
//! ([`term`]). One look at one object is [`reconcile::reconcile`].

pub mod apply;
pub mod build;
pub mod capacity;
pub mod context;
pub mod current;
pub mod error;
pub mod events;
pub mod health;
pub mod leader;
pub mod metrics;
pub mod observe;
pub mod pods;
pub mod reconcile;
pub mod rounds;
pub mod server;
pub mod settings;
pub mod status;
pub mod step;
pub mod teardown;
pub mod term;
pub mod trouble;
pub mod unreadable;
pub mod watch;

#[cfg(test)]
mod tests;

use std::{
    fs,
    future::Future,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use anyhow::{Context as _, bail};
use kube::Client;
use tracing::info;

use self::{context::Shared, health::Health, leader::Role, metrics::Metrics, settings::Settings};
use crate::scrape::Scraper;

/// Shortest key that tokens may derive from.
const SHORTEST_KEY: usize = 16;

/// Runs the operator until `stop` resolves.
///
/// # Errors
/// When it cannot start: no key, no address to listen on, no access to the Lease.
pub async fn run(client: Client, settings: Settings, stop: impl Future<Output = ()>) -> anyhow::Result<()> {
    let key = fs::read(&settings.key_file).with_context(|| format!("cannot read the key {}", settings.key_file.display()))?;
    if key.len() < SHORTEST_KEY {
        bail!("the key {} has {} bytes and needs at least {SHORTEST_KEY}", settings.key_file.display(), key.len());
    }
    let (health, metrics) = (Arc::new(Health::default()), Arc::new(Metrics::default()));
    let scraper = Scraper::new();
    let newest: Arc<Mutex<Weak<Shared>>> = Arc::default();
    let for_metrics = newest.clone();
    let refresh = Arc::new(move || {
        let shared = for_metrics.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        if let Some(shared) = shared {
            shared.refresh_metrics();
        }
    });
    let served = server::serve(settings.listen, health.clone(), metrics.clone(), refresh);
    let told = {
        let (health, metrics) = (health.clone(), metrics.clone());
        move |role| {
            metrics.leads(role == Role::Leader);
            health.clear();
            // Who stands by is ready; who leads is so when its watches are there.
            health.set_ready(role == Role::Standby);
        }
    };
    let work = || {
        let shared = Arc::new(Shared::new(
            client.clone(),
            settings.clone(),
            key.clone(),
            health.clone(),
            metrics.clone(),
            scraper.clone(),
        ));
        *newest.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&shared);
        term::work(shared)
    };
    info!(version = env!("CARGO_PKG_VERSION"), namespaces = ?settings.namespaces, worker = settings.worker.image, "starting");
    tokio::select! {
        served = served => served.with_context(|| format!("cannot serve on {}", settings.listen)),
        led = leader::lead(client.clone(), &settings, stop, told, work) => led,
    }
}
