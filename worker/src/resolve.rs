//! Names to addresses, by the servers in `/etc/resolv.conf` and the lines of `/etc/hosts`. Static binaries have no libc
//! resolver, and a load test wants every address of a name, not one.

use crate::engine::cause::Cause;
use crate::engine::targets::Targets;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::LookupIpStrategy;
use mqtt_loadtest_crds::spec::Endpoint;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Addresses are looked up again no more often than this, however short their TTL.
const SHORTEST: Duration = Duration::from_secs(5);
/// And no less often than this.
const LONGEST: Duration = Duration::from_secs(300);
/// After a failure that may pass.
const RETRY: Duration = Duration::from_secs(2);

/// Resolves every endpoint. Returns when to do so again, if any of them is a name.
pub async fn resolve(endpoints: &[Endpoint]) -> (Targets, Option<Instant>) {
    let mut targets = Targets::default();
    let mut again: Option<Instant> = None;
    let mut resolver = None;
    for endpoint in endpoints {
        if let Ok(address) = endpoint.host.parse::<IpAddr>() {
            targets.endpoints.push(Ok(vec![SocketAddr::new(address, endpoint.port)]));
            continue;
        }
        let resolver = resolver.get_or_insert_with(resolver_of_system);
        let (found, until) = lookup(resolver.as_ref(), endpoint).await;
        if let Err(cause) = found {
            tracing::warn!(host = endpoint.host, ?cause, "the broker's name could not be resolved");
        }
        targets.endpoints.push(found);
        again = Some(again.map_or(until, |at| at.min(until)));
    }
    (targets, again)
}

fn resolver_of_system() -> Option<TokioResolver> {
    let built = TokioResolver::builder_tokio().and_then(|mut builder| {
        builder.options_mut().ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        builder.build()
    });
    built.inspect_err(|error| tracing::warn!(%error, "the name servers of /etc/resolv.conf cannot be used")).ok()
}

async fn lookup(resolver: Option<&TokioResolver>, endpoint: &Endpoint) -> (Result<Vec<SocketAddr>, Cause>, Instant) {
    let now = Instant::now();
    let Some(resolver) = resolver else { return (Err(Cause::DnsFailed), now + RETRY) };
    match resolver.lookup_ip(endpoint.host.as_str()).await {
        Ok(lookup) => {
            let all: Vec<_> = lookup.iter().map(|ip| SocketAddr::new(ip, endpoint.port)).collect();
            let until = lookup.valid_until().clamp(now + SHORTEST, now + LONGEST);
            if all.is_empty() { (Err(Cause::DnsNotFound), until) } else { (Ok(routable(all)), until) }
        }
        Err(e) if e.is_nx_domain() || e.is_no_records_found() => (Err(Cause::DnsNotFound), now + RETRY),
        Err(error) => {
            tracing::warn!(%error, host = endpoint.host, "a name server failed");
            (Err(Cause::DnsFailed), now + RETRY)
        }
    }
}

/// Leaves out addresses to which this host has no route (IPv6 on a host without it), unless that leaves none. Connecting a
/// UDP socket asks the kernel for a route and sends nothing.
fn routable(all: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let has_route = |to: &SocketAddr| {
        let from: SocketAddr = if to.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
        UdpSocket::bind(from).and_then(|socket| socket.connect(to)).is_ok()
    };
    let some: Vec<_> = all.iter().copied().filter(has_route).collect();
    if some.is_empty() { all } else { some }
}
