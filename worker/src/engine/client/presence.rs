//! Since when deliveries are owed to a client, and what it may have missed while they were not.
//!
//! Owed is what is due later than `settle` after the subscription, or after the start for those who waited for it. When a
//! connection is lost, what was due before the last sign of life is here already, but for what was on its way as long as the
//! last delivery was.

use super::{Client, Cx};
use crate::accounting::Counter;
use crate::engine::excuses::Span;

/// What a client knows of its own absences. Instants are in ns on the engine's clock.
#[derive(Debug, Default)]
pub(super) struct Presence {
    /// Connected and subscribed, or so until the end.
    here: bool,
    /// When the present absence began, or the last one.
    from: u64,
    /// What was due before this instant has been excused, or is owed.
    decided: u64,
    /// When something came last.
    pub(super) heard: u64,
    /// How long the last delivery was on its way, in ns.
    pub(super) lag: u64,
}

impl Client {
    /// It is connected and subscribed: the absence that ends is excused.
    pub(super) fn on_present(&mut self, cx: &mut Cx<'_>) {
        self.presence.here = true;
        if cx.run.window.is_none() || cx.plan.subscriptions.is_empty() {
            return;
        }
        let owed = cx.now.saturating_add(cx.plan.settle);
        if self.presence.decided < owed {
            let missed = self.missed(owed, cx);
            cx.counts.add(Counter::Excused, missed);
            self.presence.decided = owed;
        }
    }

    /// The start is known. It was chosen so that the routes of everyone who is there have settled by then.
    pub(super) fn on_start_known(&mut self, cx: &Cx<'_>) {
        if let Some(window) = cx.run.window
            && self.presence.here
        {
            self.presence.decided = self.presence.decided.max(window.start);
        }
    }

    /// Its connection was lost.
    pub(super) fn on_absent(&mut self, cx: &Cx<'_>) {
        self.presence.here = false;
        if cx.run.window.is_some() {
            self.presence.from = self.presence.heard.saturating_sub(self.presence.lag).max(self.presence.decided);
        }
    }

    /// Deliveries that it may have missed by now in an absence that goes on.
    pub(super) fn missing(&self, cx: &Cx<'_>) -> u64 {
        if self.presence.here || cx.plan.subscriptions.is_empty() { 0 } else { self.missed(cx.now, cx) }
    }

    fn missed(&self, to: u64, cx: &Cx<'_>) -> u64 {
        let Some(window) = cx.run.window else { return 0 };
        // The attempt before this one has counts of its own, of which its death makes bounds.
        let begun = if cx.plan.attempt > 0 { cx.run.release } else { 0 };
        let (from, to) = (self.presence.from.max(begun).max(window.start), to.min(window.end));
        if from >= to {
            return 0;
        }
        let since_start = |instant: u64| instant.saturating_sub(window.start);
        let span = Span { from: since_start(from), to: since_start(to), floor: since_start(self.presence.decided) };
        let subscriptions = cx.plan.subscriptions.iter().map(|(template, qos)| {
            let mut filter = String::new();
            cx.plan.render(template, self.index, 0, &mut filter);
            (filter, *qos)
        });
        // What a server loses of a session that it was to keep is a loss.
        let kept = !cx.plan.clean && (self.was_connected || cx.plan.attempt > 0);
        cx.plan.excuses.deliveries(&subscriptions.collect::<Vec<_>>(), kept, span)
    }
}
