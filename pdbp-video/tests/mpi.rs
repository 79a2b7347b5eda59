//! The program `pdbp-video` as the ranks of a job.

#[path = "../../pdbp-cli/tests/launcher/mod.rs"]
mod launcher;

use launcher::Ended;
use std::path::Path;
use std::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_pdbp-video");

fn video(ranks: usize, arguments: &[&str]) -> Option<Ended> {
    launcher::run(PROGRAM, &[(ranks, arguments)])
}

/// Stream, frame and scores of every line, in a fixed order.
fn scores(csv: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(csv).unwrap();
    let line = |line: &str| {
        let fields: Vec<_> = line.split(',').collect();
        [&fields[..5], &fields[9..]].concat().join(",")
    };
    let mut lines: Vec<_> = text.lines().map(line).collect();
    lines.sort();
    lines
}

#[test]
fn one_process_speaks_and_the_scores_are_those_of_a_single_process() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let arguments = ["--streams", "12", "--passes", "2", "--report", report.to_str().unwrap()];
    let Some(Ended { status, stdout, stderr }) = video(3, &arguments) else { return };
    assert!(status.success(), "{stdout}{stderr}");
    for once in ["12 streams", "node0 → node1", "node0 → node2", "processor time outside both", "report: "]
    {
        assert_eq!(stdout.matches(once).count(), 1, "{once}: {stdout}");
    }
    let page = std::fs::read_to_string(report.join("index.html")).unwrap();
    assert!(page.contains("3 nodes, processes over MPI"));
    let alone = folder.path().join("alone.csv");
    let arguments = ["--streams", "12", "--passes", "2", "--quiet", "--csv", alone.to_str().unwrap()];
    assert!(Command::new(PROGRAM).args(arguments).args(["--nodes", "0"]).status().unwrap().success());
    assert_eq!(scores(&report.join("frames.csv")), scores(&alone));
}

#[test]
fn replayed_and_continuous_streams_pass_between_processes() {
    for arguments in
        [&["--replay", "--passes", "3"] as &[&str], &["--continuous", "--passes", "5", "--class", "qcif"]]
    {
        let Some(Ended { status, stdout, stderr }) = video(4, &[arguments, &["--streams", "20"]].concat())
        else {
            return;
        };
        assert!(status.success(), "{stdout}{stderr}");
        assert_eq!(stdout.matches("mean of a pair").count(), 1, "{stdout}");
    }
}

#[test]
fn what_all_ranks_know_is_said_once() {
    for (arguments, word) in [
        (&["--nodes", "0"] as &[&str], "without transport"),
        (&["--nodes", "7"], "3 processes"),
        (&["--streams", "0"], "invalid value '0'"),
    ] {
        let Some(Ended { status, stdout, stderr }) = video(3, arguments) else { return };
        assert!(!status.success() && stdout.is_empty(), "{stdout}{stderr}");
        assert_eq!(stderr.matches(word).count(), 1, "{stderr}");
    }
}

#[test]
fn ranks_that_were_given_different_things_are_found_out() {
    let groups = [(2, &["--streams", "20"] as &[&str]), (1, &["--streams", "21"])];
    let Some(Ended { status, stdout, stderr }) = launcher::run(PROGRAM, &groups) else { return };
    assert!(!status.success(), "{stdout}{stderr}");
    assert!(stderr.contains("node2 has other clips, streams or decoders than node0"), "{stderr}");
}

/// ffmpeg, until it is dropped.
struct Sender(std::process::Child);

impl Drop for Sender {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn live_sources_are_received_by_the_processes_that_decode_them_and_reported_by_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let clip = folder.path().join("clip.mp4");
    let ffmpeg = |arguments: &[&str]| {
        let mut command = Command::new("ffmpeg");
        command.args(["-hide_banner", "-loglevel", "error"]).args(arguments);
        command
    };
    let raw = concat!(env!("CARGO_MANIFEST_DIR"), "/clips/bbb_qcif.h264");
    let wrap = ffmpeg(&["-fflags", "+genpts", "-r", "25", "-i", raw, "-c", "copy"]).arg(&clip).status();
    let Ok(wrapped) = wrap else {
        return eprintln!("live sources over MPI: skipped: there is no ffmpeg (Debian: apt install ffmpeg)");
    };
    assert!(wrapped.success());
    let descriptions = ["one.sdp", "two.sdp"].map(|name| folder.path().join(name));
    let _senders = descriptions.each_ref().map(|sdp| {
        let port = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = ffmpeg(&["-re", "-stream_loop", "-1", "-i"]);
        command.arg(&clip).args(["-c", "copy", "-f", "rtp", &format!("rtp://127.0.0.1:{port}"), "-sdp_file"]);
        Sender(command.arg(sdp).stdin(std::process::Stdio::null()).spawn().unwrap())
    });
    let began = std::time::Instant::now();
    let is_there = |sdp: &Path| std::fs::read(sdp).is_ok_and(|text| text.ends_with(b"\n"));
    while !descriptions.iter().all(|sdp| is_there(sdp)) {
        assert!(began.elapsed().as_secs() < 180, "no session description");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let [one, two] = descriptions.each_ref().map(|sdp| sdp.to_str().unwrap());
    // Nobody is given this port.
    let url = "rtsp://127.0.0.1:1/x";
    // On a busy machine a short run may have no picture of a source.
    let mut runs = ["5", "60"].into_iter().peekable();
    while let Some(seconds) = runs.next() {
        let Some(ended) = video(4, &["--passes", seconds, one, two, url]) else { return };
        let Ended { status, stdout, stderr } = ended;
        assert!(!status.success() && stderr.matches("refused").count() == 1, "{stdout}{stderr}");
        let rows: Vec<Vec<_>> = stdout.lines().map(|line| line.split('│').map(str::trim).collect()).collect();
        let number = |row: &Vec<&str>| row[1].parse::<u32>().unwrap();
        let pictures: Vec<_> = rows.iter().filter(|row| row[0].starts_with("rtp://")).map(number).collect();
        assert_eq!(pictures.len(), 2, "{stdout}");
        if pictures.contains(&0) && runs.peek().is_some() {
            continue;
        }
        assert!(!pictures.contains(&0), "{stdout}");
        // Each of them by a process of its own.
        for pair in ["node0 → node2", "node1 → node3"] {
            let row = rows.iter().find(|row| row[0] == pair).unwrap_or_else(|| panic!("{stdout}"));
            assert!(number(row) > 0, "{stdout}");
        }
        return;
    }
}
