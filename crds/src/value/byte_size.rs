//! Sizes in bytes: `16`, `1Ki`, `64Ki`, `1Mi`; also `1k` and `1M` for powers of ten, as in Kubernetes quantities
//! (<https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/>).

use std::{borrow::Cow, fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::ValueError;

/// A number of bytes, written as a whole number or with a unit.
#[derive(Clone, PartialEq, Eq)]
pub struct ByteSize {
    text: String,
    bytes: u64,
}

impl ByteSize {
    /// The size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A size of so many bytes, written without a unit.
    pub fn from_bytes(bytes: u64) -> Self {
        Self { text: bytes.to_string(), bytes }
    }
}

impl FromStr for ByteSize {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let wrong = || ValueError(format!("\"{text}\" is not a size: write for example 16, 1Ki or 64Ki"));
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let unit = match &text[end..] {
            "" => 1,
            "k" => 1_000,
            "M" => 1_000_000,
            "Ki" => 1 << 10,
            "Mi" => 1 << 20,
            _ => return Err(wrong()),
        };
        let number: u64 = text[..end].parse().map_err(|_| wrong())?;
        let bytes = number.checked_mul(unit).ok_or_else(wrong)?;
        Ok(Self { text: text.to_owned(), bytes })
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.text.parse::<u64>() {
            Ok(number) => serializer.serialize_u64(number),
            Err(_) => serializer.serialize_str(&self.text),
        }
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(u64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Number(bytes) => Ok(Self::from_bytes(bytes)),
            Written::Text(text) => text.parse().map_err(de::Error::custom),
        }
    }
}

impl JsonSchema for ByteSize {
    fn schema_name() -> Cow<'static, str> {
        "ByteSize".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "minimum": 0,
            "maxLength": 12,
            "pattern": "^[0-9]{1,10}(k|M|Ki|Mi)?$"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_and_decimal_units() {
        for (text, bytes) in
            [("0", 0), ("16", 16), ("1Ki", 1024), ("2k", 2000), ("1Mi", 1_048_576), ("9999999999Mi", 9_999_999_999 << 20)]
        {
            assert_eq!(text.parse::<ByteSize>().unwrap().bytes(), bytes, "{text}");
        }
        for text in ["", "Ki", "-1", "1Gb", "1.5Ki", "99999999999999999999"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }
}
