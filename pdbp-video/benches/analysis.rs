//! Analysis of 10,080 decoded QCIF pictures, and of as many bytes of larger ones: by the processor, by the kernels of a device alone,
//! and with the copies from the host.
//!
//! `cargo bench -p pdbp-video --bench analysis`. Needs 2 GiB of memory, and 3 GiB on a device. Without a device it says so and
//! measures the processor only. The pictures are those of the bundled clips, each at an address of its own. The best of some runs
//! counts, since other programs may be using the machine. Without `--bench` (as `cargo test --benches` calls it) a hundredth of the
//! pictures is analysed once.

use std::hint::black_box;
use std::time::{Duration, Instant};

use pdbp_video::clips::bundled;
use pdbp_video::decode::{Codec, Follower, Yuv};
use pdbp_video::frame::{FrameId, StreamClass, frame_len, read_frame, write_frame};
use pdbp_video::measure::{Analyser, Scores, Threads};
use pdbp_video::streams::StreamNo;
use rayon::prelude::*;

/// Bytes of a load: 10,080 QCIF pictures.
const LOAD: usize = 10_080 * 176 * 144 * 3 / 2;

type Failed = Box<dyn std::error::Error>;

/// Pictures in host memory.
struct Load {
    name: &'static str,
    frames: Vec<Vec<u8>>,
}

impl Load {
    /// So many bytes of pictures of some classes, the same of each.
    fn of(name: &'static str, classes: &[StreamClass], bytes: usize) -> Result<Self, Failed> {
        let mut frames = Vec::new();
        for class in classes {
            let decoded = decoded(*class)?;
            let each = bytes / classes.len();
            let mut taken = 0;
            for frame in decoded.iter().cycle() {
                if taken + planes(frame) > each {
                    break;
                }
                taken += planes(frame);
                frames.push(frame.clone());
            }
        }
        // Neighbours are of different sizes.
        let mut state = 1_u64;
        frames.sort_by_cached_key(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 32
        });
        Ok(Self { name, frames })
    }

    fn pictures(&self) -> Result<Vec<Yuv<'_>>, Failed> {
        Ok(self
            .frames
            .iter()
            .map(|frame| read_frame(frame).map(|(_, picture)| picture))
            .collect::<Result<_, _>>()?)
    }

    /// Bytes of all planes.
    fn bytes(&self) -> usize {
        self.frames.iter().map(|frame| planes(frame)).sum()
    }

    fn print(&self, what: &str, took: Duration, rate: &str) {
        let (seconds, frames) = (took.as_secs_f64(), self.frames.len() as f64);
        println!(
            "{:6} {:7} {what:44} {:9.2} ms {:11.0} frames/s {:8.1} GB/s {rate}",
            self.name,
            self.frames.len(),
            seconds * 1e3,
            frames / seconds,
            self.bytes() as f64 / seconds / 1e9
        );
    }
}

fn planes(frame: &[u8]) -> usize {
    frame.len() - pdbp_video::frame::FrameHeader::LEN
}

/// All pictures of the bundled clips of a class.
fn decoded(class: StreamClass) -> Result<Vec<Vec<u8>>, Failed> {
    let mut frames = Vec::new();
    for clip in bundled().clips.iter().filter(|clip| clip.class() == class) {
        let mut follower = Follower::new(Codec::default(), &clip.index().entries[0]);
        for _ in 0..clip.index().pictures.len() {
            let id = FrameId { stream: StreamNo(0), frame: 0, pass: 0, captured_ns: 0 };
            follower.step(clip, |_, picture| {
                let mut frame = vec![0; frame_len(picture.size())];
                // The length is right.
                let _ = write_frame(id, picture, &mut frame);
                frames.push(frame);
            })?;
        }
    }
    Ok(frames)
}

/// The best of some runs.
fn best<E>(runs: u32, mut run: impl FnMut() -> Result<(), E>) -> Result<Duration, E> {
    let mut best = Duration::MAX;
    for _ in 0..runs {
        let began = Instant::now();
        run()?;
        best = best.min(began.elapsed());
    }
    Ok(best)
}

fn by_processor(load: &Load, runs: u32) -> Result<Vec<Scores>, Failed> {
    let pictures = load.pictures()?;
    let mut scores = Vec::new();
    let took = best(runs, || {
        let mut analyser = Analyser::new(Threads::Caller);
        scores = pictures.iter().map(|picture| analyser.analyse(picture)).collect();
        Ok::<_, Failed>(())
    })?;
    load.print("processor, one thread", took, "");
    let took = best(runs, || {
        let all = pictures
            .par_iter()
            .map_init(|| Analyser::new(Threads::Caller), |analyser, picture| analyser.analyse(picture));
        black_box(all.collect::<Vec<_>>());
        Ok::<_, Failed>(())
    })?;
    load.print(&format!("processor, {} threads", rayon::current_num_threads()), took, "");
    Ok(scores)
}

#[cfg(feature = "cuda")]
mod device {
    use pdbp_cuda::device::{Cuda, Device as _};
    use pdbp_video::measure::gpu::bench::{Batches, Resident, Stage};
    use pdbp_video::measure::gpu::{Gpu, GpuAnalyser};

    use super::*;

    /// Bytes of a batch.
    const BATCH: usize = 8 << 20;

    /// The first device; says why there is none.
    pub(super) fn first() -> Option<Gpu> {
        Gpu::open(0).inspect_err(|reason| println!("no figures of a device: {reason}")).ok()
    }

    /// The time of one run of many, between which nobody waits.
    fn each(
        runs: u32,
        times: u32,
        mut run: impl FnMut(u32) -> Result<(), Failed>,
    ) -> Result<Duration, Failed> {
        run(1)?;
        Ok(best(runs, || run(times))? / times)
    }

    /// Copies as many bytes as the load has from device memory to device memory.
    fn copy(load: &Load, runs: u32, times: u32) -> Result<Duration, Failed> {
        let device = Cuda::open(0)?;
        let (queue, bytes) = (device.queue()?, load.bytes());
        let (from, to) = (device.allocate(bytes)?, device.allocate(bytes)?);
        each(runs, times, |times| {
            for _ in 0..times {
                // SAFETY: both memories are as long, and are there until the end, which is awaited.
                unsafe {
                    cudarc::driver::result::memcpy_dtod_async(
                        to.address(),
                        from.address(),
                        bytes,
                        queue.stream().cast(),
                    )
                }?;
            }
            Ok(device.wait(&device.mark(&queue)?)?)
        })
    }

    pub(super) fn measure(
        gpu: &Gpu,
        load: &Load,
        right: &[Scores],
        runs: u32,
        times: u32,
    ) -> Result<(), Failed> {
        let pictures = load.pictures()?;
        let copied = copy(load, runs, times)?;
        // A copy reads and writes its bytes.
        let bandwidth = 2.0 * load.bytes() as f64 / copied.as_secs_f64();
        load.print(
            "device memory to device memory",
            copied,
            &format!("({:.0} GB/s of traffic)", bandwidth / 1e9),
        );
        let resident = Resident::new(gpu, &pictures)?;
        let luma: usize =
            pictures.iter().map(|p| usize::from(p.size().width) * usize::from(p.size().height)).sum();
        let stages = [
            (Stage::Analyse, "kernel: restored and measured", load.bytes() + 3 * luma),
            (Stage::Measure, "kernel: measured only, chroma not read", luma),
        ];
        for (stage, what, traffic) in stages {
            let took = each(runs, times, |times| Ok(resident.run(stage, times)?))?;
            let traffic = traffic as f64 / took.as_secs_f64();
            let frames = load.bytes() as f64 / took.as_secs_f64();
            let rate = format!(
                "({:.0} GB/s of traffic, {:.0} % of the copy's; frames read once {:.0} % of it)",
                traffic / 1e9,
                100.0 * traffic / bandwidth,
                100.0 * frames / bandwidth
            );
            load.print(what, took, &rate);
        }
        drop(resident);
        let per_batch = (BATCH * load.frames.len() / load.bytes()).max(1);
        let mut batches = Batches::new(gpu, &pictures, per_batch)?;
        let mut scores = batches.run()?;
        let took = best(runs, || batches.run().map(|all| scores = all))?;
        assert!(scores == right, "the device gives other scores than the processor");
        load.print("from pinned memory, scores back", took, "");
        let took = best(runs, || {
            let mut analyser = GpuAnalyser::new(gpu);
            for (number, picture) in pictures.iter().enumerate() {
                analyser.push(number, picture)?;
            }
            analyser.finish()
        })?;
        load.print("through an analyser, which copies them first", took, "");
        Ok(())
    }
}

fn main() -> Result<(), Failed> {
    let whole = std::env::args().any(|argument| argument == "--bench");
    let (bytes, runs) = if whole { (LOAD, 5) } else { (LOAD / 100, 1) };
    #[cfg(feature = "cuda")]
    let gpu = device::first();
    #[cfg(feature = "cuda")]
    if let Some(gpu) = &gpu {
        println!("{}", gpu.name());
    }
    let all = [StreamClass::Qcif, StreamClass::Cif, StreamClass::D1];
    for (name, classes) in [("QCIF", &all[..1]), ("CIF", &all[1..2]), ("D1", &all[2..]), ("mixed", &all)] {
        let load = Load::of(name, classes, bytes)?;
        let scores = by_processor(&load, runs.min(3))?;
        #[cfg(feature = "cuda")]
        if let Some(gpu) = &gpu {
            device::measure(gpu, &load, &scores, runs, if whole { 20 } else { 1 })?;
        }
        black_box(scores);
    }
    Ok(())
}
