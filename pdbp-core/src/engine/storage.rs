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
pub(crate) const LOG: usize = 64;

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
