//! Device memory, and who may do what with it.
//!
//! A [`Buffer`] is the only right to its memory: what arrives is written there. [`Buffer::into_slice`] makes it one that many may
//! read and nobody writes: what is sent. A copy under way holds its memory, so that neither is freed under it, and a slice
//! becomes a buffer again only when nobody else holds it.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

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
