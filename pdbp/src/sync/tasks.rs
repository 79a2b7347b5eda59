//! Wakes tasks. Wakers wait on lists until what they wait for arrives, and are then due. The thread that held the engine's lock
//! wakes those due after releasing it: a waker runs code of an executor, which may end a task, and with it a part.

use std::task::Waker;

use super::primitives::{AtomicBool, AtomicUsize, Mutex, MutexGuard, Ordering, PoisonError, fence};

/// The wakers waiting for one thing. Each waiter has a key, by which its next waker replaces the previous one, so repeated polls
/// take no more room.
pub(crate) struct WakerList<K> {
    /// Whether there are any.
    any: AtomicBool,
    wakers: Mutex<Vec<Waiting<K>>>,
}

struct Waiting<K> {
    key: K,
    waker: Waker,
    /// Whether another task polls for it.
    is_led: bool,
}

impl<K> Default for WakerList<K> {
    fn default() -> Self {
        Self { any: AtomicBool::new(false), wakers: Mutex::new(Vec::new()) }
    }
}

impl<K: PartialEq> WakerList<K> {
    /// Puts one in; returns the one it replaces. Must be followed by a fence and another look.
    fn insert(&self, waiting: Waiting<K>) -> Option<Waiting<K>> {
        let mut wakers = lock(&self.wakers);
        if let Some(before) = wakers.iter_mut().find(|before| before.key == waiting.key) {
            return Some(std::mem::replace(before, waiting));
        }
        wakers.push(waiting);
        self.any.store(true, Ordering::Relaxed);
        None
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        lock(&self.wakers).len()
    }
}

/// The tasks that wait at a node.
pub(crate) struct Tasks {
    /// Number of waiting wakers, on all lists.
    waiting: AtomicUsize,
    /// Counts the wakers that have begun to wait on them.
    registrations: AtomicUsize,
    /// Whether the progress thread sleeps on the node's bell.
    is_watched: AtomicBool,
    is_due: AtomicBool,
    due: Mutex<Vec<Waker>>,
}

impl Default for Tasks {
    fn default() -> Self {
        Self {
            waiting: AtomicUsize::new(0),
            registrations: AtomicUsize::new(0),
            is_watched: AtomicBool::new(false),
            is_due: AtomicBool::new(false),
            due: Mutex::new(Vec::new()),
        }
    }
}

impl Tasks {
    /// Registers a waiting task. What it waits for may have arrived just before, so the task must look once more. Returns whether
    /// the progress thread must be woken to poll for it: not if the task `is_led` by another one, which polls.
    pub(crate) fn wait_on<K: PartialEq>(
        &self,
        list: &WakerList<K>,
        key: K,
        waker: Waker,
        is_led: bool,
    ) -> bool {
        let before = list.insert(Waiting { key, waker, is_led });
        self.waiting.fetch_add(before.is_none().into(), Ordering::Relaxed);
        // Until now, nobody had to poll for it, or another task did.
        let is_new = !is_led && before.as_ref().is_none_or(|before| before.is_led);
        self.registrations.fetch_add(is_new.into(), Ordering::Relaxed);
        // Pairs with the fence before `mark_due`: either this task sees what has arrived, or `mark_due` sees the task. Also pairs
        // with the fence in `end_watch`.
        fence(Ordering::SeqCst);
        // The replaced waker may hold the last reference to its task.
        drop(before);
        is_new && !self.is_watched.load(Ordering::Relaxed)
    }

    /// Called by the progress thread before it sleeps on the node's bell for the tasks.
    pub(crate) fn begin_watch(&self) {
        self.is_watched.store(true, Ordering::Relaxed);
    }

    /// Called by the progress thread when it leaves the bell to others. Either a task that begins to wait now is told to wake it, or
    /// [`registrations`](Self::registrations) counts that task from here on.
    pub(crate) fn end_watch(&self) {
        self.is_watched.store(false, Ordering::Relaxed);
        // Pairs with the fence in `wait_on`.
        fence(Ordering::SeqCst);
    }

    /// How many times a task has begun to wait.
    pub(crate) fn registrations(&self) -> usize {
        self.registrations.load(Ordering::Relaxed)
    }

    /// Whether any task waits. For threads that poll on behalf of tasks, which do not poll themselves; a late answer costs no more
    /// than a look.
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Makes the tasks on a list due: what they wait for has arrived, and a fence has been passed since. Called under the engine's
    /// lock.
    #[inline]
    pub(crate) fn mark_due<K>(&self, list: &WakerList<K>) {
        if list.any.load(Ordering::Relaxed) {
            self.drain(list);
        }
    }

    #[cold]
    fn drain<K>(&self, list: &WakerList<K>) {
        let mut wakers = lock(&list.wakers);
        list.any.store(false, Ordering::Relaxed);
        self.waiting.fetch_sub(wakers.len(), Ordering::Relaxed);
        self.add_due(wakers.drain(..).map(|waiting| waiting.waker));
    }

    fn add_due(&self, wakers: impl Iterator<Item = Waker>) {
        let mut due = lock(&self.due);
        due.extend(wakers);
        // Pairs with the load in `wake`; for the thread that holds the engine's lock, that lock orders the two.
        self.is_due.store(true, Ordering::Relaxed);
    }

    /// Makes a task due that is on no list, and for which no thread polls: it waits for something rare, of which it may learn a few
    /// milliseconds late.
    pub(crate) fn make_due(&self, waker: Waker) {
        self.add_due(std::iter::once(waker));
    }

    /// Wakes the tasks that are due. The caller must hold no lock and no borrow.
    ///
    /// A task that was woken helps: the thread that wakes it may lose its processor to it, and what the others send would not be packed together.
    #[inline]
    pub(crate) fn wake(&self) {
        if self.is_due.load(Ordering::Relaxed) {
            self.wake_all();
        }
    }

    #[cold]
    fn wake_all(&self) {
        while let Some(waker) = self.next_due() {
            waker.wake();
        }
    }

    fn next_due(&self) -> Option<Waker> {
        let mut due = lock(&self.due);
        let waker = due.pop();
        self.is_due.store(!due.is_empty(), Ordering::Relaxed);
        waker
    }
}

/// A waker that panics leaves a valid list of wakers.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
