//! Two nodes on static memory send each other messages, one longer than a block, and a stream, without std and without a heap.
//!
//! ```text
//! ci/no-std                  # from the repository's root: builds it, runs it, looks at what it is linked with
//! ```
#![no_std]
#![no_main]

mod c;
mod node;
mod pair;

use core::ffi::{c_char, c_int};

/// Called by the C start-up code.
#[unsafe(no_mangle)]
pub extern "C" fn main(_: c_int, _: *const *const c_char) -> c_int {
    let done = pair::run() == Ok(true);
    c::print(pair::verdict(done));
    c_int::from(!done)
}
