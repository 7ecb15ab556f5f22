//! Where the clients connect to, and as whom.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Tls, WebSocket};

/// The MQTT platform under test.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "!has(self.tls) || self.endpoints.exists(e, e.startsWith('mqtts://') || e.startsWith('wss://'))", "message": "tls needs an endpoint that begins with mqtts:// or wss://", "fieldPath": ".tls"},
    {"rule": "!has(self.webSocket) || self.endpoints.exists(e, e.startsWith('ws://') || e.startsWith('wss://'))", "message": "webSocket needs an endpoint that begins with ws:// or wss://", "fieldPath": ".webSocket"}
]))]
pub struct Broker {
    /// Addresses: `mqtt://host:port` (TCP, port 1883 by default), `mqtts://host:port` (TLS, 8883), `ws://host:port/path`
    /// (WebSocket, port 80 and path /mqtt by default) and `wss://host:port/path` (WebSocket over TLS, 443). They may be mixed.
    /// Clients are spread evenly over them and over every address of a name.
    #[schemars(
        length(min = 1, max = 64),
        inner(length(max = 512), regex(pattern = r"^(mqtts?://[^/?#@\s]+/?|wss?://[^/?#@\s]+(/[^#\s]*)?)$")),
        extend("x-kubernetes-list-type" = "atomic")
    )]
    pub endpoints: Vec<String>,

    /// The protocol version of every client.
    #[serde(default)]
    pub protocol_version: ProtocolVersion,

    /// User name and password of the clients.
    #[serde(default)]
    pub credentials: Credentials,

    /// How TLS connections are made, where that differs from a verified connection with the public roots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,

    /// How WebSocket connections are made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub web_socket: Option<WebSocket>,
}

/// MQTT protocol versions.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProtocolVersion {
    /// MQTT 3.1.1 (OASIS, 2014).
    #[serde(rename = "3.1.1")]
    V311,
    /// MQTT 5.0 (OASIS, 2019).
    #[default]
    #[serde(rename = "5")]
    V5,
}

/// User name and password; none by default.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "!has(self.passwordFrom) || has(self.username)", "message": "passwordFrom needs a username: MQTT 3.1.1 allows no password without one", "fieldPath": ".passwordFrom"}
]))]
pub struct Credentials {
    /// The user name; placeholders: %i, %c, %{group}, %{shard}.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub username: Option<String>,

    /// The password, the same for every client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_from: Option<SecretSource>,
}

/// A value held in a Secret of the test's namespace. It is mounted into the worker pods and never read by the operator.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SecretSource {
    /// The Secret and the key within it.
    pub secret: KeyReference,
}

/// A key of a Secret in the same namespace.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct KeyReference {
    /// Name of the object.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Key within its data.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[-._a-zA-Z0-9]+$"))]
    pub key: String,
}
