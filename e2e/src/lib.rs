//! What the cluster tests stand on: a real cluster that ends with the test process, a namespace for each test, brokers,
//! packet captures on the broker's side, and the API server's audit log.
//!
//! The cluster itself is made by the scripts in `e2e/cluster`; nothing here knows how. The tests are in `e2e/tests`.

mod audit;
mod bed;
mod capture;
mod cluster;
mod command;
mod flow;
mod load_test;
mod mosquitto;
mod operator;
mod pods;
mod process;
mod wait;

pub use audit::{AuditEvent, AuditLog};
pub use bed::{Lane, TestBed, test_bed};
pub use capture::Capture;
pub use cluster::Cluster;
pub use command::Command;
pub use flow::{Flows, Packet, PacketType, Sender};
pub use load_test::{LoadTest, condition};
pub use mosquitto::Mosquitto;
pub use operator::Operator;
pub use pods::{EndedPod, PodRecorder};
pub use process::PodProcess;
pub use wait::{eventually, is_gone};

/// The root of the working tree, where `charts/` and `e2e/` are.
#[must_use]
pub fn repository() -> &'static std::path::Path {
    let e2e = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    e2e.parent().unwrap_or(e2e)
}
