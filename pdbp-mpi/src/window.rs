//! The memory of a node, and its layout.
//!
//! ```text
//!  part of one process (all parts of a host lie in one MPI-3 shared-memory window):
//!   ┌────────┬───────┬──────┬─────────────────────┬──────────────────────────────────┬──────── page ─────────┐
//!   │ header │ state │ bell │ goodbyes, per node  │ per process of the host:         │ blocks of the UMB     │
//!   │        │       │      │ (remote links)         │ whether its blocks have readers, │                       │
//!   │        │       │      │                     │ ring of blocks for it, which     │                       │
//!   │        │       │      │                     │ has copies of short ones,        │                       │
//!   │        │       │      │                     │ ring of its blocks that go back  │                       │
//!   └────────┴───────┴──────┴─────────────────────┴──────────────────────────────────┴───────────────────────┘
//! ```
//! Everything before the blocks is atomics; a block's copy in a ring is lent to its reader as the block itself would be. Only the owning process
//! writes a part's header, state, rings and blocks; others ring its bell.
//!
//! A ring of blocks takes 384 bytes for each block that may be in flight, a ring of returned blocks 16: 9.4 KiB for each process of the host
//! with 24 blocks.
//!
//! # Trust
//! All processes of the job on the host map the window. They belong to one user, and each can write to all of it. This library, in any process,
//! does not write a block while it is read (as `&[u8]`), but no process can enforce that in another: processes of a host trust each other as the
//! threads of a process do. Numbers and locations in rings and states are checked when they are read, so a process that misbehaves or died
//! half-way ends its link and does no other harm.

use std::ops::Deref;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pdbp_core::BlockMemory;
use pdbp_core::id::NodeId;

use crate::eventcount::Eventcount;
use crate::process::{self, Backing, Serial};
use crate::process_watch::Identity;
use crate::ring::ENTRY;

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;
const WORD: usize = size_of::<u64>();
const PAGE: usize = 4096;
const MAGIC: u64 = u64::from_le_bytes(*b"PDBP\0mp1");

/// Lines at the start of a part.
const STATE: usize = 1;
const BELL: usize = 2;
const GOODBYES: usize = 3;

/// Words of the header line.
const AT_MAGIC: usize = 0;
const AT_PROCESS: usize = 1;
const AT_BLOCKS: usize = 2;
const AT_NAMESPACE: usize = 3;
const AT_STARTED: usize = 4;

/// Words of a slot of the ring of blocks: six lines, which a message of 256 bytes and its headers need.
pub(crate) const OUT: usize = 6 * LINE / WORD;
/// Words of a slot of the ring of returned blocks.
pub(crate) const BACK: usize = ENTRY;
/// Header and body of the longest block that fits in a slot next to the entry.
pub(crate) const SLOT_ROOM: usize = (OUT - ENTRY) * WORD;

/// States of a part's process.
const HERE: u32 = 1;
const GONE: u32 = 2;

/// Replaces zero, which means that readers may remain.
const NO_READERS: u64 = 1;

/// How a part is divided. The same in all processes of a host, except for the length of the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Nodes of the domain.
    pub(crate) nodes: usize,
    /// Processes of the host, this one included.
    pub(crate) neighbours: usize,
    /// Slots of a ring, at least one.
    pub(crate) slots: usize,
    /// Bytes of block memory.
    pub(crate) blocks: usize,
}

impl Layout {
    const fn ring_bytes(&self, direction: Direction) -> usize {
        (self.slots * direction.slot_words() * WORD).next_multiple_of(LINE)
    }

    /// Of both rings for one process.
    const fn rings_bytes(&self) -> usize {
        self.ring_bytes(Direction::Out) + self.ring_bytes(Direction::Back)
    }

    const fn readers_at(&self) -> usize {
        (GOODBYES + self.nodes) * LINE
    }

    const fn rings_at(&self) -> usize {
        self.readers_at() + (self.neighbours * WORD).next_multiple_of(LINE)
    }

    const fn blocks_at(&self) -> usize {
        (self.rings_at() + self.neighbours * self.rings_bytes()).next_multiple_of(PAGE)
    }

    /// Bytes of memory for the part, which begins on the first page boundary in them: MPI aligns memory only to words, but maps whole pages, so
    /// the boundary is the same for all processes.
    ///
    /// Saturates, and so exceeds any memory, when that much is asked for.
    pub(crate) const fn bytes(&self) -> usize {
        self.blocks.div_ceil(PAGE).saturating_mul(PAGE).saturating_add(PAGE + self.blocks_at())
    }
}

/// Where a part lies: from its first page boundary on.
#[derive(Clone, Copy)]
struct Place {
    base: NonNull<u8>,
    length: usize,
}

impl Place {
    /// The part in this memory; `None` if the memory is too short for one.
    fn in_memory(memory: NonNull<[u8]>, layout: &Layout) -> Option<Self> {
        let before = memory.cast::<u8>().align_offset(PAGE);
        let length = memory.len().checked_sub(before).filter(|length| *length >= layout.blocks_at())?;
        // SAFETY: inside the bytes.
        let base = unsafe { memory.cast::<u8>().add(before) };
        Some(Self { base, length })
    }
}

/// One process' part, as this process sees it.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    place: Place,
    layout: &'a Layout,
}

/// Which of the two rings for a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Blocks sent to it.
    Out,
    /// Its own blocks, on their way back.
    Back,
}

impl Direction {
    const fn slot_words(self) -> usize {
        match self {
            Self::Out => OUT,
            Self::Back => BACK,
        }
    }
}

// All parts are made by `Region::part` and `Region::own`: a part's bytes are mapped, and so initialised, for as long as the region that the
// part borrows. Only atomics access what lies before the blocks, in every process of the host (see the crate's documentation:
// peers on a host are trusted with that), except by readers of a block whose copy lies in a slot, where nothing is written in the meantime.
impl<'a> Part<'a> {
    /// `count` words from byte `at` on.
    fn words(&self, at: usize, count: usize) -> &'a [AtomicU64] {
        debug_assert!(at + count * WORD <= self.layout.blocks_at());
        // SAFETY: inside the part; all callers ask for words before the blocks (`Layout`).
        let first = unsafe { self.place.base.add(at) }.cast::<AtomicU64>();
        // SAFETY: aligned, since the part is aligned to 64 and `at` to 8; mapped for `'a`, and accessed only by atomics (above).
        unsafe { slice::from_raw_parts(first.as_ptr(), count) }
    }

    fn half_words(&self, line: usize) -> &'a [AtomicU32] {
        // SAFETY: as in `words`; lines at the start of the part.
        let first = unsafe { self.place.base.add(line * LINE) }.cast::<AtomicU32>();
        // SAFETY: as in `words`.
        unsafe { slice::from_raw_parts(first.as_ptr(), LINE / size_of::<u32>()) }
    }

    fn header(&self, word: usize) -> &'a AtomicU64 {
        &self.words(0, LINE / WORD)[word]
    }

    fn state(&self) -> &'a AtomicU32 {
        &self.half_words(STATE)[0]
    }

    /// Whether the process has left the domain. All that it sent is in its rings by then.
    pub(crate) fn is_gone(&self) -> bool {
        // Pairs with the store in `Region::leave`.
        self.state().load(Ordering::Acquire) == GONE
    }

    /// The process that owns the part.
    pub(crate) fn process(&self) -> Identity {
        let word = |at| self.header(at).load(Ordering::Relaxed);
        Identity { number: word(AT_PROCESS) as u32, namespace: word(AT_NAMESPACE), started: word(AT_STARTED) }
    }

    /// Records that this process does not read that neighbour's blocks, now or later. Must precede [`Region::leave`].
    pub(crate) fn set_no_readers(&self, neighbour: usize) {
        self.readers(neighbour).iter().for_each(|word| word.store(NO_READERS, Ordering::Relaxed));
    }

    /// Whether the process recorded that before it left.
    pub(crate) fn has_no_readers(&self, neighbour: usize) -> bool {
        // `is_gone` is what synchronises with the other process.
        self.is_gone()
            && self.readers(neighbour).iter().all(|word| word.load(Ordering::Relaxed) == NO_READERS)
    }

    fn readers(&self, neighbour: usize) -> &'a [AtomicU64] {
        self.words(self.layout.readers_at() + neighbour * WORD, 1)
    }

    /// The process' bell.
    pub(crate) fn bell(&self) -> Eventcount<'a> {
        let words = self.half_words(BELL);
        Eventcount { rings: &words[0], sleepers: &words[1] }
    }

    fn ring_at(&self, neighbour: usize, direction: Direction) -> usize {
        let at = self.layout.rings_at() + neighbour * self.layout.rings_bytes();
        match direction {
            Direction::Out => at,
            Direction::Back => at + self.layout.ring_bytes(Direction::Out),
        }
    }

    /// The ring in this part for the process with number `neighbour` on the host.
    fn ring(&self, neighbour: usize, direction: Direction) -> &'a [AtomicU64] {
        self.words(self.ring_at(neighbour, direction), direction.slot_words() * self.layout.slots)
    }

    /// Where this slot of the ring of blocks for that process begins.
    pub(crate) fn slot_at(&self, neighbour: usize, slot: usize) -> u64 {
        (self.ring_at(neighbour, Direction::Out) + slot * OUT * WORD) as u64
    }

    /// The slot of the ring of blocks for that process that begins at `offset`, if any.
    pub(crate) fn slot_of(&self, neighbour: usize, offset: u64) -> Option<usize> {
        let at = usize::try_from(offset).ok()?.checked_sub(self.ring_at(neighbour, Direction::Out))?;
        let is_slot = at < self.layout.slots * OUT * WORD && at.is_multiple_of(OUT * WORD);
        is_slot.then_some(at / (OUT * WORD))
    }

    /// The bytes of a block in this slot of the ring of blocks for that process; `None` if no such block can exist.
    pub(crate) fn block_in_slot(&self, neighbour: usize, slot: usize, length: u32) -> Option<NonNull<u8>> {
        let first = slot.checked_mul(OUT)?;
        let room = self.ring(neighbour, Direction::Out).get(first..)?.get(ENTRY..OUT)?;
        (length as usize <= size_of_val(room)).then(|| NonNull::from(room).cast())
    }

    /// Where goodbyes to and from a node are written: one word each.
    pub(crate) fn goodbye(&self, node: usize) -> (NonNull<u8>, NonNull<u8>) {
        let words = self.words((GOODBYES + node) * LINE, 2);
        (NonNull::from(&words[0]).cast(), NonNull::from(&words[1]).cast())
    }

    /// The words of the goodbyes to and from a node.
    pub(crate) fn goodbye_words(&self, node: usize) -> &'a [AtomicU64] {
        self.words((GOODBYES + node) * LINE, 2)
    }

    /// The memory of all blocks of this part, in whole pages.
    fn all_blocks(&self) -> NonNull<[u8]> {
        let before = self.layout.blocks_at();
        // SAFETY: inside the part, by `Place::in_memory`.
        let first = unsafe { self.place.base.add(before) };
        NonNull::slice_from_raw_parts(first, (self.place.length - before) / PAGE * PAGE)
    }

    /// The bytes of a block of this part; `None` if no such block can exist.
    pub(crate) fn block(&self, offset: u64, length: u32) -> Option<NonNull<u8>> {
        // The peer's header is not consulted: its process can write anything there.
        let end = offset.checked_add(u64::from(length))?;
        let inside = offset >= self.layout.blocks_at() as u64 && end <= self.place.length as u64;
        let aligned = offset.is_multiple_of(LINE as u64);
        // SAFETY: inside the part.
        (inside && aligned).then(|| unsafe { self.place.base.add(offset as usize) })
    }

    /// Where bytes lie in the blocks of this part; `None` if they lie elsewhere.
    pub(crate) fn offset_of(&self, bytes: &[u8]) -> Option<u64> {
        let at = bytes.as_ptr().addr().checked_sub(self.place.base.addr().get())?;
        let inside = at >= self.layout.blocks_at() && at + bytes.len() <= self.place.length;
        inside.then_some(at as u64)
    }

    /// Where bytes lie in the blocks of this part, or where the slot begins that holds them, in the ring of blocks for that process; `None` if
    /// neither.
    pub(crate) fn place_of(&self, neighbour: usize, bytes: &[u8]) -> Option<u64> {
        self.offset_of(bytes).or_else(|| {
            let entry = bytes.as_ptr().addr().checked_sub(ENTRY * WORD)?;
            let at = entry.checked_sub(self.place.base.addr().get())? as u64;
            self.slot_of(neighbour, at).map(|_| at)
        })
    }

    /// Whether the process has set up its part with the same layout as this one.
    pub(crate) fn is_set_up(&self) -> bool {
        // Pairs with the store in `set_up`.
        self.header(AT_MAGIC).load(Ordering::Acquire) == MAGIC
            && self.header(AT_BLOCKS).load(Ordering::Relaxed) == self.layout.blocks_at() as u64
    }

    /// Clears all but the blocks, and writes the header. MPI does not promise zeros: the memory may be that of an earlier domain.
    fn set_up(&self) {
        self.words(0, self.layout.blocks_at() / WORD)
            .iter()
            .for_each(|word| word.store(0, Ordering::Relaxed));
        let own = Identity::own();
        self.header(AT_PROCESS).store(u64::from(own.number), Ordering::Relaxed);
        self.header(AT_NAMESPACE).store(own.namespace, Ordering::Relaxed);
        self.header(AT_STARTED).store(own.started, Ordering::Relaxed);
        self.header(AT_BLOCKS).store(self.layout.blocks_at() as u64, Ordering::Relaxed);
        self.state().store(HERE, Ordering::Relaxed);
        // Pairs with the load in `is_set_up`.
        self.header(AT_MAGIC).store(MAGIC, Ordering::Release);
    }
}

/// The memory of this process in a domain, and its view of its neighbours' on the host. The memory goes to [`process::retire`] when the value is
/// dropped.
pub(crate) struct Region {
    layout: Layout,
    /// Where the parts lie, by number on the host, in the memory of `backing`.
    places: Vec<Place>,
    own: Place,
    /// This process' number on the host.
    me: usize,
    backing: Option<Backing>,
    serial: Serial,
    /// Nodes on other hosts.
    pub(crate) remote: Vec<NodeId>,
}

// SAFETY: the places are those of atomics, and of blocks that only tokens give access to; the backing is a handle or memory that can be freed on
// any thread.
unsafe impl Send for Region {}
// SAFETY: as above; a shared reference allows changing only atomics.
unsafe impl Sync for Region {}

impl Region {
    /// Sets up the part of this process, which has number `me`.
    ///
    /// # Errors
    /// Returns the memory when it has no room for such parts.
    pub(crate) fn new(
        backing: Backing,
        layout: Layout,
        me: usize,
        serial: Serial,
        remote: Vec<NodeId>,
    ) -> Result<Self, Backing> {
        let parts = backing.parts().into_iter();
        let places: Option<Vec<_>> = parts.map(|memory| Place::in_memory(memory, &layout)).collect();
        // This process uses all that it has asked for; peers may have asked for less.
        let enough = layout.blocks_at().saturating_add(layout.blocks);
        let own = |places: &[Place]| places.get(me).copied().filter(|own| own.length >= enough);
        let Some((places, own)) = places.and_then(|places| own(&places).map(|own| (places, own))) else {
            return Err(backing);
        };
        let region = Self { layout, places, own, me, backing: Some(backing), serial, remote };
        region.own().set_up();
        Ok(region)
    }

    /// The part of this process.
    pub(crate) fn own(&self) -> Part<'_> {
        Part { place: self.own, layout: &self.layout }
    }

    /// The part of the process with that number on the host, which must exist.
    pub(crate) fn part(&self, number: usize) -> Part<'_> {
        debug_assert!(number < self.places.len());
        Part { place: self.places.get(number).copied().unwrap_or(self.own), layout: &self.layout }
    }

    /// Takes the memory out of a region that nothing else has seen.
    pub(crate) fn into_backing(mut self) -> Backing {
        self.backing.take().unwrap_or(Backing::Nothing)
    }

    /// Slots of a ring.
    pub(crate) fn slots(&self) -> usize {
        self.layout.slots
    }

    /// This process' number on the host.
    pub(crate) fn number(&self) -> usize {
        self.me
    }

    /// Numbers of the other processes of the host.
    pub(crate) fn neighbours(&self) -> impl Iterator<Item = usize> {
        let me = self.me;
        (0..self.places.len()).filter(move |number| *number != me)
    }

    /// The ring in the part of `owner` for the process with number `reader` on the host.
    pub(crate) fn ring(self: &Arc<Self>, owner: usize, reader: usize, direction: Direction) -> Cells {
        let words = NonNull::from(self.part(owner).ring(reader, direction));
        Cells { words, _region: Arc::clone(self) }
    }

    /// Tells the processes of the host that this process leaves the domain.
    pub(crate) fn leave(&self) {
        // Pairs with the load in `is_gone`: a peer that sees it sees everything pushed into the rings before.
        self.own().state().store(GONE, Ordering::Release);
    }
}

/// The words of a ring, for as long as the value lives.
pub(crate) struct Cells {
    words: NonNull<[AtomicU64]>,
    /// Keeps the words mapped.
    _region: Arc<Region>,
}

// SAFETY: a reference to atomics, and what keeps it valid.
unsafe impl Send for Cells {}

impl Deref for Cells {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: words of the region, by `Region::ring`; the value keeps the region alive.
        unsafe { self.words.as_ref() }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Some(backing) = self.backing.take() {
            process::retire(self.serial, backing);
        }
    }
}

/// The block memory of a node: its part of the window, or memory of its own when it is alone on its host.
pub struct MpiMemory {
    region: Arc<Region>,
    blocks: NonNull<u8>,
    len: usize,
}

// SAFETY: the value is an address and what keeps it mapped; only block tokens give access to the bytes.
unsafe impl Send for MpiMemory {}

impl MpiMemory {
    /// One exists per region, or is split into disjoint parts: it stands for the right to the region's blocks.
    pub(crate) fn new(region: Arc<Region>) -> Option<Self> {
        let blocks = region.own().block(region.layout.blocks_at() as u64, 0)?;
        let len = region.layout.blocks;
        Some(Self { region, blocks, len })
    }

    /// Splits off the last `bytes`, rounded up to pages, as separate memory: for the blocks of a wrapper of the transport, which must lie in
    /// this memory too. Returns `None` and changes nothing if the memory is shorter.
    pub fn split_off(&mut self, bytes: usize) -> Option<Self> {
        const PAGE: usize = 4096;
        let bytes = bytes.checked_next_multiple_of(PAGE)?;
        let left = self.len.checked_sub(bytes)? / PAGE * PAGE;
        // SAFETY: `left` is within the blocks, which are `len` bytes.
        let blocks = unsafe { self.blocks.add(left) };
        let len = self.len - left;
        self.len = left;
        Some(Self { region: Arc::clone(&self.region), blocks, len })
    }
}

impl std::fmt::Debug for MpiMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MpiMemory({} bytes)", self.len)
    }
}

// SAFETY: mapped, and so initialised, memory on a page boundary, until the region is gone and all processes of the host have agreed to free it;
// `Mpi::start` makes one value per region, whose parts have no byte in common, and peers only read blocks that were sent to them.
unsafe impl BlockMemory for MpiMemory {
    fn base(&self) -> NonNull<u8> {
        self.blocks
    }
    fn len(&self) -> usize {
        self.len
    }
    fn visit_neighbours(&self, visit: &mut dyn FnMut(NonNull<[u8]>)) {
        self.region.neighbours().for_each(|number| visit(self.region.part(number).all_blocks()));
    }
}

#[cfg(test)]
mod tests;
