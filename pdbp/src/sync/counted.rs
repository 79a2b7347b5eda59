//! Counted pointers: like `Rc` and `Arc`, but many shares can be counted in one step before they are handed out, and the value
//! decides what becomes of it and its memory when no share is left.
#![allow(unsafe_code, reason = "a counted pointer")]

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

/// How shares are counted.
pub trait Count {
    /// Adds shares.
    ///
    /// # Safety
    /// The count must be accessed only through these functions, and only on threads that may use it.
    unsafe fn add(count: &AtomicUsize, shares: u32);

    /// Subtracts shares. Returns `true` if these were the last; everything that other holders did before they dropped theirs is then
    /// visible.
    ///
    /// # Safety
    /// As [`add`](Self::add).
    unsafe fn sub(count: &AtomicUsize, shares: u32) -> bool;
}

/// By a single thread, which holds all shares.
#[derive(Debug)]
pub enum OneThread {}

/// By any thread.
#[derive(Debug)]
pub enum AnyThread {}

/// A value that can be counted.
pub(crate) trait Shareable: Sized {
    /// Called when no share is left.
    fn end(last: Last<Self>) {
        drop(last);
    }
}

/// The maximum number of shares. Beyond it the program aborts rather than let the count wrap; the gap leaves room for concurrent
/// additions.
const MOST: usize = isize::MAX as usize;

impl Count for OneThread {
    #[inline(always)]
    unsafe fn add(count: &AtomicUsize, shares: u32) {
        // SAFETY: only one thread uses the count (contract). Atomic loads and stores are not needed, and could not be one instruction.
        let count = unsafe { &mut *count.as_ptr() };
        let shares = shares as usize;
        if *count > MOST || shares > MOST {
            std::process::abort();
        }
        *count += shares;
    }

    #[inline(always)]
    unsafe fn sub(count: &AtomicUsize, shares: u32) -> bool {
        // SAFETY: as in `add`.
        let count = unsafe { &mut *count.as_ptr() };
        *count -= shares as usize;
        *count == 0
    }
}

impl Count for AnyThread {
    #[inline(always)]
    unsafe fn add(count: &AtomicUsize, shares: u32) {
        // The caller has a share, so nothing needs to become visible.
        let shares = shares as usize;
        if shares > MOST || count.fetch_add(shares, Ordering::Relaxed) > MOST {
            std::process::abort();
        }
    }

    #[inline(always)]
    unsafe fn sub(count: &AtomicUsize, shares: u32) -> bool {
        // The thread that ends the value sees what was done with it: pairs with the fence below.
        if count.fetch_sub(shares as usize, Ordering::Release) != shares as usize {
            return false;
        }
        fence(Ordering::Acquire);
        true
    }
}

/// A share of a value.
///
/// **Invariant.** The count is the number of existing shares: values of this type, and those counted by [`add`](Self::add). The value
/// lives as long as any exist. All of them are counted in the same way.
pub(crate) struct Counted<T: Shareable, C: Count>(NonNull<Inner<T>>, PhantomData<fn() -> C>);

/// A value, its count, and the link to the next in a [chain](Chain).
pub(crate) struct Inner<T> {
    count: AtomicUsize,
    next: Option<NonNull<Inner<T>>>,
    value: T,
}

// SAFETY: shares on several threads are `&T` there, and one of them ends the value; the count is atomic.
unsafe impl<T: Shareable + Send + Sync> Send for Counted<T, AnyThread> {}
// SAFETY: as for `Send`, since a share can be cloned.
unsafe impl<T: Shareable + Send + Sync> Sync for Counted<T, AnyThread> {}

impl<T: Shareable, C: Count> Counted<T, C> {
    /// The first share.
    #[inline]
    pub(crate) fn new(value: T) -> Self {
        Last::new(value).share()
    }

    #[inline(always)]
    fn inner(&self) -> &Inner<T> {
        // SAFETY: the value lives, since this is a share of it, and nobody has exclusive access as long as a share exists.
        unsafe { self.0.as_ref() }
    }

    /// Counts more shares, and returns the pointer for them. The caller owns them, and hands them out by
    /// [`from_counted`](Self::from_counted) or gives them up by [`release_shares`](Self::release_shares).
    #[inline(always)]
    pub(crate) fn add(&self, shares: u32) -> NonNull<Inner<T>> {
        // SAFETY: all shares are counted in this way, and those of one thread are not sent to another.
        unsafe { C::add(&self.inner().count, shares) }
        self.0
    }

    /// One of the shares counted by [`add`](Self::add).
    ///
    /// # Safety
    /// The caller must own a share of this value, which the returned one replaces.
    #[inline(always)]
    pub(crate) unsafe fn from_counted(inner: NonNull<Inner<T>>) -> Self {
        Self(inner, PhantomData)
    }

    /// Gives up shares counted by [`add`](Self::add).
    ///
    /// # Safety
    /// As [`from_counted`](Self::from_counted), for all of them.
    #[inline(always)]
    pub(crate) unsafe fn release_shares(inner: NonNull<Inner<T>>, shares: u32) {
        // SAFETY: the value lives: these are shares of it (contract).
        let count = unsafe { &inner.as_ref().count };
        // SAFETY: as in `add`.
        if unsafe { C::sub(count, shares) } {
            // These were the last.
            end(Last(inner));
        }
    }

    /// The value, if this is the only share.
    #[cfg(feature = "cuda")]
    pub(crate) fn into_inner(self) -> Option<T> {
        let inner = std::mem::ManuallyDrop::new(self).0;
        // SAFETY: the value lives: `self` is a share of it, and is not dropped.
        let count = unsafe { &inner.as_ref().count };
        // SAFETY: as in `add`.
        let is_last = unsafe { C::sub(count, 1) };
        is_last.then(|| Last(inner).into_value())
    }
}

#[cold]
#[inline(never)]
fn end<T: Shareable>(last: Last<T>) {
    T::end(last);
}

impl<T: Shareable, C: Count> Clone for Counted<T, C> {
    #[inline(always)]
    fn clone(&self) -> Self {
        Self(self.add(1), PhantomData)
    }
}

impl<T: Shareable, C: Count> Deref for Counted<T, C> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.inner().value
    }
}

impl<T: Shareable, C: Count> Drop for Counted<T, C> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: this is a share, which ends here.
        unsafe { Self::release_shares(self.0, 1) }
    }
}

/// A value without shares, with the memory for a count.
///
/// **Invariant.** The pointer came from a box, and nobody else uses the value.
pub(crate) struct Last<T>(NonNull<Inner<T>>);

// SAFETY: it owns the value.
unsafe impl<T: Send> Send for Last<T> {}

impl<T> Inner<T> {
    /// Links another value as the next of a chain.
    ///
    /// # Safety
    /// The value must live, and nobody else may use it.
    #[inline(always)]
    pub(super) unsafe fn link(inner: NonNull<Self>, next: Option<NonNull<Self>>) {
        // SAFETY: nobody else uses it (contract).
        unsafe { (*inner.as_ptr()).next = next }
    }
}

impl<T> Last<T> {
    pub(crate) fn new(value: T) -> Self {
        let inner = Inner { count: AtomicUsize::new(0), next: None, value };
        Self(NonNull::from(Box::leak(Box::new(inner))))
    }

    /// The first share.
    #[inline]
    pub(crate) fn share<C: Count>(mut self) -> Counted<T, C>
    where
        T: Shareable,
    {
        *self.inner_mut().count.get_mut() = 1;
        Counted(self.into_inner(), PhantomData)
    }

    #[inline(always)]
    fn inner_mut(&mut self) -> &mut Inner<T> {
        // SAFETY: the value lives, and nobody else uses it (invariant).
        unsafe { self.0.as_mut() }
    }

    #[inline(always)]
    pub(super) fn into_inner(self) -> NonNull<Inner<T>> {
        std::mem::ManuallyDrop::new(self).0
    }

    #[cfg(feature = "cuda")]
    fn into_value(self) -> T {
        // SAFETY: the pointer came from a box, and nobody else uses the value (invariant).
        unsafe { Box::from_raw(self.into_inner().as_ptr()) }.value
    }
}

impl<T> Deref for Last<T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the value lives (invariant).
        unsafe { &self.0.as_ref().value }
    }
}

impl<T> DerefMut for Last<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner_mut().value
    }
}

impl<T> Drop for Last<T> {
    fn drop(&mut self) {
        // SAFETY: the pointer came from a box, and nobody else uses the value (invariant).
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// Values without shares, linked through themselves.
///
/// **Invariant.** Each of them, from the first on, belongs to the chain, as to a [`Last`].
pub(crate) struct Chain<T> {
    first: Option<NonNull<Inner<T>>>,
}

// SAFETY: it owns the values.
unsafe impl<T: Send> Send for Chain<T> {}

impl<T> Default for Chain<T> {
    fn default() -> Self {
        Self { first: None }
    }
}

impl<T> Chain<T> {
    /// Returns the chain that begins with this value.
    ///
    /// # Safety
    /// This value, and all that it is [linked](Inner::link) with, must have come from [`Last::into_inner`], each once, and belong to
    /// nobody else.
    #[inline(always)]
    pub(super) unsafe fn of(first: Option<NonNull<Inner<T>>>) -> Self {
        Self { first }
    }

    #[inline]
    pub(crate) fn push(&mut self, mut last: Last<T>) {
        last.inner_mut().next = self.first;
        self.first = Some(last.into_inner());
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Last<T>> {
        let mut last = Last(self.first?);
        self.first = last.inner_mut().next;
        Some(last)
    }
}

impl<T> Drop for Chain<T> {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::sync::Arc;

    use super::*;

    impl Shareable for Rc<()> {}
    impl Shareable for Arc<i32> {}
    impl Shareable for Rc<i32> {
        fn end(last: Last<Self>) {
            ENDED.with_borrow_mut(|ended| ended.push(last));
        }
    }

    thread_local! {
        static ENDED: RefCell<Chain<Rc<i32>>> = RefCell::default();
    }

    /// A value is dropped with its last share, however that is given up.
    fn drops_once<C: Count>() {
        let value = Rc::new(());
        let is_there = || Rc::strong_count(&value) == 2;
        let first = Counted::<_, C>::new(Rc::clone(&value));
        let second = first.clone();
        let shares = first.add(3);
        drop((first, second));
        assert!(is_there());
        // SAFETY: three were counted.
        let third = unsafe { Counted::<_, C>::from_counted(shares) };
        // SAFETY: two are left.
        unsafe { Counted::<_, C>::release_shares(shares, 2) }
        assert!(is_there());
        assert!(Rc::ptr_eq(&third, &value));
        drop(third);
        assert!(!is_there());

        let only = Counted::<_, C>::new(Rc::clone(&value));
        let shares = only.add(1);
        drop(only);
        assert!(is_there());
        // SAFETY: one was counted.
        unsafe { Counted::<_, C>::release_shares(shares, 1) }
        assert!(!is_there());
    }

    #[test]
    fn a_value_is_dropped_with_its_last_share() {
        drops_once::<OneThread>();
        drops_once::<AnyThread>();
    }

    #[test]
    fn threads_share_a_value() {
        let value = Arc::new(7);
        let counted = Counted::<_, AnyThread>::new(Arc::clone(&value));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let share = counted.clone();
                scope.spawn(move || (0..1000).for_each(|_| assert_eq!(**share.clone(), 7)));
            }
            drop(counted);
        });
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn what_is_ended_goes_where_the_value_says_and_is_shared_again() {
        let value = Rc::new(7);
        drop(Counted::<_, OneThread>::new(Rc::clone(&value)).clone());
        drop(Counted::<_, OneThread>::new(Rc::clone(&value)));
        assert_eq!(Rc::strong_count(&value), 3);
        let mut last = ENDED.with_borrow_mut(Chain::pop).unwrap();
        *last = Rc::new(8);
        let again: Counted<_, OneThread> = last.share();
        assert_eq!((**again, Rc::strong_count(&value)), (8, 2));
        drop(again);
        drop(ENDED.take());
        assert_eq!(Rc::strong_count(&value), 1);
    }
}
