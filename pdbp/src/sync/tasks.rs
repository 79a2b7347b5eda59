//! Who wakes tasks: wakers wait on lists until something comes that they wait for, and are then due. Those that are due are woken by
//! whoever has had the engine's lock, after it has given that back: a waker runs code of an executor, which may end a task, and with it
//! a part.

use std::task::Waker;

use super::primitives::{AtomicBool, AtomicUsize, Mutex, MutexGuard, Ordering, PoisonError, fence};

/// The wakers of those who wait for one thing. Each waiter has a key, by which its next waker replaces the one before: who is polled
/// again and again takes no more room.
pub(crate) struct Waiting<K> {
    /// Whether there are any.
    any: AtomicBool,
    wakers: Mutex<Vec<(K, Waker)>>,
}

impl<K> Default for Waiting<K> {
    fn default() -> Self {
        Self { any: AtomicBool::new(false), wakers: Mutex::new(Vec::new()) }
    }
}

impl<K: PartialEq> Waiting<K> {
    /// Puts a waker in; returns what it replaces. To be followed by a fence and another look.
    fn put(&self, key: K, waker: Waker) -> Option<Waker> {
        let mut wakers = lock(&self.wakers);
        if let Some((_, before)) = wakers.iter_mut().find(|(k, _)| *k == key) {
            return Some(std::mem::replace(before, waker));
        }
        wakers.push((key, waker));
        self.any.store(true, Ordering::Relaxed);
        None
    }
}

/// The tasks that wait at a node.
pub(crate) struct Tasks {
    /// Wakers that wait, on all lists.
    waiting: AtomicUsize,
    is_due: AtomicBool,
    due: Mutex<Vec<Waker>>,
}

impl Default for Tasks {
    fn default() -> Self {
        Self { waiting: AtomicUsize::new(0), is_due: AtomicBool::new(false), due: Mutex::new(Vec::new()) }
    }
}

impl Tasks {
    /// Lets a task wait. What it waits for may have come just before: it has to look once more. Returns whether no other did.
    pub(crate) fn wait_on<K: PartialEq>(&self, list: &Waiting<K>, key: K, waker: Waker) -> bool {
        let before = list.put(key, waker);
        let is_first = before.is_none() && self.waiting.fetch_add(1, Ordering::Relaxed) == 0;
        // Pairs with that of `come`: either this task sees what has come, or it is seen.
        fence(Ordering::SeqCst);
        // It may be the last that holds its task.
        drop(before);
        is_first
    }

    /// Whether any task waits. Whoever polls for those that do not poll themselves asks this; a late answer costs no more than a look.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Something has come that those of a list wait for, and a fence has been passed since. For whoever has the engine's lock.
    #[inline]
    pub(crate) fn come<K>(&self, list: &Waiting<K>) {
        if list.any.load(Ordering::Relaxed) {
            self.take(list);
        }
    }

    #[cold]
    fn take<K>(&self, list: &Waiting<K>) {
        let mut wakers = lock(&list.wakers);
        list.any.store(false, Ordering::Relaxed);
        self.waiting.fetch_sub(wakers.len(), Ordering::Relaxed);
        lock(&self.due).extend(wakers.drain(..).map(|(_, waker)| waker));
        // Pairs with the load in `wake`, which the engine's lock orders behind this for the thread that has it.
        self.is_due.store(true, Ordering::Release);
    }

    /// Wakes those that are due. No lock and no borrow may be held.
    #[inline]
    pub(crate) fn wake(&self) {
        if self.is_due.load(Ordering::Relaxed) {
            self.wake_all();
        }
    }

    #[cold]
    fn wake_all(&self) {
        if !self.is_due.swap(false, Ordering::AcqRel) {
            return;
        }
        loop {
            // The lock is not held while the waker runs.
            let waker = lock(&self.due).pop();
            let Some(waker) = waker else { return };
            waker.wake();
        }
    }
}

/// What a panic of a waker has left is a list of wakers all the same.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
