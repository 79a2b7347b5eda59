//! Stages for writing blocks. A stage holds bytes of a block that are first written beside it, to memory that stays in the
//! writer's cache, and then copied to the block in the host's way: past the caches, for a reader on another processor.
//!
//! A reused block is still in its reader's cache, and each line must be fetched from there before it can be written. This limits
//! the rate of short messages written in place.

use crate::flaw::Flaw;

/// Bytes of a cache line.
const LINE: usize = 64;

/// A host's decisions about stages: whether to write a block beside itself, in which memory, and how to copy the bytes to the
/// block. One value serves one destination or one stream.
///
/// # Safety
/// The bytes returned by [`memory`](Self::memory) must stay valid and in place until it is called again, even if the value is
/// moved.
pub unsafe trait Staging: Default {
    /// A block may be staged only if at least this many bytes of short messages were written to the one before. Messages of this
    /// many bytes or more are not packed through a [window](super::Windows).
    const LONG: usize;

    /// A block begins, and `written` bytes were written to the one before. Returns whether the new block is to be staged.
    fn next(&mut self, written: usize) -> bool;

    /// The sender did something else, so the time until the next block begins does not indicate how fast it writes.
    fn pause(&mut self);

    /// Returns the memory to write to, all of it: at least `least` bytes unless it cannot grow. Its contents are kept.
    fn memory(&mut self, least: usize) -> &mut [u8];

    /// Copies bytes from that memory to a block; both slices have the same length.
    fn copy(into: &mut [u8], from: &[u8]);
}

/// Writes all blocks in place.
#[derive(Clone, Copy, Debug, Default)]
pub struct InPlace;

// SAFETY: `memory` returns an empty slice, so no bytes have to stay valid.
unsafe impl Staging for InPlace {
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

/// Bytes written back to back for the room of a block and not yet copied to it. Offsets are relative to the start of that room.
#[derive(Debug, Default)]
pub struct Stage<B> {
    staging: B,
    /// Offset of the first byte in memory.
    origin: usize,
    /// All bytes before this offset are in the block.
    done: usize,
}

impl<B: Staging> Stage<B> {
    /// The host's decisions.
    pub fn staging(&mut self) -> &mut B {
        &mut self.staging
    }

    /// Begins a stage for bytes from offset `at` on.
    pub fn begin(&mut self, at: usize) {
        (self.origin, self.done) = (at, at);
    }

    /// The offset at which the bytes of [`room`](Self::room) begin.
    pub fn origin(&self) -> usize {
        self.origin
    }

    /// The bytes from [`origin`](Self::origin) on: at least `least`, if the memory can hold that many.
    pub fn room(&mut self, least: usize) -> &mut [u8] {
        self.staging.memory(least)
    }

    /// Copies the staged bytes up to offset `end` to the block, whose room is `room`.
    pub fn settle(&mut self, room: &mut [u8], end: usize) {
        let Self { staging, origin, done } = self;
        let (Some(into), Some(from)) =
            (room.get_mut(*done..end), staging.memory(0).get(*done - *origin..end.saturating_sub(*origin)))
        else {
            debug_assert!(false, "{done}..{end} is staged, from {origin}");
            return;
        };
        if !Flaw::ForgetsStaged.strikes() {
            B::copy(into, from);
        }
        *done = end;
    }

    /// Copies the staged bytes before offset `end` to the block, in whole cache lines, to make room for more.
    pub fn advance(&mut self, room: &mut [u8], end: usize) {
        let over = (room.as_ptr().addr() + end) % LINE;
        let whole = end.saturating_sub(over).max(self.done);
        self.settle(room, whole);
        let kept = whole - self.origin..end - self.origin;
        let bytes = self.staging.memory(0);
        if kept.end <= bytes.len() {
            bytes.copy_within(kept, 0);
        }
        (self.origin, self.done) = (whole, whole);
    }
}
