//! A lock-free ring between two processes, in memory that both have mapped.
//!
//! ```text
//!   slot n % slots:   word 0: block index | length        word 1: lap | offset of the block / 64        further words: a copy of the block
//! ```
//! A slot is full when its lap is that of the reader's next entry; no other word tells. With slots of two words, an entry moves one cache line
//! from core to core, and its block those in which it lies. With slots of whole lines, a short block comes with its entry: the reader prefetches
//! all lines of a slot when it polls it. The reader reports nothing to the writer: the user of a ring must ensure that no more entries are in
//! flight than it has slots, and that the copy in a slot is no longer read.
//!
//! All words are atomics, so a process that dies or misbehaves leaves nothing but numbers, which are checked when an entry is taken. The store
//! of its second word publishes an entry, so a writer that dies in the middle of a push has pushed nothing.

use std::ops::Deref;

use crate::sync::{AtomicU64, Ordering, prefetch};

/// A block in flight. The ring implies its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Index of the block in its owner's pool.
    pub(crate) index: u32,
    /// Header and body.
    pub(crate) length: u32,
    /// Where the block begins in its owner's part of the window, or the slot with a copy of it: a multiple of 64 below 2^54.
    pub(crate) offset: u64,
}

const OFFSET_BITS: u32 = 48;
const LINE: u64 = 64;
/// Words of an entry.
pub(crate) const ENTRY: usize = 2;

/// The position of one end of a ring. `C` gives access to its words: `SLOT` per slot, at least [`ENTRY`].
struct Place<C, const SLOT: usize> {
    cells: C,
    /// The first word of the next slot, and the lap that the slot has when it is full: never zero, the value in an unused slot, and never that
    /// of the slot's previous entry.
    first: usize,
    lap: u64,
}

impl<C: Deref<Target = [AtomicU64]>, const SLOT: usize> Place<C, SLOT> {
    fn new(cells: C) -> Self {
        Self { cells, first: 0, lap: 1 }
    }

    /// The words of the next slot: those of the entry, and the rest.
    fn slot(&self) -> Option<(&[AtomicU64; ENTRY], &[AtomicU64])> {
        self.cells.get(self.first..self.first + SLOT)?.split_first_chunk()
    }

    fn number(&self) -> usize {
        self.first / SLOT
    }

    fn advance(&mut self) {
        self.first += SLOT;
        if self.first >= self.cells.len() {
            (self.first, self.lap) = (0, self.lap % u64::from(u16::MAX) + 1);
        }
    }
}

/// The writing end. There is one per ring.
pub(crate) struct Producer<C, const SLOT: usize>(Place<C, SLOT>);

/// The reading end. There is one per ring.
pub(crate) struct Consumer<C, const SLOT: usize>(Place<C, SLOT>);

impl<C: Deref<Target = [AtomicU64]>, const SLOT: usize> Producer<C, SLOT> {
    pub(crate) fn new(cells: C) -> Self {
        Self(Place::new(cells))
    }

    /// The number of the next slot.
    pub(crate) fn slot(&self) -> usize {
        self.0.number()
    }

    /// Copies a block into the next slot, truncated to the slot's room; [push](Self::push) the entry next. The caller must ensure that nobody is
    /// reading the slot.
    pub(crate) fn copy(&mut self, block: &[u8]) {
        let Some((_, room)) = self.0.slot() else { return };
        let (words, rest) = block.as_chunks();
        let mut last = [0; size_of::<u64>()];
        last.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
        let last = (!rest.is_empty()).then_some(&last);
        for (cell, word) in room.iter().zip(words.iter().chain(last)) {
            cell.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
    }

    /// Pushes an entry. The caller must ensure that no more entries are in flight than the ring has slots.
    pub(crate) fn push(&mut self, entry: Entry) {
        let Some(([first, second], _)) = self.0.slot() else { return };
        first.store((u64::from(entry.index) << 32) | u64::from(entry.length), Ordering::Relaxed);
        // Pairs with the load in `Consumer::pop`: a reader that sees the lap sees the first word, and the bytes of the block, wherever they are.
        second.store((self.0.lap << OFFSET_BITS) | (entry.offset / LINE), Ordering::Release);
        self.0.advance();
    }
}

impl<C: Deref<Target = [AtomicU64]>, const SLOT: usize> Consumer<C, SLOT> {
    pub(crate) fn new(cells: C) -> Self {
        Self(Place::new(cells))
    }

    /// The number of the next slot.
    pub(crate) fn slot(&self) -> usize {
        self.0.number()
    }

    /// Pops the oldest entry.
    pub(crate) fn pop(&mut self) -> Option<Entry> {
        let ([first, second], room) = self.0.slot()?;
        // The first words of the other lines.
        let (_, lines) = room.split_at_checked(8 - ENTRY).unwrap_or_default();
        lines.chunks(8).for_each(|line| prefetch(line.as_ptr().cast()));
        // Pairs with the store in `Producer::push`.
        let second = second.load(Ordering::Acquire);
        if second >> OFFSET_BITS != self.0.lap {
            return None;
        }
        let first = first.load(Ordering::Relaxed);
        self.0.advance();
        let offset = (second & ((1 << OFFSET_BITS) - 1)) * LINE;
        Some(Entry { index: (first >> 32) as u32, length: first as u32, offset })
    }

    /// Whether every entry pushed so far has been popped.
    pub(crate) fn is_empty(&self) -> bool {
        // Pairs with the store in `Producer::push`.
        self.0
            .slot()
            .is_none_or(|([_, second], _)| second.load(Ordering::Acquire) >> OFFSET_BITS != self.0.lap)
    }
}
