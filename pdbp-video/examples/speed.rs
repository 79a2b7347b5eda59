//! Prints what decoding and analysing one picture costs, per bundled clip and decoder, in processor time of one thread, and what a
//! live decoder takes: `cargo run --release -p pdbp-video --example speed`

use pdbp_video::account::Stopwatch;
use pdbp_video::clips::{Clip, bundled};
use pdbp_video::decode::memory::Needs;
use pdbp_video::decode::{Codec, Follower, Sampler, Wanted, Yuv};
use pdbp_video::frame::{FrameId, frame_len, read_frame, write_frame};
use pdbp_video::measure::{Analyser, Threads};
use pdbp_video::streams::StreamNo;

type Failed = Box<dyn std::error::Error>;

/// Repetitions; the fastest fifth counts, since other programs may be using the machine.
const ROUNDS: u32 = 15;

fn microseconds(mut laps: Vec<u64>, each: usize) -> f64 {
    laps.sort_unstable();
    laps.truncate(laps.len().div_ceil(5));
    laps.iter().sum::<u64>() as f64 / laps.len() as f64 / each as f64 / 1e3
}

/// Processor time of this thread and of processes that decode for it.
struct Clock(Stopwatch, u64);

impl Clock {
    fn start() -> Self {
        Self(Stopwatch::start(), children_ns())
    }

    fn lap(&mut self) -> u64 {
        let before = std::mem::replace(&mut self.1, children_ns());
        self.0.lap() + self.1.saturating_sub(before)
    }
}

/// Processor time of the processes that the program has started; 0 where the system does not tell.
fn children_ns() -> u64 {
    let children = std::fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    let time = |id: &str| {
        std::fs::read_to_string(format!("/proc/{id}/schedstat")).ok()?.split(' ').next()?.parse::<u64>().ok()
    };
    children.split_whitespace().filter_map(time).sum::<u64>()
}

fn main() -> Result<std::process::ExitCode, Failed> {
    #[cfg(target_os = "linux")]
    if let Some(code) = pdbp_video::decode::serve_isolated() {
        return Ok(code);
    }
    let mut codecs = vec![Codec::choose(&Wanted::OpenH264)?];
    match Codec::choose(&Wanted::Libav) {
        Ok(libav) => codecs.push(libav),
        Err(error) => eprintln!("{error}"),
    }
    // Each as it is and, where that can be, in another process.
    let program = std::env::current_exe()?;
    let codecs = codecs.into_iter().flat_map(|codec| [Some(codec), codec.isolated(&program).ok()]).flatten();
    let clips = bundled().clips;
    println!("{:16} {:>9} {:>12}", "clip", "size", "analysis µs");
    for clip in &clips {
        println!("{:16} {:>9} {:>12.1}", clip.name(), clip.size().to_string(), analysis(clip)?);
    }
    for codec in codecs {
        println!("\n{codec}");
        if let Some(needs) = Needs::measure(codec, &clips) {
            println!("live decoder: {needs}");
        }
        println!("{:16} {:>9} {:>12} {:>12}", "clip", "size", "key frame µs", "P frame µs");
        for clip in &clips {
            let (key, predicted) = decoding(codec, clip)?;
            println!("{:16} {:>9} {key:>12.0} {predicted:>12.0}", clip.name(), clip.size().to_string());
        }
    }
    Ok(std::process::ExitCode::SUCCESS)
}

/// Of one picture, in microseconds.
fn analysis(clip: &Clip) -> Result<f64, Failed> {
    let mut analyser = Analyser::new(Threads::Caller);
    let mut frame = vec![0; frame_len(clip.size())];
    let id = FrameId { stream: StreamNo(0), frame: 0, pass: 0, captured_ns: 0 };
    let pack = |picture: &Yuv<'_>| write_frame(id, picture, &mut frame);
    Sampler::new(Codec::default()).sample(clip, &clip.index().entries[0], pack)??;
    let (_, picture) = read_frame(&frame)?;
    let mut laps = Vec::new();
    for _ in 0..ROUNDS {
        let mut watch = Stopwatch::start();
        for _ in 0..20 {
            std::hint::black_box(analyser.analyse(&picture));
        }
        laps.push(watch.lap());
    }
    Ok(microseconds(laps, 20))
}

/// Of a key frame and of one of the others, in microseconds.
fn decoding(codec: Codec, clip: &Clip) -> Result<(f64, f64), Failed> {
    let entries = &clip.index().entries;
    let mut sampler = Sampler::new(codec);
    let mut keys = Vec::new();
    for _ in 0..ROUNDS {
        let mut watch = Clock::start();
        for entry in entries {
            sampler.sample(clip, entry, |_| ())?;
        }
        keys.push(watch.lap());
    }
    // Key frames in the order of the stream are left out of these laps.
    let mut follower = Follower::new(codec, &entries[0]);
    let is_key = |picture: usize| entries.iter().any(|entry| entry.picture as usize == picture);
    let pictures = clip.index().pictures.len();
    let mut others = Vec::new();
    for _ in 0..ROUNDS.div_ceil(3) {
        let mut spent = 0;
        let mut watch = Clock::start();
        for picture in 0..pictures {
            follower.step(clip, |_, _| ())?;
            // Asked for at key frames only, since that costs time, too.
            if is_key(picture + 1) || picture + 1 == pictures {
                spent += watch.lap();
            } else if is_key(picture) {
                watch.lap();
            }
        }
        others.push(spent);
    }
    Ok((microseconds(keys, entries.len()), microseconds(others, pictures - entries.len())))
}
