//! Videos in Matroska, MPEG transport streams and MP4 files that [`super::demux`] does not read, by libavformat, which is loaded when it is asked for,
//! as libavcodec is ([`crate::decode`]).
//!
//! The best video track of a file is read whole and becomes an Annex B stream: in Matroska and MP4 NAL units stand behind their lengths, and
//! parameter sets in a record (ISO/IEC 14496-15 §5.3.3.1, §8.3.3.1); in transport streams all is as it should be. Only files are opened, and only of
//! such formats: no playlist leads to a network.
//!
//! Version 59 is accepted, that of FFmpeg 5 and Debian 12; others are refused by name, since fields of `AVStream` lie elsewhere in them.

mod sys;

use std::path::Path;
use std::sync::OnceLock;

use super::demux::Record;
use crate::annexb::Standard;

/// The track of a file: how it is coded, and its record of parameter sets.
struct Track {
    standard: Standard,
    extra: Vec<u8>,
}

/// Bytes by which files of such formats are known.
pub(super) fn is_container(data: &[u8]) -> bool {
    const PACKET: usize = 188;
    let is_stream = || (0..3).all(|packet| data.get(packet * PACKET) == Some(&0x47));
    data.starts_with(&[0x1a, 0x45, 0xdf, 0xa3]) || is_stream()
}

/// The video of a file as an Annex B stream that is no longer than `most` bytes.
///
/// # Errors
/// Why it cannot be read.
pub(super) fn stream(path: &Path, most: usize) -> Result<Vec<u8>, String> {
    static LIBRARY: OnceLock<Result<sys::Api, String>> = OnceLock::new();
    let api = LIBRARY.get_or_init(sys::Api::find).as_ref().map_err(Clone::clone)?;
    let mut file = sys::File::open(api, path)?;
    let track = file.track()?;
    // A record begins with 1, a start code with 0.
    let record = match track.extra.first() {
        Some(1) => Some(
            Record::parse(track.standard, &track.extra)
                .ok_or("the parameter sets of its track are cut off")?,
        ),
        _ => None,
    };
    let mut out = Vec::new();
    if record.is_none() {
        out.extend_from_slice(&track.extra);
    }
    file.packets(&mut |packet, is_key| {
        match &record {
            Some(record) => record.append(&mut out, packet, is_key),
            None => out.extend_from_slice(packet),
        }
        if out.len() > most { Err("its video is longer than the file".to_owned()) } else { Ok(()) }
    })?;
    if out.is_empty() { Err("its video track is empty".to_owned()) } else { Ok(out) }
}
