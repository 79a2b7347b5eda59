//! The dynamic task table: tasks that have been handed out and not submitted, held or not.

use std::time::Duration;

use crate::wire::TaskId;

use super::Processor;

/// A task that has been handed out.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) task: TaskId,
    pub(super) holders: [Option<Holder>; 2],
    /// Whether it was copied while held. There is never a third holder: with copies of copies another would always still be running when one
    /// fails, and no failure would ever count.
    pub(super) copied: bool,
}

/// A processor that computes a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) processor: Processor,
    pub(super) attempt: u32,
    /// When it was handed out.
    pub(super) since: Duration,
    /// Number of the hand-out, among all: a processor runs what it holds in this order.
    pub(super) turn: u64,
}

impl Row {
    pub(super) fn holders(&self) -> impl Iterator<Item = &Holder> {
        self.holders.iter().flatten()
    }

    /// Ends one hold. Returns `false` if this processor and attempt hold nothing.
    pub(super) fn release(&mut self, processor: Processor, attempt: Option<u32>) -> bool {
        let is_it = |holder: &Holder| {
            holder.processor == processor && attempt.is_none_or(|attempt| attempt == holder.attempt)
        };
        let found = self.holders.iter_mut().find(|holder| holder.as_ref().is_some_and(is_it));
        found.is_some_and(|holder| holder.take().is_some())
    }

    pub(super) fn is_held(&self) -> bool {
        self.holders().next().is_some()
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    rows: Vec<Option<Row>>,
    free: Vec<u32>,
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.rows.len() - self.free.len()
    }

    pub(super) fn insert(&mut self, task: TaskId) -> u32 {
        let row = Row { task, holders: [None, None], copied: false };
        if let Some(index) = self.free.pop()
            && let Some(place) = self.rows.get_mut(index as usize)
        {
            *place = Some(row);
            return index;
        }
        self.rows.push(Some(row));
        (self.rows.len() - 1) as u32 // no more rows than tasks
    }

    pub(super) fn get(&self, row: u32) -> Option<&Row> {
        self.rows.get(row as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, row: u32) -> Option<&mut Row> {
        self.rows.get_mut(row as usize)?.as_mut()
    }

    pub(super) fn remove(&mut self, row: u32) -> Option<Row> {
        let removed = self.rows.get_mut(row as usize)?.take()?;
        self.free.push(row);
        Some(removed)
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().flatten()
    }

    pub(super) fn rows_mut(&mut self) -> impl Iterator<Item = &mut Row> {
        self.rows.iter_mut().flatten()
    }
}
