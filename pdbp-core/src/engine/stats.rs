//! Statistics of a running engine.

use super::Engine;
use crate::id::NodeId;
use crate::matrix::RowSpace;
use crate::pipe::PipeKind;
use crate::policy::SpacePolicy;
use crate::transport::Transport;
use crate::umb::{BlockMemory, BlockState};

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Data blocks submitted by writers of this node.
    pub blocks_sent: u64,
    /// Data blocks routed to private pipes of this node, or refused.
    pub blocks_delivered: u64,
    /// Short deliveries copied out of their block because readers did not keep up.
    pub copied: u64,
    /// Malformed blocks and CDUs, which were refused.
    pub malformed: u64,
    /// Blocks that belonged to another session of their link, were duplicates, or came from a non-member.
    pub stale: u64,
    /// Blocks missing from their link that were not refused: the transport broke its contract.
    pub out_of_sequence: u64,
    /// Messages for parts that do not exist or have no private pipe.
    pub unroutable: u64,
    /// Stream segments without a mapping tuple.
    pub stray_segments: u64,
    /// Control messages from nodes that may not send them.
    pub misdirected: u64,
    /// Messages that a failed peer did not receive. They go back to the parts that sent them, unless those are on other nodes.
    pub undelivered: u64,
    /// Blocks that could not be returned because their owner had failed.
    pub lost_returns: u64,
    /// Messages of other nodes forwarded by this one as their relay.
    pub relayed: u64,
    /// Messages of other nodes that this one, as their relay, could not forward because its link to their destination had failed.
    pub relay_lost: u64,
    /// Control messages dropped for lack of room because a peer asked for more than it should.
    pub dropped_control: u64,
    /// Tokens of foreign blocks and deliveries that were handed in. They are left alone, and so are their blocks.
    pub foreign_tokens: u64,
}

impl Counters {
    /// Returns all counters with their names.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        // Field by field, so that none is forgotten.
        let Self {
            blocks_sent,
            blocks_delivered,
            copied,
            malformed,
            stale,
            out_of_sequence,
            unroutable,
            stray_segments,
            misdirected,
            undelivered,
            lost_returns,
            relayed,
            relay_lost,
            dropped_control,
            foreign_tokens,
        } = *self;
        [
            ("blocks_sent", blocks_sent),
            ("blocks_delivered", blocks_delivered),
            ("copied", copied),
            ("malformed", malformed),
            ("stale", stale),
            ("out_of_sequence", out_of_sequence),
            ("unroutable", unroutable),
            ("stray_segments", stray_segments),
            ("misdirected", misdirected),
            ("undelivered", undelivered),
            ("lost_returns", lost_returns),
            ("relayed", relayed),
            ("relay_lost", relay_lost),
            ("dropped_control", dropped_control),
            ("foreign_tokens", foreign_tokens),
        ]
        .into_iter()
    }
}

/// One row of SM or RM.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RowStats {
    /// The peer.
    pub peer: NodeId,
    /// N, curSize, used, and the ratios DF, SU and RSR.
    pub space: RowSpace,
    /// Blocks that have passed through.
    pub blocks: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// Their messages.
    pub messages: u64,
    /// How often a sender had to wait for a vacant element.
    pub stalls: u64,
    /// How often the row should have grown while no block was free.
    pub exhausted: u64,
    /// For SM, after the link has failed: an upper bound on the blocks that had left and whose delivery is uncertain.
    pub in_doubt: u64,
    /// Waiting blocks: for credit or the transport in SM, for a private pipe in RM.
    pub waiting: u32,
    /// For RM with posted arrival: blocks to receive into that the transport is too busy to take.
    pub unposted: u32,
}

/// Use of one group of pipes.
#[derive(Clone, Copy, Debug)]
pub struct PipeUse {
    /// Number in use.
    pub busy: u16,
    /// Total number.
    pub total: u16,
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Returns the counters since the start.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns SCBP_peer.
    pub fn send_row(&self, peer: NodeId) -> Option<RowStats> {
        let link = self.links.to(peer)?;
        let row = &link.send;
        Some(RowStats {
            peer,
            space: row.space,
            blocks: row.blocks,
            bytes: row.bytes,
            messages: row.messages,
            stalls: row.stalls,
            exhausted: row.exhausted,
            in_doubt: if link.state.is_down() { link.numbers.in_doubt() } else { 0 },
            waiting: row.waiting(),
            unposted: 0,
        })
    }

    /// Returns RCBP_peer.
    pub fn recv_row(&self, peer: NodeId) -> Option<RowStats> {
        let row = &self.links.to(peer)?.recv;
        Some(RowStats {
            peer,
            space: row.space,
            blocks: row.blocks,
            bytes: row.bytes,
            messages: row.messages,
            stalls: row.stalls,
            exhausted: row.exhausted,
            in_doubt: 0,
            waiting: row.pending.len,
            unposted: row.unposted.len,
        })
    }

    /// Returns the number of blocks submitted for a node that have not come back: queued here, in flight, or held by its readers.
    /// While this is not 0, sending a half-empty block does not make it arrive earlier; it only takes an element that a full one
    /// could use.
    pub fn backlog(&self, peer: NodeId) -> u32 {
        self.links.backlog(peer)
    }

    /// Returns the number of blocks of SCBP_peer, or of the row to its relay, with returned messages that their parts have not
    /// read. The next process in the peer's place gets that many fewer. Scans every block of the UMB.
    pub fn unread_returns(&self, peer: NodeId) -> u32 {
        let next = self.links.topology.relay_to(peer).unwrap_or(peer);
        let row = self.links.id(next).raw();
        let unread = |state| matches!(state, BlockState::Returned | BlockState::Reread);
        self.umb.uses().filter(|used| used.row == row && unread(used.state)).count() as u32
    }

    /// Returns the number of UMB blocks that are in no row.
    pub fn free_blocks(&self) -> u32 {
        self.umb.free()
    }

    /// Whether the peer is unreachable: its link or its relay's is down, or one of these nodes is not a member of the cluster.
    pub fn has_failed(&self, peer: NodeId) -> bool {
        let next = self.links.topology.relay_to(peer).unwrap_or(peer);
        !self.links.is_up(self.links.id(next)) || (next != peer && !self.agreement.is_member(peer))
    }

    /// Whether the peer's process or transport is known to have [ended](Transport::has_ended), and everything that it sent has been received. Only
    /// of peers to which there is a link.
    pub fn has_ended(&self, peer: NodeId) -> bool {
        self.links.to(peer).is_some_and(|link| link.state.is_down()) && self.transport.has_ended(peer)
    }

    /// Whether blocks of a node are read in place: it is this node, or shares memory with it.
    pub fn shares_memory(&self, peer: NodeId) -> bool {
        let is_linked = self.links.topology.relay_to(peer).is_none();
        let own = self.links.own;
        is_linked && self.links.iter().any(|link| link.peer == peer && (link.id == own || !link.posted))
    }

    /// Returns the use of a group of pipes.
    pub fn pipes(&self, kind: PipeKind) -> PipeUse {
        let (busy, total) = self.pipes.count(kind);
        PipeUse { busy, total }
    }
}
