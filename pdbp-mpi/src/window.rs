//! The memory of a node, and how it is divided.
//!
//! ```text
//!  part of one process (all parts of a host lie in one MPI-3 shared-memory window):
//!   ┌────────┬───────┬──────┬─────────────────────┬──────────────────────────────────┬──────── page ─────────┐
//!   │ header │ state │ bell │ goodbyes, per node  │ per process of the host:         │ blocks of the UMB     │
//!   │        │       │      │ (far links)         │ ring of blocks for it,           │                       │
//!   │        │       │      │                     │ ring of its blocks that go back  │                       │
//!   └────────┴───────┴──────┴─────────────────────┴──────────────────────────────────┴───────────────────────┘
//! ```
//! Everything before the blocks is atomics. Of a part, its process alone writes header, state, rings and blocks; others
//! ring the bell.

use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pdbp_core::BlockMemory;
use pdbp_core::id::NodeId;
use pdbp_core::umb::HeapMemory;

use crate::process::{self, Backing, Serial};
use crate::ring::Cells;
use crate::words::Words;

const LINE: usize = 64;
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

/// States of a part's process.
const HERE: u32 = 1;
const GONE: u32 = 2;

/// How a part is divided. The same in all processes of a host, but for the length of the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Nodes of the domain.
    pub(crate) nodes: usize,
    /// Processes of the host, this one included.
    pub(crate) neighbours: usize,
    /// Slots of a ring, a power of two.
    pub(crate) slots: usize,
    /// Bytes of block memory.
    pub(crate) blocks: usize,
}

impl Layout {
    const fn ring_bytes(&self) -> usize {
        (self.slots * 2 * size_of::<u64>()).next_multiple_of(LINE)
    }

    const fn rings_at(&self) -> usize {
        (GOODBYES + self.nodes) * LINE
    }

    const fn blocks_at(&self) -> usize {
        (self.rings_at() + self.neighbours * 2 * self.ring_bytes()).next_multiple_of(PAGE)
    }

    /// Bytes of memory for the part, which begins on the first page boundary in them: MPI aligns memory to words only, but maps
    /// whole pages, so that the boundary is the same for all processes.
    ///
    /// More than there can be, when that much is asked for.
    pub(crate) const fn bytes(&self) -> usize {
        self.blocks.div_ceil(PAGE).saturating_mul(PAGE).saturating_add(PAGE + self.blocks_at())
    }
}

/// One process' part, as this process sees it. The words live as long as the [`Region`] that the part belongs to.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    base: NonNull<u8>,
    length: usize,
    layout: Layout,
}

// SAFETY: an address; what lies there is reached by atomics, or as blocks by whoever has their tokens.
unsafe impl Send for Part {}

/// Which of the two rings for a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Blocks for it.
    Out,
    /// Blocks of its own that go back to it.
    Back,
}

impl Part {
    /// # Safety
    /// `length` bytes at `base` are mapped and zero or written by this module, as long as the value is used, and nothing but
    /// atomics accesses what lies before the blocks.
    pub(crate) unsafe fn new(base: NonNull<u8>, length: usize, layout: Layout) -> Option<Self> {
        let before = base.align_offset(PAGE);
        let length = length.checked_sub(before).filter(|length| *length >= layout.blocks_at())?;
        // SAFETY: inside the bytes.
        let base = unsafe { base.add(before) };
        Some(Self { base, length, layout })
    }

    /// `count` words from byte `at` on.
    fn words(&self, at: usize, count: usize) -> &'static [AtomicU64] {
        debug_assert!(at + count * size_of::<u64>() <= self.layout.blocks_at());
        // SAFETY: inside the part; all that is asked for lies before the blocks (`Layout`).
        let first = unsafe { self.base.add(at) }.cast::<AtomicU64>();
        // SAFETY: aligned, since the part is to 64 and `at` to 8; the bytes are mapped and atomics are all that accesses them,
        // by the contract of `new`; the lifetime is as long as the owner of the part keeps it, see there.
        unsafe { slice::from_raw_parts(first.as_ptr(), count) }
    }

    fn half_words(&self, line: usize) -> &'static [AtomicU32] {
        // SAFETY: as in `words`; lines at the start of the part.
        let first = unsafe { self.base.add(line * LINE) }.cast::<AtomicU32>();
        // SAFETY: as in `words`.
        unsafe { slice::from_raw_parts(first.as_ptr(), LINE / size_of::<u32>()) }
    }

    fn header(&self, word: usize) -> &'static AtomicU64 {
        &self.words(0, LINE / 8)[word]
    }

    fn state(&self) -> &'static AtomicU32 {
        &self.half_words(STATE)[0]
    }

    /// Whether the process has left the domain, all that it had to say being in its rings.
    pub(crate) fn is_gone(&self) -> bool {
        // Pairs with the store in `Region::leave`.
        self.state().load(Ordering::Acquire) == GONE
    }

    /// The process' number in the operating system.
    pub(crate) fn process(&self) -> u32 {
        self.header(AT_PROCESS).load(Ordering::Relaxed) as u32
    }

    /// The process' bell.
    pub(crate) fn bell(&self) -> Words<'static> {
        let words = self.half_words(BELL);
        Words { rings: &words[0], sleepers: &words[1] }
    }

    /// The ring in this part for the process with number `neighbour` on the host.
    pub(crate) fn ring(&self, neighbour: usize, way: Way) -> Cells<'static> {
        let ring = self.layout.ring_bytes();
        let at = self.layout.rings_at() + (2 * neighbour + usize::from(way == Way::Back)) * ring;
        self.words(at, 2 * self.layout.slots)
    }

    /// Where goodbyes to and from a node are written: two words.
    pub(crate) fn goodbye(&self, node: usize) -> (NonNull<u8>, NonNull<u8>) {
        let words = self.words((GOODBYES + node) * LINE, 2);
        (NonNull::from(&words[0]).cast(), NonNull::from(&words[1]).cast())
    }

    /// The word of a goodbye from a node.
    pub(crate) fn goodbye_words(&self, node: usize) -> &'static [AtomicU64] {
        self.words((GOODBYES + node) * LINE, 2)
    }

    /// The memory of all blocks of this part, in whole pages.
    fn all_blocks(&self) -> NonNull<[u8]> {
        let before = self.layout.blocks_at();
        // SAFETY: inside the part, by `new`.
        let first = unsafe { self.base.add(before) };
        NonNull::slice_from_raw_parts(first, (self.length - before) / PAGE * PAGE)
    }

    /// The bytes of a block of this part, `None` if there cannot be such a block.
    pub(crate) fn block(&self, offset: u64, length: u32) -> Option<NonNull<u8>> {
        // The peer's process can write in its header what it likes, so that it says nothing here.
        let end = offset.checked_add(u64::from(length))?;
        let inside = offset >= self.layout.blocks_at() as u64 && end <= self.length as u64;
        let aligned = offset.is_multiple_of(LINE as u64);
        // SAFETY: inside the part.
        (inside && aligned).then(|| unsafe { self.base.add(offset as usize) })
    }

    /// Where bytes lie in the blocks of this part; `None` if they do not.
    pub(crate) fn offset_of(&self, bytes: &[u8]) -> Option<u64> {
        let at = bytes.as_ptr().addr().checked_sub(self.base.addr().get())?;
        let inside = at >= self.layout.blocks_at() && at + bytes.len() <= self.length;
        inside.then_some(at as u64)
    }

    /// Whether the process has set its part up as this one would have.
    pub(crate) fn is_set_up(&self) -> bool {
        // Pairs with the store in `set_up`.
        self.header(AT_MAGIC).load(Ordering::Acquire) == MAGIC
            && self.header(AT_BLOCKS).load(Ordering::Relaxed) == self.layout.blocks_at() as u64
    }

    /// Writes the header. The rings are zero already.
    fn set_up(&self) {
        self.header(AT_PROCESS).store(u64::from(std::process::id()), Ordering::Relaxed);
        self.header(AT_BLOCKS).store(self.layout.blocks_at() as u64, Ordering::Relaxed);
        self.state().store(HERE, Ordering::Relaxed);
        // Pairs with the load in `is_set_up`.
        self.header(AT_MAGIC).store(MAGIC, Ordering::Release);
    }
}

/// The memory of this process in a domain. What is left of it goes to [`process::bury`] when nobody has the value any more.
pub(crate) struct Region {
    own: Part,
    backing: Option<Backing>,
    serial: Serial,
    /// Nodes on other hosts.
    pub(crate) far: Vec<NodeId>,
    /// The parts of the other processes of this host.
    neighbours: Vec<Part>,
}

// SAFETY: the part's address is that of atomics, and of blocks that are reached through tokens only; the backing is a handle or
// memory that can be freed on any thread.
unsafe impl Send for Region {}
// SAFETY: as above; nothing but atomics can be changed through a shared reference.
unsafe impl Sync for Region {}

impl Region {
    /// Sets this process' part up.
    pub(crate) fn new(
        own: Part,
        neighbours: Vec<Part>,
        backing: Backing,
        serial: Serial,
        far: Vec<NodeId>,
    ) -> Self {
        own.set_up();
        Self { own, backing: Some(backing), serial, far, neighbours }
    }

    pub(crate) fn own(&self) -> &Part {
        &self.own
    }

    /// Tells the processes of the host that this one leaves the domain.
    pub(crate) fn leave(&self) {
        // Pairs with the load in `is_gone`: who sees it sees what was put into the rings before.
        self.own.state().store(GONE, Ordering::Release);
    }

    /// Memory of this process alone, for a part of that layout.
    pub(crate) fn on_heap(layout: Layout) -> Option<(Part, HeapMemory)> {
        let memory = HeapMemory::new(layout.bytes())?;
        // SAFETY: zeroed memory that the region keeps with the part, and that nobody else has.
        let part = unsafe { Part::new(memory.base(), layout.bytes(), layout) }?;
        Some((part, memory))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Some(backing) = self.backing.take() {
            process::bury(self.serial, backing);
        }
    }
}

/// The block memory of a node: its part of the window, or memory of its own when it is alone on its host.
pub struct MpiMemory {
    region: std::sync::Arc<Region>,
    blocks: NonNull<u8>,
    len: usize,
}

// SAFETY: the value is an address and what keeps it mapped; the bytes are reached through block tokens only.
unsafe impl Send for MpiMemory {}

impl MpiMemory {
    /// There is one per region, or the parts of one: it stands for the right to its blocks.
    pub(crate) fn new(region: std::sync::Arc<Region>) -> Option<Self> {
        let own = region.own();
        let blocks = own.block(own.layout.blocks_at() as u64, 0)?;
        let len = own.layout.blocks;
        Some(Self { region, blocks, len })
    }

    /// Takes the last `bytes` of it away, rounded up to pages, as memory of its own: for blocks of a wrapper of the transport, which
    /// have to be in this memory, too. `None`, and nothing is changed, when there are not as many.
    pub fn split_off(&mut self, bytes: usize) -> Option<Self> {
        const PAGE: usize = 4096;
        let bytes = bytes.checked_next_multiple_of(PAGE)?;
        let left = self.len.checked_sub(bytes)? / PAGE * PAGE;
        // SAFETY: `left` is within the blocks, which are `len` bytes.
        let blocks = unsafe { self.blocks.add(left) };
        let len = self.len - left;
        self.len = left;
        Some(Self { region: std::sync::Arc::clone(&self.region), blocks, len })
    }
}

impl std::fmt::Debug for MpiMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MpiMemory({} bytes)", self.len)
    }
}

// SAFETY: zeroed memory on a page boundary, mapped until the region is gone and all processes of the host have agreed to free it;
// `Mpi::start` makes one value per region, whose parts have no byte in common, and peers only read blocks that were sent to them.
unsafe impl BlockMemory for MpiMemory {
    fn base(&self) -> NonNull<u8> {
        self.blocks
    }
    fn len(&self) -> usize {
        self.len
    }
    fn visit_neighbours(&self, visit: &mut dyn FnMut(NonNull<[u8]>)) {
        self.region.neighbours.iter().for_each(|part| visit(part.all_blocks()));
    }
}

#[cfg(test)]
mod tests;
