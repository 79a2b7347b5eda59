//! The two nodes on an emulated Cortex-M4 without an operating system: ci/no-std runs it under qemu-system-arm. It speaks to the emulator by
//! semihosting, as it would to a debugger.
#![no_std]
#![no_main]

mod node;
mod pair;

use core::arch::asm;

/// Semihosting: write a string that ends with 0.
const WRITE: u32 = 0x04;
/// Semihosting: end the program, for this reason. The status of the emulator is 0 for the first, and 1 for any other.
const EXIT: u32 = 0x18;
const DONE: usize = 0x2_0026;
const FAILED: usize = 0x2_0023;

type Handler = unsafe extern "C" fn() -> !;

/// What the processor looks up behind the first stack pointer, which the linker script puts before it: where to begin, and where to go on
/// after each of the faults.
#[unsafe(link_section = ".vectors")]
#[used]
static VECTORS: [Handler; 15] =
    [reset, fail, fail, fail, fail, fail, fail, fail, fail, fail, fail, fail, fail, fail, fail];

fn call(operation: u32, argument: usize) {
    // SAFETY: the emulator reads what the argument names, and answers in the first register.
    unsafe { asm!("bkpt 0xab", inout("r0") operation => _, in("r1") argument, options(nostack)) }
}

fn print(text: &str) {
    for byte in text.bytes() {
        let text = [byte, 0];
        call(WRITE, text.as_ptr().expose_provenance());
    }
}

fn exit(reason: usize) -> ! {
    loop {
        call(EXIT, reason);
    }
}

/// The emulator has loaded everything to where it belongs, and all other memory is zero.
#[unsafe(no_mangle)]
unsafe extern "C" fn reset() -> ! {
    let done = pair::run() == Ok(true);
    print(pair::verdict(done));
    exit(if done { DONE } else { FAILED })
}

unsafe extern "C" fn fail() -> ! {
    print("no-std-check: fault\n");
    exit(FAILED)
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    print("no-std-check: panic\n");
    exit(FAILED)
}
