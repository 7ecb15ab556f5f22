//! How the suite steers a contender that runs as a child of the benchmark: lines on standard input and output.
//!
//! The child says `ready` once it is connected and subscribed. The suite says `go`, then asks `count` as often as it
//! likes and gets `count N`. The end of standard input ends the child, so nothing outlives the suite; a child also
//! ends by itself after [`LIFETIME`]. Programs in other languages (the peers) speak the same lines.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// After this a child gives up, whatever the suite does.
const LIFETIME: Duration = Duration::from_secs(300);

/// The child's end of the conversation.
#[derive(Clone)]
pub struct Control {
    count: Arc<AtomicU64>,
    go: Arc<AtomicBool>,
}

impl Control {
    /// Starts listening to the suite on a thread of its own, which sleeps while nothing is asked.
    pub fn listen() -> Self {
        let control = Self { count: Arc::default(), go: Arc::default() };
        let shared = control.clone();
        std::thread::spawn(move || shared.answer());
        std::thread::spawn(|| {
            std::thread::sleep(LIFETIME);
            std::process::exit(3);
        });
        control
    }

    fn answer(&self) {
        for line in std::io::stdin().lock().lines() {
            match line.as_deref() {
                Ok("go") => self.go.store(true, Relaxed),
                Ok("count") => say(&format!("count {}", self.count.load(Relaxed))),
                _ => break,
            }
        }
        std::process::exit(0);
    }

    /// Tells the suite that everything is connected and subscribed.
    pub fn ready(&self) {
        say("ready");
    }

    /// Whether the load may start.
    pub fn started(&self) -> bool {
        self.go.load(Relaxed)
    }

    /// Adds to the count. Only one thread may call this: a load and a store are cheaper than a locked addition.
    pub fn add(&self, messages: u64) {
        self.count.store(self.count.load(Relaxed) + messages, Relaxed);
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // The suite has gone when this fails, and then the end of standard input ends this process.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
