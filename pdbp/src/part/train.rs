//! Messages that were taken out of the inbox ahead of their reader, and are handed out one by one.
#![allow(unsafe_code, reason = "bytes and shares of a delivery that are counted beforehand")]

use std::cell::Cell;
use std::ptr::NonNull;
use std::slice;

use pdbp_core::inbox::{Ahead, Info};

use super::counted::{Counted, Inner};
use super::inbox::{Count, Inbox, Pointer};
use super::message::{Message, Run};
use super::{Local, Share};

/// Bytes of a run that somebody holds.
///
/// **Invariant.** Whoever has this value has a share of the run that the bytes lie in, for as long as it lives. Nobody writes them.
#[derive(Clone, Copy)]
pub(super) struct Bytes {
    at: NonNull<u8>,
    length: usize,
}

// SAFETY: they are only read.
unsafe impl Send for Bytes {}
// SAFETY: as for `Send`.
unsafe impl Sync for Bytes {}

impl Bytes {
    /// Some bytes of a run; none if there are no such bytes.
    ///
    /// # Safety
    /// The caller keeps the value beside a share of the run, and no longer.
    pub(super) unsafe fn of(run: &Run, start: usize, length: usize) -> Self {
        let bytes = run.bytes().get(start..start.saturating_add(length)).unwrap_or(&[]);
        Self { at: NonNull::from(bytes).cast(), length: bytes.len() }
    }

    #[inline(always)]
    pub(super) fn get(&self) -> &[u8] {
        // SAFETY: a run's bytes stay where they are, and nobody writes them, as long as it lives; it does (invariant).
        unsafe { slice::from_raw_parts(self.at.as_ptr(), self.length) }
    }
}

/// Messages of one length from one part, side by side.
///
/// **Invariant.** `left` shares of the run were counted for it and belong to it; the bytes of as many messages of `length` bytes lie in the
/// run from `at` on.
pub(super) struct Train<S: Share = Local> {
    left: Cell<u32>,
    info: Cell<Info>,
    at: Cell<NonNull<u8>>,
    length: Cell<usize>,
    run: Cell<NonNull<Inner<Run, Count<S>>>>,
}

// SAFETY: as `Pointer<Shared>`, of which it has shares, and bytes that are only read.
unsafe impl Send for Train<super::Shared> {}

impl<S: Share> Default for Train<S> {
    fn default() -> Self {
        Self {
            left: Cell::new(0),
            info: Cell::new(Info::default()),
            at: Cell::new(NonNull::dangling()),
            length: Cell::new(0),
            run: Cell::new(NonNull::dangling()),
        }
    }
}

impl<S: Share> Train<S> {
    /// The next message.
    #[inline(always)]
    pub(super) fn next(&self) -> Option<Message<S>> {
        let left = self.left.get().checked_sub(1)?;
        self.left.set(left);
        let (at, length) = (self.at.get(), self.length.get());
        // SAFETY: the end of bytes in the run, or of the run.
        self.at.set(unsafe { at.add(length) });
        // SAFETY: one was left.
        let run: Pointer<S> = unsafe { Counted::from_counted(self.run.get()) };
        Some(Message { run, bytes: Bytes { at, length }, info: self.info.get() })
    }

    /// Whether there are messages.
    pub(super) fn is_empty(&self) -> bool {
        self.left.get() == 0
    }

    /// Takes what can be read ahead. There is nothing left here.
    #[inline]
    pub(super) fn fill(&self, inbox: &mut Inbox<S>) {
        debug_assert!(self.is_empty());
        if let Some((run, ahead)) = inbox.ahead(u32::MAX) {
            self.begin(run, &ahead);
        }
    }

    fn begin(&self, run: &Pointer<S>, ahead: &Ahead) {
        let all = ahead.length() * ahead.count() as usize;
        // SAFETY: beside the shares that are counted here.
        let bytes = unsafe { Bytes::of(run, ahead.start(), all) };
        if bytes.length != all {
            // Never: an inbox gives no bytes but those of its delivery.
            return;
        }
        self.run.set(run.add(ahead.count()));
        self.at.set(bytes.at);
        self.length.set(ahead.length());
        self.info.set(ahead.info());
        self.left.set(ahead.count());
    }

    /// Gives back what was not read.
    #[inline]
    pub(super) fn put_back(&self, inbox: &mut Inbox<S>) {
        if !self.is_empty() {
            inbox.unread(self.left.get());
            self.clear();
        }
    }

    #[cold]
    fn clear(&self) {
        let left = self.left.replace(0);
        if left > 0 {
            // SAFETY: these are left.
            unsafe { Counted::give_back(self.run.get(), left) }
        }
    }
}

impl<S: Share> Drop for Train<S> {
    fn drop(&mut self) {
        self.clear();
    }
}
