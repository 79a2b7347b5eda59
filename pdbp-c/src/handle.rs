//! Handles: what C has a pointer to. Each begins with a word that says what it is, so that a pointer to another kind of handle is refused,
//! and so are handles after a panic and in a forked child.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::call::Arg;
use crate::status::{Failure, Status};

/// Something that C has a pointer to. It is freed by a function of its own, so that the pointer is valid until then (the header's promise).
///
/// # Safety
/// It begins with its `Header` (`repr(C)`).
pub unsafe trait Handle: Sized {
    /// What kind it is.
    const TAG: u32;
    /// A pointer to it in the header.
    #[cfg(test)]
    const POINTER: &'static str;

    /// Its first word.
    fn header(&self) -> &Header;

    /// Whether the calling thread may use it without more ado.
    #[inline(always)]
    fn is_callers(&self) -> bool {
        true
    }

    /// What is to be done before a call that [`is_callers`](Self::is_callers) says no to.
    ///
    /// # Errors
    /// Why the calling thread may not use it.
    fn enter(&self) -> Result<(), Failure> {
        Ok(())
    }

    /// One of the world's, for tests that call each function.
    #[cfg(test)]
    fn sample(world: &crate::tests::World) -> *mut Self;
}

/// How often this process is the child of a fork, counted from the first handle on.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Forks so far.
#[inline(always)]
pub(crate) fn forks() -> u32 {
    // The only thread of the child has counted before anything else.
    FORKS.load(Ordering::Relaxed)
}

/// Forks are counted from here on.
pub(crate) fn count_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function only adds to a count, and stays where it is since the library is never unloaded.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
        // Only without memory, and then no more than E_FORKED is lost.
        debug_assert_eq!(failed, 0);
    });
}

/// What a call in a forked child says.
pub(crate) fn forked() -> Failure {
    Failure::new(
        Status::E_FORKED,
        "the handle belongs to the parent process; free it, and start a cluster in this one".to_owned(),
    )
}

/// The first word of a handle: its kind in the upper half, in the lower one the forks when it was made.
pub struct Header(AtomicU64);

/// Of a kind: there was a panic.
const POISONED: u32 = 1 << 31;
/// What a word is that no handle has.
const FREED: u64 = 0;

#[inline(always)]
fn word(tag: u32) -> u64 {
    u64::from(tag) << 32 | u64::from(forks())
}

impl Header {
    /// Of a new handle.
    pub(crate) fn new<T: Handle>() -> Self {
        count_forks();
        Self(AtomicU64::new(word(T::TAG)))
    }

    #[inline(always)]
    fn is(&self, tag: u32) -> bool {
        // Nothing depends on it but whether the call goes on.
        self.0.load(Ordering::Relaxed) == word(tag)
    }

    /// Refuses every call from now on.
    pub(crate) fn free(&self) {
        self.0.store(FREED, Ordering::Relaxed);
    }

    /// Refuses every call from now on, but for that which frees.
    pub(crate) fn poison(&self) {
        self.0.fetch_or(u64::from(POISONED) << 32, Ordering::Relaxed);
    }

    fn kind(&self) -> (u32, u32) {
        let word = self.0.load(Ordering::Relaxed);
        ((word >> 32) as u32, word as u32)
    }

    /// Why the word is not as it should be.
    fn explain(&self, tag: u32) -> Result<(), Failure> {
        match self.kind() {
            (0, _) => Err(Failure::new(Status::E_HANDLE, "the handle has already been freed".to_owned())),
            (kind, _) if kind & !POISONED != tag => Err(Failure::new(
                Status::E_HANDLE,
                "the pointer is not a handle of this kind, or the handle has been freed".to_owned(),
            )),
            (_, made) if made != forks() => Err(forked()),
            (kind, _) if kind != tag => Err(Failure::new(
                Status::E_PANIC,
                "an earlier call with this handle panicked; it can only be freed".to_owned(),
            )),
            _ => Ok(()),
        }
    }
}

#[cold]
fn nothing<T>() -> Result<T, Failure> {
    Err(Failure::new(Status::E_NULL, "null pointer instead of a handle".to_owned()))
}

/// The handle, if it is one of this kind, of this process, and has not panicked.
#[inline(always)]
unsafe fn look<'a, T: Handle>(c: *const T) -> Result<&'a T, Failure> {
    // SAFETY: null, or a handle (the header's promise), which begins with its header; that of a freed one stays for a while.
    let Some(header) = (unsafe { c.cast::<Header>().as_ref() }) else { return nothing() };
    if !header.is(T::TAG) {
        header.explain(T::TAG)?;
    }
    // SAFETY: a handle of this kind, that has not been freed; handles are shared, and what changes in them is in cells.
    Ok(unsafe { &*c })
}

#[cold]
#[inline(never)]
fn enter<T: Handle>(handle: &T) -> Result<(), Failure> {
    handle.enter()
}

/// What the tests call functions with that take pointers to handles.
#[cfg(test)]
macro_rules! pointers {
    ($pointer:ty, $c_name:expr, $sample:expr) => {
        fn c_name() -> String {
            $c_name
        }

        fn null() -> $pointer {
            std::ptr::null_mut()
        }

        fn sample(world: &crate::tests::World) -> $pointer {
            let sample: fn(&crate::tests::World) -> *mut T = $sample;
            sample(world)
        }

        fn foreign(world: &crate::tests::World) -> $pointer {
            world.of_another_kind::<T>()
        }
    };
}

/// A handle that the calling thread may use.
pub struct In<T>(PhantomData<T>);

impl<T: Handle + 'static> Arg for In<T> {
    type C = *mut T;
    type Value<'a> = &'a T;
    #[inline(always)]
    unsafe fn check<'a>(c: *mut T) -> Result<Self::Value<'a>, Failure> {
        // SAFETY: the caller's promise.
        let handle = unsafe { look(c.cast_const()) }?;
        if !handle.is_callers() {
            enter(handle)?;
        }
        Ok(handle)
    }
    fn poison(c: *mut T) {
        // SAFETY: null, or a handle (the header's promise), which begins with its header.
        if let Some(header) = unsafe { c.cast::<Header>().as_ref() } {
            header.poison();
        }
    }
    #[cfg(test)]
    pointers!(*mut T, T::POINTER.to_owned(), T::sample);
}

/// A handle that is only looked at, by any thread.
pub struct Look<T>(PhantomData<T>);

impl<T: Handle + 'static> Arg for Look<T> {
    type C = *const T;
    type Value<'a> = &'a T;
    unsafe fn check<'a>(c: *const T) -> Result<Self::Value<'a>, Failure> {
        // SAFETY: the caller's promise.
        unsafe { look(c) }
    }
    fn poison(c: *const T) {
        In::poison(c.cast_mut());
    }
    #[cfg(test)]
    pointers!(*const T, format!("const {}", T::POINTER), T::sample);
}

/// A handle that may not be the calling thread's yet.
pub struct Foreign<T>(PhantomData<T>);

impl<T: Handle + 'static> Arg for Foreign<T> {
    type C = *mut T;
    type Value<'a> = &'a T;
    unsafe fn check<'a>(c: *mut T) -> Result<Self::Value<'a>, Failure> {
        // SAFETY: the caller's promise.
        unsafe { look(c.cast_const()) }
    }
    fn poison(c: *mut T) {
        In::poison(c);
    }
    #[cfg(test)]
    pointers!(*mut T, T::POINTER.to_owned(), T::sample);
}

/// A handle, or null.
pub struct Maybe<T>(PhantomData<T>);

impl<T: Handle + 'static> Arg for Maybe<T> {
    type C = *mut T;
    type Value<'a> = Option<&'a T>;
    unsafe fn check<'a>(c: *mut T) -> Result<Self::Value<'a>, Failure> {
        // SAFETY: the caller's promise.
        if c.is_null() { Ok(None) } else { unsafe { look(c.cast_const()) }.map(Some) }
    }
    fn poison(c: *mut T) {
        In::poison(c);
    }
    #[cfg(test)]
    pointers!(*mut T, T::POINTER.to_owned(), T::sample);
}

/// A handle that ends with the call. `None`: null, or one of the process that this one is a fork of, which is forgotten.
pub struct Free<T>(PhantomData<T>);

impl<T: Handle + 'static> Arg for Free<T> {
    type C = *mut T;
    type Value<'a> = Option<NonNull<T>>;
    unsafe fn check<'a>(c: *mut T) -> Result<Self::Value<'a>, Failure> {
        // SAFETY: the caller's promise.
        match unsafe { look(c.cast_const()) } {
            Ok(_) => {}
            Err(failure) if matches!(failure.status(), Status::E_NULL | Status::E_FORKED) => return Ok(None),
            Err(failure) if failure.status() == Status::E_PANIC => {}
            Err(failure) => return Err(failure),
        }
        let freed = NonNull::new(c);
        if let Some(handle) = freed {
            // SAFETY: a handle that has not been freed (it was looked at).
            unsafe { handle.as_ref() }.header().free();
        }
        Ok(freed)
    }
    #[cfg(test)]
    pointers!(*mut T, T::POINTER.to_owned(), |_| std::ptr::null_mut()); // The world is freed in the end.
}

/// The calling thread: no other thread that runs has the number, nor is it 0. It is a multiple of 4.
#[inline(always)]
pub(crate) fn this_thread() -> usize {
    // SAFETY: it only says who calls.
    unsafe { libc::pthread_self() as usize }
}
