//! `--isolate`: decoders that crash. A libavcodec that crashes over certain pictures is made by linking one function in front of the system's.
#![cfg(target_os = "linux")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;

use pdbp_video::account::RunClock;
use pdbp_video::annexb::Index;
use pdbp_video::clips::{BUNDLED, Clip};
use pdbp_video::decode::{Codec, Follower, Sampler, Wanted};
use pdbp_video::direct;
use pdbp_video::live::Live;
use pdbp_video::measure::Place;
use pdbp_video::plan::{Mode, Plan};
use pdbp_video::streams::{StreamNo, Streams};

/// The program, whose decoders are to be started.
const PROGRAM: &str = env!("CARGO_BIN_EXE_pdbp-video");

fn codecs() -> Vec<Codec> {
    [Wanted::OpenH264, Wanted::Libav].iter().filter_map(|wanted| Codec::choose(wanted).ok()).collect()
}

/// The pictures that `codec` shows of a stream, by number.
fn shown(codec: Codec, streams: &Streams) -> Vec<(u32, Vec<u8>)> {
    let mut follower = Follower::of(codec, streams, StreamNo(0)).unwrap();
    let clip = streams.clip(StreamNo(0)).unwrap();
    let mut shown = Vec::new();
    for _ in 0..40 {
        shown.extend(
            follower
                .step(clip, |number, picture| {
                    let size = picture.size();
                    let (luma, chroma) = (
                        usize::from(size.width) * usize::from(size.height),
                        usize::from(size.width.div_ceil(2)) * usize::from(size.height.div_ceil(2)),
                    );
                    let mut planes = vec![0; luma + 2 * chroma];
                    let (y, rest) = planes.split_at_mut(luma);
                    let (u, v) = rest.split_at_mut(chroma);
                    picture.copy_planes(y, u, v);
                    (number, planes)
                })
                .unwrap(),
        );
    }
    shown
}

#[test]
fn pictures_of_other_processes_are_the_same() {
    for name in ["cabac_b", "cropped", "cavlc_slices"] {
        let data = fs::read(format!("{}/tests/streams/{name}.264", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let streams = Streams::new(vec![pdbp_video::clips::Clip::new(name, data).unwrap()], 1);
        for codec in codecs() {
            let isolated = codec.isolated(Path::new(PROGRAM)).unwrap();
            assert!(shown(isolated, &streams) == shown(codec, &streams), "{name}, {codec}");
        }
    }
}

/// A clip whose picture 40, and all that follow up to the next key picture, end the process that decodes them, in such a libavcodec.
fn hostile() -> Vec<u8> {
    hostile_at(40)
}

fn hostile_at(picture: usize) -> Vec<u8> {
    let data = BUNDLED[0].data;
    let index = Index::new(data).unwrap();
    let place = index.pictures[picture].start;
    let unit = b"\0\0\0\x01\x06\x05\x0cCRASH-HERE!!\x80";
    [&data[..place], unit, &data[place..]].concat()
}

/// Sends on what it is sent, unless it has that text; then it writes a letter into the file CRASHES and crashes.
const CRASHER: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
struct packet { void *buf; long pts, dts; unsigned char *data; int size; };
int avcodec_send_packet(void *context, const struct packet *packet) {
    if (packet && packet->data && memmem(packet->data, packet->size, "CRASH-HERE!!", 12)) {
        FILE *file = fopen(CRASHES, "a");
        if (file) { fputc('x', file); fclose(file); }
        *(volatile int *)0 = 1;
    }
    static int (*real)(void *, const struct packet *);
    if (!real) real = (int (*)(void *, const struct packet *))dlsym(RTLD_NEXT, "avcodec_send_packet");
    return real(context, packet);
}
"#;

/// That library; `None`, and why, where it cannot be made.
fn crasher(folder: &Path) -> Option<PathBuf> {
    // It is loaded then.
    let is_there = Codec::choose(&Wanted::Libav).is_ok();
    let maps = if is_there { fs::read_to_string("/proc/self/maps").unwrap() } else { String::new() };
    let file = maps
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .find(|file| file.contains("/libavcodec.so."));
    let Some(file) = file else {
        eprintln!(
            "decoders that crash: skipped: there is no libavcodec (Debian 12: apt install libavcodec59)"
        );
        return None;
    };
    let (source, library) = (folder.join("crasher.c"), folder.join("libcrasher.so"));
    fs::write(&source, CRASHER).unwrap();
    let mut command = Command::new("cc");
    command.arg(format!("-DCRASHES=\"{}\"", folder.join("crashes").display()));
    command.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).args([
        "-Wl,--no-as-needed",
        file,
        "-ldl",
    ]);
    match command.output() {
        Ok(output) if output.status.success() => Some(library),
        other => {
            eprintln!("decoders that crash: skipped: no C compiler that links with {file}: {other:?}");
            None
        }
    }
}

fn run(library: &Path, arguments: &[&str], files: &[&Path]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.env("PDBP_TRANSPORT", "local").arg("--decoder").arg(library).args([
        "--continuous",
        "--analyse",
        "cpu",
    ]);
    command
        .args(["--streams", "4", "--decoders", "1", "--passes", "132"])
        .args(arguments)
        .args(files)
        .output()
        .unwrap()
}

#[test]
fn a_decoder_that_crashes_takes_no_other_stream_along() {
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = crasher(folder.path()) else { return };
    let (bad, good) = (folder.path().join("bad.h264"), folder.path().join("good.h264"));
    fs::write(&bad, hostile()).unwrap();
    fs::write(&good, BUNDLED[0].data).unwrap();
    // In one process it ends everything.
    let output = run(&library, &[], &[&bad, &good]);
    assert!(output.status.code().is_none(), "{output:?}");
    for nodes in ["0", "4"] {
        let report = folder.path().join(format!("report{nodes}"));
        let output = run(
            &library,
            &["--isolate", "--nodes", nodes, "--report", report.to_str().unwrap()],
            &[&bad, &good],
        );
        let (table, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(
            errors.contains("bad.h264 (stream") && errors.contains("crashed (SIGSEGV) at picture 40"),
            "{errors}"
        );
        assert!(table.contains("in processes of their own"), "{table}");
        let faults = fs::read_to_string(report.join("faults.csv")).unwrap();
        // Streams 0 and 2 are bad; 1 and 3 lose a decoder twice at most, when each of these crashes for the first time.
        let of = |stream: &str| faults.lines().filter(|line| line.split(',').nth(1) == Some(stream)).count();
        assert!(of("0") >= 1 && of("2") >= 1 && of("1") <= 2 && of("3") <= 2, "{faults}");
        let frames = fs::read_to_string(report.join("streams.csv")).unwrap();
        let of = |stream: &str| -> u32 {
            let line = frames.lines().find(|line| line.starts_with(&format!("{stream},"))).unwrap();
            line.rsplit(',').nth(6).unwrap().parse().unwrap()
        };
        // The rest went on: of 132 pictures those until the next key picture are missing, 30 each time at most.
        assert!(of("1") >= 70 && of("3") >= 70, "{frames}");
    }
}

#[test]
fn a_stream_that_crashes_again_and_again_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = crasher(folder.path()) else { return };
    let codec = Codec::choose(&Wanted::File(library)).unwrap().isolated(Path::new(PROGRAM)).unwrap();
    let streams = Streams::new(vec![pdbp_video::clips::Clip::new("bad", hostile()).unwrap()], 1);
    let mut follower = Follower::of(codec, &streams, StreamNo(0)).unwrap();
    let clip = streams.clip(StreamNo(0)).unwrap();
    let errors: Vec<_> = (0..700)
        .filter_map(|_| follower.step(clip, |_, _| ()).err())
        .map(|error| error.to_string())
        .collect();
    assert_eq!(errors.len(), 3, "{errors:?}");
    assert!(errors[0].contains("begins anew") && errors[2].contains("given up"), "{errors:?}");
}

/// How often that library has crashed.
fn crashes(folder: &Path) -> usize {
    fs::read(folder.join("crashes")).map_or(0, |letters| letters.len())
}

fn isolated(library: PathBuf) -> Codec {
    Codec::choose(&Wanted::File(library)).unwrap().isolated(Path::new(PROGRAM)).unwrap()
}

#[test]
fn a_page_that_shows_a_stream_that_crashes_decoders_disturbs_none_that_measures() {
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = crasher(folder.path()) else { return };
    let codec = isolated(library);
    let clip = |name: &str, data: Vec<u8>| Clip::new(name, data).unwrap();
    // As many processes as threads that decode may have; another thread would be given one of these.
    let good = Streams::new(vec![clip("good", BUNDLED[0].data.to_vec())], 1);
    let steps = |follower: &mut Follower, number| {
        for _ in 0..number {
            follower.step(good.clip(StreamNo(0)).unwrap(), |_, _| ()).unwrap();
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let mut followers: Vec<_> = thread::scope(|scope| {
        let one = || {
            let mut follower = Follower::of(codec, &good, StreamNo(0)).unwrap();
            steps(&mut follower, 3);
            follower
        };
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    // The last picture that is known of the bad stream comes behind the one over which decoders crash, as for a decoder that is spared it.
    let bad = clip("bad", hostile());
    let shown = clip("bad", BUNDLED[0].data.to_vec());
    let plan = Plan { mode: Mode::Continuous, passes: 50, decoders: 1 };
    let known = Streams::new(vec![shown], 1);
    let outcome = direct::run(&known, plan, Codec::default(), &Place::cpu(), RunClock::start(), &()).unwrap();
    let live = Live::new("title".into(), Streams::new(vec![bad], 1), plan, codec);
    let last = outcome.arrivals.iter().filter(|arrival| arrival.record.id().frame > 42).copied();
    pdbp_video::progress::Observer::scored(&live, &last.collect::<Vec<_>>());
    let page = live.serve("127.0.0.1:0").unwrap();
    for _ in 0..3 {
        let ask = || {
            let mut stream = TcpStream::connect(page.address()).unwrap();
            write!(stream, "GET /view HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
            let mut view = String::new();
            stream.read_to_string(&mut view).ok().filter(|_| view.starts_with("HTTP/1.1 200 ")).map(|_| view)
        };
        // The server refuses a request that does not come in time.
        let view = (0..10).find_map(|_| ask()).expect("there is an answer");
        assert!(view.contains("Stream 0") && !view.contains("data:image"), "{view}");
        followers.iter_mut().for_each(|follower| steps(follower, 2));
    }
    // It is not tried again until there is another picture.
    assert_eq!(crashes(folder.path()), 1);
}

#[test]
fn an_entry_point_that_crashes_decoders_does_so_once_for_others_and_three_times_in_all() {
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = crasher(folder.path()) else { return };
    let codec = isolated(library);
    let (bad, good) =
        (Clip::new("bad", hostile_at(30)).unwrap(), Clip::new("good", BUNDLED[0].data).unwrap());
    let mut sampler = Sampler::new(codec);
    let streams = Streams::new(vec![good.clone()], 1);
    let mut other = Follower::of(codec, &streams, StreamNo(0)).unwrap();
    other.step(&good, |_, _| ()).unwrap();
    let (mut errors, mut lost) = (Vec::new(), 0);
    for _ in 0..5 {
        sampler.sample(&good, &good.index().entries[0], |_| ()).unwrap();
        errors.push(sampler.sample(&bad, &bad.index().entries[1], |_| ()).unwrap_err().to_string());
        lost += usize::from(other.step(&good, |_, _| ()).is_err());
    }
    assert!(errors[0].contains("SIGSEGV") && errors[1].contains("SIGSEGV"), "{errors:?}");
    assert!(errors[2..].iter().all(|error| error.contains("given up")), "{errors:?}");
    assert_eq!((crashes(folder.path()), lost), (3, 1));
    assert!(sampler.sample(&bad, &bad.index().entries[2], |_| ()).is_ok(), "its other pictures are shown");
}
