//! The log: a ring of the latest entries.

use managed::ManagedSlice;

use super::message::{Entry, LAST_INDEX, Position};
use crate::id::Epoch;

/// The latest entries, in a ring; entry `i` is at `i` modulo its length.
pub(super) struct Log<'a> {
    ring: ManagedSlice<'a, Option<Entry>>,
    /// The position before the first entry kept.
    base: Position,
    last: Position,
}

impl<'a> Log<'a> {
    pub(super) fn new(mut ring: ManagedSlice<'a, Option<Entry>>) -> Self {
        ring.fill_with(|| None);
        Self { ring, base: Position::START, last: Position::START }
    }

    pub(super) fn capacity(&self) -> u64 {
        self.ring.len() as u64
    }

    pub(super) fn base(&self) -> Position {
        self.base
    }

    pub(super) fn last(&self) -> Position {
        self.last
    }

    /// Drops everything and continues after `base`.
    pub(super) fn restart(&mut self, base: Position) {
        self.ring.fill_with(|| None);
        (self.base, self.last) = (base, base);
    }

    fn slot(&self, index: u64) -> usize {
        (index % self.capacity().max(1)) as usize
    }

    pub(super) fn get(&self, index: u64) -> Option<&Entry> {
        if index <= self.base.index || index > self.last.index {
            return None;
        }
        self.ring.get(self.slot(index))?.as_ref()
    }

    /// Returns the epoch of an entry, or of the position before the first one.
    pub(super) fn epoch_at(&self, index: u64) -> Option<Epoch> {
        if index == self.base.index {
            return Some(self.base.epoch);
        }
        self.get(index).map(|e| e.epoch)
    }

    pub(super) fn position(&self, index: u64) -> Option<Position> {
        Some(Position { index, epoch: self.epoch_at(index)? })
    }

    /// Whether there is room for an entry if all entries up to `droppable` may be dropped.
    pub(super) fn has_room(&self, droppable: u64) -> bool {
        let room = self.last.index - self.base.index < self.capacity() || self.base.index < droppable;
        room && self.last.index < LAST_INDEX
    }

    /// Appends an entry; returns its index, or `None` if there is no room.
    pub(super) fn push(&mut self, entry: Entry, droppable: u64) -> Option<u64> {
        if !self.has_room(droppable) {
            return None;
        }
        let index = self.last.index.checked_add(1)?;
        if index - self.base.index > self.capacity() {
            self.base = self.position(self.base.index + 1)?;
        }
        self.last = Position { index, epoch: entry.epoch };
        let slot = self.slot(index);
        *self.ring.get_mut(slot)? = Some(entry);
        Some(index)
    }

    /// Moves the entry at `to.index` to the epoch of `to`, if its own epoch is earlier.
    pub(super) fn renew(&mut self, to: Position) {
        if self.epoch_at(to.index).is_none_or(|e| e >= to.epoch) {
            return;
        }
        if to.index == self.base.index {
            self.base = to;
        }
        if to.index == self.last.index {
            self.last = to;
        }
        let slot = self.slot(to.index);
        if to.index > self.base.index
            && let Some(Some(entry)) = self.ring.get_mut(slot)
        {
            entry.epoch = to.epoch;
        }
    }

    /// Removes the entries from `index` on.
    pub(super) fn truncate(&mut self, index: u64) {
        let Some(last) = index.checked_sub(1).and_then(|i| self.position(i)) else { return };
        for terminated in index..=self.last.index {
            let slot = self.slot(terminated);
            if let Some(slot) = self.ring.get_mut(slot) {
                *slot = None;
            }
        }
        self.last = last;
    }
}
