//! Who has held which task when, if that is wanted.

use crate::timeline::{Fate, Span};
use crate::wire::TaskId;

use super::Pool;
use super::table::Holder;

/// Holds that are recorded.
pub(super) const MOST: usize = 1_000_000;

impl Pool {
    /// From now on who holds which task is recorded, as long as it is a million times at most.
    pub fn record(&mut self) {
        self.spans.get_or_insert_default();
    }

    /// As [`record`](Self::record), so many times at most.
    pub fn record_most(&mut self, most: usize) {
        self.most_spans = most;
        self.record();
    }

    /// What was [recorded](Self::record), in the order in which it ended.
    pub fn spans(&self) -> &[Span] {
        self.spans.as_deref().unwrap_or_default()
    }

    pub(super) fn note_span(&mut self, task: TaskId, holder: &Holder, fate: Fate) {
        if let Some(spans) = self.spans.as_mut().filter(|spans| spans.len() < self.most_spans) {
            let Holder { processor, since, .. } = *holder;
            spans.push(Span { processor, task, since, until: self.clock.max(since), fate });
        }
    }
}
