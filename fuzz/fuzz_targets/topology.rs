//! Texts that say which switches and links a RapidIO fabric has.
#![no_main]

pdbp_fuzz::target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        pdbp_sim::rapidio::fuzzing::topology(text);
    }
});
