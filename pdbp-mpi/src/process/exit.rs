//! What the C library calls when the process exits, however it does: by a return from `main`, by `exit` of C or Rust, or at the end of Python.

use super::end;

/// Has [`end`] called at the exit of this process.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(super) fn at_exit() {
    use std::ffi::{c_int, c_void};

    unsafe extern "C" {
        safe fn on_exit(call: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
    }
    extern "C" fn call(status: c_int, _: *mut c_void) {
        end(status);
    }
    // It fails only without memory; then MPI is not finalised.
    let _ = on_exit(call, std::ptr::null_mut());
}

/// Has [`end`] called at the exit of this process. The C library does not tell the status, so a process that fails finalises MPI as well, and
/// waits there for the others.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(super) fn at_exit() {
    extern "C" fn call() {
        end(0);
    }
    // SAFETY: a function of the right type, without captures, that may run at the end of the process.
    unsafe { libc::atexit(call) };
}
