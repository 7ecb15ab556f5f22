//! The table of gauges: what goes up and down, and how two of them combine when snapshots merge.

/// How two values of one gauge become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    /// Addition: clients, messages in flight.
    Sum,
    /// The larger one: the worst thread, the longest turn.
    Max,
}

macro_rules! gauges {
    ($($variant:ident = $name:literal, $unit:literal, $combine:ident, $help:literal;)*) => {
        /// One gauge of a shard. The discriminant is its index in [`Snapshot`](super::Snapshot).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Gauge {
            $(#[doc = $help] $variant,)*
        }

        impl Gauge {
            /// All gauges, in the order of their discriminants.
            pub const ALL: &'static [Gauge] = &[$(Gauge::$variant,)*];
            /// How many there are.
            pub const COUNT: usize = Self::ALL.len();

            /// Name without prefix and unit.
            pub const fn name(self) -> &'static str {
                match self { $(Gauge::$variant => $name,)* }
            }

            /// The unit that becomes a part of the metric's name; empty where there is none.
            pub const fn unit(self) -> &'static str {
                match self { $(Gauge::$variant => $unit,)* }
            }

            /// How two of them merge.
            pub const fn combine(self) -> Combine {
                match self { $(Gauge::$variant => Combine::$combine,)* }
            }

            /// What it says, in one sentence.
            pub const fn help(self) -> &'static str {
                match self { $(Gauge::$variant => $help,)* }
            }
        }
    };
}

gauges! {
    ClientsDesired = "clients_desired", "", Sum, "Clients of this slice.";
    ClientsConnected = "clients_connected", "", Sum, "Clients whose CONNECT was accepted and whose connection stands.";
    ClientsReady = "clients_ready", "", Sum, "Clients that are connected and have every subscription they asked for.";
    ClientsFailed = "clients_failed", "", Sum, "Clients given up for a reason that does not pass by itself.";
    ClientsPublishing = "clients_publishing", "", Sum, "Clients that have something to publish.";
    ClientsSubscribing = "clients_subscribing", "", Sum, "Clients that have something to subscribe to.";
    Unacked = "unacked", "messages", Sum, "QoS 1 and 2 messages sent whose acknowledgement is open.";
    Unfenced = "unfenced", "messages", Sum, "QoS 0 messages sent on a standing connection that no PINGRESP has fenced yet.";
    Pending = "pending", "messages", Sum, "Slots that are due and neither sent nor skipped yet.";
    Streams = "streams", "", Sum, "Streams (receiver, sender, entry) whose order and duplicates are followed.";
    StreamsUntracked = "untracked", "messages", Sum, "Deliveries over the cap on streams or over shared subscriptions: counted, not checked for duplicates.";
    FileDescriptors = "file_descriptors", "", Sum, "Open file descriptors of the process.";
    FileDescriptorsLimit = "file_descriptors_limit", "", Max, "The most file descriptors the process may open.";
    Threads = "engine_threads", "", Sum, "Event-loop threads.";
    ThreadBusyMax = "engine_thread_busy", "permille", Max, "Share of the last seconds for which the busiest event loop was at work.";
    LoopTurnMax = "event_loop_turn_max", "nanoseconds", Max, "Longest turn of an event loop so far.";
    MemoryResident = "memory_resident", "bytes", Sum, "Resident memory of the process.";
    ConntrackUsed = "conntrack_entries", "", Max, "Entries of the node's connection tracking table, where visible.";
    ConntrackLimit = "conntrack_entries_limit", "", Max, "Size of the node's connection tracking table, where visible.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let names: std::collections::HashSet<_> = Gauge::ALL.iter().map(|g| g.name()).collect();
        assert_eq!(names.len(), Gauge::COUNT);
    }
}
