//! One MQTT client as a pure state machine: packets and instants come in, packets, marks and counts go out.
//!
//! It opens no socket and reads no clock. Who drives it ([`super::thread`], or a test) gives it a [`Cx`] and does what the
//! returned [`Directive`] says. Publishing is in [`publish`], deliveries in [`receive`], what may be missing of them in
//! [`presence`], the life of a connection here.

mod presence;
mod publish;
mod receive;
mod takeover;

pub use publish::Open;
pub use takeover::Losses;

use super::cause::{Cause, Step};
use super::handshake;
use super::outbound::Head;
use super::plan::ShardPlan;
use super::run::{Run, Stage as RunStage};
use super::streams::Streams;
use super::wire::{self, Version};
use crate::accounting::{Counter, Gauge, Snapshot, Stage};
use presence::Presence;
use std::collections::VecDeque;
use takeover::Rivalry;

/// Longest wait for the peer's FIN after DISCONNECT, in ns.
const FIN_TIMEOUT: u64 = 1_000_000_000;
const SECOND: u64 = 1_000_000_000;

/// What a client works with while it handles one event.
pub struct Cx<'a> {
    /// The shard's plan.
    pub plan: &'a ShardPlan,
    /// The run.
    pub run: &'a Run,
    /// This thread's counts.
    pub counts: &'a mut Snapshot,
    /// This thread's streams.
    pub streams: &'a mut Streams,
    /// The connections that this thread's clients lose.
    pub losses: &'a mut Losses,
    /// Packets to write, in order.
    pub out: &'a mut Vec<u8>,
    /// Which parts of `out` are publishes, in order; they come after everything else.
    pub marks: &'a mut Vec<Mark>,
    /// State of a random number generator, for jitter.
    pub random: &'a mut u64,
    /// The instant of the event, in ns.
    pub now: u64,
}

/// A first transmission within the bytes to write. It counts as sent once the kernel has its last byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// First byte in the buffer.
    pub start: u32,
    /// First byte after it.
    pub end: u32,
    /// Publish entry.
    pub entry: u8,
    /// Packet identifier; 0 at QoS 0.
    pub packet_id: u16,
    /// The slot.
    pub slot: u64,
    /// When the slot was due.
    pub due: u64,
    /// When the engine took it up.
    pub handled: u64,
    /// When it was written first.
    pub written: u64,
}

/// What the driver is to do after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Directive {
    /// Write what is in the buffer, if anything.
    Continue,
    /// Open a transport.
    Open,
    /// Write what is in the buffer, then close the sending half and await the peer's FIN.
    Leave,
    /// Drop the connection at once.
    Close(Cause),
}

/// How far a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Waits for its instant to connect.
    Waiting,
    /// Waits to connect again.
    Backoff,
    /// The transport is being opened; which step of that is under way.
    Opening(Step),
    /// CONNECT is written.
    AwaitConnack,
    /// SUBSCRIBE is written.
    AwaitSuback,
    /// Connected and subscribed.
    Ready,
    /// DISCONNECT is written.
    Leaving,
    /// Has nothing more to do.
    Gone,
}

/// A message whose acknowledgement is open.
#[derive(Clone, Copy, Debug)]
struct Inflight {
    slot: u64,
    due: u64,
    written: u64,
    packet_id: u16,
    entry: u8,
    /// PUBREC has come, PUBREL is written.
    released: bool,
}

/// One publish entry of one client.
#[derive(Debug)]
struct EntryState {
    /// The next slot.
    slot: u64,
    /// When that is due, counted from the start; `u64::MAX` when there is none left.
    due: u64,
    head: Option<Head>,
    multiplicity: super::filters::Multiplicity,
}

/// Why due slots are not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blocked {
    No,
    Window,
    Socket,
}

/// QoS 0 messages that no PINGRESP vouches for yet.
#[derive(Clone, Copy, Debug, Default)]
struct Fence {
    messages: u64,
    deliveries: u64,
    fingerprint: u64,
}

/// One client.
#[derive(Debug)]
pub struct Client {
    index: u32,
    phase: Phase,
    blocked: Blocked,
    was_connected: bool,
    subscribed: bool,
    given_up: bool,
    window: u16,
    packet_id: u16,
    subscribe_id: u16,
    failures: u16,
    /// Keep alive of this connection in ns; 0 is off.
    keep_alive: u64,
    /// When the phase must have ended.
    until: u64,
    /// When the present step (attempt, CONNECT, SUBSCRIBE) began.
    since: u64,
    /// When something was written last.
    wrote: u64,
    /// When the PINGREQ that is open was written; 0 when none is.
    pinged: u64,
    /// When slots began to be blocked.
    blocked_since: u64,
    /// When the connection was lost; 0 when it was not.
    lost: u64,
    entries: Box<[EntryState]>,
    inflight: VecDeque<Inflight>,
    /// Identifiers of QoS 2 messages received and not released.
    receiving: Vec<u16>,
    unfenced: Fence,
    fencing: Fence,
    /// When the fence was last asked for.
    fenced: u64,
    /// Publishes that are written and of which the kernel has not the last byte; `end` is how many bytes are missing.
    cut: Vec<Mark>,
    presence: Presence,
    rivalry: Rivalry,
}

impl Client {
    /// The shard's client `index`.
    pub fn new(plan: &ShardPlan, index: u32) -> Self {
        let entries = plan.entries.iter().map(|entry| {
            let multiplicity = if entry.topic_varies {
                Default::default()
            } else {
                let mut topic = String::new();
                plan.render(&entry.topic, index, 0, &mut topic);
                plan.filters.multiplicity(&topic)
            };
            EntryState { slot: 0, due: u64::MAX, head: super::outbound::head(plan, entry, index), multiplicity }
        });
        Self {
            index,
            phase: Phase::Waiting,
            blocked: Blocked::No,
            was_connected: false,
            subscribed: false,
            given_up: false,
            window: plan.max_inflight,
            packet_id: 0,
            subscribe_id: 0,
            failures: 0,
            keep_alive: 0,
            until: u64::MAX,
            since: 0,
            wrote: 0,
            pinged: 0,
            blocked_since: 0,
            lost: 0,
            entries: entries.collect(),
            inflight: VecDeque::new(),
            receiving: Vec::new(),
            unfenced: Fence::default(),
            fencing: Fence::default(),
            fenced: 0,
            cut: Vec::new(),
            presence: Presence::default(),
            rivalry: Rivalry::default(),
        }
    }

    /// How far it is.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Connected and subscribed, or given up: a barrier need not wait for it.
    pub fn settled(&self) -> bool {
        self.given_up || self.phase == Phase::Ready
    }

    /// The client's index within the shard.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Attempts that failed since the last success.
    pub fn failures(&self) -> u64 {
        u64::from(self.failures)
    }

    /// Messages in flight.
    pub fn unacked(&self) -> usize {
        self.inflight.len()
    }

    /// When [`Client::on_timer`] wants to be called next.
    pub fn deadline(&self, cx: &Cx<'_>) -> u64 {
        match self.phase {
            Phase::Waiting if cx.run.stage == RunStage::Active => {
                cx.run.release.saturating_add(cx.plan.connects.slot(cx.plan.slice.rank(self.index)))
            }
            Phase::Waiting | Phase::Gone => u64::MAX,
            Phase::Backoff | Phase::Opening(_) | Phase::AwaitConnack | Phase::Leaving => self.until,
            Phase::AwaitSuback => self.until.min(self.ping_deadline()),
            Phase::Ready => self.ping_deadline().min(self.publish_deadline(cx)),
        }
    }

    fn ping_deadline(&self) -> u64 {
        if self.pinged != 0 {
            return self.pinged + self.ping_timeout();
        }
        if self.keep_alive == 0 {
            return u64::MAX;
        }
        // A tenth before the interval is over, so that the server never has to doubt. Whoever publishes at QoS 0 asks
        // within each interval, however busy, because the answer is its fence.
        let quiet = self.wrote + self.keep_alive / 10 * 9;
        if self.unfenced.messages > 0 { quiet.min(self.fenced + self.keep_alive) } else { quiet }
    }

    /// How long a PINGRESP may take: half the keep alive, between 5 s and 30 s.
    fn ping_timeout(&self) -> u64 {
        if self.keep_alive == 0 { 30 * SECOND } else { (self.keep_alive / 2).clamp(5 * SECOND, 30 * SECOND) }
    }

    /// The client's instant has come.
    pub fn on_timer(&mut self, cx: &mut Cx<'_>) -> Directive {
        match self.phase {
            Phase::Waiting | Phase::Backoff => {
                if cx.run.stage != RunStage::Active {
                    return Directive::Continue;
                }
                self.phase = Phase::Opening(Step::Tcp);
                self.since = cx.now;
                self.until = cx.now + cx.plan.connect_timeout;
                cx.counts.inc(Counter::ConnectsAttempted);
                Directive::Open
            }
            Phase::Opening(_) | Phase::AwaitConnack if cx.now >= self.until => Directive::Close(Cause::Timeout),
            Phase::AwaitSuback if cx.now >= self.until => {
                cx.counts.add(Counter::SubscribeTimeout, cx.plan.subscriptions.len() as u64);
                Directive::Close(Cause::Timeout)
            }
            // The peer did not answer our DISCONNECT with a FIN: whatever it still sends is no concern of ours.
            Phase::Leaving if cx.now >= self.until => Directive::Close(Cause::ClosedByPeer),
            Phase::AwaitSuback | Phase::Ready => {
                if cx.now >= self.ping_deadline() {
                    if self.pinged != 0 {
                        return Directive::Close(Cause::KeepAliveTimeout);
                    }
                    self.ping(cx);
                }
                Directive::Continue
            }
            _ => Directive::Continue,
        }
    }

    /// Asks for a PINGRESP, which also vouches for every QoS 0 message before it.
    fn ping(&mut self, cx: &mut Cx<'_>) {
        debug_assert_eq!(self.pinged, 0);
        cx.out.extend_from_slice(&[0xc0, 0]);
        self.pinged = cx.now;
        self.fenced = cx.now;
        self.fencing = std::mem::take(&mut self.unfenced);
    }

    /// A step of opening the transport was made; `next` follows.
    pub fn on_step(&mut self, next: Step, cx: &mut Cx<'_>) {
        if let Phase::Opening(made) = self.phase {
            let stage = match made {
                Step::Tcp => Stage::ConnectTcp,
                Step::Tls => Stage::ConnectTls,
                Step::WebSocket | Step::Connack => Stage::ConnectWebSocket,
            };
            cx.counts.record(stage, cx.now.saturating_sub(self.since));
        }
        self.since = cx.now;
        self.phase = Phase::Opening(next);
    }

    /// The transport is open: MQTT begins.
    pub fn on_open(&mut self, cx: &mut Cx<'_>) {
        self.on_step(Step::Connack, cx);
        self.phase = Phase::AwaitConnack;
        handshake::connect(cx.plan, self.index, self.was_connected, cx.out);
    }

    /// Bytes have come. Returns how many were whole packets; the rest is to be given again with more behind it.
    ///
    /// # Errors
    /// Why the connection must be closed.
    pub fn on_bytes(&mut self, bytes: &[u8], cx: &mut Cx<'_>) -> Result<usize, Cause> {
        let mut at = 0;
        self.presence.heard = cx.now;
        if self.phase == Phase::AwaitConnack && !first_answer(bytes, cx.plan.version)? {
            return Ok(0);
        }
        while let Some(frame) = wire::frame(&bytes[at..])? {
            let packet = &bytes[at..at + frame.size];
            at += frame.size;
            match self.phase {
                Phase::AwaitConnack => self.on_connack(packet, cx)?,
                Phase::AwaitSuback | Phase::Ready => self.on_packet(&frame, packet, cx)?,
                // After DISCONNECT only the FIN matters; deliveries that still come are late.
                Phase::Leaving if frame.first >> 4 == 3 => cx.counts.inc(Counter::Late),
                Phase::Leaving => {}
                _ => return Err(Cause::Protocol),
            }
        }
        Ok(at)
    }

    #[inline]
    fn on_packet(&mut self, frame: &wire::Frame<'_>, packet: &[u8], cx: &mut Cx<'_>) -> Result<(), Cause> {
        match frame.first >> 4 {
            3 => self.on_publish(frame, cx),
            4 => self.on_puback(frame, cx),
            5 => self.on_pubrec(frame, cx),
            6 => self.on_pubrel(frame, cx),
            7 => self.on_pubcomp(frame, cx),
            9 => self.on_suback(packet, cx),
            13 => self.on_pingresp(frame, cx),
            14 => Err(handshake::server_disconnect(packet, cx.plan.version)),
            _ => Err(Cause::Protocol),
        }
    }

    fn on_connack(&mut self, packet: &[u8], cx: &mut Cx<'_>) -> Result<(), Cause> {
        if packet[0] != 0x20 {
            // MQTT 5 servers may refuse with DISCONNECT too, though CONNACK is usual.
            return Err(handshake::server_disconnect(packet, cx.plan.version));
        }
        let accepted = handshake::connack(packet, cx.plan.version)?;
        cx.counts.inc(Counter::ConnectsSucceeded);
        cx.counts.record(Stage::ConnectConnack, cx.now.saturating_sub(self.since));
        cx.counts.adjust(Gauge::ClientsConnected, 1);
        if self.was_connected {
            cx.counts.inc(Counter::Reconnects);
        }
        let keep_alive = accepted.keep_alive.unwrap_or(cx.plan.keep_alive);
        self.keep_alive = u64::from(keep_alive) * SECOND;
        self.window = cx.plan.max_inflight.min(accepted.receive_maximum);
        self.phase = Phase::AwaitSuback;
        self.until = cx.now + cx.plan.connect_timeout;
        self.since = cx.now;
        self.fenced = cx.now;
        self.failures = 0;
        if cx.plan.entries.iter().any(|entry| entry.qos > accepted.maximum_qos) {
            return Err(Cause::QosNotSupported);
        }
        if !accepted.retain_available && cx.plan.entries.iter().any(|entry| entry.retain) {
            return Err(Cause::RetainNotSupported);
        }
        if self.frames_over(accepted.maximum_packet_size, cx) {
            return Err(Cause::PacketTooLarge);
        }
        self.on_session(accepted.session_present, cx);
        if cx.plan.subscriptions.is_empty() || self.subscribed {
            self.on_ready(cx);
        } else {
            self.subscribe_id = self.next_packet_id();
            handshake::subscribe(cx.plan, self.index, self.subscribe_id, cx.out);
        }
        Ok(())
    }

    /// Continues the session where the server kept it, else writes off what was in flight.
    fn on_session(&mut self, present: bool, cx: &mut Cx<'_>) {
        if present && self.was_connected {
            self.resend(cx);
            return;
        }
        self.subscribed = false;
        self.receiving.clear();
        self.abandon(cx);
    }

    fn on_suback(&mut self, packet: &[u8], cx: &mut Cx<'_>) -> Result<(), Cause> {
        let (id, judged) = handshake::suback(packet, cx.plan)?;
        if self.phase != Phase::AwaitSuback || id != self.subscribe_id {
            return Err(Cause::Protocol);
        }
        cx.counts.record(Stage::SubscribeAck, cx.now.saturating_sub(self.since));
        judged.iter().for_each(|counter| cx.counts.inc(*counter));
        if judged.iter().any(|counter| *counter != Counter::SubscribesSucceeded) {
            return Err(Cause::SubscribeFailed);
        }
        self.subscribed = true;
        self.on_ready(cx);
        Ok(())
    }

    fn on_ready(&mut self, cx: &mut Cx<'_>) {
        self.phase = Phase::Ready;
        self.until = u64::MAX;
        cx.counts.adjust(Gauge::ClientsReady, 1);
        if self.lost != 0 {
            cx.counts.record(Stage::Recovery, cx.now.saturating_sub(self.lost));
            self.lost = 0;
        }
        self.pass_over(cx);
        self.on_present(cx);
        self.rivalry.on_ready(cx.now);
        self.was_connected = true;
        self.blocked = Blocked::No;
    }

    fn on_pingresp(&mut self, frame: &wire::Frame<'_>, cx: &mut Cx<'_>) -> Result<(), Cause> {
        if self.pinged == 0 || frame.first != 0xd0 || !frame.body.is_empty() {
            return Err(Cause::Protocol);
        }
        self.pinged = 0;
        self.on_fence(cx);
        Ok(())
    }

    /// The attempt failed or the connection was lost.
    pub fn on_lost(&mut self, cause: Cause, cx: &mut Cx<'_>) {
        let phase = self.phase;
        let cause = if phase == Phase::Ready {
            self.rivalry.judge(cause, cx.losses, cx.counts.total("connects_failed"), cx.plan.attempt, cx.now)
        } else {
            cause
        };
        self.pinged = 0;
        match phase {
            Phase::Opening(step) => cx.counts.inc(cause.of_attempt(step)),
            Phase::AwaitConnack => cx.counts.inc(cause.of_attempt(Step::Connack)),
            Phase::AwaitSuback | Phase::Ready => {
                cx.counts.inc(cause.of_connection());
                cx.counts.adjust(Gauge::ClientsConnected, -1);
                if phase == Phase::Ready {
                    cx.counts.adjust(Gauge::ClientsReady, -1);
                    self.lost = cx.now;
                    self.on_absent(cx);
                }
                self.on_unfenced_lost(cx);
                self.on_cut_lost(Counter::SkippedDisconnected, cx);
                self.pass_over(cx);
            }
            Phase::Leaving => {
                cx.counts.adjust(Gauge::ClientsConnected, -1);
                self.on_unfenced_lost(cx);
                self.on_cut_lost(Counter::SkippedEndOfRun, cx);
                self.phase = Phase::Gone;
                return;
            }
            Phase::Waiting | Phase::Backoff | Phase::Gone => return,
        }
        let stays_away = !cx.plan.reconnect && (self.was_connected || cx.run.window.is_some_and(|w| cx.now >= w.start));
        if cause.incurable() {
            self.phase = Phase::Gone;
            self.given_up = true;
            cx.counts.adjust(Gauge::ClientsFailed, 1);
        } else if stays_away || cx.run.stage == RunStage::Leaving {
            self.phase = Phase::Gone;
        } else {
            self.phase = Phase::Backoff;
            self.until = cx.now + self.backoff(cx);
            self.failures = self.failures.saturating_add(1);
        }
    }

    /// The wait before the next attempt: doubled each time up to the maximum, with full jitter, so that clients that were
    /// lost together do not come back together.
    fn backoff(&self, cx: &mut Cx<'_>) -> u64 {
        let (first, longest) = cx.plan.backoff;
        let wait = first.saturating_mul(1 << self.failures.min(32)).min(longest);
        *cx.random = crate::accounting::header::mix64(*cx.random);
        1_000_000 + ((u128::from(*cx.random) * u128::from(wait)) >> 64) as u64
    }

    /// The run is over for this client.
    pub fn leave(&mut self, cx: &mut Cx<'_>) -> Directive {
        match self.phase {
            Phase::AwaitSuback | Phase::Ready => {
                if self.phase == Phase::Ready {
                    cx.counts.adjust(Gauge::ClientsReady, -1);
                }
                handshake::disconnect(cx.out);
                self.phase = Phase::Leaving;
                self.until = cx.now + FIN_TIMEOUT;
                Directive::Leave
            }
            Phase::Opening(_) | Phase::AwaitConnack => {
                self.phase = Phase::Gone;
                Directive::Close(Cause::ClosedByPeer)
            }
            Phase::Waiting | Phase::Backoff => {
                self.phase = Phase::Gone;
                Directive::Continue
            }
            Phase::Leaving | Phase::Gone => Directive::Continue,
        }
    }

    /// Something was written: the keep alive starts anew.
    pub fn on_written(&mut self, now: u64) {
        self.wrote = now;
        self.rivalry.on_written(now);
    }

    /// The identifier after the last one. Identifiers in flight lie between the oldest and the last one given, so the
    /// next one is free unless it has come round to the oldest.
    fn next_packet_id(&mut self) -> u16 {
        self.packet_id = self.packet_id % u16::MAX + 1;
        self.packet_id
    }
}

/// Whether the first bytes of a connection can be a server's answer to CONNECT. False while that cannot be told.
///
/// # Errors
/// What it is instead, without waiting for as many bytes as a stranger's "remaining length" asks for: a TLS record (alert 21
/// or handshake 22, version 3.x) where MQTT was expected, or another protocol.
fn first_answer(bytes: &[u8], version: Version) -> Result<bool, Cause> {
    match bytes {
        [] | [21 | 22] | [21 | 22, 3] => Ok(false),
        [21 | 22, 3, 0..=4, ..] => Err(Cause::PlainOnTlsPort),
        [0x20, ..] => Ok(true),
        [0xe0, ..] if version == Version::V5 => Ok(true),
        _ => Err(Cause::Protocol),
    }
}

#[cfg(test)]
mod tests;
