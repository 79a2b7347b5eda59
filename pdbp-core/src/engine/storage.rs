//! The memory of an engine's tables.

use managed::ManagedSlice;

use super::readers::Element;
use super::room::RoomEntry;
use super::{Config, ConfigError, Local, Peer};
use crate::agreement;
use crate::matrix::{RecvRow, SendRow};
use crate::outbox::Lane;
use crate::pipe::{Binding, PipeEntry, StreamEntry};
use crate::tables::{NodeEntry, PartEntry};
use crate::umb::BlockInfo;

/// Entries that the log of the tables keeps: a node that misses more gets the tables whole.
const LOG: usize = 64;

/// The memory of an engine's tables. With borrowed slices the engine runs without a heap.
pub struct Storage<'a> {
    /// UMBInfo-Tab: one entry per block.
    pub blocks: ManagedSlice<'a, BlockInfo>,
    /// SM: rows × row size; see [`Config::rows`].
    pub send_matrix: ManagedSlice<'a, u32>,
    /// RM: rows × row size.
    pub recv_matrix: ManagedSlice<'a, Element>,
    /// One per row.
    pub send_rows: ManagedSlice<'a, SendRow>,
    /// One per row.
    pub recv_rows: ManagedSlice<'a, RecvRow>,
    /// One per row.
    pub peers: ManagedSlice<'a, Peer>,
    /// With relays one per row, else none.
    pub relayed: ManagedSlice<'a, Lane>,
    /// NTA: one per node.
    pub nodes: ManagedSlice<'a, Option<NodeEntry>>,
    /// PTA: one per part of the whole cluster.
    pub parts: ManagedSlice<'a, Option<PartEntry>>,
    /// One per part of this node.
    pub local_parts: ManagedSlice<'a, Local>,
    /// GP-Pipe-Bind-Tab: one per part of this node.
    pub bound: ManagedSlice<'a, Option<Binding>>,
    /// Pipe-Tab: private pipes + local parts + stream pipes.
    pub pipes: ManagedSlice<'a, PipeEntry>,
    /// MTA: rows × stream pipes, and with relays as many again; see [`Config::streams`].
    pub streams: ManagedSlice<'a, StreamEntry>,
    /// Messages longer than a block that wait for room, or have some: one per part of the whole cluster.
    pub rooms: ManagedSlice<'a, Option<RoomEntry>>,
    /// The log of the tables, and a record per node.
    pub agreement: agreement::Storage<'a>,
}

/// Shortens a table to `length` entries.
pub(super) fn cut<E>(table: &mut ManagedSlice<'_, E>, length: usize) {
    match table {
        ManagedSlice::Borrowed(entries) => {
            let kept = core::mem::take(entries).get_mut(..length);
            *entries = kept.unwrap_or(&mut []);
        }
        #[cfg(feature = "alloc")]
        ManagedSlice::Owned(entries) => entries.truncate(length),
    }
}

impl Storage<'_> {
    pub(super) fn check(&self, config: &Config) -> Result<(), ConfigError> {
        let nodes = usize::from(config.nodes);
        let rows = config.rows();
        let near = usize::from(config.agreement().near()).min(nodes);
        let local = usize::from(config.local_parts);
        for (slice, have, need) in [
            ("send_matrix", self.send_matrix.len(), config.elements()),
            ("recv_matrix", self.recv_matrix.len(), config.elements()),
            ("send_rows", self.send_rows.len(), rows),
            ("recv_rows", self.recv_rows.len(), rows),
            ("peers", self.peers.len(), rows),
            ("relayed", self.relayed.len(), config.relay_lanes()),
            ("nodes", self.nodes.len(), nodes),
            ("agreement.peers", self.agreement.peers.len(), near),
            ("agreement.far", self.agreement.far.len(), nodes - near),
            ("agreement.log", self.agreement.log.len(), agreement::LEAST_LOG),
            ("parts", self.parts.len(), 1),
            ("local_parts", self.local_parts.len(), local),
            ("bound", self.bound.len(), local),
            ("pipes", self.pipes.len(), config.pipes()),
            ("streams", self.streams.len(), config.streams()),
        ] {
            if have < need {
                return Err(ConfigError::Storage { slice, have, need });
            }
        }
        Ok(())
    }

    /// Bytes of all tables, those of the agreement included.
    pub fn bytes(&self) -> usize {
        fn of<T>(table: &ManagedSlice<'_, T>) -> usize {
            table.len() * size_of::<T>()
        }
        let matrices = of(&self.send_matrix) + of(&self.recv_matrix);
        let rows = of(&self.send_rows) + of(&self.recv_rows) + of(&self.peers) + of(&self.relayed);
        let parts =
            of(&self.local_parts) + of(&self.bound) + of(&self.pipes) + of(&self.streams) + of(&self.rooms);
        let replicas = of(&self.nodes) + of(&self.parts);
        let agreement = of(&self.agreement.log) + of(&self.agreement.peers) + of(&self.agreement.far);
        of(&self.blocks) + matrices + rows + parts + replicas + agreement
    }
}

#[cfg(feature = "alloc")]
impl Storage<'static> {
    /// Tables on the heap for `config`, with `blocks` blocks and room for `parts` parts in the whole cluster.
    pub fn allocate(config: &Config, blocks: usize, parts: usize) -> Self {
        use alloc::vec::Vec;
        fn table<T: Default>(len: usize) -> ManagedSlice<'static, T> {
            ManagedSlice::Owned((0..len).map(|_| T::default()).collect::<Vec<_>>())
        }
        let nodes = usize::from(config.nodes);
        let rows = config.rows();
        let local = usize::from(config.local_parts);
        Self {
            blocks: table(blocks),
            send_matrix: table(config.elements()),
            recv_matrix: table(config.elements()),
            send_rows: table(rows),
            recv_rows: table(rows),
            peers: table(rows),
            relayed: table(config.relay_lanes()),
            nodes: table(nodes),
            parts: table(parts),
            local_parts: table(local),
            bound: table(local),
            pipes: table(config.pipes()),
            streams: table(config.streams()),
            rooms: table(parts),
            agreement: agreement::Storage::allocate_near(config.nodes, config.agreement().near(), LOG),
        }
    }
}

/// Storage of constant size, for a `static` or a stack frame.
///
/// `ELEMENTS` = `NODES` × row size, `PIPES` = private pipes + `LOCAL` + stream pipes, `STREAMS` = `NODES` × stream pipes, and
/// with relays twice that.
pub struct StaticStorage<
    const NODES: usize,
    const BLOCKS: usize,
    const ELEMENTS: usize,
    const PARTS: usize,
    const LOCAL: usize,
    const PIPES: usize,
    const STREAMS: usize,
> {
    blocks: [BlockInfo; BLOCKS],
    send_matrix: [u32; ELEMENTS],
    recv_matrix: [Element; ELEMENTS],
    send_rows: [SendRow; NODES],
    recv_rows: [RecvRow; NODES],
    peers: [Peer; NODES],
    relayed: [Lane; NODES],
    nodes: [Option<NodeEntry>; NODES],
    parts: [Option<PartEntry>; PARTS],
    local_parts: [Local; LOCAL],
    bound: [Option<Binding>; LOCAL],
    pipes: [PipeEntry; PIPES],
    streams: [StreamEntry; STREAMS],
    rooms: [Option<RoomEntry>; PARTS],
    log: [Option<agreement::Entry>; LOG],
    records: [agreement::Peer; NODES],
    far: [agreement::Far; NODES],
}

impl<
    const NODES: usize,
    const BLOCKS: usize,
    const ELEMENTS: usize,
    const PARTS: usize,
    const LOCAL: usize,
    const PIPES: usize,
    const STREAMS: usize,
> StaticStorage<NODES, BLOCKS, ELEMENTS, PARTS, LOCAL, PIPES, STREAMS>
{
    /// Empty tables.
    #[expect(clippy::new_without_default, reason = "too large to be made in passing")]
    pub fn new() -> Self {
        use core::array::from_fn;
        Self {
            blocks: [BlockInfo::default(); BLOCKS],
            send_matrix: [0; ELEMENTS],
            recv_matrix: from_fn(|_| Element::default()),
            send_rows: [SendRow::default(); NODES],
            recv_rows: [RecvRow::default(); NODES],
            peers: from_fn(|_| Peer::default()),
            relayed: from_fn(|_| Lane::default()),
            nodes: [const { None }; NODES],
            parts: [const { None }; PARTS],
            local_parts: from_fn(|_| Local::default()),
            bound: [None; LOCAL],
            pipes: [PipeEntry::default(); PIPES],
            streams: [StreamEntry::default(); STREAMS],
            rooms: [None; PARTS],
            log: [const { None }; LOG],
            records: from_fn(|_| agreement::Peer::default()),
            far: [agreement::Far::default(); NODES],
        }
    }

    /// The tables as an engine takes them.
    pub fn storage(&mut self) -> Storage<'_> {
        Storage {
            blocks: ManagedSlice::Borrowed(&mut self.blocks),
            send_matrix: ManagedSlice::Borrowed(&mut self.send_matrix),
            recv_matrix: ManagedSlice::Borrowed(&mut self.recv_matrix),
            send_rows: ManagedSlice::Borrowed(&mut self.send_rows),
            recv_rows: ManagedSlice::Borrowed(&mut self.recv_rows),
            peers: ManagedSlice::Borrowed(&mut self.peers),
            relayed: ManagedSlice::Borrowed(&mut self.relayed),
            nodes: ManagedSlice::Borrowed(&mut self.nodes),
            parts: ManagedSlice::Borrowed(&mut self.parts),
            local_parts: ManagedSlice::Borrowed(&mut self.local_parts),
            bound: ManagedSlice::Borrowed(&mut self.bound),
            pipes: ManagedSlice::Borrowed(&mut self.pipes),
            streams: ManagedSlice::Borrowed(&mut self.streams),
            rooms: ManagedSlice::Borrowed(&mut self.rooms),
            agreement: agreement::Storage {
                log: ManagedSlice::Borrowed(&mut self.log),
                peers: ManagedSlice::Borrowed(&mut self.records),
                far: ManagedSlice::Borrowed(&mut self.far),
            },
        }
    }
}
