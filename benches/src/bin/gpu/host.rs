//! Memory of the host, and copies that the program waits for.

use std::error::Error;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use cudarc::driver::result;
use pdbp::HeapMemory;
use pdbp_core::BlockMemory;
use pdbp_cuda::PinnedMemory;
use pdbp_cuda::device::{Cuda, CudaMemory, DeviceError};

/// What memory copies go from and to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Pinned,
    Pageable,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pinned => "pinned",
            Self::Pageable => "pageable",
        }
    }
}

/// Memory of the host that nobody else has.
pub(crate) struct Host {
    memory: ManuallyDrop<Box<dyn BlockMemory>>,
    device: Cuda,
}

impl Host {
    pub(crate) fn new(device: &Cuda, kind: Kind, bytes: usize) -> Result<Self, DeviceError> {
        let memory: Box<dyn BlockMemory> = match kind {
            Kind::Pinned => Box::new(PinnedMemory::new(device, bytes)?),
            Kind::Pageable => Box::new(HeapMemory::new(bytes).ok_or(DeviceError::OutOfMemory { bytes })?),
        };
        Ok(Self { memory: ManuallyDrop::new(memory), device: device.clone() })
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: initialised memory of that length, which this value has alone.
        unsafe { std::slice::from_raw_parts_mut(self.memory.base().as_ptr(), self.memory.len()) }
    }

    pub(crate) fn place(&mut self) -> NonNull<[u8]> {
        NonNull::from(self.bytes())
    }
}

impl Drop for Host {
    /// After an error copies may be under way yet: if nobody can wait for them, the memory stays.
    fn drop(&mut self) {
        if settle(&self.device).is_ok() {
            // SAFETY: once, and not used any more.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}

/// `cuMemcpyHtoD`, which returns when the bytes may be changed again.
pub(crate) fn copy_in(device: &Cuda, from: &[u8], to: &CudaMemory, at: usize) -> Result<(), Box<dyn Error>> {
    check_room(from.len(), to, at)?;
    device.context().bind_to_thread()?;
    // SAFETY: the bytes lie in the memory, and both stay.
    Ok(unsafe { result::memcpy_htod_sync(to.address() + at as u64, from) }?)
}

/// `cuMemcpyDtoH`, which returns when the bytes are there.
pub(crate) fn copy_out(
    device: &Cuda,
    from: &CudaMemory,
    at: usize,
    to: &mut [u8],
) -> Result<(), Box<dyn Error>> {
    check_room(to.len(), from, at)?;
    device.context().bind_to_thread()?;
    // SAFETY: the bytes lie in the memory, and both stay.
    Ok(unsafe { result::memcpy_dtoh_sync(to, from.address() + at as u64) }?)
}

/// Waits until the device has nothing to do.
pub(crate) fn settle(device: &Cuda) -> Result<(), Box<dyn Error>> {
    Ok(device.context().synchronize()?)
}

fn check_room(bytes: usize, memory: &CudaMemory, at: usize) -> Result<(), DeviceError> {
    use pdbp_cuda::device::DeviceMemory as _;
    let room = memory.bytes();
    if at.checked_add(bytes).is_some_and(|end| end <= room) {
        Ok(())
    } else {
        Err(DeviceError::OutOfBounds { at, bytes, room })
    }
}

/// Bytes of which no two places nearby look the same, another row of them for each `seed`.
pub(crate) fn fill(bytes: &mut [u8], seed: usize) {
    let mut state = seed as u64 | 1;
    let pattern: [u8; 4099] = std::array::from_fn(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    });
    for chunk in bytes.chunks_mut(pattern.len()) {
        chunk.copy_from_slice(&pattern[..chunk.len()]);
    }
}

/// Whether they are those.
pub(crate) fn is_filled(bytes: &[u8], seed: usize) -> bool {
    let mut pattern = vec![0; bytes.len().min(4099)];
    fill(&mut pattern, seed);
    bytes.chunks(4099).all(|chunk| *chunk == pattern[..chunk.len()])
}
