//! The end of a process that a launcher has started as one of several: if it fails, it must not finalise MPI, since it and the others would then wait
//! for each other. The launcher ends the job once it has exited.
//!
//! Python tells nobody with which status it exits, by an exception or by `SystemExit`; the C library of GNU does. Where mpi4py has initialised MPI, it
//! finalises it before that: there `python -m mpi4py` ends the job.
#![allow(unsafe_code, reason = "functions of the C library")]

use std::ffi::{c_int, c_void};
use std::ptr;

unsafe extern "C" {
    safe fn on_exit(call: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
    fn fflush(file: *mut c_void) -> c_int;
    safe fn _exit(status: c_int) -> !;
}

/// Called at the end of the interpreter: after everything that wants to be called at the end of the process, so that this is called first.
pub(crate) fn skip_the_rest_on_failure() {
    if pdbp::Launch::find().is_some_and(|launch| launch.ranks > 1) {
        // It fails if there is no memory; then the process may hang.
        let _ = on_exit(end, ptr::null_mut());
    }
}

extern "C" fn end(status: c_int, _: *mut c_void) {
    // What others see of it.
    if status & 0xff != 0 {
        // SAFETY: null means all files.
        unsafe { fflush(ptr::null_mut()) };
        _exit(status);
    }
}
