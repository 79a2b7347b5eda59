//! Arbitrary packets to the reader of RTP, H.264 or H.265 as the first byte says, each behind its length; or arbitrary bytes as a session
//! description.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pdbp_fuzz::annexb::{Index, Standard};
use pdbp_fuzz::rtp::{Media, RtpReader, videos};

fuzz_target!(|bytes: &[u8]| {
    let Some((&kind, mut rest)) = bytes.split_first() else { return };
    let standard = match kind {
        0 => Standard::H264,
        1 => Standard::H265,
        _ => {
            if let Ok(videos) = videos(rest) {
                assert!(!videos.is_empty());
            }
            return;
        }
    };
    let mut reader = RtpReader::new(&Media { standard, payload_type: None, parameter_sets: Vec::new() });
    let mut waits_for_key = true;
    while let Some((length, tail)) = rest.split_first_chunk::<2>() {
        let (packet, tail) = tail.split_at(usize::from(u16::from_le_bytes(*length)).min(tail.len()));
        rest = tail;
        reader.push(packet, &mut |unit| match unit {
            Ok(unit) => {
                assert!(unit.bytes.starts_with(&[0, 0, 0, 1]) && unit.standard == standard);
                assert!(unit.is_key || !waits_for_key, "a picture that nothing can be decoded from");
                waits_for_key = false;
                let _ = Index::new(&unit.bytes);
            }
            Err(_) => waits_for_key = true,
        });
    }
});
