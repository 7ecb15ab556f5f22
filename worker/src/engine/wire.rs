//! Reading inbound MQTT packets in place: framing, and the packets that come by the thousand (PUBLISH and the
//! acknowledgements). Nothing is copied or allocated, and no input can make this panic.
//!
//! Rare packets (CONNACK, SUBACK, DISCONNECT) are left to the codec, see [`super::handshake`].

use crate::accounting::header::{Header, LENGTH};

/// Largest inbound packet that is taken; MQTT itself allows 256 MiB.
pub const MAX_PACKET: usize = 16 * 1024 * 1024;

/// MQTT protocol versions, as far as packets differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// MQTT 3.1.1, and 3.1 but for CONNECT.
    V4,
    /// MQTT 5.
    V5,
}

/// What is wrong with an inbound packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    /// It breaks the format (MQTT 5.0 section 1.2, Malformed Packet).
    Malformed,
    /// It may not come at all, or not now.
    Protocol,
    /// Larger than [`MAX_PACKET`].
    TooLarge,
    /// A topic alias although none was offered (MQTT 5.0 section 3.3.2.3.4).
    TopicAlias,
}

/// One framed packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// First byte: type and flags.
    pub first: u8,
    /// What follows the remaining length.
    pub body: &'a [u8],
    /// Bytes of the whole packet.
    pub size: usize,
}

/// Splits the first packet off some bytes. `None` when it is not complete.
///
/// # Errors
/// When the remaining length is malformed or over the limit.
#[inline]
pub fn frame(bytes: &[u8]) -> Result<Option<Frame<'_>>, Bad> {
    let Some((&first, rest)) = bytes.split_first() else { return Ok(None) };
    let Some((length, used)) = variable(rest)? else { return Ok(None) };
    if length > MAX_PACKET {
        return Err(Bad::TooLarge);
    }
    let size = 1 + used + length;
    Ok(bytes.get(1 + used..size).map(|body| Frame { first, body, size }))
}

/// A variable byte integer and how many bytes it has; `None` when it is not complete.
#[inline]
fn variable(bytes: &[u8]) -> Result<Option<(usize, usize)>, Bad> {
    let mut value = 0;
    for (i, byte) in bytes.iter().take(4).enumerate() {
        value |= usize::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return Ok(Some((value, i + 1)));
        }
    }
    if bytes.len() >= 4 { Err(Bad::Malformed) } else { Ok(None) }
}

/// The parts of an inbound PUBLISH that are of interest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publish<'a> {
    /// Quality of service.
    pub qos: u8,
    /// Whether this is a retained message that was kept before the subscription.
    pub retain: bool,
    /// Topic name.
    pub topic: &'a str,
    /// Packet identifier; 0 at QoS 0.
    pub packet_id: u16,
    /// MQTT 5's correlation data.
    pub correlation: Option<&'a [u8]>,
    /// Application message.
    pub payload: &'a [u8],
}

impl<'a> Publish<'a> {
    /// Reads the body of a PUBLISH (MQTT 5.0 section 3.3).
    ///
    /// # Errors
    /// When the packet breaks the format or uses a topic alias.
    #[inline]
    pub fn read(first: u8, body: &'a [u8], version: Version) -> Result<Self, Bad> {
        let qos = first >> 1 & 3;
        // The DUP flag must be 0 at QoS 0 (MQTT-3.3.1-2).
        if qos == 3 || (qos == 0 && first & 8 != 0) {
            return Err(Bad::Malformed);
        }
        let mut rest = body;
        let topic = std::str::from_utf8(short(&mut rest)?).map_err(|_| Bad::Malformed)?;
        let packet_id = if qos == 0 { 0 } else { nonzero(take_u16(&mut rest)?)? };
        let mut correlation = None;
        if version == Version::V5 {
            let (length, used) = variable(rest)?.ok_or(Bad::Malformed)?;
            let properties = rest.get(used..used + length).ok_or(Bad::Malformed)?;
            rest = &rest[used + length..];
            if !properties.is_empty() {
                correlation = publish_properties(properties)?;
            }
        }
        // Without aliases a topic name has at least one character (MQTT-4.7.3-1).
        if topic.is_empty() || topic.contains(['#', '+', '\0']) {
            return Err(Bad::Malformed);
        }
        Ok(Self { qos, retain: first & 1 != 0, topic, packet_id, correlation, payload: rest })
    }

    /// The accounting header, in the correlation data or at the front of the payload.
    #[inline]
    pub fn header(&self, run_tag: u32) -> Option<Header> {
        match self.correlation {
            Some(data) if data.len() == LENGTH => Header::decode(data, run_tag).or_else(|| Header::decode(self.payload, run_tag)),
            _ => Header::decode(self.payload, run_tag),
        }
    }
}

/// Walks over a PUBLISH's properties and returns the correlation data (MQTT 5.0 section 3.3.2.3).
fn publish_properties(mut rest: &[u8]) -> Result<Option<&[u8]>, Bad> {
    let mut correlation = None;
    let mut seen = 0u64;
    while let Some((&id, after)) = rest.split_first() {
        rest = after;
        // Only the subscription identifier (11) and user properties (38) may come more than once.
        if id < 64 && !matches!(id, 11 | 38) {
            if seen & (1 << id) != 0 {
                return Err(Bad::Protocol);
            }
            seen |= 1 << id;
        }
        match id {
            1 => drop(skip(&mut rest, 1)?),
            2 => drop(skip(&mut rest, 4)?),
            3 | 8 => drop(short(&mut rest)?),
            9 => correlation = Some(short(&mut rest)?),
            11 => {
                let (value, used) = variable(rest)?.ok_or(Bad::Malformed)?;
                if value == 0 {
                    return Err(Bad::Protocol);
                }
                rest = &rest[used..];
            }
            35 => return Err(Bad::TopicAlias),
            38 => {
                short(&mut rest)?;
                short(&mut rest)?;
            }
            _ => return Err(Bad::Malformed),
        }
    }
    Ok(correlation)
}

/// Reads the body of PUBACK, PUBREC, PUBREL or PUBCOMP: packet identifier and reason code (0 where it is left out).
///
/// # Errors
/// When the packet breaks the format.
#[inline]
pub fn ack(first: u8, body: &[u8], version: Version) -> Result<(u16, u8), Bad> {
    let flags = if first >> 4 == 6 { 2 } else { 0 };
    if first & 0x0f != flags {
        return Err(Bad::Malformed);
    }
    let mut rest = body;
    let id = nonzero(take_u16(&mut rest)?)?;
    match (version, rest.split_first()) {
        (_, None) => Ok((id, 0)),
        (Version::V4, Some(_)) => Err(Bad::Malformed),
        (Version::V5, Some((reason, properties))) => {
            if !properties.is_empty() {
                let (length, used) = variable(properties)?.ok_or(Bad::Malformed)?;
                if used + length != properties.len() {
                    return Err(Bad::Malformed);
                }
            }
            Ok((id, *reason))
        }
    }
}

fn skip<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], Bad> {
    let (taken, after) = rest.split_at_checked(length).ok_or(Bad::Malformed)?;
    *rest = after;
    Ok(taken)
}

fn take_u16(rest: &mut &[u8]) -> Result<u16, Bad> {
    let bytes = skip(rest, 2)?;
    Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
}

/// Bytes or a string with a length of two bytes before it.
fn short<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], Bad> {
    let length = take_u16(rest)?;
    skip(rest, usize::from(length))
}

/// A packet identifier is never 0 (MQTT-2.2.1-3).
fn nonzero(id: u16) -> Result<u16, Bad> {
    if id == 0 { Err(Bad::Malformed) } else { Ok(id) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::{Bytes, BytesMut};
    use proptest::collection::vec;
    use proptest::prelude::*;
    use rumqttc::v5::mqttbytes::{QoS, v5};

    #[test]
    fn incomplete_packets_wait_and_endless_lengths_are_malformed() {
        assert_eq!(frame(&[]), Ok(None));
        assert_eq!(frame(&[0x30]), Ok(None));
        assert_eq!(frame(&[0x30, 0x80]), Ok(None));
        assert_eq!(frame(&[0x30, 2, 0]), Ok(None));
        assert_eq!(frame(&[0x30, 0xff, 0xff, 0xff, 0xff]), Err(Bad::Malformed));
        assert_eq!(frame(&[0x30, 0xff, 0xff, 0xff, 0x7f]), Err(Bad::TooLarge));
        assert_eq!(frame(&[0xd0, 0, 7]), Ok(Some(Frame { first: 0xd0, body: &[], size: 2 })));
    }

    #[test]
    fn acknowledgements_carry_an_identifier_and_a_reason() {
        assert_eq!(ack(0x40, &[1, 2], Version::V4), Ok((0x102, 0)));
        assert_eq!(ack(0x40, &[1, 2, 0x10], Version::V5), Ok((0x102, 0x10)));
        assert_eq!(ack(0x40, &[1, 2, 0x97, 0], Version::V5), Ok((0x102, 0x97)));
        for (first, body, version) in [
            (0x40, &[0u8, 0][..], Version::V4),
            (0x40, &[1][..], Version::V4),
            (0x41, &[1, 2][..], Version::V4),
            (0x60, &[1, 2][..], Version::V4),
            (0x40, &[1, 2, 0][..], Version::V4),
            (0x40, &[1, 2, 0, 5][..], Version::V5),
        ] {
            assert_eq!(ack(first, body, version), Err(Bad::Malformed), "{first:x} {body:?}");
        }
    }

    #[test]
    fn a_topic_alias_that_was_not_offered_is_named() {
        assert_eq!(Publish::read(0x30, &[0, 0, 3, 35, 0, 1], Version::V5), Err(Bad::TopicAlias));
    }

    proptest! {
        #[test]
        fn a_publish_that_the_codec_writes_is_read(
            topic in "[a-z/]{1,40}", qos in 0u8..3, retain: bool, id in 1u16.., payload in vec(any::<u8>(), 0..200),
            correlation in proptest::option::of(vec(any::<u8>(), 0..40)), user in vec(("[a-z]{0,9}", "[a-z]{0,9}"), 0..3), expiry: Option<u32>,
        ) {
            let properties = v5::PublishProperties {
                correlation_data: correlation.clone().map(Bytes::from),
                user_properties: user,
                message_expiry_interval: expiry,
                subscription_identifiers: vec![7, 300],
                ..Default::default()
            };
            let qos_name = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][usize::from(qos)];
            let mut packet = v5::Publish::new(topic.clone(), qos_name, payload.clone(), Some(properties));
            (packet.retain, packet.pkid) = (retain, if qos == 0 { 0 } else { id });
            let mut bytes = BytesMut::new();
            packet.write(&mut bytes).unwrap();
            let whole = frame(&bytes).unwrap().unwrap();
            prop_assert_eq!(whole.size, bytes.len());
            let read = Publish::read(whole.first, whole.body, Version::V5).unwrap();
            prop_assert_eq!(read, Publish {
                qos, retain, topic: &topic, packet_id: packet.pkid, correlation: correlation.as_deref(), payload: &payload,
            });
            for cut in 0..bytes.len() {
                prop_assert_eq!(frame(&bytes[..cut]), Ok(None));
            }
        }

        #[test]
        fn no_bytes_make_it_panic(first: u8, body in vec(any::<u8>(), 0..64)) {
            let _ = frame(&body);
            for version in [Version::V4, Version::V5] {
                let _ = Publish::read(first, &body, version).map(|p| p.header(1));
                let _ = ack(first, &body, version);
            }
        }
    }
}
