//! Rates per second, exact: `2000`, `"0.5"`, `"1/3600"` (once an hour).

use std::{borrow::Cow, fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{ValueError, decimal};

/// Highest rate of one group, per second.
const HIGHEST: u64 = 100_000_000;

/// An exact positive fraction of events per second, in lowest terms.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    num: u64,
    den: u64,
}

impl Rate {
    /// `num` events every `den` seconds. None when either is zero.
    pub fn new(num: u64, den: u64) -> Option<Self> {
        if num == 0 || den == 0 {
            return None;
        }
        let divisor = gcd(num, den);
        Some(Self { num: num / divisor, den: den / divisor })
    }

    /// Events per `den` seconds.
    pub fn num(self) -> u64 {
        self.num
    }

    /// Seconds in which `num` events happen.
    pub fn den(self) -> u64 {
        self.den
    }

    /// Events per second, for display and estimates only.
    pub fn per_second(self) -> f64 {
        self.num as f64 / self.den as f64
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl FromStr for Rate {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let wrong = || {
            ValueError(format!(
                "\"{text}\" is not a rate per second: write a number above 0, for example 2000, \"0.5\" or \"1/3600\""
            ))
        };
        let (num, den) = text.split_once('/').unwrap_or((text, "1"));
        let (num, places) = decimal(num).ok_or_else(wrong)?;
        let den: u64 =
            if den.bytes().all(|b| b.is_ascii_digit()) { den.parse().map_err(|_| wrong())? } else { return Err(wrong()) };
        let den = 10u64.checked_pow(places).and_then(|scale| den.checked_mul(scale)).ok_or_else(wrong)?;
        let rate = Self::new(num, den).ok_or_else(wrong)?;
        if u128::from(rate.num) > u128::from(HIGHEST) * u128::from(rate.den) {
            return Err(ValueError(format!("\"{text}\" is more than {HIGHEST} a second")));
        }
        Ok(rate)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.den == 1 { write!(f, "{}", self.num) } else { write!(f, "{}/{}", self.num, self.den) }
    }
}

impl fmt::Debug for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}/s")
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.den == 1 { serializer.serialize_u64(self.num) } else { serializer.collect_str(self) }
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Whole(u64),
            Float(f64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Whole(number) => number.to_string().parse(),
            // The shortest decimal form of the float is the text that was written.
            Written::Float(number) => number.to_string().parse(),
            Written::Text(text) => text.parse(),
        }
        .map_err(de::Error::custom)
    }
}

impl JsonSchema for Rate {
    fn schema_name() -> Cow<'static, str> {
        "Rate".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "minimum": 1,
            "maximum": HIGHEST,
            "maxLength": 40,
            // Above zero, below 100,000,000 (or exactly that), and with no more digits than are read exactly.
            "pattern": r"^([1-9][0-9]{0,7}(\.[0-9]{1,6})?|0\.0{0,5}[1-9][0-9]{0,5}|100000000)(/[1-9][0-9]{0,6})?$"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_exact_fractions_in_lowest_terms() {
        for (text, num, den) in [("2000", 2000, 1), ("0.5", 1, 2), ("1/3600", 1, 3600), ("4/2", 2, 1), ("0.1/6", 1, 60)] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!((rate.num(), rate.den()), (num, den), "{text}");
        }
    }

    #[test]
    fn numbers_and_strings_are_both_accepted_in_json() {
        for json in ["2", "\"2\"", "2.0", "\"4/2\""] {
            assert_eq!(serde_json::from_str::<Rate>(json).unwrap(), Rate::new(2, 1).unwrap(), "{json}");
        }
    }

    #[test]
    fn what_the_schema_lets_pass_can_be_read() {
        for text in ["99999999.999999/9999999", "0.00000123456/9999999", "100000000", "0.50"] {
            assert!(text.parse::<Rate>().is_ok(), "{text}");
        }
    }

    #[test]
    fn zero_negative_and_text_are_refused() {
        for text in ["0", "-1", "1/0", "fast", "", "1/", "/2", "1.5.2", "1e3", "999999999"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }
}
