//! Arbitrary packets to the reader of RTP, H.264 or H.265 as the first byte says, each behind its length; or arbitrary bytes as a session
//! description.
#![no_main]

use std::time::Duration;

use pdbp_fuzz::annexb::{Index, Standard};
use pdbp_fuzz::rtp::{Media, RtpReader, Unit, videos};

pdbp_fuzz::target!(|bytes: &[u8]| {
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
    let mut now = Duration::ZERO;
    while let Some((length, tail)) = rest.split_first_chunk::<2>() {
        let (packet, tail) = tail.split_at(usize::from(u16::from_le_bytes(*length)).min(tail.len()));
        rest = tail;
        // Time goes on by what a length says, too.
        now += Duration::from_millis(u64::from(length[1]));
        let mut take = |unit: Unit| match unit {
            Ok(unit) => {
                assert!(unit.bytes.starts_with(&[0, 0, 0, 1]) && unit.standard == standard);
                assert!(unit.is_key || !waits_for_key, "a picture that nothing can be decoded from");
                waits_for_key = false;
                let _ = Index::new(&unit.bytes);
            }
            Err(_) => waits_for_key = true,
        };
        reader.expire(now, &mut take);
        reader.push(packet, now, &mut take);
        assert!(reader.held() < 64 << 20, "{} bytes", reader.held());
    }
});
