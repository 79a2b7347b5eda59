//! Device memory, and who may do what with it.
//!
//! A [`Buffer`] is the only right to its memory: what arrives is written there. [`Buffer::into_slice`] makes it one that many may
//! read and nobody writes: what is sent. [`Buffer::into_recv`] gives the right to a transport, which writes: nobody has the buffer
//! until that is done. A copy under way holds its memory, so that neither is freed under it, and a slice becomes a buffer again only
//! when nobody else holds it.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use pdbp_core::Space;
use pdbp_core::umb::{RecvMemory, SendMemory};

use crate::device::{Device, DeviceError, DeviceMemory as _, InUse, check_bounds};

/// Device memory of one owner.
pub struct Buffer<D: Device> {
    memory: Arc<D::Memory>,
}

/// A part of device memory that nobody writes. Clones share it.
pub struct Slice<D: Device> {
    memory: Arc<D::Memory>,
    range: Range<usize>,
}

impl<D: Device> Buffer<D> {
    /// `bytes` zeroed bytes on the device. Waits until they are there.
    ///
    /// # Errors
    /// As [`Device::allocate`].
    pub fn new(device: &D, bytes: usize) -> Result<Self, DeviceError> {
        Ok(Self::of(device.allocate(bytes)?))
    }

    /// Takes memory that the program has.
    pub fn of(memory: D::Memory) -> Self {
        Self { memory: Arc::new(memory) }
    }

    /// The memory, for the program's own work on the device. What the host asks the device to do with it is over, or ordered by
    /// an event, before the buffer is handed on.
    pub fn memory(&self) -> &D::Memory {
        &self.memory
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Copies bytes of the host to it, from byte `at` on, and waits until they are there. They go by a copy of them, which stays if
    /// nobody knows when the device is done with it.
    ///
    /// # Errors
    /// [`DeviceError::OutOfBounds`], [`DeviceError::OtherDevice`], [`DeviceError::InUse`], and what the device says.
    pub fn write(&mut self, device: &D, at: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        if !self.is_free() {
            return Err(DeviceError::InUse { bytes: self.bytes() });
        }
        let (queue, bytes) = (device.queue()?, bytes.to_vec());
        // SAFETY: `InUse` has the bytes, which are on the heap, and the memory until the event is over.
        let over = unsafe { device.copy_in(&queue, NonNull::from(&bytes[..]), &self.memory, at) }?;
        InUse::new(over, (bytes, self.hold())).wait(device).map(drop)
    }

    /// What it holds from byte `at` on, when that is here. It comes by a copy, as with [`write`](Self::write).
    ///
    /// # Errors
    /// [`DeviceError::OutOfBounds`], [`DeviceError::OtherDevice`], and what the device says. `to` is as it was then.
    pub fn read(&self, device: &D, at: usize, to: &mut [u8]) -> Result<(), DeviceError> {
        let (queue, mut bytes) = (device.queue()?, vec![0; to.len()]);
        // SAFETY: as in `write`.
        let over = unsafe { device.copy_out(&queue, &self.memory, at, NonNull::from(&mut bytes[..])) }?;
        if let Some((bytes, _)) = InUse::new(over, (bytes, self.hold())).wait(device)? {
            to.copy_from_slice(&bytes);
        }
        Ok(())
    }

    /// These bytes of it, for a transport that receives straight into them, and what becomes the buffer again when the transport
    /// has let go of them.
    ///
    /// # Errors
    /// The buffer, with [`DeviceError::OutOfBounds`] when the range does not lie in it, or [`DeviceError::InUse`] when a copy may be
    /// under way in it.
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

    /// The memory.
    ///
    /// # Errors
    /// The buffer, when a copy of whose end nobody knows may be under way in it.
    pub fn into_memory(self) -> Result<D::Memory, Self> {
        Arc::try_unwrap(self.memory).map_err(|memory| Self { memory })
    }

    /// Gives up the right to write.
    pub fn into_slice(self) -> Slice<D> {
        let range = 0..self.bytes();
        Slice { memory: self.memory, range }
    }

    /// Whether no copy under way holds the memory. What others did with it has happened then.
    pub(crate) fn is_free(&mut self) -> bool {
        Arc::get_mut(&mut self.memory).is_some()
    }

    pub(crate) fn hold(&self) -> Arc<D::Memory> {
        Arc::clone(&self.memory)
    }
}

impl<D: Device> Slice<D> {
    /// Bytes of it.
    pub fn bytes(&self) -> usize {
        self.range.len()
    }

    /// A part of it; `None` when the range does not lie in it.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        let inside = range.start <= range.end && range.end <= self.bytes();
        let at = self.range.start;
        inside.then(|| Self { memory: Arc::clone(&self.memory), range: at + range.start..at + range.end })
    }

    /// The whole memory with the right to write, which comes back when the last slice of it is gone.
    ///
    /// # Errors
    /// The slice, when another is left, or a copy from the memory is under way.
    pub fn into_buffer(mut self) -> Result<Buffer<D>, Self> {
        if Arc::get_mut(&mut self.memory).is_some() {
            return Ok(Buffer { memory: self.memory });
        }
        Err(self)
    }

    /// The slice, for a transport that sends straight from it.
    pub fn to_send(&self) -> SendBuffer<D> {
        SendBuffer(Bytes::inside(&self.memory, &self.range))
    }

    pub(crate) fn memory(&self) -> &D::Memory {
        &self.memory
    }

    pub(crate) fn hold(&self) -> Arc<D::Memory> {
        Arc::clone(&self.memory)
    }

    /// The bytes of its memory.
    pub(crate) fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Where byte `at` of the slice lies in its memory.
    pub(crate) fn place(&self, at: usize) -> usize {
        self.range.start + at
    }
}

/// A [`Slice`] on its way by a transport.
pub struct SendBuffer<D: Device>(Bytes<D>);

/// Bytes of a [`Buffer`] into which a transport receives.
pub struct RecvBuffer<D: Device>(Bytes<D>);

/// A [`Buffer`] into which a transport receives: nobody reads or writes it meanwhile.
pub struct Awaited<D: Device> {
    memory: Arc<D::Memory>,
}

impl<D: Device> Awaited<D> {
    /// The buffer, when the transport has let go of its [`RecvBuffer`].
    ///
    /// # Errors
    /// This, while it has not.
    pub fn into_buffer(mut self) -> Result<Buffer<D>, Self> {
        // What the transport wrote has been written then.
        if Arc::get_mut(&mut self.memory).is_some() { Ok(Buffer { memory: self.memory }) } else { Err(self) }
    }
}

/// Bytes of device memory, and what keeps them.
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

    /// Of a range that lies in the memory.
    fn inside(memory: &Arc<D::Memory>, range: &Range<usize>) -> Self {
        let (first, space) = memory.place();
        // Not `add`, since it is no address of the host.
        let first = first.map_addr(|first| first.saturating_add(range.start));
        let place = NonNull::slice_from_raw_parts(first, range.len());
        Self { place, space, _memory: Arc::clone(memory) }
    }
}

// SAFETY: an address, and memory that may be dropped on any thread (`DeviceMemory`).
unsafe impl<D: Device> Send for Bytes<D> {}

// SAFETY: inside of memory that the value keeps and that stays where it is (`DeviceMemory::place`); nobody writes a slice.
unsafe impl<D: Device> SendMemory for SendBuffer<D> {
    fn bytes(&self) -> NonNull<[u8]> {
        self.0.place
    }
    fn space(&self) -> Space {
        self.0.space
    }
}

// SAFETY: as above; no copy was under way, and the buffer is out of reach as an `Awaited` until this is dropped.
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
