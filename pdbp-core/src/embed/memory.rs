//! The memory of a node, divided by what its user knows.

use heapless::Vec;
use managed::ManagedSlice;

use super::rings::Ends;
use super::wire::{Link, PostedStorage};
use crate::agreement;
use crate::engine::{Config, Element, LOG, Local, Peer, Storage};
use crate::outbox::Lane;
use crate::id::PipeId;
use crate::matrix::{RecvRow, SendRow};
use crate::pipe::{PipeEntry, StreamEntry};
use crate::tables::{NodeEntry, PartEntry};
use crate::umb::{Aligned, BlockInfo, BlockMemory, Once, SealedBlock, StaticMemory, VacantBlock, stride};

/// What a node has room for. The words are those of [`storage!`](crate::storage).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Nodes of the cluster.
    pub nodes: usize,
    /// Blocks of this node.
    pub blocks: usize,
    /// Bytes of a block, behind its header. The same on all nodes.
    pub body: usize,
    /// Blocks that may be under way to a node at a time, and blocks of it that may be here.
    pub row: usize,
    /// Parts of the whole cluster. The same on all nodes.
    pub parts: usize,
    /// Parts of this node.
    pub local: usize,
    /// Streams that a node sends at a time. The same on all nodes.
    pub streams: usize,
    /// Arrived pieces that wait for a part of this node: messages of one block and for one part are one piece.
    pub pipe: usize,
}

impl Sizes {
    /// Bytes of the blocks.
    pub const fn block_bytes(&self) -> usize {
        self.blocks * stride(self.body)
    }

    /// Pipes: a private pipe and one for messages for each part, and those of the streams.
    pub const fn pipes(&self) -> usize {
        2 * self.local + self.streams
    }

    /// Blocks that a link takes at a time: those of a row, and what control messages need.
    pub const fn places(&self) -> usize {
        self.row + Config::LEAST_CAPACITY - 1
    }

    /// Makes a configuration fit.
    pub(super) fn fit(&self, config: &mut Config) {
        let local = u16::try_from(self.local).unwrap_or(u16::MAX);
        config.body = self.body;
        config.row = u32::try_from(self.row).unwrap_or(u32::MAX);
        config.initial = config.initial.min(config.row);
        (config.local_parts, config.private_pipes) = (local, local);
        config.stream_pipes = u16::try_from(self.streams).unwrap_or(u16::MAX);
    }
}

/// The memory of a node: blocks and tables. Made by [`storage!`](crate::storage), or on the heap.
pub struct NodeMemory<M = StaticMemory> {
    pub(super) sizes: Sizes,
    pub(super) blocks: M,
    pub(super) tables: Storage<'static>,
    pub(super) posted: PostedStorage<'static>,
    pub(super) pipes: PipeStorage,
}

/// The memory of private pipes.
pub(super) struct PipeStorage {
    pub(super) slots: ManagedSlice<'static, Option<crate::Delivery>>,
    pub(super) ends: ManagedSlice<'static, Ends>,
}

impl<M: BlockMemory> NodeMemory<M> {
    /// What there is room for.
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }
}

#[cfg(feature = "alloc")]
impl NodeMemory<crate::umb::HeapMemory> {
    /// Memory on the heap. `None`: there is not as much.
    pub fn allocate(sizes: Sizes) -> Option<Self> {
        fn table<T>(length: usize) -> ManagedSlice<'static, Option<T>> {
            ManagedSlice::Owned((0..length).map(|_| None).collect::<alloc::vec::Vec<_>>())
        }
        let nodes = u16::try_from(sizes.nodes).ok()?;
        let mut config = Config::new(crate::id::NodeId::new(0)?, nodes);
        sizes.fit(&mut config);
        Some(Self {
            sizes,
            blocks: crate::umb::HeapMemory::new(sizes.block_bytes())?,
            tables: Storage::allocate(&config, sizes.blocks, sizes.parts),
            posted: PostedStorage::allocate(nodes, sizes.places()),
            pipes: PipeStorage {
                slots: table(sizes.local * sizes.pipe),
                ends: ManagedSlice::Owned(alloc::vec![Ends::default(); sizes.local]),
            },
        })
    }
}

/// The memory was taken before: a node has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken;

impl core::fmt::Display for Taken {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the memory of the node was taken before; write a storage! for each node")
    }
}

impl core::error::Error for Taken {}

/// What [`storage!`](crate::storage) makes. Its parameters are the [`Sizes`] in their order, and four numbers that follow from
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
    const BYTES: usize,
    const PIPES: usize,
    const PLACES: usize,
>(Once<Blocks<BYTES>>, Once<Tables<NODES, BLOCKS, ROW, PARTS, LOCAL, STREAMS, PIPE, PIPES, PLACES>>);

/// Blocks that nobody has written.
type Blocks<const BYTES: usize> = Aligned<BYTES>;

/// All tables, of length 0 as long as nobody has taken them: then every byte that matters is zero, and they need no place in the
/// image of the program. They are filled where they are, since they are too large for a stack.
struct Tables<
    const NODES: usize,
    const BLOCKS: usize,
    const ROW: usize,
    const PARTS: usize,
    const LOCAL: usize,
    const STREAMS: usize,
    const PIPE: usize,
    const PIPES: usize,
    const PLACES: usize,
> {
    blocks: Vec<BlockInfo, BLOCKS>,
    send_matrix: Vec<[u32; ROW], NODES>,
    recv_matrix: Vec<[Element; ROW], NODES>,
    send_rows: Vec<SendRow, NODES>,
    recv_rows: Vec<RecvRow, NODES>,
    peers: Vec<Peer, NODES>,
    relayed: Vec<Lane, NODES>,
    nodes: Vec<Option<NodeEntry>, NODES>,
    parts: Vec<Option<PartEntry>, PARTS>,
    local_parts: Vec<Local, LOCAL>,
    bound: Vec<Option<PipeId>, LOCAL>,
    pipes: Vec<PipeEntry, PIPES>,
    streams: Vec<[StreamEntry; STREAMS], NODES>,
    log: Vec<Option<agreement::Entry>, LOG>,
    records: Vec<agreement::Peer, NODES>,
    far: Vec<agreement::Far, NODES>,
    rooms: Vec<Option<RoomEntry>, PARTS>,
    sending: Vec<[Option<SealedBlock>; PLACES], NODES>,
    posted: Vec<[Option<VacantBlock>; PLACES], NODES>,
    sending_ends: Vec<Ends, NODES>,
    posted_ends: Vec<Ends, NODES>,
    links: Vec<Link, NODES>,
    arrived: Vec<[Option<crate::Delivery>; PIPE], LOCAL>,
    arrived_ends: Vec<Ends, LOCAL>,
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
    const BYTES: usize,
    const PIPES: usize,
    const PLACES: usize,
> StaticNode<NODES, BLOCKS, BODY, ROW, PARTS, LOCAL, STREAMS, PIPE, BYTES, PIPES, PLACES>
{
    /// What there is room for.
    pub const SIZES: Sizes = Sizes {
        nodes: NODES,
        blocks: BLOCKS,
        body: BODY,
        row: ROW,
        parts: PARTS,
        local: LOCAL,
        streams: STREAMS,
        pipe: PIPE,
    };

    /// Memory that nobody has taken. [`storage!`](crate::storage) calls it.
    #[expect(clippy::new_without_default, reason = "for statics only: too large for a stack")]
    pub const fn new() -> Self {
        const {
            assert!(BYTES == Self::SIZES.block_bytes(), "blocks times the distance between them");
            assert!(PIPES == Self::SIZES.pipes() && PLACES == Self::SIZES.places());
        }
        Self(Once::new(Aligned([0; BYTES])), Once::new(Tables::EMPTY))
    }

    /// The memory, for one node.
    ///
    /// # Errors
    /// [`Taken`].
    #[cfg(any(target_has_atomic = "8", feature = "critical-section"))]
    pub fn take(&'static self) -> Result<NodeMemory, Taken> {
        let (blocks, tables) = (self.0.take().ok_or(Taken)?, self.1.take().ok_or(Taken)?);
        Ok(NodeMemory {
            sizes: Self::SIZES,
            blocks: StaticMemory::new(blocks),
            tables: Storage {
                blocks: filled(&mut tables.blocks),
                send_matrix: filled_rows(&mut tables.send_matrix),
                recv_matrix: filled_rows(&mut tables.recv_matrix),
                send_rows: filled(&mut tables.send_rows),
                recv_rows: filled(&mut tables.recv_rows),
                peers: filled(&mut tables.peers),
                relayed: filled(&mut tables.relayed),
                nodes: filled(&mut tables.nodes),
                parts: filled(&mut tables.parts),
                local_parts: filled(&mut tables.local_parts),
                bound: filled(&mut tables.bound),
                pipes: filled(&mut tables.pipes),
                streams: filled_rows(&mut tables.streams),
                agreement: agreement::Storage {
                    log: filled(&mut tables.log),
                    peers: filled(&mut tables.records),
                    far: filled(&mut tables.far),
                },
            },
            posted: PostedStorage {
                sending: filled_rows(&mut tables.sending),
                posted: filled_rows(&mut tables.posted),
                sending_ends: filled(&mut tables.sending_ends),
                posted_ends: filled(&mut tables.posted_ends),
                links: filled(&mut tables.links),
            },
            pipes: PipeStorage {
                slots: filled_rows(&mut tables.arrived),
                ends: filled(&mut tables.arrived_ends),
            },
        })
    }
}

impl<
    const NODES: usize,
    const BLOCKS: usize,
    const ROW: usize,
    const PARTS: usize,
    const LOCAL: usize,
    const STREAMS: usize,
    const PIPE: usize,
    const PIPES: usize,
    const PLACES: usize,
> Tables<NODES, BLOCKS, ROW, PARTS, LOCAL, STREAMS, PIPE, PIPES, PLACES>
{
    const EMPTY: Self = Self {
        blocks: Vec::new(),
        send_matrix: Vec::new(),
        recv_matrix: Vec::new(),
        send_rows: Vec::new(),
        recv_rows: Vec::new(),
        peers: Vec::new(),
        relayed: Vec::new(),
        nodes: Vec::new(),
        parts: Vec::new(),
        local_parts: Vec::new(),
        bound: Vec::new(),
        pipes: Vec::new(),
        streams: Vec::new(),
        log: Vec::new(),
        records: Vec::new(),
        far: Vec::new(),
        sending: Vec::new(),
        posted: Vec::new(),
        sending_ends: Vec::new(),
        posted_ends: Vec::new(),
        links: Vec::new(),
        arrived: Vec::new(),
        arrived_ends: Vec::new(),
    };
}

/// A table at its full length.
fn filled<T: Default, const N: usize>(table: &'static mut Vec<T, N>) -> ManagedSlice<'static, T> {
    while table.push(T::default()).is_ok() {}
    ManagedSlice::Borrowed(table)
}

/// The same, of several entries for each row.
fn filled_rows<T: Default, const EACH: usize, const N: usize>(
    table: &'static mut Vec<[T; EACH], N>,
) -> ManagedSlice<'static, T> {
    while table.push(core::array::from_fn(|_| T::default())).is_ok() {}
    ManagedSlice::Borrowed(table.as_mut_slice().as_flattened_mut())
}

/// Memory of a node as a `static`, divided by the sizes that it is to have room for: see [`Sizes`](crate::embed::Sizes). It needs no place
/// in the program's image, and is taken once.
///
/// ```
/// use pdbp_core::storage;
///
/// storage!(static NODE = nodes 2, blocks 32 of 1024, row 8, parts 8, local 2, streams 2, pipe 4);
///
/// let memory = NODE.take()?;
/// assert_eq!(memory.sizes().block_bytes(), 32 * (64 + 1024));
/// assert!(NODE.take().is_err());
/// # Ok::<(), pdbp_core::embed::Taken>(())
/// ```
///
/// A size is a number, the name of a constant, or an expression in braces.
#[macro_export]
macro_rules! storage {
    ($(#[$meta:meta])* $vis:vis static $name:ident = nodes $nodes:tt, blocks $blocks:tt of $body:tt, row $row:tt,
     parts $parts:tt, local $local:tt, streams $streams:tt, pipe $pipe:tt) => {
        $(#[$meta])*
        $vis static $name: $crate::embed::StaticNode<
            { $nodes }, { $blocks }, { $body }, { $row }, { $parts }, { $local }, { $streams }, { $pipe },
            { $crate::storage!(@sizes $nodes $blocks $body $row $parts $local $streams $pipe).block_bytes() },
            { $crate::storage!(@sizes $nodes $blocks $body $row $parts $local $streams $pipe).pipes() },
            { $crate::storage!(@sizes $nodes $blocks $body $row $parts $local $streams $pipe).places() },
        > = $crate::embed::StaticNode::new();
    };
    (@sizes $nodes:tt $blocks:tt $body:tt $row:tt $parts:tt $local:tt $streams:tt $pipe:tt) => {
        $crate::embed::Sizes {
            nodes: $nodes, blocks: $blocks, body: $body, row: $row,
            parts: $parts, local: $local, streams: $streams, pipe: $pipe,
        }
    };
}
