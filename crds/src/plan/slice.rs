//! The clients of one worker. Of C clients over N shards, client j of shard s has rank `j * N + s`: slices differ by one
//! client at most, and every rate is interleaved over the shards instead of coming in one burst per shard.

/// The clients that one worker runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// Which group of the plan.
    pub group: usize,
    /// Completion index of the worker.
    pub shard: u32,
    /// Completions of the Job.
    pub shards: u32,
    /// Clients of the whole group.
    pub group_clients: u32,
    /// Clients of the groups before this one.
    pub first_rank: u64,
    /// Number of the group's first client.
    pub start_number: u64,
}

impl Slice {
    /// How many clients the slice has.
    pub fn clients(&self) -> u32 {
        if self.shard >= self.group_clients { 0 } else { (self.group_clients - self.shard).div_ceil(self.shards) }
    }

    /// Rank in the group of the slice's client `j`.
    pub fn rank(&self, j: u32) -> u64 {
        u64::from(j) * u64::from(self.shards) + u64::from(self.shard)
    }

    /// Rank over all groups of the slice's client `j`.
    pub fn global_rank(&self, j: u32) -> u64 {
        self.first_rank + self.rank(j)
    }

    /// Number (`%i`) of the slice's client `j`.
    pub fn client_number(&self, j: u32) -> u64 {
        self.start_number + self.rank(j)
    }
}
