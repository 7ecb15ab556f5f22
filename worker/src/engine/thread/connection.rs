//! The connection of one client: opened layer by layer, read, lost.

use super::{Thread, Trouble};
use crate::accounting::Counter;
use crate::engine::cause::{Cause, Step};
use crate::engine::client::{Cx, Phase};
use crate::engine::run::Stage;
use crate::engine::transport::{Failure, Layers, Progress, READ_SIZE, Transport};
use mio::Token;
use std::sync::atomic::Ordering::Relaxed;

/// Bytes waiting to be written to one client over which nothing more is read from it.
const PAUSE: usize = READ_SIZE;

/// A client's connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) transport: Transport,
    /// Index of its endpoint.
    endpoint: usize,
    established: bool,
    /// A packet of which only a part has come.
    inbound: Vec<u8>,
    /// Bytes that the transport has not taken yet.
    pub(super) outbound: Vec<u8>,
    /// MQTT bytes that wait within the transport.
    pub(super) unsettled: usize,
    /// The kernel took less than it was given, and has not said since that it takes more.
    pub(super) full: bool,
    /// Reading stopped while `outbound` is too long.
    paused: bool,
    /// A FIN is to follow `outbound`.
    pub(super) finishing: bool,
}

impl Connection {
    /// Whether nothing waits to be written or closed.
    fn is_drained(&self) -> bool {
        self.outbound.is_empty() && !self.full && !self.paused && !self.finishing
    }
}

impl Thread {
    pub(super) fn open(&mut self, i: usize) {
        let client = &self.clients[i];
        let rank = self.plan.slice.rank(client.index());
        let opened = self.targets.pick(rank, client.failures()).map_err(Failure::from).and_then(|(endpoint, to)| {
            let plan = self.plan.carriage(endpoint);
            let mut none = None;
            let own = self.sessions.get_mut(i).unwrap_or(&mut none);
            let layers = Layers {
                tls: plan.and_then(|c| c.tls.as_ref()).map(|(tls, name)| (tls.config(own), name.clone())),
                web_socket: plan.and_then(|c| c.web_socket.clone()),
            };
            Ok((endpoint, Transport::connect(to, None, layers, self.poll.registry(), Token(i))?))
        });
        match opened {
            Ok((endpoint, transport)) => {
                self.connections[i] = Some(Connection {
                    transport,
                    endpoint,
                    established: false,
                    inbound: Vec::new(),
                    outbound: Vec::new(),
                    unsettled: 0,
                    full: false,
                    paused: false,
                    finishing: false,
                });
                self.arm(i);
            }
            Err(failure) => self.lost(i, failure),
        }
    }

    pub(super) fn lost(&mut self, i: usize, failure: impl Into<Failure>) {
        let Failure { cause, words } = failure.into();
        // Closing the descriptor also takes it out of epoll.
        if let Some(connection) = self.connections[i].take() {
            self.learn(&connection, self.clients[i].phase(), cause, words);
        }
        self.out.clear();
        self.marks.clear();
        with_client!(self, i, |client, cx| client.on_lost(cause, cx));
        self.arm(i);
        if self.run.stage == Stage::Leaving {
            self.check_left();
        }
    }

    /// Keeps what a failure tells beyond its name: once in words, and that an endpoint says nothing at all, which is how many
    /// servers answer what is not their protocol.
    fn learn(&self, connection: &Connection, phase: Phase, cause: Cause, words: Option<String>) {
        let endpoint = connection.endpoint;
        if let Some(words) = words
            && self.run.stage != Stage::Leaving
            && self.progress.trouble.set(Trouble { endpoint, words: words.clone() }).is_ok()
        {
            let endpoint = self.plan.endpoints.get(endpoint).map(ToString::to_string).unwrap_or_default();
            tracing::warn!(endpoint, reason = cause.of_attempt(Step::Tls).name(), "a connection failed: {words}");
        }
        let silent = match phase {
            Phase::Opening(Step::Tls | Step::WebSocket) => !connection.transport.heard(),
            Phase::AwaitConnack => {
                matches!(cause, Cause::ClosedByPeer | Cause::Reset)
                    && matches!(connection.transport, Transport::Tcp(_))
                    && connection.inbound.is_empty()
            }
            _ => false,
        };
        if silent && cause != Cause::Timeout && endpoint < 64 {
            self.progress.silent.fetch_or(1 << endpoint, Relaxed);
        }
    }

    /// Goes on with opening. False while MQTT may not begin.
    fn advance(&mut self, i: usize) -> Result<bool, Failure> {
        loop {
            let Some(connection) = &mut self.connections[i] else { return Ok(false) };
            let was_tls = self.clients[i].phase() == Phase::Opening(Step::Tls);
            let progress = connection.transport.advance(&mut self.buffers)?;
            if progress == Progress::Pending {
                return Ok(false);
            }
            self.now = self.clock.now();
            if was_tls {
                let resumed = connection.transport.resumed() == Some(true);
                self.counts.inc(if resumed { Counter::TlsResumed } else { Counter::TlsFull });
            }
            match progress {
                Progress::Next(step) => with_client!(self, i, |client, cx| client.on_step(step, cx)),
                _ => {
                    connection.established = true;
                    with_client!(self, i, |client, cx| client.on_open(cx));
                    return Ok(true);
                }
            }
        }
    }

    pub(super) fn on_event(&mut self, i: usize, readable: bool, writable: bool, ended: bool) {
        // An event of a connection that an earlier event of this turn closed.
        let Some(connection) = &mut self.connections[i] else { return };
        let mut readable = readable;
        if !connection.established {
            match self.advance(i) {
                Ok(false) => return,
                // What came together with the last step is there already.
                Ok(true) => readable = true,
                Err(failure) => return self.lost(i, failure),
            }
        }
        if let Some(connection) = &mut self.connections[i]
            && writable
            && connection.full
        {
            connection.full = false;
            if (!connection.outbound.is_empty() || connection.transport.pending()) && self.flush(i).is_err() {
                return;
            }
        }
        let idle = self.plan.entries.is_empty() && self.clients[i].phase() == Phase::Ready;
        if (readable || ended)
            && let Err(failure) = self.read(i, ended)
        {
            return self.lost(i, failure);
        }
        // A delivery to a client that publishes nothing leaves nothing to write and no timer to bring forward: the way of
        // nearly all messages of a subscriber.
        if idle && self.out.is_empty() && self.clients[i].phase() == Phase::Ready && self.is_drained(i) {
            return;
        }
        self.pump(i);
    }

    fn is_drained(&self, i: usize) -> bool {
        self.connections[i].as_ref().is_some_and(Connection::is_drained)
    }

    /// Reads until the socket is empty, or until its client has too much to say itself.
    fn read(&mut self, i: usize, to_end: bool) -> Result<(), Failure> {
        loop {
            let Some(connection) = &mut self.connections[i] else { return Ok(()) };
            if connection.outbound.len() > PAUSE {
                connection.paused = true;
                return Ok(());
            }
            let received = connection.transport.read(&mut self.buffers)?;
            // Layers answer by themselves (pings, new keys); the kernel may be full of that.
            connection.full |= connection.transport.pending();
            if received.length > 0 {
                self.now = self.clock.now();
                self.counts.add(Counter::BytesReceived, received.length as u64);
                let bytes = &self.buffers.mqtt[..received.length];
                let inbound = &mut connection.inbound;
                if inbound.is_empty() {
                    let used = with_client!(self, i, |client, cx| client.on_bytes(bytes, cx))?;
                    inbound.extend_from_slice(&bytes[used..]);
                } else {
                    inbound.extend_from_slice(bytes);
                    let used = with_client!(self, i, |client, cx| client.on_bytes(inbound, cx))?;
                    if used == inbound.len() {
                        // Give the memory back: most clients never have a partial packet.
                        *inbound = Vec::new();
                    } else {
                        inbound.drain(..used);
                    }
                }
            }
            if received.closed {
                return Err(Cause::ClosedByPeer.into());
            }
            if received.drained && (!to_end || received.length == 0) {
                return Ok(());
            }
            if self.out.len() > PAUSE && self.flush(i).is_err() {
                return Ok(());
            }
        }
    }

    /// Writes what there is to write and what is due, and sets the timer anew.
    pub(super) fn pump(&mut self, i: usize) {
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
                if let Err(failure) = self.read(i, false) {
                    return self.lost(i, failure);
                }
            }
        }
        if let Some(connection) = &mut self.connections[i]
            && connection.finishing
            && connection.outbound.is_empty()
            && !connection.transport.pending()
        {
            connection.finishing = false;
            connection.transport.finish(&mut self.buffers);
        }
        self.arm(i);
    }
}
