//! Prints what decoding and analysing one picture costs, per bundled clip, in processor time of one thread:
//! `cargo run --release -p pdbp-video --example speed`

use pdbp_video::account::Stopwatch;
use pdbp_video::clips::bundled;
use pdbp_video::decode::{Codec, Follower, Sampler, Yuv};
use pdbp_video::frame::{FrameId, frame_len, read_frame, write_frame};
use pdbp_video::measure::{Analyser, Threads};
use pdbp_video::streams::StreamNo;

/// Repetitions; the fastest fifth counts, since other programs may be using the machine.
const ROUNDS: u32 = 15;

fn microseconds(mut laps: Vec<u64>, each: usize) -> f64 {
    laps.sort_unstable();
    laps.truncate(laps.len().div_ceil(5));
    laps.iter().sum::<u64>() as f64 / laps.len() as f64 / each as f64 / 1e3
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!(
        "{:16} {:>9} {:>12} {:>14} {:>12}",
        "clip", "size", "key frame µs", "every frame µs", "analysis µs"
    );
    for clip in &bundled().clips {
        let entries = &clip.index().entries;
        let mut sampler = Sampler::new(Codec::default());
        let mut analyser = Analyser::new(Threads::Caller);
        let mut frame = vec![0; frame_len(clip.size())];
        let id = FrameId { stream: StreamNo(0), frame: 0, pass: 0, captured_ns: 0 };
        let (mut keys, mut all, mut analysis) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let mut watch = Stopwatch::start();
            for entry in entries {
                sampler.sample(clip, entry, |_| ())?;
            }
            keys.push(watch.lap());
            let pack = |picture: &Yuv<'_>| write_frame(id, picture, &mut frame);
            sampler.sample(clip, &entries[0], pack)??;
            let (_, picture) = read_frame(&frame)?;
            watch.lap();
            for _ in 0..20 {
                std::hint::black_box(analyser.analyse(&picture));
            }
            analysis.push(watch.lap());
        }
        let mut follower = Follower::new(Codec::default(), &entries[0]);
        for _ in 0..3 {
            let mut watch = Stopwatch::start();
            for _ in 0..clip.index().pictures.len() {
                follower.step(clip, |_, _| ())?;
            }
            all.push(watch.lap());
        }
        println!(
            "{:16} {:>9} {:>12.0} {:>14.0} {:>12.1}",
            clip.name(),
            clip.size().to_string(),
            microseconds(keys, entries.len()),
            microseconds(all, clip.index().pictures.len()),
            microseconds(analysis, 20)
        );
    }
    Ok(())
}
