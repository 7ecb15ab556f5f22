//! One event-loop thread: its clients, their connections, their timers, its counts.
//!
//! A turn waits for readiness or the next timer, handles what came, then writes what is due. Readiness is edge-triggered,
//! and a read that does not fill the buffer means that the socket is empty, so a message costs one read and one write.

use super::client::{Client, Cx, Directive, Losses, Mark, Open, Phase};
use super::clock::Clock;
use super::plan::ShardPlan;
use super::run::{Run, Stage, Window};
use super::streams::Streams;
use super::targets::Targets;
use super::transport::{Buffers, READ_SIZE};
use super::wheel::Wheel;
use crate::accounting::{Counter, Gauge, Snapshot};
use mio::{Events, Poll, Token, Waker};
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;
use tokio::sync::oneshot;

const WAKER: Token = Token(usize::MAX);
/// A turn longer than this is slow (see the criteria for "the generator was the limit").
const SLOW_TURN: u64 = 5_000_000;
/// Length of the window over which the busy share is measured, in ns.
const BUSY_WINDOW: u64 = 2_000_000_000;

/// What a thread is told.
#[derive(Debug)]
pub enum Command {
    /// The endpoints' addresses.
    Targets(Arc<Targets>),
    /// Connects count from this instant.
    Release(u64),
    /// Publishing happens within this window; a second one replaces the first (an early end).
    Window(Window),
    /// Publishing and draining are over: disconnect.
    Leave,
    /// Answer with all counts.
    Snapshot(oneshot::Sender<Box<Snapshot>>),
    /// End the thread.
    Quit,
}

/// What a thread shows without being asked.
#[derive(Debug, Default)]
pub struct Progress {
    /// Clients connected and subscribed.
    pub ready: AtomicU64,
    /// Clients given up.
    pub failed: AtomicU64,
    /// When the last delivery came, in ns on the engine's clock.
    pub last_received: AtomicU64,
    /// Whether every client is gone after [`Command::Leave`].
    pub left: AtomicBool,
    /// A bit for each endpoint that closed a connection without having sent a single byte.
    pub silent: AtomicU64,
    /// The first failure that has more to say than its name.
    pub trouble: OnceLock<Trouble>,
}

/// A failed connection in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Index of the endpoint.
    pub endpoint: usize,
    /// What happened and what to change.
    pub words: String,
}

/// A thread's state.
pub struct Thread {
    plan: Arc<ShardPlan>,
    clock: Clock,
    poll: Poll,
    commands: mpsc::Receiver<Command>,
    progress: Arc<Progress>,
    targets: Arc<Targets>,
    clients: Vec<Client>,
    connections: Vec<Option<Connection>>,
    /// What clients keep of TLS from one connection to the next; empty unless they resume sessions.
    sessions: Vec<Option<Arc<rustls::ClientConfig>>>,
    wheel: Wheel,
    run: Run,
    counts: Snapshot,
    streams: Streams,
    losses: Losses,
    out: Vec<u8>,
    marks: Vec<Mark>,
    buffers: Buffers,
    random: u64,
    now: u64,
    quit: bool,
}

/// Lends a thread's parts to one of its clients.
macro_rules! with_client {
    ($self:ident, $i:expr, |$client:ident, $cx:ident| $body:expr) => {{
        let mut context = Cx {
            plan: &$self.plan,
            run: &$self.run,
            counts: &mut $self.counts,
            streams: &mut $self.streams,
            losses: &mut $self.losses,
            out: &mut $self.out,
            marks: &mut $self.marks,
            random: &mut $self.random,
            now: $self.now,
        };
        let ($client, $cx) = (&mut $self.clients[$i], &mut context);
        $body
    }};
}

mod connection;
mod write;

use connection::Connection;

impl Thread {
    /// A thread for some of the shard's clients, and what wakes it.
    ///
    /// # Errors
    /// Those of epoll.
    pub fn new(
        plan: Arc<ShardPlan>,
        indices: impl Iterator<Item = u32>,
        clock: Clock,
        commands: mpsc::Receiver<Command>,
        progress: Arc<Progress>,
    ) -> std::io::Result<(Self, Waker)> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        let clients: Vec<Client> = indices.map(|index| Client::new(&plan, index)).collect();
        let now = clock.now();
        let thread = Self {
            clock,
            poll,
            commands,
            progress,
            targets: Arc::default(),
            connections: std::iter::repeat_with(|| None).take(clients.len()).collect(),
            sessions: vec![None; if plan.resumes_tls() { clients.len() } else { 0 }],
            wheel: Wheel::new(clients.len(), now),
            losses: Losses::new(clients.len()),
            random: plan.seed ^ u64::from(plan.slice.shard) << 32 ^ clients.first().map_or(0, |c| u64::from(c.index())) ^ now,
            clients,
            plan,
            run: Run::default(),
            counts: Snapshot::new(),
            streams: Streams::default(),
            out: Vec::with_capacity(2 * READ_SIZE),
            marks: Vec::new(),
            buffers: Buffers::default(),
            now,
            quit: false,
        };
        Ok((thread, waker))
    }

    /// Runs until it is told to quit.
    ///
    /// # Errors
    /// Those of epoll.
    pub fn run(mut self) -> std::io::Result<()> {
        let mut events = Events::with_capacity(1024);
        let mut due = Vec::new();
        let (mut busy, mut window, mut received) = (0, self.now, 0);
        while !self.quit {
            let timeout = self.wheel.next().map(|at| Duration::from_nanos(at.saturating_sub(self.now)));
            match self.poll.poll(&mut events, timeout) {
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                other => other?,
            }
            self.now = self.clock.now();
            let woke = self.now;
            for event in &events {
                match event.token() {
                    WAKER => self.on_commands(),
                    Token(i) => {
                        let ended = event.is_read_closed() || event.is_error();
                        self.on_event(i, event.is_readable(), event.is_writable(), ended);
                    }
                }
            }
            self.wheel.advance(self.now, &mut due);
            for i in due.drain(..) {
                self.on_timer(i as usize);
            }
            self.now = self.clock.now();
            let turn = self.now - woke;
            busy += turn;
            self.counts.inc(Counter::LoopTurns);
            if turn > SLOW_TURN {
                self.counts.inc(Counter::LoopTurnsOver5Ms);
            }
            if turn as i64 > self.counts.gauge(Gauge::LoopTurnMax) {
                self.counts.set_gauge(Gauge::LoopTurnMax, turn as i64);
            }
            if self.now - window >= BUSY_WINDOW {
                self.counts.set_gauge(Gauge::ThreadBusyMax, (busy * 1000 / (self.now - window)) as i64);
                (busy, window) = (0, self.now);
            }
            self.progress.ready.store(self.counts.gauge(Gauge::ClientsReady) as u64, Relaxed);
            self.progress.failed.store(self.counts.gauge(Gauge::ClientsFailed) as u64, Relaxed);
            if self.counts.get(Counter::Received) != received {
                received = self.counts.get(Counter::Received);
                self.progress.last_received.store(self.now, Relaxed);
            }
        }
        Ok(())
    }

    fn on_commands(&mut self) {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Targets(targets) => self.targets = targets,
                Command::Release(at) => {
                    self.run.release = at;
                    self.run.stage = self.run.stage.max(Stage::Active);
                    (0..self.clients.len()).for_each(|i| self.arm(i));
                }
                Command::Window(mut window) => {
                    if self.run.window.is_some() {
                        // An early end cannot be before what has been done already.
                        window.end = window.end.max(self.now + 1);
                    }
                    self.run.window = Some(window);
                    for i in 0..self.clients.len() {
                        with_client!(self, i, |client, cx| client.on_window(cx));
                        self.pump(i);
                    }
                }
                Command::Leave => self.leave(),
                Command::Snapshot(answer) => {
                    // Nobody waits any more when this fails.
                    let _ = answer.send(Box::new(self.snapshot()));
                }
                Command::Quit => self.quit = true,
            }
        }
    }

    fn snapshot(&mut self) -> Snapshot {
        self.now = self.clock.now();
        let mut open = Open::default();
        for i in 0..self.clients.len() {
            with_client!(self, i, |client, cx| client.report(cx, &mut open));
        }
        let mut snapshot = self.counts.clone();
        open.apply(&mut snapshot);
        let clients = self.clients.len() as i64;
        snapshot.set_gauge(Gauge::ClientsDesired, clients);
        snapshot.set_gauge(Gauge::ClientsPublishing, if self.plan.entries.is_empty() { 0 } else { clients });
        snapshot.set_gauge(Gauge::ClientsSubscribing, if self.plan.subscriptions.is_empty() { 0 } else { clients });
        snapshot.set_gauge(Gauge::Streams, self.streams.len() as i64);
        snapshot.set_gauge(Gauge::Threads, 1);
        snapshot
    }

    fn leave(&mut self) {
        self.run.stage = Stage::Leaving;
        for i in 0..self.clients.len() {
            with_client!(self, i, |client, cx| client.close_books(cx));
            let directive = with_client!(self, i, |client, cx| client.leave(cx));
            self.obey(i, directive);
        }
        self.check_left();
    }

    fn check_left(&self) {
        if self.run.stage == Stage::Leaving && self.clients.iter().all(|client| client.phase() == Phase::Gone) {
            self.progress.left.store(true, Relaxed);
        }
    }

    fn arm(&mut self, i: usize) {
        let at = with_client!(self, i, |client, cx| client.deadline(cx));
        self.wheel.set(i, at);
    }

    fn on_timer(&mut self, i: usize) {
        let directive = with_client!(self, i, |client, cx| client.on_timer(cx));
        self.obey(i, directive);
    }

    fn obey(&mut self, i: usize, directive: Directive) {
        match directive {
            Directive::Continue => self.pump(i),
            Directive::Open => self.open(i),
            Directive::Close(cause) => self.lost(i, cause),
            Directive::Leave => {
                if let Some(connection) = &mut self.connections[i] {
                    connection.finishing = true;
                }
                self.pump(i);
            }
        }
    }
}
