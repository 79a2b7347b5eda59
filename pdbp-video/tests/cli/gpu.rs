//! Runs with a device: the real one, or the library that stands in for the driver.

use super::*;
use pdbp_cuda::device::Cuda;

/// Whether there is a device; says it when not.
fn is_there(test: &str) -> bool {
    match Cuda::open(0) {
        Ok(_) => true,
        Err(e) if e.is_absence() && std::env::var_os("PDBP_REQUIRE_GPU").is_none() => {
            eprintln!("{test}: skipped: {e}");
            false
        }
        Err(e) => panic!("{test}: {e}"),
    }
}

/// Whether it is the library that stands in for the driver, and does what variables say.
fn is_stand_in(test: &str) -> bool {
    let is = is_there(test) && Cuda::devices().unwrap()[0].name == "stand-in";
    if !is {
        eprintln!("{test}: skipped: needs the library that stands in for the driver");
    }
    is
}

/// Runs it, and returns pass, stream, frame and scores of every line in a fixed order, and what it printed.
fn scores(arguments: &[&str], variables: &[(&str, &str)]) -> (Vec<String>, Output) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("scores.csv");
    let output = video(&[arguments, &["--csv", file.to_str().unwrap()]].concat(), variables);
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let line = |line: &str| {
        let fields: Vec<_> = line.split(',').collect();
        [&fields[..5], &fields[9..]].concat().join(",")
    };
    let mut lines: Vec<_> = text.lines().map(line).collect();
    lines.sort();
    (lines, output)
}

/// The library that stands in for NVDEC's ends a program with status 70 that leaves parsers, decoders or pictures.
#[test]
fn nvdec_gives_the_scores_of_libavcodec_and_leaves_nothing_behind() {
    if !is_stand_in("nvdec_gives_the_scores_of_libavcodec_and_leaves_nothing_behind") {
        return;
    }
    let b_pictures = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/streams/cabac_high_pyramid.264");
    let sampled = &["--streams", "20", "--passes", "2"][..];
    let continuous = &["--streams", "6", "--passes", "5", "--continuous", b_pictures];
    for (how, lines) in [(sampled, 41), (continuous, 7)] {
        let (right, output) = scores(&[how, &["--decoder", "libav", "--nodes", "0"]].concat(), &[]);
        assert!(output.status.success() && right.len() >= lines, "{output:?}");
        for more in
            [&["--nodes", "0"][..], &["--nodes", "0", "--analyse", "cpu"], &["--nodes", "4"], &["--isolate"]]
        {
            let (got, output) = scores(&[how, &["--decoder", "nvdec"], more].concat(), &[]);
            assert_eq!(got, right, "{how:?} {more:?}: {output:?}");
            assert!(printed(&output).contains("NVDEC of GPU 0 (stand-in)"), "{output:?}");
        }
    }
    let left =
        video(&["--streams", "2", "--decoder", "nvdec"], &[("NVDEC_FAILS", "cuvidDestroyDecoder=999")]);
    assert_eq!(left.status.code(), Some(70), "what is left behind is noticed: {left:?}");
}

#[test]
fn live_decoders_of_nvdec_are_counted_by_the_memory_of_the_device() {
    if !is_stand_in("live_decoders_of_nvdec_are_counted_by_the_memory_of_the_device") {
        return;
    }
    let room = |class| {
        let output = video(
            &["--room", "--continuous", "--streams", "10", "--class", class, "--decoder", "nvdec"],
            &[],
        );
        let text = printed(&output);
        assert!(text.contains("16.0 GiB are available"), "{text}");
        text
    };
    // 20 surfaces of NV12 each, of 208×176 and 384×320 samples, and nothing else.
    assert!(room("qcif").contains("takes 1.10 MB (176×144)"));
    assert!(room("cif").contains("takes 3.69 MB (352×288)"));
}

/// Runs it with something wrong about NVDEC, and looks for words in what it says.
fn refused(variable: (&str, &str), arguments: &[&str], words: &[&str]) {
    let output = video(&[&["--streams", "2", "--decoder", "nvdec"], arguments].concat(), &[variable]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{variable:?}: {output:?}");
    assert!(words.iter().all(|words| text.contains(words)), "{variable:?}: {text}");
    // What stands in for the device says so when it is used wrongly.
    assert!(!text.contains("panicked") && !text.contains("stand-in NVDEC:"), "{variable:?}: {text}");
}

#[test]
fn nvdec_without_room_for_two_sizes_gives_up_one_and_streams_get_surfaces_whatever_they_say() {
    if !is_stand_in(
        "nvdec_without_room_for_two_sizes_gives_up_one_and_streams_get_surfaces_whatever_they_say",
    ) {
        return;
    }
    let both = &["--streams", "4", "--decoders", "1", "--nodes", "0"][..];
    let (right, output) = scores(&[both, &["--decoder", "libav"]].concat(), &[]);
    assert!(output.status.success() && right.len() == 5, "{output:?}");
    // The last: only intra pictures after others, as a device's parser has it.
    for variables in [[("NVDEC_DECODERS", "1")], [("NVDEC_SURFACES", "0")], [("NVDEC_SURFACES", "20 1")]] {
        let (got, output) = scores(&[both, &["--decoder", "nvdec"]].concat(), &variables);
        assert_eq!(got, right, "{variables:?}: {output:?}");
    }
}

#[test]
fn a_device_that_fails_under_nvdec_is_no_damage_of_the_stream() {
    if !is_stand_in("a_device_that_fails_under_nvdec_is_no_damage_of_the_stream") {
        return;
    }
    for (plan, how) in [
        ("cuvidCreateDecoder=2", &["--nodes", "0"][..]),
        ("cuvidMapVideoFrame64=999", &["--nodes", "0", "--continuous"]),
        ("cuvidCreateDecoder=2", &["--nodes", "0", "--isolate"]),
        ("cuvidCreateVideoParser=2", &["--nodes", "0", "--isolate"]),
    ] {
        let output =
            video(&[&["--streams", "2", "--decoder", "nvdec"], how].concat(), &[("NVDEC_FAILS", plan)]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{plan}: {output:?}");
        assert!(text.contains("no decoder: cuvid") && text.contains("--decoder libav"), "{plan}: {text}");
        assert!(!text.contains("damaged"), "{plan}: {text}");
    }
}

#[test]
fn what_nvdec_refuses_is_named_with_the_remedy_and_nothing_panics() {
    if !is_stand_in("what_nvdec_refuses_is_named_with_the_remedy_and_nothing_panics") {
        return;
    }
    refused(("NVDEC_CODECS", "hevc"), &[], &["decodes no H.264", "--decoder libav"]);
    let h265 = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/streams/hevc_cropped.265");
    refused(("NVDEC_CODECS", "h264"), &[h265], &["hevc_cropped", "H.265", "libavcodec"]);
    refused(("NVDEC_MOST", "300"), &["--class", "cif"], &["48×16 to 300×4096", "384×320", "--decoder libav"]);
    // One decoder for both sizes: the parser goes on after the larger was refused.
    refused(("NVDEC_MOST", "300"), &["--decoders", "1", "--nodes", "0"], &["no decoder: NVDEC", "384×320"]);
    refused(
        ("DRIVER_FAILS", "cuMemAlloc_v2=2"),
        &["--analyse", "cpu"],
        &["cuvidCreateDecoder", "use fewer streams"],
    );
    for call in [
        "cuvidGetDecoderCaps",
        "cuvidCreateVideoParser",
        "cuvidParseVideoData",
        "cuvidCreateDecoder",
        "cuvidDecodePicture",
        "cuvidMapVideoFrame64",
        "cuvidGetDecodeStatus",
    ] {
        let plan = format!("{call}=999");
        refused(("NVDEC_FAILS", &plan), &["--nodes", "0"], &[call, "code 999"]);
    }
}

#[test]
fn a_gpu_gives_the_scores_of_the_processor() {
    if !is_there("a_gpu_gives_the_scores_of_the_processor") {
        return;
    }
    let arguments = ["--streams", "60", "--passes", "2", "--decoders", "3"];
    let (right, _) = scores(&[&arguments, &["--analyse", "cpu"] as &[&str]].concat(), &[]);
    assert_eq!(right.len(), 121);
    for (nodes, analyse) in [("0", "gpu"), ("1", "gpu"), ("4", "gpu"), ("5", "auto")] {
        let how = ["--nodes", nodes, "--analyse", analyse];
        let (got, output) = scores(&[&arguments, &how as &[&str]].concat(), &[]);
        assert!(got == right, "{nodes} nodes: {output:?}");
        assert!(printed(&output).contains("analysed by: GPU 0 ("), "{output:?}");
    }
}

#[test]
fn analysing_nodes_share_the_devices() {
    if !is_stand_in("analysing_nodes_share_the_devices") {
        return;
    }
    for nodes in ["0", "4"] {
        // Streams that are followed are shared out by number, so that both decoders have some whoever is first.
        let how = ["--continuous", "--passes", "20", "--decoders", "2", "--nodes", nodes];
        let text = printed(&video(
            &[&["--streams", "12", "--class", "qcif"], &how[..]].concat(),
            &[("DRIVER_DEVICES", "2")],
        ));
        assert!(text.contains("frames GPU 0 (stand-in), ") && text.contains("frames GPU 1 ("), "{text}");
    }
}

#[test]
fn a_device_that_fails_ends_the_run_or_the_processor_goes_on() {
    if !is_stand_in("a_device_that_fails_ends_the_run_or_the_processor_goes_on") {
        return;
    }
    // Enough passes for each plan, however many pictures of one are analysed together.
    let arguments = ["--streams", "12", "--passes", "8", "--decoders", "2", "--class", "qcif"];
    let (right, _) = scores(&[&arguments, &["--analyse", "cpu"] as &[&str]].concat(), &[]);
    // Each at a call after those that compare the device with the processor, lost for good or not.
    let plans = [
        "cuLaunchKernel=719@4",
        "cuMemcpyHtoDAsync_v2=700@4",
        "cuMemcpyDtoHAsync_v2=700@5",
        "cuEventQuery=719@6",
        "cuMemHostAlloc=2@2",
    ];
    for plan in plans {
        for nodes in ["0", "4"] {
            let variables = [("DRIVER_FAILS", plan), ("DRIVER_DELAY", "2")];
            let how = ["--nodes", nodes, "--analyse", "auto"];
            let (got, output) = scores(&[&arguments, &how as &[&str]].concat(), &variables);
            assert!(got == right, "{plan}, {nodes} nodes: {output:?}");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains("The processor goes on"), "{plan}, {nodes} nodes: {output:?}");
            assert!(printed(&output).contains("the processor\n"), "{output:?}");

            let how = ["--nodes", nodes, "--analyse", "gpu"];
            let (_, output) = scores(&[&arguments, &how as &[&str]].concat(), &variables);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{plan}, {nodes} nodes: {output:?}");
            assert!(said.contains("GPU 0 (stand-in): "), "{plan}, {nodes} nodes: {output:?}");
        }
    }
}
