use std::fs;
use std::process::Command;

use super::*;
use crate::annexb::nals;
use crate::clips::{self, BUNDLED, Clip, ClipError};

const H265: &[u8] = include_bytes!("../../../tests/streams/hevc_slices.265");

/// Whether there are both programs; a library that is there has to be one that can be used.
fn is_there() -> bool {
    let reason = match library() {
        Err(reason) if reason.contains("is not there") => reason,
        Err(reason) => panic!("{reason}"),
        Ok(_) if Command::new("ffmpeg").arg("-version").output().is_ok() => return true,
        Ok(_) => "there is no ffmpeg (Debian: apt install ffmpeg)".to_owned(),
    };
    eprintln!("libavformat: skipped: {reason}");
    false
}

/// `stream` in a file of that kind, as ffmpeg makes it.
fn wrap(stream: &[u8], file: &Path) -> Vec<u8> {
    wrap_with(stream, file, &[])
}

/// The same with these options.
fn wrap_with(stream: &[u8], file: &Path, options: &[&str]) -> Vec<u8> {
    let raw = file.with_extension("raw");
    fs::write(&raw, stream).unwrap();
    let mut command = Command::new("ffmpeg");
    command.args(["-hide_banner", "-loglevel", "error", "-y", "-fflags", "+genpts", "-r", "25", "-i"]);
    let output = command.arg(raw).args(["-c", "copy"]).args(options).arg(file).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    fs::read(file).unwrap()
}

/// What is coded in the pictures of a clip, which is the same in all containers.
fn slices(clip: &Clip) -> Vec<&[u8]> {
    let is_h264 = clip.standard() == Standard::H264;
    let units = nals(clip.data()).map(|nal| &clip.data()[nal.range][3..]);
    units
        .filter(|nal| if is_h264 { matches!(nal[0] & 0x1f, 1..=5) } else { nal[0] >> 1 & 0x3f < 32 })
        .collect()
}

fn entries(clip: &Clip) -> Vec<u32> {
    clip.index().entries.iter().map(|entry| entry.picture).collect()
}

#[test]
fn pictures_are_those_that_were_put_in() {
    if !is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for stream in [BUNDLED[0].data, H265] {
        let expected = Clip::new("", stream).unwrap();
        for kind in ["mkv", "ts", "m2ts", "mp4"] {
            let file = folder.path().join(format!("clip.{kind}"));
            wrap(stream, &file);
            let loaded = clips::load(&[&file]);
            assert!(loaded.refused.is_empty(), "{:?}", loaded.refused);
            let [clip] = &loaded.clips[..] else { panic!("{kind}: {} clips", loaded.clips.len()) };
            assert!(slices(clip) == slices(&expected), "{} in {kind}", expected.standard());
            assert_eq!(entries(clip), entries(&expected), "{} in {kind}", expected.standard());
        }
    }
    // One file for which there are two readers.
    let file = folder.path().join("both.mp4");
    let own = clips::read(&file, wrap(BUNDLED[0].data, &file)).clips.remove(0);
    assert!(read(&file, usize::MAX).unwrap().stream == own.data());
}

/// Of a file whose tables have the first fragment, only that was measured.
#[test]
fn all_fragments_of_a_file_are_read() {
    if !is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("clip.mp4");
    for flags in ["frag_keyframe", "frag_keyframe+empty_moov"] {
        wrap_with(BUNDLED[0].data, &file, &["-movflags", flags]);
        let loaded = clips::load(&[&file]);
        assert!(loaded.refused.is_empty(), "{flags}: {:?}", loaded.refused);
        assert_eq!(loaded.clips[0].index().pictures.len(), 132, "{flags}");
    }
}

#[test]
fn what_is_cut_off_is_measured_as_far_as_it_goes_and_named() {
    if !is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (kind, stream) in [("mkv", BUNDLED[0].data), ("ts", BUNDLED[0].data), ("mkv", H265)] {
        let file = folder.path().join(format!("clip.{kind}"));
        let whole = wrap(stream, &file);
        let pictures = clips::load(&[&file]).clips[0].index().pictures.len();
        for length in [whole.len() / 2 + 1, whole.len() - 1] {
            fs::write(&file, &whole[..length]).unwrap();
            let loaded = clips::load(&[&file]);
            let [refused] = &loaded.refused[..] else { panic!("{kind}: {:?}", loaded.refused) };
            assert!(refused.to_string().contains(&format!("clip.{kind}")), "{refused}");
            assert!(matches!(refused, ClipError::CutOff { .. }), "{refused}");
            assert!((1..=pictures).contains(&loaded.clips[0].index().pictures.len()));
        }
    }
}

#[test]
fn what_cannot_be_read_is_refused_by_name_and_leads_nowhere() {
    if !is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("clip.mkv");
    let whole = wrap(BUNDLED[0].data, &file);
    let mut damaged = whole.clone();
    damaged[5..600].fill(0xff);
    let list = format!("#EXTM3U\n#EXTINF:1,\n{}\n", file.display());
    let refused_of = |data: &[u8]| {
        let file = folder.path().join("bad.mkv");
        fs::write(&file, data).unwrap();
        let loaded = clips::load(&[&file]);
        let [refused] = &loaded.refused[..] else { panic!("{:?}", loaded.refused) };
        assert!(loaded.clips.is_empty() && refused.to_string().contains("bad.mkv"), "{refused}");
        refused.to_string()
    };
    for data in [&whole[..4], &whole[..40], &damaged, list.as_bytes()] {
        refused_of(data);
    }
    // A video of another kind.
    let other = folder.path().join("other.mkv");
    let source =
        ["-f", "lavfi", "-i", "color=size=64x64:duration=0.2", "-c:v", "mpeg4", "-loglevel", "error"];
    assert!(Command::new("ffmpeg").args(source).arg(&other).status().unwrap().success());
    let reason = refused_of(&fs::read(&other).unwrap());
    assert!(reason.contains("mpeg4, not H.264 or H.265"), "{reason}");
    // A stream that gets longer than it may.
    let broken = read(&file, 1000).unwrap().broken;
    assert!(broken.is_some_and(|reason| reason.contains("longer than the file allows")));
}

#[test]
fn versions_that_are_not_known_are_refused_by_name() {
    for known in VERSIONS {
        assert_eq!(accepted("x", known.major), Ok(known));
    }
    for major in [57, 63] {
        let reason = accepted("/opt/x.so", major).unwrap_err();
        assert!(
            reason.contains(&format!("/opt/x.so is libavformat {major}, but only versions 58 to 62")),
            "{reason}"
        );
    }
    #[cfg(target_os = "linux")]
    match Api::open("libc.so.6") {
        Err(Refusal::Other(reason)) => assert!(reason.contains("is not libavformat: function"), "{reason}"),
        _ => panic!("libc is not libavformat"),
    }
}

#[test]
fn a_file_that_ends_too_early_is_known_by_its_head() {
    let matroska =
        |length: u8, rest: usize| [EBML, &[0x82, 0, 0], SEGMENT, &[length], &vec![0; rest]].concat();
    assert!(!is_cut_off(&matroska(0x8a, 10)) && is_cut_off(&matroska(0x8a, 9)));
    // One that was sent while it was made does not say how long it is.
    assert!(!is_cut_off(&matroska(0xff, 9)));
    assert!(!is_cut_off(&[EBML, &[0x00]].concat()), "no number at all");
    for (length, start) in [(188, 0), (192, 4)] {
        let mut stream = vec![0; 5 * length];
        stream.iter_mut().skip(start).step_by(length).for_each(|byte| *byte = 0x47);
        assert!(is_container(&stream) && !is_cut_off(&stream));
        assert!(is_cut_off(&stream[..5 * length - 1]));
    }
    let boxes = [&[0, 0, 0, 8][..], b"ftyp", &[0, 0, 0, 1], b"mdat", &17u64.to_be_bytes(), &[0]].concat();
    assert!(!is_cut_off(&boxes) && is_cut_off(&boxes[..24]) && is_cut_off(&boxes[..20]));
    assert!(is_cut_off(&boxes[..10]), "within the length of a box");
    assert!(!is_cut_off(&[&[0, 0, 0, 8][..], b"free", &[0, 0, 0, 0], b"mdat", &[1]].concat()));
}
