//! What listens at an endpoint that closed our connections without sending a byte. Most servers answer a protocol that is not
//! theirs in that way, and so does a load balancer without a backend: to call one the other would end a run for nothing. So
//! the other protocol is tried once, and only its answer counts.
//!
//! A probe is one connection beside those of the clients. It sends a TLS hello, a CONNECT of MQTT 3.1.1 with an empty client
//! identifier and no user name, or a GET request, reads a few bytes and closes.

use crate::engine::cause::Cause;
use crate::engine::secrets::Secrets;
use crate::engine::targets::Targets;
use crate::engine::tls::TlsClient;
use crate::shard::Shard;
use mqtt_loadtest_crds::spec::{Endpoint, Tls, Verification};
use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two looks whether an endpoint was silent.
const STEP: Duration = Duration::from_millis(200);
/// Between two probes of one endpoint.
const AGAIN: Duration = Duration::from_secs(3);
/// Probes of one endpoint; who has said nothing by then is left alone.
const MOST: u32 = 3;
/// CONNECT of MQTT 3.1.1: protocol name and level, clean session, keep alive 10 s, empty client identifier (section 3.1).
const MQTT_CONNECT: [u8; 14] = [0x10, 12, 0, 4, b'M', b'Q', b'T', b'T', 4, 2, 0, 10, 0, 0];
const HTTP_GET: &[u8] = b"GET / HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n";

/// What is known of the endpoints of a run.
#[derive(Debug, Default)]
pub struct Findings {
    endpoints: Vec<Finding>,
}

#[derive(Clone, Debug, Default)]
struct Finding {
    cause: Option<Cause>,
    probes: u32,
    last: Option<Instant>,
}

impl Findings {
    /// Nothing yet of so many endpoints.
    pub fn new(endpoints: usize) -> Self {
        Self { endpoints: vec![Finding::default(); endpoints] }
    }

    /// The addresses, without those endpoints that speak another protocol.
    pub fn apply(&self, targets: &Targets) -> Targets {
        let known = self.endpoints.iter().map(|finding| finding.cause).chain(std::iter::repeat(None));
        let endpoints = targets.endpoints.iter().zip(known);
        Targets { endpoints: endpoints.map(|(found, cause)| cause.map_or_else(|| found.clone(), Err)).collect() }
    }

    /// Probes endpoints that are silent, until an instant; for ever without one. Tells the shard what was found.
    pub async fn watch(&mut self, shard: &Shard, endpoints: &[Endpoint], targets: &Targets, until: Option<Instant>) {
        while until.is_none_or(|until| Instant::now() < until) {
            tokio::time::sleep(STEP).await;
            let silent = shard.silent_endpoints();
            for (i, endpoint) in endpoints.iter().enumerate().take(64) {
                let finding = &mut self.endpoints[i];
                let rested = finding.last.is_none_or(|last| last.elapsed() >= AGAIN);
                if silent & (1 << i) == 0 || finding.cause.is_some() || finding.probes >= MOST || !rested {
                    continue;
                }
                let Some(Ok(addresses)) = targets.endpoints.get(i) else { continue };
                let Some(address) = addresses.first() else { continue };
                finding.cause = probe(endpoint, *address).await;
                (finding.probes, finding.last) = (finding.probes + 1, Some(Instant::now()));
                if let Some(cause) = finding.cause {
                    let what = if cause == Cause::PlainOnTlsPort { "speaks TLS" } else { "does not speak TLS" };
                    tracing::warn!(%endpoint, "the port {what}: the scheme of the endpoint is wrong");
                    shard.set_targets(self.apply(targets));
                }
            }
        }
    }
}

/// Tries the protocol that the endpoint's scheme does not name. `None` when it gets no answer either.
async fn probe(endpoint: &Endpoint, address: SocketAddr) -> Option<Cause> {
    if !endpoint.scheme.is_tls() {
        let answer = ask(address, &hello(endpoint)?).await?;
        // An alert or a handshake record of TLS (RFC 8446 section 5.1).
        return matches!(answer[..2], [21 | 22, 3]).then_some(Cause::PlainOnTlsPort);
    }
    let answer =
        if endpoint.scheme.is_web_socket() { ask(address, HTTP_GET).await? } else { ask(address, &MQTT_CONNECT).await? };
    matches!(answer, [0x20, 2, _, _] | [b'H', b'T', b'T', b'P']).then_some(Cause::TlsOnPlainPort)
}

/// The first record of a TLS handshake.
fn hello(endpoint: &Endpoint) -> Option<Vec<u8>> {
    let tls = Tls { verification: Verification::None, ..Tls::default() };
    let config = TlsClient::new(&tls, &Secrets::default()).ok()?.config(&mut None);
    let name = ServerName::try_from(endpoint.host.clone()).ok()?;
    let mut hello = Vec::new();
    ClientConnection::new(config, name).ok()?.write_tls(&mut hello).ok()?;
    Some(hello)
}

/// The first four bytes of the answer to a question.
async fn ask(address: SocketAddr, question: &[u8]) -> Option<[u8; 4]> {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(question).await?;
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    tokio::time::timeout(PATIENCE, exchange).await.ok()?.ok()
}
