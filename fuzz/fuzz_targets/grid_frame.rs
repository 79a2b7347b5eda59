//! A gateway of another cluster that says anything, in frames of any kind: no more is held of it than may be.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| pdbp::fuzzing::gateway(bytes));
