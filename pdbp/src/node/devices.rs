//! Pins block memory for this process's devices, and finds out whether MPI supports device memory.

#[cfg(feature = "mpi")]
use pdbp_core::id::NodeId;

use super::Memory;
use crate::config::PinMemory;
use crate::error::StartError;

/// Pins the memory of this process's nodes, as the setting requests.
///
/// # Errors
/// [`StartError::Pin`] if the setting names a device.
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

/// Whether MPI supports device memory: it claims to, and a transfer from this node to itself succeeds.
#[cfg(all(feature = "mpi", feature = "cuda"))]
pub(crate) fn knows_devices(link: &pdbp_mpi::Direct, node: Option<NodeId>) -> bool {
    use pdbp_cuda::device::Cuda;

    // Asked first: a library without that support would take device addresses for host addresses.
    let Some(node) = node.filter(|_| link.is_device_aware()) else { return false };
    Cuda::in_use_or_first().is_ok_and(|device| loops_back(link, node, &device).unwrap_or(false))
}

/// Whether data sent from device memory arrives intact in device memory.
#[cfg(all(feature = "mpi", feature = "cuda"))]
fn loops_back<D: pdbp_cuda::device::Device>(
    link: &pdbp_mpi::Direct,
    node: NodeId,
    device: &D,
) -> Result<bool, Box<dyn std::error::Error>> {
    const BYTES: usize = 64 << 10;
    const PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);

    let pattern: Vec<u8> = (0..BYTES).map(|i| (i ^ (i >> 8)) as u8).collect();
    let (mut from, to) = (pdbp_cuda::Buffer::new(device, BYTES)?, pdbp_cuda::Buffer::new(device, BYTES)?);
    from.write(device, 0, &pattern)?;
    let (receiving, mut awaited) = to.into_recv(0..BYTES).map_err(|(_, e)| e)?;
    let (number, sending) = (link.number(), from.into_slice().to_send());
    let transfers = [link.receive(node, number, receiving)?, link.send(node, number, sending)?];
    let began = std::time::Instant::now();
    for transfer in &transfers {
        while !transfer.is_over()? {
            if began.elapsed() > PATIENCE {
                return Ok(false);
            }
            std::thread::yield_now();
        }
    }
    // MPI releases the memory once the data has arrived.
    let to = loop {
        match awaited.into_buffer() {
            Ok(buffer) => break buffer,
            Err(_) if began.elapsed() > PATIENCE => return Ok(false),
            Err(again) => awaited = again,
        }
        std::thread::yield_now();
    };
    let mut arrived = vec![0; BYTES];
    to.read(device, 0, &mut arrived)?;
    Ok(arrived == pattern)
}

/// There is no device without the feature `cuda`.
#[cfg(all(feature = "mpi", not(feature = "cuda")))]
pub(crate) fn knows_devices(_: &pdbp_mpi::Direct, _: Option<NodeId>) -> bool {
    false
}
