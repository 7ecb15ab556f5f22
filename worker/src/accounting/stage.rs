//! The table of latencies. Each stage has a histogram and a maximum.

macro_rules! stages {
    ($($variant:ident = $name:literal, $metric:literal, $help:literal;)*) => {
        /// A latency that is measured. The discriminant is its index in [`Snapshot`](super::Snapshot).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Stage {
            $(#[doc = $help] $variant,)*
        }

        impl Stage {
            /// All stages, in the order of their discriminants.
            pub const ALL: &'static [Stage] = &[$(Stage::$variant,)*];
            /// How many there are.
            pub const COUNT: usize = Self::ALL.len();

            /// The name in status, report and thresholds: `publishAck`.
            pub const fn name(self) -> &'static str {
                match self { $(Stage::$variant => $name,)* }
            }

            /// The metric's name without prefix and unit.
            pub const fn metric(self) -> &'static str {
                match self { $(Stage::$variant => $metric,)* }
            }

            /// What it measures, in one sentence.
            pub const fn help(self) -> &'static str {
                match self { $(Stage::$variant => $help,)* }
            }
        }
    };
}

stages! {
    EngineLag = "engineLag", "engine_lag", "From the instant a slot was due to the instant the engine took it up.";
    BlockedLag = "blockedLag", "blocked_lag", "From the engine's attempt to the kernel's acceptance of the last byte.";
    PublishAck = "publishAck", "publish_ack", "From the instant a slot was due to PUBACK or PUBCOMP.";
    PublishAckService = "publishAckService", "publish_ack_service", "From the write to PUBACK or PUBCOMP.";
    ConnectTcp = "connectTcp", "connect_tcp", "From the start of an attempt to the TCP connection.";
    ConnectTls = "connectTls", "connect_tls", "From the TCP connection to the end of the TLS handshake.";
    ConnectWebSocket = "connectWebSocket", "connect_web_socket", "From the TCP or TLS connection to the end of the WebSocket upgrade.";
    ConnectConnack = "connectConnack", "connect_connack", "From CONNECT to CONNACK.";
    SubscribeAck = "subscribeAck", "subscribe_ack", "From SUBSCRIBE to SUBACK.";
    EndToEnd = "endToEnd", "end_to_end", "From the instant a slot was due to its arrival at a subscriber.";
    Recovery = "recovery", "recovery", "From the loss of a connection to the client being ready again.";
}
