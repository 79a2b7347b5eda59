//! The memory of a node, laid out according to its sizes.

use core::task::Waker;

use heapless::Vec;
use managed::ManagedSlice;

use super::rings::RingState;
use super::sizes::Sizes;
#[cfg(feature = "alloc")]
use super::sizes::SizesError;
use super::wire::{Link, WireStorage};
use crate::endpoint::{Buffer, EVENTS, EndpointStorage, Hold, Notice, PartState};
#[cfg(feature = "alloc")]
use crate::engine::Config;
use crate::engine::{Element, Local, RoomEntry, Storage};
use crate::inbox::{Assembly, Entry, Inbox, InboxStorage, Incoming};
use crate::outbox::Lane;
use crate::pipe::{Binding, PipeEntry, StreamEntry};
use crate::tables::{NodeEntry, PartEntry};
use crate::umb::{Aligned, BlockInfo, BlockMemory, Once, SealedBlock, StaticMemory, VacantBlock};
use crate::{Delivery, Event, agreement};

/// The memory of a node: blocks and tables. Made by [`storage!`](crate::storage), or on the heap.
pub struct NodeMemory<M = StaticMemory> {
    pub(super) sizes: Sizes,
    pub(super) blocks: M,
    pub(super) storage: EndpointStorage<'static>,
    pub(super) posted: WireStorage<'static>,
    pub(super) wakers: ManagedSlice<'static, Option<Waker>>,
}

impl<M: BlockMemory> NodeMemory<M> {
    /// The capacities of this memory.
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }
}

#[cfg(feature = "alloc")]
impl NodeMemory<crate::umb::HeapMemory> {
    /// Allocates memory on the heap.
    ///
    /// ```
    /// use pdbp_core::embed::{NodeMemory, Sizes, SizesError};
    ///
    /// let (nodes, blocks, body, row, parts, local, streams, pipe) = (2, 32, 1024, 8, 8, 2, 2, 4);
    /// let sizes = Sizes { nodes, blocks, body, row, parts, local, streams, pipe, long: 0, long_bytes: 0 };
    /// assert!(NodeMemory::allocate(sizes).is_ok());
    /// let error = NodeMemory::allocate(Sizes { pipe: usize::MAX, ..sizes }).err();
    /// assert!(matches!(error, Some(SizesError::Range { name: "pipe", value: usize::MAX, .. })));
    /// ```
    ///
    /// # Errors
    /// [`SizesError`]: a size is out of range, or there is not enough memory.
    pub fn allocate(sizes: Sizes) -> Result<Self, SizesError> {
        sizes.check()?;
        let bytes = sizes.bytes();
        // Tables that the system cannot provide would abort the process.
        drop(crate::umb::HeapMemory::new(bytes).ok_or(SizesError::Memory { bytes })?);
        let nodes = sizes.nodes as u16;
        let mut config = Config::new(crate::id::NodeId::from_index(0), nodes);
        sizes.fit(&mut config);
        let (blocks, long) = ((sizes.blocks, sizes.parts), (sizes.long, sizes.long_bytes));
        let memory = crate::umb::HeapMemory::new(sizes.block_bytes());
        Ok(Self {
            sizes,
            blocks: memory.ok_or(SizesError::Memory { bytes })?,
            storage: EndpointStorage::allocate(&config, blocks, sizes.pipe, long),
            posted: WireStorage::allocate(nodes, sizes.places()),
            wakers: ManagedSlice::Owned(alloc::vec![None; sizes.local]),
        })
    }
}

/// The memory was already taken by another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryTaken;

impl core::fmt::Display for MemoryTaken {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the memory has been taken by another node; write a storage! for each node")
    }
}

impl core::error::Error for MemoryTaken {}

/// The type that [`storage!`](crate::storage) declares. Its parameters are the [`Sizes`] in order, and six numbers derived from
/// them.
pub struct StaticNode<
    const NODES: usize,
    const BLOCKS: usize,
    const BODY: usize,
    const ROW: usize,
    const PARTS: usize,
    const LOCAL: usize,
    const STREAMS: usize,
    const PIPE: usize,
    const LONG: usize,
    const LONG_BYTES: usize,
    const BYTES: usize,
    const PIPES: usize,
    const PLACES: usize,
    const ENTRIES: usize,
    const INCOMING: usize,
    const NOTICES: usize,
> {
    blocks: Once<Aligned<BYTES>>,
    long: Once<[[u8; LONG_BYTES]; LONG]>,
    tables: Once<
        Tables<NODES, BLOCKS, ROW, PARTS, LOCAL, STREAMS, LONG, PIPES, PLACES, ENTRIES, INCOMING, NOTICES>,
    >,
}

/// All tables. Until they are taken they have length 0, so every byte that matters is zero and they take no space in the program's
/// image. They are filled in place because they are too large for a stack.
struct Tables<
    const NODES: usize,
    const BLOCKS: usize,
    const ROW: usize,
    const PARTS: usize,
    const LOCAL: usize,
    const STREAMS: usize,
    const LONG: usize,
    const PIPES: usize,
    const PLACES: usize,
    const ENTRIES: usize,
    const INCOMING: usize,
    const NOTICES: usize,
> {
    blocks: Vec<BlockInfo, BLOCKS>,
    send_matrix: Vec<[u32; ROW], NODES>,
    recv_matrix: Vec<[Element; ROW], NODES>,
    rows: Vec<crate::engine::Link, NODES>,
    relayed: Vec<Lane, NODES>,
    nodes: Vec<Option<NodeEntry>, NODES>,
    parts: Vec<Option<PartEntry>, PARTS>,
    local_parts: Vec<Local, LOCAL>,
    bound: Vec<Option<Binding>, LOCAL>,
    pipes: Vec<PipeEntry, PIPES>,
    streams: Vec<[StreamEntry; STREAMS], NODES>,
    rooms: Vec<Option<RoomEntry>, PARTS>,
    log: Vec<Option<agreement::Entry>, { Storage::LOG }>,
    records: Vec<agreement::Peer, NODES>,
    unlinked: Vec<agreement::Unlinked, NODES>,
    lanes: Vec<Lane, NODES>,
    pieces: Vec<[Option<Delivery>; ENTRIES], LOCAL>,
    piece_rings: Vec<[RingState; 2], LOCAL>,
    notices: Vec<[Option<Notice>; NOTICES], LOCAL>,
    notice_rings: Vec<RingState, LOCAL>,
    part_states: Vec<PartState, LOCAL>,
    events: Vec<[Option<Event>; EVENTS], NODES>,
    buffers: Vec<Option<ManagedSlice<'static, u8>>, LONG>,
    entries: Vec<[Entry<Hold<'static>>; ENTRIES], LOCAL>,
    assemblies: Vec<[Option<Assembly<Buffer<'static>>>; LONG], LOCAL>,
    incoming: Vec<[Option<Incoming>; INCOMING], LOCAL>,
    inboxes: Vec<Inbox<'static, Hold<'static>, Buffer<'static>>, LOCAL>,
    sending: Vec<[Option<SealedBlock>; PLACES], NODES>,
    posted: Vec<[Option<VacantBlock>; PLACES], NODES>,
    sending_rings: Vec<RingState, NODES>,
    posted_rings: Vec<RingState, NODES>,
    links: Vec<Link, NODES>,
    wakers: Vec<Option<Waker>, LOCAL>,
}

impl<
    const NODES: usize,
    const BLOCKS: usize,
    const BODY: usize,
    const ROW: usize,
    const PARTS: usize,
    const LOCAL: usize,
    const STREAMS: usize,
    const PIPE: usize,
    const LONG: usize,
    const LONG_BYTES: usize,
    const BYTES: usize,
    const PIPES: usize,
    const PLACES: usize,
    const ENTRIES: usize,
    const INCOMING: usize,
    const NOTICES: usize,
>
    StaticNode<
        NODES,
        BLOCKS,
        BODY,
        ROW,
        PARTS,
        LOCAL,
        STREAMS,
        PIPE,
        LONG,
        LONG_BYTES,
        BYTES,
        PIPES,
        PLACES,
        ENTRIES,
        INCOMING,
        NOTICES,
    >
{
    /// The capacities of this memory.
    pub const SIZES: Sizes = Sizes {
        nodes: NODES,
        blocks: BLOCKS,
        body: BODY,
        row: ROW,
        parts: PARTS,
        local: LOCAL,
        streams: STREAMS,
        pipe: PIPE,
        long: LONG,
        long_bytes: LONG_BYTES,
    };

    /// Creates memory that has not been taken. Called by [`storage!`](crate::storage).
    #[expect(clippy::new_without_default, reason = "for statics only: too large for a stack")]
    pub const fn new() -> Self {
        const {
            let sizes = Self::SIZES;
            assert!(BYTES == sizes.block_bytes() && PIPES == sizes.pipes() && PLACES == sizes.places());
            assert!(ENTRIES == sizes.entries() && INCOMING == sizes.incoming() && NOTICES == sizes.notices());
        }
        Self {
            blocks: Once::new(Aligned([0; BYTES])),
            long: Once::new([[0; LONG_BYTES]; LONG]),
            tables: Once::new(Tables::EMPTY),
        }
    }

    /// Takes the memory, for one node.
    ///
    /// # Errors
    /// [`MemoryTaken`] if it was taken before.
    #[cfg(any(target_has_atomic = "8", feature = "critical-section"))]
    pub fn take(&'static self) -> Result<NodeMemory, MemoryTaken> {
        let blocks = StaticMemory::new(self.blocks.take().ok_or(MemoryTaken)?);
        let tables = self.tables.take().ok_or(MemoryTaken)?;
        let long = self.long.take().ok_or(MemoryTaken)?;
        let (storage, posted, wakers) = tables.fill(long);
        Ok(NodeMemory { sizes: Self::SIZES, blocks, storage, posted, wakers })
    }
}

impl<
    const NODES: usize,
    const BLOCKS: usize,
    const ROW: usize,
    const PARTS: usize,
    const LOCAL: usize,
    const STREAMS: usize,
    const LONG: usize,
    const PIPES: usize,
    const PLACES: usize,
    const ENTRIES: usize,
    const INCOMING: usize,
    const NOTICES: usize,
> Tables<NODES, BLOCKS, ROW, PARTS, LOCAL, STREAMS, LONG, PIPES, PLACES, ENTRIES, INCOMING, NOTICES>
{
    const EMPTY: Self = Self {
        blocks: Vec::new(),
        send_matrix: Vec::new(),
        recv_matrix: Vec::new(),
        rows: Vec::new(),
        relayed: Vec::new(),
        nodes: Vec::new(),
        parts: Vec::new(),
        local_parts: Vec::new(),
        bound: Vec::new(),
        pipes: Vec::new(),
        streams: Vec::new(),
        rooms: Vec::new(),
        log: Vec::new(),
        records: Vec::new(),
        unlinked: Vec::new(),
        lanes: Vec::new(),
        pieces: Vec::new(),
        piece_rings: Vec::new(),
        notices: Vec::new(),
        notice_rings: Vec::new(),
        part_states: Vec::new(),
        events: Vec::new(),
        buffers: Vec::new(),
        entries: Vec::new(),
        assemblies: Vec::new(),
        incoming: Vec::new(),
        inboxes: Vec::new(),
        sending: Vec::new(),
        posted: Vec::new(),
        sending_rings: Vec::new(),
        posted_rings: Vec::new(),
        links: Vec::new(),
        wakers: Vec::new(),
    };

    fn fill<const BYTES: usize>(
        &'static mut self,
        long: &'static mut [[u8; BYTES]],
    ) -> (EndpointStorage<'static>, WireStorage<'static>, ManagedSlice<'static, Option<Waker>>) {
        for bytes in long {
            // `buffers` has a slot for each.
            let _ = self.buffers.push(Some(ManagedSlice::Borrowed(bytes)));
        }
        let entries = rows(&mut self.entries);
        let others = rows(&mut self.assemblies).zip(rows(&mut self.incoming));
        for (entries, (assemblies, streams)) in entries.zip(others) {
            let _ = self.inboxes.push(Inbox::new(InboxStorage { entries, assemblies, streams }));
        }
        let tables = Storage {
            blocks: filled(&mut self.blocks),
            send_matrix: filled_rows(&mut self.send_matrix),
            recv_matrix: filled_rows(&mut self.recv_matrix),
            links: filled(&mut self.rows),
            relayed: filled(&mut self.relayed),
            nodes: filled(&mut self.nodes),
            parts: filled(&mut self.parts),
            local_parts: filled(&mut self.local_parts),
            bound: filled(&mut self.bound),
            pipes: filled(&mut self.pipes),
            streams: filled_rows(&mut self.streams),
            rooms: filled(&mut self.rooms),
            copies: ManagedSlice::Borrowed(&mut []),
            agreement: agreement::Storage {
                log: filled(&mut self.log),
                peers: filled(&mut self.records),
                unlinked: filled(&mut self.unlinked),
            },
        };
        let storage = EndpointStorage {
            tables,
            lanes: filled(&mut self.lanes),
            inboxes: ManagedSlice::Borrowed(&mut self.inboxes),
            pieces: filled_rows(&mut self.pieces),
            piece_rings: filled_rows(&mut self.piece_rings),
            notices: filled_rows(&mut self.notices),
            notice_rings: filled(&mut self.notice_rings),
            buffers: ManagedSlice::Borrowed(&mut self.buffers),
            part_states: filled(&mut self.part_states),
            events: filled_rows(&mut self.events),
        };
        let posted = WireStorage {
            sending: filled_rows(&mut self.sending),
            posted: filled_rows(&mut self.posted),
            sending_rings: filled(&mut self.sending_rings),
            posted_rings: filled(&mut self.posted_rings),
            links: filled(&mut self.links),
        };
        (storage, posted, filled(&mut self.wakers))
    }
}

/// Upper bounds on the size of table entries on 32-bit processors.
#[cfg(target_pointer_width = "32")]
const _: () = {
    const fn fits<T>(bytes: usize) {
        assert!(size_of::<T>() <= bytes);
    }
    fits::<BlockInfo>(20);
    fits::<Element>(68);
    fits::<crate::engine::Link>(832);
    fits::<Lane>(128);
    fits::<Option<NodeEntry>>(56);
    fits::<Option<PartEntry>>(56);
    fits::<Local>(112);
    fits::<PipeEntry>(32);
    fits::<StreamEntry>(28);
    fits::<Option<RoomEntry>>(48);
    fits::<Option<agreement::Entry>>(72);
    fits::<agreement::Peer>(296);
    fits::<agreement::Unlinked>(2);
    fits::<Option<Delivery>>(40);
    fits::<Option<Notice>>(12);
    fits::<PartState>(24);
    fits::<Entry<Hold<'static>>>(48);
    fits::<Option<Assembly<Buffer<'static>>>>(56);
    fits::<Option<Incoming>>(40);
    fits::<Inbox<'static, Hold<'static>, Buffer<'static>>>(376);
    fits::<Option<SealedBlock>>(24);
    fits::<Option<VacantBlock>>(20);
    fits::<Link>(8);
    fits::<Option<Waker>>(8);
    fits::<RingState>(8);
};

/// Fills a table to its full length.
fn filled<T: Default, const N: usize>(table: &'static mut Vec<T, N>) -> ManagedSlice<'static, T> {
    while table.push(T::default()).is_ok() {}
    ManagedSlice::Borrowed(table)
}

/// The same, with several entries per row.
fn filled_rows<T: Default, const EACH: usize, const N: usize>(
    table: &'static mut Vec<[T; EACH], N>,
) -> ManagedSlice<'static, T> {
    while table.push(core::array::from_fn(|_| T::default())).is_ok() {}
    ManagedSlice::Borrowed(table.as_mut_slice().as_flattened_mut())
}

/// The same, row by row.
fn rows<T: Default, const EACH: usize, const N: usize>(
    table: &'static mut Vec<[T; EACH], N>,
) -> impl Iterator<Item = ManagedSlice<'static, T>> {
    while table.push(core::array::from_fn(|_| T::default())).is_ok() {}
    table.iter_mut().map(|row| ManagedSlice::Borrowed(row.as_mut_slice()))
}

/// Declares the memory of a node as a `static`, laid out according to the given [`Sizes`](crate::embed::Sizes). It takes no space
/// in the program's image, and can be taken once.
///
/// ```
/// use pdbp_core::storage;
///
/// storage!(static NODE = nodes 2, blocks 32 of 1024, row 8, parts 8, local 2, streams 2, pipe 4);
///
/// let memory = NODE.take()?;
/// assert_eq!(memory.sizes().block_bytes(), 32 * (64 + 1024));
/// assert!(NODE.take().is_err());
/// # Ok::<(), pdbp_core::embed::MemoryTaken>(())
/// ```
///
/// A size is a number, the name of a constant, or an expression in braces. With `long 2 of 8192` at the end, the node reassembles
/// messages longer than a block: two at a time, of up to 8192 bytes each. Without it, their senders refuse such messages.
#[macro_export]
macro_rules! storage {
    ($(#[$meta:meta])* $vis:vis static $name:ident = nodes $nodes:tt, blocks $blocks:tt of $body:tt, row $row:tt,
     parts $parts:tt, local $local:tt, streams $streams:tt, pipe $pipe:tt) => {
        $crate::storage!(
            $(#[$meta])* $vis static $name = nodes $nodes, blocks $blocks of $body, row $row,
            parts $parts, local $local, streams $streams, pipe $pipe, long 0 of 0
        );
    };
    ($(#[$meta:meta])* $vis:vis static $name:ident = nodes $nodes:tt, blocks $blocks:tt of $body:tt, row $row:tt,
     parts $parts:tt, local $local:tt, streams $streams:tt, pipe $pipe:tt, long $long:tt of $bytes:tt) => {
        $(#[$meta])*
        $vis static $name: $crate::embed::StaticNode<
            { $nodes }, { $blocks }, { $body }, { $row }, { $parts }, { $local }, { $streams }, { $pipe },
            { $long }, { $bytes },
            { $crate::storage!(@sizes $nodes $blocks $body $row $parts $local $streams $pipe $long $bytes).block_bytes() },
            { $crate::storage!(@sizes $nodes $blocks $body $row $parts $local $streams $pipe $long $bytes).pipes() },
            { $crate::storage!(@sizes $nodes $blocks $body $row $parts $local $streams $pipe $long $bytes).places() },
            { $crate::storage!(@sizes $nodes $blocks $body $row $parts $local $streams $pipe $long $bytes).entries() },
            { $crate::storage!(@sizes $nodes $blocks $body $row $parts $local $streams $pipe $long $bytes).incoming() },
            { $crate::storage!(@sizes $nodes $blocks $body $row $parts $local $streams $pipe $long $bytes).notices() },
        > = $crate::embed::StaticNode::new();
    };
    (@sizes $nodes:tt $blocks:tt $body:tt $row:tt $parts:tt $local:tt $streams:tt $pipe:tt $long:tt $bytes:tt) => {
        $crate::embed::Sizes {
            nodes: $nodes, blocks: $blocks, body: $body, row: $row, parts: $parts, local: $local,
            streams: $streams, pipe: $pipe, long: $long, long_bytes: $bytes,
        }
    };
}
