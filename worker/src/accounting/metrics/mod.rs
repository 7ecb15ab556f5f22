//! Snapshots as Prometheus metrics: written by a worker, read back by the operator.
//!
//! Names begin with `mqtt_loadtest_`. The protobuf form carries native histograms (schema 5) and is what the operator
//! scrapes; the text form carries the same series with a few classic buckets, for people and old scrapers.

mod decode;
mod encode;
mod native;
mod wire;

pub use decode::{DecodeError, Limits, decode};
pub use encode::{Format, encode};

/// What every metric's name begins with.
pub const PREFIX: &str = "mqtt_loadtest";

/// The bucket of a native histogram that holds +Inf: one beyond the bucket of the largest double, as the Prometheus client
/// libraries place it. At schema 5 that is 1024 doublings of 32 buckets, and one.
const INFINITE_BUCKET: i32 = 1024 * 32 + 1;

const FINGERPRINT_METRIC: &str = "fingerprint";

/// Metric name of a gauge without the prefix.
fn gauge_name(gauge: super::Gauge) -> String {
    if gauge.unit().is_empty() { gauge.name().to_owned() } else { format!("{}_{}", gauge.name(), gauge.unit()) }
}
