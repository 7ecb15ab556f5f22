//! A timing wheel with one entry per client: ticks of 1 ms, intrusive lists, no allocation after the start.
//!
//! An instant beyond the wheel's horizon is parked in the last slot and looked at again when that comes round. Instants
//! are rounded up to the tick, so nothing fires early; the wheel itself reads no clock.

/// Length of a tick in nanoseconds.
pub const TICK_NS: u64 = 1_000_000;
const SLOTS: usize = 4096;
const NONE: u32 = u32::MAX;

/// Timers of the clients 0 to N - 1.
#[derive(Debug)]
pub struct Wheel {
    /// First client of each slot's list.
    heads: Box<[u32]>,
    /// Which slots are not empty, a bit each.
    occupied: [u64; SLOTS / 64],
    entries: Vec<Entry>,
    /// The tick up to which (exclusively) everything has fired.
    now: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    next: u32,
    prev: u32,
    /// The tick at which it is to fire, or `u64::MAX` when it is not armed.
    tick: u64,
    slot: u32,
}

impl Wheel {
    /// A wheel for `clients` timers, none of them armed.
    pub fn new(clients: usize, now_ns: u64) -> Self {
        Self {
            heads: vec![NONE; SLOTS].into(),
            occupied: [0; SLOTS / 64],
            entries: vec![Entry { next: NONE, prev: NONE, tick: u64::MAX, slot: NONE }; clients],
            now: now_ns / TICK_NS,
        }
    }

    /// Arms, moves or (with `u64::MAX`) disarms a client's timer.
    #[inline]
    pub fn set(&mut self, client: usize, at_ns: u64) {
        let tick = if at_ns == u64::MAX { u64::MAX } else { at_ns.div_ceil(TICK_NS).max(self.now) };
        if self.entries[client].tick == tick {
            return;
        }
        self.unlink(client);
        self.entries[client].tick = tick;
        if tick != u64::MAX {
            self.link(client, tick);
        }
    }

    fn link(&mut self, client: usize, tick: u64) {
        let slot = (tick.min(self.now + SLOTS as u64 - 1) as usize) % SLOTS;
        let head = self.heads[slot];
        if head != NONE {
            self.entries[head as usize].prev = client as u32;
        }
        let entry = &mut self.entries[client];
        (entry.next, entry.prev, entry.slot) = (head, NONE, slot as u32);
        self.heads[slot] = client as u32;
        self.occupied[slot / 64] |= 1 << (slot % 64);
    }

    fn unlink(&mut self, client: usize) {
        let Entry { next, prev, slot, .. } = self.entries[client];
        if slot == NONE {
            return;
        }
        if next != NONE {
            self.entries[next as usize].prev = prev;
        }
        if prev == NONE {
            self.heads[slot as usize] = next;
            if next == NONE {
                self.occupied[slot as usize / 64] &= !(1 << (slot % 64));
            }
        } else {
            self.entries[prev as usize].next = next;
        }
        self.entries[client].slot = NONE;
    }

    /// Moves every client whose instant has come to `due`, disarmed.
    pub fn advance(&mut self, now_ns: u64, due: &mut Vec<u32>) {
        let until = now_ns / TICK_NS;
        while self.now <= until {
            let slot = (self.now as usize) % SLOTS;
            let mut client = self.heads[slot];
            while client != NONE {
                let next = self.entries[client as usize].next;
                self.unlink(client as usize);
                if self.entries[client as usize].tick <= until {
                    self.entries[client as usize].tick = u64::MAX;
                    due.push(client);
                } else {
                    // Parked: further away than the wheel reaches. The slot of its tick is never this one again within
                    // this walk, because it lies at least one tick ahead.
                    let tick = self.entries[client as usize].tick;
                    self.now += 1;
                    self.link(client as usize, tick);
                    self.now -= 1;
                }
                client = next;
            }
            self.now += 1;
            if self.now + (SLOTS as u64) < until {
                // After a long stop one round visits every slot.
                self.now = until - SLOTS as u64;
            }
        }
    }

    /// The instant at which `advance` should be called next; `None` when nothing is armed.
    pub fn next(&self) -> Option<u64> {
        let start = (self.now as usize) % SLOTS;
        let (word, bit) = (start / 64, start % 64);
        let words = SLOTS / 64;
        for i in 0..=words {
            let at = (word + i) % words;
            let mut bits = self.occupied[at];
            if i == 0 {
                bits &= u64::MAX << bit;
            } else if i == words {
                bits &= !(u64::MAX << bit);
            }
            if bits != 0 {
                let slot = at * 64 + bits.trailing_zeros() as usize;
                let ahead = (slot + SLOTS - start) % SLOTS;
                return Some((self.now + ahead as u64) * TICK_NS);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_timer_fires_once_at_the_first_tick_that_is_not_before_its_instant(
            start in 0u64..1 << 40, instants in vec(0u64..30_000_000_000, 1..60), steps in vec(1u64..3_000_000_000, 1..60),
        ) {
            let mut wheel = Wheel::new(instants.len(), start);
            for (client, after) in instants.iter().enumerate() {
                wheel.set(client, start + 1_000_000_000 + after); // set twice: the second one counts
                wheel.set(client, start + after);
            }
            let mut fired = vec![None; instants.len()];
            let mut now = start;
            for step in steps.iter().chain(std::iter::once(&40_000_000_000)) {
                let before = now;
                now += step;
                let mut due = Vec::new();
                wheel.advance(now, &mut due);
                for client in due {
                    let client = client as usize;
                    prop_assert!(fired[client].is_none());
                    fired[client] = Some(now);
                    prop_assert!(now >= start + instants[client], "early");
                    prop_assert!(before < start + instants[client] + TICK_NS, "more than a tick late");
                }
            }
            prop_assert!(fired.iter().all(Option::is_some));
            prop_assert_eq!(wheel.next(), None);
        }

        #[test]
        fn next_is_never_after_the_first_timer(start in 0u64..1 << 40, instants in vec(0u64..3_000_000_000, 1..20)) {
            let mut wheel = Wheel::new(instants.len(), start);
            for (client, after) in instants.iter().enumerate() {
                wheel.set(client, start + after);
            }
            let first = start + instants.iter().min().unwrap();
            let next = wheel.next().unwrap();
            prop_assert!(next <= first.div_ceil(TICK_NS) * TICK_NS);
            prop_assert!(next + TICK_NS > start);
            let mut due = Vec::new();
            wheel.advance(next, &mut due);
            prop_assert!(!due.is_empty());
        }
    }

    #[test]
    fn a_disarmed_timer_does_not_fire() {
        let mut wheel = Wheel::new(2, 0);
        wheel.set(0, 5 * TICK_NS);
        wheel.set(1, 5 * TICK_NS);
        wheel.set(0, u64::MAX);
        let mut due = Vec::new();
        wheel.advance(10 * TICK_NS, &mut due);
        assert_eq!(due, [1]);
    }
}
