//! The table for people and `bench.json` for machines.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// What every name of this benchmark begins with.
const PREFIX: &str = "operator/";

/// One figure and what it must hold: to be at most its bar.
#[derive(Clone, Debug)]
pub struct Row {
    /// Name, without the prefix.
    pub name: &'static str,
    /// The figure.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// The most it may be, if it is judged.
    pub bar: Option<f64>,
    /// Whether it is so.
    pub holds: bool,
}

impl Row {
    /// A figure that is judged, or only told.
    pub fn new(name: &'static str, value: f64, unit: &'static str, bar: Option<f64>) -> Self {
        Self { name, value, unit, bar, holds: bar.is_none_or(|bar| value <= bar) }
    }
}

/// The table on standard output.
pub fn print(rows: &[Row]) {
    println!("{:<44} {:>12} {:>10} {:>6}  unit", "name", "value", "bar", "holds");
    for row in rows {
        let bar = row.bar.map_or_else(|| "-".to_owned(), |bar| bar.to_string());
        let holds = match row.bar {
            None => "-",
            Some(_) if row.holds => "yes",
            Some(_) => "NO",
        };
        println!("{:<44} {:>12.4} {:>10} {:>6}  {}", format!("{PREFIX}{}", row.name), row.value, bar, holds, row.unit);
    }
}

/// Puts the rows into a list of results, in place of those of an earlier run; the rows of other benchmarks stay.
pub fn add(file: &Path, rows: &[Row]) -> Result<()> {
    let mut list: Vec<Value> = match fs::read_to_string(file) {
        Ok(text) => serde_json::from_str(&text)?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    list.retain(|row| !row["name"].as_str().is_some_and(|name| name.starts_with(PREFIX)));
    list.extend(rows.iter().map(|row| {
        json!({
            "name": format!("{PREFIX}{}", row.name), "value": row.value, "unit": row.unit, "floor": null, "ratio": null,
            "bar": row.bar, "holds": row.bar.map(|_| row.holds)
        })
    }));
    Ok(fs::write(file, serde_json::to_string_pretty(&list)?)?)
}

/// The target directory that this program was built into.
pub fn target_directory() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let profile = program.ancestors().find(|dir| dir.ends_with("release") || dir.ends_with("debug"));
    Ok(profile.and_then(Path::parent).with_context(|| format!("{} is in no target directory", program.display()))?.into())
}

/// Median; the mean of the two in the middle for an even number.
pub fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n => (values[(n - 1) / 2] + values[n / 2]) / 2.0,
    }
}
