//! What the copies need of a device.
//!
//! A device has memory of its own, and queues on which copies between that and the host's run one behind the other, while
//! the caller goes on. Each copy gives an event, by which its end is known.
//!
//! * [`Cuda`]: a real one, by the CUDA driver.
//! * [`Simulated`]: one in virtual time, with copy engines of given speed, faults by plan, and a keen eye for memory that is
//!   touched while a copy is pending.

mod cuda;
mod error;
mod simulated;

use std::ptr::NonNull;

#[cfg(test)]
pub(crate) use cuda::tests::device as device_or_skip;
pub use cuda::{Cuda, CudaEvent, CudaMemory, CudaQueue, DeviceInfo};
pub(crate) use cuda::{check, check_room};
pub use error::DeviceError;
pub use simulated::{Clock, CopyEngine, Fault, Simulated, SimulatedEvent, SimulatedMemory, SimulatedQueue};

/// Memory of a device, freed when it is dropped.
pub trait DeviceMemory: 'static {
    /// Length in bytes, never 0.
    fn bytes(&self) -> usize;
}

/// A device, as the flows of this crate see it. Clones are the same device.
///
/// # Contract
/// * Copies on one queue run in the order in which they were asked for; those on two queues may run at the same time.
/// * An event is over when its copy, and all that was asked for before on its queue, is. It stays over.
/// * Where a copy gives an error, nothing of it is pending; where [`is_over`](Self::is_over) or [`wait`](Self::wait) gives one,
///   the copy has failed, what its destination holds is unknown, and it touches no memory any more.
/// * No call but [`wait`](Self::wait), [`allocate`](Self::allocate) and the freeing of memory waits for anything. (A copy that
///   gives an error may, since it has to see that nothing is pending.)
///
/// # Safety
/// Whoever owns memory takes it back when the device says that an event is over: the contract holds.
pub unsafe trait Device: Clone + 'static {
    /// Its memory.
    type Memory: DeviceMemory;
    /// A queue of copies.
    type Queue: 'static;
    /// The end of something.
    type Event: 'static;

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
    /// [`DeviceError::OutOfBounds`] and what the driver says. Nothing is pending then.
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
    /// [`DeviceError::OutOfBounds`] and what the driver says. Nothing is pending then.
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

    /// Lets what is asked for on the queue from now on begin only when the event is over.
    ///
    /// # Errors
    /// What the driver says.
    fn order(&self, queue: &Self::Queue, after: &Self::Event) -> Result<(), DeviceError>;

    /// Whether the event is over.
    ///
    /// # Errors
    /// Its work has failed. It is over, then.
    fn is_over(&self, event: &Self::Event) -> Result<bool, DeviceError>;

    /// Waits until the event is over.
    ///
    /// # Errors
    /// Its work has failed. It is over, then.
    fn wait(&self, event: &Self::Event) -> Result<(), DeviceError>;
}

/// Whether `bytes` bytes from `at` on lie in device memory of `room` bytes.
fn check_bounds(at: usize, bytes: usize, room: usize) -> Result<(), DeviceError> {
    match at.checked_add(bytes) {
        Some(end) if end <= room => Ok(()),
        _ => Err(DeviceError::OutOfBounds { at, bytes, room }),
    }
}
