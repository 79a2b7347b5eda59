//! Scores frames for a part: on the processor, at once, or on a device, several at a time.

use std::collections::VecDeque;

#[cfg(feature = "cuda")]
use pdbp_cuda::device::DeviceError;

#[cfg(feature = "cuda")]
use super::gpu::GpuAnalyser;
use super::{Analyser, Compare, Place, Scores, Sight, Threads, Watchers};
use crate::decode::Yuv;
use crate::frame::{FrameError, FrameHeader, read_frame};

/// A frame, and the processor's observations of it.
type Seen = (FrameHeader, Sight);

/// Scores frames in order.
pub struct Scorer {
    watchers: Watchers,
    cpu: Analyser,
    #[cfg(feature = "cuda")]
    gpu: Option<GpuAnalyser<Seen>>,
    /// Frames that a device has scored.
    #[cfg(feature = "cuda")]
    by_gpu: (String, u64),
    by_cpu: (String, u64),
    #[cfg(feature = "cuda")]
    falls_back: bool,
    scored: VecDeque<(Seen, Scores)>,
    note: Option<String>,
}

/// Why frames cannot be scored any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScoreError {
    /// The message is not a frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The device has failed.
    #[error("{device}: {reason}. With --analyse auto the processor takes over when a device fails")]
    Device {
        /// The device.
        device: String,
        /// Its error.
        reason: String,
    },
}

impl Scorer {
    /// The scorer of analyser `number`, which splits large frames among threads of the processor according to `threads`. The processor always
    /// detects black and frozen pictures.
    pub fn new(place: &Place, number: usize, threads: Threads, compare: Compare) -> Self {
        #[cfg(feature = "cuda")]
        let gpu = place.gpu(number);
        #[cfg(not(feature = "cuda"))]
        let _ = number;
        Self {
            watchers: Watchers::new(compare),
            cpu: Analyser::new(threads),
            #[cfg(feature = "cuda")]
            gpu: gpu.map(GpuAnalyser::new),
            #[cfg(feature = "cuda")]
            by_gpu: (gpu.map(|gpu| gpu.name().to_owned()).unwrap_or_default(), 0),
            by_cpu: (place.to_string(), 0),
            #[cfg(feature = "cuda")]
            falls_back: place.falls_back(),
            scored: VecDeque::new(),
            note: None,
        }
    }

    /// Takes a frame in its wire form.
    ///
    /// # Errors
    /// The message is not a frame, or the device has failed.
    pub fn push(&mut self, frame: &[u8]) -> Result<(), ScoreError> {
        let (header, picture) = read_frame(frame)?;
        self.push_picture(*header, &picture)
    }

    /// Takes a picture that is not in a frame.
    ///
    /// # Errors
    /// The device has failed.
    pub(crate) fn push_picture(&mut self, header: FrameHeader, picture: &Yuv<'_>) -> Result<(), ScoreError> {
        let seen = (header, self.watchers.look(header.id().stream.0, picture));
        #[cfg(feature = "cuda")]
        if let Some(gpu) = &mut self.gpu {
            match gpu.push(seen, picture) {
                Ok(()) => {
                    self.collect();
                    return Ok(());
                }
                Err(error) => self.fail(&error)?,
            }
        }
        self.scored.push_back((seen, self.cpu.analyse(picture)));
        self.by_cpu.1 += 1;
        Ok(())
    }

    /// Collects what a device has finished.
    ///
    /// # Errors
    /// The device has failed.
    pub fn poll(&mut self) -> Result<(), ScoreError> {
        #[cfg(feature = "cuda")]
        self.with_gpu(GpuAnalyser::poll)?;
        Ok(())
    }

    /// Tells the scorer that there is nothing else to do now, so that a device starts on what it has.
    ///
    /// # Errors
    /// The device has failed.
    pub fn rest(&mut self) -> Result<(), ScoreError> {
        #[cfg(feature = "cuda")]
        self.with_gpu(GpuAnalyser::rest)?;
        Ok(())
    }

    /// Waits until all frames are scored.
    ///
    /// # Errors
    /// The device has failed.
    pub fn finish(&mut self) -> Result<(), ScoreError> {
        #[cfg(feature = "cuda")]
        self.with_gpu(GpuAnalyser::finish)?;
        Ok(())
    }

    /// Takes the next scored frame.
    pub fn take(&mut self) -> Option<(FrameHeader, Scores, Sight)> {
        let ((header, sight), scores) = self.scored.pop_front()?;
        Some((header, scores, sight))
    }

    /// Frames that a device has not scored yet.
    pub fn pending(&self) -> usize {
        #[cfg(feature = "cuda")]
        return self.gpu.as_ref().map_or(0, GpuAnalyser::pending);
        #[cfg(not(feature = "cuda"))]
        0
    }

    /// A problem that did not end the work, reported once.
    pub fn take_note(&mut self) -> Option<String> {
        self.note.take()
    }

    /// How many frames the processor and each device have scored.
    pub fn shares(&self) -> impl Iterator<Item = &(String, u64)> {
        let shares = [
            #[cfg(feature = "cuda")]
            &self.by_gpu,
            &self.by_cpu,
        ];
        shares.into_iter().filter(|(_, frames)| *frames > 0)
    }
}

#[cfg(feature = "cuda")]
impl Scorer {
    fn with_gpu(
        &mut self,
        act: impl FnOnce(&mut GpuAnalyser<Seen>) -> Result<(), DeviceError>,
    ) -> Result<(), ScoreError> {
        if let Err(error) = self.gpu.as_mut().map_or(Ok(()), act) {
            return self.fail(&error);
        }
        self.collect();
        Ok(())
    }

    fn collect(&mut self) {
        let Some(gpu) = &mut self.gpu else { return };
        while let Some(scored) = gpu.take() {
            self.scored.push_back(scored);
            self.by_gpu.1 += 1;
        }
    }

    /// The device has failed: ends the work, or passes it to the processor.
    fn fail(&mut self, error: &DeviceError) -> Result<(), ScoreError> {
        let (device, reason) = (self.by_gpu.0.clone(), error.to_string());
        if !self.falls_back {
            return Err(ScoreError::Device { device, reason });
        }
        self.collect();
        if let Some(gpu) = self.gpu.take() {
            let rescued = gpu.rescue(&mut self.cpu);
            self.by_cpu.1 += rescued.len() as u64;
            self.scored.extend(rescued);
        }
        self.note = Some(format!("{device}: {reason}. The processor goes on in its place"));
        Ok(())
    }
}
