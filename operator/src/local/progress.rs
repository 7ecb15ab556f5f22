//! How a local run tells how far it is: a line on standard error every second or so, and at each change of phase.

use jiff::{SignedDuration, Timestamp};
use mqtt_loadtest_crds::{
    MqttLoadTestStatus,
    status::{MessageCounts, Phase, Verdict},
};

use crate::run::{RunState, report::phase_name};

const INTERVAL: SignedDuration = SignedDuration::from_millis(900);

/// Remembers what was told.
#[derive(Debug)]
pub struct Progress {
    enabled: bool,
    last: Option<(Timestamp, Phase)>,
}

impl Progress {
    /// Tells nothing when it is not enabled.
    pub fn new(enabled: bool) -> Self {
        Self { enabled, last: None }
    }

    /// Tells how far the run is, if it is time.
    pub fn tell(&mut self, state: &RunState, status: &MqttLoadTestStatus, now: Timestamp) {
        let due = self.last.is_none_or(|(at, phase)| phase != state.phase || now.duration_since(at) >= INTERVAL);
        // The result is printed by who asked for the run.
        if !self.enabled || !due || state.ended() {
            return;
        }
        self.last = Some((now, state.phase));
        let since = state.started_at.map_or(0.0, |at| now.duration_since(at).as_secs_f64());
        eprintln!("{since:6.1}s  {:<10}  {}", phase_name(state.phase), line(state, status, now));
    }
}

/// What a line says beside time and phase.
fn line(state: &RunState, status: &MqttLoadTestStatus, now: Timestamp) -> String {
    let messages = &status.messages;
    match state.phase {
        Phase::Running => {
            let left = state.window_end().map_or(0, |end| end.duration_since(now).as_secs().max(0));
            let p99 = status.latency.get("publishAck").map(|ack| format!("  ack p99 {}", ack.p99)).unwrap_or_default();
            let rates = &status.rates;
            format!(
                "{} clients  {}{p99}  {left}s left",
                status.clients.connected,
                flows(messages, &format!("{}/s", or_zero(&rates.sent)), &format!("{}/s", or_zero(&rates.received)))
            )
        }
        Phase::Draining => format!("{}  {} unacknowledged", flows(messages, "", ""), messages.unacked),
        _ => status.message.clone(),
    }
}

fn flows(messages: &MessageCounts, sent_rate: &str, received_rate: &str) -> String {
    let mut text = format!("{} sent {sent_rate}  {} acked", messages.sent, messages.acked);
    if messages.expected_max > 0 || messages.received > 0 {
        text.push_str(&format!("  {} received {received_rate}", messages.received));
    }
    text
}

fn or_zero(rate: &str) -> &str {
    if rate.is_empty() { "0" } else { rate }
}

/// A verdict as a word.
pub const fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Passed => "Passed",
        Verdict::Failed => "Failed",
        Verdict::Inconclusive => "Inconclusive",
    }
}
