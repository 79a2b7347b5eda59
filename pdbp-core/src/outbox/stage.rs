//! Bytes of a block that are written beside it first, in memory that stays in the writer's cache, and then copied into the block as its host
//! does it: past the caches, for a reader on another processor.
//!
//! A block that is written anew lies in its reader's cache, so that each line is taken away from there before it is written. Short messages
//! written in place are bound by that.

use crate::flaw::Flaw;

/// Of a cache.
const LINE: usize = 64;

/// Whether a host writes blocks beside themselves, in which memory, and how it copies into them what it has written there. A value is for one
/// destination, or for one stream.
///
/// # Safety
/// The bytes that [`memory`](Self::memory) lends stay where they are until it is called again, also if the value is moved.
pub unsafe trait Beside: Default {
    /// So many bytes of short messages in one block are followed by more of them, in others: only such blocks are written beside themselves.
    /// A message with that many is not packed through a [window](super::Windows).
    const LONG: usize;

    /// Another block begins, after one that so many bytes were written into. Whether it is written beside itself.
    fn next(&mut self, written: usize) -> bool;

    /// Something else came between: the time to the next block is not that of writing.
    fn pause(&mut self);

    /// The memory to write in: as much as there is, which is at least `least` bytes unless it cannot grow. What was written there stays.
    fn memory(&mut self, least: usize) -> &mut [u8];

    /// Copies what was written there into a block, to as many bytes.
    fn copy(into: &mut [u8], from: &[u8]);
}

/// All blocks are written in place.
#[derive(Clone, Copy, Debug, Default)]
pub struct InPlace;

// SAFETY: there is no memory.
unsafe impl Beside for InPlace {
    const LONG: usize = usize::MAX;

    fn next(&mut self, _: usize) -> bool {
        false
    }

    fn pause(&mut self) {}

    fn memory(&mut self, _: usize) -> &mut [u8] {
        &mut []
    }

    fn copy(into: &mut [u8], from: &[u8]) {
        into.copy_from_slice(from);
    }
}

/// What is not in the block yet, of bytes that are written one behind the other into the room that a block has. Places are counted from the
/// beginning of that room.
#[derive(Debug, Default)]
pub struct Stage<B> {
    by: B,
    /// Place of the first byte in memory.
    origin: usize,
    /// Up to there all is in the block.
    done: usize,
}

impl<B: Beside> Stage<B> {
    /// Whether the next block is written here, and how.
    pub fn by(&mut self) -> &mut B {
        &mut self.by
    }

    /// Takes what is written from `at` on.
    pub fn begin(&mut self, at: usize) {
        (self.origin, self.done) = (at, at);
    }

    /// Where the bytes begin that [`room`](Self::room) gives, and those that are not in the block.
    pub fn origin(&self) -> usize {
        self.origin
    }

    /// The bytes from there on, at least `least` if there is memory for so many.
    pub fn room(&mut self, least: usize) -> &mut [u8] {
        self.by.memory(least)
    }

    /// Puts what ends at `end` into the block.
    pub fn settle(&mut self, room: &mut [u8], end: usize) {
        let Self { by, origin, done } = self;
        let (Some(into), Some(from)) =
            (room.get_mut(*done..end), by.memory(0).get(*done - *origin..end.saturating_sub(*origin)))
        else {
            debug_assert!(false, "{done}..{end} is staged, from {origin}");
            return;
        };
        if !Flaw::ForgetsStaged.strikes() {
            B::copy(into, from);
        }
        *done = end;
    }

    /// Puts whole cache lines of what ends at `end` into the block, so that there is room for more.
    pub fn advance(&mut self, room: &mut [u8], end: usize) {
        let over = (room.as_ptr().addr() + end) % LINE;
        let whole = end.saturating_sub(over).max(self.done);
        self.settle(room, whole);
        let kept = whole - self.origin..end - self.origin;
        let bytes = self.by.memory(0);
        if kept.end <= bytes.len() {
            bytes.copy_within(kept, 0);
        }
        (self.origin, self.done) = (whole, whole);
    }
}
