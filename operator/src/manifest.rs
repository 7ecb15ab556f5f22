//! Reading manifests from files, for the commands that work without a cluster. What an API server would refuse is refused
//! here too: unknown fields, wrong types, and everything that [`mqtt_loadtest_crds::validate`] finds.

use std::{
    fs,
    io::{self, Read},
    path::Path,
};

use mqtt_loadtest_crds::{MqttLoadTest, crd::spec_schema, validate::validate};
use serde_json::Value;

/// An MqttLoadTest document of a manifest.
#[derive(Debug)]
pub struct Document {
    /// Its `metadata.name`.
    pub name: String,
    /// The object, or every problem as a sentence that begins with the field's path.
    pub result: Result<Box<MqttLoadTest>, Vec<String>>,
}

/// A file that cannot be read at all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such file, no permission...
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// Not YAML.
    #[error("is not YAML: {0}")]
    Yaml(#[from] serde_saphyr::Error),
}

/// The MqttLoadTest documents of a file; `-` is standard input. Documents of other kinds are passed over.
///
/// # Errors
/// When the file cannot be read or is not YAML.
pub fn read(path: &Path) -> Result<Vec<Document>, Error> {
    let text = if path == Path::new("-") {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text)?;
        text
    } else {
        fs::read_to_string(path)?
    };
    parse(&text)
}

/// The MqttLoadTest documents of a text.
///
/// # Errors
/// When the text is not YAML.
pub fn parse(text: &str) -> Result<Vec<Document>, Error> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text)?;
    Ok(documents.into_iter().filter(|document| document["kind"] == "MqttLoadTest").map(check).collect())
}

fn check(document: Value) -> Document {
    let name = document.pointer("/metadata/name").and_then(Value::as_str).unwrap_or("(no name)").to_owned();
    let mut problems = Vec::new();
    if document["apiVersion"] != "mqttloadtest.dev/v1alpha1" {
        problems.push("apiVersion: must be mqttloadtest.dev/v1alpha1".to_owned());
    }
    if document.pointer("/metadata/name").is_none() {
        problems.push("metadata.name: is missing".to_owned());
    }
    unknown_fields("spec", &document["spec"], spec_schema(), &mut problems);
    let result = match serde_json::from_value::<MqttLoadTest>(document) {
        Err(error) => {
            problems.push(format!("spec: {error}"));
            Err(problems)
        }
        Ok(test) => {
            problems.extend(validate(&test.spec).iter().map(ToString::to_string));
            if problems.is_empty() { Ok(Box::new(test)) } else { Err(problems) }
        }
    };
    Document { name, result }
}

/// Fields that the schema does not know: an API server prunes them silently, or refuses them with `--validate=strict`.
fn unknown_fields(path: &str, value: &Value, schema: &Value, problems: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            let Some(known) = schema.get("properties").and_then(Value::as_object) else { return };
            for (name, field) in fields {
                let path = format!("{path}.{name}");
                match known.get(name) {
                    Some(schema) => unknown_fields(&path, field, schema, problems),
                    None => problems.push(format!("{path}: there is no such field")),
                }
            }
        }
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                unknown_fields(&format!("{path}[{i}]"), item, schema.get("items").unwrap_or(&Value::Null), problems);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        parse(text).unwrap().remove(0).result.unwrap_err()
    }

    const HEAD: &str = "apiVersion: mqttloadtest.dev/v1alpha1\nkind: MqttLoadTest\nmetadata: {name: a}\n";

    #[test]
    fn other_kinds_are_passed_over() {
        let text = format!(
            "kind: ConfigMap\n---\n{HEAD}spec: {{broker: {{endpoints: ['mqtt://b']}}, groups: [{{name: g, clients: 1}}]}}\n"
        );
        let documents = parse(&text).unwrap();
        assert_eq!(documents.len(), 1);
        assert_eq!(documents[0].name, "a");
        assert!(documents[0].result.is_ok());
    }

    #[test]
    fn a_misspelt_field_is_named_with_its_path() {
        let text =
            format!("{HEAD}spec: {{broker: {{endpoints: ['mqtt://b']}}, groups: [{{name: g, clients: 1, keepalive: 5s}}]}}\n");
        assert_eq!(problems(&text), ["spec.groups[0].keepalive: there is no such field"]);
    }

    #[test]
    fn problems_of_the_spec_are_all_reported() {
        let text = format!("{HEAD}spec: {{broker: {{endpoints: ['x']}}, groups: [{{name: g, clients: 2, clientId: c}}]}}\n");
        let found = problems(&text);
        assert!(found.iter().any(|p| p.starts_with("spec.broker.endpoints[0]: ")), "{found:?}");
        assert!(found.iter().any(|p| p.starts_with("spec.groups[0].clientId: ")), "{found:?}");
    }
}
