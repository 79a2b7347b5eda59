//! The program `pdbp-video`, run as a user runs it.

use std::process::{Command, Output};

use pdbp_video::clips::BUNDLED;

const PROGRAM: &str = env!("CARGO_BIN_EXE_pdbp-video");

/// A command without the settings of whoever runs the tests.
fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PDBP_")) {
        command.env_remove(name);
    }
    command
}

/// Runs the program.
fn video(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    command(PROGRAM).args(arguments).envs(variables.iter().copied()).output().unwrap()
}

fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn a_replay_says_so_and_lists_the_pairs_of_nodes() {
    let arguments = ["--streams", "20", "--replay", "--passes", "3", "--transport", "local", "--nodes", "4"];
    let text = printed(&video(&arguments, &[]));
    for word in ["replayed", "node0 → node2", "node1 → node3", "mean of a pair", "Mb/s"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn without_transport_no_pair_is_listed() {
    let text = printed(&video(&["--streams", "5", "--nodes", "0", "--replay"], &[]));
    assert!(text.contains("frames replayed") && !text.contains("Mb/s"), "{text}");
}

#[test]
fn a_transport_that_does_not_exist_is_refused() {
    let output = video(&["--transport", "pigeon"], &[]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("auto, local, mpi"), "{output:?}");
    let output = video(&[], &[("PDBP_TRANSPORT", "pigeon")]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("environment"), "{output:?}");
}

/// The program panicked at the table, before it wrote the file.
#[test]
#[cfg(unix)]
fn a_reader_that_leaves_early_costs_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("frames.csv");
    let status = folder.path().join("status");
    let script = r#"{ "$0" --streams 3 --nodes 0 --csv "$1"; echo $? >"$2"; } 2>&1 | true"#;
    let done = command("sh").args(["-c", script, PROGRAM]).args([&file, &status]).status();
    assert!(done.unwrap().success());
    assert_eq!(std::fs::read_to_string(&status).unwrap().trim(), "0");
    assert_eq!(std::fs::read_to_string(&file).unwrap().lines().count(), 4);
}

/// A folder with a clip that can be measured, and others.
struct Clips {
    folder: tempfile::TempDir,
}

impl Clips {
    fn new() -> Self {
        let clips = Self { folder: tempfile::tempdir().unwrap() };
        clips.write("good.h264", BUNDLED[0].data);
        clips
    }

    fn write(&self, name: &str, data: &[u8]) {
        std::fs::write(self.path(name), data).unwrap();
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Measures these files with the good one, without transport.
    fn measure(&self, names: &[&str], options: &[&str]) -> Output {
        let paths: Vec<_> = names.iter().map(|name| self.path(name)).collect();
        let paths: Vec<_> = paths.iter().map(String::as_str).collect();
        video(&[&["--streams", "6", "--nodes", "0"], options, &paths].concat(), &[])
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_file_that_cannot_be_read_ends_the_run_with_status_1() {
    let clips = Clips::new();
    clips.write("notes.h264", b"not video at all");
    clips.write("empty.mp4", b"");
    let output = clips.measure(&["good.h264", "absent.h264", "notes.h264", "empty.mp4"], &[]);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "nothing is measured: {output:?}");
    for word in ["absent.h264", "No such file", "2 more", "--keep-going"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn each_kind_of_file_that_cannot_be_used_is_named_with_its_reason() {
    let clips = Clips::new();
    clips.write("notes.h264", b"not video at all");
    clips.write("empty.mp4", b"");
    clips.write("damaged.mp4", b"\0\0\0\x08ftypisom and then nonsense");
    // Without the parameter sets at its start decoding begins nowhere.
    let index = pdbp_video::annexb::Index::new(BUNDLED[0].data).unwrap();
    clips.write("headless.h264", &BUNDLED[0].data[index.pictures[5].clone()]);
    std::fs::create_dir(clips.path("folder")).unwrap();
    std::fs::create_dir(clips.path("mixed")).unwrap();
    clips.write("mixed/bad.264", b"\0\0\x01");
    clips.write("mixed/good.264", BUNDLED[1].data);
    for (name, reason) in [
        ("absent.h264", "cannot be read"),
        ("notes.h264", "no H.264 start code"),
        ("empty.mp4", "is empty"),
        ("damaged.mp4", "damaged MP4"),
        ("headless.h264", "headless.h264: no "),
        ("folder", "no video in this directory"),
        ("mixed", "bad.264: no "),
    ] {
        let output = clips.measure(&[name, "good.h264"], &[]);
        let text = said(&output);
        assert_eq!(output.status.code(), Some(1), "{name}: {output:?}");
        assert!(output.stdout.is_empty() && text.contains("--keep-going"), "{name}: {output:?}");
        assert!(text.contains(name) && text.contains(reason), "{name}: {text}");

        let output = clips.measure(&[name, "good.h264"], &["--keep-going"]);
        assert_eq!(output.status.code(), Some(1), "{name}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("6 streams"), "{name}: {output:?}");
        let text = said(&output);
        let list = text.split_once("not measured, or not whole:").map(|(_, list)| list).unwrap_or_default();
        assert!(list.contains(name) && list.contains(reason), "{name}: {text}");
    }
    let output = clips.measure(&["absent.h264", "folder"], &["--keep-going"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(said(&output).contains("what was given has no usable"), "{output:?}");
}

#[test]
fn who_keeps_going_gets_the_report_of_the_rest() {
    let clips = Clips::new();
    let (report, csv) = (clips.path("report"), clips.path("scores.csv"));
    let options = ["--keep-going", "--quiet", "--report", &report, "--csv", &csv];
    let output = clips.measure(&["absent.h264", "good.h264"], &options);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty() && said(&output).contains("absent.h264"), "{output:?}");
    let page = std::fs::read_to_string(clips.folder.path().join("report/index.html")).unwrap();
    assert!(page.contains("absent.h264"), "the page says what is missing");
    assert_eq!(std::fs::read_to_string(csv).unwrap().lines().count(), 7);
}

#[test]
fn a_stream_that_breaks_on_the_way_is_measured_where_it_is_whole_and_ends_with_status_1() {
    let clips = Clips::new();
    let mut data = BUNDLED[0].data.to_vec();
    let index = pdbp_video::annexb::Index::new(&data).unwrap();
    let second = index.pictures[index.entries[1].picture as usize].end;
    data.drain(second - 1500..second);
    clips.write("broken.h264", &data);
    for nodes in ["0", "2"] {
        let report = clips.path(&format!("report{nodes}"));
        let arguments = ["--streams", "10", "--nodes", nodes, "--report", &report];
        let output = video(&[&arguments[..], &[&clips.path("broken.h264")]].concat(), &[]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let text = said(&output);
        assert!(text.contains("broken.h264 (stream 1 and others, 2 pictures)"), "{text}");
        assert!(
            text.contains("2 pictures could not be decoded") && text.contains("8 were measured"),
            "{text}"
        );
        assert!(String::from_utf8_lossy(&output.stdout).contains("report: "), "{output:?}");
        let faults = std::fs::read_to_string(format!("{report}/faults.csv")).unwrap();
        assert_eq!(faults.lines().count(), 3, "{faults}");
    }
}

#[test]
fn the_help_says_what_the_status_means() {
    let text = printed(&video(&["--help"], &[]));
    assert!(text.contains("--keep-going") && text.contains("Exit status: 0"), "{text}");
}

#[cfg(not(feature = "mpi"))]
#[test]
fn without_mpi_a_launcher_is_told_once_what_to_do() {
    let rank = |rank| video(&[], &[("OMPI_COMM_WORLD_RANK", rank), ("OMPI_COMM_WORLD_SIZE", "2")]);
    let (first, second) = (rank("0"), rank("1"));
    let text = String::from_utf8_lossy(&first.stderr);
    assert!(text.contains("one of 2 ranks") && text.contains("the feature `mpi`"), "{text}");
    assert_eq!((first.status.code(), second.status.code()), (Some(1), Some(1)));
    assert!(first.stdout.is_empty() && second.stdout.is_empty() && second.stderr.is_empty(), "{second:?}");
}

/// Where no device can be seen, with a driver or without.
const NO_DEVICE: [(&str, &str); 2] = [("CUDA_VISIBLE_DEVICES", ""), ("DRIVER_DEVICES", "0")];

#[test]
fn without_a_device_the_processor_analyses_and_the_summary_says_why() {
    let text = printed(&video(&["--streams", "5", "--nodes", "2"], &NO_DEVICE));
    assert!(text.contains("analysed by: the processor ("), "{text}");
    let text = printed(&video(&["--streams", "5", "--nodes", "2", "--analyse", "cpu"], &NO_DEVICE));
    assert!(text.contains("analysed by: the processor\n"), "{text}");
}

#[test]
fn a_gpu_that_is_wanted_and_not_there_is_an_error_that_says_what_to_do() {
    for nodes in ["0", "4"] {
        let output = video(&["--streams", "5", "--nodes", nodes, "--analyse", "gpu"], &NO_DEVICE);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(output.stdout.is_empty() && text.contains("--analyse auto"), "{output:?}");
    }
}

#[test]
fn nvdec_without_a_device_is_refused_with_the_remedy() {
    let output = video(&["--streams", "5", "--decoder", "nvdec"], &NO_DEVICE);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty() && text.contains("--decoder libav"), "{output:?}");
}

#[cfg(feature = "cuda")]
#[path = "cli/gpu.rs"]
mod gpu;

#[test]
fn the_last_line_says_what_decoded() {
    let line = |decoder: &str, options: &[&str]| {
        let output =
            video(&[&["--streams", "6", "--class", "qcif", "--decoder", decoder], options].concat(), &[]);
        let text = printed(&output);
        text.trim_end().lines().last().unwrap().to_owned()
    };
    for options in [&["--nodes", "0"] as &[&str], &["--transport", "local"], &["--nodes", "0", "--replay"]] {
        assert_eq!(line("openh264", options), "decoded by: openh264");
    }
    let output = video(&["--streams", "6", "--decoder", "libav"], &[]);
    if output.status.success() {
        assert!(line("auto", &[]).starts_with("decoded by: libavcodec "));
    } else {
        let text = said(&output);
        assert!(text.contains("libavcodec.so.59") && text.contains("apt install libavcodec59"), "{text}");
        assert!(line("auto", &[]).starts_with("decoded by: openh264 ("), "{}", line("auto", &[]));
    }
    let output = video(&["--decoder", "/absent/libavcodec.so.59"], &[]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(said(&output).contains("/absent/libavcodec.so.59"), "{output:?}");
}

#[test]
fn what_a_live_decoder_takes_is_measured_before_the_first_pass() {
    let arguments =
        ["--streams", "4", "--class", "qcif", "--continuous", "--passes", "5", "--decoder", "openh264"];
    let text = printed(&video(&[&arguments[..], &["--nodes", "0"]].concat(), &[]));
    let (_, rest) = text.split_once("a live decoder takes ").unwrap_or_else(|| panic!("{text}"));
    let (megabytes, rest) = rest.split_once(" MB (176×144)").unwrap();
    let megabytes: f64 = megabytes.parse().unwrap();
    assert!((3.0..6.0).contains(&megabytes) && rest.contains("room for "), "{text}");
}

#[test]
fn a_continuous_run_says_whether_streams_fell_behind() {
    let live = ["--class", "qcif", "--continuous", "--passes", "6", "--decoder", "openh264"];
    for nodes in ["0", "4"] {
        let text = printed(&video(&[&live[..], &["--streams", "4", "--nodes", nodes]].concat(), &[]));
        assert!(text.contains("no stream fell behind; quickest pass "), "{text}");
    }
    let sampled = printed(&video(&["--streams", "4", "--nodes", "0"], &[]));
    assert!(!sampled.contains("behind"), "{sampled}");

    // Damaged in the middle: the stream goes on at its next key frame, which is due in the next pass.
    let clips = Clips::new();
    let mut data = BUNDLED[0].data.to_vec();
    let index = pdbp_video::annexb::Index::new(&data).unwrap();
    data[index.pictures[4].start + 8..index.pictures[4].end].fill(0x55);
    clips.write("damaged.h264", &data);
    let output = clips.measure(&["damaged.h264", "good.h264"], &live[2..]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text.contains(" in the worst; quickest pass "), "{output:?}");
}

#[test]
fn whether_all_live_streams_have_room_is_the_status() {
    let ask = ["--room", "--continuous", "--class", "qcif", "--decoder", "openh264"];
    let some = video(&[&ask[..], &["--streams", "2"]].concat(), &[]);
    let text = printed(&some);
    assert!(text.starts_with("a live decoder takes ") && text.lines().count() == 1, "{text}");
    // 400 TB.
    let many = video(&[&ask[..], &["--streams", "100000000"]].concat(), &[]);
    assert_eq!(many.status.code(), Some(1), "{many:?}");
    assert!(said(&many).contains(" of 100000000 streams run continuously"), "{many:?}");
}
