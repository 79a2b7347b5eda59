//! Packets that no program has asked for, from an endpoint of a RapidIO fabric whose members call something.
#![no_main]

pdbp_fuzz::target!(|bytes: &[u8]| pdbp_sim::rapidio::fuzzing::packets(bytes));
