//! Where frames are analysed: on the processor or on devices.

use core::fmt;

#[cfg(feature = "cuda")]
use super::gpu::{Gpu, GpuError};

/// Where a user wants frames to be analysed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Wanted {
    /// On a GPU where there is one that can be used, else on the processor.
    #[default]
    Auto,
    /// On the processor.
    Cpu,
    /// On a GPU, or not at all.
    Gpu,
}

/// Where the frames of a process are analysed. Clones share the devices.
#[derive(Debug, Clone)]
pub struct Place {
    #[cfg(feature = "cuda")]
    gpus: Vec<Gpu>,
    /// Number of the analyser that uses the first device.
    #[cfg(feature = "cuda")]
    first: usize,
    /// Whether the processor takes over when a device fails.
    #[cfg(feature = "cuda")]
    falls_back: bool,
    /// Why it is not a GPU.
    why_not: Option<String>,
}

/// Why no GPU can be used though one was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("--analyse gpu: {reason}; or leave it to --analyse auto, which takes the processor then")]
pub struct NoGpu {
    reason: String,
}

impl Place {
    /// On the processor.
    pub fn cpu() -> Self {
        Self {
            #[cfg(feature = "cuda")]
            gpus: Vec::new(),
            #[cfg(feature = "cuda")]
            first: 0,
            #[cfg(feature = "cuda")]
            falls_back: false,
            why_not: None,
        }
    }

    /// Chooses the place, for up to `analysers` analysers numbered from `first` on. They share the devices that the process sees: analyser n uses
    /// device n modulo the number of devices. `CUDA_VISIBLE_DEVICES` sets which devices it sees, and in what order.
    ///
    /// # Errors
    /// [`NoGpu`] if only a GPU will do, and none can be used.
    pub fn choose(wanted: Wanted, first: usize, analysers: usize) -> Result<Self, NoGpu> {
        if wanted == Wanted::Cpu || analysers == 0 {
            return Ok(Self::cpu());
        }
        match (Self::on_gpus(wanted, first, analysers), wanted) {
            (Ok(place), _) => Ok(place),
            (Err(reason), Wanted::Gpu) => Err(NoGpu { reason }),
            (Err(reason), _) => {
                let mut place = Self::cpu();
                // Without the remedy, which may be unwanted.
                place.why_not = reason.split(';').next().map(str::to_owned);
                Ok(place)
            }
        }
    }

    #[cfg(feature = "cuda")]
    fn on_gpus(wanted: Wanted, first: usize, analysers: usize) -> Result<Self, String> {
        let open = || -> Result<Vec<Gpu>, GpuError> {
            let devices = pdbp_cuda::device::Cuda::count()?;
            // The devices in use, in the order of the analysers.
            let used = (first..first.saturating_add(analysers)).take(devices);
            used.map(|number| Gpu::open(number % devices)).collect()
        };
        let gpus = open().map_err(|error| error.to_string())?;
        Ok(Self { gpus, first, falls_back: wanted == Wanted::Auto, why_not: None })
    }

    /// Whether the processor takes over when a device fails.
    #[cfg(feature = "cuda")]
    pub(super) fn falls_back(&self) -> bool {
        self.falls_back
    }

    /// The device of an analyser.
    #[cfg(feature = "cuda")]
    pub(super) fn gpu(&self, number: usize) -> Option<&Gpu> {
        let place = number.wrapping_sub(self.first).checked_rem(self.gpus.len())?;
        self.gpus.get(place)
    }

    #[cfg(not(feature = "cuda"))]
    fn on_gpus(_: Wanted, _: usize, _: usize) -> Result<Self, String> {
        Err("this program was built without its feature cuda; build it with `--features cuda`".into())
    }
}

/// The name of the processor, and why it is not a GPU if one would have been preferred.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the processor")?;
        self.why_not.as_ref().map_or(Ok(()), |reason| write!(f, " ({reason})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_device_auto_takes_the_processor_and_says_why_and_gpu_is_refused() {
        let Err(reason) = Place::on_gpus(Wanted::Auto, 0, 2) else { return };
        let place = Place::choose(Wanted::Auto, 0, 2).unwrap();
        let (what, remedy) = reason.split_once(';').unwrap();
        assert_eq!(place.to_string(), format!("the processor ({what})"), "and not {remedy}");
        let refused = Place::choose(Wanted::Gpu, 0, 2).unwrap_err().to_string();
        assert!(refused.contains(&reason) && refused.contains("--analyse auto"), "{refused}");
        assert_eq!(Place::choose(Wanted::Cpu, 0, 2).unwrap().to_string(), "the processor");
    }

    #[test]
    fn a_process_that_does_not_analyse_needs_no_device() {
        assert!(Place::choose(Wanted::Gpu, 0, 0).is_ok());
    }
}
