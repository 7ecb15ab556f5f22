//! One shard of an MQTT load test: a slice of the clients of one group, driven against a broker and counted exactly.
//!
//! [`accounting`] and [`protocol`] are what the operator shares with a worker: what is counted, how it travels, and how
//! a run is controlled. The rest is the shard itself. Nothing here talks to Kubernetes.

pub mod accounting;
pub mod protocol;
