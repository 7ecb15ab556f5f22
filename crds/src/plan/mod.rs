//! The pure planning of a run: groups become Indexed Jobs, a completion index becomes a slice of the clients, and every
//! connect and every message gets its instant from a formula. The same (plan, index) gives the same slice for ever, so a
//! replaced pod continues exactly where the clock says.

mod names;
mod schedule;
mod slice;

pub use names::{child_name, short_hash};
pub use schedule::Schedule;
pub use slice::Slice;

use serde::{Deserialize, Serialize};

use crate::{
    MqttLoadTestSpec,
    spec::{Group, Publish},
    value::Rate,
};

/// Clients of one worker pod when the manifest names no number.
pub const DEFAULT_CLIENTS_PER_SHARD: u32 = 10_000;

/// Version of the plan's format; a worker refuses another one.
pub const PLAN_VERSION: u32 = 1;

/// Which run a plan belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunIdentity {
    /// Namespace of the MqttLoadTest; empty in a local run.
    pub namespace: String,
    /// Name of the MqttLoadTest.
    pub name: String,
    /// UID of the MqttLoadTest.
    pub uid: String,
    /// `status.run.id`.
    pub id: String,
}

/// A whole run. It travels to the workers as `plan.json` and holds the whole spec, so that an edit changes nothing for a
/// run that has begun.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunPlan {
    /// Format version, [`PLAN_VERSION`].
    pub version: u32,
    /// Which run this is.
    pub run: RunIdentity,
    /// The groups, in the manifest's order.
    pub groups: Vec<GroupPlan>,
    /// The spec of the run.
    pub spec: MqttLoadTestSpec,
}

/// A group of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupPlan {
    /// Name of the group.
    pub name: String,
    /// Number of clients.
    pub clients: u32,
    /// How many clients the groups before it have: a client's rank over all groups is this plus its rank in the group.
    pub first_rank: u64,
    /// Number of worker pods: completions of the Indexed Job.
    pub shards: u32,
    /// Name of its Job.
    pub job_name: String,
}

impl RunPlan {
    /// Plans a run of a spec that [`crate::validate::validate`] accepts.
    pub fn new(run: RunIdentity, spec: MqttLoadTestSpec) -> Self {
        let mut first_rank = 0;
        let groups = spec
            .groups
            .iter()
            .map(|group| {
                let clients = count(group.clients);
                let plan = GroupPlan {
                    name: group.name.clone(),
                    clients,
                    first_rank,
                    shards: shard_count(group),
                    job_name: child_name(&run, &group.name),
                };
                first_rank += u64::from(clients);
                plan
            })
            .collect();
        Self { version: PLAN_VERSION, run, groups, spec }
    }

    /// The clients that the worker with this completion index runs. None when there is no such group or index.
    pub fn slice(&self, group: usize, index: u32) -> Option<Slice> {
        let plan = self.groups.get(group)?;
        let spec = self.spec.groups.get(group)?;
        (index < plan.shards).then(|| Slice {
            group,
            shard: index,
            shards: plan.shards,
            group_clients: plan.clients,
            first_rank: plan.first_rank,
            start_number: u64::try_from(spec.start_number).unwrap_or(0),
        })
    }

    /// Clients of all groups.
    pub fn clients(&self) -> u64 {
        self.groups.iter().map(|group| u64::from(group.clients)).sum()
    }

    /// Worker pods of all groups.
    pub fn shards(&self) -> u32 {
        self.groups.iter().map(|group| group.shards).sum()
    }

    /// When the clients of a group connect, counted from the release.
    pub fn connects(&self, group: usize) -> Schedule {
        let clients = self.groups.get(group).map_or(1, |group| group.clients);
        let rate = self.spec.groups.get(group).map(|group| group.connect.rate_per_second);
        Schedule::at_rate(rate.unwrap_or_else(|| unreachable_rate(clients)), clients)
    }

    /// Messages that the whole run has planned before `elapsed` nanoseconds from the common start.
    pub fn messages_before(&self, elapsed: u64) -> u64 {
        let elapsed = elapsed.min(self.spec.load.duration.as_nanos());
        self.spec
            .groups
            .iter()
            .flat_map(|group| group.publish.iter().map(|entry| publish_schedule(group, entry).slots_before(elapsed)))
            .sum()
    }
}

/// When the messages of a publish entry are due, counted from the common start. With `interval` the group's rate is one
/// message of every client an interval.
pub fn publish_schedule(group: &Group, entry: &Publish) -> Schedule {
    let clients = count(group.clients);
    match (&entry.interval, entry.rate_per_second) {
        (Some(interval), _) => Schedule::every(interval.as_nanos(), clients),
        (None, Some(rate)) => Schedule::at_rate(rate, clients),
        (None, None) => Schedule::at_rate(unreachable_rate(clients), clients),
    }
}

/// Number of worker pods of a group: never more than clients.
fn shard_count(group: &Group) -> u32 {
    let clients = count(group.clients);
    let wanted = match (group.shards.count, group.shards.clients_per_shard) {
        (Some(count), _) => u32::try_from(count).unwrap_or(1),
        (None, per_shard) => {
            let per_shard = per_shard.and_then(|n| u32::try_from(n).ok()).unwrap_or(DEFAULT_CLIENTS_PER_SHARD);
            clients.div_ceil(per_shard.max(1))
        }
    };
    wanted.clamp(1, clients)
}

fn count(clients: i32) -> u32 {
    u32::try_from(clients).unwrap_or(1).max(1)
}

/// Stands in where a validated spec has a rate: one a second for each client.
fn unreachable_rate(clients: u32) -> Rate {
    Rate::new(u64::from(clients.max(1)), 1).unwrap_or_else(|| unreachable!())
}

#[cfg(test)]
mod tests;
