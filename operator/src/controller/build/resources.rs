//! Requests and limits of a worker, derived from its share of the plan. Memory request = limit, so that the pod is not the
//! first to be evicted; a CPU request without a limit, because throttling would be measured as the broker's latency.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::ResourceRequirements, apimachinery::pkg::api::resource::Quantity};
use mqtt_loadtest_crds::plan::{RunPlan, publish_schedule};

/// Memory of a worker without clients: code, histograms, payload slab.
const BASE_MEMORY: u64 = 64 << 20;
/// Memory of a connection: state, in-flight table, and what the kernel charges for its socket.
const MEMORY_PER_CLIENT: u64 = 24 << 10;
/// CPU of a message sent and acknowledged, the kernel included, with a margin over the measured 11 us.
const CPU_NANOS_PER_SENT: f64 = 20_000.0;
/// CPU of a message received and acknowledged.
const CPU_NANOS_PER_RECEIVED: f64 = 10_000.0;
/// CPU of a new connection.
const CPU_NANOS_PER_CONNECT: f64 = 60_000.0;
/// Requests stay schedulable: what a plan would need beyond this is found out by the generator's own measurements.
const LEAST_MILLIS: u64 = 50;
const MOST_MILLIS: u64 = 4_000;

const SECOND: u64 = 1_000_000_000;

/// Resources of the workers of a group: derived, then overridden by what the manifest sets.
pub(super) fn resources(plan: &RunPlan, group: usize) -> ResourceRequirements {
    let given = plan.spec.groups.get(group).map(|group| group.worker.resources.clone()).unwrap_or_default();
    let mut requests = BTreeMap::from([
        ("cpu".to_owned(), Quantity(format!("{}m", cpu_millis(plan, group)))),
        ("memory".to_owned(), Quantity(format!("{}Mi", memory_bytes(plan, group) >> 20))),
    ]);
    let mut limits = BTreeMap::new();
    let given_limits = given.limits.unwrap_or_default();
    // A limit alone is also the request, as the API server would have it.
    requests.extend(given_limits.iter().map(|(name, value)| (name.clone(), value.clone())));
    requests.extend(given.requests.unwrap_or_default());
    if let Some(memory) = requests.get("memory") {
        limits.insert("memory".to_owned(), memory.clone());
    }
    limits.extend(given_limits);
    ResourceRequirements { requests: Some(requests), limits: Some(limits), claims: given.claims }
}

fn clients_per_shard(plan: &RunPlan, group: usize) -> u64 {
    plan.groups.get(group).map_or(1, |group| u64::from(group.clients.div_ceil(group.shards.max(1))))
}

fn memory_bytes(plan: &RunPlan, group: usize) -> u64 {
    (BASE_MEMORY + clients_per_shard(plan, group) * MEMORY_PER_CLIENT).next_multiple_of(1 << 20)
}

fn cpu_millis(plan: &RunPlan, group: usize) -> u64 {
    let shards = plan.groups.get(group).map_or(1, |group| group.shards.max(1)) as f64;
    let Some(spec) = plan.spec.groups.get(group) else { return LEAST_MILLIS };
    let sent = published_per_second(plan, group) / shards;
    let all: f64 = (0..plan.spec.groups.len()).map(|group| published_per_second(plan, group)).sum();
    let clients = clients_per_shard(plan, group) as f64;
    // Who receives what is not known before the run. A filter with a placeholder is taken for a client's share of
    // everything, a shared subscription for the group's share, another filter for everything.
    let received: f64 = spec
        .subscribe
        .iter()
        .map(|entry| match entry.filter.as_str() {
            filter if filter.starts_with("$share/") => all / shards,
            filter if filter.contains('%') => all * clients / f64::from(spec.clients.max(1)),
            _ => all * clients,
        })
        .sum();
    let connecting = spec.connect.rate_per_second.per_second() / shards * CPU_NANOS_PER_CONNECT;
    let running = sent * CPU_NANOS_PER_SENT + received * CPU_NANOS_PER_RECEIVED;
    ((running.max(connecting) / 1e6).ceil() as u64).clamp(LEAST_MILLIS, MOST_MILLIS)
}

fn published_per_second(plan: &RunPlan, group: usize) -> f64 {
    plan.spec
        .groups
        .get(group)
        .map_or(0.0, |group| group.publish.iter().map(|entry| publish_schedule(group, entry).slots_before(SECOND) as f64).sum())
}

#[cfg(test)]
mod tests {
    use super::{super::tests::plan_of, *};
    use serde_json::{Value, json};

    fn of(group: Value) -> (String, String, Option<String>, String) {
        let plan = plan_of(json!({"broker": {"endpoints": ["mqtt://b"]}, "groups": [group]}));
        let resources = resources(&plan, 0);
        let (requests, limits) = (resources.requests.unwrap(), resources.limits.unwrap());
        let text = |quantity: Option<&Quantity>| quantity.map(|q| q.0.clone());
        (
            text(requests.get("cpu")).unwrap(),
            text(requests.get("memory")).unwrap(),
            text(limits.get("cpu")),
            text(limits.get("memory")).unwrap(),
        )
    }

    #[test]
    fn requests_follow_the_plan_and_there_is_no_cpu_limit() {
        let publish = json!([{"name": "p", "topic": "t", "qos": 1, "interval": "1s"}]);
        let small = of(json!({"name": "g", "clients": 10, "publish": publish}));
        assert_eq!(small, ("50m".into(), "65Mi".into(), None, "65Mi".into()));
        let large = of(json!({"name": "g", "clients": 10000, "publish": publish}));
        assert_eq!(large, ("200m".into(), "299Mi".into(), None, "299Mi".into()));
        let flood =
            of(json!({"name": "g", "clients": 10000, "publish": [{"name": "p", "topic": "t", "ratePerSecond": 10000000}]}));
        assert_eq!(flood.0, "4000m");
    }

    #[test]
    fn what_the_manifest_sets_wins_key_by_key() {
        let memory = of(json!({"name": "g", "clients": 10, "worker": {"resources": {"limits": {"memory": "1Gi"}}}}));
        assert_eq!(memory, ("50m".into(), "1Gi".into(), None, "1Gi".into()));
        let cpu =
            of(json!({"name": "g", "clients": 10, "worker": {"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "3"}}}}));
        assert_eq!(cpu, ("2".into(), "65Mi".into(), Some("3".into()), "65Mi".into()));
        let request = of(json!({"name": "g", "clients": 10, "worker": {"resources": {"requests": {"memory": "2Gi"}}}}));
        assert_eq!((request.1, request.3), ("2Gi".into(), "2Gi".into()));
    }
}
