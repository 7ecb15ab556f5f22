//! TLS and WebSocket: what differs from a verified connection with the public roots, and the upgrade request.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::KeyReference;

/// How `mqtts://` and `wss://` connections are made. TLS 1.2 and 1.3 are offered.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Tls {
    /// The certificate authority that signed the broker's certificate, in PEM; several certificates may follow each other. By
    /// default the public roots that Mozilla trusts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_from: Option<CaSource>,

    /// The certificate with which every client identifies itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_certificate_from: Option<ClientCertificateSource>,

    /// The name that is asked for (server name indication) and that the broker's certificate must carry; the endpoint's
    /// host by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[-._:a-zA-Z0-9]+$"))]
    pub server_name: Option<String>,

    /// What of the broker's certificate is checked.
    #[serde(default)]
    pub verification: Verification,

    /// Whether a client that connects again resumes its TLS session.
    #[serde(default)]
    pub resumption: Resumption,
}

/// Certificates in a Secret or a ConfigMap of the test's namespace, mounted into the worker pods and never read by the operator.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "has(self.secret) != has(self.configMap)", "message": "give exactly one of secret and configMap"}
]))]
pub struct CaSource {
    /// A key of a Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<KeyReference>,
    /// A key of a ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<KeyReference>,
}

/// A certificate with its private key in a Secret of type `kubernetes.io/tls`, mounted into the worker pods and never read by
/// the operator.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ClientCertificateSource {
    /// The Secret, with the keys `tls.crt` and `tls.key`.
    pub secret: NameReference,
}

/// An object in the same namespace.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NameReference {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// What of the broker's certificate is checked.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verification {
    /// That a trusted authority signed it, that it is valid now, and that it is for the server's name.
    #[default]
    Full,
    /// That a trusted authority signed it and that it is valid now, for whatever name.
    CertificateOnly,
    /// Nothing: any server may answer.
    None,
}

/// Whether TLS sessions are resumed.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resumption {
    /// Every connection makes a full handshake, as the first connection of each device does.
    #[default]
    Disabled,
    /// Each client resumes its own session when it connects again; it costs about 4 KiB of memory a client.
    PerClient,
}

/// How `ws://` and `wss://` connections are made (MQTT 5.0 section 6, RFC 6455). The subprotocol is `mqtt`.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct WebSocket {
    /// Further headers of the upgrade request, for example Origin.
    #[serde(default)]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub headers: Vec<Header>,
}

/// A header of an HTTP request (RFC 9110 section 5).
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Header {
    /// Name.
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"))]
    pub name: String,
    /// Value.
    #[schemars(length(max = 2048), regex(pattern = r"^[\x20-\x7e]*$"))]
    pub value: String,
}
