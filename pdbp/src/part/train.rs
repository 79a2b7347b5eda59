//! Messages taken out of the inbox ahead of their reader, and handed out one by one.
#![allow(unsafe_code, reason = "bytes and shares of a delivery that are counted beforehand")]

use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::slice;

use pdbp_core::inbox::{Ahead, AheadTrain, Info};

use super::inbox::{Inbox, Pointer};
use super::message::{Message, Run};
use super::{Local, Share};
use crate::sync::{Counted, Inner};

/// Bytes of a run, a share of which is held with this value.
///
/// **Invariant.** The holder has a share of the run for as long as this value lives. Nobody writes the bytes.
#[derive(Clone, Copy)]
pub(super) struct Bytes {
    at: NonNull<u8>,
    length: usize,
}

// SAFETY: the bytes are only read.
unsafe impl Send for Bytes {}
// SAFETY: as for `Send`.
unsafe impl Sync for Bytes {}

impl Bytes {
    /// A range of the bytes of a run; empty if it does not exist.
    ///
    /// # Safety
    /// The caller must not keep the value longer than a share of the run.
    #[inline]
    pub(super) unsafe fn of(run: &Run, start: usize, length: usize) -> Self {
        let bytes = run.bytes().get(start..start.saturating_add(length)).unwrap_or(&[]);
        Self { at: NonNull::from(bytes).cast(), length: bytes.len() }
    }

    #[inline(always)]
    pub(super) fn get(&self) -> &[u8] {
        // SAFETY: while a run lives, its bytes stay where they are and nobody writes them; it lives as long as this value
        // (invariant).
        unsafe { slice::from_raw_parts(self.at.as_ptr(), self.length) }
    }
}

/// Messages of a run, ahead of their reader: those of one train, side by side, and the way to the next train.
///
/// **Invariant.** While `ahead` is set, `bytes` are those of the run, and this train owns counted shares of it: one for each
/// message left, and one for each message that may follow in other trains ([`Ahead::unchecked`]). The bytes of the `left` messages,
/// `length` bytes each, lie in the run from `at` on. Without `ahead`, none are left.
pub(super) struct Train<S: Share = Local> {
    left: Cell<u32>,
    info: Cell<Info>,
    at: Cell<NonNull<u8>>,
    length: Cell<usize>,
    run: Cell<NonNull<Inner<Run>>>,
    bytes: Cell<Bytes>,
    ahead: UnsafeCell<Option<Ahead>>,
    shares: PhantomData<S>,
}

// SAFETY: as for `Pointer<Shared>`, of which it holds shares; its bytes are only read.
unsafe impl Send for Train<super::Shared> {}

impl<S: Share> Default for Train<S> {
    fn default() -> Self {
        Self {
            left: Cell::new(0),
            info: Cell::new(Info::default()),
            at: Cell::new(NonNull::dangling()),
            length: Cell::new(0),
            run: Cell::new(NonNull::dangling()),
            bytes: Cell::new(Bytes { at: NonNull::dangling(), length: 0 }),
            ahead: UnsafeCell::new(None),
            shares: PhantomData,
        }
    }
}

impl<S: Share> Train<S> {
    /// The next message of the train.
    #[inline(always)]
    pub(super) fn next(&self) -> Option<Message<S>> {
        let left = self.left.get().checked_sub(1)?;
        self.left.set(left);
        let (at, length) = (self.at.get(), self.length.get());
        // SAFETY: at least one message was left, so this is the end of bytes that lie in the run (invariant), at most the run's
        // end.
        self.at.set(unsafe { at.add(length) });
        // SAFETY: `left` was at least 1, so the train still owned a share.
        let run: Pointer<S> = unsafe { Counted::from_counted(self.run.get()) };
        Some(Message { run, bytes: Bytes { at, length }, info: self.info.get() })
    }

    /// The first message of the next train, once this one is exhausted.
    #[inline]
    pub(super) fn next_train(&self) -> Option<Message<S>> {
        debug_assert!(self.left.get() == 0);
        let bytes = self.bytes.get();
        let AheadTrain { messages, length, count, info } = self.ahead().as_mut()?.next_train(bytes.get())?;
        let at = NonNull::from(messages).cast();
        if count > 1 {
            self.length.set(length);
            self.info.set(info);
            // SAFETY: the end of the first of several messages.
            self.at.set(unsafe { at.add(length) });
            self.left.set(count - 1);
        }
        // SAFETY: this was a message that may follow in another train, for which the train had a share (invariant).
        let run: Pointer<S> = unsafe { Counted::from_counted(self.run.get()) };
        Some(Message { run, bytes: Bytes { at, length }, info })
    }

    /// Whether there is more ahead.
    #[inline]
    pub(super) fn is_ahead(&self) -> bool {
        self.ahead().is_some()
    }

    /// Takes what can be read ahead. The train must be empty.
    #[inline]
    pub(super) fn fill(&self, inbox: &mut Inbox<S>) {
        debug_assert!(self.ahead().is_none() && self.left.get() == 0);
        if let Some((run, ahead)) = inbox.ahead() {
            let (start, length) = (ahead.start(), ahead.length());
            // SAFETY: the bytes are kept with the shares that are counted below.
            let bytes = unsafe { Bytes::of(run, 0, run.bytes().len()) };
            let Some(messages) = bytes.get().get(start..start + length * ahead.count() as usize) else {
                // Unreachable: the inbox returns only ranges within its delivery.
                return;
            };
            self.run.set(run.add(ahead.count() + ahead.unchecked()));
            self.bytes.set(bytes);
            self.at.set(NonNull::from(messages).cast());
            self.length.set(length);
            self.info.set(ahead.info());
            self.left.set(ahead.count());
            *self.ahead() = Some(ahead);
        }
    }

    /// Returns what was not read.
    #[inline]
    pub(super) fn put_back(&self, inbox: &mut Inbox<S>) {
        if let Some((ahead, left)) = self.close() {
            inbox.resume(ahead, left);
        }
    }

    /// The way ahead, to be changed in place: copying it took as long as a message. No function here calls another while it holds
    /// the borrow.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "it is on one thread, and is used at once")]
    fn ahead(&self) -> &mut Option<Ahead> {
        // SAFETY: a train is used by one thread, and no function here calls another while it has this.
        unsafe { &mut *self.ahead.get() }
    }

    /// Closes the train. Returns how far it has come, and how many messages of the open train are left.
    fn close(&self) -> Option<(Ahead, u32)> {
        let ahead = self.ahead().take()?;
        let left = self.left.replace(0);
        let shares = left + ahead.unchecked();
        if shares > 0 {
            // SAFETY: the train had these shares (invariant), and has none from now on.
            unsafe { Pointer::<S>::release_shares(self.run.get(), shares) }
        }
        Some((ahead, left))
    }
}

impl<S: Share> Drop for Train<S> {
    fn drop(&mut self) {
        self.close();
    }
}
