//! Whether the load generator, not the broker, was the limit, by what the workers know of themselves.

use mqtt_loadtest_crds::plan::RunPlan;
use mqtt_loadtest_worker::accounting::{Counter, Gauge, Stage};

use super::{RunState, Totals};

/// Longest engine lag at the 99th percentile, in seconds, while no latency threshold asks for less.
const ENGINE_LAG: f64 = 0.005;
/// Busiest share of an event loop, in thousandths.
const BUSY: i64 = 850;

/// What was at its limit, each in words; empty when nothing was.
pub fn limits(plan: &RunPlan, state: &RunState, totals: &Totals) -> Vec<String> {
    let all = &totals.all;
    let mut found = Vec::new();
    if let Some(lag) = all.histogram(Stage::EngineLag).percentile(0.99).filter(|lag| *lag > ENGINE_LAG) {
        found.push(format!("1 % of the messages were taken up {:.1} ms late or later", lag * 1e3));
    }
    let turns = all.get(Counter::LoopTurns);
    let slow = all.get(Counter::LoopTurnsOver5Ms);
    if slow * 1000 > turns {
        found.push(format!("{slow} of {turns} turns of the event loops took over 5 ms"));
    }
    // Of the time that all pods together ran.
    let ran = u128::from(state.elapsed_ns(totals.at)) * u128::from(plan.shards());
    let throttled = all.get(Counter::CpuThrottled);
    if ran > 0 && u128::from(throttled) * 100 > ran {
        found.push(format!("the CPU limit stopped the workers for {:.1} s", throttled as f64 / 1e9));
    }
    let busy = all.gauge(Gauge::ThreadBusyMax);
    if busy > BUSY {
        found.push(format!("a worker thread was busy {}.{} % of the time", busy / 10, busy % 10));
    }
    for (counter, what) in [
        (Counter::ConnectNoFileDescriptors, "connects failed because a worker had no file descriptor left"),
        (Counter::ConnectNoSourcePorts, "connects failed because a worker had no source port left"),
    ] {
        let count = all.get(counter);
        if count > 0 {
            found.push(format!("{count} {what}"));
        }
    }
    found
}
