//! H.265, by libavcodec: its pictures are those that x265 reconstructed (`streams/make`), in every way in which they are decoded.
//!
//! Skipped without libavcodec; `REQUIRE_LIBAV` in the environment makes that an error.

use std::process::{Command, Output};

use pdbp_video::annexb::{PictureSize, Standard};
use pdbp_video::clips::{BUNDLED, Clip};
use pdbp_video::decode::{Codec, DecodeError, Follower, Sampler, Wanted, Yuv, whole};

/// Streams with their pictures, the hash of what x265 says they look like, and where decoding can begin.
const STREAMS: [(&str, usize, u64, &[u32]); 5] = [
    ("hevc_closed_gop", 30, 0xa86c82ea6a73805e, &[0, 12, 24]),
    // Pictures that come after the later key frames refer to some before them.
    ("hevc_open_gop", 30, 0x23cddba083b0f6b2, &[0]),
    // Later key frames are CRA pictures, which may continue what comes before them.
    ("hevc_cra", 30, 0x71e7f453bcf7f57a, &[0, 12, 24]),
    ("hevc_repeated_headers", 30, 0xed14bc7e4f185258, &[0, 12, 24]),
    ("hevc_cropped", 16, 0xb0f4d6c892684420, &[0, 12]),
];

/// Streams that are not decoded, and words of the reason.
const REFUSED: [(&str, &str); 3] = [
    ("hevc_ten_bits", "4:2:0 with 10 bits"),
    ("hevc_chroma_422", "4:2:2 with 8 bits"),
    ("hevc_interlaced", "interlaced"),
];

fn path(name: &str) -> String {
    format!("{}/tests/streams/{name}.265", env!("CARGO_MANIFEST_DIR"))
}

fn clip(name: &str) -> Result<Clip, String> {
    Clip::new(name, std::fs::read(path(name)).unwrap()).map_err(|error| error.to_string())
}

fn libav() -> Option<Codec> {
    match Codec::choose(&Wanted::Libav) {
        Ok(codec) => Some(codec),
        Err(error) if std::env::var_os("REQUIRE_LIBAV").is_some() => panic!("{error}"),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

/// What decodes H.265: libavcodec, and NVDEC where there is a device, or in `ci/cuda` what stands in for one.
fn codecs() -> Vec<Codec> {
    let nvdec = Codec::choose(&Wanted::Nvdec).map_err(|error| eprintln!("NVDEC: skipped: {error}"));
    libav().into_iter().chain(nvdec).filter(|codec| codec.decodes(Standard::H265)).collect()
}

/// The planes, one after the other.
fn planes(picture: &Yuv<'_>) -> Vec<u8> {
    let PictureSize { width, height } = picture.size();
    let luma = usize::from(width) * usize::from(height);
    let chroma = usize::from(width.div_ceil(2)) * usize::from(height.div_ceil(2));
    let mut out = vec![0; luma + 2 * chroma];
    let (y, rest) = out.split_at_mut(luma);
    let (u, v) = rest.split_at_mut(chroma);
    picture.copy_planes(y, u, v);
    out
}

/// Whether pictures of that size are decoded: devices want some that are larger than the smallest here, and are refused by name.
fn is_decoded(codec: Codec, clip: &Clip) -> bool {
    match whole(codec, clip, |_| ()) {
        Err(DecodeError::NoDecoder { reason }) if codec.is_nvdec() && reason.contains("decodes H.265 of") => {
            eprintln!("{}: skipped: {reason}", clip.name());
            false
        }
        _ => true,
    }
}

fn pictures(codec: Codec, clip: &Clip) -> Vec<Vec<u8>> {
    let mut pictures = Vec::new();
    whole(codec, clip, |picture| pictures.push(planes(picture))).unwrap();
    pictures
}

/// FNV-1a.
fn hash<'a>(bytes: impl IntoIterator<Item = &'a u8>) -> u64 {
    bytes
        .into_iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[test]
fn streams_are_told_from_h264_and_indexed() {
    for (name, number, _, entries) in STREAMS {
        let clip = clip(name).unwrap();
        assert_eq!((clip.standard(), clip.index().pictures.len()), (Standard::H265, number), "{name}");
        let found: Vec<_> = clip.index().entries.iter().map(|entry| entry.picture).collect();
        assert_eq!(found, entries, "{name}");
    }
    // Two slices make one picture.
    assert_eq!(clip("hevc_slices").unwrap().index().pictures.len(), 14);
    assert_eq!(clip("hevc_cropped").unwrap().size(), PictureSize { width: 170, height: 98 });
    assert!(BUNDLED.iter().all(|clip| Clip::new(clip.name, clip.data).unwrap().standard() == Standard::H264));
    for (name, words) in REFUSED {
        let error = clip(name).unwrap_err();
        assert!(error.contains(name) && error.contains(words), "{error}");
    }
}

#[test]
fn every_picture_is_the_one_that_the_encoder_reconstructed() {
    for codec in codecs() {
        for (name, number, expected, _) in STREAMS {
            let clip = clip(name).unwrap();
            if !is_decoded(codec, &clip) {
                continue;
            }
            let pictures = pictures(codec, &clip);
            let got = (pictures.len(), hash(pictures.iter().flatten()));
            assert_eq!(got, (number, expected), "{name}, {codec}");
        }
    }
}

#[test]
fn entry_points_by_turns_with_h264_and_every_picture_in_order_are_the_same_pictures() {
    codecs().into_iter().for_each(entry_points_and_every_picture_of);
}

fn entry_points_and_every_picture_of(codec: Codec) {
    let other = Clip::new(BUNDLED[0].name, BUNDLED[0].data).unwrap();
    let mut sampler = Sampler::new(codec);
    for (name, number, ..) in STREAMS {
        let clip = clip(name).unwrap();
        if !is_decoded(codec, &clip) {
            continue;
        }
        let expected = pictures(codec, &clip);
        for entry in &clip.index().entries {
            assert!(sampler.sample(&other, &other.index().entries[1], |_| ()).is_ok());
            let picture = sampler.sample(&clip, entry, planes).unwrap();
            assert!(picture == expected[entry.picture as usize], "{name}, picture {}", entry.picture);
        }
        let mut follower = Follower::new(codec, &clip.index().entries[0]);
        let mut shown = Vec::new();
        // Twice, and those that a decoder keeps back.
        for _ in 0..2 * number + 16 {
            shown.extend(follower.step(&clip, |picture, yuv| (picture, planes(yuv))).unwrap());
        }
        assert!(shown.len() >= 2 * number, "{name}: {}", shown.len());
        for (place, (picture, planes)) in shown.iter().enumerate() {
            assert_eq!(*picture as usize, place % number, "{name}");
            assert!(*planes == expected[place % number], "{name}, picture {picture}");
        }
    }
}

/// A decoder took a CRA picture for a picture of the sequence that it had begun with another stream, and reported it as damaged if both had the same
/// place in their sequences.
#[test]
fn key_pictures_sampled_from_equal_streams_by_turns_are_the_same_pictures() {
    for codec in codecs() {
        let clip = clip("hevc_cra").unwrap();
        if !is_decoded(codec, &clip) {
            continue;
        }
        let (expected, mut sampler) = (pictures(codec, &clip), Sampler::new(codec));
        for entry in clip.index().entries.iter().flat_map(|entry| [entry, entry]) {
            let picture = sampler.sample(&clip, entry, planes);
            assert!(picture.is_ok_and(|got| got == expected[entry.picture as usize]), "{codec}, {entry:?}");
        }
    }
}

/// libavcodec notices damage of slices by the hash of the picture, which this stream has.
#[test]
fn a_damaged_picture_is_reported_and_decoding_resumes_at_the_next_entry_point() {
    let Some(codec) = libav() else { return };
    let good = clip("hevc_closed_gop").unwrap();
    let expected = pictures(codec, &good);
    let mut data = good.data().to_vec();
    let range = good.index().pictures[3].clone();
    data[range.start + 12..range.start + 20].fill(0x55);
    let clip = Clip::new("damaged", data).unwrap();
    let mut follower = Follower::new(codec, &clip.index().entries[0]);
    let (mut shown, mut faults) = (Vec::new(), Vec::new());
    for _ in 0..40 {
        match follower.step(&clip, |picture, yuv| (picture, planes(yuv))) {
            Ok(picture) => shown.extend(picture),
            Err(fault) => faults.push(fault),
        }
    }
    assert!(!faults.is_empty(), "{faults:?}");
    assert!(faults.iter().all(|fault| matches!(fault, DecodeError::Damaged { .. })), "{faults:?}");
    let after: Vec<_> = shown.iter().filter(|(picture, _)| *picture >= 12).collect();
    assert!(after.len() >= 12, "{} pictures", after.len());
    assert!(after.iter().all(|(picture, planes)| *planes == expected[*picture as usize]));
}

fn video(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pdbp-video"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PDBP_")) {
        command.env_remove(name);
    }
    command.args(arguments).output().unwrap()
}

#[test]
fn both_kinds_of_streams_are_in_one_table() {
    let old = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/streams/cavlc_high.264");
    let files = [path("hevc_closed_gop"), path("hevc_cropped")];
    let refused = video(&["--streams", "6", "--decoder", "openh264", old, &files[0]]);
    let text = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(
        text.contains("hevc_closed_gop") && text.contains("H.265 is decoded by libavcodec, or by NVDEC"),
        "{text}"
    );
    if libav().is_none() {
        return;
    }
    for how in [&["--continuous", "--passes", "8"][..], &["--passes", "3"], &["--replay"]] {
        let output =
            video(&[&["--streams", "6", "--decoder", "libav", old, &files[0], &files[1]], how].concat());
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        let cells = |name: &str| text.lines().find(|line| line.contains(name)).unwrap().replace(' ', "");
        assert!(cells(" QCIF ").starts_with("QCIF│4│") && cells(" other ").starts_with("other│2│"), "{text}");
    }
}
