//! Device memory.

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use cudarc::driver::result::ctx;
#[cfg(feature = "cudarc")]
use cudarc::driver::result::stream;
#[cfg(feature = "cudarc")]
use cudarc::driver::{CudaSlice, DevicePtrMut as _};
use cudarc::driver::{result, sys};
use pdbp_core::Space;

use super::{Cuda, check, check_room, name_of};
#[cfg(feature = "cudarc")]
use crate::device::NotStarted;
use crate::device::{DeviceError, DeviceMemory};

/// Memory of a CUDA device.
#[derive(Debug)]
pub struct CudaMemory {
    address: sys::CUdeviceptr,
    bytes: usize,
    device: Cuda,
    /// Set if the program frees the memory, once this is no longer held.
    lent: Option<Arc<()>>,
}

/// The program's handle to memory that it has [lent](CudaMemory::lend).
#[derive(Debug)]
pub struct Lease(Weak<()>);

impl Lease {
    /// Whether the memory is the program's again: nothing holds it, and no copy of it is pending. A flow dropped with pending copies
    /// releases it when its [`Copier`](crate::flow::Copier) is polled or [settles](crate::flow::Copier::settle), and an MPI transfer when
    /// it is over.
    pub fn is_over(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl CudaMemory {
    /// Allocates zeroed memory; `bytes` must not be 0.
    pub(super) fn new(device: &Cuda, bytes: usize) -> Result<Self, DeviceError> {
        device.bind()?;
        // SAFETY: the contents of the memory are set before anything reads them.
        let address = check_room("cuMemAlloc", bytes, unsafe { result::malloc_sync(bytes) })?;
        let memory = Self { address, bytes, device: device.clone(), lent: None };
        // SAFETY: the memory is that long.
        check("cuMemsetD8", unsafe { result::memset_d8_sync(address, 0, bytes) })?;
        // For device memory the call may return early, and other streams are not ordered with the default one, on which it runs.
        check("cuCtxSynchronize", ctx::synchronize())?;
        Ok(memory)
    }

    /// Takes memory that the program has allocated by `cudaMalloc`, `cuMemAlloc` or the like, to be freed when the value is dropped, after
    /// all work that the device has by then.
    ///
    /// # Errors
    /// [`DeviceError::Empty`]; [`DeviceError::OtherDevice`] if the memory is another device's; and the driver's errors, for example that
    /// it does not know the address. Nothing is then taken.
    ///
    /// # Safety
    /// `bytes` bytes at `address` must have been allocated in the context of that device, in one piece, and must not be freed by anything
    /// else. Work on them that the program has submitted to the device must be over, or ordered by an event, when the value is handed on;
    /// so must their allocation, if that is ordered on a stream.
    pub unsafe fn adopt(device: &Cuda, address: u64, bytes: usize) -> Result<Self, DeviceError> {
        check_place(device, address, bytes)?;
        Ok(Self { address, bytes, device: device.clone(), lent: None })
    }

    /// Takes memory that the program still owns, and frees itself, once the lease is over.
    ///
    /// # Errors
    /// As [`adopt`](Self::adopt).
    ///
    /// # Safety
    /// `bytes` bytes at `address` must have been allocated in the context of that device, and stay until the lease is over. Until then,
    /// nothing else may write them, or read what is written there. Work on them that the program has submitted to the device must be over,
    /// or ordered by an event, when the value is handed on.
    pub unsafe fn lend(device: &Cuda, address: u64, bytes: usize) -> Result<(Self, Lease), DeviceError> {
        check_place(device, address, bytes)?;
        let lent = Arc::new(());
        let lease = Lease(Arc::downgrade(&lent));
        Ok((Self { address, bytes, device: device.clone(), lent: Some(lent) }, lease))
    }

    /// Takes memory that the program has allocated by `cudarc`. Waits until work submitted on the memory's stream is over, and work on the
    /// memory submitted on other streams, since the memory leaves the order of that stream: until then it may not even be allocated. To
    /// continue without waiting, [`adopt`](Self::adopt) the result of [`CudaSlice::leak`], with [`Cuda::end_of`] as the event after which
    /// it is used.
    ///
    /// # Errors
    /// Returns the memory, with [`DeviceError::Empty`], with [`DeviceError::OtherDevice`] if it is of another device or of another context
    /// of the same device, or with the driver's error.
    #[cfg(feature = "cudarc")]
    pub fn of<T>(device: &Cuda, mut memory: CudaSlice<T>) -> Result<Self, NotStarted<CudaSlice<T>>> {
        let bytes = memory.num_bytes();
        match settle(device, &mut memory) {
            Ok(()) => Ok(Self { address: memory.leak(), bytes, device: device.clone(), lent: None }),
            Err(error) => Err(NotStarted { memory, error }),
        }
    }

    pub(super) fn device(&self) -> &Cuda {
        &self.device
    }

    /// Its address on the device, for kernels.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns its address and length, for the program to free.
    pub fn release(self) -> (u64, usize) {
        let mut memory = ManuallyDrop::new(self);
        // The handle to the device is no longer needed, and is counted.
        let (address, bytes) = (memory.address, memory.bytes);
        // SAFETY: not used again, since the value is never dropped.
        unsafe { std::ptr::drop_in_place(&raw mut memory.device) };
        memory.lent = None;
        (address, bytes)
    }
}

/// Returns the number of the device to which an address belongs. A context must be current.
pub(super) fn device_of(address: u64) -> Result<c_int, DeviceError> {
    let mut owner: c_int = 0;
    let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
    // SAFETY: a place for the answer, which is of that type.
    let asked = unsafe { sys::cuPointerGetAttribute((&raw mut owner).cast(), attribute, address) };
    check("cuPointerGetAttribute", asked.result())?;
    Ok(owner)
}

/// Checks that there are bytes, and that they are the device's.
fn check_place(device: &Cuda, address: u64, bytes: usize) -> Result<(), DeviceError> {
    if bytes == 0 {
        return Err(DeviceError::Empty);
    }
    device.bind()?;
    let owner = device_of(address)?;
    if owner != device.primary().cu_device() {
        let owner = format!("device {owner}");
        return Err(DeviceError::OtherDevice { owner, device: name_of(device.primary()) });
    }
    Ok(())
}

/// Waits until no work on the memory, which must be of that device, is pending.
#[cfg(feature = "cudarc")]
fn settle<T>(device: &Cuda, memory: &mut CudaSlice<T>) -> Result<(), DeviceError> {
    if memory.num_bytes() == 0 {
        return Err(DeviceError::Empty);
    }
    let stream = Arc::clone(memory.stream());
    let context = stream.context();
    device.check_owner(context)?;
    // An error recorded earlier is not this call's; with it, `cudarc` would let the stream wait for nothing.
    let before = context.check_err();
    // Makes the stream wait for the others that have used the memory.
    drop(memory.device_ptr_mut(&stream));
    let waits = context.check_err();
    context.record_err(before);
    check("cuStreamWaitEvent", waits)?;
    device.bind()?;
    // SAFETY: the stream is alive.
    check("cuStreamSynchronize", unsafe { stream::synchronize(stream.cu_stream()) })
}

// SAFETY: as many bytes from the address on, which the driver gave to this value, until it is dropped.
unsafe impl DeviceMemory for CudaMemory {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn place(&self) -> (NonNull<u8>, Space) {
        // The driver places no memory at address 0; a device address is not one of the host's.
        let place = NonNull::new(std::ptr::without_provenance_mut(self.address as usize));
        (place.unwrap_or(NonNull::dangling()), Space::Device)
    }
}

impl Drop for CudaMemory {
    /// Waits for the device's pending work: the driver does so itself only for memory of `cuMemAlloc`, and a program's own work may be
    /// pending on the memory, or on what it was adopted from. If waiting fails, nothing is freed.
    fn drop(&mut self) {
        if self.lent.is_none() && self.device.bind().is_ok() && ctx::synchronize().is_ok() {
            // SAFETY: of `allocate`, or taken over, and freed only here, when nothing is pending.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}
