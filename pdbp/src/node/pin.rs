//! Block memory that devices are told of.

use super::Memory;
use crate::cluster::StartError;
use crate::config::PinMemory;

/// Locks the memories of the nodes of this process, as the setting says.
///
/// # Errors
/// [`StartError::Pin`], if the setting names a device.
#[cfg(feature = "cuda")]
pub(crate) fn pin(setting: PinMemory, memories: Vec<Memory>) -> Result<Vec<Memory>, StartError> {
    use pdbp_cuda::Registered;
    use pdbp_cuda::device::{Cuda, DeviceError};

    let failed = |number: u16, e: DeviceError| StartError::Pin { number, error: Box::new(e) };
    let device = match setting {
        PinMemory::Off => return Ok(memories),
        PinMemory::Auto => match Cuda::in_use_or_first() {
            Ok(device) => device,
            Err(_) => return Ok(memories),
        },
        PinMemory::Device(number) => Cuda::open(number.into()).map_err(|e| failed(number, e))?,
    };
    match (Registered::all(&device, memories), setting) {
        (Ok(locked), _) => Ok(locked.into_iter().map(|memory| Box::new(memory) as Memory).collect()),
        (Err((_, e)), PinMemory::Device(number)) => Err(failed(number, e)),
        (Err((memories, _)), _) => Ok(memories),
    }
}

/// There is no device without the feature `cuda`.
#[cfg(not(feature = "cuda"))]
pub(crate) fn pin(setting: PinMemory, memories: Vec<Memory>) -> Result<Vec<Memory>, StartError> {
    match setting {
        PinMemory::Off | PinMemory::Auto => Ok(memories),
        PinMemory::Device(number) => {
            let error = "this program was built without CUDA: build it with `--features cuda`";
            Err(StartError::Pin { number, error: error.into() })
        }
    }
}
