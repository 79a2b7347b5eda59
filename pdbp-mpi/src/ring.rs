//! A lock-free ring between two processes, in memory that both have mapped.
//!
//! ```text
//!   line 0: tail   written by the producer        entry n: block index and length | offset of the block
//!   line 1: head   written by the consumer                 in slot n % slots, two words
//! ```
//! Words are atomics throughout, so that whatever a process that dies, or goes astray, leaves there is a number and nothing
//! else; readers check it. An entry is published by the store of `tail` after it, so a producer that dies in the middle of a
//! push has pushed nothing.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// A block on its way: whose it is follows from the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Index of the block in its owner's pool.
    pub(crate) index: u32,
    /// Header and body.
    pub(crate) length: u32,
    /// Where the block begins in its owner's part of the window.
    pub(crate) offset: u64,
}

/// The words of a ring.
#[derive(Clone, Copy)]
pub(crate) struct Cells<'a> {
    pub(crate) tail: &'a AtomicU32,
    pub(crate) head: &'a AtomicU32,
    /// Two words per slot; the number of slots is a power of two.
    pub(crate) slots: &'a [AtomicU64],
}

impl<'a> Cells<'a> {
    fn mask(&self) -> u32 {
        (self.slots.len() / 2) as u32 - 1
    }

    fn slot(&self, at: u32) -> Option<(&'a AtomicU64, &'a AtomicU64)> {
        let first = 2 * (at & self.mask()) as usize;
        Some((self.slots.get(first)?, self.slots.get(first + 1)?))
    }
}

/// The writing end. There is one per ring.
pub(crate) struct Producer<'a> {
    cells: Cells<'a>,
    tail: u32,
}

/// The reading end. There is one per ring.
pub(crate) struct Consumer<'a> {
    cells: Cells<'a>,
    head: u32,
    /// The tail as it was seen last.
    tail: u32,
}

/// The ring's words do not make sense: the other process has written what it must not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Astray;

impl<'a> Producer<'a> {
    pub(crate) fn new(cells: Cells<'a>) -> Self {
        Self { cells, tail: 0 }
    }

    /// Puts an entry in. Whoever uses the ring sees to it that no more are under way than it has slots.
    pub(crate) fn push(&mut self, entry: Entry) {
        let Some((first, second)) = self.cells.slot(self.tail) else { return };
        first.store(u64::from(entry.index) << 32 | u64::from(entry.length), Ordering::Relaxed);
        second.store(entry.offset, Ordering::Relaxed);
        self.tail = self.tail.wrapping_add(1);
        // Pairs with the load in `Consumer::peek`: who sees the tail sees the entry, and the bytes of its block.
        self.cells.tail.store(self.tail, Ordering::Release);
    }
}

impl<'a> Consumer<'a> {
    pub(crate) fn new(cells: Cells<'a>) -> Self {
        Self { cells, head: 0, tail: 0 }
    }

    /// The oldest entry, if there is one.
    pub(crate) fn pop(&mut self) -> Result<Option<Entry>, Astray> {
        if self.head == self.tail {
            // Pairs with the store in `Producer::push`.
            self.tail = self.cells.tail.load(Ordering::Acquire);
            if self.tail.wrapping_sub(self.head) > self.cells.mask() + 1 {
                self.tail = self.head;
                return Err(Astray);
            }
        }
        if self.head == self.tail {
            return Ok(None);
        }
        let Some((first, second)) = self.cells.slot(self.head) else { return Err(Astray) };
        let (word, offset) = (first.load(Ordering::Relaxed), second.load(Ordering::Relaxed));
        self.head = self.head.wrapping_add(1);
        // For whoever looks at a ring from outside; the producer counts what is under way itself.
        self.cells.head.store(self.head, Ordering::Release);
        Ok(Some(Entry { index: (word >> 32) as u32, length: word as u32, offset }))
    }

    /// Whether nothing has been put in that was not taken.
    pub(crate) fn is_empty(&self) -> bool {
        // Pairs with the store in `Producer::push`.
        self.cells.tail.load(Ordering::Acquire) == self.head
    }
}
