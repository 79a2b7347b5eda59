//! Device memory, and who may do what with it.
//!
//! A [`Buffer`] is the only right to its memory: what arrives is written there. [`Buffer::into_slice`] makes it one that many may
//! read and nobody writes: what is sent. A copy under way holds its memory, so that neither is freed under it, and a slice
//! becomes a buffer again only when nobody else holds it.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use pdbp_core::Space;
use pdbp_core::umb::{RecvMemory, SendMemory};

use crate::device::{Device, DeviceError, DeviceMemory};

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

    /// Copies bytes of the host to it, from byte `at` on, and waits until they are there.
    ///
    /// # Errors
    /// [`DeviceError::OutOfBounds`], and what the device says.
    pub fn write(&mut self, device: &D, at: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        let queue = device.queue()?;
        // SAFETY: both are borrowed until the event is over.
        let over = unsafe { device.copy_in(&queue, NonNull::from(bytes), &self.memory, at) }?;
        device.wait(&over)
    }

    /// What it holds from byte `at` on, when that is here.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn read(&self, device: &D, at: usize, to: &mut [u8]) -> Result<(), DeviceError> {
        let queue = device.queue()?;
        // SAFETY: both are borrowed until the event is over.
        let over = unsafe { device.copy_out(&queue, &self.memory, at, NonNull::from(to)) }?;
        device.wait(&over)
    }

    /// These bytes of it, for a transport that receives straight into them. The buffer is not [free](crate::flow::Inflow::take_buffer)
    /// until that is done. `None` when the range does not lie in it.
    pub fn to_receive(&mut self, device: &D, room: Range<usize>) -> Option<Landing<D>> {
        let bytes = Bytes::of(device, &self.memory, room)?;
        Some(Landing(bytes))
    }

    /// The memory; `None` when a copy or a transport holds it, too.
    pub fn into_memory(self) -> Option<D::Memory> {
        Arc::into_inner(self.memory)
    }

    /// Gives up the right to write.
    pub fn into_slice(self) -> Slice<D> {
        let range = 0..self.bytes();
        Slice { memory: self.memory, range }
    }

    /// Whether no copy under way holds the memory.
    pub(crate) fn is_free(&self) -> bool {
        Arc::strong_count(&self.memory) == 1
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
    pub fn into_buffer(self) -> Result<Buffer<D>, Self> {
        if Arc::strong_count(&self.memory) == 1 {
            return Ok(Buffer { memory: self.memory });
        }
        Err(self)
    }

    /// The slice, for a transport that sends straight from it.
    pub fn to_send(&self, device: &D) -> Option<Parcel<D>> {
        Bytes::of(device, &self.memory, self.range.clone()).map(Parcel)
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
pub struct Parcel<D: Device>(Bytes<D>);

/// Bytes of a [`Buffer`] into which a transport receives.
pub struct Landing<D: Device>(Bytes<D>);

/// Bytes of device memory, and what keeps them.
struct Bytes<D: Device> {
    place: NonNull<[u8]>,
    space: Space,
    _memory: Arc<D::Memory>,
}

impl<D: Device> Bytes<D> {
    fn of(device: &D, memory: &Arc<D::Memory>, range: Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > memory.bytes() {
            return None;
        }
        let (first, space) = device.place(memory);
        // Not `add`, since it is no address of the host.
        let first = first.map_addr(|first| first.saturating_add(range.start));
        let place = NonNull::slice_from_raw_parts(first, range.len());
        Some(Self { place, space, _memory: Arc::clone(memory) })
    }
}

// SAFETY: an address, and memory that may be dropped on any thread (`DeviceMemory`).
unsafe impl<D: Device> Send for Bytes<D> {}

// SAFETY: inside of memory that the value keeps and that stays where it is (`Device::place`); nobody writes a slice.
unsafe impl<D: Device> SendMemory for Parcel<D> {
    fn bytes(&self) -> NonNull<[u8]> {
        self.0.place
    }
    fn space(&self) -> Space {
        self.0.space
    }
}

// SAFETY: as above; a buffer has one owner, who does not use it before it is free.
unsafe impl<D: Device> RecvMemory for Landing<D> {
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

impl<D: Device> fmt::Debug for Slice<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slice({:?})", self.range)
    }
}
