//! Copies of many pieces at once, by a kernel.

use std::ffi::c_void;
use std::fmt;

use cudarc::driver::result;
use cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
use pdbp_core::BlockMemory;

use super::{Cuda, CudaEvent, CudaMemory, CudaQueue, check};
use crate::device::{Device, DeviceError, DeviceMemory as _, Piece, PieceTable, check_pieces};
use crate::kernel::{Kernel, Module};
use crate::memory::PinnedMemory;

/// Threads of a block.
const THREADS: u32 = 256;
/// As many blocks as a multiprocessor has room for. If there is more work than that, blocks come back for more.
const BLOCKS: u32 = 8;
/// Bytes of the widest word.
const WORD: u64 = 16;

/// The kernels of `kernels/pieces.cu`.
#[derive(Debug)]
pub(super) struct Pieces {
    pub(super) gather: Kernel,
    pub(super) scatter: Kernel,
    /// The most blocks of a launch.
    most_blocks: u32,
}

impl Pieces {
    fn load(device: &Cuda) -> Result<Self, DeviceError> {
        let module = Module::load(device, include_str!("../../../kernels/pieces.ptx"))?;
        let (gather, scatter) = (module.kernel("gather")?, module.kernel("scatter")?);
        let number = device.primary().cu_device();
        // SAFETY: the device of a context that is retained.
        let attribute =
            unsafe { result::device::get_attribute(number, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) };
        let processors = check("cuDeviceGetAttribute", attribute)?;
        Ok(Self { gather, scatter, most_blocks: u32::try_from(processors).unwrap_or(0).max(1) * BLOCKS })
    }
}

/// A table of pieces for a CUDA device, in pinned memory, where its kernels read them.
pub struct CudaTable {
    memory: PinnedMemory,
    pieces: usize,
}

impl CudaTable {
    pub(super) fn new(device: &Cuda, pieces: usize) -> Result<Self, DeviceError> {
        let bytes = pieces.checked_mul(size_of::<Piece>());
        let bytes = bytes.ok_or(DeviceError::OutOfMemory { bytes: usize::MAX })?;
        Ok(Self { memory: PinnedMemory::new(device, bytes)?, pieces })
    }

    fn as_slice(&self) -> &[Piece] {
        // SAFETY: as many entries, zeroed by `PinnedMemory::new`; any bytes are a valid entry; written only through `pieces`.
        unsafe { std::slice::from_raw_parts(self.memory.base().cast().as_ptr(), self.pieces) }
    }
}

impl PieceTable for CudaTable {
    fn pieces(&mut self) -> &mut [Piece] {
        // SAFETY: as above; borrowed exclusively, and read by no kernel, by the contract.
        unsafe { std::slice::from_raw_parts_mut(self.memory.base().cast().as_ptr(), self.pieces) }
    }
}

impl fmt::Debug for CudaTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaTable({} pieces)", self.pieces)
    }
}

impl Cuda {
    pub(super) fn pieces(&self) -> Result<&Pieces, DeviceError> {
        let loaded = &self.shared.pieces;
        if let Some(pieces) = loaded.get() {
            return Ok(pieces);
        }
        let pieces = Pieces::load(self)?;
        Ok(loaded.get_or_init(|| pieces))
    }

    /// # Safety
    /// As for `gather` or `scatter`, whichever the kernel is.
    pub(super) unsafe fn copy_pieces(
        &self,
        kernel: impl FnOnce(&Pieces) -> &Kernel,
        queue: &CudaQueue,
        table: &CudaTable,
        count: usize,
        memory: &CudaMemory,
        staging: &CudaMemory,
    ) -> Result<CudaEvent, DeviceError> {
        let loaded = self.pieces()?;
        self.check_owner(memory.device().primary())?;
        self.check_owner(staging.device().primary())?;
        let pieces = check_pieces(table.as_slice(), count, memory.bytes(), staging.bytes())?;
        let mut lanes = lanes(pieces);
        let blocks = (count as u64 * u64::from(lanes)).div_ceil(u64::from(THREADS));
        let blocks = blocks.min(u64::from(loaded.most_blocks)) as u32;
        if blocks == 0 {
            return self.mark(queue);
        }
        // The device shares the host's address space, so pinned memory has the same address there.
        let mut entries = pieces.as_ptr();
        let (mut count, mut memory, mut staging) = (count as u32, memory.address(), staging.address());
        let mut arguments: [*mut c_void; 5] = [
            (&raw mut entries).cast(),
            (&raw mut count).cast(),
            (&raw mut lanes).cast(),
            (&raw mut memory).cast(),
            (&raw mut staging).cast(),
        ];
        self.copy(queue, || {
            // SAFETY: the arguments of either kernel. Each piece was checked to lie in both memories; the rest is the caller's
            // promise.
            unsafe { kernel(loaded).launch(queue, blocks, THREADS, &mut arguments) }
        })
    }
}

/// The number of threads that copy a piece together, a power of 2: one for each word of an average piece, and enough that a long one
/// among short ones does not keep all waiting.
fn lanes(pieces: &[Piece]) -> u32 {
    let usual = pieces.iter().map(Piece::length).sum::<u64>() / (pieces.len() as u64).max(1) / WORD;
    let longest = pieces.iter().map(Piece::length).max().unwrap_or(0) / WORD / 16;
    usual.max(longest).clamp(4, u64::from(THREADS)).next_power_of_two() as u32
}
