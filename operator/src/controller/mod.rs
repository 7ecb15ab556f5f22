//! The Kubernetes runtime of a run: it reads objects, turns them into observations, lets [`crate::run`] decide, and does what
//! was decided. It decides nothing about load itself.

pub mod apply;
pub mod build;
pub mod error;
pub mod health;
pub mod leader;
pub mod metrics;
pub mod pods;
pub mod server;
pub mod settings;
pub mod teardown;
pub mod watch;
