//! What a peer of a link over sockets says: frames with blocks as they are, packed, cut short, changed, and any bytes between them. What is
//! right comes out as it went in, and what is not is refused.
#![no_main]

pdbp_fuzz::target!(|bytes: &[u8]| pdbp_net::fuzzing::link(bytes));
