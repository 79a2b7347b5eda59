//! Block memory that a device copies from and to without a copy in between.

use std::fmt;
use std::ptr::NonNull;

use cudarc::driver::{result, sys};
use pdbp_core::BlockMemory;
use pdbp_core::umb::Space;

use crate::device::{Cuda, DeviceError, check, check_room};

/// Blocks begin on such a boundary.
const ALIGN: usize = 64;

/// Page-locked memory of the host, which all devices of the process copy from and to at full speed. The host reads and writes it
/// like any other memory (it is not write-combined).
pub struct PinnedMemory {
    base: NonNull<u8>,
    bytes: usize,
    device: Cuda,
}

impl PinnedMemory {
    /// `bytes` zeroed bytes. Locking them takes a while, and what is locked is not there for others.
    ///
    /// # Errors
    /// [`DeviceError::Empty`], [`DeviceError::OutOfMemory`] and what the driver says.
    pub fn new(device: &Cuda, bytes: usize) -> Result<Self, DeviceError> {
        if bytes == 0 {
            return Err(DeviceError::Empty);
        }
        device.bind()?;
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE;
        // SAFETY: what the memory holds is set before anybody sees it.
        let address = check_room("cuMemHostAlloc", bytes, unsafe { result::malloc_host(bytes, flags) })?;
        let base = NonNull::new(address.cast::<u8>()).ok_or(DeviceError::OutOfMemory { bytes })?;
        let memory = Self { base, bytes, device: device.clone() };
        debug_assert!(base.addr().get().is_multiple_of(ALIGN), "the driver gives whole pages");
        // SAFETY: as many bytes, which nobody else knows of.
        unsafe { base.write_bytes(0, bytes) };
        Ok(memory)
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: of `new`, and freed only here.
            let _ = unsafe { result::free_host(self.base.as_ptr().cast()) };
        }
    }
}

// SAFETY: an address; what lies there is reached through block tokens only, and any thread may free it.
unsafe impl Send for PinnedMemory {}

// SAFETY: initialised by `new`, on a page boundary, in place until the value is dropped; nobody else knows of it.
unsafe impl BlockMemory for PinnedMemory {
    fn base(&self) -> NonNull<u8> {
        self.base
    }
    fn len(&self) -> usize {
        self.bytes
    }
    fn space(&self) -> Space {
        Space::Pinned
    }
}

impl fmt::Debug for PinnedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedMemory({} bytes)", self.bytes)
    }
}

/// Memory that was there before, such as a part of a window that processes share, locked in place for the devices of this
/// process. It is unlocked before it is given up.
pub struct Registered<M: BlockMemory> {
    /// Unlocks in its own drop, which comes before the memory's since it is declared before.
    _lock: Lock,
    memory: M,
}

struct Lock {
    base: NonNull<u8>,
    device: Cuda,
}

// SAFETY: an address that is given to the driver only, which any thread may do.
unsafe impl Send for Lock {}

impl<M: BlockMemory> Registered<M> {
    /// Locks the memory. Takes a while.
    ///
    /// # Errors
    /// The memory, which can be used as it is, with what the driver says: such as that it cannot lock memory of that kind, or
    /// that it is locked already.
    pub fn new(device: &Cuda, memory: M) -> Result<Self, (M, DeviceError)> {
        match Lock::new(device, &memory) {
            Ok(lock) => Ok(Self { _lock: lock, memory }),
            Err(e) => Err((memory, e)),
        }
    }
}

impl Lock {
    fn new(device: &Cuda, memory: &impl BlockMemory) -> Result<Self, DeviceError> {
        let (base, bytes) = (memory.base(), memory.len());
        if bytes == 0 {
            return Err(DeviceError::Empty);
        }
        device.bind()?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE;
        // SAFETY: the bytes are there (`BlockMemory`) until the lock is dropped, before the memory is.
        let locked = unsafe { sys::cuMemHostRegister_v2(base.as_ptr().cast(), bytes, flags) };
        check_room("cuMemHostRegister", bytes, locked.result())?;
        Ok(Self { base, device: device.clone() })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: locked by `new`, and unlocked only here.
            let unlocked = unsafe { sys::cuMemHostUnregister(self.base.as_ptr().cast()) };
            // Of a lost device nothing can be unlocked.
            let _ = check("cuMemHostUnregister", unlocked.result());
        }
    }
}

// SAFETY: forwards to memory that keeps the contract; locking it changes nothing of that.
unsafe impl<M: BlockMemory> BlockMemory for Registered<M> {
    fn base(&self) -> NonNull<u8> {
        self.memory.base()
    }
    fn len(&self) -> usize {
        self.memory.len()
    }
    fn space(&self) -> Space {
        Space::Pinned
    }
}

impl<M: BlockMemory> fmt::Debug for Registered<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registered({} bytes)", self.len())
    }
}
