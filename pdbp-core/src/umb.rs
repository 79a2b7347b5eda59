//! UMB, the user memory blocks: equal-sized blocks of one memory region, and the tokens that own them (S1 §2.4).
//!
//! A block has exactly one owner at a time. Whoever holds its token may touch its bytes; nobody else can, because tokens
//! are not `Copy`, cannot be made outside this crate without `unsafe`, and every operation that hands a block on takes
//! the token:
//!
//! ```text
//!            open              submit              Op::Send             Completion::Sent
//!  (pool) ────────▶ OpenBlock ───────▶ SealedBlock ────────▶ (transport) ────────────▶ (pool)
//!                                                                │ on the other node
//!                                     Completion::Received       ▼
//!  (owner) ◀─────── ArrivedBlock ◀───────────────────────  Delivery, one per reader
//!          Op::Return               when the last is given back
//! ```
//!
//! What would give a block a second owner does not compile. After a block has been submitted, its writer has nothing left:
//!
//! ```compile_fail,E0382
//! # use pdbp_core::{BlockMemory, Engine, OpenBlock, Transport, policy::SpacePolicy};
//! # fn f<T: Transport, M: BlockMemory, P: SpacePolicy>(engine: &mut Engine<'_, T, M, P>, block: OpenBlock) {
//! engine.submit(block);
//! block.written(); // error: borrow of moved value
//! # }
//! ```
//! the same holds for a block that the transport has,
//! ```compile_fail,E0382
//! # use pdbp_core::{Op, SealedBlock, Transport, id::NodeId};
//! # fn f(transport: &mut impl Transport, peer: NodeId, block: SealedBlock) {
//! let _ = transport.submit(Op::Send { peer, block });
//! block.bytes(); // error: borrow of moved value
//! # }
//! ```
//! for a delivery that was given back,
//! ```compile_fail,E0505
//! # use pdbp_core::{BlockMemory, Delivery, Engine, Transport, policy::SpacePolicy};
//! # fn f<T: Transport, M: BlockMemory, P: SpacePolicy>(engine: &mut Engine<'_, T, M, P>, delivery: Delivery) {
//! let bytes = delivery.bytes();
//! engine.release(delivery); // error: cannot move out of `delivery` because it is borrowed
//! assert!(bytes.is_empty());
//! # }
//! ```
//! and no token can be cloned.
//! ```compile_fail,E0599
//! # fn f(block: pdbp_core::OpenBlock) {
//! let second = block.clone(); // error: no method named `clone` found
//! # }
//! ```
//! ```compile_fail,E0599
//! # fn f(block: pdbp_core::SealedBlock) {
//! let second = block.clone(); // error: no method named `clone` found
//! # }
//! ```
//! ```compile_fail,E0599
//! # fn f(delivery: pdbp_core::Delivery) {
//! let second = delivery.clone(); // error: no method named `clone` found
//! # }
//! ```
//!
//! `UMBInfo-Tab` is the table of [`BlockInfo`]: the state of each block and the row that it serves.

#[cfg(feature = "alloc")]
mod pool;

use core::ptr::NonNull;
use core::slice;

use managed::ManagedSlice;

use crate::cdu::{BLOCK_HEADER, Full, Packer, Route, SegmentHeader};
use crate::id::{BlockId, NodeId, PartId};
#[cfg(feature = "alloc")]
pub use pool::BlockPool;

/// What kind of memory the blocks lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Ordinary memory of the host.
    Host,
    /// Page-locked memory of the host, which a device can copy from and to.
    Pinned,
    /// Memory of a device.
    Device,
}

/// The region that a UMB divides into blocks.
///
/// # Safety
/// `base()..base() + len()` is initialised, valid for reads and writes, aligned to 64 bytes, and stays at that address until
/// the value is dropped (for ever, if it never is); nothing but the holder of the value and the tokens made of it accesses
/// it. `base` and `len` return the same values each time.
pub unsafe trait BlockMemory: 'static {
    /// First byte.
    fn base(&self) -> NonNull<u8>;
    /// Length in bytes.
    fn len(&self) -> usize;
    /// Whether there is no byte at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Kind of memory.
    fn space(&self) -> Space {
        Space::Host
    }
}

/// A region on the heap, freed when it and all its [keepers](Self::keeper) are gone. Regions of 2 MiB and more begin on such a
/// boundary, so that the operating system can back them with huge pages.
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
    /// `bytes` zeroed bytes; `None` when there is not as much memory, or `bytes` is 0.
    pub fn new(bytes: usize) -> Option<Self> {
        const HUGE: usize = 2 << 20;
        let align = if bytes >= HUGE { HUGE } else { 64 };
        let layout = core::alloc::Layout::from_size_align(bytes, align).ok().filter(|l| l.size() > 0)?;
        // SAFETY: the layout's size is not zero.
        let base = NonNull::new(unsafe { alloc::alloc::alloc_zeroed(layout) })?;
        Some(Self(alloc::sync::Arc::new(HeapRegion { base, layout })))
    }

    /// Something that keeps the region in place, without a right to its bytes: for a transport whose peers read them.
    pub fn keeper(&self) -> MemoryKeeper {
        MemoryKeeper(alloc::sync::Arc::clone(&self.0))
    }
}

/// Keeps a [`HeapMemory`]'s region in place while it lives.
#[cfg(feature = "alloc")]
#[derive(Clone, Debug)]
pub struct MemoryKeeper(alloc::sync::Arc<HeapRegion>);

#[cfg(feature = "alloc")]
impl MemoryKeeper {
    /// Whether all the bytes lie in the region.
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

// SAFETY: the value is an address and a layout; what lies there is reached through block tokens only.
#[cfg(feature = "alloc")]
unsafe impl Send for HeapRegion {}
// SAFETY: as for `Send`.
#[cfg(feature = "alloc")]
unsafe impl Sync for HeapRegion {}

// SAFETY: `alloc_zeroed` gives initialised memory, aligned to 64 at least, which is freed when the last clone is dropped.
#[cfg(feature = "alloc")]
unsafe impl BlockMemory for HeapMemory {
    fn base(&self) -> NonNull<u8> {
        self.0.base
    }
    fn len(&self) -> usize {
        self.0.layout.size()
    }
}

/// A region in a `static` or otherwise never freed.
#[derive(Debug)]
pub struct StaticMemory(NonNull<u8>, usize);

/// Bytes on the alignment that blocks need; the contents of a [`StaticMemory`].
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Aligned<const BYTES: usize>(pub [u8; BYTES]);

impl StaticMemory {
    /// Takes the bytes for good.
    pub fn new<const BYTES: usize>(bytes: &'static mut Aligned<BYTES>) -> Self {
        Self(NonNull::from(bytes).cast(), BYTES)
    }
}

// SAFETY: the value is the only right to its bytes (`new` took the exclusive reference).
unsafe impl Send for StaticMemory {}

// SAFETY: the bytes were borrowed exclusively and for ever, and are aligned to 64 by their type.
unsafe impl BlockMemory for StaticMemory {
    fn base(&self) -> NonNull<u8> {
        self.0
    }
    fn len(&self) -> usize {
        self.1
    }
}

/// State of a block, a column of UMBInfo-Tab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum BlockState {
    /// In the pool.
    #[default]
    Free,
    /// A real element of a row, without data.
    Vacant,
    /// Being filled by a writer.
    Open,
    /// Sealed, waiting in its row.
    Queued,
    /// With the transport.
    InFlight,
}

/// A row of UMBInfo-Tab.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockInfo {
    pub(crate) state: BlockState,
    /// Node whose row the block serves.
    pub(crate) row: u16,
    /// The element of the row that holds the block.
    pub(crate) slot: u32,
    /// The next block of the list that the block is in (free list or send queue).
    pub(crate) next: u32,
    /// Length of header and body once sealed.
    pub(crate) length: u32,
}

pub(crate) const NIL: u32 = u32::MAX;

/// Distance between blocks: header and body, rounded up to cache lines.
pub const fn stride(body: usize) -> usize {
    (BLOCK_HEADER + body + 63) & !63
}

/// The blocks of one node.
pub(crate) struct Umb<'a, M> {
    pub(crate) memory: Held<M>,
    segment: NodeId,
    body: usize,
    pub(crate) info: ManagedSlice<'a, BlockInfo>,
    free_head: u32,
    free: u32,
}

impl<'a, M: BlockMemory> Umb<'a, M> {
    /// Divides `memory` into as many blocks of `body` bytes as it and `info` have room for.
    pub(crate) fn new(
        memory: M,
        segment: NodeId,
        body: usize,
        mut info: ManagedSlice<'a, BlockInfo>,
    ) -> Self {
        let count = (memory.len() / stride(body)).min(info.len()).min(NIL as usize - 1) as u32;
        for (i, entry) in info.iter_mut().enumerate() {
            let next = i as u32 + 1;
            *entry = BlockInfo { next: if next < count { next } else { NIL }, ..BlockInfo::default() };
        }
        let free_head = if count == 0 { NIL } else { 0 };
        Self { memory: Held::new(memory), segment, body, info, free_head, free: count }
    }

    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    /// Takes the block that was freed last: it is the most likely to be in a cache.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let index = self.free_head;
        let entry = self.info.get_mut(index as usize)?;
        self.free_head = entry.next;
        self.free -= 1;
        Some(index)
    }

    pub(crate) fn give(&mut self, index: u32) {
        if let Some(entry) = self.info.get_mut(index as usize) {
            debug_assert_ne!(entry.state, BlockState::Free, "block {index} freed twice");
            entry.state = BlockState::Free;
            entry.next = self.free_head;
            self.free_head = index;
            self.free += 1;
        }
    }

    pub(crate) fn entry(&mut self, index: u32) -> Option<&mut BlockInfo> {
        self.info.get_mut(index as usize)
    }

    /// Whether a token that was handed in names a block of this very pool. Without this check a token of another engine, or
    /// one mixed up by a transport, would give a second right to one of our blocks.
    pub(crate) fn owns(&self, block: &RawBlock) -> bool {
        let index = block.id.index as usize;
        let at = stride(self.body).checked_mul(index);
        at.filter(|at| index < self.info.len() && at + stride(self.body) <= self.memory.len())
            .is_some_and(|at| self.memory.base().addr().get() + at == block.base.addr().get())
    }

    /// The token of block `index`. The caller passes on the only right to it that there is.
    pub(crate) fn raw(&self, index: u32) -> RawBlock {
        // In bounds of the region: `index` comes from the free list, which holds indices below `len / stride`.
        let at = stride(self.body) * index as usize;
        debug_assert!(at + stride(self.body) <= self.memory.len());
        // SAFETY: `at` is inside the region, which is one allocation (contract of `BlockMemory`).
        let base = unsafe { self.memory.base().add(at) };
        RawBlock {
            id: BlockId { segment: self.segment, index },
            base,
            room: (BLOCK_HEADER + self.body) as u32,
        }
    }
}

/// Address, room and identity of a block. Owning the value is owning the block.
#[derive(Debug)]
pub(crate) struct RawBlock {
    id: BlockId,
    base: NonNull<u8>,
    room: u32,
}

// SAFETY: the value is the only right to its block, and the block's memory is plain bytes that stay where they are.
unsafe impl Send for RawBlock {}

impl RawBlock {
    pub(crate) fn id(&self) -> BlockId {
        self.id
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn bytes(&self, length: usize) -> &[u8] {
        debug_assert!(length <= self.room as usize);
        // SAFETY: the block is `room` initialised bytes, `length` of them are asked for, and this value owns it.
        unsafe { slice::from_raw_parts(self.base.as_ptr(), length) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; `&mut self` makes the access exclusive.
        unsafe { slice::from_raw_parts_mut(self.base.as_ptr(), self.room as usize) }
    }

    pub(crate) fn body_mut(&mut self) -> &mut [u8] {
        // SAFETY: a block has `BLOCK_HEADER` bytes and more, see `stride`.
        let body = unsafe { self.base.add(BLOCK_HEADER) };
        // SAFETY: as in `bytes_mut`, less the header.
        unsafe { slice::from_raw_parts_mut(body.as_ptr(), self.room as usize - BLOCK_HEADER) }
    }
}

/// Marks the segment of a stream that a block carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamTag {
    /// The public pipe of the stream at its source (`group` and `PipeA` of MTA).
    pub group: u16,
    /// The stream's number.
    pub number: crate::id::StreamNo,
    /// Number of this segment.
    pub segment: u32,
    /// The receiving part.
    pub dest: PartId,
    /// First and last segment, or given up: bits of [`flag`](crate::cdu::flag).
    pub flags: u16,
}

/// A block that its holder fills with CDUs. Goes back with [`Engine::submit`](crate::Engine::submit).
#[derive(Debug)]
#[must_use = "a block that is not submitted is lost to the pool"]
pub struct OpenBlock {
    pub(crate) raw: RawBlock,
    pub(crate) packer: Packer,
    pub(crate) dest: NodeId,
    pub(crate) urgent: bool,
    pub(crate) stream: Option<StreamTag>,
}

impl OpenBlock {
    /// The node that the block goes to.
    pub fn dest(&self) -> NodeId {
        self.dest
    }

    /// Bytes packed so far.
    pub fn written(&self) -> usize {
        self.packer.written()
    }

    /// Messages packed so far.
    pub fn messages(&self) -> u32 {
        self.packer.messages()
    }

    /// Bytes that CDUs can take in all.
    pub fn room(&self) -> usize {
        self.raw.room as usize - BLOCK_HEADER
    }

    /// Lets the block take no more than `room` bytes of CDUs, so that it leaves earlier. Of what is packed nothing is lost.
    pub fn limit(&mut self, room: usize) {
        let least = (self.packer.written() + 7) & !7;
        self.raw.room = (BLOCK_HEADER + self.room().min(room.max(least))) as u32;
    }

    /// Makes the block a segment of a stream. Such a block holds one CDU.
    pub fn set_stream(&mut self, tag: StreamTag) {
        self.stream = Some(tag);
    }

    /// Appends one message; see [`Packer::push`].
    ///
    /// # Errors
    /// [`Full`]; nothing was written.
    #[inline(always)]
    pub fn push(&mut self, route: Route, data: &[u8]) -> Result<(), Full> {
        self.reserve(route, data.len())?.copy_from_slice(data);
        Ok(())
    }

    /// Makes room for one message; see [`Packer::reserve`].
    ///
    /// # Errors
    /// [`Full`]; nothing was written.
    #[inline(always)]
    pub fn reserve(&mut self, route: Route, length: usize) -> Result<&mut [u8], Full> {
        let Self { raw, packer, .. } = self;
        packer.reserve(raw.body_mut(), route, length)
    }

    /// Makes room for several messages of one length; see [`Packer::reserve_train`].
    ///
    /// # Errors
    /// [`Full`]; nothing was written.
    pub fn reserve_train(
        &mut self,
        route: Route,
        length: usize,
        most: u32,
    ) -> Result<(&mut [u8], u32), Full> {
        let Self { raw, packer, .. } = self;
        packer.reserve_train(raw.body_mut(), route, length, most)
    }

    /// Makes room for a segment of a long message; see [`Packer::reserve_segment`].
    ///
    /// # Errors
    /// [`Full`]; nothing was written.
    pub fn reserve_segment(
        &mut self,
        route: Route,
        segment: SegmentHeader,
        length: usize,
    ) -> Result<&mut [u8], Full> {
        let Self { raw, packer, .. } = self;
        packer.reserve_segment(raw.body_mut(), route, segment, length)
    }

    /// Makes room for a message to several parts; see [`Packer::reserve_set`].
    ///
    /// # Errors
    /// [`Full`]; nothing was written.
    pub fn reserve_set(
        &mut self,
        route: Route,
        set: &[PartId],
        segment: Option<SegmentHeader>,
        length: usize,
    ) -> Result<&mut [u8], Full> {
        let Self { raw, packer, .. } = self;
        packer.reserve_set(raw.body_mut(), route, set, segment, length)
    }

    /// Makes the block overtake others that wait for the same node.
    pub fn into_urgent(self) -> Self {
        Self { urgent: true, ..self }
    }

    /// The last `length` bytes packed: the room of the last reservation.
    pub fn last_reserved(&self, length: usize) -> &[u8] {
        let end = BLOCK_HEADER + self.packer.written();
        let bytes = self.raw.bytes(end);
        bytes.get(end.saturating_sub(length)..).unwrap_or(&[])
    }

    /// The state of packing, to undo a reservation with [`rewind`](Self::rewind).
    pub fn mark(&self) -> Packer {
        self.packer
    }

    /// Takes back everything reserved since `mark` was made. A mark that lies ahead of what is packed is not of this
    /// block, and does nothing.
    pub fn rewind(&mut self, mark: Packer) {
        if mark.written() <= self.packer.written() {
            self.packer = mark;
        }
    }

    /// Closes the last train; the length of header and body.
    pub(crate) fn finish(&mut self) -> u32 {
        let Self { raw, packer, .. } = self;
        (BLOCK_HEADER + packer.finish(raw.body_mut())) as u32
    }
}

/// A block ready to travel: header and body are final. The transport owns it until the completion gives it back.
#[derive(Debug)]
#[must_use = "a block that is not given back is lost to the pool"]
pub struct SealedBlock {
    pub(crate) raw: RawBlock,
    pub(crate) length: u32,
}

impl SealedBlock {
    /// The block's name.
    pub fn id(&self) -> BlockId {
        self.raw.id
    }

    /// Header and body.
    pub fn bytes(&self) -> &[u8] {
        self.raw.bytes(self.length as usize)
    }

    pub(crate) fn header_mut(&mut self) -> &mut [u8] {
        let header = self.raw.bytes_mut();
        header.get_mut(..BLOCK_HEADER).unwrap_or(&mut [])
    }

    /// Address and length of header and body, for a transport that hands the block over in place. The block is out of
    /// Rust's sight until [`from_raw`](Self::from_raw).
    pub fn into_raw(self) -> (BlockId, NonNull<u8>, u32) {
        (self.raw.id, self.raw.base, self.length)
    }

    /// Takes up a block that [`into_raw`](Self::into_raw) put down.
    ///
    /// # Safety
    /// The three values come from one call of `into_raw`, no token was made of them since, and nobody reads the block
    /// any more.
    pub unsafe fn from_raw(id: BlockId, base: NonNull<u8>, length: u32) -> Self {
        Self { raw: RawBlock { id, base, room: length }, length }
    }
}

/// One of our blocks without data, given to a transport to receive into.
#[derive(Debug)]
#[must_use = "a block that is not given back is lost to the pool"]
pub struct VacantBlock {
    pub(crate) raw: RawBlock,
}

impl VacantBlock {
    /// The block's name.
    pub fn id(&self) -> BlockId {
        self.raw.id
    }

    /// Where header and body go.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.raw.bytes_mut()
    }

    /// The block now holds what a peer sent: `length` bytes of header and body (cut to the block's room).
    pub fn into_arrived(self, length: usize) -> ArrivedBlock {
        let length = length.min(self.raw.room as usize) as u32;
        ArrivedBlock { raw: self.raw, length }
    }
}

/// A block that came from a peer: one of our own, filled by the transport, or the peer's, to be read in place.
#[derive(Debug)]
#[must_use = "a block that is not given back is lost to its owner's pool"]
pub struct ArrivedBlock {
    pub(crate) raw: RawBlock,
    pub(crate) length: u32,
}

impl ArrivedBlock {
    /// The block's name; its segment is the node that owns it.
    pub fn id(&self) -> BlockId {
        self.raw.id
    }

    /// Header and body.
    pub fn bytes(&self) -> &[u8] {
        self.raw.bytes(self.length as usize)
    }

    /// A block of a peer's UMB, to be read in place.
    ///
    /// # Safety
    /// `base` is aligned to 8 bytes and valid for reads of `length` bytes, which nobody writes, until the token is
    /// handed to [`Op::Return`](crate::Op::Return).
    pub unsafe fn in_place(id: BlockId, base: NonNull<u8>, length: u32) -> Self {
        Self { raw: RawBlock { id, base, room: length }, length }
    }
}

impl SealedBlock {
    /// The block as it arrives at a part of the same node.
    pub(crate) fn into_arrived(self) -> ArrivedBlock {
        ArrivedBlock { raw: self.raw, length: self.length }
    }
}

/// What a delivery is a piece of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryKind {
    /// Messages; all CDUs of the piece are for the part it is delivered to.
    Messages {
        /// Whether they go ahead of other messages (commands).
        urgent: bool,
    },
    /// A segment of a stream: one CDU.
    Stream {
        /// The stream's number at its source node.
        number: crate::id::StreamNo,
        /// The segment's number, from 0.
        segment: u32,
        /// Whether no segment follows.
        last: bool,
        /// Whether the stream was given up, by its writer or because a segment was lost.
        aborted: bool,
    },
}

/// The right of one part to read one piece of an arrived block in place. Goes back with
/// [`Engine::release`](crate::Engine::release).
///
/// The bytes stay valid for as long as the value lives: an engine that is dropped while deliveries or open blocks exist
/// leaves its memory and its transport in place (leaks them) instead of freeing them.
#[derive(Debug)]
#[must_use = "a delivery that is not released keeps its block from being used again"]
pub struct Delivery {
    block: NonNull<u8>,
    start: u32,
    end: u32,
    pub(crate) row: u16,
    pub(crate) element: u32,
    kind: DeliveryKind,
}

// SAFETY: the value gives shared access to bytes that nobody writes while it lives; that is safe from any thread.
unsafe impl Send for Delivery {}
// SAFETY: as for `Send`; `&Delivery` only reads.
unsafe impl Sync for Delivery {}

impl Delivery {
    /// A piece, `start..end` behind the header, of the block in element `element` of row `row`.
    pub(crate) fn new(
        block: &ArrivedBlock,
        (start, end): (usize, usize),
        (row, element): (NodeId, u32),
        kind: DeliveryKind,
    ) -> Self {
        debug_assert!(start <= end && BLOCK_HEADER + end <= block.length as usize);
        Self { block: block.raw.base(), start: start as u32, end: end as u32, row: row.raw(), element, kind }
    }

    /// The node that sent it.
    pub fn source(&self) -> NodeId {
        NodeId::from_index(self.row as usize)
    }

    /// Whether it is a piece of `block`, as held by element `element` of row `row`.
    pub(crate) fn is_of(&self, block: &ArrivedBlock, (row, element): (NodeId, u32)) -> bool {
        self.block == block.raw.base() && self.row == row.raw() && self.element == element
    }

    /// What it is.
    pub fn kind(&self) -> DeliveryKind {
        self.kind
    }

    /// The header of the block that it lies in.
    pub fn block(&self) -> &crate::cdu::BlockHeader {
        // SAFETY: the block starts with a header, of alignment 1, that was read when it arrived; the engine keeps the
        // block until this value is released (see the type's documentation).
        unsafe { self.block.cast().as_ref() }
    }

    /// The bytes of its CDUs.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `new` was given a range inside the block.
        let at = unsafe { self.block.add(BLOCK_HEADER + self.start as usize) };
        // SAFETY: as above; the engine keeps the block until this value is released, and nobody writes it.
        unsafe { slice::from_raw_parts(at.as_ptr(), (self.end - self.start) as usize) }
    }

    /// Its CDUs.
    pub fn cdus(&self) -> crate::cdu::Cdus<'_> {
        crate::cdu::Cdus::new(self.bytes())
    }
}

/// A value that can be left in place when its owner is dropped.
pub(crate) struct Held<T> {
    value: core::mem::ManuallyDrop<T>,
    /// Whether the value must outlive its owner.
    pub(crate) leak: bool,
}

impl<T> Held<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: core::mem::ManuallyDrop::new(value), leak: false }
    }
}

impl<T> core::ops::Deref for Held<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> core::ops::DerefMut for Held<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for Held<T> {
    fn drop(&mut self) {
        if !self.leak {
            // SAFETY: `self` is being dropped, so the value is dropped once and not used again.
            unsafe { core::mem::ManuallyDrop::drop(&mut self.value) }
        }
    }
}

#[cfg(all(test, feature = "alloc"))]
mod tests;
