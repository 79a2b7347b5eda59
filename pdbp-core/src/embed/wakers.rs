//! Wakers of tasks that wait for messages.

use core::cell::{Cell, RefCell};
use core::mem;
use core::task::Waker;

use managed::ManagedSlice;

/// A slot for the waker of each part. No waker is cloned, woken or dropped while the slots are borrowed, because the executor may
/// run arbitrary code in these calls.
pub(super) struct Wakers {
    slots: RefCell<ManagedSlice<'static, Option<Waker>>>,
    /// Number of slots in use, so that polling skips the search when no task waits.
    waiting: Cell<usize>,
}

impl Wakers {
    /// Empty slots.
    pub(super) fn new(mut slots: ManagedSlice<'static, Option<Waker>>) -> Self {
        slots.fill(None);
        Self { slots: RefCell::new(slots), waiting: Cell::new(0) }
    }

    /// Puts a waker into a slot, replacing any previous one.
    pub(super) fn set(&self, slot: usize, waker: &Waker) {
        let is_there = |other: &Waker| other.will_wake(waker);
        if self.slots.borrow().get(slot).is_none_or(|known| known.as_ref().is_some_and(is_there)) {
            return;
        }
        let waker = Some(waker.clone());
        let before = self.slots.borrow_mut().get_mut(slot).map(|known| mem::replace(known, waker));
        if let Some(None) = before {
            self.waiting.set(self.waiting.get() + 1);
        }
    }

    /// Wakes all tasks and empties their slots.
    pub(super) fn wake(&self) {
        let mut slot = 0;
        while self.waiting.get() > 0
            && let Some(waker) = self.take(slot)
        {
            slot += 1;
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// Empties a slot; `None` if there is no such slot.
    fn take(&self, slot: usize) -> Option<Option<Waker>> {
        let waker = self.slots.borrow_mut().get_mut(slot)?.take();
        if waker.is_some() {
            self.waiting.set(self.waiting.get() - 1);
        }
        Some(waker)
    }
}

impl Drop for Wakers {
    /// Empties the slots, since their memory may outlive this value.
    fn drop(&mut self) {
        let mut slot = 0;
        while self.take(slot).is_some() {
            slot += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    use std::task::Wake;
    use std::vec;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn each_task_is_woken_once_for_each_time_that_it_asked() {
        let wakers = Wakers::new(ManagedSlice::Owned(vec![None, None]));
        let tasks = [(); 3].map(|()| Arc::new(Count::default()));
        let [first, second, third] = tasks.clone().map(Waker::from);
        wakers.set(0, &first);
        wakers.set(0, &first);
        wakers.set(1, &second);
        // The first call replaces a waker; the second names a slot that does not exist.
        wakers.set(1, &third);
        wakers.set(2, &second);
        let woken = || tasks.each_ref().map(|task| task.0.load(Relaxed));
        assert_eq!(woken(), [0, 0, 0]);
        wakers.wake();
        wakers.wake();
        assert_eq!(woken(), [1, 0, 1]);
        wakers.set(1, &second);
        wakers.wake();
        assert_eq!(woken(), [1, 1, 1]);
        // Dropping `wakers` releases the tasks that still wait.
        wakers.set(0, &first);
        drop(wakers);
        drop((first, second, third));
        assert!(tasks.iter().all(|task| Arc::strong_count(task) == 1));
    }
}
