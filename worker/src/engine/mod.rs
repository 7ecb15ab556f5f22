//! The client engine: thousands of MQTT clients on a few threads, each message accounted for.
//!
//! The state machine of a client ([`client`]) is pure: packets and instants in, packets and counts out. Sockets and timers
//! are in [`thread`]; [`Engine`] starts the threads, passes commands on and merges their counts.

pub mod cause;
pub mod client;
pub mod clock;
pub mod excuses;
pub mod filters;
pub mod handshake;
pub mod outbound;
pub mod plan;
pub mod run;
pub mod secrets;
pub mod streams;
pub mod targets;
pub mod thread;
pub mod tls;
pub mod transport;
pub mod wheel;
pub mod wire;

use crate::accounting::Snapshot;
use clock::Clock;
use mio::Waker;
use plan::ShardPlan;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use thread::{Command, Progress, Thread, Trouble};
use tokio::sync::oneshot;

/// The threads of a shard.
#[derive(Debug)]
pub struct Engine {
    /// The clock by which all instants are meant.
    pub clock: Clock,
    threads: Vec<Handle>,
}

#[derive(Debug)]
struct Handle {
    commands: mpsc::Sender<Command>,
    waker: Waker,
    progress: Arc<Progress>,
    join: Option<std::thread::JoinHandle<()>>,
}

/// How far the clients are, without asking the threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Connected and subscribed.
    pub ready: u64,
    /// Given up.
    pub failed: u64,
    /// When the last delivery came, on the engine's clock; 0 when none did.
    pub last_received: u64,
    /// Whether all clients are gone.
    pub left: bool,
}

impl Engine {
    /// Starts the threads; client `j` belongs to thread `j mod threads`.
    ///
    /// # Errors
    /// Those of epoll and of starting threads.
    pub fn start(plan: &Arc<ShardPlan>, threads: usize) -> std::io::Result<Self> {
        let clock = Clock::default();
        let clients = plan.slice.clients();
        let threads = threads.clamp(1, clients.max(1) as usize);
        let start = |t: usize| {
            let (commands, receiver) = mpsc::channel();
            let progress = Arc::<Progress>::default();
            let indices = (t as u32..clients).step_by(threads);
            let (thread, waker) = Thread::new(plan.clone(), indices, clock, receiver, progress.clone())?;
            let join = std::thread::Builder::new().name(format!("engine-{t}")).spawn(move || {
                if let Err(error) = thread.run() {
                    tracing::error!(%error, "an event loop ended: epoll failed");
                }
            })?;
            Ok(Handle { commands, waker, progress, join: Some(join) })
        };
        Ok(Self { clock, threads: (0..threads).map(start).collect::<std::io::Result<_>>()? })
    }

    /// Tells every thread the same.
    pub fn tell(&self, command: impl Fn() -> Command) {
        for thread in &self.threads {
            thread.tell(command());
        }
    }

    /// All counts, merged. `None` when a thread did not answer within `patience`.
    pub async fn snapshot(&self, patience: Duration) -> Option<Snapshot> {
        let answers: Vec<_> = self
            .threads
            .iter()
            .map(|thread| {
                let (sender, receiver) = oneshot::channel();
                thread.tell(Command::Snapshot(sender));
                receiver
            })
            .collect();
        let merge = async {
            let mut merged = Snapshot::new();
            for answer in answers {
                merged.merge(&*answer.await.ok()?);
            }
            Some(merged)
        };
        tokio::time::timeout(patience, merge).await.ok().flatten()
    }

    /// The first failed connection that has more to say than its name.
    pub fn trouble(&self) -> Option<&Trouble> {
        self.threads.iter().find_map(|thread| thread.progress.trouble.get())
    }

    /// A bit for each endpoint that closed connections without having sent a single byte.
    pub fn silent_endpoints(&self) -> u64 {
        self.threads.iter().fold(0, |all, thread| all | thread.progress.silent.load(Relaxed))
    }

    /// How far the clients are.
    pub fn standing(&self) -> Standing {
        let mut standing = Standing { left: true, ..Standing::default() };
        for Handle { progress, .. } in &self.threads {
            standing.ready += progress.ready.load(Relaxed);
            standing.failed += progress.failed.load(Relaxed);
            standing.last_received = standing.last_received.max(progress.last_received.load(Relaxed));
            standing.left &= progress.left.load(Relaxed);
        }
        standing
    }
}

impl Handle {
    fn tell(&self, command: Command) {
        // Both fail only when the thread has ended, which its log line says.
        if self.commands.send(command).is_ok() {
            let _ = self.waker.wake();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.tell(|| Command::Quit);
        for thread in &mut self.threads {
            if let Some(join) = thread.join.take() {
                // A panicked thread has said so on standard error.
                let _ = join.join();
            }
        }
    }
}
