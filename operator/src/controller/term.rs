//! A term of leadership: the watches and the controllers, one for each scope. Dropping the future ends all of it at once.

use std::{sync::Arc, time::Duration};

use anyhow::bail;
use futures::{StreamExt, channel::mpsc, future};
use kube::runtime::{Config, Controller, controller, watcher};
use tracing::{debug, info};

use super::{
    context::{Scope, Shared},
    error::Error,
    reconcile::{error_policy, reconcile},
    watch::{self, Streams, test_of},
};

/// Objects that are reconciled at once, in each scope.
const CONCURRENCY: u16 = 16;
/// How often what is known of deleted objects is swept out.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// Works until it is dropped.
///
/// # Errors
/// When a controller ends by itself.
pub async fn work(shared: Arc<Shared>) -> anyhow::Result<()> {
    let namespaces: Vec<Option<String>> = match shared.settings.namespaces.as_slice() {
        [] => vec![None],
        some => some.iter().cloned().map(Some).collect(),
    };
    let mut scopes = Vec::new();
    let mut controllers = Vec::new();
    for namespace in namespaces {
        let gone = Arc::downgrade(&shared);
        let on_gone: watch::OnGone = Arc::new(move |uid| {
            if let Some(shared) = gone.upgrade() {
                shared.forget(uid);
            }
        });
        let (stores, streams) = watch::open(&shared.client, namespace.as_deref(), &shared.health, shared.pods.clone(), on_gone);
        let (wake, woken) = mpsc::unbounded();
        let scope = Arc::new(Scope { shared: shared.clone(), stores, wake });
        scopes.push(scope.clone());
        controllers.push(Box::pin(control(scope, streams, woken)));
    }
    shared.set_scopes(scopes.clone());
    let housekeeping = async {
        let ready = future::join_all(scopes.iter().map(|scope| scope.stores.ready())).await;
        if ready.into_iter().all(|ready| ready) {
            info!("the watches are there");
            shared.health.set_ready(true);
        }
        loop {
            tokio::time::sleep(SWEEP_EVERY).await;
            shared.sweep();
        }
    };
    tokio::select! {
        _ = future::select_all(controllers) => bail!("a controller ended by itself"),
        () = housekeeping => Ok(()),
    }
}

async fn control(
    scope: Arc<Scope>,
    streams: Streams,
    woken: mpsc::UnboundedReceiver<kube::runtime::reflector::ObjectRef<watch::Guarded>>,
) {
    let waiting = scope.clone();
    Controller::for_stream(streams.tests, scope.stores.tests.clone())
        .with_config(Config::default().concurrency(CONCURRENCY))
        .watches_stream(streams.jobs, |job| test_of(&job))
        .watches_stream(streams.pods, |pod| test_of(&pod))
        .watches_stream(streams.maps, |map| test_of(&map))
        .reconcile_on(woken)
        .run(
            move |test, scope| {
                let waiting = waiting.clone();
                async move {
                    // A store that has not seen its first list would make everything look deleted.
                    waiting.stores.ready().await;
                    reconcile(test, scope).await
                }
            },
            error_policy,
            scope,
        )
        .for_each(|done| async move {
            if let Err(error) = done {
                note(&error);
            }
        })
        .await;
}

/// Errors of reconciles and watches are logged where they occur; what remains is that an object went away meanwhile.
fn note(error: &controller::Error<Error, watcher::Error>) {
    debug!(%error, "controller");
}
