//! The operator's own metrics. Labels are bounded: phases, verdicts and static names, never the name of an object.

use std::time::Duration;

use mqtt_loadtest_crds::status::{Phase, Verdict};
use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PhaseLabel {
    phase: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct VerdictLabel {
    verdict: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ErrorLabel {
    error: &'static str,
}

/// The operator's own metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    reconcile_duration: Histogram,
    reconcile_errors: Family<ErrorLabel, Counter>,
    scrape_duration: Histogram,
    scrape_failures: Counter,
    status_writes: Counter,
    runs: Family<PhaseLabel, Gauge>,
    runs_finished: Family<VerdictLabel, Counter>,
    waiting: Gauge,
    leader: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let duration = || Histogram::new(exponential_buckets(0.001, 2.0, 16));
        let mut metrics = Self {
            registry: Registry::with_prefix("mqtt_loadtest_operator"),
            reconcile_duration: duration(),
            reconcile_errors: Family::default(),
            scrape_duration: duration(),
            scrape_failures: Counter::default(),
            status_writes: Counter::default(),
            runs: Family::default(),
            runs_finished: Family::default(),
            waiting: Gauge::default(),
            leader: Gauge::default(),
        };
        let registry = &mut metrics.registry;
        registry.register_with_unit(
            "reconcile_duration",
            "Time of a reconcile",
            Unit::Seconds,
            metrics.reconcile_duration.clone(),
        );
        registry.register("reconcile_errors", "Reconciles that failed, by error", metrics.reconcile_errors.clone());
        registry.register_with_unit(
            "scrape_duration",
            "Time of a round over all workers of a run",
            Unit::Seconds,
            metrics.scrape_duration.clone(),
        );
        registry.register("scrape_failures", "Workers that did not answer a scrape", metrics.scrape_failures.clone());
        registry.register("status_writes", "Writes of a status", metrics.status_writes.clone());
        registry.register("runs", "MqttLoadTests by phase", metrics.runs.clone());
        registry.register("runs_finished", "Runs that ended, by verdict", metrics.runs_finished.clone());
        registry.register("runs_waiting", "Runs held back by the limit of concurrent runs", metrics.waiting.clone());
        registry.register("leader", "1 while this process leads", metrics.leader.clone());
        metrics
    }
}

impl Metrics {
    /// A reconcile ended; `error` is the kind of its error.
    pub fn reconciled(&self, took: Duration, error: Option<&'static str>) {
        self.reconcile_duration.observe(took.as_secs_f64());
        if let Some(error) = error {
            self.reconcile_errors.get_or_create(&ErrorLabel { error }).inc();
        }
    }

    /// A round over the workers of a run ended.
    pub fn scraped(&self, took: Duration, failures: usize) {
        self.scrape_duration.observe(took.as_secs_f64());
        self.scrape_failures.inc_by(u64::try_from(failures).unwrap_or(u64::MAX));
    }

    /// A status was written.
    pub fn status_written(&self) {
        self.status_writes.inc();
    }

    /// A run ended.
    pub fn finished(&self, verdict: Verdict) {
        self.runs_finished.get_or_create(&VerdictLabel { verdict: format!("{verdict:?}") }).inc();
    }

    /// Whether this process leads.
    pub fn leads(&self, leads: bool) {
        self.leader.set(i64::from(leads));
    }

    /// Sets the numbers of objects by phase, and of those that are held back.
    pub fn set_runs(&self, phases: impl Iterator<Item = Phase>, waiting: usize) {
        self.runs.clear();
        for phase in phases {
            self.runs.get_or_create(&PhaseLabel { phase: format!("{phase:?}") }).inc();
        }
        self.waiting.set(i64::try_from(waiting).unwrap_or(i64::MAX));
    }

    /// All metrics in the text exposition.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = text::encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_runs_follow_their_phases() {
        let metrics = Metrics::default();
        metrics.set_runs([Phase::Running, Phase::Running, Phase::Pending].into_iter(), 1);
        metrics.set_runs([Phase::Running].into_iter(), 0);
        metrics.reconciled(Duration::from_millis(3), Some("timeout"));
        let text = metrics.encode();
        assert!(text.contains("mqtt_loadtest_operator_runs{phase=\"Running\"} 1\n"), "{text}");
        assert!(!text.contains("Pending"), "{text}");
        assert!(text.contains("mqtt_loadtest_operator_reconcile_errors_total{error=\"timeout\"} 1\n"), "{text}");
        assert!(text.contains("mqtt_loadtest_operator_reconcile_duration_seconds_count 1\n"), "{text}");
    }
}
