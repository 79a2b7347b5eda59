//! Analysis on a CUDA device, many pictures at a time.
//!
//! ```text
//! push ──▶ ┌ batch ┐ full, or nobody waits    copy in ─▶ kernel ─▶ copy sums back     ┌ batch ┐ ──▶ take
//!          │ gathers│ ────────────────────▶ (several under way, each on its own queue) │ over  │
//!          └────────┘                                                                 └───────┘
//! ```
//!
//! * [`Gpu`]: a device with the kernels of `kernels/analysis.cu`, which compute the sums that [`blur`](super::blur) and [`jpeg`](super::jpeg) make
//!   of a picture, and restore it. All sums are integers, and the same code turns them into scores: **they equal the processor's, bit for bit**. A
//!   device that computes wrong sums of a test picture is refused.
//! * [`GpuAnalyser`]: gathers pictures in pinned memory, lets the device fetch one batch while it computes others, and returns the scores in order.
//!   It never waits for the device unless all of its batches are in flight.
//!
//! A batch leaves when it is full, or when its owner has [nothing else to do](GpuAnalyser::rest) and no other is in flight: few pictures wait only
//! briefly, and many travel together.
//!
//! ```
//! use pdbp_cuda::device::Cuda;
//! use pdbp_video::measure::{Analyser, Threads, gpu::{Gpu, GpuAnalyser}};
//! use pdbp_video::{annexb::PictureSize, decode::Yuv};
//!
//! let size = PictureSize { width: 4, height: 2 };
//! let picture = Yuv::new(size, [&[16, 50, 50, 80, 16, 70, 40, 90], &[90, 80], &[240, 9]], [4, 2]).unwrap();
//! match Gpu::open(0) {
//!     Ok(gpu) => {
//!         let mut analyser = GpuAnalyser::new(&gpu);
//!         analyser.push("first", &picture)?;
//!         analyser.finish()?;
//!         let alone = Analyser::new(Threads::Caller).analyse(&picture);
//!         assert_eq!(analyser.take(), Some(("first", alone)));
//!     }
//!     Err(reason) => println!("skipped: {reason}"),
//! }
//! # Ok::<(), pdbp_cuda::device::DeviceError>(())
//! ```

pub mod bench;

mod device_batch;
mod layout;

use std::collections::VecDeque;

use pdbp_cuda::device::{Cuda, DeviceError};
use pdbp_cuda::kernel::{Kernel, Module};

use super::{Analyser, Scores, Sums, blur::BlurSums, jpeg::JpegSums};
use crate::annexb::PictureSize;
use crate::decode::Yuv;
use device_batch::DeviceBatch;
use layout::SumsOfPicture;

const PTX: &str = include_str!("../../../kernels/analysis.ptx");

/// Bytes of a batch: some hundred QCIF pictures.
const BATCH: usize = 4 << 20;
/// Batches of an analyser: one that gathers, one that is copied, one that is computed, and one to spare.
const BATCHES: usize = 4;

/// A device that can analyse. Clones share it.
#[derive(Debug, Clone)]
pub struct Gpu {
    device: Cuda,
    analyse: Kernel,
    name: String,
}

/// Why a device cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// There is none, or it fails.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Its results differ from the processor's.
    #[error(
        "{device} gives other sums than the processor for a picture made to compare them; do not use it, and report it"
    )]
    Disagrees {
        /// Which.
        device: String,
    },
}

impl Gpu {
    /// Opens the device of that number, with the kernels, and checks its results.
    ///
    /// # Errors
    /// There is no such device, it fails, or its results are wrong.
    pub fn open(ordinal: usize) -> Result<Self, GpuError> {
        let device = Cuda::open(ordinal)?;
        let name = format!("GPU {ordinal} ({})", device.info()?.name);
        let analyse = Module::load(&device, PTX)?.kernel("analyse")?;
        let gpu = Self { device, analyse, name };
        gpu.compare()?;
        Ok(gpu)
    }

    /// Its number and name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Compares the sums of noisy pictures, one of a width for which the kernel has a fast way, and one of another.
    fn compare(&self) -> Result<(), GpuError> {
        let noise: Vec<u8> =
            (0..4096_u32).map(|n| (n.wrapping_mul(n * 7 + 13) >> (4 + n / 1024)) as u8).collect();
        let pictures = [(48, 54), (37, 53)].map(|(width, height)| {
            let (luma, chroma) = noise.split_at(usize::from(width) * usize::from(height));
            let (u, v) = chroma.split_at(chroma.len() / 2);
            Yuv::tight(PictureSize { width, height }, luma, u, v)
        });
        let mut batch =
            DeviceBatch::new(&self.device, pictures.map(|p| layout::room_of(p.size())).iter().sum())?;
        for picture in &pictures {
            batch.add(picture);
        }
        batch.launch(&self.analyse)?;
        batch.wait()?;
        let right = pictures.map(|picture| Sums::of_rows(&picture, 0..usize::from(picture.size().height)));
        if batch.sums().map(|(_, sums)| Sums::of_device(sums)).eq(right) {
            return Ok(());
        }
        Err(GpuError::Disagrees { device: self.name.clone() })
    }
}

impl Sums {
    /// Sums as the kernel writes them.
    fn of_device(sums: SumsOfPicture) -> Self {
        let [d0, v0, all0, borders0, turns0, d1, v1, all1, borders1, turns1] = sums;
        Self {
            blur: BlurSums::of([[d0, v0], [d1, v1]]),
            jpeg: JpegSums::of([[all0, borders0, turns0], [all1, borders1, turns1]]),
        }
    }
}

/// Pictures in flight, with their owners' tags.
struct Batch<T> {
    on_device: DeviceBatch,
    tags: Vec<T>,
}

/// Analyses pictures on a device. Each picture comes with a tag, which is returned with its scores.
pub struct GpuAnalyser<T> {
    gpu: Gpu,
    /// Bytes of a batch, unless one picture is larger.
    bytes: usize,
    /// How many more batches may be created.
    more: usize,
    gathering: Option<Batch<T>>,
    /// In flight, in the order in which they left.
    flying: VecDeque<Batch<T>>,
    idle: Vec<Batch<T>>,
    done: VecDeque<(T, Scores)>,
}

impl<T> GpuAnalyser<T> {
    /// Creates an analyser with four batches of 4 MiB, and twice that on the device for restored pictures, all allocated on demand.
    pub fn new(gpu: &Gpu) -> Self {
        Self::with_batches(gpu, BATCH, BATCHES)
    }

    /// Creates one with up to `batches` batches (at least one) of `bytes` bytes each. A batch that is too small for a picture is enlarged.
    pub fn with_batches(gpu: &Gpu, bytes: usize, batches: usize) -> Self {
        Self {
            gpu: gpu.clone(),
            bytes,
            more: batches.max(1),
            gathering: None,
            flying: VecDeque::new(),
            idle: Vec::new(),
            done: VecDeque::new(),
        }
    }

    /// Copies a picture into a batch. Waits for the device if all batches are in flight.
    ///
    /// # Errors
    /// The device has failed, or has no memory. The picture is not taken; [`rescue`](Self::rescue) analyses the others.
    pub fn push(&mut self, tag: T, picture: &Yuv<'_>) -> Result<(), DeviceError> {
        let size = picture.size();
        let is_full = |batch: &Batch<T>| batch.on_device.pictures() > 0 && !batch.on_device.has_room(size);
        if self.gathering.as_ref().is_some_and(is_full) {
            self.launch()?;
        }
        let mut batch = match self.gathering.take() {
            Some(batch) => batch,
            None => self.vacant()?,
        };
        if !batch.on_device.has_room(size) {
            let bytes = layout::room_of(size).next_power_of_two();
            batch.on_device = DeviceBatch::new(&self.gpu.device, bytes.max(self.bytes))?;
        }
        batch.on_device.add(picture);
        batch.tags.push(tag);
        self.gathering = Some(batch);
        Ok(())
    }

    /// Collects what the device has finished.
    ///
    /// # Errors
    /// The device has failed.
    pub fn poll(&mut self) -> Result<(), DeviceError> {
        while let Some(batch) = self.flying.front_mut() {
            if !batch.on_device.is_over()? {
                break;
            }
            self.land();
        }
        Ok(())
    }

    /// Tells the analyser that its owner has nothing else to do now: gathered pictures leave, unless a batch is in flight. Collects what the device
    /// has finished.
    ///
    /// # Errors
    /// The device has failed.
    pub fn rest(&mut self) -> Result<(), DeviceError> {
        self.poll()?;
        if self.flying.is_empty() { self.launch() } else { Ok(()) }
    }

    /// Analyses everything, and waits for it.
    ///
    /// # Errors
    /// The device has failed.
    pub fn finish(&mut self) -> Result<(), DeviceError> {
        self.launch()?;
        while !self.flying.is_empty() {
            self.wait()?;
        }
        Ok(())
    }

    /// The next scores, in the order of the pictures.
    pub fn take(&mut self) -> Option<(T, Scores)> {
        self.done.pop_front()
    }

    /// Pictures that are gathered or in flight.
    pub fn pending(&self) -> usize {
        self.flying.iter().chain(&self.gathering).map(|batch| batch.tags.len()).sum()
    }

    /// After a failure: analyses with `analyser` all pictures that the device has not. They are still here.
    pub fn rescue(mut self, analyser: &mut Analyser) -> VecDeque<(T, Scores)> {
        let mut done = core::mem::take(&mut self.done);
        for mut batch in self.flying.drain(..).chain(self.gathering.take()) {
            // Whether it succeeded or not, the device no longer writes to the pictures.
            let _ = batch.on_device.wait();
            for (number, tag) in batch.tags.drain(..).enumerate() {
                done.extend(batch.on_device.picture(number).map(|picture| (tag, analyser.analyse(&picture))));
            }
        }
        done
    }

    /// Starts the analysis of gathered pictures.
    fn launch(&mut self) -> Result<(), DeviceError> {
        if let Some(batch) = self.gathering.as_mut().filter(|batch| batch.on_device.pictures() > 0) {
            batch.on_device.launch(&self.gpu.analyse)?;
            self.flying.extend(self.gathering.take());
        }
        Ok(())
    }

    /// A batch for pictures.
    fn vacant(&mut self) -> Result<Batch<T>, DeviceError> {
        self.poll()?;
        loop {
            if let Some(batch) = self.idle.pop() {
                return Ok(batch);
            }
            if self.more > 0 || self.flying.is_empty() {
                let on_device = DeviceBatch::new(&self.gpu.device, self.bytes)?;
                self.more = self.more.saturating_sub(1);
                return Ok(Batch { on_device, tags: Vec::new() });
            }
            self.wait()?;
        }
    }

    /// Waits for the batch that left first.
    fn wait(&mut self) -> Result<(), DeviceError> {
        if let Some(batch) = self.flying.front_mut() {
            batch.on_device.wait()?;
            self.land();
        }
        Ok(())
    }

    /// Takes the scores of the first batch, which has finished.
    fn land(&mut self) {
        let Some(mut batch) = self.flying.pop_front() else { return };
        let scores = batch.on_device.sums().map(|(size, sums)| Sums::of_device(sums).scores(size));
        self.done.extend(batch.tags.drain(..).zip(scores));
        batch.on_device.clear();
        self.idle.push(batch);
    }
}

#[cfg(test)]
mod tests;
