//! The identity of what a spec asks for. A run starts anew when it changes, and only then: what does not alter the load
//! (suspend, stopRun, the report's TTL) is left out, and so is every value equal to its default, because a new version of
//! the CRD that adds a default must not fire a load test.

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::{
    MqttLoadTestSpec,
    crd::spec_schema,
    value::{DURATION_PATTERN, TestDuration},
};

/// Hash of a spec: 16 hexadecimal digits.
pub fn spec_hash(spec: &MqttLoadTestSpec) -> String {
    let mut value = serde_json::to_value(spec).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        for field in ["suspend", "stopRun", "reportTTLSeconds"] {
            fields.remove(field);
        }
    }
    // serde_json's maps are sorted by key, so the text is canonical.
    let text = without_defaults(&value, spec_schema()).unwrap_or_default().to_string();
    hex(&Sha256::digest(text.as_bytes())[..8])
}

/// Lower-case hexadecimal digits of some bytes.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The value without everything that equals its default; None when nothing is left.
fn without_defaults(value: &Value, schema: &Value) -> Option<Value> {
    let value = &canonical(value, schema);
    if schema.get("default").is_some_and(|default| canonical(default, schema) == *value) || value.is_null() {
        return None;
    }
    match value {
        Value::Object(fields) => {
            let properties = schema.get("properties");
            let kept: Map<String, Value> = fields
                .iter()
                .filter_map(|(name, field)| {
                    let schema = properties.and_then(|p| p.get(name)).or_else(|| schema.get("additionalProperties"));
                    without_defaults(field, schema.unwrap_or(&Value::Null)).map(|field| (name.clone(), field))
                })
                .collect();
            (!kept.is_empty()).then_some(Value::Object(kept))
        }
        Value::Array(items) => {
            let schema = schema.get("items").unwrap_or(&Value::Null);
            let kept: Vec<Value> = items.iter().map(|item| without_defaults(item, schema).unwrap_or(Value::Null)).collect();
            (!kept.is_empty()).then_some(Value::Array(kept))
        }
        scalar => Some(scalar.clone()),
    }
}

/// A duration as its nanoseconds, so that `60m` and `1h` are the same; anything else as it is.
fn canonical(value: &Value, schema: &Value) -> Value {
    let is_duration = schema.get("pattern").and_then(Value::as_str) == Some(DURATION_PATTERN);
    match value.as_str().filter(|_| is_duration).and_then(|text| text.parse::<TestDuration>().ok()) {
        Some(duration) => Value::from(duration.as_nanos()),
        None => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(json: Value) -> MqttLoadTestSpec {
        serde_json::from_value(json).unwrap()
    }

    fn smallest() -> Value {
        json!({"broker": {"endpoints": ["mqtt://b"]}, "groups": [{"name": "g", "clients": 2}]})
    }

    #[test]
    fn a_default_written_out_does_not_change_the_hash() {
        let mut written = smallest();
        written["runId"] = json!("1");
        written["load"] = json!({"duration": "60m", "barrier": {"settle": "5s"}});
        written["groups"][0]["cleanStart"] = json!(true);
        written["groups"][0]["connect"] = json!({"timeout": "10s"});
        assert_eq!(spec_hash(&spec(written)), spec_hash(&spec(smallest())));
    }

    #[test]
    fn suspend_stop_and_ttl_do_not_change_the_hash_but_the_run_id_does() {
        let mut edited = smallest();
        edited["suspend"] = json!(true);
        edited["stopRun"] = json!("1-abc");
        edited["reportTTLSeconds"] = json!(5);
        assert_eq!(spec_hash(&spec(edited)), spec_hash(&spec(smallest())));
        let mut again = smallest();
        again["runId"] = json!("2");
        assert_ne!(spec_hash(&spec(again)), spec_hash(&spec(smallest())));
        let mut more = smallest();
        more["groups"][0]["clients"] = json!(3);
        assert_ne!(spec_hash(&spec(more)), spec_hash(&spec(smallest())));
    }
}
