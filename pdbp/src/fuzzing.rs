//! Entry points for fuzz targets; not for anybody else.

/// Anything that a client sends to the desk: an HTTP request, in pieces, and an envelope as it is.
pub fn desk(bytes: &[u8]) {
    if let Some(body) = crate::http::fuzzing::request(bytes) {
        crate::desk::fuzzing::envelope(&body);
    }
    crate::desk::fuzzing::envelope(bytes);
}

/// A gateway of another cluster that sends anything, in frames of any kind.
///
/// # Panics
/// If it makes this end hold more than it may.
pub fn gateway(bytes: &[u8]) {
    crate::grid::gateway(bytes);
}

#[cfg(test)]
mod tests {
    /// They begin where it is interesting.
    #[test]
    fn the_seeds_are_requests_and_envelopes() {
        for (name, seed) in [
            ("zeep", &include_bytes!("../../fuzz/seeds/requests/zeep")[..]),
            ("gsoap", include_bytes!("../../fuzz/seeds/requests/gsoap")),
            ("cxf", include_bytes!("../../fuzz/seeds/requests/cxf")),
        ] {
            assert!(crate::desk::fuzzing::envelope(seed), "{name}");
        }
        for (name, seed) in [
            ("chunks", &include_bytes!("../../fuzz/seeds/requests/chunks")[..]),
            ("length", include_bytes!("../../fuzz/seeds/requests/length")),
        ] {
            let body = crate::http::fuzzing::request(seed);
            assert!(body.is_some_and(|body| crate::desk::fuzzing::envelope(&body)), "{name}");
            super::desk(seed);
        }
        super::desk(include_bytes!("../../fuzz/seeds/requests/entities"));
    }
}
