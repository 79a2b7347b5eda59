//! H.264 tracks of ISO media files, converted to Annex B.
//!
//! `mp4parse` (Mozilla's, fuzzed for a browser) reads the boxes. In the file, parameter sets stand in the `avcC` box and
//! every NAL unit is preceded by its length (ISO/IEC 14496-15 §5.3); an Annex B stream has start codes instead, and the
//! parameter sets before each key frame.
//!
//! Work is bounded by the length of the file, whatever its tables say and however many tracks it has: samples are taken only while they lie inside
//! the file; all tracks together give at most as many samples as the file has bytes, and at most [`MOST_GROWTH`] bytes for each of its bytes.
//!
//! It depends only on [`crate::annexb`], so that a fuzz target can compile it alone.

use std::collections::BTreeSet;

use mp4parse::{CodecType, SampleEntry, SampleToChunk, Track, TrackType, VideoCodecSpecific};

use crate::annexb::Standard;

const START_CODE: [u8; 4] = [0, 0, 0, 1];
/// How many times as long as the file its streams together may become, by start codes and by parameter sets before every key picture; a file that
/// exceeds this is not video, but made to fill memory.
pub const MOST_GROWTH: usize = 64;

/// Whether `data` begins like an ISO media file.
pub fn is_mp4(data: &[u8]) -> bool {
    matches!(data.get(4..8), Some(b"ftyp" | b"moov" | b"mdat" | b"free" | b"wide" | b"skip" | b"styp"))
}

/// The types of the boxes of a file, in order, and whether each ends within `data`, as all but the last do (ISO/IEC 14496-12 §4.2).
pub(super) fn boxes(mut data: &[u8]) -> impl Iterator<Item = (&[u8], bool)> {
    core::iter::from_fn(move || {
        data.first()?;
        let length = match data.first_chunk().map(|short| u32::from_be_bytes(*short)) {
            Some(0) => Some(data.len() as u64), // to the end of the file
            Some(1) => data.get(8..16).and_then(|long| long.try_into().ok()).map(u64::from_be_bytes),
            length => length.map(u64::from),
        };
        let length = length.filter(|length| *length >= 8).and_then(|length| usize::try_from(length).ok());
        let rest = length.and_then(|length| data.get(length..));
        let kind = data.get(4..8).unwrap_or_default();
        data = rest.unwrap_or_default();
        Some((kind, rest.is_some()))
    })
}

/// Why a file gives no stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// It cannot be read, for this reason.
    #[error("damaged MP4: {0}")]
    Damaged(String),
    /// It has no H.264 track, but these.
    #[error("no H.264 track (found: {0})")]
    NoH264Track(String),
}

/// A track of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct H264Track {
    /// Its number in the file.
    pub number: u32,
    /// Its Annex B stream.
    pub stream: Vec<u8>,
    /// Whether all of its samples lie within the file.
    pub is_whole: bool,
}

/// A track without a stream. The others of its file can be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("track {number}: {reason}")]
pub struct DamagedTrack {
    /// Its number in the file.
    pub number: u32,
    /// Why.
    pub reason: &'static str,
}

/// Every H.264 track of a file with these contents; at least one that can be read.
///
/// # Errors
/// [`Refusal`] if there is none, or none that can be read.
pub fn h264_tracks(data: &[u8]) -> Result<Vec<Result<H264Track, DamagedTrack>>, Refusal> {
    let damaged = Refusal::Damaged;
    let mut reader = data;
    let context = mp4parse::read_mp4(&mut reader).map_err(|error| damaged(reason(&error)))?;
    let mut streams = Vec::new();
    let mut found = Vec::new();
    // The budget for the tracks that follow.
    let (mut samples_left, mut bytes_left) = (data.len(), data.len().saturating_mul(MOST_GROWTH));
    for track in context.tracks.iter() {
        let Some(config) = avc_config(track) else {
            found.push(kind(track));
            continue;
        };
        let number = track.track_id.unwrap_or_default();
        let Some(config) = Record::parse(Standard::H264, config) else {
            streams.push(Err(DamagedTrack { number, reason: "the avcC box is cut off" }));
            continue;
        };
        let (samples, is_whole) = samples(data, track, samples_left);
        samples_left -= samples.len();
        let sync: Option<BTreeSet<u32>> =
            track.stss.as_ref().map(|stss| stss.samples.iter().copied().collect());
        let stream = annex_b(&samples, sync.as_ref(), &config, bytes_left).ok_or_else(|| {
            damaged(format!(
                "its tracks and parameter sets would grow each byte to more than {MOST_GROWTH} bytes"
            ))
        })?;
        bytes_left -= stream.len();
        streams.push(Ok(H264Track { number, stream, is_whole }));
    }
    if let Some(Err(first)) = streams.first().filter(|_| streams.iter().all(Result::is_err)) {
        return Err(damaged(first.to_string()));
    }
    if streams.is_empty() {
        let found = if found.is_empty() { "no track at all".into() } else { found.join(", ") };
        return Err(Refusal::NoH264Track(found));
    }
    // The tables may have the first fragment.
    let has_fragments = || boxes(data).any(|(kind, _)| kind == b"moof");
    let is_empty = || streams.iter().flatten().all(|track| track.stream.is_empty());
    if context.mvex.is_some() && (has_fragments() || is_empty()) {
        return Err(damaged("it is fragmented: its samples are not in one table".into()));
    }
    Ok(streams)
}

/// Why a file cannot be read: a recording that was not ended has no index (moov box), or has lost its end.
fn reason(error: &mp4parse::Error) -> String {
    match error {
        mp4parse::Error::MoovMissing => "it has no moov box; was it written to its end?".into(),
        mp4parse::Error::UnexpectedEOF
        | mp4parse::Error::InvalidData(mp4parse::Status::CheckParserStateErr) => {
            "it ends within a box; was it written, or copied, to its end?".into()
        }
        other => other.to_string(),
    }
}

/// The kind of a track, and its codec as far as the reader of the file knows it.
fn kind(track: &Track) -> String {
    let kind = format!("{:?}", track.track_type).to_lowercase();
    let entries = track.stsd.iter().flat_map(|stsd| stsd.descriptions.iter());
    let mut codecs = entries.filter_map(|entry| match entry {
        SampleEntry::Audio(audio) => Some(audio.codec_type),
        SampleEntry::Video(video) => Some(video.codec_type),
        SampleEntry::Unknown => None,
    });
    match codecs.find(|codec| *codec != CodecType::Unknown) {
        Some(codec) => format!("{kind} ({codec:?})"),
        None => kind,
    }
}

/// The avcC box of an H.264 track.
fn avc_config(track: &Track) -> Option<&[u8]> {
    let descriptions = &track.stsd.as_ref().filter(|_| track.track_type == TrackType::Video)?.descriptions;
    descriptions.iter().find_map(|entry| match entry {
        SampleEntry::Video(video) => match &video.codec_specific {
            VideoCodecSpecific::AVCConfig(config) => Some(config.as_slice()),
            _ => None,
        },
        _ => None,
    })
}

/// The part of an `AVCDecoderConfigurationRecord` or `HEVCDecoderConfigurationRecord` (ISO/IEC 14496-15 §5.3.3.1, §8.3.3.1) that is needed.
pub(super) struct Record<'a> {
    length_bytes: usize,
    parameter_sets: Vec<&'a [u8]>,
}

impl<'a> Record<'a> {
    pub(super) fn parse(standard: Standard, bytes: &'a [u8]) -> Option<Self> {
        match standard {
            Standard::H264 => Self::parse_h264(bytes),
            Standard::H265 => Self::parse_h265(bytes),
        }
    }

    fn parse_h264(bytes: &'a [u8]) -> Option<Self> {
        let (head, mut rest) = bytes.split_first_chunk::<5>()?;
        let mut parameter_sets = Vec::new();
        for mask in [0x1f, 0xff] {
            let (count, tail) = rest.split_first()?;
            rest = take_sets(tail, (count & mask).into(), &mut parameter_sets)?;
        }
        Some(Self { length_bytes: usize::from(head[4] & 3) + 1, parameter_sets })
    }

    fn parse_h265(bytes: &'a [u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<22>()?;
        let (arrays, mut rest) = rest.split_first()?;
        let mut parameter_sets = Vec::new();
        for _ in 0..*arrays {
            let ([_, high, low], tail) = rest.split_first_chunk::<3>()?;
            rest = take_sets(tail, u16::from_be_bytes([*high, *low]), &mut parameter_sets)?;
        }
        Some(Self { length_bytes: usize::from(head[21] & 3) + 1, parameter_sets })
    }

    /// Appends a picture, whose NAL units follow their lengths, preceded by the parameter sets if decoding can begin there.
    pub(super) fn append(&self, out: &mut Vec<u8>, sample: &[u8], is_key: bool) {
        if out.is_empty() || is_key {
            for set in &self.parameter_sets {
                push_nal(out, set);
            }
        }
        let mut rest = sample;
        while let Some((prefix, tail)) = rest.split_at_checked(self.length_bytes) {
            let length = prefix.iter().fold(0, |length, byte| (length << 8) | usize::from(*byte));
            let (nal, tail) = tail.split_at(length.min(tail.len()));
            push_nal(out, nal);
            rest = tail;
        }
    }
}

/// Takes this many parameter sets, each preceded by its length.
fn take_sets<'a>(mut rest: &'a [u8], count: u16, sets: &mut Vec<&'a [u8]>) -> Option<&'a [u8]> {
    for _ in 0..count {
        let (length, tail) = rest.split_first_chunk::<2>()?;
        let (set, tail) = tail.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
        sets.push(set);
        rest = tail;
    }
    Some(rest)
}

/// The stream; `None` if it becomes longer than `most` bytes.
fn annex_b(
    samples: &[&[u8]],
    sync: Option<&BTreeSet<u32>>,
    config: &Record<'_>,
    most: usize,
) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    for (number, sample) in (1u32..).zip(samples) {
        config.append(&mut out, sample, sync.is_none_or(|sync| sync.contains(&number)));
        if out.len() > most {
            return None;
        }
    }
    Some(out)
}

fn push_nal(out: &mut Vec<u8>, nal: &[u8]) {
    if !nal.is_empty() {
        out.extend_from_slice(&START_CODE);
        out.extend_from_slice(nal);
    }
}

/// The samples of a track in order, from its chunk and size tables (ISO/IEC 14496-12 §8.7), up to the first that lies outside the file, or exceeds
/// `most`; and whether all were taken.
fn samples<'a>(data: &'a [u8], track: &Track, most: usize) -> (Vec<&'a [u8]>, bool) {
    let (Some(chunks), Some(runs), Some(sizes)) = (&track.stco, &track.stsc, &track.stsz) else {
        return (Vec::new(), true);
    };
    let mut samples = Vec::new();
    let mut next_sizes = sizes.sample_sizes.iter();
    for (chunk, offset) in (1u32..).zip(chunks.offsets.iter()) {
        let mut position = usize::try_from(*offset).unwrap_or(usize::MAX);
        for _ in 0..samples_per_chunk(&runs.samples, chunk) {
            let size = if sizes.sample_size > 0 { Some(&sizes.sample_size) } else { next_sizes.next() };
            // Some writers count more samples in their chunks than exist.
            let Some(size) = size else { return (samples, true) };
            let end = usize::try_from(*size).ok().and_then(|size| position.checked_add(size));
            let sample = end.and_then(|end| data.get(position..end));
            let Some(sample) = sample.filter(|_| samples.len() < most) else { return (samples, false) };
            samples.push(sample);
            position += sample.len();
        }
    }
    (samples, true)
}

/// Samples in chunk `chunk` (counted from 1): each run of chunks lasts until the next one begins.
fn samples_per_chunk(runs: &[SampleToChunk], chunk: u32) -> u32 {
    let after = runs.partition_point(|run| run.first_chunk <= chunk);
    after.checked_sub(1).and_then(|run| runs.get(run)).map_or(0, |run| run.samples_per_chunk)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_whose_parameter_sets_would_fill_the_memory_is_refused() {
        let set = [0x67; 60_000];
        let config = Record { length_bytes: 4, parameter_sets: vec![&set; 31] };
        let samples = vec![&[][..]; 10_000];
        assert!(annex_b(&samples, None, &config, 64 * 2_000_000).is_none());
        // Only where a key picture needs them, they are as they should be.
        let none = BTreeSet::new();
        assert_eq!(
            annex_b(&samples, Some(&none), &config, usize::MAX).map(|stream| stream.len()),
            Some(31 * 60_004)
        );
    }

    fn atom(name: &str, parts: &[&[u8]]) -> Vec<u8> {
        let content = parts.concat();
        let length = u32::try_from(content.len() + 8).unwrap().to_be_bytes();
        [&length[..], name.as_bytes(), &content].concat()
    }

    fn numbers(numbers: &[u32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
    }

    /// A track of `count` samples of a byte each, with a parameter set of that length before each of them.
    fn track(number: u32, count: u32, set: usize) -> Vec<u8> {
        let head = [1, 66, 0, 30, 0xff, 0xe1];
        let length = u16::try_from(set).unwrap().to_be_bytes();
        track_with(number, count, &[&head, &length, &vec![0x67; set], &[0]])
    }

    /// The same with these bytes in its `avcC` box.
    fn track_with(number: u32, count: u32, config: &[&[u8]]) -> Vec<u8> {
        track_of(number, count, "avc1", &atom("avcC", config))
    }

    /// The same with another codec and its box.
    fn track_of(number: u32, count: u32, codec: &str, config: &[u8]) -> Vec<u8> {
        let entry = atom(codec, &[&[0; 6], &[0, 1], &[0; 16], &[0, 16, 0, 16], &[0; 50], config]);
        let tables = [
            atom("stsd", &[&numbers(&[0, 1]), &entry]),
            atom("stts", &[&numbers(&[0, 1, count, 1])]),
            atom("stsc", &[&numbers(&[0, 1, 1, count, 1])]),
            atom("stsz", &[&numbers(&[0, 1, count])]),
            atom("stco", &[&numbers(&[0, 1, PLACE])]),
        ];
        let header = atom("tkhd", &[&numbers(&[3, 0, 0, number, 0, 1]), &[0; 60]]);
        let handler = atom("hdlr", &[&numbers(&[0, 0]), b"vide", &[0; 13]]);
        let media = atom("mdhd", &[&numbers(&[0, 0, 0, 1000, count, 0])]);
        let table = atom("minf", &[&atom("stbl", &[&tables.concat()])]);
        atom("trak", &[&header, &atom("mdia", &[&media, &handler, &table])])
    }

    fn file(tracks: &[Vec<u8>]) -> Vec<u8> {
        let start = atom("ftyp", &[b"isom", &[0; 4], b"isom"]);
        let header = atom("mvhd", &[&numbers(&[0, 0, 0, 1000, 0]), &[0; 80]]);
        [start, atom("mdat", &[&[0, 0, 0, 0]]), atom("moov", &[&header, &tracks.concat()])].concat()
    }

    /// Where in `file` the samples of all tracks begin.
    const PLACE: u32 = 20 + 8;

    #[test]
    fn a_file_without_h264_says_what_it_has() {
        let config = atom("vpcC", &[&[1, 0, 0, 0], &[0, 10, 0x82, 1, 1, 1, 0, 0]]);
        let refused = |tracks: &[Vec<u8>]| h264_tracks(&file(tracks)).unwrap_err().to_string();
        assert_eq!(refused(&[track_of(1, 4, "vp09", &config)]), "no H.264 track (found: video (VP9))");
        assert_eq!(refused(&[track_of(1, 4, "abcd", &[])]), "no H.264 track (found: video)");
        assert_eq!(refused(&[]), "no H.264 track (found: no track at all)");
    }

    /// Each of them stays below what is allowed for one.
    #[test]
    fn a_file_of_many_tracks_gives_no_more_bytes_than_one_with_one() {
        let tracks = |count| -> Vec<_> { (1..=40).map(|number| track(number, count, 500)).collect() };
        let read = |data: &[u8]| {
            let lengths = |tracks: Vec<Result<H264Track, _>>| {
                tracks.into_iter().flatten().map(|track| track.stream.len()).sum::<usize>()
            };
            h264_tracks(data).map(lengths)
        };
        assert_eq!(read(&file(&tracks(100)[..1])), Ok(100 * 504));
        assert_eq!(read(&file(&tracks(100))), Ok(40 * 100 * 504));
        let data = file(&tracks(1_000));
        assert!(1_000 * 504 < MOST_GROWTH * data.len() && 40 * 1_000 * 504 > MOST_GROWTH * data.len());
        let refusal = read(&data).unwrap_err().to_string();
        assert!(refusal.contains("more than 64 bytes"), "{refusal}");
        // Nor more samples than bytes, though each track has less of them.
        let data = file(&(1..=40).map(|number| track(number, 10_000, 1)).collect::<Vec<_>>());
        let found = h264_tracks(&data).unwrap();
        let is_whole = |at: usize| found[at].as_ref().unwrap().is_whole;
        assert!(is_whole(0) && !is_whole(39), "{} bytes", data.len());
    }

    #[test]
    fn the_other_tracks_of_a_file_with_a_damaged_one_can_be_read() {
        let damaged = track_with(2, 4, &[&[1, 66, 0, 30, 0xff, 0xe1, 0, 9, 0x67]]);
        let found = h264_tracks(&file(&[track(1, 4, 5), damaged.clone(), track(3, 4, 5)])).unwrap();
        let numbers: Vec<_> = found
            .iter()
            .map(|track| track.as_ref().map(|track| track.number).map_err(|track| track.number))
            .collect();
        assert_eq!(numbers, [Ok(1), Err(2), Ok(3)]);
        let refusal = h264_tracks(&file(&[damaged])).unwrap_err().to_string();
        assert_eq!(refusal, "damaged MP4: track 2: the avcC box is cut off");
    }

    /// What followed the first fragment was left out without a word.
    #[test]
    fn a_file_with_fragments_is_refused_also_if_its_tables_have_the_first() {
        let extends = atom("mvex", &[&atom("trex", &[&numbers(&[0, 1, 1, 0, 0, 0])])]);
        let tables = file(&[track(1, 4, 5), extends.clone()]);
        assert!(h264_tracks(&tables).is_ok());
        for file in [[tables, atom("moof", &[])].concat(), file(&[track(1, 0, 5), extends])] {
            let refusal = h264_tracks(&file).unwrap_err().to_string();
            assert!(refusal.contains("it is fragmented"), "{refusal}");
        }
    }

    #[test]
    fn a_file_without_its_end_or_its_index_says_so() {
        let whole = file(&[track(1, 4, 5)]);
        let read = |data: &[u8]| h264_tracks(data).unwrap_err().to_string();
        for cut in [PLACE as usize + 2, whole.len() - 1] {
            assert_eq!(
                read(&whole[..cut]),
                "damaged MP4: it ends within a box; was it written, or copied, to its end?"
            );
        }
        let refusal = read(&atom("ftyp", &[b"isom", &[0; 4]]));
        assert_eq!(refusal, "damaged MP4: it has no moov box; was it written to its end?");
    }
}
