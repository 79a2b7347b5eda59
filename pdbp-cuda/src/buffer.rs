//! Device memory, and the rights to it.
//!
//! A [`Buffer`] is the exclusive right to its memory: received data is written there. [`Buffer::into_slice`] turns it into a right
//! to read, which may be shared while nothing writes: for data to send. [`Buffer::into_recv`] gives the exclusive right to a
//! transport, which writes: the buffer is unavailable until the transport is done. A pending copy holds its memory, so neither is
//! freed under it, and a slice becomes a buffer again only when nothing else holds it.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use pdbp_core::Space;
use pdbp_core::umb::{RecvMemory, SendMemory};

use crate::device::{Device, DeviceError, DeviceMemory as _, InUse, check_bounds};

/// Device memory with one owner.
pub struct Buffer<D: Device> {
    memory: Arc<D::Memory>,
}

/// A part of device memory that is not written. Clones share it.
pub struct Slice<D: Device> {
    memory: Arc<D::Memory>,
    range: Range<usize>,
}

impl<D: Device> Buffer<D> {
    /// Allocates `bytes` zeroed bytes on the device. Waits until they are available.
    ///
    /// # Errors
    /// As [`Device::allocate`].
    pub fn new(device: &D, bytes: usize) -> Result<Self, DeviceError> {
        Ok(Self::of(device.allocate(bytes)?))
    }

    /// Takes memory that the program has allocated.
    pub fn of(memory: D::Memory) -> Self {
        Self { memory: Arc::new(memory) }
    }

    /// The memory, for the program's own work on the device. The program must finish work that the host submits on it, or order it
    /// by an event, before it hands the buffer on.
    pub fn memory(&self) -> &D::Memory {
        &self.memory
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Copies bytes from the host to the buffer, from byte `at` on, and waits until they have arrived. They travel through a copy,
    /// which stays allocated if it is unknown when the device is done with it.
    ///
    /// # Errors
    /// [`DeviceError::OutOfBounds`], [`DeviceError::OtherDevice`], [`DeviceError::InUse`], and the device's errors.
    pub fn write(&mut self, device: &D, at: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        if !self.is_free() {
            return Err(DeviceError::InUse { bytes: self.bytes() });
        }
        let (queue, bytes) = (device.queue()?, bytes.to_vec());
        // SAFETY: `InUse` holds the bytes, which are on the heap, and the memory until the event is over.
        let over = unsafe { device.copy_in(&queue, NonNull::from(&bytes[..]), &self.memory, at) }?;
        InUse::new(over, (bytes, Arc::clone(&self.memory))).wait(device).map(drop)
    }

    /// Copies the contents from byte `at` on to the host, and waits until they have arrived. They travel through a copy, as in
    /// [`write`](Self::write).
    ///
    /// # Errors
    /// [`DeviceError::OutOfBounds`], [`DeviceError::OtherDevice`], and the device's errors. `to` is then unchanged.
    pub fn read(&self, device: &D, at: usize, to: &mut [u8]) -> Result<(), DeviceError> {
        let (queue, mut bytes) = (device.queue()?, vec![0; to.len()]);
        // SAFETY: as in `write`.
        let over = unsafe { device.copy_out(&queue, &self.memory, at, NonNull::from(&mut bytes[..])) }?;
        if let Some((bytes, _)) = InUse::new(over, (bytes, Arc::clone(&self.memory))).wait(device)? {
            to.copy_from_slice(&bytes);
        }
        Ok(())
    }

    /// Splits the buffer into these bytes of it, for a transport that receives straight into them, and an [`Awaited`], which becomes
    /// the buffer again once the transport has released them.
    ///
    /// # Errors
    /// Returns the buffer, with [`DeviceError::OutOfBounds`] if the range does not lie in it, or [`DeviceError::InUse`] if a copy of
    /// it may be pending.
    pub fn into_recv(
        mut self,
        room: Range<usize>,
    ) -> Result<(RecvBuffer<D>, Awaited<D>), (Self, DeviceError)> {
        let bytes = if self.is_free() {
            Bytes::of(&self.memory, room)
        } else {
            Err(DeviceError::InUse { bytes: self.bytes() })
        };
        match bytes {
            Ok(bytes) => Ok((RecvBuffer(bytes), Awaited { memory: self.memory })),
            Err(e) => Err((self, e)),
        }
    }

    /// Returns the memory.
    ///
    /// # Errors
    /// Returns the buffer if a copy of it may be pending whose end is unknown.
    pub fn into_memory(self) -> Result<D::Memory, Self> {
        Arc::try_unwrap(self.memory).map_err(|memory| Self { memory })
    }

    /// Gives up the right to write.
    pub fn into_slice(self) -> Slice<D> {
        let range = 0..self.bytes();
        Slice { memory: self.memory, range }
    }

    /// Whether no pending copy holds the memory. If so, everything that others did with it has happened.
    pub(crate) fn is_free(&mut self) -> bool {
        Arc::get_mut(&mut self.memory).is_some()
    }

    pub(crate) fn shared(&self) -> &Arc<D::Memory> {
        &self.memory
    }
}

impl<D: Device> Slice<D> {
    /// The length in bytes.
    pub fn bytes(&self) -> usize {
        self.range.len()
    }

    /// Returns a part of the slice; `None` if the range does not lie in it.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        let inside = range.start <= range.end && range.end <= self.bytes();
        let at = self.range.start;
        inside.then(|| Self { memory: Arc::clone(&self.memory), range: at + range.start..at + range.end })
    }

    /// Returns the whole memory with the right to write, once the last slice of it is gone.
    ///
    /// # Errors
    /// Returns the slice, if another remains, or a copy from the memory is pending.
    pub fn into_buffer(mut self) -> Result<Buffer<D>, Self> {
        if Arc::get_mut(&mut self.memory).is_some() {
            return Ok(Buffer { memory: self.memory });
        }
        Err(self)
    }

    /// Shares the slice with a transport that sends straight from it.
    pub fn to_send(&self) -> SendBuffer<D> {
        SendBuffer(Bytes::inside(&self.memory, &self.range))
    }

    pub(crate) fn shared(&self) -> &Arc<D::Memory> {
        &self.memory
    }

    /// The range of its memory.
    pub(crate) fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Where byte `at` of the slice lies in its memory.
    pub(crate) fn place(&self, at: usize) -> usize {
        self.range.start + at
    }
}

/// A [`Slice`] that a transport is sending.
pub struct SendBuffer<D: Device>(Bytes<D>);

/// Bytes of a [`Buffer`] into which a transport receives.
pub struct RecvBuffer<D: Device>(Bytes<D>);

/// A [`Buffer`] into which a transport receives; it is neither read nor written otherwise in the meantime.
pub struct Awaited<D: Device> {
    memory: Arc<D::Memory>,
}

impl<D: Device> Awaited<D> {
    /// Returns the buffer, once the transport has dropped its [`RecvBuffer`].
    ///
    /// # Errors
    /// Returns this value until then.
    pub fn into_buffer(mut self) -> Result<Buffer<D>, Self> {
        // Everything that the transport wrote has then been written.
        if Arc::get_mut(&mut self.memory).is_some() { Ok(Buffer { memory: self.memory }) } else { Err(self) }
    }
}

/// A range of device memory, kept alive.
struct Bytes<D: Device> {
    place: NonNull<[u8]>,
    space: Space,
    _memory: Arc<D::Memory>,
}

impl<D: Device> Bytes<D> {
    fn of(memory: &Arc<D::Memory>, range: Range<usize>) -> Result<Self, DeviceError> {
        if range.start > range.end {
            return Err(DeviceError::OutOfBounds { at: range.start, bytes: 0, room: memory.bytes() });
        }
        check_bounds(range.start, range.len(), memory.bytes())?;
        Ok(Self::inside(memory, &range))
    }

    /// For a range that lies in the memory.
    fn inside(memory: &Arc<D::Memory>, range: &Range<usize>) -> Self {
        let (first, space) = memory.place();
        // Not `add`, since this is not an address of the host.
        let first = first.map_addr(|first| first.saturating_add(range.start));
        let place = NonNull::slice_from_raw_parts(first, range.len());
        Self { place, space, _memory: Arc::clone(memory) }
    }
}

// SAFETY: an address, and memory that may be dropped on any thread (`DeviceMemory`).
unsafe impl<D: Device> Send for Bytes<D> {}

// SAFETY: inside memory that the value keeps alive and that stays in place (`DeviceMemory::place`); a slice is never written.
unsafe impl<D: Device> SendMemory for SendBuffer<D> {
    fn bytes(&self) -> NonNull<[u8]> {
        self.0.place
    }
    fn space(&self) -> Space {
        self.0.space
    }
}

// SAFETY: as above; no copy was pending, and the buffer is out of reach as an `Awaited` until this is dropped.
unsafe impl<D: Device> RecvMemory for RecvBuffer<D> {
    fn bytes(&mut self) -> NonNull<[u8]> {
        self.0.place
    }
    fn space(&self) -> Space {
        self.0.space
    }
}

impl<D: Device> Clone for Slice<D> {
    fn clone(&self) -> Self {
        Self { memory: Arc::clone(&self.memory), range: self.range.clone() }
    }
}

impl<D: Device> fmt::Debug for Buffer<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.bytes())
    }
}

impl<D: Device> fmt::Debug for Awaited<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Awaited({} bytes)", self.memory.bytes())
    }
}

impl<D: Device> fmt::Debug for Slice<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slice({:?})", self.range)
    }
}
