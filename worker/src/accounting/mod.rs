//! What is counted, under which names, and the laws between the counts.
//!
//! One table ([`Counter`], [`Gauge`], [`Stage`]) drives the recorder of a worker thread, the merge of snapshots, the
//! exposition at `/metrics`, the termination message and the status. Nothing here does I/O or reads a clock.
//!
//! * [`Snapshot`] is a set of counts; [`Snapshot::merge`] is addition, so shards and threads add up in any order.
//! * [`metrics`] writes a snapshot as Prometheus exposition and reads it back, with bounds against hostile input.
//! * [`summary`] packs a snapshot into the 4,096 bytes of a container's termination message.
//! * [`laws`] are the equations that must close to the message.

pub mod header;
pub mod laws;
pub mod metrics;
pub mod summary;

mod buckets;
mod counter;
mod gauge;
mod histogram;
mod snapshot;
mod stage;

pub use counter::Counter;
pub use gauge::{Combine, Gauge};
pub use histogram::{Histogram, MAX_SCHEMA, MIN_SCHEMA};
pub use snapshot::{Fingerprint, Snapshot};
pub use stage::Stage;
