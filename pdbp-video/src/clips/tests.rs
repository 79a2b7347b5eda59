use std::io::Cursor;

use mp4::{AvcConfig, MediaConfig, Mp4Config, Mp4Sample, Mp4Writer, TrackConfig, TrackType};
use proptest::prelude::*;

use super::*;
use crate::annexb::{NalKind, nals};

/// The bundled QCIF clip as an MP4 file: length-prefixed slices, parameter sets in avcC.
fn as_mp4(data: &[u8]) -> Vec<u8> {
    let unit = |kind| {
        nals(data)
            .find(|nal| nal.kind == kind)
            .map(|nal| data[nal.range.start + 3..nal.range.end].to_vec())
            .unwrap()
    };
    let config = Mp4Config {
        major_brand: str::parse("isom").unwrap(),
        minor_version: 512,
        compatible_brands: vec![str::parse("avc1").unwrap()],
        timescale: 1000,
    };
    let mut writer = Mp4Writer::write_start(Cursor::new(Vec::new()), &config).unwrap();
    let media = MediaConfig::AvcConfig(AvcConfig {
        width: 176,
        height: 144,
        seq_param_set: unit(NalKind::Sps),
        pic_param_set: unit(NalKind::Pps),
    });
    writer
        .add_track(&TrackConfig {
            track_type: TrackType::Video,
            timescale: 1000,
            language: "und".into(),
            media_conf: media,
        })
        .unwrap();
    let slices = nals(data).filter(|nal| matches!(nal.kind, NalKind::Slice | NalKind::IdrSlice));
    for (number, nal) in slices.enumerate() {
        let slice = &data[nal.range.start + 3..nal.range.end];
        let bytes = [&u32::try_from(slice.len()).unwrap().to_be_bytes()[..], slice].concat();
        let sample = Mp4Sample {
            start_time: number as u64 * 40,
            duration: 40,
            rendering_offset: 0,
            is_sync: nal.kind == NalKind::IdrSlice,
            bytes: bytes.into(),
        };
        writer.write_sample(1, &sample).unwrap();
    }
    writer.write_end().unwrap();
    writer.into_writer().into_inner()
}

fn write(directory: &Path, name: &str, data: &[u8]) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, data).unwrap();
    path
}

#[test]
fn an_mp4_gives_the_same_pictures_as_the_byte_stream() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "clip.mp4", &as_mp4(BUNDLED[0].data));
    let loaded = load(&[path]);
    assert!(loaded.refused.is_empty(), "{:?}", loaded.refused);
    let slices = |data: &[u8]| -> Vec<Vec<u8>> {
        nals(data)
            .filter(|nal| matches!(nal.kind, NalKind::Slice | NalKind::IdrSlice))
            .map(|nal| data[nal.range].to_vec())
            .collect()
    };
    let clip = &loaded.clips[0];
    assert_eq!((clip.index().pictures.len(), clip.index().entries.len()), (132, 5));
    assert_eq!(slices(clip.data()), slices(BUNDLED[0].data));
}

#[test]
fn directories_are_searched_and_bad_files_do_not_hide_good_ones() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("inner")).unwrap();
    write(folder.path(), "b.264", BUNDLED[0].data);
    write(folder.path(), "a.h264", b"not video at all");
    write(folder.path(), "notes.txt", b"ignored");
    write(&folder.path().join("inner"), "c.AVC", BUNDLED[3].data);
    let loaded = load(&[folder.path()]);
    let classes: Vec<_> = loaded.clips.iter().map(Clip::class).collect();
    assert_eq!(classes, [StreamClass::Qcif, StreamClass::Cif]);
    assert_eq!(loaded.refused.len(), 1);
    let message = loaded.refused[0].to_string();
    assert!(message.contains("a.h264") && message.contains("no H.264 start code"), "{message}");
}

#[test]
fn missing_files_and_empty_directories_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let loaded = load(&[folder.path().to_path_buf(), folder.path().join("absent.h264")]);
    assert!(matches!(&loaded.refused[..], [ClipError::EmptyDirectory { .. }, ClipError::Unreadable { .. }]));
    assert!(loaded.refused[1].to_string().contains("absent.h264"));
}

#[test]
fn a_cut_mp4_is_reported_as_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = as_mp4(BUNDLED[0].data);
    file.truncate(file.len() - 100);
    let loaded = load(&[write(folder.path(), "cut.mp4", &file)]);
    assert!(matches!(&loaded.refused[..], [ClipError::DamagedMp4 { .. }]), "{:?}", loaded.refused);
}

#[test]
fn an_mp4_that_ends_before_its_pictures_is_reported_and_those_before_are_there() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = as_mp4(BUNDLED[0].data);
    // The last chunk lies beyond the end: its place is the last entry of the table.
    let table = file.windows(4).rposition(|window| window == b"stco").unwrap() + 8;
    let chunks = u32::from_be_bytes(file[table..table + 4].try_into().unwrap()) as usize;
    assert!(chunks > 1);
    file[table + 4 * chunks..][..4].copy_from_slice(&0x7fff_ffff_u32.to_be_bytes());
    let loaded = load(&[write(folder.path(), "cut.mp4", &file)]);
    assert!(matches!(&loaded.refused[..], [ClipError::CutOff { .. }]), "{:?}", loaded.refused);
    assert!((1..132).contains(&loaded.clips[0].index().pictures.len()));
}

#[test]
fn empty_files_are_said_to_be_empty() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["empty.h264", "empty.mp4"] {
        let loaded = load(&[write(folder.path(), name, &[])]);
        assert!(matches!(&loaded.refused[..], [ClipError::Empty { .. }]), "{:?}", loaded.refused);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// The boxes at the end of the file (moov) are where the damage hurts.
    #[test]
    fn damaged_mp4_tables_never_panic(flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12)) {
        static FILE: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
        let file = FILE.get_or_init(|| as_mp4(BUNDLED[0].data));
        let tables = file.windows(4).rposition(|window| window == b"moov").unwrap();
        let mut damaged = file.clone();
        for (place, value) in flips {
            let place = tables + place.index(file.len() - tables);
            damaged[place] = value;
        }
        let _ = demux::h264_tracks(&damaged);
    }
}

/// Reading one would wait for whoever writes to it, for ever if nobody does.
#[cfg(unix)]
#[test]
fn pipes_in_a_folder_are_left_out() {
    use std::os::unix::net::UnixListener;
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.h264"), BUNDLED[0].data).unwrap();
    let _socket = UnixListener::bind(folder.path().join("b.h264")).unwrap();
    let made = std::process::Command::new("mkfifo").arg(folder.path().join("c.ts")).status().unwrap();
    assert!(made.success());
    std::os::unix::fs::symlink("nowhere", folder.path().join("d.mp4")).unwrap();
    let listed: Vec<_> = list(&[folder.path()]).into_iter().map(Result::unwrap).collect();
    let names: Vec<_> = listed.iter().map(|file| file.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(names, ["a.h264", "d.mp4"]);
    let loaded = load(&[folder.path()]);
    assert_eq!((loaded.clips.len(), loaded.refused.len()), (1, 1), "{:?}", loaded.refused);
}
