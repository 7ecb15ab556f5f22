//! A run as a pure state machine: what was observed and the clock go in, the new state and actions come out.
//!
//! Both runtimes (Kubernetes, child processes) use the same functions. Nothing here does I/O, reads a clock or remembers
//! anything: [`RunState`] lives in the status, the rest in what is observed.
//!
//! 1. [`lifecycle::decide`] says whether an object starts a run; [`report`] writes the one status update that begins it.
//! 2. [`next()`] turns [`Observations`] into a [`Next`]: the new state, [`Action`]s, and the [`Totals`].
//! 3. [`report`] turns state and totals into the status, [`report::is_due`] says whether it is worth a write.

pub mod conditions;
pub mod duration;
pub mod failures;
pub mod generator;
pub mod lifecycle;
pub mod numbers;
pub mod rates;
pub mod report;
pub mod verdict;

mod action;
mod connecting;
mod draining;
mod ended;
mod ledger;
mod merge;
mod next;
mod observe;
mod running;
mod state;

pub use action::{Action, Next, Requests, Target};
pub use ledger::{Death, GroupLedger, Ledger, LedgerError};
pub use merge::{Coverage, GroupTotals, Totals};
pub use next::{next, plan_lost};
pub use observe::{AttemptObservation, AttemptState, Children, Counts, Leftovers, Observations, ShardObservation, StartProblem};
pub use state::{Outcome, RunState, StopCause, StopRequest, unix_ns};

#[cfg(test)]
mod tests;
