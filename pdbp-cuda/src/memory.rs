//! Block memory that a device copies from and to without an intermediate copy.

use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use cudarc::driver::{result, sys};
use pdbp_core::BlockMemory;
use pdbp_core::umb::Space;

use crate::device::{Cuda, DeviceError, check, check_room};

/// Blocks begin on a multiple of this.
const ALIGN: usize = 64;

/// Page-locked host memory, which all devices of the process copy from and to at full speed. The host reads and writes it like any
/// other memory (it is not write-combined).
pub struct PinnedMemory {
    base: NonNull<u8>,
    bytes: usize,
    device: Cuda,
}

impl PinnedMemory {
    /// Allocates `bytes` zeroed bytes. Locking them takes a while, and other processes cannot use what is locked.
    ///
    /// # Errors
    /// [`DeviceError::Empty`], [`DeviceError::OutOfMemory`] and the driver's errors.
    pub fn new(device: &Cuda, bytes: usize) -> Result<Self, DeviceError> {
        if bytes == 0 {
            return Err(DeviceError::Empty);
        }
        device.bind()?;
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE;
        // SAFETY: the contents of the memory are set before anything reads them.
        let address = check_room("cuMemHostAlloc", bytes, unsafe { result::malloc_host(bytes, flags) })?;
        let base = NonNull::new(address.cast::<u8>()).ok_or(DeviceError::OutOfMemory { bytes })?;
        let memory = Self { base, bytes, device: device.clone() };
        debug_assert!(base.addr().get().is_multiple_of(ALIGN), "the driver gives whole pages");
        // SAFETY: as many bytes, and nothing else knows of them.
        unsafe { base.write_bytes(0, bytes) };
        Ok(memory)
    }
}

impl Drop for PinnedMemory {
    /// Nothing of it is in use: memory that devices copy from and to is held until the copies are over. If it cannot be freed, it
    /// stays.
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: allocated in `new`, and freed only here.
            let _ = unsafe { result::free_host(self.base.as_ptr().cast()) };
        }
    }
}

// SAFETY: an address; the memory behind it is reached through block tokens only, and any thread may free it.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above; a reference gives only the address.
unsafe impl Sync for PinnedMemory {}

// SAFETY: initialised by `new`, on a page boundary, in place until the value is dropped; nothing else knows of it.
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

/// Existing memory, such as a part of a window that processes share, locked in place for all devices of this process, together with
/// the memory of other nodes that it [shows](BlockMemory::visit_neighbours). It is unlocked before it is given up.
pub struct Registered<M: BlockMemory> {
    base: NonNull<u8>,
    bytes: usize,
    /// Keeps both alive; never accessed again.
    _together: Arc<Mutex<Together<M>>>,
}

/// The locked ranges and their memories, kept until none of them is in use.
struct Together<M> {
    locks: Vec<Lock>,
    memories: Vec<M>,
}

/// A locked range.
struct Lock {
    base: NonNull<u8>,
    device: Cuda,
}

// SAFETY: an address that is only passed to the driver, as any thread may do.
unsafe impl Send for Lock {}

impl<M: BlockMemory> Registered<M> {
    /// Locks the memory. Takes a while.
    ///
    /// # Errors
    /// As [`all`](Self::all).
    pub fn new(device: &Cuda, memory: M) -> Result<Self, (M, DeviceError)> {
        // One memory goes in, so one comes out.
        let single = |mut memories: Vec<M>| memories.swap_remove(0);
        let registered = Self::all(device, vec![memory]);
        registered.map(|mut all| all.swap_remove(0)).map_err(|(memories, error)| (single(memories), error))
    }

    /// Locks the memories of nodes that read each other's blocks in place. All of them stay locked, and none is given up, until the
    /// last is dropped, since a device may copy from one node's block for another node.
    ///
    /// # Errors
    /// Returns the memories, which remain usable as they are, with the driver's error: for example, it cannot lock memory of that
    /// kind, or the memory is locked already.
    pub fn all(device: &Cuda, memories: Vec<M>) -> Result<Vec<Self>, (Vec<M>, DeviceError)> {
        let (mut locks, mut failed) = (Vec::new(), None);
        let mut lock = |range: NonNull<[u8]>| {
            if failed.is_none() {
                match Lock::new(device, range) {
                    Ok(lock) => locks.push(lock),
                    Err(e) => failed = Some(e),
                }
            }
        };
        for memory in &memories {
            lock(NonNull::slice_from_raw_parts(memory.base(), memory.len()));
            memory.visit_neighbours(&mut lock);
        }
        if let Some(e) = failed {
            locks.iter().for_each(|lock| drop(lock.unlock()));
            return Err((memories, e));
        }
        let places: Vec<_> = memories.iter().map(|memory| (memory.base(), memory.len())).collect();
        let together = Arc::new(Mutex::new(Together { locks, memories }));
        let registered = |(base, bytes)| Self { base, bytes, _together: Arc::clone(&together) };
        Ok(places.into_iter().map(registered).collect())
    }
}

impl Lock {
    fn new(device: &Cuda, range: NonNull<[u8]>) -> Result<Self, DeviceError> {
        let (base, bytes) = (range.cast::<u8>(), range.len());
        if bytes == 0 {
            return Err(DeviceError::Empty);
        }
        device.bind()?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE;
        // SAFETY: the bytes are valid (`BlockMemory`) until they are unlocked, which happens before the memory goes.
        let locked = unsafe { sys::cuMemHostRegister_v2(base.as_ptr().cast(), bytes, flags) };
        check_room("cuMemHostRegister", bytes, locked.result())?;
        Ok(Self { base, device: device.clone() })
    }
}

impl Lock {
    /// Unlocks the range, once, when nothing of it is in use. A lost device no longer uses it.
    ///
    /// # Errors
    /// The driver's error: devices may then take whatever lies there for the locked memory.
    fn unlock(&self) -> Result<(), DeviceError> {
        self.device.bind()?;
        // SAFETY: locked by `new`, and unlocked only here.
        let unlocked = unsafe { sys::cuMemHostUnregister(self.base.as_ptr().cast()) };
        check("cuMemHostUnregister", unlocked.result()).or_else(|e| if e.is_lost() { Ok(()) } else { Err(e) })
    }
}

impl<M> Drop for Together<M> {
    /// Unlocks before the memories go. Memory that cannot be unlocked stays: anything placed at its addresses later would be taken
    /// for it.
    fn drop(&mut self) {
        let failed = self.locks.iter().filter(|lock| lock.unlock().is_err()).count();
        if failed > 0 {
            std::mem::forget(std::mem::take(&mut self.memories));
        }
    }
}

// SAFETY: an address in memory that may move to another thread, as may the device's lock.
unsafe impl<M: BlockMemory + Send> Send for Registered<M> {}

// SAFETY: the base and length of memory that keeps the contract and that `_together` holds, each given to one value only; locking
// changes none of that.
unsafe impl<M: BlockMemory> BlockMemory for Registered<M> {
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

impl<M: BlockMemory> fmt::Debug for Registered<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registered({} bytes)", self.len())
    }
}
