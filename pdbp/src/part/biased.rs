//! A lock that costs its owner plain loads and stores.
//!
//! One thread, the *owner*, takes it for every message; *visitors* take it now and then, and pay for both: they ask for it, and
//! come again later if the owner is inside.
//!
//! ```text
//!  owner                        visitor
//!  busy := true                 asked := true
//!  light barrier                heavy barrier
//!  asked? then step aside       busy? then not now
//!  … inside …                   … inside …
//!  busy := false                asked := false
//! ```
//!
//! **Never both inside.** Light and heavy barriers are totally ordered among each other, as fences are (`membarrier(2)`: all
//! threads of the process pass a full barrier between the beginning and the end of the call). If the owner's light barrier comes before
//! the visitor's heavy one, the visitor sees `busy` as the owner has set it before its barrier or later: if `true`, it stays out; if
//! `false`, that is a later store, made when the owner left, and the visitor's acquiring load pairs with it. If the
//! heavy barrier comes first, the owner sees `asked`, or a later `false`, which pairs with its acquiring load likewise, and steps aside
//! as long as it is set. The owner sets `busy` again before it looks again, so that the same holds for each time it enters.
//!
//! **Nobody waits for ever.** A visitor does not wait. The owner waits for a visitor that is inside, which must therefore not wait for the
//! owner.
#![allow(unsafe_code, reason = "the value of a lock")]

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::{Arc, Weak};

use super::sync::{AtomicBool, Barriers, Ordering, UnsafeCell, yield_now};

struct Biased<T> {
    busy: AtomicBool,
    asked: AtomicBool,
    barriers: Barriers,
    value: UnsafeCell<T>,
}

// SAFETY: `Owner::with` and `Visitor::visit`, the only ways to the value, are never both inside (see the module), and there is one
// owner, on one thread at a time, and one visitor at a time inside. So the value is used by one thread at a time.
unsafe impl<T: Send> Sync for Biased<T> {}
// SAFETY: as above; the cell of a value that may move.
unsafe impl<T: Send> Send for Biased<T> {}

/// The owner's end. It may move to another thread, but is with one at a time.
pub(crate) struct Owner<T> {
    lock: Arc<Biased<T>>,
    one_thread: PhantomData<Cell<()>>,
}

/// A visitor's end. It does not keep the value alive.
pub(crate) struct Visitor<T>(Weak<Biased<T>>);

impl<T> Owner<T> {
    pub(crate) fn new(value: T) -> Self {
        let lock = Biased {
            busy: AtomicBool::new(false),
            asked: AtomicBool::new(false),
            barriers: Barriers::new(),
            value: UnsafeCell::new(value),
        };
        Self { lock: Arc::new(lock), one_thread: PhantomData }
    }

    pub(crate) fn visitor(&self) -> Visitor<T> {
        Visitor(Arc::downgrade(&self.lock))
    }

    /// Uses the value. `f` must not come back here.
    ///
    /// # Panics
    /// When it does.
    #[inline(always)]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let lock = &*self.lock;
        lock.enter();
        let _leave = Leave(&lock.busy);
        lock.value.with_mut(|value| {
            // SAFETY: no visitor is inside as long as `busy` is set and `asked` was not (see the module); and this thread is inside
            // once, since `enter` has found `busy` unset.
            f(unsafe { &mut *value })
        })
    }
}

impl<T> Biased<T> {
    #[inline(always)]
    fn enter(&self) {
        // Written by this thread alone.
        if self.busy.load(Ordering::Relaxed) {
            entered_twice();
        }
        // Pairs with the load in `visit`, by the barriers.
        self.busy.store(true, Ordering::Relaxed);
        self.barriers.light();
        // Pairs with the store of `false` when a visitor leaves.
        if self.asked.load(Ordering::Acquire) {
            self.step_aside();
        }
    }

    #[cold]
    fn step_aside(&self) {
        loop {
            // Pairs with the load in `visit`.
            self.busy.store(false, Ordering::Release);
            while self.asked.load(Ordering::Relaxed) {
                yield_now();
            }
            self.busy.store(true, Ordering::Relaxed);
            self.barriers.light();
            // As in `enter`.
            if !self.asked.load(Ordering::Acquire) {
                return;
            }
        }
    }
}

impl<T> Visitor<T> {
    /// Whether there is still something to visit.
    pub(crate) fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Uses the value, unless somebody else does at this moment. `f` must not wait for the owner.
    pub(crate) fn visit<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        let lock = self.0.upgrade()?;
        // Pairs with the store of the visitor that leaves, and by the barriers with the load in `enter`.
        if lock.asked.swap(true, Ordering::Acquire) {
            return None;
        }
        let _leave = Leave(&lock.asked);
        if !lock.barriers.heavy() {
            return None;
        }
        // Pairs with the stores of `false` of the owner.
        if lock.busy.load(Ordering::Acquire) {
            return None;
        }
        Some(lock.value.with_mut(|value| {
            // SAFETY: the owner is not inside, and steps aside as long as `asked` is set (see the module); no other visitor is, since
            // each has found `asked` unset when it set it.
            f(unsafe { &mut *value })
        }))
    }
}

/// Unsets a flag when its holder leaves, a panic included. Whoever sees it unset sees what was done inside.
struct Leave<'l>(&'l AtomicBool);

impl Drop for Leave<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cold]
fn entered_twice() -> ! {
    panic!("the owner of a biased lock has entered it twice")
}
