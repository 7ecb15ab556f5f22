//! Instants by formula: slot k of a group is due at `floor(k * 1e9 * den / num)` nanoseconds after the start, in 128 bits, and
//! client number r (its rank in the group of C clients) owns the slots `k = r + n * C`. So the sum over all shards is exact
//! and evenly spaced, however many shards there are, and no timer drifts.

/// Slots of a group of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    /// Nanoseconds between two slots of the group, as a fraction.
    nanos_num: u128,
    nanos_den: u128,
    clients: u64,
}

impl Schedule {
    /// A group of `clients` that together have `rate` slots a second.
    pub fn at_rate(rate: crate::value::Rate, clients: u32) -> Self {
        Self {
            nanos_num: u128::from(rate.den()) * 1_000_000_000,
            nanos_den: u128::from(rate.num()),
            clients: u64::from(clients.max(1)),
        }
    }

    /// A group of `clients` each of which has one slot every `interval` nanoseconds.
    pub fn every(interval: u64, clients: u32) -> Self {
        let clients = u64::from(clients.max(1));
        Self { nanos_num: u128::from(interval.max(1)), nanos_den: u128::from(clients), clients }
    }

    /// When slot `k` of the group is due, in nanoseconds from the start. Saturates.
    pub fn slot(&self, k: u64) -> u64 {
        u64::try_from(u128::from(k) * self.nanos_num / self.nanos_den).unwrap_or(u64::MAX)
    }

    /// When slot `n` of the client with rank `rank` in the group is due, in nanoseconds from the start. Saturates.
    pub fn due(&self, rank: u64, n: u64) -> u64 {
        n.checked_mul(self.clients).and_then(|k| k.checked_add(rank)).map_or(u64::MAX, |k| self.slot(k))
    }

    /// How many slots of the whole group are due before `elapsed` nanoseconds from the start.
    pub fn slots_before(&self, elapsed: u64) -> u64 {
        // floor(k * num / den) < elapsed  <=>  k * num < elapsed * den  <=>  k < ceil(elapsed * den / num)
        u64::try_from((u128::from(elapsed) * self.nanos_den).div_ceil(self.nanos_num)).unwrap_or(u64::MAX)
    }

    /// How many slots of one client are due before `elapsed` nanoseconds from the start; also the number of the client's
    /// first slot that is due at or after `elapsed`.
    pub fn client_slots_before(&self, rank: u64, elapsed: u64) -> u64 {
        let all = self.slots_before(elapsed);
        if all <= rank { 0 } else { (all - rank).div_ceil(self.clients) }
    }
}
