//! A stack of values without shares: any thread pushes, one takes all of them.
#![allow(unsafe_code, reason = "values linked by themselves")]

use std::ptr::{self, NonNull};

use super::counted::{Chain, Inner, Last};
use super::primitives::{AtomicPtr, Ordering};

/// Values that any thread pushes and any thread takes, all at once. So no value can be pushed again between reading the first
/// and removing it (no ABA problem).
///
/// **Invariant.** `first`, and all that follow it, belong to the stack, as to a [`Last`].
pub(crate) struct Stack<T> {
    first: AtomicPtr<Inner<T>>,
}

impl<T> Default for Stack<T> {
    fn default() -> Self {
        Self { first: AtomicPtr::new(ptr::null_mut()) }
    }
}

impl<T> Stack<T> {
    /// Puts a value in.
    #[inline]
    pub(crate) fn push(&self, last: Last<T>) {
        let inner = last.into_inner();
        // The value read is only stored in the new value, or compared.
        let mut first = self.first.load(Ordering::Relaxed);
        loop {
            // SAFETY: nobody else uses the value, since it was a `Last`.
            unsafe { Inner::link(inner, NonNull::new(first)) }
            // Pairs with the swap in `take`: the thread that takes the value sees what was done with it.
            let put =
                self.first.compare_exchange_weak(first, inner.as_ptr(), Ordering::Release, Ordering::Relaxed);
            match put {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }

    /// Whether the stack is empty. Cheaper than taking nothing; a value that is missed is found the next time.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.load(Ordering::Relaxed).is_null()
    }

    /// Takes all values, the most recent first.
    #[inline]
    pub(crate) fn take(&self) -> Chain<T> {
        // Pairs with the exchange in `push`.
        let first = NonNull::new(self.first.swap(ptr::null_mut(), Ordering::Acquire));
        // SAFETY: the values belonged to the stack (invariant), and no longer do.
        unsafe { Chain::of(first) }
    }
}

impl<T> Drop for Stack<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}
