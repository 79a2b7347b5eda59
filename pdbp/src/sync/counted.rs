//! Counted pointers: like `Rc` and `Arc`, but many shares can be counted in one step before they are handed out.
#![allow(unsafe_code, reason = "a counted pointer")]

use std::cell::Cell;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

/// A count of shares.
pub trait Count {
    /// One share.
    fn one() -> Self;

    /// Adds shares.
    fn add(&self, shares: u32);

    /// Takes shares off. `true`: these were the last, and all that other holders did before they dropped theirs is visible.
    fn sub(&self, shares: u32) -> bool;
}

/// The most shares. Beyond it the program aborts rather than let the count wrap; the gap leaves room for concurrent additions.
const MOST: usize = isize::MAX as usize;

impl Count for Cell<usize> {
    fn one() -> Self {
        Self::new(1)
    }

    #[inline(always)]
    fn add(&self, shares: u32) {
        let (before, shares) = (self.get(), shares as usize);
        if before > MOST || shares > MOST {
            std::process::abort();
        }
        self.set(before + shares);
    }

    #[inline(always)]
    fn sub(&self, shares: u32) -> bool {
        self.set(self.get() - shares as usize);
        self.get() == 0
    }
}

impl Count for AtomicUsize {
    fn one() -> Self {
        Self::new(1)
    }

    #[inline(always)]
    fn add(&self, shares: u32) {
        // Who adds has a share, so that nothing has to be seen for it.
        let shares = shares as usize;
        if shares > MOST || self.fetch_add(shares, Ordering::Relaxed) > MOST {
            std::process::abort();
        }
    }

    #[inline(always)]
    fn sub(&self, shares: u32) -> bool {
        // What was done with the value is seen by who frees it: pairs with the fence below.
        if self.fetch_sub(shares as usize, Ordering::Release) != shares as usize {
            return false;
        }
        fence(Ordering::Acquire);
        true
    }
}

/// A share of a value.
///
/// **Invariant.** The count is the number of shares that there are: values of this type, and those that [`add`](Self::add) has counted.
/// The value lives as long as there are any.
pub(crate) struct Counted<T, C: Count>(NonNull<Inner<T, C>>);

/// A value and its count.
pub(crate) struct Inner<T, C> {
    count: C,
    value: T,
}

// SAFETY: shares on several threads are `&T` there, and one of them drops the value; the count is an `AtomicUsize`.
unsafe impl<T: Send + Sync> Send for Counted<T, AtomicUsize> {}
// SAFETY: as for `Send`, since a share can be cloned.
unsafe impl<T: Send + Sync> Sync for Counted<T, AtomicUsize> {}

impl<T, C: Count> Counted<T, C> {
    /// The first share.
    pub(crate) fn new(value: T) -> Self {
        Self(NonNull::from(Box::leak(Box::new(Inner { count: C::one(), value }))))
    }

    #[inline(always)]
    fn inner(&self) -> &Inner<T, C> {
        // SAFETY: it lives, since this is a share; and nobody has it exclusively as long as there is one.
        unsafe { self.0.as_ref() }
    }

    /// Counts more shares, and says of what. They belong to the caller, who gives them out by [`from_counted`](Self::from_counted) or back by
    /// [`give_back`](Self::give_back).
    #[inline(always)]
    pub(crate) fn add(&self, shares: u32) -> NonNull<Inner<T, C>> {
        self.inner().count.add(shares);
        self.0
    }

    /// One of the shares that [`add`](Self::add) has counted.
    ///
    /// # Safety
    /// The caller has one of this value, and has it no longer.
    #[inline(always)]
    pub(crate) unsafe fn from_counted(inner: NonNull<Inner<T, C>>) -> Self {
        Self(inner)
    }

    /// Gives up shares that [`add`](Self::add) has counted.
    ///
    /// # Safety
    /// As [`from_counted`](Self::from_counted), of all of them.
    #[inline(always)]
    pub(crate) unsafe fn give_back(inner: NonNull<Inner<T, C>>, shares: u32) {
        // SAFETY: it lives: these are shares (contract).
        let last = unsafe { inner.as_ref() }.count.sub(shares);
        if last {
            // SAFETY: these were all that there were.
            unsafe { free(inner) }
        }
    }

    /// The value, if this is the only share.
    #[cfg(feature = "cuda")]
    pub(crate) fn into_inner(self) -> Option<T> {
        let inner = std::mem::ManuallyDrop::new(self).0;
        // SAFETY: it lives: `self` is a share, which nobody drops.
        if !unsafe { inner.as_ref() }.count.sub(1) {
            return None;
        }
        // SAFETY: it was made by a box, and this was the last share.
        let inner = unsafe { Box::from_raw(inner.as_ptr()) };
        Some(inner.value)
    }
}

/// Drops a value and its count.
///
/// # Safety
/// There is no share of it.
#[cold]
#[inline(never)]
unsafe fn free<T, C>(inner: NonNull<Inner<T, C>>) {
    // SAFETY: it was made by a box, and nobody uses it (contract).
    drop(unsafe { Box::from_raw(inner.as_ptr()) });
}

impl<T, C: Count> Clone for Counted<T, C> {
    #[inline(always)]
    fn clone(&self) -> Self {
        Self(self.add(1))
    }
}

impl<T, C: Count> Deref for Counted<T, C> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.inner().value
    }
}

impl<T, C: Count> Drop for Counted<T, C> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: this is a share, which ends here.
        unsafe { Self::give_back(self.0, 1) }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::Arc;

    use super::*;

    /// A value is dropped with its last share, in whatever way that is given up.
    fn drops_once<C: Count>() {
        let value = Rc::new(());
        let is_there = || Rc::strong_count(&value) == 2;
        let first = Counted::<_, C>::new(Rc::clone(&value));
        let second = first.clone();
        let shares = first.add(3);
        drop((first, second));
        assert!(is_there());
        // SAFETY: three were counted.
        let third = unsafe { Counted::from_counted(shares) };
        // SAFETY: two are left.
        unsafe { Counted::give_back(shares, 2) }
        assert!(is_there());
        assert!(Rc::ptr_eq(&third, &value));
        drop(third);
        assert!(!is_there());

        let only = Counted::<_, C>::new(Rc::clone(&value));
        let shares = only.add(1);
        drop(only);
        assert!(is_there());
        // SAFETY: one was counted.
        unsafe { Counted::give_back(shares, 1) }
        assert!(!is_there());
    }

    #[test]
    fn a_value_is_dropped_with_its_last_share() {
        drops_once::<Cell<usize>>();
        drops_once::<AtomicUsize>();
    }

    #[test]
    fn threads_share_a_value() {
        let value = Arc::new(7);
        let counted = Counted::<_, AtomicUsize>::new(Arc::clone(&value));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let share = counted.clone();
                scope.spawn(move || (0..1000).for_each(|_| assert_eq!(**share.clone(), 7)));
            }
            drop(counted);
        });
        assert_eq!(Arc::strong_count(&value), 1);
    }
}
