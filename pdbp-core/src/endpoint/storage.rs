//! The memory of an endpoint.

use managed::ManagedSlice;

use super::{Buffer, Hold, Notice};
use crate::embed::RingState;
use crate::engine::{Config, ConfigError, Storage};
use crate::id::PartId;
use crate::inbox::Inbox;
#[cfg(feature = "alloc")]
use crate::inbox::InboxStorage;
use crate::outbox::Lane;
use crate::{Delivery, Event};

/// A part of this node and the state of its long messages.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PartState {
    pub(super) part: Option<PartId>,
    /// Number of its last long message.
    pub(super) number: u32,
    /// Whether that message is still being sent.
    pub(super) busy: bool,
}

impl PartState {
    pub(super) fn of(part: PartId) -> Self {
        Self { part: Some(part), number: 0, busy: false }
    }
}

/// The memory of an [`Endpoint`](super::Endpoint): allocated on the heap by `allocate`, or placed in a `static` by
/// [`storage!`](crate::storage) as part of a node's [`NodeMemory`](crate::embed::NodeMemory).
pub struct EndpointStorage<'a> {
    /// Tables of the engine.
    pub(crate) tables: Storage<'a>,
    /// Open blocks: one per row ([`Config::rows`]).
    pub(crate) lanes: ManagedSlice<'a, Lane>,
    /// One per private pipe.
    pub(crate) inboxes: ManagedSlice<'a, Inbox<'a, Hold<'a>, Buffer<'a>>>,
    /// Deliveries waiting for a part: two lists of equal length per private pipe, for commands and for everything else.
    pub(crate) pieces: ManagedSlice<'a, Option<Delivery>>,
    /// Two per private pipe.
    pub(crate) piece_rings: ManagedSlice<'a, RingState>,
    /// Notices for parts about failed nodes and broken streams. Each private pipe has room for the number of nodes, plus the
    /// streams that may arrive at it, plus its pieces.
    pub(crate) notices: ManagedSlice<'a, Option<Notice>>,
    /// One per private pipe.
    pub(crate) notice_rings: ManagedSlice<'a, RingState>,
    /// Buffers for reassembling messages longer than a block, all of one length. Each holds one message while it is being
    /// received and read.
    pub(crate) buffers: ManagedSlice<'a, Option<ManagedSlice<'a, u8>>>,
    /// One per part of this node.
    pub(crate) part_states: ManagedSlice<'a, PartState>,
    /// Events waiting to be [taken](super::Endpoint::poll_event). A poll in which links fail produces several per peer.
    pub(crate) events: ManagedSlice<'a, Option<Event>>,
}

/// Number of events per node that [`EndpointStorage::allocate`] has room for.
pub(crate) const EVENTS: usize = 8;

/// Number of notices that must fit in a pipe whose lists hold `pieces` deliveries.
pub(crate) const fn notices(nodes: usize, streams: usize, pieces: usize) -> usize {
    nodes.saturating_mul(streams).saturating_add(nodes).saturating_add(pieces)
}

impl EndpointStorage<'_> {
    pub(super) fn check(&self, config: &Config) -> Result<(), ConfigError> {
        let (have, need) = (config.private_pipes, config.local_parts);
        if have < need {
            return Err(ConfigError::PrivatePipes { have, need });
        }
        let (pipes, nodes) = (usize::from(config.private_pipes), usize::from(config.nodes));
        let streams = usize::from(config.stream_pipes);
        let assemblies = self.inboxes.iter().map(Inbox::assemblies).min().unwrap_or(0);
        let pieces = self.pieces.len().checked_div(2 * pipes).unwrap_or(0);
        for (slice, have, need) in [
            ("lanes", self.lanes.len(), config.rows()),
            ("inboxes", self.inboxes.len(), pipes),
            // The engine promises space for as many messages as there are buffers, whichever part they are for.
            ("assemblies", assemblies, self.buffers.len()),
            ("pieces", self.pieces.len(), 2 * pipes),
            ("piece_rings", self.piece_rings.len(), 2 * pipes),
            ("notices", self.notices.len(), pipes.saturating_mul(notices(nodes, streams, pieces))),
            ("notice_rings", self.notice_rings.len(), pipes),
            ("part_states", self.part_states.len(), usize::from(config.local_parts)),
        ] {
            if have < need {
                return Err(ConfigError::Storage { slice, have, need });
            }
        }
        Ok(())
    }

    /// Size of the engine's tables, in bytes.
    pub fn table_bytes(&self) -> usize {
        self.tables.bytes()
    }
}

#[cfg(feature = "alloc")]
impl EndpointStorage<'static> {
    /// Allocates memory on the heap for `config`: `blocks` blocks, `parts` parts in the whole cluster, `pieces` deliveries
    /// waiting for a part, and `long` messages longer than a block at a time, of up to `bytes` bytes each.
    pub fn allocate(
        config: &Config,
        (blocks, parts): (usize, usize),
        pieces: usize,
        (long, bytes): (usize, usize),
    ) -> Self {
        use alloc::vec::Vec;
        fn table<T>(length: usize, make: impl Fn() -> T) -> ManagedSlice<'static, T> {
            ManagedSlice::Owned((0..length).map(|_| make()).collect::<Vec<_>>())
        }
        let (pipes, nodes) = (usize::from(config.private_pipes), usize::from(config.nodes));
        let streams = nodes * usize::from(config.stream_pipes);
        Self {
            tables: Storage::allocate(config, blocks, parts),
            lanes: table(config.rows(), Lane::default),
            inboxes: table(pipes, || Inbox::new(InboxStorage::allocate(2 * pieces, long, streams))),
            pieces: table(2 * pipes * pieces, || None),
            piece_rings: table(2 * pipes, RingState::default),
            notices: table(pipes * notices(nodes, usize::from(config.stream_pipes), pieces), || None),
            notice_rings: table(pipes, RingState::default),
            buffers: table(long, || Some(ManagedSlice::Owned(alloc::vec![0; bytes]))),
            part_states: table(config.local_parts.into(), PartState::default),
            events: table(EVENTS * nodes, || None),
        }
    }

    /// Sets the sizes of the inboxes. Each sorts up to `entries` deliveries ahead of its reader, and tracks up to `streams` streams
    /// whose end its reader has not seen; further deliveries wait in their pipe. It reassembles up to `assemblies` long messages
    /// at a time: at least `long` of [`allocate`](Self::allocate), or the endpoint refuses the memory.
    #[must_use]
    pub fn with_inboxes(mut self, entries: usize, assemblies: usize, streams: usize) -> Self {
        for inbox in self.inboxes.iter_mut() {
            *inbox = Inbox::new(InboxStorage::allocate(entries, assemblies, streams));
        }
        self
    }
}
