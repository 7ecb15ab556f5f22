//! The few MQTT frames that the floor, the sink and the source need, as bytes.
//!
//! Encoding follows MQTT 3.1.1 and MQTT 5, sections 2.1 (fixed header), 3.1 (CONNECT), 3.3 (PUBLISH),
//! 3.4 (PUBACK) and 3.8 (SUBSCRIBE). There is no validation of what a broker sends beyond what is needed to
//! find the next frame: this is the least a program can do, which is what a floor is for.

use anyhow::{Result, bail, ensure};

/// Longest frame that the benchmark will hold in memory while it waits for the rest of it.
const MAX_FRAME: usize = 1 << 20;

/// MQTT protocol version, by its level byte in CONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// MQTT 3.1.1.
    V311,
    /// MQTT 5.
    V5,
}

impl std::str::FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "3.1.1" => Ok(Self::V311),
            "5" => Ok(Self::V5),
            other => Err(format!("protocol {other:?} is neither \"3.1.1\" nor \"5\"")),
        }
    }
}

impl std::fmt::Display for Protocol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::V311 => "3.1.1",
            Self::V5 => "5",
        })
    }
}

/// CONNECT with a clean session and a keep alive longer than any measurement, so no PINGREQ is ever due.
pub fn connect(protocol: Protocol, client_id: &str) -> Vec<u8> {
    let mut body = Vec::new();
    string(&mut body, "MQTT");
    body.push(if protocol == Protocol::V5 { 5 } else { 4 });
    body.push(0x02);
    body.extend(600u16.to_be_bytes());
    if protocol == Protocol::V5 {
        body.push(0);
    }
    string(&mut body, client_id);
    frame(0x10, &body)
}

/// SUBSCRIBE to one filter.
pub fn subscribe(protocol: Protocol, filter: &str, qos: u8) -> Vec<u8> {
    let mut body = vec![0, 1];
    if protocol == Protocol::V5 {
        body.push(0);
    }
    string(&mut body, filter);
    body.push(qos);
    frame(0x82, &body)
}

/// PUBLISH, with where its packet identifier (QoS 1) and its payload lie.
pub fn publish(protocol: Protocol, topic: &str, qos: u8, payload: &[u8]) -> Publish {
    let mut body = Vec::new();
    string(&mut body, topic);
    let id_in_body = body.len();
    if qos > 0 {
        body.extend([0, 1]);
    }
    if protocol == Protocol::V5 {
        body.push(0);
    }
    let payload_in_body = body.len();
    body.extend(payload);
    let bytes = frame(0x30 | (qos << 1), &body);
    let header = bytes.len() - body.len();
    Publish { id_at: (qos > 0).then_some(header + id_in_body), payload_at: header + payload_in_body, bytes }
}

/// An encoded PUBLISH that can be sent again with another packet identifier.
pub struct Publish {
    /// The whole frame.
    pub bytes: Vec<u8>,
    /// Offset of the packet identifier, when the QoS has one.
    pub id_at: Option<usize>,
    /// Offset of the payload.
    pub payload_at: usize,
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u16).to_be_bytes());
    out.extend(text.as_bytes());
}

fn frame(first: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![first];
    let mut rest = body.len();
    loop {
        let byte = (rest % 128) as u8;
        rest /= 128;
        out.push(if rest > 0 { byte | 0x80 } else { byte });
        if rest == 0 {
            break;
        }
    }
    out.extend(body);
    out
}

/// Cuts a byte stream into frames; keeps what is left of a frame that has not come whole.
#[derive(Default)]
pub struct Scanner {
    partial: Vec<u8>,
}

impl Scanner {
    /// Calls `on_frame(first byte, body)` for every whole frame.
    pub fn feed(&mut self, bytes: &[u8], on_frame: impl FnMut(u8, &[u8])) -> Result<()> {
        if self.partial.is_empty() {
            let used = scan(bytes, on_frame)?;
            if used < bytes.len() {
                self.partial.extend_from_slice(&bytes[used..]);
            }
            return Ok(());
        }
        let mut joined = std::mem::take(&mut self.partial);
        joined.extend_from_slice(bytes);
        let used = scan(&joined, on_frame)?;
        if used < joined.len() {
            joined.drain(..used);
            self.partial = joined;
        }
        Ok(())
    }
}

fn scan(bytes: &[u8], mut on_frame: impl FnMut(u8, &[u8])) -> Result<usize> {
    let mut at = 0;
    while let Some((start, end)) = bounds(&bytes[at..])? {
        if at + end > bytes.len() {
            break;
        }
        on_frame(bytes[at], &bytes[at + start..at + end]);
        at += end;
    }
    Ok(at)
}

/// Start of the body and end of the frame at the front of `bytes`; `None` while the fixed header is incomplete.
fn bounds(bytes: &[u8]) -> Result<Option<(usize, usize)>> {
    let mut length = 0;
    for i in 0..4 {
        let Some(&byte) = bytes.get(1 + i) else {
            return Ok(None);
        };
        length |= usize::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            ensure!(length <= MAX_FRAME, "frame of {length} bytes: longer than the benchmark sends");
            return Ok(Some((2 + i, 2 + i + length)));
        }
    }
    bail!("malformed remaining length (MQTT 2.1.4)")
}

/// The packet identifier of a received QoS 1 PUBLISH body.
pub fn packet_id(body: &[u8]) -> Option<[u8; 2]> {
    let topic = usize::from(u16::from_be_bytes([*body.first()?, *body.get(1)?]));
    Some([*body.get(2 + topic)?, *body.get(3 + topic)?])
}
