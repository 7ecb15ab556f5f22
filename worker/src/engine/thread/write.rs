//! Writing: what a client has to say goes to its transport, and each publish is counted as what became of it.

use super::Thread;
use crate::accounting::Counter;
use crate::engine::cause::Cause;
use crate::engine::client::Cx;
use std::io::ErrorKind;

impl Thread {
    /// Gives the transport what waits and what is in the buffer. What it does not take waits with the connection, up to the
    /// end of the publish that it cut; publishes behind that go back to their slots.
    ///
    /// # Errors
    /// When the connection was lost over it; the client knows.
    pub(super) fn flush(&mut self, i: usize) -> Result<(), ()> {
        let Some(connection) = &mut self.connections[i] else {
            self.out.clear();
            self.marks.clear();
            return Ok(());
        };
        let waiting = connection.full || !connection.outbound.is_empty() || connection.transport.pending();
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
            let step = if written < bytes.len() {
                connection.transport.write(&bytes[written..], &mut self.buffers)
            } else {
                connection.transport.push().map(|()| 0)
            };
            match step {
                Ok(n) => {
                    written += n;
                    if written == bytes.len() && !connection.transport.pending() {
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
        let unsettled = connection.transport.unsettled();
        let settled = std::mem::replace(&mut connection.unsettled, unsettled) + written - unsettled;
        if waiting {
            connection.outbound.drain(..written);
            if connection.outbound.is_empty() {
                connection.outbound = Vec::new();
            }
            with_client!(self, i, |client, cx| {
                if written > 0 {
                    client.on_written(cx.now);
                }
                client.on_rest_sent(settled, cx);
            });
        } else {
            self.settle_marks(i, settled, written);
        }
        if let Err(cause) = result {
            self.lost(i, cause);
            return Err(());
        }
        Ok(())
    }

    /// Counts the publishes that were written whole (up to `settled`), keeps those that can neither be counted nor taken back
    /// (begun before `written`), takes back the rest.
    fn settle_marks(&mut self, i: usize, settled: usize, written: usize) {
        let marks = std::mem::take(&mut self.marks);
        let sent = marks.iter().take_while(|mark| mark.end as usize <= settled).count();
        with_client!(self, i, |client, cx| {
            if written > 0 {
                client.on_written(cx.now);
            }
            marks[..sent].iter().for_each(|mark| client.on_sent(mark, cx));
        });
        if settled < self.out.len() {
            let cut = marks[sent..].iter().take_while(|mark| (mark.start as usize) < written).count();
            let (cut, unsent) = marks[sent..].split_at(cut);
            let keep = unsent.first().map_or(self.out.len(), |mark| mark.start as usize);
            with_client!(self, i, |client, cx| {
                unsent.iter().rev().for_each(|mark| client.on_unsent(mark, cx));
                client.on_socket_full(cut, settled, cx);
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
