//! What somebody sends to the desk: requests over HTTP in pieces, and envelopes. What is taken is within the limits, and the same however it is
//! cut; the rest gets a fault.
#![no_main]

pdbp_fuzz::target!(|bytes: &[u8]| pdbp::fuzzing::desk(bytes));
