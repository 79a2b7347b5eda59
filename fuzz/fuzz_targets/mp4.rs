//! Arbitrary bytes as an ISO media file: what is made of it is bounded by its length, and is a stream that can be indexed or refused.
#![no_main]

use pdbp_fuzz::annexb::Index;
use pdbp_fuzz::mp4::{MOST_GROWTH, h264_tracks};

pdbp_fuzz::target!(|bytes: &[u8]| {
    let tracks: Vec<_> = match h264_tracks(bytes) {
        Ok(tracks) => tracks.into_iter().flatten().collect(),
        Err(refusal) => return assert!(!refusal.to_string().is_empty()),
    };
    assert!(!tracks.is_empty(), "nothing is left out without a word");
    let length: usize = tracks.iter().map(|track| track.stream.len()).sum();
    assert!(length <= MOST_GROWTH * bytes.len(), "{length} bytes of {}", bytes.len());
    for track in tracks {
        assert!(track.stream.is_empty() || track.stream.starts_with(&[0, 0, 0, 1]));
        let _ = Index::new(&track.stream);
    }
});
