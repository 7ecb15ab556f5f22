//! Each sentence about planning, as a property.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn run() -> RunIdentity {
    RunIdentity { namespace: "ns".into(), name: "test".into(), uid: "uid".into(), id: "1-abc".into() }
}

fn plan(groups: serde_json::Value) -> RunPlan {
    let spec = serde_json::from_value(json!({"broker": {"endpoints": ["mqtt://b"]}, "groups": groups})).unwrap();
    RunPlan::new(run(), spec)
}

proptest! {
    #[test]
    fn the_slices_are_a_partition_of_the_clients_and_differ_by_one_at_most(clients in 1u32..5000, shards in 1u32..60, start in 0u64..100) {
        let plan = plan(json!([{"name": "g", "clients": clients, "startNumber": start, "shards": {"count": shards}}]));
        let slices: Vec<Slice> = (0..plan.groups[0].shards).map(|index| plan.slice(0, index).unwrap()).collect();
        let mut numbers: Vec<u64> = slices.iter().flat_map(|slice| (0..slice.clients()).map(|j| slice.client_number(j))).collect();
        numbers.sort_unstable();
        prop_assert_eq!(numbers, (start..start + u64::from(clients)).collect::<Vec<_>>());
        let sizes: Vec<u32> = slices.iter().map(Slice::clients).collect();
        prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
    }

    #[test]
    fn the_same_plan_and_index_give_the_same_slice_after_a_journey_as_json(clients in 1u32..5000, shards in 1u32..60, index in 0u32..60) {
        let plan = plan(json!([{"name": "g", "clients": clients, "shards": {"count": shards}}]));
        let again: RunPlan = serde_json::from_str(&serde_json::to_string(&plan).unwrap()).unwrap();
        prop_assert_eq!(plan.slice(0, index), again.slice(0, index));
        prop_assert_eq!(&plan, &again);
    }

    #[test]
    fn the_rates_of_all_shards_sum_exactly_to_what_was_asked(clients in 1u32..400, shards in 1u32..20, num in 1u64..5000, den in 1u64..10, seconds in 1u64..40) {
        let schedule = Schedule::at_rate(Rate::new(num, den).unwrap(), clients);
        let window = seconds * den * 1_000_000_000;
        let plan = plan(json!([{"name": "g", "clients": clients, "shards": {"count": shards}}]));
        let sum: u64 = (0..plan.groups[0].shards)
            .map(|index| plan.slice(0, index).unwrap())
            .flat_map(|slice| (0..slice.clients()).map(move |j| slice.rank(j)))
            .map(|rank| schedule.client_slots_before(rank, window))
            .sum();
        prop_assert_eq!(sum, num * seconds);
        prop_assert_eq!(schedule.slots_before(window), num * seconds);
    }

    #[test]
    fn slots_are_evenly_interleaved_over_the_shards(clients in 2u32..400, shards in 2u32..20, num in 1u64..5000) {
        // In any window of the group's slots each shard has its share, within one slot for each pass over the clients.
        let plan = plan(json!([{"name": "g", "clients": clients, "shards": {"count": shards}}]));
        let shards = u64::from(plan.groups[0].shards);
        let schedule = Schedule::at_rate(Rate::new(num, 1).unwrap(), clients);
        for k in 0..u64::from(clients).min(200) {
            // Consecutive slots of one pass belong to consecutive shards.
            let slice = plan.slice(0, u32::try_from(k % shards).unwrap()).unwrap();
            let j = u32::try_from(k / shards).unwrap();
            prop_assert_eq!(slice.rank(j), k);
            prop_assert_eq!(schedule.due(slice.rank(j), 0), schedule.slot(k));
        }
        for k in 1..2000 {
            let gap = schedule.slot(k) - schedule.slot(k - 1);
            prop_assert!(gap.abs_diff(1_000_000_000 / num) <= 1);
        }
    }

    #[test]
    fn counting_slots_agrees_with_their_instants(clients in 1u32..50, interval in 1u64..3_000_000_000, rank in 0u64..50, elapsed in 0u64..20_000_000_000) {
        let schedule = Schedule::every(interval, clients);
        let rank = rank % u64::from(clients);
        let n = schedule.client_slots_before(rank, elapsed);
        prop_assert!(n == 0 || schedule.due(rank, n - 1) < elapsed);
        prop_assert!(schedule.due(rank, n) >= elapsed);
        let k = schedule.slots_before(elapsed);
        prop_assert!(k == 0 || schedule.slot(k - 1) < elapsed);
        prop_assert!(schedule.slot(k) >= elapsed);
    }

    #[test]
    fn child_names_are_short_dns_labels_and_differ_by_run_and_part(name in "[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", part in "[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?") {
        let run = RunIdentity { name, ..run() };
        let child = child_name(&run, &part);
        prop_assert!(child.len() <= 52, "{child}");
        prop_assert!(child.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'));
        prop_assert!(!child.starts_with('-') && !child.ends_with('-'));
        let next = RunIdentity { id: "2-abc".into(), ..run.clone() };
        prop_assert_ne!(child_name(&next, &part), child.clone());
        prop_assert_ne!(child_name(&run, &format!("{part}x")), child);
    }
}

#[test]
fn a_client_with_an_interval_publishes_exactly_once_an_interval() {
    let schedule = Schedule::every(1_000_000_000, 1000);
    assert_eq!(schedule.due(0, 0), 0);
    assert_eq!(schedule.due(250, 0), 250_000_000);
    assert_eq!(schedule.due(250, 7), 7_250_000_000);
    assert_eq!(schedule.slots_before(60_000_000_000), 60_000);
}

#[test]
fn a_hundred_thousand_clients_at_one_message_a_second_for_an_hour_are_planned_to_the_message() {
    let plan = plan(json!([{"name": "devices", "clients": 100_000, "connect": {"ratePerSecond": 2000},
        "publish": [{"name": "telemetry", "topic": "bench/%i", "qos": 1, "payload": {"size": "1Ki"}, "interval": "1s"}]}]));
    assert_eq!(plan.shards(), 10);
    assert_eq!(plan.messages_before(u64::MAX), 360_000_000);
    assert_eq!(plan.connects(0).slot(99_999), 49_999_500_000);
}

#[test]
fn groups_follow_each_other_in_the_rank_over_all_groups() {
    let plan = plan(json!([{"name": "a", "clients": 3}, {"name": "b", "clients": 2, "startNumber": 100}]));
    let slice = plan.slice(1, 0).unwrap();
    assert_eq!((slice.global_rank(1), slice.client_number(1)), (4, 101));
    assert_eq!(plan.clients(), 5);
    assert_eq!(plan.slice(1, 1), None);
    assert_eq!(plan.slice(2, 0), None);
}
