//! Strangers and peers that talk SOAP: heads, MIME and XML in pieces.
#![no_main]

pdbp_fuzz::target!(|bytes: &[u8]| {
    pdbp_net::fuzzing::soap(bytes);
});
