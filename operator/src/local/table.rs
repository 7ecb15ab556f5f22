//! The result of a run as a table for people.

use std::fmt::Write as _;

use mqtt_loadtest_crds::{MqttLoadTestStatus, status::GroupStatus};

use super::{progress::verdict_name, verdict};

/// The whole result as text.
pub fn render(name: &str, status: &MqttLoadTestStatus) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{name}: {} ({})", verdict_name(verdict(status)), status.reason);
    let _ = writeln!(out, "  {}\n", status.message);
    let rows: Vec<[String; 9]> =
        status.groups.iter().map(group).chain((status.groups.len() > 1).then(|| total(status))).collect();
    table(&mut out, &["GROUP", "CLIENTS", "SENT", "ACKED", "SKIPPED", "RECEIVED", "DUPLICATES", "RECONNECTS", "COVERAGE"], &rows);
    let rates = &status.rates;
    let _ = writeln!(
        out,
        "\n  sent {}/s, acknowledged {}/s, received {}/s over the run{}",
        rate(&rates.sent),
        rate(&rates.acked),
        rate(&rates.received),
        if status.messages.lost.is_empty() { String::new() } else { format!("; {} deliveries lost", status.messages.lost) }
    );
    if !status.latency.is_empty() {
        out.push('\n');
        let rows: Vec<[String; 8]> = status
            .latency
            .iter()
            .map(|(stage, l)| {
                let text = |value: &String| value.clone();
                [
                    stage.clone(),
                    l.count.to_string(),
                    text(&l.p50),
                    text(&l.p90),
                    text(&l.p95),
                    text(&l.p99),
                    text(&l.p999),
                    text(&l.max),
                ]
            })
            .collect();
        table(&mut out, &["LATENCY", "COUNT", "P50", "P90", "P95", "P99", "P99.9", "MAX"], &rows);
    }
    failures(&mut out, status);
    if let Some(generator) = status.generator.as_ref().filter(|generator| generator.limited) {
        let _ = writeln!(out, "\n  The load generator was at its limit: {}.", generator.reasons.join("; "));
    }
    out
}

fn failures(out: &mut String, status: &MqttLoadTestStatus) {
    let failures = &status.clients.failures;
    if failures.is_empty() {
        return;
    }
    let list: Vec<String> = failures.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    let _ = writeln!(out, "\n  Failed connects and lost connections: {}", list.join(", "));
}

fn rate(rate: &str) -> &str {
    if rate.is_empty() { "0" } else { rate }
}

fn group(group: &GroupStatus) -> [String; 9] {
    row(&group.name, &group.clients, &group.messages, &group.shards.coverage_percent)
}

fn total(status: &MqttLoadTestStatus) -> [String; 9] {
    row("all", &status.clients, &status.messages, &status.shards.coverage_percent)
}

fn row(
    name: &str,
    clients: &mqtt_loadtest_crds::status::ClientCounts,
    messages: &mqtt_loadtest_crds::status::MessageCounts,
    coverage: &str,
) -> [String; 9] {
    [
        name.to_owned(),
        format!("{}/{}", clients.connected, clients.desired),
        messages.sent.to_string(),
        messages.acked.to_string(),
        messages.skipped.values().sum::<i64>().to_string(),
        messages.received.to_string(),
        messages.duplicates.to_string(),
        clients.reconnects.to_string(),
        format!("{coverage} %"),
    ]
}

/// Columns as wide as they must be; the first to the left, numbers to the right.
fn table<const N: usize>(out: &mut String, head: &[&str; N], rows: &[[String; N]]) {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).chain([head[column].len()]).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut line = |cells: Vec<&str>| {
        let mut text = String::from(" ");
        for (column, cell) in cells.iter().enumerate() {
            let width = widths[column];
            let _ = if column == 0 { write!(text, " {cell:<width$}") } else { write!(text, "  {cell:>width$}") };
        }
        let _ = writeln!(out, "{}", text.trim_end());
    };
    line(head.to_vec());
    rows.iter().for_each(|row| line(row.iter().map(String::as_str).collect()));
}
