//! Building PUBLISH packets: what is the same for every message of a client is encoded once, the rest is patched in.

use super::plan::{Body, Carrier, Entry, ShardPlan};
use super::wire::Version;
use crate::accounting::header::{Header, LENGTH};

/// The part of a client's PUBLISH before the payload, where topic and length do not vary.
#[derive(Debug)]
pub struct Head {
    bytes: Box<[u8]>,
    /// Where the packet identifier is; 0 at QoS 0.
    id_at: u16,
    /// Where the header is within the correlation data; 0 when it is not there.
    header_at: u16,
}

/// What differs from message to message.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// The client within the shard.
    pub client: u32,
    /// The message's number.
    pub sequence: u64,
    /// Packet identifier; 0 at QoS 0.
    pub packet_id: u16,
    /// Whether it was sent before.
    pub dup: bool,
    /// When it was due, in ns since the Unix epoch.
    pub due_unix_ns: u64,
}

/// Prepares a client's messages of an entry; `None` when they vary in length or topic.
pub fn head(plan: &ShardPlan, entry: &Entry, client: u32) -> Option<Head> {
    let Body::Random(size) = entry.body else { return None };
    if entry.topic_varies {
        return None;
    }
    let mut topic = String::new();
    plan.render(&entry.topic, client, 0, &mut topic);
    let mut bytes = Vec::new();
    let (id_at, header_at) = write_head(plan.version, entry, &topic, size, &mut bytes);
    Some(Head { bytes: bytes.into(), id_at, header_at })
}

/// Appends a whole PUBLISH.
#[inline]
pub fn publish(plan: &ShardPlan, entry: &Entry, index: u8, head: Option<&Head>, message: &Message, out: &mut Vec<u8>) {
    let start = out.len();
    let rank = plan.slice.rank(message.client);
    let (id_at, header_at) = match (head, &entry.body) {
        (Some(head), Body::Random(size)) => {
            out.extend_from_slice(&head.bytes);
            let payload_at = out.len();
            plan.fill(*size, rank, message.sequence, out);
            let header_at = if entry.carrier == Carrier::Payload { payload_at } else { start + usize::from(head.header_at) };
            (usize::from(head.id_at), header_at)
        }
        (_, body) => {
            let mut topic = String::new();
            plan.render(&entry.topic, message.client, message.sequence, &mut topic);
            let mut text = String::new();
            let size = match body {
                Body::Random(size) => *size,
                Body::Text(template) => {
                    plan.render(template, message.client, message.sequence, &mut text);
                    text.len()
                }
            };
            let (id_at, correlation_at) = write_head(plan.version, entry, &topic, size, out);
            let payload_at = out.len();
            match body {
                Body::Random(size) => plan.fill(*size, rank, message.sequence, out),
                Body::Text(_) => out.extend_from_slice(text.as_bytes()),
            }
            let header_at = if entry.carrier == Carrier::Payload { payload_at } else { start + usize::from(correlation_at) };
            (usize::from(id_at), header_at)
        }
    };
    if message.dup {
        out[start] |= 8;
    }
    if id_at > 0 {
        out[start + id_at..start + id_at + 2].copy_from_slice(&message.packet_id.to_be_bytes());
    }
    if entry.carrier != Carrier::None {
        let header = Header {
            entry: index,
            attempt: plan.attempt,
            run_tag: plan.run_tag,
            client: plan.slice.global_rank(message.client) as u32,
            seq: message.sequence as u32,
            due_unix_ns: message.due_unix_ns,
        };
        out[header_at..header_at + LENGTH].copy_from_slice(&header.encode());
    }
}

/// Writes everything before the payload. Returns where packet identifier and correlation data are, counted from the start
/// of the packet.
fn write_head(version: Version, entry: &Entry, topic: &str, payload: usize, out: &mut Vec<u8>) -> (u16, u16) {
    let start = out.len();
    let correlation = entry.carrier == Carrier::Correlation;
    let properties = match version {
        Version::V4 => 0,
        Version::V5 => 1 + if correlation { 3 + LENGTH } else { 0 },
    };
    let id = if entry.qos > 0 { 2 } else { 0 };
    let mut remaining = 2 + topic.len() + id + properties + payload;
    out.push(0x30 | entry.qos << 1 | u8::from(entry.retain));
    loop {
        let more = remaining >= 128;
        out.push((remaining % 128) as u8 | if more { 0x80 } else { 0 });
        remaining /= 128;
        if !more {
            break;
        }
    }
    out.extend_from_slice(&(topic.len() as u16).to_be_bytes());
    out.extend_from_slice(topic.as_bytes());
    let id_at = if id > 0 { (out.len() - start) as u16 } else { 0 };
    out.extend_from_slice(&[0, 0][..id]);
    let mut correlation_at = 0;
    if version == Version::V5 {
        out.push((properties - 1) as u8);
        if correlation {
            out.extend_from_slice(&[9, 0, LENGTH as u8]);
            correlation_at = (out.len() - start) as u16;
            out.extend_from_slice(&[0; LENGTH]);
        }
    }
    (id_at, correlation_at)
}
