//! Pictures that are already in place, to measure the device's time.

use pdbp_cuda::device::{Device as _, DeviceError};
use pdbp_cuda::kernel::{Kernel, Module};

use super::device_batch::DeviceBatch;
use super::layout::room_of;
use super::{Gpu, PTX};
use crate::decode::Yuv;
use crate::measure::{Scores, Sums};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Restoration and sums: what an analyser does.
    Analyse,
    /// Only the sums.
    Measure,
}

/// Pictures in the memory of a device.
pub struct Resident {
    gpu: Gpu,
    batch: DeviceBatch,
    measure: Kernel,
}

impl Resident {
    /// Copies pictures to the device.
    ///
    /// # Errors
    /// What the driver says, such as that there is no memory for them, and twice as much for the restored ones.
    pub fn new(gpu: &Gpu, pictures: &[Yuv<'_>]) -> Result<Self, DeviceError> {
        let mut batch = full(gpu, pictures)?;
        batch.launch(&gpu.analyse)?;
        batch.wait()?;
        let measure = Module::load(&gpu.device, PTX)?.kernel("measure")?;
        Ok(Self { gpu: gpu.clone(), batch, measure })
    }

    /// Has a kernel go over all pictures so many times, and waits for it. (The sums of all times add up.)
    ///
    /// # Errors
    /// What the driver says.
    pub fn run(&self, stage: Stage, times: u32) -> Result<(), DeviceError> {
        let kernel = match stage {
            Stage::Analyse => &self.gpu.analyse,
            Stage::Measure => &self.measure,
        };
        for _ in 0..times {
            self.batch.run(kernel)?;
        }
        self.gpu.device.wait(&self.gpu.device.mark(self.batch.queue())?)
    }
}

/// Pictures in pinned memory of the host, in batches.
pub struct Batches {
    gpu: Gpu,
    batches: Vec<DeviceBatch>,
}

impl Batches {
    /// Copies pictures to pinned memory, `each` to a batch.
    ///
    /// # Errors
    /// What the driver says, such as that there is no memory for them, and three times as much on the device.
    pub fn new(gpu: &Gpu, pictures: &[Yuv<'_>], each: usize) -> Result<Self, DeviceError> {
        let batches = pictures.chunks(each.max(1)).map(|pictures| full(gpu, pictures));
        Ok(Self { gpu: gpu.clone(), batches: batches.collect::<Result<_, _>>()? })
    }

    /// Has all of them copied and analysed, as many batches at the same time as the device can, and waits for the scores.
    ///
    /// # Errors
    /// What the driver says.
    pub fn run(&mut self) -> Result<Vec<Scores>, DeviceError> {
        for batch in &mut self.batches {
            batch.launch(&self.gpu.analyse)?;
        }
        let mut scores = Vec::new();
        for batch in &mut self.batches {
            batch.wait()?;
            scores.extend(batch.sums().map(|(size, sums)| Sums::of_device(sums).scores(size)));
        }
        Ok(scores)
    }
}

/// A batch of all these pictures.
fn full(gpu: &Gpu, pictures: &[Yuv<'_>]) -> Result<DeviceBatch, DeviceError> {
    let room = pictures.iter().map(|picture| room_of(picture.size())).sum();
    let mut batch = DeviceBatch::new(&gpu.device, room)?;
    pictures.iter().for_each(|picture| batch.add(picture));
    Ok(batch)
}
