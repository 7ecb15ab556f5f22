//! The `MqttLoadTest` API: its types with their defaults and limits, what makes a spec valid, and the pure planning of a
//! run into slices. No client and no I/O: everything here is a function of its arguments.

pub mod crd;
pub mod hash;
pub mod plan;
pub mod spec;
pub mod status;
pub mod template;
pub mod validate;
pub mod value;

pub use crd::crd;
pub use spec::{MqttLoadTest, MqttLoadTestSpec};
pub use status::MqttLoadTestStatus;

/// API group of the custom resource.
pub const GROUP: &str = "mqttloadtest.dev";
/// API version of the custom resource.
pub const VERSION: &str = "v1alpha1";
