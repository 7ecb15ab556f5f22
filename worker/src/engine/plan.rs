//! The plan of one shard, compiled once into the shape in which the engine uses it.

use super::excuses::Excuses;
use super::filters::FilterIndex;
use super::secrets::Secrets;
use super::tls::TlsClient;
use super::transport::Upgrade;
use super::wire::Version;
use mqtt_loadtest_crds::plan::{RunPlan, Schedule, Slice, publish_schedule};
use mqtt_loadtest_crds::spec::{Broker, Endpoint, ProtocolVersion, Publish, ReconnectPolicy, Resumption};
use mqtt_loadtest_crds::template::{Placeholder, Template, UnknownPlaceholder, Values};
use rustls::pki_types::ServerName;
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// Bytes of random payload that all messages take their part of: more than the window of any compressor on the way.
const SLAB: usize = 1 << 20;
/// Session Expiry Interval of clients that keep their session, in seconds (MQTT 5.0 section 3.1.2.11.2).
pub const SESSION_EXPIRY: u32 = 3600;

/// Everything a shard needs to know, read-only and shared by its threads.
#[derive(Debug)]
pub struct ShardPlan {
    /// The clients of this shard.
    pub slice: Slice,
    /// Name of the group.
    pub group: String,
    /// Number of attempts of this shard before this one.
    pub attempt: u16,
    /// Protocol version.
    pub version: Version,
    /// The broker's addresses as written.
    pub endpoints: Vec<Endpoint>,
    carriages: Vec<Carriage>,
    resumes_tls: bool,
    /// Keep alive in seconds; 0 is off.
    pub keep_alive: u16,
    /// Whether sessions end with their connection.
    pub clean: bool,
    /// When clients connect, after the release.
    pub connects: Schedule,
    /// Longest time from the first SYN to CONNACK, and from SUBSCRIBE to SUBACK, in ns.
    pub connect_timeout: u64,
    /// Whether lost connections are made again.
    pub reconnect: bool,
    /// First and longest wait before that, in ns.
    pub backoff: (u64, u64),
    /// Most messages in flight per client.
    pub max_inflight: u16,
    /// What each client publishes.
    pub entries: Vec<Entry>,
    /// What each client subscribes to: filter and QoS.
    pub subscriptions: Vec<(Template, u8)>,
    /// Whether any subscription is shared, so that streams cannot be followed by receiver.
    pub shared: bool,
    /// Whether some, and whether all, messages of the run carry the accounting header.
    pub headers: Headers,
    /// Tag of the run in headers.
    pub run_tag: u32,
    /// Seed of everything random.
    pub seed: u64,
    /// How long clients publish, in ns.
    pub duration: u64,
    /// Longest wait after the end, in ns.
    pub drain: u64,
    /// All subscriptions of the run.
    pub filters: FilterIndex,
    /// What this group's subscribers may miss while they are away.
    pub excuses: Excuses,
    /// Time after a subscription until its deliveries are owed, in ns: a cluster's routes are eventually consistent.
    pub settle: u64,
    /// Cores that this shard's messages keep busy, roughly, by a look at one client's topic of each entry.
    pub expected_load: f64,
    client_id: Template,
    username: Option<Template>,
    password: String,
    slab: Box<[u8]>,
}

/// What carries MQTT to one endpoint, above TCP.
#[derive(Debug)]
pub struct Carriage {
    /// TLS, and the name that the server must have.
    pub tls: Option<(Arc<TlsClient>, ServerName<'static>)>,
    /// WebSocket.
    pub web_socket: Option<Arc<Upgrade>>,
}

/// Which messages of the run carry the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Headers {
    /// None: deliveries are only counted.
    None,
    /// Those of some entries.
    Some,
    /// All: a message without one is foreign.
    All,
}

/// Where a message carries its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// Nowhere.
    None,
    /// In the first bytes of the payload.
    Payload,
    /// In MQTT 5's correlation data.
    Correlation,
}

/// A publish entry.
#[derive(Debug)]
pub struct Entry {
    /// Topic.
    pub topic: Template,
    /// Whether the topic differs from message to message.
    pub topic_varies: bool,
    /// Quality of service.
    pub qos: u8,
    /// Retain flag.
    pub retain: bool,
    /// Payload.
    pub body: Body,
    /// When slots are due.
    pub schedule: Schedule,
    /// How late a slot may be sent, in ns.
    pub max_behind: u64,
    /// Where the header goes.
    pub carrier: Carrier,
}

/// The payload of an entry.
#[derive(Debug)]
pub enum Body {
    /// So many random printable bytes.
    Random(usize),
    /// A text.
    Text(Template),
}

/// Why a plan cannot be run by this worker.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// There is no such group or shard.
    #[error("the plan has no shard {shard} of group {group}: was this pod made for another run?")]
    NoSlice {
        /// Index of the group.
        group: usize,
        /// Completion index.
        shard: u32,
    },
    /// A template or an endpoint that validation should have refused.
    #[error("the plan cannot be read: {0}")]
    Invalid(String),
}

impl ShardPlan {
    /// Compiles the part of a plan that one shard runs.
    ///
    /// # Errors
    /// When the slice does not exist or something in the plan cannot be parsed.
    pub fn new(plan: &RunPlan, group: usize, shard: u32, attempt: u16, secrets: &Secrets) -> Result<Self, PlanError> {
        let slice = plan.slice(group, shard).ok_or(PlanError::NoSlice { group, shard })?;
        let spec = plan.spec.groups.get(group).ok_or(PlanError::NoSlice { group, shard })?;
        let broker = &plan.spec.broker;
        let invalid = |e: &dyn std::fmt::Display| PlanError::Invalid(e.to_string());
        let parse = |text: &str| Template::parse(text).map_err(|e| invalid(&e));
        let version = match broker.protocol_version {
            ProtocolVersion::V311 => Version::V4,
            ProtocolVersion::V5 => Version::V5,
        };
        let carriers: Vec<Carrier> =
            plan.spec.groups.iter().flat_map(|g| &g.publish).map(|entry| carrier(entry, version)).collect();
        let with = carriers.iter().filter(|c| **c != Carrier::None).count();
        let entries = spec.publish.iter().map(|entry| {
            let topic = parse(&entry.topic)?;
            Ok(Entry {
                topic_varies: topic.has(Placeholder::Sequence),
                topic,
                qos: u8::try_from(entry.qos).unwrap_or(0).min(2),
                retain: entry.retain,
                body: match &entry.payload.text {
                    Some(text) => Body::Text(parse(text)?),
                    None => Body::Random(payload_size(entry)),
                },
                schedule: publish_schedule(spec, entry),
                max_behind: entry.max_behind.as_nanos(),
                carrier: carrier(entry, version),
            })
        });
        let entries = entries.collect::<Result<Vec<_>, PlanError>>()?;
        let subscriptions = spec.subscribe.iter().map(|s| Ok((parse(&s.filter)?, u8::try_from(s.qos).unwrap_or(0).min(2))));
        let endpoints = broker.endpoints.iter().map(|text| Endpoint::parse(text).map_err(PlanError::Invalid));
        let endpoints = endpoints.collect::<Result<Vec<_>, PlanError>>()?;
        let digest = Sha256::digest(format!("{}/{}", plan.run.uid, plan.run.id));
        let seed = u64::try_from(plan.spec.load.seed).unwrap_or(0);
        let filters = FilterIndex::new(plan).map_err(|e| invalid(&e))?;
        let expected_load = expected_load(plan, group, &filters).map_err(|e| invalid(&e))?;
        Ok(Self {
            slice,
            group: spec.name.clone(),
            attempt,
            version,
            carriages: carriages(broker, &endpoints, secrets).map_err(PlanError::Invalid)?,
            resumes_tls: broker.tls.as_ref().is_some_and(|tls| tls.resumption == Resumption::PerClient),
            endpoints,
            keep_alive: u16::try_from(spec.keep_alive.get().as_secs()).unwrap_or(u16::MAX),
            clean: spec.clean_start,
            connects: plan.connects(group),
            connect_timeout: spec.connect.timeout.as_nanos().max(1_000_000),
            reconnect: spec.reconnect.policy == ReconnectPolicy::Always,
            backoff: (spec.reconnect.min_backoff.as_nanos(), spec.reconnect.max_backoff.as_nanos()),
            max_inflight: u16::try_from(spec.max_inflight).unwrap_or(u16::MAX).max(1),
            entries,
            subscriptions: subscriptions.collect::<Result<Vec<_>, PlanError>>()?,
            shared: spec.subscribe.iter().any(|s| s.filter.starts_with("$share/")),
            headers: match with {
                0 => Headers::None,
                n if n == carriers.len() => Headers::All,
                _ => Headers::Some,
            },
            run_tag: u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]),
            seed,
            duration: plan.spec.load.duration.as_nanos(),
            drain: plan.spec.load.drain.as_nanos(),
            excuses: Excuses::new(plan, group, &filters).map_err(|e| invalid(&e))?,
            filters,
            settle: plan.spec.load.barrier.settle.as_nanos(),
            expected_load,
            client_id: parse(&spec.client_id)?,
            username: broker.credentials.username.as_deref().map(parse).transpose()?,
            password: secrets.password.clone().unwrap_or_default(),
            slab: slab(seed),
        })
    }

    /// How many event-loop threads this load is worth on a machine with so many processors: enough that none is busy for
    /// more than about 60 % of the time. Fewer threads find more to do each time they wake, and so cost less per message.
    pub fn threads(&self, processors: usize) -> usize {
        const BUSY: f64 = 0.6;
        /// Clients of which a thread should not have more, for the work of connecting and of snapshots.
        const CLIENTS: u32 = 20_000;
        let by_load = (self.expected_load / BUSY).ceil() as usize;
        by_load.max(self.slice.clients().div_ceil(CLIENTS) as usize).clamp(1, processors.max(1))
    }

    /// Client identifier and user name of the shard's client `j`.
    pub fn identity(&self, j: u32) -> (String, String) {
        let mut values =
            Values { number: self.slice.client_number(j), group: &self.group, shard: self.slice.shard, ..Values::default() };
        let client_id = self.client_id.render(&values);
        values.client_id = &client_id;
        let username = self.username.as_ref().map(|t| t.render(&values)).unwrap_or_default();
        (client_id, username)
    }

    /// What carries MQTT to an endpoint.
    pub fn carriage(&self, endpoint: usize) -> Option<&Carriage> {
        self.carriages.get(endpoint)
    }

    /// Whether clients resume TLS sessions.
    pub fn resumes_tls(&self) -> bool {
        self.resumes_tls
    }

    /// The password of every client; empty when there is none. Never in a log or metric.
    pub fn password(&self) -> &str {
        &self.password
    }

    /// Fills a template for a message of client `j`.
    pub fn render(&self, template: &Template, j: u32, sequence: u64, out: &mut String) {
        let (client_id, username) = if template.has(Placeholder::ClientId) || template.has(Placeholder::Username) {
            self.identity(j)
        } else {
            Default::default()
        };
        let number = self.slice.client_number(j);
        let values =
            Values { number, client_id: &client_id, username: &username, sequence, group: &self.group, shard: self.slice.shard };
        template.render_into(out, &values);
    }

    /// Appends `size` random printable bytes, the same for the same client (by its rank in the group) and message.
    ///
    /// Messages that follow each other in time take neighbouring pieces of the slab, which keeps the processor's caches
    /// warm and repeats nothing within a compressor's window; each round of all clients is shifted against the one before.
    #[inline]
    pub fn fill(&self, size: usize, rank: u64, sequence: u64, out: &mut Vec<u8>) {
        let slot = rank.wrapping_add(sequence.wrapping_mul(u64::from(self.slice.group_clients)));
        let mut at = slot.wrapping_mul(size as u64).wrapping_add(sequence.wrapping_mul(61)) as usize % SLAB;
        let mut left = size;
        while left > 0 {
            let part = left.min(SLAB - at);
            out.extend_from_slice(&self.slab[at..at + part]);
            left -= part;
            at = 0;
        }
    }
}

/// What carries MQTT to each endpoint.
fn carriages(broker: &Broker, endpoints: &[Endpoint], secrets: &Secrets) -> Result<Vec<Carriage>, String> {
    let settings = broker.tls.clone().unwrap_or_default();
    let needs_tls = endpoints.iter().any(|endpoint| endpoint.scheme.is_tls());
    let client = needs_tls.then(|| TlsClient::new(&settings, secrets).map(Arc::new)).transpose()?;
    let carriage = |endpoint: &Endpoint| {
        let tls = match client.clone().filter(|_| endpoint.scheme.is_tls()) {
            Some(client) => {
                let name = settings.server_name.clone().unwrap_or_else(|| endpoint.host.clone());
                let wrong = |_| format!("\"{name}\" is neither a host name nor an address: set spec.broker.tls.serverName");
                Some((client, ServerName::try_from(name.clone()).map_err(wrong)?))
            }
            None => None,
        };
        let headers = broker.web_socket.iter().flat_map(|web_socket| &web_socket.headers);
        let headers = headers.map(|header| (header.name.as_str(), header.value.as_str()));
        let upgrade = endpoint.scheme.is_web_socket().then(|| Upgrade::new(&endpoint.to_string(), headers));
        Ok(Carriage { tls, web_socket: upgrade.transpose()?.map(Arc::new) })
    };
    endpoints.iter().map(carriage).collect()
}

/// Processor time per second that the messages of one shard cost. The first client's topic stands for all of an entry.
fn expected_load(plan: &RunPlan, group: usize, filters: &FilterIndex) -> Result<f64, UnknownPlaceholder> {
    let receivers: u64 = plan
        .spec
        .groups
        .iter()
        .zip(&plan.groups)
        .filter(|(g, _)| !g.subscribe.is_empty())
        .map(|(_, p)| u64::from(p.clients))
        .sum();
    // Measured on loopback, kernel included; see docs/benchmarks.md.
    const SEND: f64 = 12e-6;
    const RECEIVE: f64 = 5e-6;
    let mut load = 0.0;
    for (i, spec) in plan.spec.groups.iter().enumerate() {
        for entry in &spec.publish {
            let sent = publish_schedule(spec, entry).slots_before(1_000_000_000_000) as f64 / 1000.0;
            if i == group {
                load += sent * SEND;
            }
            if let Some(ours) = plan.spec.groups.get(group).filter(|g| !g.subscribe.is_empty()) {
                let number = u64::try_from(spec.start_number).unwrap_or(0);
                let client_id =
                    Template::parse(&spec.client_id)?.render(&Values { number, group: &spec.name, ..Values::default() });
                let values = Values { number, client_id: &client_id, group: &spec.name, ..Values::default() };
                let copies = filters.multiplicity(&Template::parse(&entry.topic)?.render(&values)).max;
                // Which group the copies go to is not asked: each subscriber gets the same part of them.
                load += RECEIVE * sent * f64::from(copies) * f64::from(ours.clients) / receivers.max(1) as f64;
            }
        }
    }
    Ok(load / f64::from(plan.groups.get(group).map_or(1, |g| g.shards.max(1))))
}

fn payload_size(entry: &Publish) -> usize {
    entry
        .payload
        .size
        .as_ref()
        .map_or(1024, |size| usize::try_from(size.bytes()).unwrap_or(usize::MAX).min(super::wire::MAX_PACKET / 2))
}

/// Where an entry's messages carry the header: in payloads of 32 bytes or more that are not text, else in MQTT 5's
/// correlation data, which servers forward unaltered (section 3.3.2.3.6), else nowhere.
fn carrier(entry: &Publish, version: Version) -> Carrier {
    if entry.payload.text.is_none() && payload_size(entry) >= 32 {
        Carrier::Payload
    } else if version == Version::V5 {
        Carrier::Correlation
    } else {
        Carrier::None
    }
}

/// Random letters and digits: 6 bits of entropy a byte, so that compression on the way finds about a quarter to save, not
/// all of it.
fn slab(seed: u64) -> Box<[u8]> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let words = (0..SLAB as u64 / 8).flat_map(|i| crate::accounting::header::mix64(seed ^ (i << 20)).to_le_bytes());
    words.map(|byte| LETTERS[usize::from(byte & 63)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqtt_loadtest_crds::plan::RunIdentity;
    use serde_json::json;

    fn shard(groups: serde_json::Value, group: usize) -> ShardPlan {
        let spec = serde_json::from_value(json!({"broker": {"endpoints": ["mqtt://b"]}, "groups": groups})).unwrap();
        let run = RunIdentity { namespace: String::new(), name: "t".into(), uid: "u".into(), id: "1".into() };
        ShardPlan::new(&RunPlan::new(run, spec), group, 0, 0, &Secrets::default()).unwrap()
    }

    #[test]
    fn threads_follow_the_load_and_not_the_machine() {
        let groups = |rate: u32| {
            json!([{"name": "p", "clients": 20, "shards": {"count": 1}, "publish": [{"name": "p", "topic": "t", "ratePerSecond": rate}]},
                {"name": "s", "clients": 500, "subscribe": [{"name": "s", "filter": "t"}]}])
        };
        assert_eq!(shard(groups(200), 0).threads(8), 1);
        assert_eq!(shard(groups(200), 1).threads(8), 1, "100,000 deliveries a second are half a core");
        assert_eq!(shard(groups(1_000), 1).threads(8), 5);
        assert_eq!(shard(groups(1_000), 1).threads(2), 2);
        assert_eq!(shard(groups(500_000), 0).threads(64), 10);
        assert_eq!(shard(json!([{"name": "g", "clients": 50_000, "shards": {"count": 1}}]), 0).threads(8), 3);
    }

    #[test]
    fn payloads_are_the_same_for_the_same_message_and_differ_between_neighbours() {
        let plan = shard(json!([{"name": "g", "clients": 1000}]), 0);
        let bytes = |rank, sequence| {
            let mut out = Vec::new();
            plan.fill(1024, rank, sequence, &mut out);
            out
        };
        assert_eq!(bytes(3, 7), bytes(3, 7));
        assert_ne!(bytes(3, 7), bytes(4, 7));
        assert_ne!(bytes(3, 7), bytes(3, 8));
        assert!(bytes(999, 12345).iter().all(u8::is_ascii_graphic));
        let mut long = Vec::new();
        plan.fill(3 << 20, 5, 5, &mut long);
        assert_eq!(long.len(), 3 << 20);
    }
}
