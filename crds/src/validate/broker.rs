//! Broker addresses, credentials, TLS and WebSocket.

use super::{Found, unique};
use crate::{
    spec::{Broker, Endpoint, Tls, Verification, WebSocket},
    template::Placeholder,
};

/// Headers that the WebSocket upgrade itself sets (RFC 6455 section 4.1).
const OWN_HEADERS: [&str; 7] = [
    "host",
    "connection",
    "upgrade",
    "sec-websocket-key",
    "sec-websocket-version",
    "sec-websocket-protocol",
    "sec-websocket-extensions",
];

pub(super) fn check(broker: &Broker, found: &mut Found) {
    if broker.endpoints.is_empty() || broker.endpoints.len() > 64 {
        found.add("spec.broker.endpoints", "needs 1 to 64 endpoints, for example mqtt://broker:1883");
    }
    let mut schemes = Vec::new();
    for (i, endpoint) in broker.endpoints.iter().enumerate() {
        match Endpoint::parse(endpoint) {
            Ok(endpoint) => schemes.push(endpoint.scheme),
            Err(message) => found.add(format!("spec.broker.endpoints[{i}]"), message),
        }
    }
    let credentials = &broker.credentials;
    if let Some(username) = &credentials.username {
        found.template("spec.broker.credentials.username", username, &[Placeholder::Number, Placeholder::ClientId]);
    } else if credentials.password_from.is_some() {
        found.add(
            "spec.broker.credentials.passwordFrom",
            "needs a username: MQTT 3.1.1 allows no password without one (section 3.1.2.9)",
        );
    }
    if let Some(settings) = &broker.tls {
        if !schemes.iter().any(|scheme| scheme.is_tls()) {
            found.add("spec.broker.tls", "needs an endpoint that begins with mqtts:// or wss://");
        }
        tls(settings, found);
    }
    if let Some(settings) = &broker.web_socket {
        if !schemes.iter().any(|scheme| scheme.is_web_socket()) {
            found.add("spec.broker.webSocket", "needs an endpoint that begins with ws:// or wss://");
        }
        web_socket(settings, found);
    }
}

fn tls(settings: &Tls, found: &mut Found) {
    if let Some(ca) = &settings.ca_from {
        if ca.secret.is_some() == ca.config_map.is_some() {
            found.add("spec.broker.tls.caFrom", "give exactly one of secret and configMap");
        }
        if settings.verification == Verification::None {
            found.add("spec.broker.tls.caFrom", "has no use with verification: None, which checks no certificate");
        }
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
    if settings.server_name.as_ref().is_some_and(|name| name.is_empty() || name.len() > 253 || !name.chars().all(allowed)) {
        found.add("spec.broker.tls.serverName", "must be a host name or an IP address");
    }
}

fn web_socket(settings: &WebSocket, found: &mut Found) {
    unique("spec.broker.webSocket.headers", settings.headers.iter().map(|header| header.name.as_str()), found);
    if settings.headers.len() > 16 {
        found.add("spec.broker.webSocket.headers", "has more than 16 entries");
    }
    for (i, header) in settings.headers.iter().enumerate() {
        let path = format!("spec.broker.webSocket.headers[{i}]");
        let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        if header.name.is_empty() || !header.name.chars().all(token) {
            found.add(format!("{path}.name"), "is not the name of an HTTP header (RFC 9110 section 5.1)");
        } else if OWN_HEADERS.iter().any(|own| header.name.eq_ignore_ascii_case(own)) {
            found.add(format!("{path}.name"), format!("{} is set by the WebSocket upgrade itself", header.name));
        }
        if !header.value.chars().all(|c| (' '..='~').contains(&c)) {
            found.add(format!("{path}.value"), "must be printable ASCII characters");
        }
    }
}
