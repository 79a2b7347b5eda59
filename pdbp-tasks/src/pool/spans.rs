//! Records which processor held which task when, on request.

use crate::timeline::{Fate, Span};
use crate::wire::TaskId;

use super::Pool;
use super::table::Holder;

/// The most holds that are recorded.
pub(super) const MOST: usize = 1_000_000;

impl Pool {
    /// Records from now on which processor holds which task, up to a million holds.
    pub fn record(&mut self) {
        self.spans.get_or_insert_default();
    }

    /// As [`record`](Self::record), up to this many holds.
    pub fn record_most(&mut self, most: usize) {
        self.most_spans = most;
        self.record();
    }

    /// The [recorded](Self::record) holds, in the order in which they ended.
    pub fn spans(&self) -> &[Span] {
        self.spans.as_deref().unwrap_or_default()
    }

    pub(super) fn record_span(&mut self, task: TaskId, holder: &Holder, fate: Fate) {
        if let Some(spans) = self.spans.as_mut().filter(|spans| spans.len() < self.most_spans) {
            let Holder { processor, since, .. } = *holder;
            spans.push(Span { processor, task, since, until: self.clock.max(since), fate });
        }
    }
}
