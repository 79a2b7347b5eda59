//! What the copies need of a device.
//!
//! A device has memory of its own, and queues on which copies between that and the host's run one behind the other, while
//! the caller goes on. Each copy gives an event, by which its end is known. A kernel copies many pieces between two memories of the
//! device at once: it gathers them from wherever they lie to a staging area, or scatters them from there.
//!
//! * [`Cuda`]: a real one, by the CUDA driver.
//! * [`Simulated`]: one in virtual time, with copy engines and kernels of given speed, faults by plan, and a keen eye for memory
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
/// [`place`](Self::place) gives the same address at each call, of so many initialised bytes, which nobody else has and which stay
/// until the value is dropped.
pub unsafe trait DeviceMemory: Send + Sync + 'static {
    /// Length in bytes, never 0.
    fn bytes(&self) -> usize;

    /// Where it lies, and what kind it is, for what reaches it by its address.
    fn place(&self) -> (NonNull<u8>, Space);
}

/// A piece that a kernel copies between a memory of any size and a staging area, which has less than 4 GiB: rows of one length that lie
/// side by side in the staging area, and equally far apart in the memory. What flows ask for has up to 4 KiB each, so that pieces can
/// be dealt out evenly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Piece {
    /// Its first byte in the memory.
    pub at: u64,
    /// Its first byte in the staging area.
    pub staged: u32,
    /// The length of a row, which may be 0.
    pub bytes: u32,
    /// How many rows.
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

/// What a device is handed as it lies here.
const _: () = assert!(size_of::<Piece>() == 24 && align_of::<Piece>() == 8);

/// A list of pieces that the host writes and a device reads.
pub trait PieceTable: 'static {
    /// All entries, zeroed at first. Nobody calls this while a kernel that reads the table is pending.
    fn pieces(&mut self) -> &mut [Piece];
}

/// A device, as the flows of this crate see it. Clones are the same device.
///
/// # Contract
/// * Copies on one queue run in the order in which they were asked for; those on two queues may run at the same time. The kernels of
///   [`gather`](Self::gather) and [`scatter`](Self::scatter) are copies.
/// * An event is over when its copy, and all that was asked for before on its queue, is. It stays over.
/// * Where a copy gives an error, nothing of it is pending.
/// * [`is_over`](Self::is_over) and [`wait`](Self::wait) give an error that [is lost](DeviceError::is_lost) when the device does
///   nothing any more: work that was under way has failed and touches no memory any more. **Any other error is one of the call and says
///   nothing about the work, which may go on**: what it uses stays held, as in [`InUse`].
/// * What belongs to another device is refused ([`DeviceError::OtherDevice`]).
/// * No call but [`wait`](Self::wait), [`allocate`](Self::allocate) and the freeing of memory waits for anything. (A copy that
///   gives an error may, since it has to see that nothing is pending.)
///
/// # Safety
/// Whoever owns memory takes it back when the device says that an event is over, or that the device is lost: the contract holds.
pub unsafe trait Device: Clone + 'static {
    /// Its memory.
    type Memory: DeviceMemory;
    /// A queue of copies.
    type Queue: 'static;
    /// The end of something.
    type Event: 'static;
    /// What says which pieces a kernel copies.
    type Table: PieceTable;

    /// Memory of `bytes` zeroed bytes. Waits until it is there.
    ///
    /// # Errors
    /// [`DeviceError::Empty`], [`DeviceError::OutOfMemory`] and what the driver says.
    fn allocate(&self, bytes: usize) -> Result<Self::Memory, DeviceError>;

    /// A new queue.
    ///
    /// # Errors
    /// What the driver says.
    fn queue(&self) -> Result<Self::Queue, DeviceError>;

    /// Copies from device memory, from byte `at` on, to the host, as many bytes as `to` has.
    ///
    /// # Errors
    /// [`DeviceError::OutOfBounds`], [`DeviceError::OtherDevice`] and what the driver says. Nothing is pending then.
    ///
    /// # Safety
    /// Until the event is over, the bytes at `to` are valid for writes and nobody else touches them, and `from` is not dropped.
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
    /// [`DeviceError::OutOfBounds`], [`DeviceError::OtherDevice`] and what the driver says. Nothing is pending then.
    ///
    /// # Safety
    /// Until the event is over, the bytes at `from` are valid for reads and nobody writes them, and `to` is not dropped.
    unsafe fn copy_in(
        &self,
        queue: &Self::Queue,
        from: NonNull<[u8]>,
        to: &Self::Memory,
        at: usize,
    ) -> Result<Self::Event, DeviceError>;

    /// A table of so many pieces, from 1 on. Waits until it is there.
    ///
    /// # Errors
    /// [`DeviceError::Empty`], [`DeviceError::OutOfMemory`] and what the driver says.
    fn table(&self, pieces: usize) -> Result<Self::Table, DeviceError>;

    /// Copies the first `count` pieces of the table from a memory to a staging area of the same device, all at once.
    /// They may overlap where they come from; bytes of the staging area to which two are copied hold either.
    ///
    /// # Errors
    /// [`DeviceError::OutOfBounds`] when a piece does not lie in both memories, or the table has fewer pieces,
    /// [`DeviceError::OtherDevice`], and what the driver says. Nothing is pending then.
    ///
    /// # Safety
    /// Until the event is over, neither memory nor the table is dropped, and nobody writes the table.
    unsafe fn gather(
        &self,
        queue: &Self::Queue,
        table: &Self::Table,
        count: usize,
        from: &Self::Memory,
        staging: &Self::Memory,
    ) -> Result<Self::Event, DeviceError>;

    /// Copies the first `count` pieces of the table from a staging area to a memory of the same device, all at once; else as
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

    /// The end of all that was asked for on the queue so far, waiting for events included.
    ///
    /// # Errors
    /// What the driver says.
    fn mark(&self, queue: &Self::Queue) -> Result<Self::Event, DeviceError>;

    /// Lets what is asked for on the queue from now on begin only when the event is over.
    ///
    /// # Errors
    /// What the driver says.
    fn order(&self, queue: &Self::Queue, after: &Self::Event) -> Result<(), DeviceError>;

    /// Whether the event is over.
    ///
    /// # Errors
    /// [`DeviceError::Lost`]: its work has failed, and is over. Any other: nobody knows now; ask again.
    fn is_over(&self, event: &Self::Event) -> Result<bool, DeviceError>;

    /// Waits until the event is over.
    ///
    /// # Errors
    /// As [`is_over`](Self::is_over).
    fn wait(&self, event: &Self::Event) -> Result<(), DeviceError>;
}

/// The first `count` pieces, all of which lie in a memory and a staging area of these lengths.
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

/// Whether `bytes` bytes from `at` on lie in device memory of `room` bytes.
pub(crate) fn check_bounds(at: usize, bytes: usize, room: usize) -> Result<(), DeviceError> {
    match at.checked_add(bytes) {
        Some(end) if end <= room => Ok(()),
        _ => Err(DeviceError::OutOfBounds { at, bytes, room }),
    }
}
