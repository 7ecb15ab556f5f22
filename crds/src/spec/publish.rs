//! What clients publish and subscribe to.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::value::{ByteSize, Rate, TestDuration};

/// A stream of messages that each client of the group publishes.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "has(self.interval) != has(self.ratePerSecond)", "message": "give exactly one of interval (per client) and ratePerSecond (of the whole group)"}
]))]
pub struct Publish {
    /// Name of the entry, unique within the group.
    #[schemars(length(min = 1, max = 40), regex(pattern = "^[a-zA-Z0-9]([-_a-zA-Z0-9]*[a-zA-Z0-9])?$"))]
    pub name: String,

    /// Topic name; placeholders: %i, %c, %u, %s (message sequence), %{group}, %{shard}.
    #[schemars(
        length(min = 1, max = 1024),
        extend("x-kubernetes-validations" = [
            {"rule": "self.matches('^([^%]|%%|%[icus]|%\\\\{(number|clientId|username|sequence|group|shard)\\\\})*$')", "message": "unknown placeholder: a topic knows %i, %c, %u, %s, %{number}, %{clientId}, %{username}, %{sequence}, %{group}, %{shard} and %%"},
            {"rule": "!self.contains('#') && !self.contains('+')", "message": "a topic to publish to has no wildcards (MQTT 5.0 section 4.7.1)"}
        ])
    )]
    pub topic: String,

    /// Quality of service (MQTT 5.0 section 4.3).
    #[serde(default)]
    #[schemars(range(min = 0, max = 2))]
    pub qos: i32,

    /// Whether the broker keeps the message as the topic's retained message.
    #[serde(default)]
    pub retain: bool,

    /// The content of each message.
    #[serde(default)]
    pub payload: Payload,

    /// Time between two messages of one client; the clients' messages are evenly spread over it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<TestDuration>,

    /// Messages per second of the whole group, evenly spread over its clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_per_second: Option<Rate>,

    /// How late a message may be sent; one that is later still is skipped and counted.
    #[serde(default = "default_max_behind")]
    pub max_behind: TestDuration,
}

fn default_max_behind() -> TestDuration {
    TestDuration::seconds(1)
}

/// Content of a message: so many bytes, or a text. Nothing given means 1Ki.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "!(has(self.size) && has(self.text))", "message": "give size or text, not both"}
]))]
pub struct Payload {
    /// Size in bytes; the content is random printable text from a seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<ByteSize>,

    /// The text itself; placeholders as in topics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16_384))]
    pub text: Option<String>,
}

/// A subscription that each client of the group makes.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Subscribe {
    /// Name of the entry, unique within the group.
    #[schemars(length(min = 1, max = 40), regex(pattern = "^[a-zA-Z0-9]([-_a-zA-Z0-9]*[a-zA-Z0-9])?$"))]
    pub name: String,

    /// Topic filter; wildcards, shared subscriptions ($share/NAME/FILTER) and the placeholders %i, %c, %u, %{group}, %{shard}.
    #[schemars(
        length(min = 1, max = 1024),
        extend("x-kubernetes-validations" = [
            {"rule": "self.matches('^([^%]|%%|%[icu]|%\\\\{(number|clientId|username|group|shard)\\\\})*$')", "message": "unknown placeholder: a filter knows %i, %c, %u, %{number}, %{clientId}, %{username}, %{group}, %{shard} and %%"},
            {"rule": "!self.startsWith('$share/') || self.matches('^[$]share/[^/+#]+/.+$')", "message": "a shared subscription is written $share/NAME/FILTER (MQTT 5.0 section 4.8.2)"}
        ])
    )]
    pub filter: String,

    /// Highest quality of service at which messages are to be received; a lower one granted counts as not subscribed.
    #[serde(default)]
    #[schemars(range(min = 0, max = 2))]
    pub qos: i32,
}
