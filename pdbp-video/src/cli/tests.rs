use super::room::fit;
use super::*;

fn cli(arguments: &[&str]) -> Cli {
    Cli::try_parse_from([&["pdbp-video"], arguments].concat()).unwrap()
}

#[test]
fn without_arguments_the_bundled_clips_are_analysed() {
    let setup = cli(&[]).setup(None).unwrap();
    assert_eq!((setup.streams.count(), setup.streams.clips().len()), (2_520, 5));
    assert_eq!((setup.plan.mode, setup.plan.passes), (Mode::Sample, 1));
    assert!(setup.notices.is_empty());
}

#[test]
fn files_are_a_stream_each_and_measured_to_their_ends() {
    let folder = tempfile::tempdir().unwrap();
    let files = [0, 1].map(|number| {
        let file = folder.path().join(format!("{number}.h264"));
        std::fs::write(&file, crate::clips::BUNDLED[number].data).unwrap();
        file.display().to_string()
    });
    let amounts = |options: &[&str]| {
        let setup = cli(&[&files.each_ref().map(String::as_str)[..], options].concat()).setup(None).unwrap();
        let longest = |of: fn(&Clip) -> usize| setup.streams.clips().iter().map(of).max().unwrap();
        let (pictures, keys) =
            (longest(|clip| clip.index().pictures.len()), longest(|clip| clip.index().entries.len()));
        assert!(pictures > keys && keys > 1);
        (setup.streams.count(), setup.plan.passes as usize, pictures, keys)
    };
    let (streams, passes, _, keys) = amounts(&[]);
    assert_eq!((streams, passes), (2, keys));
    let (streams, passes, pictures, _) = amounts(&["--continuous"]);
    assert_eq!((streams, passes), (2, pictures));
    assert_eq!(amounts(&["--passes", "3"]).1, 3);
    assert_eq!(amounts(&["--streams", "7"]).1, 1, "files that stand for many streams are sampled");
}

/// As many pictures were measured a second time.
#[test]
fn a_file_that_was_cut_before_its_first_key_picture_is_measured_from_there_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let data = crate::clips::BUNDLED[0].data;
    let whole = crate::annexb::Index::new(data).unwrap();
    let file = folder.path().join("cut.h264");
    std::fs::write(&file, &data[whole.pictures[1].start..]).unwrap();
    let setup = cli(&[&file.display().to_string(), "--continuous"]).setup(None).unwrap();
    let index = setup.streams.clips()[0].index();
    assert_eq!(index.pictures.len(), whole.pictures.len() - 1);
    let all_from = |entry: usize| whole.pictures.len() - whole.entries[entry].picture as usize;
    assert_eq!(setup.plan.passes as usize, all_from(whole.entries.len() - index.entries.len()));
}

#[test]
fn in_a_job_every_process_is_a_node() {
    let job = |rank| Some(Launch { rank, ranks: 6 });
    let setup = cli(&["--streams", "7"]).setup(job(5)).unwrap();
    assert_eq!((setup.nodes, setup.plan.decoders), (6, 3));
    assert_eq!(cli(&["--nodes", "6", "--decoders", "9"]).setup(job(0)).unwrap().plan.decoders, 9);
    let refused = |arguments: &[&str]| cli(arguments).setup(job(1)).unwrap_err().0.to_string();
    assert!(refused(&["--nodes", "4"]).contains("6 processes"));
    assert!(refused(&["--nodes", "0"]).contains("without transport"));
}

#[test]
fn replaying_is_a_way_to_sample() {
    assert_eq!(cli(&["--replay", "--streams", "5"]).setup(None).unwrap().plan.mode, Mode::Replay);
    assert!(Cli::try_parse_from(["pdbp-video", "--replay", "--continuous"]).is_err());
}

#[test]
fn a_class_keeps_its_clips_only() {
    let setup = cli(&["--class", "cif", "--streams", "7"]).setup(None).unwrap();
    assert!(setup.streams.clips().iter().all(|clip| clip.class() == StreamClass::Cif));
    assert_eq!((setup.streams.clips().len(), setup.streams.count()), (3, 7));
}

#[test]
fn what_cannot_be_analysed_is_said_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("small.h264");
    std::fs::write(&file, crate::clips::BUNDLED[0].data).unwrap();
    let bad = folder.path().join("absent.mp4");
    let (file, bad) = (file.display().to_string(), bad.display().to_string());
    let (error, notices) = cli(&[&file, &bad, &bad]).setup(None).unwrap_err();
    let said = error.to_string();
    assert!(said.contains("absent.mp4") && said.contains("1 more") && notices.is_empty(), "{said}");
    let setup = cli(&[&file, &bad, "--keep-going"]).setup(None).unwrap();
    assert_eq!((setup.streams.clips().len(), setup.refused.len()), (1, 1));
    let (error, notices) = cli(&[&file, &bad, "-k", "--class", "d1"]).setup(None).unwrap_err();
    assert!(error.to_string().contains("d1") && error.to_string().contains("QCIF"), "{error}");
    assert!(notices.len() == 1 && notices[0].contains("absent.mp4"));
    let (error, _) = cli(&[&bad]).setup(None).unwrap_err();
    assert!(matches!(error, SetupError::NoClips));
}

#[test]
fn clips_with_larger_pictures_than_are_allowed_are_refused_by_name() {
    let refused = cli(&["--largest", "200x200"]).setup(None).unwrap_err().0.to_string();
    assert!(
        refused.contains("bbb_cif") && refused.contains("352×288") && refused.contains("--largest"),
        "{refused}"
    );
    let setup = cli(&["--largest", "200x200", "-k"]).setup(None).unwrap();
    assert_eq!((setup.streams.clips().len(), setup.refused.len()), (1, 4));
    assert!(
        Cli::try_parse_from(["pdbp-video", "--largest", "big"])
            .unwrap_err()
            .to_string()
            .contains("7680x4320")
    );
}

#[test]
fn continuous_runs_are_cut_to_the_memory_there_is() {
    let streams = Streams::new(clips::bundled().clips, 1000);
    let mut notices = Vec::new();
    let needs = || Needs::of([((176, 144), 4 << 20), ((352, 288), 4 << 20), ((704, 576), 12 << 20)]);
    let (fitted, room) = fit(streams.clone(), Some((needs(), 1 << 30)), &mut notices).unwrap();
    assert!((100..205).contains(&fitted.count()), "{}", fitted.count());
    assert!(notices[0].contains("of 1000 streams") && notices[0].contains("1.0 GiB"), "{notices:?}");
    assert!(room.unwrap().contains(&format!("room for {}", fitted.count())));
    let refused = fit(streams.clone(), Some((needs(), 1 << 20)), &mut notices);
    assert!(matches!(refused, Err(SetupError::NoMemory { .. })));
    let (all, _) = fit(streams, None, &mut notices).unwrap();
    assert!(all.count() == 1000 && notices[1].contains("does not tell"), "{notices:?}");
}

/// A host that only analyses was cut to the streams that it could have decoded, or refused to run.
#[test]
fn only_processes_that_decode_need_memory_for_decoders() {
    let job = |rank| Some(Launch { rank, ranks: 4 });
    assert_eq!([0, 1, 2, 3].map(|rank| decodes(&Side::Whole, 4, 2, job(rank))), [true, true, false, false]);
    assert!(decodes(&Side::Whole, 4, 2, None));
    for job in [None, job(0), job(3)] {
        assert!(!decodes(&Side::Analyses("east".into()), 4, 2, job));
    }
    assert!(decodes(&Side::Decodes("west".into()), 2, 2, None));
    assert!(!decodes(&Side::Decodes("west".into()), 4, 2, job(3)), "there are only two decoders");
}

#[cfg(feature = "net")]
#[test]
fn a_cluster_that_only_analyses_takes_all_streams() {
    let wanted = ["--continuous", "--class", "qcif", "--streams", "10000000", "--decode-in", "east"];
    let setup = cli(&wanted).setup(None).unwrap();
    assert_eq!((setup.streams.count(), setup.room), (10_000_000, None));
    assert!(setup.notices.is_empty(), "{:?}", setup.notices);
}

#[test]
fn a_decoder_that_is_not_there_is_refused_with_what_was_looked_for() {
    let (error, _) = cli(&["--decoder", "/absent/libavcodec.so.59"]).setup(None).unwrap_err();
    assert!(error.to_string().contains("/absent/libavcodec.so.59"), "{error}");
    assert!(!cli(&["--decoder", "openh264"]).setup(None).unwrap().codec.is_libav());
    let error = Cli::try_parse_from(["pdbp-video", "--decoder", "x264"]).unwrap_err().to_string();
    assert!(error.contains("x264") && error.contains("auto, libav, openh264"), "{error}");
}

#[test]
fn streams_that_openh264_does_not_decode_exactly_are_announced() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/streams/cabac_b.264");
    let arguments = ["--continuous", "--streams", "2", "--decoder", "openh264", file];
    let setup = cli(&arguments).setup(None).unwrap();
    assert!(setup.notices.iter().any(|notice| notice.contains("1 clips have B pictures")));
    assert!(cli(&arguments[1..]).setup(None).unwrap().notices.is_empty(), "only key frames are sampled");
}

#[test]
fn the_command_line_is_consistent() {
    use clap::CommandFactory as _;
    Cli::command().debug_assert();
    assert!(Cli::try_parse_from(["pdbp-video", "--streams", "0"]).is_err());
}

#[test]
fn whether_all_streams_have_room_can_be_asked() {
    assert!(Cli::try_parse_from(["pdbp-video", "--room"]).is_err(), "only live streams take room");
    let asked = cli(&["--room", "--continuous", "--class", "qcif", "--streams", "2"]);
    let setup = asked.setup(None).unwrap();
    assert_eq!(setup.all_fit(&asked), setup.room.is_some());
    let fewer = Setup { streams: setup.streams.first(1), ..setup };
    assert!(!fewer.all_fit(&asked));
}

#[test]
fn live_sources_are_watched_for_a_minute_and_mixed_with_nothing_else() {
    // The memory is that of the process: another test asks for as much.
    let setup =
        cli(&["rtp://127.0.0.1:5004", "rtsp://127.0.0.1/x", "--live-memory", "64"]).setup(None).unwrap();
    assert_eq!((setup.plan.mode, setup.plan.passes, setup.streams.count()), (Mode::Live, 60, 2));
    for (arguments, words) in [
        (&["rtp://127.0.0.1:5004", "--streams", "5"][..], "--streams"),
        (&["rtp://127.0.0.1:5004", "--replay"], "--replay"),
        (&["rtp://127.0.0.1:5004", "--class", "cif"], "--class"),
        (
            &["rtp://127.0.0.1:5004", concat!(env!("CARGO_MANIFEST_DIR"), "/clips/bbb_qcif.h264")],
            "use separate runs",
        ),
        (&["rtp://nowhere"], "no IP address"),
    ] {
        let (error, notices) = cli(arguments).setup(None).unwrap_err();
        assert!(error.to_string().contains(words) || notices.concat().contains(words), "{error} {notices:?}");
    }
}

#[test]
fn live_sources_are_given_the_memory_that_is_said() {
    let setup = cli(&["rtp://127.0.0.1:0", "--live-memory", "64"]).setup(None).unwrap();
    assert_eq!(setup.plan.mode, Mode::Live);
    assert!(
        setup.room.as_ref().unwrap().ends_with("coded pictures of all sources may take 64 MiB"),
        "{:?}",
        setup.room
    );
}
