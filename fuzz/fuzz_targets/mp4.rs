//! Arbitrary bytes as a video file: what is made of it is bounded by its length.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use pdbp_video::clips;

fuzz_target!(|bytes: &[u8]| {
    let loaded = clips::read(Path::new("fuzz.mp4"), bytes.to_vec());
    assert!(!loaded.clips.is_empty() || !loaded.refused.is_empty(), "nothing is left out without a word");
    for clip in &loaded.clips {
        assert!(clip.data().len() <= clips::MOST_GROWTH * bytes.len(), "{} bytes of {}", clip.data().len(), bytes.len());
        assert!(!clip.index().entries.is_empty());
    }
    assert!(loaded.refused.iter().all(|error| error.to_string().contains("fuzz.mp4")));
});
