//! The memory that holds the blocks.

use core::ptr::NonNull;

/// The kind of memory that holds the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Ordinary memory of the host.
    Host,
    /// Page-locked host memory, which a device can copy to and from.
    Pinned,
    /// Memory of a device.
    Device,
}

/// The region that a UMB divides into blocks.
///
/// # Safety
/// `base()..base() + len()` is initialised, valid for reads and writes, aligned to 64 bytes, and stays at that address until the
/// value is dropped (forever, if it never is). Only the holder of the value and the tokens made from it access this memory. `base`
/// and `len` return the same values each time.
pub unsafe trait BlockMemory: 'static {
    /// First byte.
    fn base(&self) -> NonNull<u8>;
    /// Length in bytes.
    fn len(&self) -> usize;
    /// Whether the length is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The kind of memory.
    fn space(&self) -> Space {
        Space::Host
    }
    /// Visits the memory of other nodes that is mapped into this process, whose blocks are read in place. For devices, which copy
    /// faster from memory that is registered with them. The memory stays mapped until the value is dropped.
    fn visit_neighbours(&self, _visit: &mut dyn FnMut(NonNull<[u8]>)) {}
}

/// Bytes outside the blocks, in host or device memory, that a capable transport sends from directly.
///
/// # Safety
/// [`bytes`](Self::bytes) returns the same bytes at each call, wherever the value is moved. They are initialised, and nobody writes
/// or frees them until the value is dropped.
pub unsafe trait SendMemory: Send + 'static {
    /// The bytes.
    fn bytes(&self) -> NonNull<[u8]>;
    /// The kind of memory.
    fn space(&self) -> Space;
}

/// Bytes outside the blocks, in host or device memory, that a capable transport receives into directly.
///
/// # Safety
/// As for [`SendMemory`]; in addition, nobody reads the bytes.
pub unsafe trait RecvMemory: Send + 'static {
    /// The bytes.
    fn bytes(&mut self) -> NonNull<[u8]>;
    /// The kind of memory.
    fn space(&self) -> Space;
}

/// A region on the heap, freed once it and all its [keepers](Self::keeper) are gone. Regions of 2 MiB and more are aligned to 2
/// MiB, so that the operating system can back them with huge pages.
#[cfg(feature = "alloc")]
#[derive(Debug)]
pub struct HeapMemory(alloc::sync::Arc<HeapRegion>);

#[cfg(feature = "alloc")]
#[derive(Debug)]
struct HeapRegion {
    base: NonNull<u8>,
    layout: core::alloc::Layout,
}

#[cfg(feature = "alloc")]
impl HeapMemory {
    /// Allocates `bytes` zeroed bytes. `None` if there is not enough memory, or `bytes` is 0.
    pub fn new(bytes: usize) -> Option<Self> {
        const HUGE: usize = 2 << 20;
        let align = if bytes >= HUGE { HUGE } else { 64 };
        let layout = core::alloc::Layout::from_size_align(bytes, align).ok().filter(|l| l.size() > 0)?;
        // SAFETY: the layout's size is not zero.
        let base = NonNull::new(unsafe { alloc::alloc::alloc_zeroed(layout) })?;
        Some(Self(alloc::sync::Arc::new(HeapRegion { base, layout })))
    }

    /// Returns a value that keeps the region in place but gives no access to its bytes: for a transport whose peers read them.
    pub fn keeper(&self) -> MemoryKeeper {
        MemoryKeeper(alloc::sync::Arc::clone(&self.0))
    }
}

/// Keeps the region of a [`HeapMemory`] in place while it lives.
#[cfg(feature = "alloc")]
#[derive(Clone, Debug)]
pub struct MemoryKeeper(alloc::sync::Arc<HeapRegion>);

#[cfg(feature = "alloc")]
impl MemoryKeeper {
    /// Whether all the bytes are in the region.
    #[inline]
    pub fn holds(&self, bytes: &[u8]) -> bool {
        let (first, at) = (self.0.base.addr().get(), bytes.as_ptr().addr());
        first <= at && at + bytes.len() <= first + self.0.layout.size()
    }
}

#[cfg(feature = "alloc")]
impl Drop for HeapRegion {
    fn drop(&mut self) {
        // SAFETY: `base` was allocated with this layout in `HeapMemory::new`, and this is the only place that frees it.
        unsafe { alloc::alloc::dealloc(self.base.as_ptr(), self.layout) }
    }
}

// SAFETY: the value is an address and a layout; the memory behind it is reached only through block tokens.
#[cfg(feature = "alloc")]
unsafe impl Send for HeapRegion {}
// SAFETY: as for `Send`.
#[cfg(feature = "alloc")]
unsafe impl Sync for HeapRegion {}

// SAFETY: `alloc_zeroed` returns initialised memory, aligned to at least 64 bytes, which is freed when the last clone is dropped.
#[cfg(feature = "alloc")]
unsafe impl BlockMemory for HeapMemory {
    fn base(&self) -> NonNull<u8> {
        self.0.base
    }
    fn len(&self) -> usize {
        self.0.layout.size()
    }
}

// SAFETY: the box forwards to its contents, which keep the contract wherever the box itself is moved.
#[cfg(feature = "alloc")]
unsafe impl<M: BlockMemory + ?Sized> BlockMemory for alloc::boxed::Box<M> {
    fn base(&self) -> NonNull<u8> {
        (**self).base()
    }
    fn len(&self) -> usize {
        (**self).len()
    }
    fn space(&self) -> Space {
        (**self).space()
    }
    fn visit_neighbours(&self, visit: &mut dyn FnMut(NonNull<[u8]>)) {
        (**self).visit_neighbours(visit);
    }
}

/// A region in a `static`, or one that is otherwise never freed.
#[derive(Debug)]
pub struct StaticMemory(NonNull<u8>, usize);

/// Bytes aligned as blocks require; the contents of a [`StaticMemory`].
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Aligned<const BYTES: usize>(pub [u8; BYTES]);

impl StaticMemory {
    /// Takes the bytes permanently.
    pub fn new<const BYTES: usize>(bytes: &'static mut Aligned<BYTES>) -> Self {
        Self(NonNull::from(bytes).cast(), BYTES)
    }
}

// SAFETY: the value is the only access to its bytes (`new` took the exclusive reference).
unsafe impl Send for StaticMemory {}

// SAFETY: the bytes were borrowed exclusively and forever, and are aligned to 64 by their type.
unsafe impl BlockMemory for StaticMemory {
    fn base(&self) -> NonNull<u8> {
        self.0
    }
    fn len(&self) -> usize {
        self.1
    }
}
