//! The table of counters: everything that only grows, with its metric name, label and help text.
//!
//! Counters of one family share a metric and differ in one static label, so a family's total is the sum over its members.

macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident = $family:literal, $unit:literal, $label:expr, $help:literal;)*) => {
        /// One count of a shard. The discriminant is its index in [`Snapshot`](super::Snapshot).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Counter {
            $(#[doc = $help] $(#[$doc])* $variant,)*
        }

        impl Counter {
            /// All counters, in the order of their discriminants.
            pub const ALL: &'static [Counter] = &[$(Counter::$variant,)*];
            /// How many there are.
            pub const COUNT: usize = Self::ALL.len();

            /// The family: the metric's name without prefix, unit and `_total`.
            pub const fn family(self) -> &'static str {
                match self { $(Counter::$variant => $family,)* }
            }

            /// The unit that becomes a part of the metric's name: `messages`, `connections`, `bytes`, `nanoseconds`...
            pub const fn unit(self) -> &'static str {
                match self { $(Counter::$variant => $unit,)* }
            }

            /// The static label that tells this member of the family from the others, if it has any.
            pub const fn label(self) -> Option<(&'static str, &'static str)> {
                match self { $(Counter::$variant => $label,)* }
            }

            /// What it counts, in one sentence.
            pub const fn help(self) -> &'static str {
                match self { $(Counter::$variant => $help,)* }
            }
        }
    };
}

const fn qos(value: &'static str) -> Option<(&'static str, &'static str)> {
    Some(("qos", value))
}

const fn reason(value: &'static str) -> Option<(&'static str, &'static str)> {
    Some(("reason", value))
}

const fn kind(value: &'static str) -> Option<(&'static str, &'static str)> {
    Some(("kind", value))
}

counters! {
    Planned = "planned", "messages", None, "Publish slots of the schedule that are due so far.";
    Absent = "absent", "messages", None, "Slots due while no attempt was alive or before the client's first connect.";
    Scheduled = "scheduled", "messages", None, "Slots that were due for a client that was there.";
    SentQos0 = "sent", "messages", qos("0"), "First transmissions whose last byte the kernel accepted.";
    SentQos1 = "sent", "messages", qos("1"), "First transmissions whose last byte the kernel accepted.";
    SentQos2 = "sent", "messages", qos("2"), "First transmissions whose last byte the kernel accepted.";
    SkippedDisconnected = "skipped", "messages", reason("disconnected"), "Slots that were not sent.";
    SkippedWindowFull = "skipped", "messages", reason("windowFull"), "Slots that were not sent.";
    SkippedSocketFull = "skipped", "messages", reason("socketFull"), "Slots that were not sent.";
    SkippedBehind = "skipped", "messages", reason("behind"), "Slots that were not sent.";
    SkippedEndOfRun = "skipped", "messages", reason("endOfRun"), "Slots that were not sent.";
    Retransmitted = "retransmitted", "messages", None, "PUBLISH packets sent again with DUP after a reconnect.";
    Acked = "acked", "messages", None, "PUBACK or PUBCOMP with a reason code below 0x80.";
    NoSubscribers = "no_subscribers", "messages", None, "The part of acked with reason code 0x10 (no matching subscribers).";
    RefusedUnspecified = "refused", "messages", reason("unspecifiedError"), "PUBACK, PUBREC or PUBCOMP with a reason code of 0x80 or above.";
    RefusedImplementation = "refused", "messages", reason("implementationSpecificError"), "PUBACK, PUBREC or PUBCOMP with a reason code of 0x80 or above.";
    RefusedNotAuthorized = "refused", "messages", reason("notAuthorized"), "PUBACK, PUBREC or PUBCOMP with a reason code of 0x80 or above.";
    RefusedTopicName = "refused", "messages", reason("topicNameInvalid"), "PUBACK, PUBREC or PUBCOMP with a reason code of 0x80 or above.";
    RefusedPacketIdInUse = "refused", "messages", reason("packetIdentifierInUse"), "PUBACK, PUBREC or PUBCOMP with a reason code of 0x80 or above.";
    RefusedPacketIdNotFound = "refused", "messages", reason("packetIdentifierNotFound"), "PUBACK, PUBREC or PUBCOMP with a reason code of 0x80 or above.";
    RefusedQuota = "refused", "messages", reason("quotaExceeded"), "PUBACK, PUBREC or PUBCOMP with a reason code of 0x80 or above.";
    RefusedPayloadFormat = "refused", "messages", reason("payloadFormatInvalid"), "PUBACK, PUBREC or PUBCOMP with a reason code of 0x80 or above.";
    RefusedOther = "refused", "messages", reason("other"), "PUBACK, PUBREC or PUBCOMP with a reason code of 0x80 or above.";
    Abandoned = "abandoned", "messages", None, "Sent with QoS 1 or 2, then the session that would have carried the acknowledgement was gone.";
    Fenced = "fenced", "messages", None, "QoS 0 messages followed on their connection by a PINGREQ that was answered.";
    UnfencedLost = "unfenced_lost", "messages", None, "QoS 0 messages whose connection ended before a PINGRESP fenced them.";

    Received = "received", "messages", None, "PUBLISH packets of this run with RETAIN = 0, duplicates included.";
    Unique = "unique", "messages", None, "Received without the duplicates.";
    Duplicates = "duplicates", "messages", None, "Received again by the same client: legal at QoS 1, a failure at QoS 2.";
    DuplicatesQos2 = "duplicates_qos2", "messages", None, "The part of duplicates that came with QoS 2.";
    OutOfOrder = "out_of_order", "messages", None, "First deliveries that came after a later message of their stream.";
    Retained = "retained", "messages", None, "PUBLISH packets with RETAIN = 1: not deliveries of this run.";
    Foreign = "foreign", "messages", None, "PUBLISH packets that carry no header of this run although this run's messages do.";
    Unexpected = "unexpected", "messages", None, "PUBLISH packets to a client that has no subscription.";
    ExpectedMin = "expected_min", "messages", None, "Deliveries that must arrive: over acknowledged and fenced messages.";
    ExpectedMax = "expected_max", "messages", None, "Deliveries that may arrive: over sent messages.";
    Excused = "excused", "messages", None, "Deliveries a clean-session subscriber may have missed while it was disconnected.";
    Late = "late", "messages", None, "Received after the drain ended.";
    NegativeLatency = "negative_latency", "messages", None, "Deliveries that seem to arrive before they were due: the clocks differ.";

    ConnectsAttempted = "connects_attempted", "connections", None, "Connection attempts begun.";
    ConnectsSucceeded = "connects_succeeded", "connections", None, "CONNACKs with success.";
    ConnectDnsNotFound = "connects_failed", "connections", reason("dnsNotFound"), "Connection attempts that failed.";
    ConnectDnsFailed = "connects_failed", "connections", reason("dnsFailed"), "Connection attempts that failed.";
    ConnectTcpRefused = "connects_failed", "connections", reason("tcpRefused"), "Connection attempts that failed.";
    ConnectTcpUnreachable = "connects_failed", "connections", reason("tcpUnreachable"), "Connection attempts that failed.";
    ConnectTcpTimeout = "connects_failed", "connections", reason("tcpTimeout"), "Connection attempts that failed.";
    ConnectTcpFailed = "connects_failed", "connections", reason("tcpFailed"), "Connection attempts that failed.";
    ConnectNoFileDescriptors = "connects_failed", "connections", reason("noFileDescriptors"), "Connection attempts that failed.";
    ConnectNoSourcePorts = "connects_failed", "connections", reason("noSourcePorts"), "Connection attempts that failed.";
    ConnectTlsFailed = "connects_failed", "connections", reason("tlsFailed"), "Connection attempts that failed.";
    ConnectTlsCertificate = "connects_failed", "connections", reason("tlsCertificateInvalid"), "Connection attempts that failed.";
    ConnectTlsClientCertificate = "connects_failed", "connections", reason("tlsClientCertificateRefused"), "Connection attempts that failed.";
    ConnectTlsOnPlainPort = "connects_failed", "connections", reason("tlsOnPlainPort"), "Connection attempts that failed.";
    ConnectPlainOnTlsPort = "connects_failed", "connections", reason("plainOnTlsPort"), "Connection attempts that failed.";
    ConnectTlsTimeout = "connects_failed", "connections", reason("tlsTimeout"), "Connection attempts that failed.";
    ConnectWebSocketFailed = "connects_failed", "connections", reason("webSocketFailed"), "Connection attempts that failed.";
    ConnectConnackTimeout = "connects_failed", "connections", reason("connackTimeout"), "Connection attempts that failed.";
    ConnectBadUserNameOrPassword = "connects_failed", "connections", reason("badUserNameOrPassword"), "Connection attempts that failed.";
    ConnectNotAuthorized = "connects_failed", "connections", reason("notAuthorized"), "Connection attempts that failed.";
    ConnectIdentifierRejected = "connects_failed", "connections", reason("clientIdentifierNotValid"), "Connection attempts that failed.";
    ConnectUnsupportedVersion = "connects_failed", "connections", reason("unsupportedProtocolVersion"), "Connection attempts that failed.";
    ConnectServerUnavailable = "connects_failed", "connections", reason("serverUnavailable"), "Connection attempts that failed.";
    ConnectServerBusy = "connects_failed", "connections", reason("serverBusy"), "Connection attempts that failed.";
    ConnectBanned = "connects_failed", "connections", reason("banned"), "Connection attempts that failed.";
    ConnectQuotaExceeded = "connects_failed", "connections", reason("quotaExceeded"), "Connection attempts that failed.";
    ConnectRateExceeded = "connects_failed", "connections", reason("connectionRateExceeded"), "Connection attempts that failed.";
    ConnectServerMoved = "connects_failed", "connections", reason("useAnotherServer"), "Connection attempts that failed.";
    ConnectRefusedOther = "connects_failed", "connections", reason("refusedOther"), "Connection attempts that failed.";
    ConnectProtocolError = "connects_failed", "connections", reason("protocolError"), "Connection attempts that failed.";
    ConnectClosedByPeer = "connects_failed", "connections", reason("closedByPeer"), "Connection attempts that failed.";
    ConnectReset = "connects_failed", "connections", reason("reset"), "Connection attempts that failed.";
    TlsFull = "tls_handshakes", "connections", kind("full"), "TLS handshakes that succeeded.";
    TlsResumed = "tls_handshakes", "connections", kind("resumed"), "TLS handshakes that succeeded.";
    Reconnects = "reconnects", "connections", None, "Connections made again by a client that was connected before.";

    DisconnectClosedByPeer = "disconnects", "connections", reason("closedByPeer"), "Connections that ended unasked after CONNACK.";
    DisconnectReset = "disconnects", "connections", reason("reset"), "Connections that ended unasked after CONNACK.";
    DisconnectWriteFailed = "disconnects", "connections", reason("ioError"), "Connections that ended unasked after CONNACK.";
    DisconnectKeepAlive = "disconnects", "connections", reason("keepAliveTimeout"), "Connections that ended unasked after CONNACK.";
    DisconnectMalformed = "disconnects", "connections", reason("malformedPacket"), "Connections that ended unasked after CONNACK.";
    DisconnectProtocolError = "disconnects", "connections", reason("protocolError"), "Connections that ended unasked after CONNACK.";
    DisconnectPacketTooLarge = "disconnects", "connections", reason("packetTooLarge"), "Connections that ended unasked after CONNACK.";
    DisconnectTopicAlias = "disconnects", "connections", reason("topicAliasInvalid"), "Connections that ended unasked after CONNACK.";
    DisconnectReceiveMaximum = "disconnects", "connections", reason("receiveMaximumExceeded"), "Connections that ended unasked after CONNACK.";
    DisconnectQosNotSupported = "disconnects", "connections", reason("qosNotSupported"), "Connections that ended unasked after CONNACK.";
    DisconnectRetainNotSupported = "disconnects", "connections", reason("retainNotSupported"), "Connections that ended unasked after CONNACK.";
    DisconnectSubscribeFailed = "disconnects", "connections", reason("subscribeFailed"), "Connections that ended unasked after CONNACK.";
    DisconnectTls = "disconnects", "connections", reason("tlsFailed"), "Connections that ended unasked after CONNACK.";
    DisconnectTakenOver = "disconnects", "connections", reason("sessionTakenOver"), "Connections that ended unasked after CONNACK.";
    DisconnectServerShutdown = "disconnects", "connections", reason("serverShuttingDown"), "Connections that ended unasked after CONNACK.";
    DisconnectServerBusy = "disconnects", "connections", reason("serverBusy"), "Connections that ended unasked after CONNACK.";
    DisconnectServerKeepAlive = "disconnects", "connections", reason("serverKeepAliveTimeout"), "Connections that ended unasked after CONNACK.";
    DisconnectNotAuthorized = "disconnects", "connections", reason("notAuthorized"), "Connections that ended unasked after CONNACK.";
    DisconnectQuota = "disconnects", "connections", reason("quotaExceeded"), "Connections that ended unasked after CONNACK.";
    DisconnectServerMoved = "disconnects", "connections", reason("useAnotherServer"), "Connections that ended unasked after CONNACK.";
    DisconnectServerOther = "disconnects", "connections", reason("serverOther"), "Connections that ended unasked after CONNACK.";

    SubscribesSucceeded = "subscribes_succeeded", "subscriptions", None, "Filters granted with the QoS that was asked.";
    SubscribeLowerQos = "subscribes_failed", "subscriptions", reason("lowerQosGranted"), "Filters that were not granted as asked.";
    SubscribeNotAuthorized = "subscribes_failed", "subscriptions", reason("notAuthorized"), "Filters that were not granted as asked.";
    SubscribeFilterInvalid = "subscribes_failed", "subscriptions", reason("topicFilterInvalid"), "Filters that were not granted as asked.";
    SubscribeQuota = "subscribes_failed", "subscriptions", reason("quotaExceeded"), "Filters that were not granted as asked.";
    SubscribeSharedUnsupported = "subscribes_failed", "subscriptions", reason("sharedNotSupported"), "Filters that were not granted as asked.";
    SubscribeWildcardUnsupported = "subscribes_failed", "subscriptions", reason("wildcardNotSupported"), "Filters that were not granted as asked.";
    SubscribeOther = "subscribes_failed", "subscriptions", reason("other"), "Filters that were not granted as asked.";
    SubscribeTimeout = "subscribes_failed", "subscriptions", reason("timeout"), "Filters that were not granted as asked.";

    BytesSent = "sent", "bytes", None, "MQTT bytes that the kernel accepted.";
    BytesReceived = "received", "bytes", None, "MQTT bytes read.";
    CpuThrottled = "cpu_throttled", "nanoseconds", None, "Time for which the control group's CPU quota stopped this process.";
    CpuUsed = "cpu_used", "nanoseconds", None, "CPU time of this process, kernel included.";
    LoopTurns = "event_loop_turns", "turns", None, "Turns of the event loops.";
    LoopTurnsOver5Ms = "event_loop_slow_turns", "turns", None, "Turns of the event loops that took over 5 ms.";
}

impl Counter {
    /// The members of a family, in table order.
    pub fn members(family: &str) -> impl Iterator<Item = Counter> + '_ {
        Self::ALL.iter().copied().filter(move |counter| counter.family() == family && counter.unit() != "bytes")
    }

    /// `sent` of one QoS.
    pub const fn sent(qos: u8) -> Counter {
        match qos {
            0 => Counter::SentQos0,
            1 => Counter::SentQos1,
            _ => Counter::SentQos2,
        }
    }

    /// The label's value (`tcpRefused`), or the family's name where there is no label.
    pub const fn name(self) -> &'static str {
        match self.label() {
            Some((_, value)) => value,
            None => self.family(),
        }
    }

    /// The metric's whole name without the prefix: `sent_messages_total`.
    pub fn metric_name(self) -> String {
        format!("{}_{}_total", self.family(), self.unit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_series_has_a_name_of_its_own() {
        let names: HashSet<_> = Counter::ALL.iter().map(|c| (c.metric_name(), c.label())).collect();
        assert_eq!(names.len(), Counter::COUNT);
    }

    #[test]
    fn the_members_of_a_family_stand_together_and_share_unit_and_help() {
        let mut seen = HashSet::new();
        let mut last = String::new();
        for counter in Counter::ALL {
            let name = counter.metric_name();
            if name != last {
                assert!(seen.insert(name.clone()), "{name} is scattered over the table");
                last = name;
            }
        }
        assert_eq!(Counter::members("skipped").count(), 5);
        assert_eq!(Counter::members("sent").count(), 3);
    }
}
