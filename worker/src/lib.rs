//! One shard of an MQTT load test: a slice of the clients of one group, driven against a broker and counted exactly.
//!
//! [`accounting`] and [`protocol`] are what the operator shares with a worker: what is counted, how it travels, and how
//! a run is controlled. [`engine`] is the clients, [`shard`] their common life, the rest the edges of the process. Nothing
//! here talks to Kubernetes.

pub mod accounting;
pub mod engine;
pub mod http;
pub mod probe;
pub mod process;
pub mod protocol;
pub mod resolve;
pub mod shard;
