//! Memory of a device.

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
    /// The program frees it, when nobody has this any more.
    lent: Option<Arc<()>>,
}

/// What the program keeps of memory that it has [lent](CudaMemory::lend).
#[derive(Debug)]
pub struct Lease(Weak<()>);

impl Lease {
    /// Whether the memory is the program's again: nothing holds it, and no copy is under way in it. What was dropped with copies under
    /// way gives it back when its [`Copier`](crate::flow::Copier) is polled or [settles](crate::flow::Copier::settle), and what MPI
    /// transfers when that is over.
    pub fn is_over(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl CudaMemory {
    /// Zeroed; `bytes` is not 0.
    pub(super) fn new(device: &Cuda, bytes: usize) -> Result<Self, DeviceError> {
        device.bind()?;
        // SAFETY: what the memory holds is set before anybody sees it.
        let address = check_room("cuMemAlloc", bytes, unsafe { result::malloc_sync(bytes) })?;
        let memory = Self { address, bytes, device: device.clone(), lent: None };
        // SAFETY: the memory is as long.
        check("cuMemsetD8", unsafe { result::memset_d8_sync(address, 0, bytes) })?;
        // Of device memory it may return early, and other streams are not ordered with the default one, on which it runs.
        check("cuCtxSynchronize", ctx::synchronize())?;
        Ok(memory)
    }

    /// Takes memory that the program has by `cudaMalloc`, `cuMemAlloc` or their like, to be freed when the value is dropped, after
    /// all that the device has to do by then.
    ///
    /// # Errors
    /// [`DeviceError::Empty`]; [`DeviceError::OtherDevice`] when it is memory of another one; and what the driver says, such as that
    /// it does not know the address. Nothing is taken then.
    ///
    /// # Safety
    /// `bytes` bytes at `address` were allocated in the context of that device, in one piece, and nobody else frees them. What the
    /// program has asked the device to do with them is over, or ordered by an event, when the value is handed on; so is their
    /// allocation, where that is in the order of a stream.
    pub unsafe fn adopt(device: &Cuda, address: u64, bytes: usize) -> Result<Self, DeviceError> {
        check_place(device, address, bytes)?;
        Ok(Self { address, bytes, device: device.clone(), lent: None })
    }

    /// Takes memory that the program goes on to have, and frees itself: when the lease is over.
    ///
    /// # Errors
    /// As [`adopt`](Self::adopt).
    ///
    /// # Safety
    /// `bytes` bytes at `address` were allocated in the context of that device, and stay until the lease is over, as long as nobody else
    /// writes them, or reads what is written there. What the program has asked the device to do with them is over, or ordered by an event,
    /// when the value is handed on.
    pub unsafe fn lend(device: &Cuda, address: u64, bytes: usize) -> Result<(Self, Lease), DeviceError> {
        check_place(device, address, bytes)?;
        let lent = Arc::new(());
        let lease = Lease(Arc::downgrade(&lent));
        Ok((Self { address, bytes, device: device.clone(), lent: Some(lent) }, lease))
    }

    /// Takes memory that the program has by `cudarc`. Waits until what it has asked for on the stream of the memory is over, and
    /// what other streams were asked to do with it, since the memory leaves the order of that stream: until then it may not even be
    /// there. To go on without waiting, [`adopt`](Self::adopt) what [`CudaSlice::leak`] gives, with [`Cuda::end_of`] as the event
    /// after which it is used.
    ///
    /// # Errors
    /// The memory, with [`DeviceError::Empty`], with [`DeviceError::OtherDevice`] when it is of another device or of another context
    /// of the same, or with what the driver says.
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

    /// Its address and bytes, for the program to free.
    pub fn release(self) -> (u64, usize) {
        let mut memory = ManuallyDrop::new(self);
        // The device is not needed any more, and it counts who has it.
        let (address, bytes) = (memory.address, memory.bytes);
        // SAFETY: not used again, since the value is never dropped.
        unsafe { std::ptr::drop_in_place(&raw mut memory.device) };
        memory.lent = None;
        (address, bytes)
    }
}

/// The number of the device to which an address belongs. A context is current.
pub(super) fn device_of(address: u64) -> Result<c_int, DeviceError> {
    let mut owner: c_int = 0;
    let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
    // SAFETY: a place for the answer, which is of that type.
    let asked = unsafe { sys::cuPointerGetAttribute((&raw mut owner).cast(), attribute, address) };
    check("cuPointerGetAttribute", asked.result())?;
    Ok(owner)
}

/// Whether there are bytes, and they are the device's.
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

/// Waits until nothing is under way in the memory, which is of that device.
#[cfg(feature = "cudarc")]
fn settle<T>(device: &Cuda, memory: &mut CudaSlice<T>) -> Result<(), DeviceError> {
    if memory.num_bytes() == 0 {
        return Err(DeviceError::Empty);
    }
    let stream = Arc::clone(memory.stream());
    let context = stream.context();
    device.check_owner(context)?;
    // What was recorded before is somebody else's; `cudarc` would let the stream wait for nothing.
    let before = context.check_err();
    // Lets the stream wait for the others that have used the memory.
    drop(memory.device_ptr_mut(&stream));
    let waits = context.check_err();
    context.record_err(before);
    check("cuStreamWaitEvent", waits)?;
    device.bind()?;
    // SAFETY: the stream is alive.
    check("cuStreamSynchronize", unsafe { stream::synchronize(stream.cu_stream()) })
}

// SAFETY: as many bytes from the address on, which the driver gave to this value, until that is dropped.
unsafe impl DeviceMemory for CudaMemory {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn place(&self) -> (NonNull<u8>, Space) {
        // The driver gives no memory at address 0; an address of the device is none of the host's.
        let place = NonNull::new(std::ptr::without_provenance_mut(self.address as usize));
        (place.unwrap_or(NonNull::dangling()), Space::Device)
    }
}

impl Drop for CudaMemory {
    /// Waits for what is under way on the device: the driver does so itself only for memory of `cuMemAlloc`, and a program's own work
    /// may be under way in the memory, or in what it was adopted from. Where nobody can wait, nothing is freed.
    fn drop(&mut self) {
        if self.lent.is_none() && self.device.bind().is_ok() && ctx::synchronize().is_ok() {
            // SAFETY: of `allocate`, or taken over, and freed only here, when nothing is under way.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}
