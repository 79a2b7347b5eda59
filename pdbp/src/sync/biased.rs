//! A lock that costs its owner only plain loads and stores.
//!
//! One thread, the *owner*, takes the lock for every message. *Visitors* take it occasionally, and bear the cost for both: they ask for it,
//! and come back later if the owner is inside.
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
//! **Mutual exclusion.** Light and heavy barriers are totally ordered, as fences are (`membarrier(2)`: all threads of the process
//! pass a full barrier between the beginning and the end of the call). If the owner's light barrier comes before the visitor's
//! heavy one, the visitor sees `busy` as the owner set it before its barrier, or a later value: if `true`, it stays out; if
//! `false`, that is a later store, made when the owner left, and the visitor's acquire load pairs with it. If the heavy barrier
//! comes first, the owner sees `asked`, or a later `false`, which likewise pairs with its acquire load, and steps aside as long as
//! it is set. The owner sets `busy` again before it looks again, so the same holds each time it enters.
//!
//! **Progress.** A visitor does not wait. The owner waits for a visitor that is inside, so a visitor must not wait for the owner.
//!
//! **The window** is the state that the owner uses most, kept apart from the value so that the owner need not enter the lock for it
//! ([`Owner::try_fast`]). Before anybody uses the value the window is closed, which tells the value what was done through it; only a holder of
//! both may leave it open, or open it ([`Owner::with_window`]). If light barriers cost something, or after [`Visitor::force_slow_path`], the owner
//! always takes the slow path.
#![allow(unsafe_code, reason = "the value of a lock")]

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::{Arc, Weak};

use super::primitives::{AtomicBool, AtomicU8, Barriers, Mutex, Ordering, UnsafeCell, try_lock, wait_while};

/// A value with a window.
pub(crate) trait Windowed {
    /// The state that the owner uses apart from the value; closed by default.
    type Window: Default;

    /// Whether a window is open.
    fn is_open(window: &Self::Window) -> bool;

    /// Learns what was done through a window, and closes it.
    fn close(&mut self, window: &mut Self::Window);
}

struct Biased<T: Windowed> {
    busy: AtomicBool,
    /// [`REQUESTED`] and [`SLOW_PATH`].
    attention: AtomicU8,
    /// Whether the owner is using the value; accessed by the owner only.
    inside: Cell<bool>,
    window: UnsafeCell<T::Window>,
    barriers: Barriers,
    /// Held by the visitor that asks.
    visitors: Mutex<()>,
    value: UnsafeCell<T>,
}

/// In [`Biased::attention`]: a visitor asks for the lock.
const REQUESTED: u8 = 1;
/// In [`Biased::attention`]: the window must not be used. Always set if light barriers cost something.
const SLOW_PATH: u8 = 2;

// SAFETY: value and window are reached only through `Owner::with`, `Owner::with_window`, `Owner::try_fast` and `Visitor::visit_all`. Owner and
// visitor are never both inside (see the module); the one owner is on one thread at a time, and one visitor at a time is inside. So value and
// window are used by one thread at a time. `inside` is used by the owner only.
unsafe impl<T: Windowed<Window: Send> + Send> Sync for Biased<T> {}
// SAFETY: as above, and the cells hold values that may move.
unsafe impl<T: Windowed<Window: Send> + Send> Send for Biased<T> {}

/// The owner's end. It may move between threads, but is on one at a time.
pub(crate) struct Owner<T: Windowed> {
    lock: Arc<Biased<T>>,
    one_thread: PhantomData<Cell<()>>,
}

/// A visitor's end. It does not keep the value alive.
pub(crate) struct Visitor<T: Windowed>(Weak<Biased<T>>);

impl<T: Windowed> Owner<T> {
    pub(crate) fn new(value: T) -> Self {
        let barriers = Barriers::new();
        let lock = Biased {
            busy: AtomicBool::new(false),
            attention: AtomicU8::new(if barriers.are_free() { 0 } else { SLOW_PATH }),
            inside: Cell::new(false),
            window: UnsafeCell::new(T::Window::default()),
            barriers,
            visitors: Mutex::new(()),
            value: UnsafeCell::new(value),
        };
        Self { lock: Arc::new(lock), one_thread: PhantomData }
    }

    pub(crate) fn visitor(&self) -> Visitor<T> {
        Visitor(Arc::downgrade(&self.lock))
    }

    /// Calls `f` with the window; `None` if the window cannot be used at the moment, or if `f` returns `None`, as it does while the
    /// window is closed.
    ///
    /// # Safety
    /// `f` must not call back here, nor use the value.
    #[inline(always)]
    pub(crate) unsafe fn try_fast<R>(&self, f: impl FnOnce(&mut T::Window) -> Option<R>) -> Option<R> {
        let lock = &*self.lock;
        // Pairs with the load in `visit_all`, through the barriers.
        lock.busy.store(true, Ordering::Relaxed);
        lock.barriers.light_if_free();
        // Pairs with the store of a visitor that leaves.
        if lock.attention.load(Ordering::Acquire) == 0 {
            let used = lock.window.with_mut(|window| {
                // SAFETY: no visitor is inside as long as `busy` is set and `REQUESTED` was not (see the module). Nor has this thread another
                // reference: `f` of another call of `try_fast` or `with_window` does not call this, and `with` holds none while it calls
                // anything.
                f(unsafe { &mut *window })
            });
            if used.is_some() {
                // Unless this thread is inside `with`, where the window is closed.
                lock.busy.store(false, Ordering::Release);
                return used;
            }
        }
        lock.busy.store(lock.inside.get(), Ordering::Release);
        None
    }

    /// Uses the value. `f` must not call back here.
    ///
    /// # Panics
    /// If it does.
    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let lock = &*self.lock;
        lock.enter();
        let _leave = Leave(lock);
        // SAFETY: no visitor is inside as long as `busy` is set and `REQUESTED` was not (see the module); and this thread is inside
        // once, since `enter` has found `inside` unset.
        unsafe { lock.use_value(f) }
    }

    /// Uses value and window, which stays as `f` leaves it.
    ///
    /// # Safety
    /// `f` must not call back here, nor call `try_fast`.
    ///
    /// # Panics
    /// As [`with`](Self::with).
    #[inline]
    pub(crate) unsafe fn with_window<R>(&self, f: impl FnOnce(&mut T, &mut T::Window) -> R) -> R {
        let lock = &*self.lock;
        lock.enter();
        let _leave = Leave(lock);
        lock.value.with_mut(|value| {
            // SAFETY: as in `with`.
            let value = unsafe { &mut *value };
            lock.window.with_mut(|window| {
                // SAFETY: as above, and `f` does not call `try_fast` (contract).
                f(value, unsafe { &mut *window })
            })
        })
    }
}

impl<T: Windowed> Biased<T> {
    #[inline(always)]
    fn enter(&self) {
        if self.inside.replace(true) {
            entered_recursively();
        }
        // Pairs with the load in `visit_all`, through the barriers.
        self.busy.store(true, Ordering::Relaxed);
        self.barriers.light();
        // Pairs with the store of a visitor that leaves.
        if self.attention.load(Ordering::Acquire) & REQUESTED != 0 {
            self.step_aside();
        }
    }

    #[cold]
    fn step_aside(&self) {
        loop {
            // Pairs with the load in `visit_all`.
            self.busy.store(false, Ordering::Release);
            // `attention` is read once more below, with a load that pairs.
            wait_while(|| self.attention.load(Ordering::Relaxed) & REQUESTED != 0);
            self.busy.store(true, Ordering::Relaxed);
            self.barriers.light();
            // As in `enter`.
            if self.attention.load(Ordering::Acquire) & REQUESTED == 0 {
                return;
            }
        }
    }

    /// Asks for the value, unless another visitor does.
    fn ask(&self) -> Option<Request<'_, impl Sized>> {
        let _alone = try_lock(&self.visitors)?;
        // Pairs with the loads in `enter` and `try_fast`, through the barriers.
        self.attention.fetch_or(REQUESTED, Ordering::Relaxed);
        Some(Request { attention: &self.attention, _alone })
    }

    /// Closes the window, and uses the value.
    ///
    /// # Safety
    /// Nobody else may use either until this returns.
    #[inline(always)]
    unsafe fn use_value<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        self.value.with_mut(|value| {
            // SAFETY: nobody else uses it (contract).
            let value = unsafe { &mut *value };
            self.window.with_mut(|window| {
                // SAFETY: nobody else uses it (contract). The reference ends before `f` is called.
                let window = unsafe { &mut *window };
                if T::is_open(window) {
                    value.close(window);
                }
            });
            f(value)
        })
    }
}

impl<T: Windowed> Visitor<T> {
    /// Whether there is still something to visit.
    pub(crate) fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Makes the owner always go through the value, and not the window, from now on.
    pub(crate) fn force_slow_path(&self) {
        if let Some(lock) = self.0.upgrade() {
            // Pairs with nothing: the caller's own store is relaxed as well.
            lock.attention.fetch_or(SLOW_PATH, Ordering::Relaxed);
        }
    }

    /// Lets the owner use the window again, if light barriers cost nothing.
    #[cfg(feature = "net")]
    pub(crate) fn allow_fast_path(&self) {
        if let Some(lock) = self.0.upgrade()
            && lock.barriers.are_free()
        {
            // Pairs with nothing: only `REQUESTED` and `busy` decide who is inside, and an open window is closed before the value is used.
            lock.attention.fetch_and(!SLOW_PATH, Ordering::Relaxed);
        }
    }

    /// Uses each value that nobody else is using, after one heavy barrier for all. `f`, which also gets what comes with the visitor, must
    /// not wait for an owner.
    pub(crate) fn visit_all<'v, K: Copy>(
        visitors: impl Iterator<Item = (&'v Self, K)>,
        mut f: impl FnMut(K, &mut T),
    ) where
        T: 'v,
    {
        let alive = visitors.filter_map(|(visitor, with)| Some((visitor.0.upgrade()?, with)));
        let locks: Vec<_> = alive.collect();
        let asked = locks.iter().filter_map(|(lock, with)| Some((&**lock, *with, lock.ask()?)));
        let asked: Vec<_> = asked.collect();
        if !asked.first().is_some_and(|(lock, ..)| lock.barriers.heavy()) {
            return;
        }
        for (lock, with, _asked) in asked {
            // Pairs with the stores of `false` of the owner.
            if !lock.busy.load(Ordering::Acquire) {
                // SAFETY: the owner is not inside, and steps aside as long as `REQUESTED` is set (see the module); no other visitor is,
                // since each holds `visitors`.
                unsafe { lock.use_value(|value| f(with, value)) }
            }
        }
    }
}

/// Lets the owner leave, even after a panic. A thread that sees `busy` unset sees what was done inside.
struct Leave<'l, T: Windowed>(&'l Biased<T>);

impl<T: Windowed> Drop for Leave<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.inside.set(false);
        self.0.busy.store(false, Ordering::Release);
    }
}

/// What a visitor asks; dropped, it lets the visitor leave, even after a panic. A thread that sees that the visitor no longer asks sees what
/// was done inside.
struct Request<'l, G> {
    attention: &'l AtomicU8,
    /// Keeps other visitors out until after that.
    _alone: G,
}

impl<G> Drop for Request<'_, G> {
    fn drop(&mut self) {
        self.attention.fetch_and(!REQUESTED, Ordering::Release);
    }
}

#[cold]
fn entered_recursively() -> ! {
    panic!("the owner of a biased lock entered it recursively")
}
