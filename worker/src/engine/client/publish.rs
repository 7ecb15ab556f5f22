//! Publishing: which slots are due, what blocks them, and what becomes of each message.
//!
//! Slots come from a formula, never from a timer that drifts; the backlog is an index, never a buffer. Every slot ends as
//! exactly one of sent, skipped (with a reason) or pending.

use super::{Blocked, Client, Cx, Fence, Inflight, Mark, Phase};
use crate::accounting::header::fingerprint;
use crate::accounting::{Counter, Fingerprint, Gauge, Stage};
use crate::engine::cause::Cause;
use crate::engine::filters::Multiplicity;
use crate::engine::outbound::{self, Message};
use crate::engine::wire;

/// Bytes of publishes that are built before they are written.
const BATCH: usize = 16 * 1024;

impl Client {
    /// When the next slot is due, or is given up while it cannot be sent.
    pub(super) fn publish_deadline(&self, cx: &Cx<'_>) -> u64 {
        let next = |(state, entry): (&super::EntryState, &crate::engine::plan::Entry)| match state.due {
            u64::MAX => u64::MAX,
            due if self.blocked != Blocked::No && cx.run.instant(due) <= cx.now => {
                cx.run.instant(due).saturating_add(entry.max_behind + 1)
            }
            due => cx.run.instant(due),
        };
        self.entries.iter().zip(&cx.plan.entries).map(next).min().unwrap_or(u64::MAX)
    }

    /// The window became known or changed: slots are counted from where the client stands.
    pub fn on_window(&mut self, cx: &mut Cx<'_>) {
        for entry in 0..self.entries.len() {
            self.aim(entry, cx);
        }
        self.on_start_known(cx);
        if self.phase != Phase::Ready {
            self.pass_over(cx);
        }
    }

    /// Sets the due time of an entry's next slot.
    fn aim(&mut self, entry: usize, cx: &Cx<'_>) {
        let state = &mut self.entries[entry];
        let due = cx.plan.entries[entry].schedule.due(cx.plan.slice.rank(self.index), state.slot);
        let length = cx.run.window.map_or(0, |w| w.end.saturating_sub(w.start));
        state.due = if due < length { due } else { u64::MAX };
    }

    /// Slots of an entry that are due by now.
    fn due_slots(&self, entry: usize, cx: &Cx<'_>) -> u64 {
        let Some(window) = cx.run.window else { return 0 };
        if cx.now < window.start {
            return 0;
        }
        // A slot is due at its instant, not after it; slots at the end are not due any more.
        let elapsed = (cx.now - window.start + 1).min(window.end - window.start);
        cx.plan.entries[entry].schedule.client_slots_before(cx.plan.slice.rank(self.index), elapsed)
    }

    /// Passes over everything that is due for a client that is not there: absent before its first connection, skipped
    /// afterwards.
    pub(super) fn pass_over(&mut self, cx: &mut Cx<'_>) {
        for entry in 0..self.entries.len() {
            let due = self.due_slots(entry, cx);
            let passed = due.saturating_sub(self.entries[entry].slot);
            if passed > 0 {
                if self.was_connected {
                    self.skip(entry, passed, Counter::SkippedDisconnected, cx);
                } else {
                    cx.counts.add(Counter::Absent, passed);
                    self.entries[entry].slot = due;
                    self.aim(entry, cx);
                }
            }
        }
    }

    fn skip(&mut self, entry: usize, slots: u64, reason: Counter, cx: &mut Cx<'_>) {
        self.count_skipped(entry, slots, reason, cx);
        self.entries[entry].slot += slots;
        self.aim(entry, cx);
    }

    fn count_skipped(&self, entry: usize, slots: u64, reason: Counter, cx: &mut Cx<'_>) {
        cx.counts.add(Counter::Scheduled, slots);
        cx.counts.add(reason, slots);
        // What is skipped never comes: percentiles know. QoS 0 has no acknowledgement, only the way to the kernel.
        let stage = if cx.plan.entries[entry].qos > 0 { Stage::PublishAck } else { Stage::BlockedLag };
        cx.counts.record_infinite(stage, slots);
    }

    /// Puts publishes that are due into the buffer. `writable` says whether the socket takes them. True when there is more
    /// than one buffer of them.
    #[inline]
    pub fn fill(&mut self, writable: bool, cx: &mut Cx<'_>) -> bool {
        if self.phase != Phase::Ready || self.entries.is_empty() {
            return false;
        }
        let Some(window) = cx.run.window else { return false };
        if cx.now < window.start {
            return false;
        }
        let elapsed = cx.now - window.start;
        loop {
            let mut best: Option<(usize, u64)> = None;
            let mut blocked = Blocked::No;
            for (i, state) in self.entries.iter().enumerate() {
                if state.due > elapsed || best.is_some_and(|(_, due)| due <= state.due) {
                    continue;
                }
                if !writable {
                    blocked = Blocked::Socket;
                } else if cx.plan.entries[i].qos > 0 && self.window_full(cx) {
                    blocked = Blocked::Window;
                } else if elapsed - state.due <= cx.plan.entries[i].max_behind {
                    best = Some((i, state.due));
                    continue;
                }
                if elapsed - state.due > cx.plan.entries[i].max_behind {
                    best = Some((i, state.due));
                }
            }
            let Some((entry, due)) = best else {
                self.set_blocked(blocked, cx.now);
                break;
            };
            let max_behind = cx.plan.entries[entry].max_behind;
            if elapsed - due > max_behind {
                self.skip_old(entry, elapsed - max_behind, blocked, cx);
                continue;
            }
            if cx.out.len() >= BATCH {
                return true;
            }
            self.put(entry, due, cx);
        }
        self.fence_at_end(cx);
        false
    }

    /// Skips the slots of an entry that were due before `oldest`, counted from the start.
    fn skip_old(&mut self, entry: usize, oldest: u64, blocked: Blocked, cx: &mut Cx<'_>) {
        let rank = cx.plan.slice.rank(self.index);
        let length = cx.run.window.map_or(0, |w| w.end.saturating_sub(w.start));
        let kept = cx.plan.entries[entry].schedule.client_slots_before(rank, oldest.min(length));
        let slots = kept.saturating_sub(self.entries[entry].slot).max(1);
        // What blocked the client while these slots became old is the reason, even if the way is free by now.
        let reason = match if blocked == Blocked::No { self.blocked } else { blocked } {
            Blocked::Window => Counter::SkippedWindowFull,
            Blocked::Socket => Counter::SkippedSocketFull,
            Blocked::No => Counter::SkippedBehind,
        };
        self.skip(entry, slots, reason, cx);
    }

    fn set_blocked(&mut self, blocked: Blocked, now: u64) {
        if blocked != Blocked::No && self.blocked == Blocked::No {
            self.blocked_since = now;
        }
        self.blocked = blocked;
    }

    fn window_full(&self, cx: &Cx<'_>) -> bool {
        let open = self.inflight.len() + cx.marks.iter().filter(|mark| mark.packet_id != 0).count();
        let round = self.inflight.front().is_some_and(|oldest| oldest.packet_id == self.packet_id % u16::MAX + 1);
        open >= usize::from(self.window) || round
    }

    /// Puts one publish into the buffer and moves on to the next slot.
    fn put(&mut self, entry: usize, due: u64, cx: &mut Cx<'_>) {
        let plan = cx.plan;
        let what = &plan.entries[entry];
        let slot = self.entries[entry].slot;
        let packet_id = if what.qos > 0 { self.next_packet_id() } else { 0 };
        let start = cx.out.len();
        let message = Message {
            client: self.index,
            sequence: slot,
            packet_id,
            dup: false,
            due_unix_ns: cx.run.window.map_or(0, |w| w.start_unix + due),
        };
        outbound::publish(plan, what, entry as u8, self.entries[entry].head.as_ref(), &message, cx.out);
        let due = cx.run.instant(due);
        // While something blocked the client the engine was there in time: that wait is not the engine's lag.
        let handled = if self.blocked == Blocked::No { cx.now } else { due.max(self.blocked_since) };
        cx.marks.push(Mark {
            start: start as u32,
            end: cx.out.len() as u32,
            entry: entry as u8,
            packet_id,
            slot,
            due,
            handled,
            written: cx.now,
        });
        self.entries[entry].slot = slot + 1;
        self.aim(entry, cx);
    }

    /// The kernel has the last byte of a publish; `cx.now` is the instant after the write.
    #[inline]
    pub fn on_sent(&mut self, mark: &Mark, cx: &mut Cx<'_>) {
        let what = &cx.plan.entries[usize::from(mark.entry)];
        cx.counts.inc(Counter::Scheduled);
        cx.counts.inc(Counter::sent(what.qos));
        cx.counts.record(Stage::EngineLag, mark.handled.saturating_sub(mark.due));
        cx.counts.record(Stage::BlockedLag, cx.now.saturating_sub(mark.handled));
        let multiplicity = self.multiplicity(mark.entry, mark.slot, cx);
        cx.counts.add(Counter::ExpectedMax, u64::from(multiplicity.max));
        if what.qos > 0 {
            self.inflight.push_back(Inflight {
                slot: mark.slot,
                due: mark.due,
                written: mark.written,
                packet_id: mark.packet_id,
                entry: mark.entry,
                released: false,
            });
        } else {
            self.unfenced.messages += 1;
            self.unfenced.deliveries += u64::from(multiplicity.min);
            let print = self.print(mark.entry, mark.slot, cx).wrapping_mul(u64::from(multiplicity.min));
            self.unfenced.fingerprint = self.unfenced.fingerprint.wrapping_add(print);
        }
    }

    /// A publish was not written at all: its slot is due again. Called for the last marks first.
    pub fn on_unsent(&mut self, mark: &Mark, cx: &mut Cx<'_>) {
        let entry = usize::from(mark.entry);
        self.entries[entry].slot = mark.slot;
        self.aim(entry, cx);
        if mark.packet_id != 0 {
            self.packet_id = if mark.packet_id == 1 { u16::MAX } else { mark.packet_id - 1 };
        }
    }

    /// The socket took only a part: what is due waits for it. `cut` are publishes that can neither be taken back nor counted
    /// yet, as the kernel has only the first `settled` bytes of what their marks count in.
    pub fn on_socket_full(&mut self, cut: &[Mark], settled: usize, cx: &mut Cx<'_>) {
        self.set_blocked(Blocked::Socket, cx.now);
        self.cut.extend(cut.iter().map(|mark| Mark { end: mark.end - settled as u32, ..*mark }));
    }

    /// The kernel took so many further bytes of what waited.
    pub fn on_rest_sent(&mut self, bytes: usize, cx: &mut Cx<'_>) {
        if self.cut.is_empty() {
            return;
        }
        for mark in &mut self.cut {
            mark.end = mark.end.saturating_sub(u32::try_from(bytes).unwrap_or(u32::MAX));
        }
        let sent = self.cut.iter().take_while(|mark| mark.end == 0).count();
        let marks: Vec<Mark> = self.cut.drain(..sent).collect();
        marks.iter().for_each(|mark| self.on_sent(mark, cx));
        if self.cut.is_empty() {
            self.cut = Vec::new();
        }
    }

    /// Publishes were cut by the end of their connection: they were not sent.
    pub(super) fn on_cut_lost(&mut self, reason: Counter, cx: &mut Cx<'_>) {
        for mark in std::mem::take(&mut self.cut) {
            self.count_skipped(usize::from(mark.entry), 1, reason, cx);
        }
    }

    fn multiplicity(&self, entry: u8, slot: u64, cx: &Cx<'_>) -> Multiplicity {
        let what = &cx.plan.entries[usize::from(entry)];
        if !what.topic_varies {
            return self.entries[usize::from(entry)].multiplicity;
        }
        let mut topic = String::new();
        cx.plan.render(&what.topic, self.index, slot, &mut topic);
        cx.plan.filters.multiplicity(&topic)
    }

    fn print(&self, entry: u8, slot: u64, cx: &Cx<'_>) -> u64 {
        fingerprint(cx.plan.slice.global_rank(self.index) as u32, entry, slot as u32)
    }

    pub(super) fn on_puback(&mut self, frame: &wire::Frame<'_>, cx: &mut Cx<'_>) -> Result<(), Cause> {
        let (id, reason) = wire::ack(frame.first, frame.body, cx.plan.version)?;
        self.finish(id, 1, reason, cx)
    }

    pub(super) fn on_pubcomp(&mut self, frame: &wire::Frame<'_>, cx: &mut Cx<'_>) -> Result<(), Cause> {
        let (id, reason) = wire::ack(frame.first, frame.body, cx.plan.version)?;
        self.finish(id, 2, reason, cx)
    }

    pub(super) fn on_pubrec(&mut self, frame: &wire::Frame<'_>, cx: &mut Cx<'_>) -> Result<(), Cause> {
        let (id, reason) = wire::ack(frame.first, frame.body, cx.plan.version)?;
        let Some(at) = self.position(id) else { return Err(Cause::Protocol) };
        let message = &mut self.inflight[at];
        if cx.plan.entries[usize::from(message.entry)].qos != 2 {
            return Err(Cause::Protocol);
        }
        if reason >= 0x80 {
            self.settle(at, reason, cx);
        } else {
            message.released = true;
            cx.out.extend_from_slice(&[0x62, 2]);
            cx.out.extend_from_slice(&id.to_be_bytes());
        }
        Ok(())
    }

    fn position(&self, id: u16) -> Option<usize> {
        // Acknowledgements come in order as a rule (MQTT-4.6.0-2), so the first one usually is it.
        self.inflight.iter().position(|message| message.packet_id == id)
    }

    /// PUBACK or PUBCOMP.
    #[inline]
    fn finish(&mut self, id: u16, qos: u8, reason: u8, cx: &mut Cx<'_>) -> Result<(), Cause> {
        let Some(at) = self.position(id) else { return Err(Cause::Protocol) };
        let message = &self.inflight[at];
        if cx.plan.entries[usize::from(message.entry)].qos != qos || (qos == 2 && !message.released) {
            return Err(Cause::Protocol);
        }
        self.settle(at, reason, cx);
        Ok(())
    }

    fn settle(&mut self, at: usize, reason: u8, cx: &mut Cx<'_>) {
        let message = if at == 0 { self.inflight.pop_front() } else { self.inflight.remove(at) };
        let Some(message) = message else { return };
        if reason >= 0x80 {
            cx.counts.inc(refusal(reason));
            cx.counts.record_infinite(Stage::PublishAck, 1);
            cx.counts.record_infinite(Stage::PublishAckService, 1);
            return;
        }
        cx.counts.inc(Counter::Acked);
        if reason == 0x10 {
            cx.counts.inc(Counter::NoSubscribers);
        }
        cx.counts.record(Stage::PublishAck, cx.now.saturating_sub(message.due));
        cx.counts.record(Stage::PublishAckService, cx.now.saturating_sub(message.written));
        let multiplicity = self.multiplicity(message.entry, message.slot, cx);
        if multiplicity.min > 0 {
            cx.counts.add(Counter::ExpectedMin, u64::from(multiplicity.min));
            let print = self.print(message.entry, message.slot, cx);
            cx.counts.fold(Fingerprint::Expected, print.wrapping_mul(u64::from(multiplicity.min)));
        }
    }

    /// Sends everything in flight again, in the order in which it was sent (MQTT 5.0 section 4.4): PUBLISH with DUP, or
    /// PUBREL where PUBREC has come.
    pub(super) fn resend(&mut self, cx: &mut Cx<'_>) {
        for message in &self.inflight {
            if message.released {
                cx.out.extend_from_slice(&[0x62, 2]);
                cx.out.extend_from_slice(&message.packet_id.to_be_bytes());
                continue;
            }
            let entry = usize::from(message.entry);
            let start_unix = cx.run.window.map_or(0, |w| w.start_unix);
            let again = Message {
                client: self.index,
                sequence: message.slot,
                packet_id: message.packet_id,
                dup: true,
                due_unix_ns: (start_unix + message.due).saturating_sub(cx.run.instant(0)),
            };
            outbound::publish(cx.plan, &cx.plan.entries[entry], message.entry, self.entries[entry].head.as_ref(), &again, cx.out);
            cx.counts.inc(Counter::Retransmitted);
        }
    }

    /// The session that would have carried the acknowledgements is gone.
    pub(super) fn abandon(&mut self, cx: &mut Cx<'_>) {
        let lost = self.inflight.len() as u64;
        self.inflight.clear();
        cx.counts.add(Counter::Abandoned, lost);
        cx.counts.record_infinite(Stage::PublishAck, lost);
        cx.counts.record_infinite(Stage::PublishAckService, lost);
    }

    /// The last QoS 0 message is followed by its fence at once.
    fn fence_at_end(&mut self, cx: &mut Cx<'_>) {
        let over = self.entries.iter().all(|state| state.due == u64::MAX);
        if over && cx.marks.is_empty() && self.unfenced.messages > 0 && self.pinged == 0 {
            self.ping(cx);
        }
    }

    /// PINGRESP has come: the broker had read everything before the PINGREQ.
    pub(super) fn on_fence(&mut self, cx: &mut Cx<'_>) {
        let fence = std::mem::take(&mut self.fencing);
        cx.counts.add(Counter::Fenced, fence.messages);
        cx.counts.add(Counter::ExpectedMin, fence.deliveries);
        cx.counts.fold(Fingerprint::Expected, fence.fingerprint);
    }

    pub(super) fn on_unfenced_lost(&mut self, cx: &mut Cx<'_>) {
        let lost = self.unfenced.messages + self.fencing.messages;
        (self.unfenced, self.fencing) = (Fence::default(), Fence::default());
        cx.counts.add(Counter::UnfencedLost, lost);
    }

    /// Adds what is open to the gauges of a snapshot and the planned slots to its count; passes over what a client that is
    /// not there missed.
    pub fn report(&mut self, cx: &mut Cx<'_>, open: &mut Open) {
        if self.phase != Phase::Ready && self.phase != Phase::Leaving {
            self.pass_over(cx);
        }
        for entry in 0..self.entries.len() {
            let due = self.due_slots(entry, cx);
            open.planned += due;
            open.pending += due.saturating_sub(self.entries[entry].slot);
        }
        open.pending += self.cut.len() as u64;
        open.unacked += self.inflight.len() as u64;
        open.unfenced += self.unfenced.messages + self.fencing.messages;
        open.missing += self.missing(cx);
    }

    /// Counts what will never come: at the end, after the drain.
    pub fn close_books(&mut self, cx: &mut Cx<'_>) {
        self.pass_over_at_end(cx);
        let open = self.inflight.len() as u64;
        cx.counts.record_infinite(Stage::PublishAck, open);
        cx.counts.record_infinite(Stage::PublishAckService, open);
    }

    fn pass_over_at_end(&mut self, cx: &mut Cx<'_>) {
        if self.phase != Phase::Ready {
            self.pass_over(cx);
        }
        for entry in 0..self.entries.len() {
            let left = self.due_slots(entry, cx).saturating_sub(self.entries[entry].slot);
            if left > 0 {
                self.skip(entry, left, Counter::SkippedEndOfRun, cx);
            }
        }
    }
}

/// What is open at the instant of a snapshot.
#[derive(Clone, Copy, Debug, Default)]
pub struct Open {
    /// Slots due so far by the formula.
    pub planned: u64,
    /// Due and neither sent nor skipped.
    pub pending: u64,
    /// Sent and not acknowledged.
    pub unacked: u64,
    /// Sent at QoS 0 and not fenced.
    pub unfenced: u64,
    /// Deliveries that clients which are away may have missed so far.
    pub missing: u64,
}

impl Open {
    /// Writes it into a snapshot.
    pub fn apply(&self, counts: &mut crate::accounting::Snapshot) {
        counts.set(Counter::Planned, self.planned);
        counts.add(Counter::Scheduled, self.pending);
        counts.add(Counter::Excused, self.missing);
        counts.set_gauge(Gauge::Pending, self.pending as i64);
        counts.set_gauge(Gauge::Unacked, self.unacked as i64);
        counts.set_gauge(Gauge::Unfenced, self.unfenced as i64);
    }
}

/// How a reason code of 0x80 or above is counted.
fn refusal(reason: u8) -> Counter {
    match reason {
        0x80 => Counter::RefusedUnspecified,
        0x83 => Counter::RefusedImplementation,
        0x87 => Counter::RefusedNotAuthorized,
        0x90 => Counter::RefusedTopicName,
        0x91 => Counter::RefusedPacketIdInUse,
        0x92 => Counter::RefusedPacketIdNotFound,
        0x97 => Counter::RefusedQuota,
        0x99 => Counter::RefusedPayloadFormat,
        _ => Counter::RefusedOther,
    }
}

impl Client {
    /// Whether any of the client's packets would be over the server's Maximum Packet Size.
    pub(super) fn frames_over(&self, maximum: u32, cx: &Cx<'_>) -> bool {
        if maximum == u32::MAX {
            return false;
        }
        cx.plan.entries.iter().enumerate().any(|(i, entry)| {
            let message =
                Message { client: self.index, sequence: self.entries[i].slot, packet_id: 1, dup: false, due_unix_ns: 0 };
            let mut bytes = Vec::new();
            outbound::publish(cx.plan, entry, i as u8, self.entries[i].head.as_ref(), &message, &mut bytes);
            bytes.len() > maximum as usize
        })
    }
}
