//! Duplicates and order, stream by stream, with bounded memory.
//!
//! A stream is what one subscriber receives of one publish entry of one sender. Its last sequence number and a window of
//! the 64 before it tell first deliveries from repeated ones. Streams over the cap are counted and not followed.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Most streams that one thread follows: 24 bytes each and the table's overhead, about 20 MiB.
pub const CAP: usize = 500_000;
const WINDOW: u32 = 64;

/// What a delivery is within its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// A first delivery, in order.
    First,
    /// A first delivery after a later message of its stream.
    OutOfOrder,
    /// Delivered before.
    Duplicate,
    /// Not followed: over the cap, or further back than the window.
    Unknown,
}

#[derive(Debug)]
struct Stream {
    last: u32,
    /// Bit `i`: `last - i` has come.
    seen: u64,
}

/// The streams of one thread.
#[derive(Debug, Default)]
pub struct Streams {
    map: HashMap<u64, Stream, BuildHasherDefault<Mix>>,
}

impl Streams {
    /// How many are followed.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether none is followed.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Judges a delivery to the thread's client `receiver`.
    #[inline]
    pub fn judge(&mut self, receiver: u32, sender: u32, entry: u8, seq: u32) -> Delivery {
        // 28 bits of receiver, 32 of sender and 4 of entry name a stream without loss (entries are at most 16).
        let key = u64::from(receiver) << 36 | u64::from(sender) << 4 | u64::from(entry & 15);
        if let Some(stream) = self.map.get_mut(&key) {
            return stream.judge(seq);
        }
        if self.map.len() >= CAP {
            return Delivery::Unknown;
        }
        self.map.insert(key, Stream { last: seq, seen: 1 });
        Delivery::First
    }
}

impl Stream {
    fn judge(&mut self, seq: u32) -> Delivery {
        if seq > self.last {
            let ahead = seq - self.last;
            self.seen = if ahead >= WINDOW { 1 } else { self.seen << ahead | 1 };
            self.last = seq;
            return Delivery::First;
        }
        let behind = self.last - seq;
        if behind >= WINDOW {
            return Delivery::Unknown;
        }
        let bit = 1 << behind;
        if self.seen & bit != 0 {
            return Delivery::Duplicate;
        }
        self.seen |= bit;
        Delivery::OutOfOrder
    }
}

/// A hasher for keys that are already numbers: the finaliser of SplitMix64.
#[derive(Debug, Default)]
pub struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = crate::accounting::header::mix64(self.0 ^ u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = crate::accounting::header::mix64(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn streams_do_not_mix() {
        let mut streams = Streams::default();
        for (receiver, sender, entry) in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)] {
            assert_eq!(streams.judge(receiver, sender, entry, 5), Delivery::First);
        }
        assert_eq!(streams.judge(0, 0, 0, 5), Delivery::Duplicate);
        assert_eq!(streams.judge(0, 0, 0, 4), Delivery::OutOfOrder);
        assert_eq!(streams.judge(0, 0, 0, 4), Delivery::Duplicate);
    }

    proptest! {
        #[test]
        fn within_the_window_every_verdict_is_that_of_a_full_record(
            steps in proptest::collection::vec(-63i64..10, 1..300),
        ) {
            let mut streams = Streams::default();
            let (mut seen, mut last) = (HashSet::new(), 1_000i64);
            streams.judge(0, 0, 0, 1_000);
            seen.insert(1_000);
            for step in steps {
                let seq = last + step;
                let told = streams.judge(0, 0, 0, seq as u32);
                let truth = match (seen.insert(seq), seq > last) {
                    (false, _) => Delivery::Duplicate,
                    (true, true) => Delivery::First,
                    (true, false) => Delivery::OutOfOrder,
                };
                prop_assert_eq!(told, truth);
                last = last.max(seq);
            }
        }
    }
}
