//! A gateway of another cluster that says anything, in frames of any kind: no more is held of it than may be.
#![no_main]

pdbp_fuzz::target!(|bytes: &[u8]| pdbp::fuzzing::gateway(bytes));
