//! Instruction counts per message of the C library against those of the same calls in Rust, by callgrind through gungraun; see `instructions.rs`.
//!
//! Every function handles 1000 messages of 64 bytes in steady state: sent, received, looked at and released one by one (`messages`), received by 32
//! (`by_32`), or as trains of 100 (`trains`). Sender and receiver are parts of two nodes on one thread, with progress by the parts. The C functions
//! are not inlined, since they are exported.

#![expect(missing_docs, reason = "the items are made by the harness's macros")]

mod c_parts;

use c_parts::{C, How, Rust};
use gungraun::prelude::*;

/// Parts that have exchanged messages already.
fn rust(how: How) -> (Rust, How) {
    let mut parts = Rust::new();
    (0..50).for_each(|_| parts.go(how));
    (parts, how)
}

/// As [`rust`].
fn c(how: How) -> (C, How) {
    let mut parts = C::new();
    (0..50).for_each(|_| parts.go(how));
    (parts, how)
}

#[library_benchmark]
#[bench::messages_1000(rust(How::Messages))]
#[bench::trains_1000(rust(How::Trains))]
fn of_rust((mut parts, how): (Rust, How)) -> Rust {
    parts.go(how);
    parts
}

#[library_benchmark]
#[bench::messages_1000(c(How::Messages))]
#[bench::by_32_1000(c(How::By32))]
#[bench::trains_1000(c(How::Trains))]
fn of_c((mut parts, how): (C, How)) -> C {
    parts.go(how);
    parts
}

library_benchmark_group!(name = libpdbp, benchmarks = [of_rust, of_c]);
main!(library_benchmark_groups = libpdbp);
