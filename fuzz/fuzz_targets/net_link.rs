//! Two ends of a link whose connections are cut, replaced and given up at any time: what was sent arrives once and in order, or comes back.
#![no_main]

pdbp_fuzz::target!(|bytes: &[u8]| pdbp_net::fuzzing::link_of_two(bytes));
