//! What is measured: the workloads, their sizes and the bars that the worker must hold.

use std::time::Duration;

use crate::load::Kind;

/// Worker's CPU per message sent, over the floor's, at most.
const SEND_BAR: f64 = 1.25;
/// Worker's CPU per message received, over the receiving floor's, at most.
const RECEIVE_BAR: f64 = 1.25;
/// KiB of resident memory per TCP connection, at most.
const MEMORY_BAR_KIB: f64 = 6.0;
/// QoS 0 messages a second from one core against a discarding sink, at least.
const FLOOD_BAR: f64 = 250_000.0;
/// Worker over rumqttc's `EventLoop` in the same run, at most.
pub const EVENT_LOOP_BAR: f64 = 1.0;

/// Publishers that feed the receiving workloads; not measured.
pub const SOURCE_CLIENTS: usize = 20;

/// What a sample's figure is, and how it is judged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Measure {
    /// Microseconds of CPU per message, kernel included; the bar is a ratio to the floor.
    CpuPerMessage {
        /// Highest ratio to the floor.
        bar: f64,
    },
    /// Messages per second of CPU; the bar is the rate itself.
    RatePerCore {
        /// Lowest rate.
        bar: f64,
    },
    /// KiB of resident memory per connection; the bar is the size itself.
    Memory {
        /// Largest size.
        bar: f64,
    },
}

impl Measure {
    /// Unit of the figure.
    pub fn unit(self) -> &'static str {
        match self {
            Self::CpuPerMessage { .. } => "us CPU/message",
            Self::RatePerCore { .. } => "messages/CPU-second",
            Self::Memory { .. } => "KiB/connection",
        }
    }
}

/// One workload.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Name in tables, filters and JSON.
    pub name: &'static str,
    /// What one contender's clients do.
    pub kind: Kind,
    /// Clients of the contender.
    pub clients: usize,
    /// Messages a second that the contender sends or receives; 0 is as fast as possible.
    pub rate: u64,
    /// QoS.
    pub qos: u8,
    /// Bytes of payload.
    pub payload: usize,
    /// What is measured.
    pub measure: Measure,
}

/// Every workload, in the order of the table.
pub const ALL: [Workload; 8] = [
    Workload {
        name: "send-qos1-1KiB",
        kind: Kind::Send,
        clients: 1000,
        rate: 10_000,
        qos: 1,
        payload: 1024,
        measure: Measure::CpuPerMessage { bar: SEND_BAR },
    },
    Workload {
        name: "send-qos0-16B",
        kind: Kind::Send,
        clients: 1000,
        rate: 20_000,
        qos: 0,
        payload: 16,
        measure: Measure::CpuPerMessage { bar: SEND_BAR },
    },
    Workload {
        name: "receive-qos0-20k",
        kind: Kind::Receive,
        clients: 500,
        rate: 20_000,
        qos: 0,
        payload: 64,
        measure: Measure::CpuPerMessage { bar: RECEIVE_BAR },
    },
    Workload {
        name: "receive-qos1-20k",
        kind: Kind::Receive,
        clients: 500,
        rate: 20_000,
        qos: 1,
        payload: 64,
        measure: Measure::CpuPerMessage { bar: RECEIVE_BAR },
    },
    Workload {
        name: "receive-qos0-100k",
        kind: Kind::Receive,
        clients: 500,
        rate: 100_000,
        qos: 0,
        payload: 64,
        measure: Measure::CpuPerMessage { bar: RECEIVE_BAR },
    },
    Workload {
        name: "flood-qos0-16B",
        kind: Kind::Send,
        clients: 100,
        rate: 0,
        qos: 0,
        payload: 16,
        measure: Measure::RatePerCore { bar: FLOOD_BAR },
    },
    Workload {
        name: "idle-memory",
        kind: Kind::Idle,
        clients: 10_000,
        rate: 0,
        qos: 0,
        payload: 0,
        measure: Measure::Memory { bar: MEMORY_BAR_KIB },
    },
    Workload {
        name: "busy-memory",
        kind: Kind::Send,
        clients: 10_000,
        rate: 0,
        qos: 1,
        payload: 1024,
        measure: Measure::Memory { bar: MEMORY_BAR_KIB },
    },
];

/// How long and how often.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Rounds; in each every contender runs once, in a rotated order.
    pub rounds: usize,
    /// Load before the measured window.
    pub warmup: Duration,
    /// The measured window.
    pub window: Duration,
    /// Connections of the larger of the two processes whose memory is compared.
    pub connections: usize,
}
