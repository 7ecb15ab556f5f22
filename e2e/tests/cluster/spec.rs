//! Specs of small runs, as a person would write them.

use mqtt_loadtest_e2e::Mosquitto;
use serde_json::{Value, json};

/// `clients` devices over `shards` pods, each publishing a QoS 1 message of 1 KiB a second for `seconds`, and `listeners` that
/// receive all of them.
pub fn devices(endpoint: &str, clients: u32, shards: u32, seconds: u32, listeners: u32) -> Value {
    let mut groups = vec![json!({
        "name": "devices", "clients": clients, "clientId": "device-%i", "connect": {"ratePerSecond": 500},
        "publish": [{"name": "telemetry", "topic": "e2e/%i", "qos": 1, "payload": {"size": "1Ki"}, "interval": "1s"}],
        "shards": {"count": shards},
    })];
    if listeners > 0 {
        groups.push(json!({
            "name": "listeners", "clients": listeners, "clientId": "listener-%i",
            "subscribe": [{"name": "all", "filter": "e2e/#", "qos": 1}],
        }));
    }
    json!({
        "broker": {"endpoints": [endpoint], "protocolVersion": "5"},
        "groups": groups,
        "load": {
            "duration": format!("{seconds}s"), "startTimeout": "60s", "drain": "10s",
            "barrier": {"settle": "1s", "timeout": "60s"},
        },
    })
}

/// The smallest run worth the name: 20 devices in one pod for three seconds, one listener.
pub fn small(broker: &Mosquitto<'_>) -> Value {
    devices(&broker.url(1883), 20, 1, 3, 1)
}
