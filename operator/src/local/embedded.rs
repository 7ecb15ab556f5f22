//! A broker in this process: rumqttd on a free loopback port, so that a manifest can be tried with nothing installed.
//!
//! Its limits are raised until it is no longer they that limit. It keeps nothing on disk and ends with the process.

use std::{
    collections::HashMap,
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use mqtt_loadtest_crds::{plan::RunPlan, spec::ProtocolVersion};
use rumqttd::{Broker, Config, ConnectionSettings, RouterConfig, ServerSettings};

/// Largest packet it takes, in bytes.
const MAX_PACKET: usize = 20 << 20;
/// What it keeps per topic filter for subscribers that lag behind: ten segments.
const SEGMENT: usize = 10 << 20;
/// How long it may take to listen.
const PATIENCE: Duration = Duration::from_secs(5);

/// Starts a broker for a plan and returns its endpoint.
///
/// # Errors
/// When it does not listen within some seconds.
pub fn start(plan: &RunPlan) -> io::Result<String> {
    // rumqttd has a listener for each protocol version.
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let server = HashMap::from([("embedded".to_owned(), settings(listen))]);
    let (v4, v5) = match plan.spec.broker.protocol_version {
        ProtocolVersion::V311 => (Some(server), None),
        ProtocolVersion::V5 => (None, Some(server)),
    };
    let clients = usize::try_from(plan.clients()).unwrap_or(usize::MAX);
    let config = Config { v4, v5, router: router(clients), ..Config::default() };
    thread::Builder::new().name("embedded-broker".into()).spawn(move || {
        if let Err(error) = Broker::new(config).start() {
            tracing::error!(%error, "the embedded broker ended");
        }
    })?;
    let since = Instant::now();
    while let Err(error) = TcpStream::connect(listen) {
        if since.elapsed() > PATIENCE {
            return Err(error);
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(format!("mqtt://{listen}"))
}

fn settings(listen: SocketAddr) -> ServerSettings {
    ServerSettings {
        name: "embedded".into(),
        listen,
        tls: None,
        next_connection_delay_ms: 0,
        connections: ConnectionSettings {
            connection_timeout_ms: 60_000,
            max_payload_size: MAX_PACKET,
            max_inflight_count: usize::from(u16::MAX),
            auth: None,
            external_auth: None,
            // Publishing to a topic that nobody subscribes to is no error.
            dynamic_filters: true,
        },
    }
}

fn router(clients: usize) -> RouterConfig {
    RouterConfig {
        // Clients that come again before their old connection is noticed to be gone need a place too.
        max_connections: clients.saturating_mul(2).saturating_add(100),
        max_outgoing_packet_count: 200,
        max_segment_size: SEGMENT,
        max_segment_count: 10,
        ..RouterConfig::default()
    }
}
