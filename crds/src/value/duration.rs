//! Durations as Kubernetes users write them: `500ms`, `90s`, `1h30m`. Days and negative values do not exist here.

use std::{borrow::Cow, fmt, str::FromStr, time::Duration};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::{ValueError, decimal};

/// A non-negative duration, at most 365 days, in whole nanoseconds.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TestDuration {
    text: String,
    value: Duration,
}

/// Pattern of a duration in the schema. Digits are bounded, so that whatever it lets pass can be read.
pub(crate) const PATTERN: &str = r"^([0-9]{1,11}(\.[0-9]{1,6})?(ms|s|m|h))+$";

const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

impl TestDuration {
    /// The duration as a number.
    pub fn get(&self) -> Duration {
        self.value
    }

    /// Whole nanoseconds; fits easily, as a duration is at most 365 days.
    pub fn as_nanos(&self) -> u64 {
        u64::try_from(self.value.as_nanos()).unwrap_or(u64::MAX)
    }

    /// A duration of whole seconds, written in the largest unit that fits.
    pub fn seconds(seconds: u64) -> Self {
        let text = match seconds {
            1.. if seconds.is_multiple_of(3600) => format!("{}h", seconds / 3600),
            1.. if seconds.is_multiple_of(60) => format!("{}m", seconds / 60),
            _ => format!("{seconds}s"),
        };
        Self { text, value: Duration::from_secs(seconds) }
    }
}

impl FromStr for TestDuration {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let wrong = || ValueError(format!("\"{text}\" is not a duration: write for example 500ms, 30s, 10m or 1h30m"));
        let mut rest = text;
        let mut nanos: u128 = 0;
        while !rest.is_empty() {
            let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
            let (number, after) = rest.split_at(end);
            let (unit, unit_nanos): (&str, u128) =
                [("ms", 1_000_000), ("s", 1_000_000_000), ("m", 60_000_000_000), ("h", 3_600_000_000_000)]
                    .into_iter()
                    .find(|(unit, _)| after.starts_with(unit))
                    .ok_or_else(wrong)?;
            let (digits, places) = decimal(number).ok_or_else(wrong)?;
            nanos += u128::from(digits) * unit_nanos / 10u128.pow(places);
            rest = &after[unit.len()..];
        }
        if text.is_empty() {
            return Err(wrong());
        }
        if nanos > LONGEST.as_nanos() {
            return Err(ValueError(format!("\"{text}\" is longer than 365 days")));
        }
        let value = Duration::from_nanos(u64::try_from(nanos).map_err(|_| wrong())?);
        Ok(Self { text: text.to_owned(), value })
    }
}

impl TryFrom<String> for TestDuration {
    type Error = ValueError;

    fn try_from(text: String) -> Result<Self, ValueError> {
        text.parse()
    }
}

impl From<TestDuration> for String {
    fn from(duration: TestDuration) -> Self {
        duration.text
    }
}

impl fmt::Display for TestDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for TestDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl JsonSchema for TestDuration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        // `format: duration` would admit `1d` and `-1s`, which this type refuses.
        json_schema!({
            "type": "string",
            "maxLength": 32,
            "pattern": PATTERN,
            "x-kubernetes-validations": [
                {"rule": "duration(self) <= duration('8760h')", "message": "a duration is 365 days (8760h) at most"}
            ]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_exactly() {
        for (text, nanos) in
            [("0s", 0), ("1.5ms", 1_500_000), ("1h30m", 5_400_000_000_000), ("3.3s", 3_300_000_000), ("500ms", 500_000_000)]
        {
            assert_eq!(text.parse::<TestDuration>().unwrap().as_nanos(), nanos, "{text}");
        }
    }

    #[test]
    fn what_the_schema_lets_pass_can_be_read_up_to_365_days() {
        for text in ["8760h", "99999999ms", "0.000001ms", "31535999.999999s", "1h1m1s1ms"] {
            assert!(text.parse::<TestDuration>().is_ok(), "{text}");
        }
        for text in ["8760h1ms", "99999999999h", "99999999999.999999h"] {
            assert_eq!(text.parse::<TestDuration>().unwrap_err().0, format!("\"{text}\" is longer than 365 days"));
        }
    }

    #[test]
    fn what_is_not_a_duration_is_refused_with_examples() {
        for text in ["", "1d", "-1s", "1", "s", "1.s", "1 s", ".5s", "99999999h"] {
            assert!(text.parse::<TestDuration>().is_err(), "{text}");
        }
    }
}
