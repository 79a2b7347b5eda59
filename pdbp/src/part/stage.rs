//! Bytes of a block that are written beside it first, in memory that stays in the writer's cache, and go into the block past the caches: for
//! readers on another processor of this host.
//!
//! A block that is written anew lies in its reader's cache, so that each line is taken away from there before it is written. Short messages
//! written in place are bound by that: see `benches/figures/shared-memory.md`.

use std::time::Instant;

use pdbp_local::{Copier, StoreChoice, copy_past_caches};

/// Of a cache.
const LINE: usize = 64;
/// Fewer bytes than this are not worth the way to memory and back.
const FEW: usize = 1 << 10;

/// Whether blocks that follow each other are written beside themselves: if that takes less time from each to the next.
pub(super) struct Pace {
    choice: StoreChoice,
    /// When the last block was begun, if nothing came between.
    last: Option<Instant>,
}

impl Default for Pace {
    fn default() -> Self {
        Self { choice: StoreChoice::of_blocks(), last: None }
    }
}

impl Pace {
    /// Another block begins, after one that so many bytes were written into; whether it is written beside.
    pub(super) fn next(&mut self, written: usize) -> bool {
        let now = Instant::now();
        if let Some(last) = self.last.replace(now).filter(|_| written >= Copier::LONG) {
            self.choice.note(written, now - last);
        }
        self.choice.is_past_caches()
    }

    /// The time to the next block is not that of writing.
    pub(super) fn pause(&mut self) {
        self.last = None;
    }
}

/// What is not in the block yet, of bytes that are written one behind the other into the room that a block has. Places are counted from the
/// beginning of that room.
#[derive(Default)]
pub(super) struct Stage {
    /// Begins with the byte at `origin`.
    bytes: Vec<u8>,
    origin: usize,
    /// Up to there all is in the block.
    done: usize,
}

impl Stage {
    /// Takes what is written from `at` on.
    pub(super) fn begin(&mut self, at: usize) {
        (self.origin, self.done) = (at, at);
    }

    /// Where the bytes begin that [`room`](Self::room) gives, and those that are not in the block.
    pub(super) fn origin(&self) -> usize {
        self.origin
    }

    /// So many bytes from there on.
    pub(super) fn room(&mut self, length: usize) -> &mut [u8] {
        if self.bytes.len() < length {
            self.bytes.resize(length, 0);
        }
        self.bytes.get_mut(..length).unwrap_or(&mut [])
    }

    /// Puts what ends at `end` into the block.
    pub(super) fn settle(&mut self, room: &mut [u8], end: usize) {
        let (Some(into), Some(from)) = (
            room.get_mut(self.done..end),
            self.bytes.get(self.done - self.origin..end.saturating_sub(self.origin)),
        ) else {
            debug_assert!(false, "{}..{end} is staged, from {}", self.done, self.origin);
            return;
        };
        if from.len() < FEW {
            into.copy_from_slice(from)
        } else {
            copy_past_caches(into, from)
        }
        self.done = end;
    }

    /// Puts whole cache lines of what ends at `end` into the block, so that there is room for more.
    pub(super) fn advance(&mut self, room: &mut [u8], end: usize) {
        let over = (room.as_ptr().addr() + end) % LINE;
        let whole = end.saturating_sub(over).max(self.done);
        self.settle(room, whole);
        self.bytes.copy_within(whole - self.origin..end - self.origin, 0);
        (self.origin, self.done) = (whole, whole);
    }
}
