//! Medians, ratios and bars; the table for people and `bench.json` for machines.
//!
//! A ratio is the median of the ratios of the rounds (pairs of runs that stood next to each other), not the ratio of
//! two medians, so that noise which both runs of a pair met cancels.

use serde::Serialize;

use crate::suite::Samples;
use crate::workload::{EVENT_LOOP_BAR, Measure, Workload};

/// One line of `bench.json`.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// `workload/contender`, or `workload/contender-vs-reference` where the reference is not the floor.
    pub name: String,
    /// Median figure of the contender.
    pub value: f64,
    /// Unit of `value` and `floor`.
    pub unit: String,
    /// Median figure of the reference: the floor, if the name does not say otherwise.
    pub floor: Option<f64>,
    /// Median over the rounds of contender / reference.
    pub ratio: Option<f64>,
    /// What the worker must hold: a ratio for CPU, the figure itself for memory (at most) and rates (at least).
    pub bar: Option<f64>,
    /// Whether it does.
    pub holds: Option<bool>,
    /// Median share of the asked rate that was achieved.
    #[serde(skip)]
    pub achieved: f64,
}

/// Rows of one workload: each contender against the floor, and the judged one also against the event loop.
pub fn rows(workload: &Workload, contenders: &[(&str, &Samples)], judged: &str) -> Vec<Row> {
    let of = |name: &str| contenders.iter().find(|(n, _)| *n == name).map(|(_, samples)| *samples);
    let mut rows = Vec::new();
    for (name, samples) in contenders {
        let bar = |ratio: Option<f64>, value: f64| match workload.measure {
            Measure::CpuPerMessage { bar } => (Some(bar), ratio.map(|r| r <= bar)),
            Measure::RatePerCore { bar } => (Some(bar), Some(value >= bar)),
            Measure::Memory { bar } => (Some(bar), Some(value <= bar)),
        };
        let row = |name: String, reference: Option<&Samples>| row(workload, name, samples, reference);
        if let Some(mut row) = row(format!("{}/{name}", workload.name), of("floor")) {
            if *name == judged {
                (row.bar, row.holds) = bar(row.ratio, row.value);
            }
            rows.push(row);
        }
        if *name == judged
            && let Some(reference) = of("eventloop")
            && let Some(mut row) = row(format!("{}/{name}-vs-eventloop", workload.name), Some(reference))
        {
            row.bar = Some(EVENT_LOOP_BAR);
            row.holds = row.ratio.map(|ratio| match workload.measure {
                Measure::RatePerCore { .. } => ratio >= EVENT_LOOP_BAR,
                _ => ratio <= EVENT_LOOP_BAR,
            });
            rows.push(row);
        }
    }
    rows
}

fn row(workload: &Workload, name: String, samples: &Samples, reference: Option<&Samples>) -> Option<Row> {
    let value = median(samples.iter().flatten().map(|s| s.value))?;
    let pairs = reference.into_iter().flat_map(|reference| samples.iter().zip(reference));
    let ratio = median(pairs.filter_map(|(a, b)| Some((*a)?.value / (*b)?.value)));
    Some(Row {
        name,
        value,
        unit: workload.measure.unit().to_owned(),
        floor: reference.and_then(|r| median(r.iter().flatten().map(|s| s.value))),
        ratio,
        bar: None,
        holds: None,
        achieved: median(samples.iter().flatten().map(|s| s.achieved))?,
    })
}

/// Median; the mean of the two in the middle for an even number; `None` of nothing.
pub fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let n = values.len();
    if n == 0 {
        return None;
    }
    Some((values[(n - 1) / 2] + values[n / 2]) / 2.0)
}

/// Share of the asked rate below which a row says more about the machine than about the contender.
const ACHIEVED: f64 = 0.95;

/// The table on standard output.
pub fn print(rows: &[Row]) {
    println!(
        "{:<44} {:>12} {:>12} {:>7} {:>10} {:>6} {:>9}  unit",
        "name", "value", "reference", "ratio", "bar", "holds", "achieved"
    );
    for row in rows {
        let number = |v: Option<f64>| v.map_or_else(|| "-".to_owned(), figure);
        let holds = row.holds.map_or("-", |h| if h { "yes" } else { "NO" });
        println!(
            "{:<44} {:>12} {:>12} {:>7} {:>10} {:>6} {:>8.1}%  {}",
            row.name,
            figure(row.value),
            number(row.floor),
            number(row.ratio),
            number(row.bar),
            holds,
            row.achieved * 100.0,
            row.unit
        );
    }
    if rows.iter().any(|row| row.achieved < ACHIEVED) {
        println!("Rates below {:.0} %: the machine was too busy, those ratios mean little.", ACHIEVED * 100.0);
    }
}

fn figure(value: f64) -> String {
    if value.abs() >= 1000.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}
