//! Deliveries: acknowledged, told apart (this run's, retained, foreign, duplicate) and timed.

use super::{Client, Cx};
use crate::accounting::{Counter, Fingerprint, Gauge, Stage};
use crate::engine::cause::Cause;
use crate::engine::plan::Headers;
use crate::engine::streams::Delivery;
use crate::engine::wire::{self, Version};

impl Client {
    #[inline]
    pub(super) fn on_publish(&mut self, frame: &wire::Frame<'_>, cx: &mut Cx<'_>) -> Result<(), Cause> {
        let publish = wire::Publish::read(frame.first, frame.body, cx.plan.version)?;
        match publish.qos {
            0 => {}
            1 => reply(0x40, publish.packet_id, cx.out),
            _ => {
                // Until PUBREL the identifier stands for this message: the same one again is no new delivery
                // (MQTT 5.0 section 4.3.3, method B).
                let known = self.receiving.contains(&publish.packet_id);
                reply(0x50, publish.packet_id, cx.out);
                if known {
                    return Ok(());
                }
                if self.receiving.len() >= usize::from(u16::MAX) {
                    return Err(Cause::ReceiveMaximum);
                }
                self.receiving.push(publish.packet_id);
            }
        }
        self.count_delivery(&publish, cx);
        Ok(())
    }

    fn count_delivery(&mut self, publish: &wire::Publish<'_>, cx: &mut Cx<'_>) {
        if publish.retain {
            cx.counts.inc(Counter::Retained);
            return;
        }
        if cx.plan.subscriptions.is_empty() {
            cx.counts.inc(Counter::Unexpected);
            return;
        }
        let header = if cx.plan.headers == Headers::None { None } else { publish.header(cx.plan.run_tag) };
        let Some(header) = header else {
            if cx.plan.headers == Headers::All {
                cx.counts.inc(Counter::Foreign);
            } else {
                cx.counts.inc(Counter::Received);
                cx.counts.inc(Counter::Unique);
                cx.counts.adjust(Gauge::StreamsUntracked, 1);
            }
            return;
        };
        cx.counts.inc(Counter::Received);
        let judged = if cx.plan.shared {
            Delivery::Unknown
        } else {
            cx.streams.judge(self.index, header.client, header.entry, header.seq)
        };
        match judged {
            Delivery::Duplicate => {
                cx.counts.inc(Counter::Duplicates);
                if publish.qos == 2 {
                    cx.counts.inc(Counter::DuplicatesQos2);
                }
                return;
            }
            Delivery::First => {}
            Delivery::OutOfOrder => cx.counts.inc(Counter::OutOfOrder),
            Delivery::Unknown => cx.counts.adjust(Gauge::StreamsUntracked, 1),
        }
        cx.counts.inc(Counter::Unique);
        cx.counts.fold(Fingerprint::Received, header.fingerprint());
        match cx.run.unix(cx.now).map(|now| now.checked_sub(header.due_unix_ns)) {
            Some(Some(latency)) => {
                cx.counts.record(Stage::EndToEnd, latency);
                self.presence.lag = latency;
            }
            Some(None) => cx.counts.inc(Counter::NegativeLatency),
            None => {}
        }
    }

    pub(super) fn on_pubrel(&mut self, frame: &wire::Frame<'_>, cx: &mut Cx<'_>) -> Result<(), Cause> {
        let (id, _) = wire::ack(frame.first, frame.body, cx.plan.version)?;
        match self.receiving.iter().position(|known| *known == id) {
            Some(at) => {
                self.receiving.swap_remove(at);
                reply(0x70, id, cx.out);
            }
            // Released before, in an earlier connection of this session.
            None if cx.plan.version == Version::V5 => {
                cx.out.extend_from_slice(&[0x70, 3]);
                cx.out.extend_from_slice(&id.to_be_bytes());
                cx.out.push(0x92);
            }
            None => reply(0x70, id, cx.out),
        }
        Ok(())
    }
}

/// Appends an acknowledgement with reason code 0, which both versions write the same.
#[inline]
fn reply(first: u8, id: u16, out: &mut Vec<u8>) {
    let [high, low] = id.to_be_bytes();
    out.extend_from_slice(&[first, 2, high, low]);
}
