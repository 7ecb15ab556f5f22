//! Why a connection attempt failed or a connection ended: one name for each cause, how it is counted, and whether trying
//! again can help.

use super::wire::Bad;
use crate::accounting::Counter;
use std::io;

/// The cause of a failed attempt or a lost connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is the reason label of the same name in the table of counters")]
pub enum Cause {
    DnsNotFound,
    DnsFailed,
    TcpRefused,
    TcpUnreachable,
    TcpFailed,
    NoFileDescriptors,
    NoSourcePorts,
    PlainOnTlsPort,
    /// TLS failed, and may succeed at the next try.
    TlsFailed,
    /// The peer refused the handshake, as it will again.
    TlsRefused,
    /// The broker's certificate was not accepted.
    TlsCertificate,
    /// The broker did not accept our certificate, or asks for one.
    TlsClientCertificate,
    TlsOnPlainPort,
    /// The WebSocket upgrade failed, and may succeed at the next try.
    WebSocketFailed,
    /// The WebSocket upgrade was refused, as it will be again.
    WebSocketRefused,
    BadUserNameOrPassword,
    NotAuthorized,
    IdentifierRejected,
    UnsupportedVersion,
    ServerUnavailable,
    ServerBusy,
    Banned,
    QuotaExceeded,
    RateExceeded,
    ServerMoved,
    RefusedOther,
    /// The attempt took longer than the connect timeout; the phase says in which step.
    Timeout,
    ClosedByPeer,
    Reset,
    IoError,
    KeepAliveTimeout,
    Malformed,
    Protocol,
    PacketTooLarge,
    TopicAlias,
    ReceiveMaximum,
    QosNotSupported,
    RetainNotSupported,
    SubscribeFailed,
    TakenOver,
    ServerShutdown,
    ServerKeepAlive,
    ServerOther,
}

/// The step in which an attempt was when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Before the TCP connection was made.
    Tcp,
    /// The TLS handshake.
    Tls,
    /// The WebSocket upgrade.
    WebSocket,
    /// CONNECT sent, or about to be.
    Connack,
}

impl Cause {
    /// How a failed attempt (no CONNACK with success yet) is counted.
    pub fn of_attempt(self, step: Step) -> Counter {
        match self {
            Self::DnsNotFound => Counter::ConnectDnsNotFound,
            Self::DnsFailed => Counter::ConnectDnsFailed,
            Self::TcpRefused => Counter::ConnectTcpRefused,
            Self::TcpUnreachable => Counter::ConnectTcpUnreachable,
            Self::TcpFailed | Self::IoError => Counter::ConnectTcpFailed,
            Self::NoFileDescriptors => Counter::ConnectNoFileDescriptors,
            Self::NoSourcePorts => Counter::ConnectNoSourcePorts,
            Self::PlainOnTlsPort => Counter::ConnectPlainOnTlsPort,
            Self::TlsFailed | Self::TlsRefused => Counter::ConnectTlsFailed,
            Self::TlsCertificate => Counter::ConnectTlsCertificate,
            Self::TlsClientCertificate => Counter::ConnectTlsClientCertificate,
            Self::TlsOnPlainPort => Counter::ConnectTlsOnPlainPort,
            Self::WebSocketFailed | Self::WebSocketRefused => Counter::ConnectWebSocketFailed,
            Self::BadUserNameOrPassword => Counter::ConnectBadUserNameOrPassword,
            Self::NotAuthorized => Counter::ConnectNotAuthorized,
            Self::IdentifierRejected => Counter::ConnectIdentifierRejected,
            Self::UnsupportedVersion => Counter::ConnectUnsupportedVersion,
            Self::ServerUnavailable | Self::ServerShutdown => Counter::ConnectServerUnavailable,
            Self::ServerBusy => Counter::ConnectServerBusy,
            Self::Banned => Counter::ConnectBanned,
            Self::QuotaExceeded => Counter::ConnectQuotaExceeded,
            Self::RateExceeded => Counter::ConnectRateExceeded,
            Self::ServerMoved => Counter::ConnectServerMoved,
            Self::Timeout => match step {
                Step::Tcp => Counter::ConnectTcpTimeout,
                Step::Tls => Counter::ConnectTlsTimeout,
                Step::WebSocket => Counter::ConnectWebSocketFailed,
                Step::Connack => Counter::ConnectConnackTimeout,
            },
            Self::ClosedByPeer => Counter::ConnectClosedByPeer,
            Self::Reset => Counter::ConnectReset,
            Self::Malformed | Self::Protocol | Self::PacketTooLarge | Self::TopicAlias => Counter::ConnectProtocolError,
            _ => Counter::ConnectRefusedOther,
        }
    }

    /// How the loss of a connection after CONNACK is counted.
    pub fn of_connection(self) -> Counter {
        match self {
            Self::ClosedByPeer => Counter::DisconnectClosedByPeer,
            Self::Reset => Counter::DisconnectReset,
            Self::KeepAliveTimeout => Counter::DisconnectKeepAlive,
            Self::Malformed => Counter::DisconnectMalformed,
            Self::Protocol => Counter::DisconnectProtocolError,
            Self::PacketTooLarge => Counter::DisconnectPacketTooLarge,
            Self::TopicAlias => Counter::DisconnectTopicAlias,
            Self::ReceiveMaximum => Counter::DisconnectReceiveMaximum,
            Self::QosNotSupported => Counter::DisconnectQosNotSupported,
            Self::RetainNotSupported => Counter::DisconnectRetainNotSupported,
            Self::SubscribeFailed | Self::Timeout => Counter::DisconnectSubscribeFailed,
            Self::TlsFailed | Self::TlsRefused | Self::TlsClientCertificate => Counter::DisconnectTls,
            Self::TakenOver => Counter::DisconnectTakenOver,
            Self::ServerShutdown => Counter::DisconnectServerShutdown,
            Self::ServerBusy => Counter::DisconnectServerBusy,
            Self::ServerKeepAlive => Counter::DisconnectServerKeepAlive,
            Self::NotAuthorized => Counter::DisconnectNotAuthorized,
            Self::QuotaExceeded => Counter::DisconnectQuota,
            Self::ServerMoved => Counter::DisconnectServerMoved,
            Self::ServerOther => Counter::DisconnectServerOther,
            _ => Counter::DisconnectWriteFailed,
        }
    }

    /// Whether another attempt of the same client must fail in the same way, so that it is given up.
    pub fn incurable(self) -> bool {
        matches!(
            self,
            Self::DnsNotFound
                | Self::PlainOnTlsPort
                | Self::TlsRefused
                | Self::TlsCertificate
                | Self::TlsClientCertificate
                | Self::TlsOnPlainPort
                | Self::WebSocketRefused
                | Self::BadUserNameOrPassword
                | Self::NotAuthorized
                | Self::IdentifierRejected
                | Self::UnsupportedVersion
                | Self::Banned
                | Self::SubscribeFailed
                | Self::QosNotSupported
                | Self::RetainNotSupported
                | Self::TakenOver
        )
    }

    /// The cause behind an error of a socket.
    pub fn of_io(error: &io::Error) -> Cause {
        use nix::errno::Errno;
        match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ECONNREFUSED) => Cause::TcpRefused,
            Some(Errno::EHOSTUNREACH | Errno::ENETUNREACH | Errno::ENETDOWN) => Cause::TcpUnreachable,
            Some(Errno::EMFILE | Errno::ENFILE) => Cause::NoFileDescriptors,
            Some(Errno::EADDRNOTAVAIL | Errno::EADDRINUSE) => Cause::NoSourcePorts,
            Some(Errno::ECONNRESET | Errno::EPIPE) => Cause::Reset,
            Some(Errno::ETIMEDOUT) => Cause::Timeout,
            _ => Cause::IoError,
        }
    }
}

impl From<Bad> for Cause {
    fn from(bad: Bad) -> Self {
        match bad {
            Bad::Malformed => Cause::Malformed,
            Bad::Protocol => Cause::Protocol,
            Bad::TooLarge => Cause::PacketTooLarge,
            Bad::TopicAlias => Cause::TopicAlias,
        }
    }
}
