//! Whether an MPI can access device memory.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;

use crate::library::{Opened, SUCCESS};
use crate::process::Gate;

/// Asks MPI's own query functions, if it has them.
pub(super) fn is_device_aware(gate: &Gate) -> bool {
    type Query = unsafe extern "C" fn() -> c_int;
    type QueryKind = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;
    /// `MPIX_GPU_SUPPORT_CUDA` of MPICH.
    const CUDA: c_int = 0;
    if let Some(function) = find(gate, c"MPIX_Query_cuda_support") {
        // SAFETY: the function of this name has this type, in all libraries that have it.
        let query = unsafe { std::mem::transmute::<NonNull<c_void>, Query>(function) };
        // SAFETY: MPI is up, by the gate.
        return unsafe { query() } == 1;
    }
    if let Some(function) = find(gate, c"MPIX_GPU_query_support") {
        // SAFETY: as above.
        let query = unsafe { std::mem::transmute::<NonNull<c_void>, QueryKind>(function) };
        let mut known = 0;
        // SAFETY: as above, and a place for the answer.
        return unsafe { query(CUDA, &raw mut known) } == SUCCESS && known != 0;
    }
    false
}

/// Finds a function of this name in the program, which may interpose on MPI, or else in MPI.
fn find(gate: &Gate, name: &CStr) -> Option<NonNull<c_void>> {
    NonNull::new(Opened::of_program().find(name)).or_else(|| NonNull::new(gate.mpi().find(name)))
}
