//! What fuzz targets call; nobody else should.

/// Anything that somebody sends to the desk: a request over HTTP, in pieces, and an envelope as it is.
pub fn desk(bytes: &[u8]) {
    if let Some(body) = crate::http::fuzzing::request(bytes) {
        crate::desk::fuzzing::envelope(&body);
    }
    crate::desk::fuzzing::envelope(bytes);
}

/// A gateway of another cluster that says anything, in frames of any kind.
///
/// # Panics
/// When more is held of it than may be.
pub fn gateway(bytes: &[u8]) {
    crate::grid::gateway(bytes);
}

#[cfg(test)]
mod tests {
    /// They begin where it is interesting.
    #[test]
    fn the_seeds_are_requests_and_envelopes() {
        for (name, seed) in [
            ("zeep", &include_bytes!("../../fuzz/seeds/desk/zeep")[..]),
            ("gsoap", include_bytes!("../../fuzz/seeds/desk/gsoap")),
            ("cxf", include_bytes!("../../fuzz/seeds/desk/cxf")),
        ] {
            assert!(crate::desk::fuzzing::envelope(seed), "{name}");
        }
        for (name, seed) in [
            ("chunks", &include_bytes!("../../fuzz/seeds/desk/chunks")[..]),
            ("length", include_bytes!("../../fuzz/seeds/desk/length")),
        ] {
            let body = crate::http::fuzzing::request(seed);
            assert!(body.is_some_and(|body| crate::desk::fuzzing::envelope(&body)), "{name}");
            super::desk(seed);
        }
        super::desk(include_bytes!("../../fuzz/seeds/desk/entities"));
    }
}
