//! The clock of a run as a thread sees it: when it was released, its window, and how far it is.

/// How far a run is, for a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Before the release.
    Waiting,
    /// Released; publishing begins at the window's start.
    Active,
    /// DISCONNECTs are sent.
    Leaving,
}

/// The window in which clients publish, on the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// First instant.
    pub start: u64,
    /// First instant after the last.
    pub end: u64,
    /// The first instant in ns since the Unix epoch.
    pub start_unix: u64,
}

/// The run as a thread sees it. Instants are in ns on the engine's monotonic clock ([`super::clock`]).
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// How far it is.
    pub stage: Stage,
    /// The instant from which the connect schedule counts.
    pub release: u64,
    /// The window, once known.
    pub window: Option<Window>,
}

impl Default for Run {
    fn default() -> Self {
        Self { stage: Stage::Waiting, release: u64::MAX, window: None }
    }
}

impl Run {
    /// Time from the start to `now`, no further than the end; `None` before the start is known.
    pub fn elapsed(&self, now: u64) -> Option<u64> {
        self.window.map(|w| now.min(w.end).saturating_sub(w.start))
    }

    /// The instant of a due time counted from the start.
    pub fn instant(&self, due: u64) -> u64 {
        self.window.map_or(u64::MAX, |w| w.start.saturating_add(due))
    }

    /// A monotonic instant in ns since the Unix epoch, by the mapping made when the window became known.
    pub fn unix(&self, now: u64) -> Option<u64> {
        self.window.map(|w| (w.start_unix + now).saturating_sub(w.start))
    }

    /// Whether publishing has ended.
    pub fn ended(&self, now: u64) -> bool {
        self.window.is_some_and(|w| now >= w.end)
    }
}
