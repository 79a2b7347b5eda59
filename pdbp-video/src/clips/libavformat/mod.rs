//! Videos in Matroska, MPEG transport streams and MP4 files that [`super::demux`] does not read, by libavformat, which is loaded on demand, as
//! libavcodec is ([`crate::decode`]).
//!
//! The best video track of a file is read whole and converted to an Annex B stream: in Matroska and MP4, NAL units follow their lengths, and
//! parameter sets are in a record (ISO/IEC 14496-15 §5.3.3.1, §8.3.3.1); transport streams need no conversion. Only files are opened, and only of
//! these formats: no playlist leads to a network.
//!
//! Versions 58 to 62 are accepted, those of FFmpeg 4 to 8; others are refused by name, since their `AVStream` has another layout. The tests have
//! run with 59 (Debian 12), 60, 61 and 62; for 58 only the header was checked. The library is never unloaded, and it runs in this process:
//! `--isolate` isolates decoders, not file readers.

mod sys;

use std::path::Path;
use std::sync::OnceLock;

use self::sys::{Api, File, Refusal, VERSIONS, Version};
use super::demux::{Record, boxes, is_mp4};
use crate::annexb::Standard;
use crate::decode::file_name;
use crate::decode::library::is_absence;

/// What to do without the library.
const ADVICE: &str =
    "install it (Debian 12: apt install libavformat59), or convert the file: ffmpeg -i FILE -c copy NEW.mp4";
/// The first bytes of a Matroska file, the ID of its header, and those of the segment, which is the rest of it (RFC 8794, RFC 9559).
const EBML: &[u8] = &[0x1a, 0x45, 0xdf, 0xa3];
const SEGMENT: &[u8] = &[0x18, 0x53, 0x80, 0x67];

/// The track of a file: its coding, and its record of parameter sets.
struct Track {
    standard: Standard,
    extra: Vec<u8>,
}

/// The part of a file that was read.
pub(super) struct Read {
    /// The best video track as an Annex B stream.
    pub(super) stream: Vec<u8>,
    /// Why reading ended before the file did.
    pub(super) broken: Option<String>,
}

/// Whether `data` begins like a Matroska file or a transport stream.
pub(super) fn is_container(data: &[u8]) -> bool {
    data.starts_with(EBML) || packets_of(data).is_some()
}

/// Bytes of a packet, if it is a transport stream: those of discs and cameras have a time stamp before each (`.mts`).
fn packets_of(data: &[u8]) -> Option<usize> {
    const SYNC: u8 = 0x47;
    [(188, 0), (192, 4)].into_iter().find_map(|(length, start)| {
        (0..3).all(|packet| data.get(packet * length + start) == Some(&SYNC)).then_some(length)
    })
}

/// Whether the file declares to be longer than `data`.
pub(super) fn is_cut_off(data: &[u8]) -> bool {
    if let Some(length) = packets_of(data) {
        return !data.len().is_multiple_of(length);
    }
    if is_mp4(data) {
        return boxes(data).last().is_some_and(|(_, is_whole)| !is_whole);
    }
    let segment = || {
        let (header, rest) = number(data.strip_prefix(EBML)?)?;
        let rest = rest.get(usize::try_from(header).ok()?..)?;
        let (length, rest) = number(rest.strip_prefix(SEGMENT)?)?;
        Some(length > rest.len() as u64)
    };
    segment().unwrap_or_default()
}

/// A number of variable length, and what follows; `None` if it stands for "unknown" or ends too early. (RFC 8794, section 4)
fn number(data: &[u8]) -> Option<(u64, &[u8])> {
    let length = data.first()?.leading_zeros() as usize + 1;
    let (bytes, rest) = data.split_at_checked(length).filter(|_| length <= 8)?;
    let unknown = (1 << (7 * length)) - 1;
    let value = bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)) & unknown;
    (value != unknown).then_some((value, rest))
}

/// The accepted version that matches a library's.
fn accepted(file: &str, major: u32) -> Result<Version, String> {
    VERSIONS.into_iter().find(|known| known.major == major).ok_or_else(|| {
        let (oldest, newest) = (VERSIONS[VERSIONS.len() - 1].major, VERSIONS[0].major);
        format!("{file} is libavformat {major}, but only versions {oldest} to {newest} (FFmpeg 4 to 8) are supported; {ADVICE}")
    })
}

/// The newest version that the system's loader finds; loaded once in a process.
fn library() -> Result<&'static Api, String> {
    static LIBRARY: OnceLock<Result<Api, String>> = OnceLock::new();
    LIBRARY.get_or_init(search).as_ref().map_err(Clone::clone)
}

fn search() -> Result<Api, String> {
    let names = VERSIONS.map(|version| file_name("avformat", version.major));
    let mut refused = None;
    for name in &names {
        match Api::open(name) {
            Ok(api) => return Ok(api),
            Err(Refusal::Unloadable(reason)) if is_absence(&reason) => {}
            // It exists, and its error says more than that others do not.
            Err(Refusal::Unloadable(reason)) => {
                refused = refused.or(Some(format!("{name}: {reason}; {ADVICE}")))
            }
            Err(Refusal::Other(reason)) => refused = refused.or(Some(reason)),
        }
    }
    Err(refused.unwrap_or_else(|| {
        format!(
            "only libavformat can read it, and it was not found (looked for {}); {ADVICE}",
            names.join(", ")
        )
    }))
}

/// The video of a file as an Annex B stream that is no longer than `most` bytes.
///
/// # Errors
/// Why nothing of it can be read.
pub(super) fn read(path: &Path, most: usize) -> Result<Read, String> {
    let mut file = File::open(library()?, path)?;
    let track = file.track()?;
    // A record begins with 1, a start code with 0.
    let record = match track.extra.first() {
        Some(1) => Some(
            Record::parse(track.standard, &track.extra)
                .ok_or("the parameter sets of its track are cut off")?,
        ),
        _ => None,
    };
    let mut stream = if record.is_none() { track.extra.clone() } else { Vec::new() };
    let read = file.packets(&mut |packet, is_key| {
        match &record {
            Some(record) => record.append(&mut stream, packet, is_key),
            None => stream.extend_from_slice(packet),
        }
        if stream.len() > most { Err("its video is longer than the file allows".to_owned()) } else { Ok(()) }
    });
    if stream.is_empty() {
        read?;
        return Err("its video track is empty".to_owned());
    }
    let broken = read.err().map(|reason| format!("{reason}; it was read up to there"));
    Ok(Read { stream, broken })
}

#[cfg(test)]
mod tests;
