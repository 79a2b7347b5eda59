//! Two ends of a link whose connections are cut, replaced and given up at any time: what was sent arrives once and in order, or comes back.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| pdbp_net::fuzzing::link_of_two(bytes));
