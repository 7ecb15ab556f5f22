//! The tests that need a real cluster: one process, one cluster, which starts with the first test and ends with the process.

mod chart;
mod refused;
mod restart;
mod run;
mod smoke;
mod spec;
