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

/// The type that [`storage!`](crate::storage) declares: the memory of a node, until it is taken.
pub struct StaticNode<T> {
    memory: Once<T>,
}

impl<T: Memory> StaticNode<T> {
    /// The capacities of this memory.
    pub const SIZES: Sizes = T::SIZES;

    /// Creates memory that has not been taken. Called by [`storage!`](crate::storage).
    #[expect(clippy::new_without_default, reason = "for statics only: too large for a stack")]
    pub const fn new() -> Self {
        Self { memory: Once::new(T::EMPTY) }
    }

    /// Takes the memory, for one node.
    ///
    /// # Errors
    /// [`MemoryTaken`] if it was taken before.
    #[cfg(any(target_has_atomic = "8", feature = "critical-section"))]
    pub fn take(&'static self) -> Result<NodeMemory, MemoryTaken> {
        Ok(self.memory.take().ok_or(MemoryTaken)?.fill().into_node(T::SIZES))
    }
}

/// Tables with their lengths.
#[doc(hidden)]
pub trait Memory: Sized + 'static {
    const SIZES: Sizes;
    const EMPTY: Self;

    /// Fills the tables.
    fn fill(&'static mut self) -> Filled;
}

/// Entries of the tables' log.
const LOG: usize = Storage::LOG;

/// Declares all tables: the parameters of their lengths, then each table with its rows, and the entries of a row.
///
/// Until they are taken they have length 0, so every byte that matters is zero and they take no space in the program's image. They are
/// filled in place because they are too large for a stack.
macro_rules! tables {
    (($($length:ident)*) $($table:ident: $rows:ident of [$entry:ty; $each:tt],)*) => {
        /// The memory of a node. The parameters are the [`Sizes`] in order, and six numbers derived from them.
        #[doc(hidden)]
        pub struct Tables<$(const $length: usize),*> {
            memory: Aligned<BYTES>,
            long: [[u8; LONG_BYTES]; LONG],
            $($table: Vec<[$entry; $each], $rows>,)*
        }

        /// All tables at full length.
        #[doc(hidden)]
        pub struct Filled {
            memory: StaticMemory,
            $($table: &'static mut [$entry],)*
        }

        impl<$(const $length: usize),*> Memory for Tables<$($length),*> {
            const SIZES: Sizes = Sizes {
                nodes: NODES, blocks: BLOCKS, body: BODY, row: ROW, parts: PARTS, local: LOCAL, streams: STREAMS, pipe: PIPE,
                long: LONG, long_bytes: LONG_BYTES,
            };

            const EMPTY: Self = {
                let sizes = Self::SIZES;
                assert!(BYTES == sizes.block_bytes() && PIPES == sizes.pipes() && PLACES == sizes.places());
                assert!(ENTRIES == sizes.entries() && INCOMING == sizes.incoming() && NOTICES == sizes.notices());
                Self { memory: Aligned([0; BYTES]), long: [[0; LONG_BYTES]; LONG], $($table: Vec::new(),)* }
            };

            fn fill(&'static mut self) -> Filled {
                let filled = Filled {
                    memory: StaticMemory::new(&mut self.memory),
                    $($table: filled(&mut self.$table),)*
                };
                for (buffer, bytes) in filled.buffers.iter_mut().zip(&mut self.long) {
                    *buffer = Some(ManagedSlice::Borrowed(bytes));
                }
                filled
            }
        }
    };
}

tables! {
    (NODES BLOCKS BODY ROW PARTS LOCAL STREAMS PIPE LONG LONG_BYTES BYTES PIPES PLACES ENTRIES INCOMING NOTICES)
    blocks: BLOCKS of [BlockInfo; 1],
    send_matrix: NODES of [u32; ROW],
    recv_matrix: NODES of [Element; ROW],
    rows: NODES of [crate::engine::Link; 1],
    relayed: NODES of [Lane; 1],
    nodes: NODES of [Option<NodeEntry>; 1],
    parts: PARTS of [Option<PartEntry>; 1],
    local_parts: LOCAL of [Local; 1],
    bound: LOCAL of [Option<Binding>; 1],
    pipes: PIPES of [PipeEntry; 1],
    streams: NODES of [StreamEntry; STREAMS],
    rooms: PARTS of [Option<RoomEntry>; 1],
    log: LOG of [Option<agreement::Entry>; 1],
    peers: NODES of [agreement::Peer; 1],
    unlinked: NODES of [agreement::Unlinked; 1],
    lanes: NODES of [Lane; 1],
    pieces: LOCAL of [Option<Delivery>; ENTRIES],
    piece_rings: LOCAL of [RingState; 2],
    notices: LOCAL of [Option<Notice>; NOTICES],
    notice_rings: LOCAL of [RingState; 1],
    part_states: LOCAL of [PartState; 1],
    events: NODES of [Option<Event>; EVENTS],
    buffers: LONG of [Option<ManagedSlice<'static, u8>>; 1],
    entries: LOCAL of [Entry<Hold<'static>>; ENTRIES],
    assemblies: LOCAL of [Option<Assembly<Buffer<'static>>>; LONG],
    incoming: LOCAL of [Option<Incoming>; INCOMING],
    inboxes: LOCAL of [Inbox<'static, Hold<'static>, Buffer<'static>>; 1],
    sending: NODES of [Option<SealedBlock>; PLACES],
    posted: NODES of [Option<VacantBlock>; PLACES],
    sending_rings: NODES of [RingState; 1],
    posted_rings: NODES of [RingState; 1],
    links: NODES of [Link; 1],
    wakers: LOCAL of [Option<Waker>; 1],
}

/// Fills a table to its full length.
fn filled<T: Default, const EACH: usize, const ROWS: usize>(
    table: &'static mut Vec<[T; EACH], ROWS>,
) -> &'static mut [T] {
    while table.push(core::array::from_fn(|_| T::default())).is_ok() {}
    table.as_mut_slice().as_flattened_mut()
}

/// Takes the next `length` entries.
fn next<T>(table: &mut &'static mut [T], length: usize) -> ManagedSlice<'static, T> {
    ManagedSlice::Borrowed(table.split_off_mut(..length).unwrap_or(&mut []))
}

impl Filled {
    #[cfg(any(target_has_atomic = "8", feature = "critical-section"))]
    fn into_node(mut self, sizes: Sizes) -> NodeMemory {
        for inbox in &mut *self.inboxes {
            *inbox = Inbox::new(InboxStorage {
                entries: next(&mut self.entries, sizes.entries()),
                assemblies: next(&mut self.assemblies, sizes.long),
                streams: next(&mut self.incoming, sizes.incoming()),
            });
        }
        let tables = Storage {
            blocks: self.blocks.into(),
            send_matrix: self.send_matrix.into(),
            recv_matrix: self.recv_matrix.into(),
            links: self.rows.into(),
            relayed: self.relayed.into(),
            nodes: self.nodes.into(),
            parts: self.parts.into(),
            local_parts: self.local_parts.into(),
            bound: self.bound.into(),
            pipes: self.pipes.into(),
            streams: self.streams.into(),
            rooms: self.rooms.into(),
            copies: ManagedSlice::Borrowed(&mut []),
            agreement: agreement::Storage {
                log: self.log.into(),
                peers: self.peers.into(),
                unlinked: self.unlinked.into(),
            },
        };
        let storage = EndpointStorage {
            tables,
            lanes: self.lanes.into(),
            inboxes: self.inboxes.into(),
            pieces: self.pieces.into(),
            piece_rings: self.piece_rings.into(),
            notices: self.notices.into(),
            notice_rings: self.notice_rings.into(),
            buffers: self.buffers.into(),
            part_states: self.part_states.into(),
            events: self.events.into(),
        };
        let posted = WireStorage {
            sending: self.sending.into(),
            posted: self.posted.into(),
            sending_rings: self.sending_rings.into(),
            posted_rings: self.posted_rings.into(),
            links: self.links.into(),
        };
        NodeMemory { sizes, blocks: self.memory, storage, posted, wakers: self.wakers.into() }
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
    fits::<crate::engine::Link>(840);
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
        $vis static $name: $crate::embed::StaticNode<$crate::embed::Tables<
            { $nodes }, { $blocks }, { $body }, { $row }, { $parts }, { $local }, { $streams }, { $pipe },
            { $long }, { $bytes },
            { $crate::storage!(@sizes $nodes $blocks $body $row $parts $local $streams $pipe $long $bytes).block_bytes() },
            { $crate::storage!(@sizes $nodes $blocks $body $row $parts $local $streams $pipe $long $bytes).pipes() },
            { $crate::storage!(@sizes $nodes $blocks $body $row $parts $local $streams $pipe $long $bytes).places() },
            { $crate::storage!(@sizes $nodes $blocks $body $row $parts $local $streams $pipe $long $bytes).entries() },
            { $crate::storage!(@sizes $nodes $blocks $body $row $parts $local $streams $pipe $long $bytes).incoming() },
            { $crate::storage!(@sizes $nodes $blocks $body $row $parts $local $streams $pipe $long $bytes).notices() },
        >> = $crate::embed::StaticNode::new();
    };
    (@sizes $nodes:tt $blocks:tt $body:tt $row:tt $parts:tt $local:tt $streams:tt $pipe:tt $long:tt $bytes:tt) => {
        $crate::embed::Sizes {
            nodes: $nodes, blocks: $blocks, body: $body, row: $row, parts: $parts, local: $local,
            streams: $streams, pipe: $pipe, long: $long, long_bytes: $bytes,
        }
    };
}
