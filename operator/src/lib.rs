//! The operator: it turns an `MqttLoadTest` into sharded load and a verdict, in a cluster or without one.

pub mod cli;
pub mod controller;
pub mod local;
pub mod manifest;
pub mod run;
pub mod scrape;
