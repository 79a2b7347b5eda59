//! The C library `libpdbp`: parts of a cluster that send messages and streams to each other by name, for programs in C and C++.
//!
//! What the functions do, and what they promise, is in `include/pdbp.h` (with `pdbp_cuda.h` and `pdbp_mpi.h`), which is written by hand; tests compare it, `abi.txt` and what is
//! exported here. `include/pdbp.hpp` has most of it as classes for C++17. `ci/install-c PREFIX` installs library, header, and files for pkg-config and CMake; `examples` has programs.
//!
//! A function translates types, ownership and errors, and has no logic of its own: that is in [`pdbp`].
//!
//! # The map
//! * `call` has the macro that makes every exported function, with its checks of parameters; `handle` what C has pointers to, `freed` what is left of it; `status` the
//!   statuses, and what errors of the runtime become.
//! * `cluster` has versions, settings and clusters, `node` nodes, `part` parts, `message` what they receive, `stream` streams, `together` those that
//!   are read by one thread, `group` groups, `device` memory of CUDA devices (`pdbp_cuda.h`).
//!
//! # Shapes
//! Handles are pointers to opaque structs, each freed by a function of its own; they keep what they need, so that these are called in any
//! order. A message (64 bytes) and a batch (80) are the caller's memory, and hold their bytes where these arrived until they are
//! released; a message may be moved, not copied. A target (`uint64_t`) is a plain value. Structs that may grow begin with their size. All of
//! this is for targets of 64 bits.
//!
//! # Errors
//! A function returns a status: 0 is done, above is no error (it would block, timed out, was interrupted, the end), below is one.
//! `pdbp_error` has the text of the thread's last failure, with the value and what to do, and `pdbp_error_nodes` whom it waited for. A panic
//! is caught, and its handles refuse everything but to be freed. Pointers to handles of another kind are refused, and those of the
//! process that this one is a fork of. So is a handle that was freed, as long as no more than 63 others were freed since (`freed` keeps
//! the memory of 64); later that is as undefined as with `free` of C.
//!
//! # Threads
//! Clusters, nodes and settings may be used by any threads at the same time. A part and its streams belong to the thread that registered the part,
//! until it disowns it and another adopts it; there is no lock. Messages, batches and ends of streams may be released on any thread.
//!
//! # What is not here yet
//! `pdbp_send_all` has no time to wait of its own: who it did not reach could not be told. Many small messages from and to device
//! memory at a time, and streams of it, which [`pdbp`] has.
//!
//! # What a call costs
//! `cargo bench -p pdbp-benches --bench instructions_c` counts the instructions of a message that is sent, received and released beside those
//! in Rust, of a [`Part<Shared>`](pdbp::Shared); `--bench c_calls` the time (64 bytes, medians of three runs, with other work kept away by
//! `chrt -r 1`):
//!
//! | | C | Rust | C, ns | Rust, ns |
//! |---|---|---|---|---|
//! | one by one: `pdbp_send`, `pdbp_recv`, `pdbp_release` | **286** | 68 | **16.3** | 8.9 |
//! | received and released by 32 | **219** | 68 | **14.3** | 8.9 |
//! | trains of 100 | 27 | 27 | 1.5 | 1.5 |
//!
//! The aims are 40 instructions (4 ns) more than Rust one by one, and no more than Rust by 32: both are missed, and trains are the way to send many. Of the 218 more some 100 are of `pdbp_send`, 80 of `pdbp_recv`
//! and 35 of `pdbp_release`: checks of the handle and the thread, the frame that catches panics, and what is inlined in Rust and cannot be here.
//! A path of its own for messages that continue a train, ahead of everything else in `pdbp_send` and `pdbp_recv`, saved some 15 and 10: not kept.
#![cfg(target_pointer_width = "64")]

pub mod cluster;
pub mod device;
pub mod group;
pub mod message;
pub mod node;
pub mod part;
pub mod status;
pub mod stream;
pub mod together;

mod call;
mod freed;
mod handle;
#[cfg(test)]
mod tests;

pub use call::{Arg, Handle, Ret};
