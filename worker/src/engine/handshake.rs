//! The rare packets, written and read by rumqttc's codec: CONNECT, CONNACK, SUBSCRIBE, SUBACK, DISCONNECT.

use super::cause::Cause;
use super::plan::{SESSION_EXPIRY, ShardPlan};
use super::wire::Version;
use crate::accounting::Counter;
use bytes::BytesMut;
use rumqttc::mqttbytes::{QoS as Qos4, v4};
use rumqttc::v5::mqttbytes::{QoS as Qos5, v5};

/// What a CONNACK with success says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The server kept the session.
    pub session_present: bool,
    /// Most QoS 1 and 2 messages it takes at once.
    pub receive_maximum: u16,
    /// The highest QoS it takes.
    pub maximum_qos: u8,
    /// Whether it takes retained messages.
    pub retain_available: bool,
    /// The largest packet it takes.
    pub maximum_packet_size: u32,
    /// The keep alive it wants instead of ours, in seconds.
    pub keep_alive: Option<u16>,
}

/// Writes the CONNECT of the shard's client `j`. `resume` asks for the session of an earlier connection.
pub fn connect(plan: &ShardPlan, j: u32, resume: bool, out: &mut Vec<u8>) {
    let (client_id, username) = plan.identity(j);
    let password = plan.password().to_owned();
    let mut bytes = BytesMut::with_capacity(256);
    // Our packets are below every limit of the codec, so writing them cannot fail.
    let written = match plan.version {
        Version::V4 => {
            let mut connect = v4::Connect::new(client_id);
            connect.keep_alive = plan.keep_alive;
            connect.clean_session = plan.clean;
            connect.login = (!username.is_empty()).then_some(v4::Login { username, password });
            connect.write(&mut bytes)
        }
        Version::V5 => {
            let mut properties = v5::ConnectProperties::new();
            properties.session_expiry_interval = (!plan.clean).then_some(SESSION_EXPIRY);
            let connect = v5::Connect {
                keep_alive: plan.keep_alive,
                client_id,
                clean_start: plan.clean && !resume,
                properties: (!plan.clean).then_some(properties),
            };
            let login = (!username.is_empty()).then_some(v5::Login { username, password });
            connect.write(&None, &login, &mut bytes).map_err(|_| rumqttc::mqttbytes::Error::MalformedPacket)
        }
    };
    debug_assert!(written.is_ok());
    out.extend_from_slice(&bytes);
}

/// Writes the SUBSCRIBE of the shard's client `j`, with all its filters.
pub fn subscribe(plan: &ShardPlan, j: u32, packet_id: u16, out: &mut Vec<u8>) {
    let filters = plan.subscriptions.iter().map(|(template, qos)| {
        let mut filter = String::new();
        plan.render(template, j, 0, &mut filter);
        (filter, *qos)
    });
    let mut bytes = BytesMut::with_capacity(256);
    let written = match plan.version {
        Version::V4 => {
            let qos = |q| [Qos4::AtMostOnce, Qos4::AtLeastOnce, Qos4::ExactlyOnce][usize::from(q)];
            let mut packet = v4::Subscribe::new_many(filters.map(|(f, q)| v4::SubscribeFilter::new(f, qos(q))));
            packet.pkid = packet_id;
            packet.write(&mut bytes)
        }
        Version::V5 => {
            let qos = |q| [Qos5::AtMostOnce, Qos5::AtLeastOnce, Qos5::ExactlyOnce][usize::from(q)];
            let mut packet = v5::Subscribe::new_many(filters.map(|(f, q)| v5::Filter::new(f, qos(q))), None);
            packet.pkid = packet_id;
            packet.write(&mut bytes).map_err(|_| rumqttc::mqttbytes::Error::MalformedPacket)
        }
    };
    debug_assert!(written.is_ok());
    out.extend_from_slice(&bytes);
}

/// Writes a DISCONNECT (normal disconnection).
pub fn disconnect(out: &mut Vec<u8>) {
    // The same two bytes in both versions: reason 0 may be left out (MQTT 5.0 section 3.14.2.1).
    out.extend_from_slice(&[0xe0, 0]);
}

/// Reads a CONNACK.
///
/// # Errors
/// The server's refusal, or [`Cause::Malformed`].
pub fn connack(packet: &[u8], version: Version) -> Result<Accepted, Cause> {
    let mut bytes = BytesMut::from(packet);
    match version {
        Version::V4 => match v4::Packet::read(&mut bytes, packet.len()) {
            Ok(v4::Packet::ConnAck(ack)) => refusal_v4(ack.code).map(|()| Accepted {
                session_present: ack.session_present,
                receive_maximum: u16::MAX,
                maximum_qos: 2,
                retain_available: true,
                maximum_packet_size: u32::MAX,
                keep_alive: None,
            }),
            _ => Err(Cause::Malformed),
        },
        Version::V5 => match v5::Packet::read(&mut bytes, None) {
            Ok(v5::Packet::ConnAck(ack)) => {
                refusal_v5(ack.code)?;
                let p = ack.properties.as_ref();
                let receive_maximum = p.and_then(|p| p.receive_max).unwrap_or(u16::MAX);
                let maximum_packet_size = p.and_then(|p| p.max_packet_size).unwrap_or(u32::MAX);
                // Neither may be 0 (sections 3.2.2.3.3 and 3.2.2.3.6).
                if receive_maximum == 0 || maximum_packet_size == 0 {
                    return Err(Cause::Protocol);
                }
                Ok(Accepted {
                    session_present: ack.session_present,
                    receive_maximum,
                    maximum_qos: p.and_then(|p| p.max_qos).unwrap_or(2),
                    retain_available: p.and_then(|p| p.retain_available) != Some(0),
                    maximum_packet_size,
                    keep_alive: p.and_then(|p| p.server_keep_alive),
                })
            }
            _ => Err(Cause::Malformed),
        },
    }
}

fn refusal_v4(code: v4::ConnectReturnCode) -> Result<(), Cause> {
    use v4::ConnectReturnCode as Code;
    match code {
        Code::Success => Ok(()),
        Code::RefusedProtocolVersion => Err(Cause::UnsupportedVersion),
        Code::BadClientId => Err(Cause::IdentifierRejected),
        Code::ServiceUnavailable => Err(Cause::ServerUnavailable),
        Code::BadUserNamePassword => Err(Cause::BadUserNameOrPassword),
        Code::NotAuthorized => Err(Cause::NotAuthorized),
    }
}

fn refusal_v5(code: v5::ConnectReturnCode) -> Result<(), Cause> {
    use v5::ConnectReturnCode as Code;
    match code {
        Code::Success => Ok(()),
        Code::RefusedProtocolVersion | Code::UnsupportedProtocolVersion => Err(Cause::UnsupportedVersion),
        Code::BadClientId | Code::ClientIdentifierNotValid => Err(Cause::IdentifierRejected),
        Code::ServiceUnavailable | Code::ServerUnavailable => Err(Cause::ServerUnavailable),
        Code::BadUserNamePassword | Code::BadAuthenticationMethod => Err(Cause::BadUserNameOrPassword),
        Code::NotAuthorized => Err(Cause::NotAuthorized),
        Code::ServerBusy => Err(Cause::ServerBusy),
        Code::Banned => Err(Cause::Banned),
        Code::QuotaExceeded => Err(Cause::QuotaExceeded),
        Code::ConnectionRateExceeded => Err(Cause::RateExceeded),
        Code::UseAnotherServer | Code::ServerMoved => Err(Cause::ServerMoved),
        _ => Err(Cause::RefusedOther),
    }
}

/// Reads a SUBACK: its packet identifier and, for each filter, how it is counted.
///
/// # Errors
/// [`Cause::Malformed`], also when it answers another number of filters than were asked for.
pub fn suback(packet: &[u8], plan: &ShardPlan) -> Result<(u16, Vec<Counter>), Cause> {
    let mut bytes = BytesMut::from(packet);
    // Granted QoS, or the counter of a failure.
    let (id, codes): (u16, Vec<Result<u8, Counter>>) = match plan.version {
        Version::V4 => match v4::Packet::read(&mut bytes, packet.len()) {
            Ok(v4::Packet::SubAck(ack)) => {
                let code = |c: &v4::SubscribeReasonCode| match c {
                    v4::SubscribeReasonCode::Success(qos) => Ok(*qos as u8),
                    v4::SubscribeReasonCode::Failure => Err(Counter::SubscribeOther),
                };
                (ack.pkid, ack.return_codes.iter().map(code).collect())
            }
            _ => return Err(Cause::Malformed),
        },
        Version::V5 => match v5::Packet::read(&mut bytes, None) {
            Ok(v5::Packet::SubAck(ack)) => {
                use v5::SubscribeReasonCode as Code;
                let code = |c: &Code| match c {
                    Code::Success(qos) => Ok(*qos as u8),
                    Code::NotAuthorized => Err(Counter::SubscribeNotAuthorized),
                    Code::TopicFilterInvalid => Err(Counter::SubscribeFilterInvalid),
                    Code::QuotaExceeded => Err(Counter::SubscribeQuota),
                    Code::SharedSubscriptionsNotSupported => Err(Counter::SubscribeSharedUnsupported),
                    Code::WildcardSubscriptionsNotSupported => Err(Counter::SubscribeWildcardUnsupported),
                    _ => Err(Counter::SubscribeOther),
                };
                (ack.pkid, ack.return_codes.iter().map(code).collect())
            }
            _ => return Err(Cause::Malformed),
        },
    };
    if codes.len() != plan.subscriptions.len() {
        return Err(Cause::Malformed);
    }
    let judged = codes.into_iter().zip(&plan.subscriptions).map(|(code, (_, asked))| match code {
        Ok(granted) if granted >= *asked => Counter::SubscribesSucceeded,
        Ok(_) => Counter::SubscribeLowerQos,
        Err(counter) => counter,
    });
    Ok((id, judged.collect()))
}

/// The cause that an MQTT 5 server gives in its DISCONNECT; MQTT 3.1.1 servers send none.
pub fn server_disconnect(packet: &[u8], version: Version) -> Cause {
    use v5::DisconnectReasonCode as Code;
    if version == Version::V4 {
        return Cause::Protocol;
    }
    let mut bytes = BytesMut::from(packet);
    // A DISCONNECT without a body means reason 0, which the codec calls an error.
    if packet.len() == 2 {
        return Cause::ServerOther;
    }
    match v5::Packet::read(&mut bytes, None) {
        Ok(v5::Packet::Disconnect(disconnect)) => match disconnect.reason_code {
            Code::SessionTakenOver => Cause::TakenOver,
            Code::ServerShuttingDown => Cause::ServerShutdown,
            Code::ServerBusy => Cause::ServerBusy,
            Code::KeepAliveTimeout => Cause::ServerKeepAlive,
            Code::NotAuthorized => Cause::NotAuthorized,
            Code::QuotaExceeded | Code::MessageRateTooHigh => Cause::QuotaExceeded,
            Code::UseAnotherServer | Code::ServerMoved => Cause::ServerMoved,
            Code::PacketTooLarge => Cause::PacketTooLarge,
            Code::ReceiveMaximumExceeded => Cause::ReceiveMaximum,
            Code::TopicAliasInvalid => Cause::TopicAlias,
            Code::QoSNotSupported => Cause::QosNotSupported,
            Code::RetainNotSupported => Cause::RetainNotSupported,
            _ => Cause::ServerOther,
        },
        _ => Cause::Malformed,
    }
}
