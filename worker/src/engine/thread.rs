//! One event-loop thread: its clients, their connections, their timers, its counts.
//!
//! A turn waits for readiness or the next timer, handles what came, then writes what is due. Readiness is edge-triggered,
//! and a read that does not fill the buffer means that the socket is empty, so a message costs one read and one write.

use super::cause::Cause;
use super::client::{Client, Cx, Directive, Mark, Open, Phase};
use super::clock::Clock;
use super::plan::ShardPlan;
use super::run::{Run, Stage, Window};
use super::streams::Streams;
use super::transport::Transport;
use super::wheel::Wheel;
use crate::accounting::{Counter, Gauge, Snapshot};
use mio::{Events, Poll, Token, Waker};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::sync::oneshot;

const WAKER: Token = Token(usize::MAX);
const SCRATCH: usize = 64 * 1024;
/// Bytes waiting to be written to one client over which nothing more is read from it.
const PAUSE: usize = 64 * 1024;
/// A turn longer than this is slow (see the criteria for "the generator was the limit").
const SLOW_TURN: u64 = 5_000_000;
/// Length of the window over which the busy share is measured, in ns.
const BUSY_WINDOW: u64 = 2_000_000_000;

/// Addresses of the endpoints, or why there are none.
#[derive(Clone, Debug, Default)]
pub struct Targets {
    /// One for each endpoint of the plan, in its order.
    pub endpoints: Vec<Result<Vec<SocketAddr>, Cause>>,
}

impl Targets {
    /// Spreads clients over the endpoints and over all addresses of each; another try takes the next address.
    pub fn pick(&self, rank: u64, failures: u64) -> Result<SocketAddr, Cause> {
        let count = self.endpoints.len().max(1) as u64;
        match self.endpoints.get((rank % count) as usize) {
            Some(Ok(addresses)) if !addresses.is_empty() => {
                Ok(addresses[((rank / count + failures) % addresses.len() as u64) as usize])
            }
            Some(Err(cause)) => Err(*cause),
            _ => Err(Cause::DnsFailed),
        }
    }
}

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
}

#[derive(Debug)]
struct Connection {
    transport: Transport,
    established: bool,
    /// A packet of which only a part has come.
    inbound: Vec<u8>,
    /// Bytes that the kernel has not taken yet.
    outbound: Vec<u8>,
    /// The kernel took less than it was given, and has not said since that it takes more.
    full: bool,
    /// Reading stopped while `outbound` is too long.
    paused: bool,
    /// A FIN is to follow `outbound`.
    finishing: bool,
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
    wheel: Wheel,
    run: Run,
    counts: Snapshot,
    streams: Streams,
    out: Vec<u8>,
    marks: Vec<Mark>,
    scratch: Box<[u8]>,
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
            out: &mut $self.out,
            marks: &mut $self.marks,
            random: &mut $self.random,
            now: $self.now,
        };
        let ($client, $cx) = (&mut $self.clients[$i], &mut context);
        $body
    }};
}

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
            wheel: Wheel::new(clients.len(), now),
            random: plan.seed ^ u64::from(plan.slice.shard) << 32 ^ clients.first().map_or(0, |c| u64::from(c.index())) ^ now,
            clients,
            plan,
            run: Run::default(),
            counts: Snapshot::new(),
            streams: Streams::default(),
            out: Vec::with_capacity(2 * SCRATCH),
            marks: Vec::new(),
            scratch: vec![0; SCRATCH].into(),
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

    fn open(&mut self, i: usize) {
        let client = &self.clients[i];
        let rank = self.plan.slice.rank(client.index());
        let opened = self.targets.pick(rank, client.failures()).and_then(|to| {
            Transport::connect(to, None, self.poll.registry(), Token(i)).map_err(|e| match Cause::of_io(&e) {
                Cause::IoError => Cause::TcpFailed,
                cause => cause,
            })
        });
        match opened {
            Ok(transport) => {
                self.connections[i] = Some(Connection {
                    transport,
                    established: false,
                    inbound: Vec::new(),
                    outbound: Vec::new(),
                    full: false,
                    paused: false,
                    finishing: false,
                });
                self.arm(i);
            }
            Err(cause) => self.lost(i, cause),
        }
    }

    fn lost(&mut self, i: usize, cause: Cause) {
        // Closing the descriptor also takes it out of epoll.
        self.connections[i] = None;
        self.out.clear();
        self.marks.clear();
        with_client!(self, i, |client, cx| client.on_lost(cause, cx));
        self.arm(i);
        if self.run.stage == Stage::Leaving {
            self.check_left();
        }
    }

    fn on_event(&mut self, i: usize, readable: bool, writable: bool, ended: bool) {
        // An event of a connection that an earlier event of this turn closed.
        let Some(connection) = &mut self.connections[i] else { return };
        if !connection.established {
            match connection.transport.established() {
                Ok(None) => return,
                Ok(Some(())) => {
                    connection.established = true;
                    self.now = self.clock.now();
                    with_client!(self, i, |client, cx| client.on_open(cx));
                }
                Err(e) => {
                    let cause = match Cause::of_io(&e) {
                        Cause::IoError | Cause::Reset => Cause::TcpFailed,
                        cause => cause,
                    };
                    return self.lost(i, cause);
                }
            }
        }
        if let Some(connection) = &mut self.connections[i]
            && writable
            && connection.full
        {
            connection.full = false;
            if !connection.outbound.is_empty() && self.flush(i).is_err() {
                return;
            }
        }
        let idle = self.plan.entries.is_empty() && self.clients[i].phase() == Phase::Ready;
        if (readable || ended)
            && let Err(cause) = self.read(i, ended)
        {
            return self.lost(i, cause);
        }
        // A delivery to a client that publishes nothing leaves nothing to write and no timer to bring forward: the way of
        // nearly all messages of a subscriber.
        if idle && self.out.is_empty() && self.clients[i].phase() == Phase::Ready && self.is_drained(i) {
            return;
        }
        self.pump(i);
    }

    /// Whether nothing waits to be written or closed on a connection.
    fn is_drained(&self, i: usize) -> bool {
        self.connections[i].as_ref().is_some_and(|c| c.outbound.is_empty() && !c.paused && !c.finishing)
    }

    /// Reads until the socket is empty, or until its client has too much to say itself.
    fn read(&mut self, i: usize, to_end: bool) -> Result<(), Cause> {
        loop {
            let Some(connection) = &mut self.connections[i] else { return Ok(()) };
            if connection.outbound.len() > PAUSE {
                connection.paused = true;
                return Ok(());
            }
            let read = match connection.transport.read(&mut self.scratch) {
                Ok(0) => return Err(Cause::ClosedByPeer),
                Ok(read) => read,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(Cause::of_io(&e)),
            };
            self.now = self.clock.now();
            self.counts.add(Counter::BytesReceived, read as u64);
            let inbound = &mut connection.inbound;
            if inbound.is_empty() {
                let used = with_client!(self, i, |client, cx| client.on_bytes(&self.scratch[..read], cx))?;
                inbound.extend_from_slice(&self.scratch[used..read]);
            } else {
                inbound.extend_from_slice(&self.scratch[..read]);
                let used = with_client!(self, i, |client, cx| client.on_bytes(inbound, cx))?;
                if used == inbound.len() {
                    // Give the memory back: most clients never have a partial packet.
                    *inbound = Vec::new();
                } else {
                    inbound.drain(..used);
                }
            }
            if read < self.scratch.len() && !to_end {
                return Ok(());
            }
            if self.out.len() > PAUSE && self.flush(i).is_err() {
                return Ok(());
            }
        }
    }

    /// Writes what there is to write and what is due, and sets the timer anew.
    fn pump(&mut self, i: usize) {
        loop {
            let writable = self.connections[i].as_ref().is_some_and(|connection| !connection.full);
            with_client!(self, i, |client, cx| client.fill(writable, cx));
            if self.out.is_empty() {
                break;
            }
            if self.flush(i).is_err() {
                return;
            }
            if let Some(connection) = &mut self.connections[i]
                && connection.paused
                && connection.outbound.is_empty()
            {
                connection.paused = false;
                if let Err(cause) = self.read(i, false) {
                    return self.lost(i, cause);
                }
            }
        }
        if let Some(connection) = &mut self.connections[i]
            && connection.finishing
            && connection.outbound.is_empty()
        {
            connection.finishing = false;
            connection.transport.finish();
        }
        self.arm(i);
    }

    /// Gives the kernel what waits and what is in the buffer. What it does not take waits with the connection, up to the
    /// end of the publish that it cut; publishes behind that go back to their slots.
    ///
    /// # Errors
    /// When the connection was lost over it; the client knows.
    fn flush(&mut self, i: usize) -> Result<(), ()> {
        let Some(connection) = &mut self.connections[i] else {
            self.out.clear();
            self.marks.clear();
            return Ok(());
        };
        let waiting = connection.full || !connection.outbound.is_empty();
        if waiting {
            debug_assert!(self.marks.is_empty(), "no publish is built while the socket is full");
            connection.outbound.extend_from_slice(&self.out);
            self.out.clear();
            if connection.full {
                return Ok(());
            }
        }
        let bytes = if waiting { &connection.outbound } else { &self.out };
        let mut written = 0;
        let result = loop {
            match connection.transport.write(&bytes[written..]) {
                Ok(n) => {
                    written += n;
                    if written == bytes.len() {
                        break Ok(());
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    connection.full = true;
                    break Ok(());
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => break Err(Cause::of_io(&e)),
            }
        };
        self.now = self.clock.now();
        self.counts.add(Counter::BytesSent, written as u64);
        if waiting {
            connection.outbound.drain(..written);
            if connection.outbound.is_empty() {
                connection.outbound = Vec::new();
                with_client!(self, i, |client, cx| {
                    client.on_written(cx.now);
                    client.on_rest_sent(cx);
                });
            }
        } else {
            self.settle_marks(i, written);
        }
        if let Err(cause) = result {
            self.lost(i, cause);
            return Err(());
        }
        Ok(())
    }

    /// Counts the publishes that were written whole, keeps the one that was cut, takes back the rest.
    fn settle_marks(&mut self, i: usize, written: usize) {
        let marks = std::mem::take(&mut self.marks);
        let sent = marks.iter().take_while(|mark| mark.end as usize <= written).count();
        with_client!(self, i, |client, cx| {
            if written > 0 {
                client.on_written(cx.now);
            }
            marks[..sent].iter().for_each(|mark| client.on_sent(mark, cx));
        });
        if written < self.out.len() {
            let cut = marks.get(sent).filter(|mark| (mark.start as usize) < written);
            let unsent = &marks[sent + usize::from(cut.is_some())..];
            let keep = unsent.first().map_or(self.out.len(), |mark| mark.start as usize);
            with_client!(self, i, |client, cx| {
                unsent.iter().rev().for_each(|mark| client.on_unsent(mark, cx));
                client.on_socket_full(cut, cx);
            });
            if let Some(connection) = &mut self.connections[i] {
                connection.outbound.extend_from_slice(&self.out[written..keep]);
            }
        }
        self.out.clear();
        self.marks = marks;
        self.marks.clear();
    }
}
