//! Shares of a whole: `100%`, `99.5%`.

use std::{borrow::Cow, fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::{ValueError, decimal};

/// A share from 0 % to 100 %.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Percent {
    text: String,
    /// Millionths of the whole.
    millionths: u64,
}

impl Percent {
    /// The smallest count that is at least this share of `whole`.
    pub fn of(&self, whole: u64) -> u64 {
        let product = u128::from(whole) * u128::from(self.millionths);
        u64::try_from(product.div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }

    /// The share as a number from 0 to 1.
    pub fn fraction(&self) -> f64 {
        self.millionths as f64 / 1e6
    }
}

impl FromStr for Percent {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let wrong = || ValueError(format!("\"{text}\" is not a share: write for example 100% or 99.5%"));
        let (digits, places) = text.strip_suffix('%').and_then(decimal).ok_or_else(wrong)?;
        if places > 4 {
            return Err(wrong());
        }
        let millionths = digits.checked_mul(10u64.pow(4 - places)).ok_or_else(wrong)?;
        if millionths > 1_000_000 {
            return Err(wrong());
        }
        Ok(Self { text: text.to_owned(), millionths })
    }
}

impl TryFrom<String> for Percent {
    type Error = ValueError;

    fn try_from(text: String) -> Result<Self, ValueError> {
        text.parse()
    }
}

impl From<Percent> for String {
    fn from(percent: Percent) -> Self {
        percent.text
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl JsonSchema for Percent {
    fn schema_name() -> Cow<'static, str> {
        "Percent".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "maxLength": 9, "pattern": r"^(100(\.0{1,4})?|[0-9]{1,2}(\.[0-9]{1,4})?)%$"})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_a_count_is_rounded_up() {
        let share = |text: &str, whole| text.parse::<Percent>().unwrap().of(whole);
        assert_eq!(share("100%", 7), 7);
        assert_eq!(share("99%", 1000), 990);
        assert_eq!(share("99.5%", 1000), 995);
        assert_eq!(share("50%", 3), 2);
        assert_eq!(share("0%", 3), 0);
        assert!("101%".parse::<Percent>().is_err());
        assert!("50".parse::<Percent>().is_err());
    }
}
