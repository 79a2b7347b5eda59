//! Whether an MPI knows the memory of devices.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use crate::process::Gate;
use crate::result;

/// Asks MPI's own functions, if it has them.
pub(super) fn knows_devices(_: &Gate) -> bool {
    type Query = unsafe extern "C" fn() -> c_int;
    type QueryKind = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;
    /// `MPIX_GPU_SUPPORT_CUDA` of MPICH.
    const CUDA: c_int = 0;
    if let Some(function) = find(c"MPIX_Query_cuda_support") {
        // SAFETY: the function of this name has this type, in all libraries that have it.
        let query = unsafe { std::mem::transmute::<NonNull<c_void>, Query>(function) };
        // SAFETY: MPI is up, by the gate.
        return unsafe { query() } == 1;
    }
    if let Some(function) = find(c"MPIX_GPU_query_support") {
        // SAFETY: as above.
        let query = unsafe { std::mem::transmute::<NonNull<c_void>, QueryKind>(function) };
        let mut known = 0;
        // SAFETY: as above, and a place for the answer.
        return unsafe { query(CUDA, &raw mut known) } == result::SUCCESS && known != 0;
    }
    false
}

fn find(name: &std::ffi::CStr) -> Option<NonNull<c_void>> {
    // SAFETY: a string; looks among the libraries that the program has.
    NonNull::new(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) })
}
