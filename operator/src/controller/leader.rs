//! Leader election: one replica works, the others stand by. Whoever loses the lease drops its work at once, in the middle of
//! whatever it does: everything is idempotent, and the instants of a run are guarded by resource versions besides.

use std::{future::Future, time::Duration};

use anyhow::{Context, bail};
use kube::Client;
use kube_lease_manager::{LeaseManagerBuilder, LeaseParams};
use tokio::time::timeout;
use tracing::{info, warn};

use super::settings::Settings;

/// A lease that is not renewed for so long is free for others. Also the longest that a replica takes to notice that it was given
/// back: it sleeps until the lease that it knows would expire.
const LEASE_SECONDS: u64 = 10;
/// It is renewed so long before.
const GRACE_SECONDS: u64 = 7;
/// Longest wait for giving it back at the end.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);

/// What an election tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// This process leads.
    Leader,
    /// Another one does.
    Standby,
}

/// Does `work` whenever this process leads, until `stop` resolves; then gives the lease back, so that another replica
/// takes over at once.
///
/// # Errors
/// When the Lease cannot be read or created, or when the work ends by itself.
pub async fn lead<Work>(
    client: Client,
    settings: &Settings,
    stop: impl Future<Output = ()>,
    mut told: impl FnMut(Role),
    mut work: impl FnMut() -> Work,
) -> anyhow::Result<()>
where
    Work: Future<Output = anyhow::Result<()>>,
{
    let manager = LeaseManagerBuilder::new(client, &settings.lease_name)
        .with_namespace(&settings.pod_namespace)
        .with_parameters(LeaseParams::new(&settings.pod_name, LEASE_SECONDS, GRACE_SECONDS))
        .build()
        .await
        .with_context(|| format!("cannot read or create Lease {}/{}", settings.pod_namespace, settings.lease_name))?;
    let (mut leads, election) = manager.watch().await;
    tokio::pin!(stop);
    loop {
        if *leads.borrow_and_update() {
            info!("leading");
            told(Role::Leader);
            tokio::select! {
                () = &mut stop => break,
                changed = leads.changed() => {
                    changed.context("the leader election ended")?;
                    warn!("the lease is lost; work stops");
                }
                ended = work() => {
                    ended?;
                    bail!("the work of the operator ended by itself");
                }
            }
        } else {
            info!("standing by: another replica leads");
            told(Role::Standby);
            tokio::select! {
                () = &mut stop => break,
                changed = leads.changed() => changed.context("the leader election ended")?,
            }
        }
    }
    drop(leads);
    match timeout(RELEASE_TIMEOUT, election).await {
        Ok(Ok(Ok(_))) => info!("the lease is given back"),
        _ => warn!("the lease could not be given back; it expires in {LEASE_SECONDS} s"),
    }
    Ok(())
}
