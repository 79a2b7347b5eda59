//! The memory of an engine's tables.

use managed::ManagedSlice;

use super::readers::Element;
use super::room::RoomEntry;
use super::{Config, ConfigError, Link, Local};
use crate::agreement;
use crate::outbox::Lane;
use crate::pipe::{Binding, PipeEntry, StreamEntry};
use crate::tables::{NodeEntry, PartEntry};
use crate::umb::{BlockInfo, CopyBlock};

/// The memory of an engine's tables: allocated on the heap by `allocate`, or placed in a `static` by [`storage!`](crate::storage)
/// as part of a node's [`NodeMemory`](crate::embed::NodeMemory).
pub struct Storage<'a> {
    /// UMBInfo-Tab: one entry per block.
    pub(crate) blocks: ManagedSlice<'a, BlockInfo>,
    /// SM: rows × row size; see [`Config::rows`].
    pub(crate) send_matrix: ManagedSlice<'a, u32>,
    /// RM: rows × row size.
    pub(crate) recv_matrix: ManagedSlice<'a, Element>,
    /// One per row.
    pub(crate) links: ManagedSlice<'a, Link>,
    /// One per row if there are relays, otherwise none.
    pub(crate) relayed: ManagedSlice<'a, Lane>,
    /// NTA: one per node.
    pub(crate) nodes: ManagedSlice<'a, Option<NodeEntry>>,
    /// PTA: one per part of the whole cluster.
    pub(crate) parts: ManagedSlice<'a, Option<PartEntry>>,
    /// One per part of this node.
    pub(crate) local_parts: ManagedSlice<'a, Local>,
    /// GP-Pipe-Bind-Tab: one per part of this node.
    pub(crate) bound: ManagedSlice<'a, Option<Binding>>,
    /// Pipe-Tab: private pipes + local parts + stream pipes.
    pub(crate) pipes: ManagedSlice<'a, PipeEntry>,
    /// MTA: rows × stream pipes, or twice that with relays; see [`Config::streams`].
    pub(crate) streams: ManagedSlice<'a, StreamEntry>,
    /// Messages longer than a block that are waiting for space, or have it: one per part of the whole cluster.
    pub(crate) rooms: ManagedSlice<'a, Option<RoomEntry>>,
    /// One per block that may hold copies of short deliveries.
    pub(crate) copies: ManagedSlice<'a, CopyBlock>,
    /// The log of the tables, and a record per node.
    pub(crate) agreement: agreement::Storage<'a>,
}

/// Shortens a table to `length` entries.
fn cut<E>(table: &mut ManagedSlice<'_, E>, length: usize) {
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
    /// Number of entries that the log of the tables keeps. A node that misses more gets the whole tables.
    pub const LOG: usize = 64;

    /// Shortens the tables to the lengths that the configuration prescribes.
    pub(super) fn cut(mut self, config: &Config) -> Self {
        let (rows, nodes, local) =
            (config.rows(), usize::from(config.nodes), usize::from(config.local_parts));
        let linked = usize::from(config.agreement(0).linked()).min(nodes);
        cut(&mut self.send_matrix, config.elements());
        cut(&mut self.recv_matrix, config.elements());
        cut(&mut self.links, rows);
        cut(&mut self.relayed, config.relay_lanes());
        cut(&mut self.nodes, nodes);
        cut(&mut self.agreement.peers, linked);
        cut(&mut self.agreement.unlinked, nodes - linked);
        cut(&mut self.local_parts, local);
        cut(&mut self.bound, local);
        cut(&mut self.pipes, config.pipes());
        cut(&mut self.streams, config.streams());
        cut(&mut self.copies, config.copy_blocks.into());
        self
    }

    pub(super) fn check(&self, config: &Config) -> Result<(), ConfigError> {
        let nodes = usize::from(config.nodes);
        let rows = config.rows();
        let linked = usize::from(config.agreement(0).linked()).min(nodes);
        let local = usize::from(config.local_parts);
        for (slice, have, need) in [
            ("send_matrix", self.send_matrix.len(), config.elements()),
            ("recv_matrix", self.recv_matrix.len(), config.elements()),
            ("links", self.links.len(), rows),
            ("relayed", self.relayed.len(), config.relay_lanes()),
            ("nodes", self.nodes.len(), nodes),
            ("agreement.peers", self.agreement.peers.len(), linked),
            ("agreement.unlinked", self.agreement.unlinked.len(), nodes - linked),
            ("agreement.log", self.agreement.log.len(), agreement::MIN_LOG),
            ("parts", self.parts.len(), 1),
            ("local_parts", self.local_parts.len(), local),
            ("bound", self.bound.len(), local),
            ("pipes", self.pipes.len(), config.pipes()),
            ("streams", self.streams.len(), config.streams()),
            ("copies", self.copies.len(), config.copy_blocks.into()),
        ] {
            if have < need {
                return Err(ConfigError::Storage { slice, have, need });
            }
        }
        Ok(())
    }

    /// Returns the size of all tables in bytes, including those of the agreement.
    pub fn bytes(&self) -> usize {
        fn of<T>(table: &ManagedSlice<'_, T>) -> usize {
            table.len() * size_of::<T>()
        }
        let matrices = of(&self.send_matrix) + of(&self.recv_matrix);
        let rows = of(&self.links) + of(&self.relayed);
        let parts =
            of(&self.local_parts) + of(&self.bound) + of(&self.pipes) + of(&self.streams) + of(&self.rooms);
        let replicas = of(&self.nodes) + of(&self.parts);
        let agreement = of(&self.agreement.log) + of(&self.agreement.peers) + of(&self.agreement.unlinked);
        of(&self.blocks) + of(&self.copies) + matrices + rows + parts + replicas + agreement
    }
}

#[cfg(feature = "alloc")]
impl Storage<'static> {
    /// Allocates tables on the heap for `config`, with `blocks` blocks and room for `parts` parts in the whole cluster.
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
            links: table(rows),
            relayed: table(config.relay_lanes()),
            nodes: table(nodes),
            parts: table(parts),
            local_parts: table(local),
            bound: table(local),
            pipes: table(config.pipes()),
            streams: table(config.streams()),
            rooms: table(parts),
            copies: table(config.copy_blocks.into()),
            agreement: agreement::Storage::allocate_linked(
                config.nodes,
                config.agreement(0).linked(),
                Self::LOG,
            ),
        }
    }

    /// Sets a log length other than [`LOG`](Self::LOG); it must be the same on all nodes.
    #[must_use]
    pub fn with_log(mut self, entries: usize) -> Self {
        self.agreement.log = agreement::Storage::allocate(0, entries).log;
        self
    }
}
