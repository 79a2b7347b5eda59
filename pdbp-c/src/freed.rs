//! Handles on the heap, and their memory when they were freed: that of the last [`KEPT`] is not used for anything else, so that a program
//! that uses one by mistake, or frees it twice, is told so (`PDBP_E_HANDLE`).

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::{Mutex, TryLockError};

use crate::handle::Handle;

/// Freed handles whose memory is kept: as many as the header says.
const KEPT: usize = 64;

/// Memory that is kept, as something that gives it back when it is dropped.
type Kept = Box<dyn Send>;

static FREED: Mutex<VecDeque<Kept>> = Mutex::new(VecDeque::new());

/// Memory of a handle that has been moved out.
#[expect(dead_code, reason = "it is only dropped")]
struct Memory<T>(Box<MaybeUninit<T>>);

// SAFETY: nothing is in it.
unsafe impl<T> Send for Memory<T> {}

/// A handle on the heap, for C.
pub(crate) fn boxed<T: Handle>(handle: T) -> *mut T {
    Box::into_raw(Box::new(handle))
}

/// Ends a handle that [`boxed`] has made, and keeps its memory for a while.
///
/// # Safety
/// It has, and nobody uses it any more.
pub(crate) unsafe fn unboxed<T: Handle + 'static>(handle: NonNull<T>) -> T {
    // SAFETY: a handle that lives (contract).
    unsafe { handle.as_ref() }.header().free();
    // SAFETY: it is moved out, and what is left is only memory from here on, whose first word says so.
    let value = unsafe { handle.read() };
    // SAFETY: it was made by a box (contract), and may hold anything now.
    let memory = unsafe { Box::from_raw(handle.as_ptr().cast::<MaybeUninit<T>>()) };
    keep(Box::new(Memory(memory)));
    value
}

/// Keeps memory until so many others have been freed.
pub(crate) fn keep(memory: Kept) {
    let oldest = match FREED.try_lock() {
        Ok(mut freed) => {
            freed.push_back(memory);
            if freed.len() > KEPT { freed.pop_front() } else { None }
        }
        // Another thread is at it, or was when this process was forked: nobody is to wait for that.
        Err(TryLockError::WouldBlock | TryLockError::Poisoned(_)) => Some(memory),
    };
    drop(oldest);
}
