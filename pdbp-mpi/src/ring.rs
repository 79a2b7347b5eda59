//! A lock-free ring between two processes, in memory that both have mapped.
//!
//! ```text
//!   slot n % slots:   word 0: block index | length        word 1: lap | offset of the block / 64
//! ```
//! A slot is full when its lap is that of the reader's next entry; there are no other words, so that an entry takes one cache line
//! from core to core. The reader tells the writer nothing: whoever uses a ring sees to it that no more entries are under way than it
//! has slots.
//!
//! Words are atomics throughout, so that whatever a process that dies, or goes astray, leaves there is a number and nothing else;
//! who takes an entry checks it. An entry is there with the store of its second word, so a writer that dies in the middle of a
//! push has pushed nothing.

use std::ops::Deref;

use crate::sync::{AtomicU64, Ordering};

/// A block on its way: whose it is follows from the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Index of the block in its owner's pool.
    pub(crate) index: u32,
    /// Header and body.
    pub(crate) length: u32,
    /// Where the block begins in its owner's part of the window: a multiple of 64 below 2^54.
    pub(crate) offset: u64,
}

const OFFSET_BITS: u32 = 48;
const LINE: u64 = 64;

/// Where an end of a ring stands. `C` is what its words are reached through: two per slot; the number of slots is a power of two.
struct Place<C> {
    cells: C,
    next: u64,
}

impl<C: Deref<Target = [AtomicU64]>> Place<C> {
    /// The words of the next slot, and the lap that it has when it is full: never zero, which an unused slot has, and never that of
    /// the entry that was there before.
    fn slot(&self) -> Option<(&AtomicU64, &AtomicU64, u64)> {
        let slots = (self.cells.len() / 2) as u64;
        let first = 2 * (self.next & (slots - 1)) as usize;
        let lap = self.next / slots % u64::from(u16::MAX) + 1;
        Some((self.cells.get(first)?, self.cells.get(first + 1)?, lap))
    }
}

/// The writing end. There is one per ring.
pub(crate) struct Producer<C>(Place<C>);

/// The reading end. There is one per ring.
pub(crate) struct Consumer<C>(Place<C>);

impl<C: Deref<Target = [AtomicU64]>> Producer<C> {
    pub(crate) fn new(cells: C) -> Self {
        Self(Place { cells, next: 0 })
    }

    /// Puts an entry in. Whoever uses the ring sees to it that no more are under way than it has slots.
    pub(crate) fn push(&mut self, entry: Entry) {
        let Some((first, second, lap)) = self.0.slot() else { return };
        first.store((u64::from(entry.index) << 32) | u64::from(entry.length), Ordering::Relaxed);
        // Pairs with the load in `Consumer::pop`: who sees the lap sees the first word, and the bytes of the block.
        second.store((lap << OFFSET_BITS) | (entry.offset / LINE), Ordering::Release);
        self.0.next += 1;
    }
}

impl<C: Deref<Target = [AtomicU64]>> Consumer<C> {
    pub(crate) fn new(cells: C) -> Self {
        Self(Place { cells, next: 0 })
    }

    /// The oldest entry, if there is one.
    pub(crate) fn pop(&mut self) -> Option<Entry> {
        let (first, second, lap) = self.0.slot()?;
        // Pairs with the store in `Producer::push`.
        let second = second.load(Ordering::Acquire);
        if second >> OFFSET_BITS != lap {
            return None;
        }
        let first = first.load(Ordering::Relaxed);
        self.0.next += 1;
        let offset = (second & ((1 << OFFSET_BITS) - 1)) * LINE;
        Some(Entry { index: (first >> 32) as u32, length: first as u32, offset })
    }

    /// Whether nothing has been put in that was not taken.
    pub(crate) fn is_empty(&self) -> bool {
        // Pairs with the store in `Producer::push`.
        self.0.slot().is_none_or(|(_, second, lap)| second.load(Ordering::Acquire) >> OFFSET_BITS != lap)
    }
}
