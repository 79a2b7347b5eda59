//! What the program has from the C library.

use core::ffi::{c_int, c_void};

#[link(name = "c")]
unsafe extern "C" {
    fn write(file: c_int, bytes: *const c_void, length: usize) -> isize;
    fn abort() -> !;
}

pub fn print(text: &str) {
    // SAFETY: address and length of a string; 1 is the standard output.
    unsafe { write(1, text.as_ptr().cast(), text.len()) };
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    print("no-std-check: panic\n");
    // SAFETY: takes nothing, and does not return.
    unsafe { abort() }
}

/// The pre-compiled `core` names this symbol in its unwind tables. Nothing unwinds here: panics abort.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
