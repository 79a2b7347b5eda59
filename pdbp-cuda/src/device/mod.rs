//! What the copies require of a device.
//!
//! A device has memory of its own, and queues on which copies between that and host memory run in order, while the caller continues.
//! Each copy returns an event that tells when it is over. A kernel copies many pieces between two memories of the device at once: it
//! gathers them from wherever they lie to a staging area, or scatters them from there.
//!
//! * [`Cuda`]: a real device, through the CUDA driver.
//! * [`Simulated`]: one in virtual time, with copy engines and kernels of given speed, injected faults, and strict checks for memory
//!   that is touched while a copy is pending.

mod cuda;
mod error;
mod in_use;
mod not_started;
mod simulated;

use std::ptr::NonNull;

use pdbp_core::Space;

#[cfg(test)]
pub(crate) use cuda::tests::device as device_or_skip;
pub use cuda::{Cuda, CudaEvent, CudaMemory, CudaQueue, CudaTable, DeviceInfo, Lease};
pub(crate) use cuda::{bind, check, check_room};
pub use error::DeviceError;
pub use in_use::InUse;
pub use not_started::NotStarted;
pub use simulated::{
    Clock, CopyEngine, Fault, Silence, Simulated, SimulatedEvent, SimulatedMemory, SimulatedQueue,
    SimulatedTable,
};

/// Memory of a device, freed when it is dropped.
///
/// # Safety
/// [`place`](Self::place) must return the same address at each call, of [`bytes`](Self::bytes) initialised bytes, which nothing else
/// owns and which stay until the value is dropped.
pub unsafe trait DeviceMemory: Send + Sync + 'static {
    /// Length in bytes, never 0.
    fn bytes(&self) -> usize;

    /// Its address and kind, for code that reaches it by its address.
    fn place(&self) -> (NonNull<u8>, Space);
}

/// A piece that a kernel copies between a memory of any size and a staging area, which has less than 4 GiB: rows of one length that are
/// adjacent in the staging area, and equally far apart in the memory. Flows request pieces of up to 4 KiB each, so that these can be
/// dealt out evenly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Piece {
    /// Its first byte in the memory.
    pub at: u64,
    /// Its first byte in the staging area.
    pub staged: u32,
    /// The length of a row, which may be 0.
    pub bytes: u32,
    /// The number of rows.
    pub rows: u32,
    /// Bytes from the beginning of a row in the memory to that of the next.
    pub apart: u32,
}

impl Piece {
    /// A single row.
    pub const fn row(at: u64, staged: u32, bytes: u32) -> Self {
        Self { at, staged, bytes, rows: 1, apart: 0 }
    }

    /// Bytes of all rows.
    fn length(&self) -> u64 {
        u64::from(self.rows) * u64::from(self.bytes)
    }
}

/// The layout in which a device receives it.
const _: () = assert!(size_of::<Piece>() == 24 && align_of::<Piece>() == 8);

/// A list of pieces that the host writes and a device reads.
pub trait PieceTable: 'static {
    /// All entries, initially zeroed. Must not be called while a kernel that reads the table is pending.
    fn pieces(&mut self) -> &mut [Piece];
}

/// A device, as the flows of this crate see it. Clones refer to the same device.
///
/// # Contract
/// * Copies on one queue run in the order in which they were submitted; those on two queues may run at the same time. The kernels of
///   [`gather`](Self::gather) and [`scatter`](Self::scatter) are copies.
/// * An event is over when its copy, and everything submitted before it on its queue, is over. It stays over.
/// * If a copy returns an error, nothing of it is pending.
/// * [`is_over`](Self::is_over) and [`wait`](Self::wait) return an error that [is lost](DeviceError::is_lost) when the device has
///   stopped working: pending work has failed and no longer touches any memory. **Any other error concerns the call and says nothing
///   about the work, which may continue**: what the work uses stays held, as in [`InUse`].
/// * Resources of another device are refused ([`DeviceError::OtherDevice`]).
/// * No call except [`wait`](Self::wait), [`allocate`](Self::allocate) and the freeing of memory waits for anything. (A copy that
///   returns an error may, since it must ensure that nothing is pending.)
///
/// # Safety
/// Owners of memory take it back when the device reports that an event is over, or that the device is lost: the contract must hold.
pub unsafe trait Device: Clone + 'static {
    /// Its memory.
    type Memory: DeviceMemory;
    /// A queue of copies.
    type Queue: 'static;
    /// The end of some work.
    type Event: 'static;
    /// A table of the pieces that a kernel copies.
    type Table: PieceTable;

    /// Allocates `bytes` zeroed bytes. Waits until they are available.
    ///
    /// # Errors
    /// [`DeviceError::Empty`], [`DeviceError::OutOfMemory`] and the driver's errors.
    fn allocate(&self, bytes: usize) -> Result<Self::Memory, DeviceError>;

    /// A new queue.
    ///
    /// # Errors
    /// The driver's error.
    fn queue(&self) -> Result<Self::Queue, DeviceError>;

    /// Copies from device memory, from byte `at` on, to the host, as many bytes as `to` has.
    ///
    /// # Errors
    /// [`DeviceError::OutOfBounds`], [`DeviceError::OtherDevice`] and the driver's errors. Nothing is then pending.
    ///
    /// # Safety
    /// Until the event is over, the bytes at `to` must be valid for writes and touched by nothing else, and `from` must not be dropped.
    unsafe fn copy_out(
        &self,
        queue: &Self::Queue,
        from: &Self::Memory,
        at: usize,
        to: NonNull<[u8]>,
    ) -> Result<Self::Event, DeviceError>;

    /// Copies from the host to device memory, from byte `at` on, as many bytes as `from` has.
    ///
    /// # Errors
    /// [`DeviceError::OutOfBounds`], [`DeviceError::OtherDevice`] and the driver's errors. Nothing is then pending.
    ///
    /// # Safety
    /// Until the event is over, the bytes at `from` must be valid for reads and not be written, and `to` must not be dropped.
    unsafe fn copy_in(
        &self,
        queue: &Self::Queue,
        from: NonNull<[u8]>,
        to: &Self::Memory,
        at: usize,
    ) -> Result<Self::Event, DeviceError>;

    /// Allocates a table of `pieces` pieces, at least 1. Waits until it is available.
    ///
    /// # Errors
    /// [`DeviceError::Empty`], [`DeviceError::OutOfMemory`] and the driver's errors.
    fn table(&self, pieces: usize) -> Result<Self::Table, DeviceError>;

    /// Copies the first `count` pieces of the table from a memory to a staging area of the same device, all at once. Their sources may
    /// overlap; bytes of the staging area to which two pieces are copied hold either.
    ///
    /// # Errors
    /// [`DeviceError::OutOfBounds`] if a piece does not lie in both memories, or the table has fewer pieces,
    /// [`DeviceError::OtherDevice`], and the driver's errors. Nothing is then pending.
    ///
    /// # Safety
    /// Until the event is over, neither memory nor the table may be dropped, and the table must not be written.
    unsafe fn gather(
        &self,
        queue: &Self::Queue,
        table: &Self::Table,
        count: usize,
        from: &Self::Memory,
        staging: &Self::Memory,
    ) -> Result<Self::Event, DeviceError>;

    /// Copies the first `count` pieces of the table from a staging area to a memory of the same device, all at once; otherwise like
    /// [`gather`](Self::gather).
    ///
    /// # Errors
    /// As [`gather`](Self::gather).
    ///
    /// # Safety
    /// As for [`gather`](Self::gather).
    unsafe fn scatter(
        &self,
        queue: &Self::Queue,
        table: &Self::Table,
        count: usize,
        staging: &Self::Memory,
        to: &Self::Memory,
    ) -> Result<Self::Event, DeviceError>;

    /// Returns the event of everything submitted on the queue so far, including its waits for events.
    ///
    /// # Errors
    /// The driver's error.
    fn mark(&self, queue: &Self::Queue) -> Result<Self::Event, DeviceError>;

    /// Makes work submitted on the queue from now on begin only when the event is over.
    ///
    /// # Errors
    /// The driver's error.
    fn order(&self, queue: &Self::Queue, after: &Self::Event) -> Result<(), DeviceError>;

    /// Whether the event is over.
    ///
    /// # Errors
    /// [`DeviceError::Lost`]: its work has failed, and is over. Any other: unknown for now; ask again.
    fn is_over(&self, event: &Self::Event) -> Result<bool, DeviceError>;

    /// Waits until the event is over.
    ///
    /// # Errors
    /// As [`is_over`](Self::is_over).
    fn wait(&self, event: &Self::Event) -> Result<(), DeviceError>;
}

/// Returns the first `count` pieces, all of which must lie in a memory and a staging area of these lengths.
fn check_pieces(
    pieces: &[Piece],
    count: usize,
    memory: usize,
    staging: usize,
) -> Result<&[Piece], DeviceError> {
    let none =
        DeviceError::OutOfBounds { at: 0, bytes: count * size_of::<Piece>(), room: size_of_val(pieces) };
    let pieces = pieces.get(..count).ok_or(none)?;
    for piece in pieces {
        let span = u64::from(piece.rows.saturating_sub(1)) * u64::from(piece.apart) + u64::from(piece.bytes);
        let [at, span, length] =
            [piece.at, span, piece.length()].map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        check_bounds(at, span, memory)?;
        check_bounds(piece.staged as usize, length, staging)?;
    }
    Ok(pieces)
}

/// Checks that `bytes` bytes from `at` on lie in device memory of `room` bytes.
pub(crate) fn check_bounds(at: usize, bytes: usize, room: usize) -> Result<(), DeviceError> {
    match at.checked_add(bytes) {
        Some(end) if end <= room => Ok(()),
        _ => Err(DeviceError::OutOfBounds { at, bytes, room }),
    }
}
