//! What one contender process is asked to do, as command-line arguments, so that every contender gets the same words.

use clap::{Parser, ValueEnum};
use std::net::SocketAddr;

use crate::frames::Protocol;

/// What the clients of one process do once they are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Publish at a rate.
    Send,
    /// Subscribe to one topic and count.
    Receive,
    /// Stay connected.
    Idle,
}

/// One process's load.
#[derive(Clone, Debug, Parser)]
pub struct Load {
    /// What the clients do.
    #[arg(long, value_enum)]
    pub kind: Kind,
    /// Address of the broker or the sink.
    #[arg(long)]
    pub broker: SocketAddr,
    /// How many clients.
    #[arg(long)]
    pub clients: usize,
    /// Messages a second over all clients; 0 is as fast as possible.
    #[arg(long, default_value_t = 0)]
    pub rate: u64,
    /// QoS of publishes or of the subscription: 0 or 1.
    #[arg(long, default_value_t = 0)]
    pub qos: u8,
    /// Bytes of payload.
    #[arg(long, default_value_t = 0)]
    pub payload: usize,
    /// MQTT version.
    #[arg(long)]
    pub protocol: Protocol,
    /// Prefix of the client ids, different for each process.
    #[arg(long)]
    pub id: String,
    /// Topic, in which `%i` becomes the client's number.
    #[arg(long)]
    pub topic: String,
    /// Makes every message begin with an accounting header of the run with this tag.
    #[arg(long)]
    pub run_tag: Option<u32>,
}

impl Load {
    /// The same load as arguments of a contender.
    pub fn to_args(&self) -> Vec<String> {
        let kind = match self.kind {
            Kind::Send => "send",
            Kind::Receive => "receive",
            Kind::Idle => "idle",
        };
        let run_tag = self.run_tag.map(|tag| ("--run-tag", tag.to_string()));
        [
            ("--kind", kind.to_owned()),
            ("--broker", self.broker.to_string()),
            ("--clients", self.clients.to_string()),
            ("--rate", self.rate.to_string()),
            ("--qos", self.qos.to_string()),
            ("--payload", self.payload.to_string()),
            ("--protocol", self.protocol.to_string()),
            ("--id", self.id.clone()),
            ("--topic", self.topic.clone()),
        ]
        .into_iter()
        .chain(run_tag)
        .flat_map(|(name, value)| [name.to_owned(), value])
        .collect()
    }

    /// Client id of client `number`.
    pub fn client_id(&self, number: usize) -> String {
        format!("{}-{number}", self.id)
    }

    /// Topic of client `number`.
    pub fn topic_of(&self, number: usize) -> String {
        self.topic.replace("%i", &number.to_string())
    }

    /// A payload of printable letters that do not all repeat.
    pub fn payload_bytes(&self) -> Vec<u8> {
        (0..self.payload).map(|i| b'a' + (i * 7 % 26) as u8).collect()
    }

    /// When slot `k` is due, in nanoseconds after the start: evenly spaced over all clients, client `k % clients`.
    pub fn due_ns(&self, k: u64) -> u64 {
        (u128::from(k) * 1_000_000_000 / u128::from(self.rate.max(1))) as u64
    }
}
