//! Matroska, transport streams and MP4 as ffmpeg makes them: the pictures are those of the streams that were put in. Skipped where there is no
//! ffmpeg or no libavformat.

use std::path::Path;
use std::process::Command;

use pdbp_video::annexb::nals;
use pdbp_video::clips::{self, Clip};

const QCIF: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/clips/bbb_qcif.h264");
const H265: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/streams/hevc_slices.265");

/// The stream in a file of that kind; whether there is an ffmpeg.
fn wrap(stream: &str, file: &Path) -> bool {
    let mut command = Command::new("ffmpeg");
    command.args(["-hide_banner", "-loglevel", "error", "-fflags", "+genpts", "-r", "25", "-i", stream]);
    let Ok(output) = command.args(["-c", "copy"]).arg(file).output() else {
        eprintln!("containers: skipped: there is no ffmpeg (Debian: apt install ffmpeg)");
        return false;
    };
    assert!(output.status.success(), "{output:?}");
    true
}

/// What is coded in the pictures of a clip, which is the same in all containers.
fn slices(clip: &Clip) -> Vec<&[u8]> {
    let is_h264 = clip.standard() == pdbp_video::annexb::Standard::H264;
    let units = nals(clip.data()).map(|nal| &clip.data()[nal.range][3..]);
    units
        .filter(|nal| if is_h264 { matches!(nal[0] & 0x1f, 1..=5) } else { nal[0] >> 1 & 0x3f < 32 })
        .collect()
}

#[test]
fn pictures_are_those_that_were_put_in() {
    let folder = tempfile::tempdir().unwrap();
    for stream in [QCIF, H265] {
        let expected = clips::load(&[stream]).clips.remove(0);
        for kind in ["mkv", "ts", "mp4"] {
            let file = folder.path().join(format!("clip.{kind}"));
            let _ = std::fs::remove_file(&file);
            if !wrap(stream, &file) {
                return;
            }
            let loaded = clips::load(&[&file]);
            let Some(clip) = loaded.clips.first() else {
                let reason = loaded.refused[0].to_string();
                assert!(reason.contains("clip."), "{reason}");
                assert!(reason.contains("is not there") || kind == "mp4", "{reason}");
                eprintln!("containers: skipped: {reason}");
                continue;
            };
            assert!(loaded.refused.is_empty(), "{:?}", loaded.refused);
            assert!(slices(clip) == slices(&expected), "{stream} in {kind}");
            let entries =
                |clip: &Clip| clip.index().entries.iter().map(|entry| entry.picture).collect::<Vec<_>>();
            assert_eq!(entries(clip), entries(&expected), "{stream} in {kind}");
        }
    }
}

#[test]
fn what_is_damaged_or_cut_off_is_refused_or_measured_as_far_as_it_goes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("clip.mkv");
    if !wrap(QCIF, &file) {
        return;
    }
    let whole = std::fs::read(&file).unwrap();
    for (number, length) in [4, 40, 700, whole.len() / 2, whole.len() - 1].into_iter().enumerate() {
        let mut cut = whole[..length].to_vec();
        if number == 2 {
            cut[60..200].fill(0xff);
        }
        std::fs::write(&file, &cut).unwrap();
        let loaded = clips::load(&[&file]);
        let reasons: Vec<_> = loaded.refused.iter().map(ToString::to_string).collect();
        assert!(
            !loaded.clips.is_empty() || reasons.iter().all(|reason| reason.contains("clip.mkv")),
            "{reasons:?}"
        );
        assert_eq!(loaded.clips.len() + reasons.len(), 1);
    }
    // A playlist leads nowhere.
    let list = folder.path().join("list.ts");
    std::fs::write(&list, format!("#EXTM3U\n#EXTINF:1,\n{}\n", file.display())).unwrap();
    assert!(clips::load(&[&list]).clips.is_empty());
}
