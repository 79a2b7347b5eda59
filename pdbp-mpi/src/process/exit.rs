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
    // Unlike `atexit`, `on_exit` does not know whose function it calls: the library that it is in must stay.
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: an address, and room for what is said of it.
    if unsafe { libc::dladdr(call as *const c_void, info.as_mut_ptr()) } != 0 {
        // SAFETY: it has been written.
        let file = unsafe { info.assume_init() }.dli_fname;
        // SAFETY: the name of a library that is loaded; nothing else is opened.
        unsafe { libc::dlopen(file, libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE) };
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
