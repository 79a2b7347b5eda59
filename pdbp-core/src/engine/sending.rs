//! The sending half: SM, and the handover to the transport.

use zerocopy::FromBytes;

use super::link::{Label, Link, Payload, Work};
use super::{BUDGET, CONTROL_ROW, Engine, Event, PrivatePipes};
use crate::cdu::{self, BLOCK_HEADER, BlockClass, BlockHeader, Via, flag};
use crate::id::NodeId;
use crate::policy::SpacePolicy;
use crate::routing::LinkId;
use crate::transport::{Op, Reason, Refused, Transport};
use crate::umb::{BlockMemory, BlockState, Load, OpenBlock, SealedBlock};

/// Why a block could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenError {
    /// All blocks that the row may have are in use; they become free as the peer reads.
    WouldBlock,
    /// The peer has failed.
    PeerFailed(NodeId),
    /// There is no such node.
    NoSuchNode(NodeId),
}

impl core::fmt::Display for OpenError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::WouldBlock => f.write_str("all blocks of the row are in use; poll and try again"),
            Self::PeerFailed(node) => write!(f, "{node} has failed"),
            Self::NoSuchNode(node) => write!(f, "there is no {node} in this cluster"),
        }
    }
}

impl core::error::Error for OpenError {}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Returns a vacant block of SCBP_dest, or of the row to that node's relay, to be filled with messages for the node. Give it
    /// back with [`submit`](Self::submit).
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(&mut self, dest: NodeId) -> Result<OpenBlock, OpenError> {
        self.open_with(dest, |block| block)
    }

    /// As [`open`](Self::open), with a closure that puts the block in its final place, since its token is large.
    #[inline]
    pub(super) fn open_with<R>(
        &mut self,
        dest: NodeId,
        put: impl FnOnce(OpenBlock) -> R,
    ) -> Result<R, OpenError> {
        let (id, via) = self.first_hop(dest)?;
        if via.is_some() {
            self.open_to_relay((id, via), dest).map(put)
        } else {
            self.open_row_with(id, dest, put)
        }
    }

    /// Whether [`open`](Self::open) would at once return a block for the node, which its row has or would be given, or a
    /// permanent error. Changes and counts nothing.
    pub fn may_open(&self, dest: NodeId) -> bool {
        let link = self.first_hop(dest).ok().and_then(|(id, _)| self.links.get(id));
        let Some(link) = link.filter(|link| link.is_up()) else { return true };
        let row = &link.send.space;
        row.vacant() > 0 || (row.virtual_space() > 0 && self.space.may_grow(row, &self.umb))
    }

    #[inline(never)]
    fn open_to_relay(
        &mut self,
        (id, via): (LinkId, Option<Via>),
        dest: NodeId,
    ) -> Result<OpenBlock, OpenError> {
        let mut block = self.open_row(id, dest)?;
        block.packer.turn(via);
        Ok(block)
    }

    /// Returns a vacant block of a link's row, for messages to `dest`.
    pub(super) fn open_row(&mut self, id: LinkId, dest: NodeId) -> Result<OpenBlock, OpenError> {
        self.open_row_with(id, dest, |block| block)
    }

    /// As [`open_row`](Self::open_row). Writers poll this while the row is full, so the row alone decides that case.
    #[inline]
    fn open_row_with<R>(
        &mut self,
        id: LinkId,
        dest: NodeId,
        put: impl FnOnce(OpenBlock) -> R,
    ) -> Result<R, OpenError> {
        let link = self.links.data_mut(id).ok_or(OpenError::NoSuchNode(dest))?;
        if !link.is_up() {
            return Err(OpenError::PeerFailed(dest));
        }
        if link.send.space.vacant() == 0 {
            let can_grow = link.send.space.virtual_space() > 0;
            if !can_grow || !self.grow_send_row(id) {
                if let Some(link) = self.links.get_mut(id) {
                    link.send.stalls += 1;
                }
                return Err(OpenError::WouldBlock);
            }
        }
        self.take_vacant(id, dest, put)
    }

    /// Asks the policy for more space for a row that a writer is waiting for. Returns whether the row got some.
    #[inline(never)]
    fn grow_send_row(&mut self, id: LinkId) -> bool {
        let Self { links, umb, space, .. } = self;
        space.extend_send(links, umb, id, SpacePolicy::at_stall);
        links.get(id).is_some_and(|link| link.send.space.vacant() > 0)
    }

    #[inline]
    fn take_vacant<R>(
        &mut self,
        id: LinkId,
        dest: NodeId,
        put: impl FnOnce(OpenBlock) -> R,
    ) -> Result<R, OpenError> {
        let Self { links, umb, space, .. } = self;
        let link = links.data_mut(id).ok_or(OpenError::NoSuchNode(dest))?;
        let index = space.vacant(link);
        let Some(raw) = umb.lend(index) else { return Err(OpenError::WouldBlock) };
        if let Some(entry) = umb.entry(index) {
            entry.state = BlockState::Open;
        }
        let (closings, critical) = (link.closings, link.send.space.take());
        link.send.open += 1;
        self.tokens += 1;
        if critical {
            space.extend_send(links, umb, id, SpacePolicy::at_critical);
        }
        Ok(put(OpenBlock { raw, packer: cdu::Packer::new(), dest, row: id, closings, load: Load::Messages }))
    }

    /// Takes a block back from its writer and sends it, or queues it if there is no credit. A block without messages just becomes
    /// vacant. A block opened before its link failed comes back, even if the link is up again.
    pub fn submit(&mut self, mut block: OpenBlock) {
        let id = block.row;
        let length = block.finish();
        let messages = block.packer.messages();
        let payload = if block.load == Load::Urgent { Payload::Urgent } else { Payload::Data };
        let is_own = id == self.links.own;
        let Self { links, umb, pipes, config, transport, .. } = self;
        let (Some(link), Some(index)) = (links.data_mut(id), umb.index_of(&block)) else {
            self.counters.foreign_tokens += 1;
            return;
        };
        self.tokens -= 1;
        link.send.open -= 1;
        if messages == 0 {
            if let Ok(index) = umb.reclaim(block) {
                self.recycle(index);
            }
            return;
        }
        if let Load::Segment(tag) = &block.load {
            // For a stream relayed by this node, the number is that of a circuit, not of a pipe.
            pipes.note_segment(pipes.stream_pipe(tag.group), tag);
        }
        let up = link.is_up() && link.closings == block.closings;
        if let Some(entry) = umb.entry(index) {
            entry.length = length;
            if up {
                entry.state = BlockState::Queued;
            }
        }
        let block = seal(block, link, config.node, length);
        if !up {
            _ = umb.reclaim(block);
            return self.send_back(id, index);
        }
        link.send.blocks += 1;
        link.send.bytes += u64::from(length) - BLOCK_HEADER as u64;
        link.send.messages += u64::from(messages);
        self.counters.blocks_sent += 1;
        // Sent at once if possible, without waiting for a poll.
        if !is_own && link.may_leave(payload) {
            let sent = link.submit((index, block), payload, umb, &mut **transport, config.checksum);
            if let Err(refused) = sent {
                self.requeue_refused((id, index), payload, refused);
                self.mark_waiting(id);
            }
            return;
        }
        _ = umb.reclaim(block);
        link.enqueue(umb, index, payload);
        if is_own {
            self.links.mark(id, Work::SEND);
        } else {
            self.pump_row(id);
        }
    }

    /// Submits queued blocks to the transport, as many as credit allows.
    pub(super) fn pump_rows(&mut self, pipes: &mut impl PrivatePipes) -> u32 {
        let mut worked = 0;
        let mut waiting = self.links.first_with(Work::SEND);
        while let Some(id) = waiting {
            worked += if id == self.links.own { self.loop_back(pipes) } else { self.pump_row(id) };
            waiting = self.links.next_with(id, Work::SEND);
        }
        worked
    }

    fn pump_row(&mut self, id: LinkId) -> u32 {
        let mut worked = 0;
        while worked < BUDGET as u32 && self.send_first(id, Link::next_data) == Some(true) {
            worked += 1;
        }
        self.mark_waiting(id);
        worked
    }

    /// Submits the next block of a link to the transport. Returns `None` if no block may leave, and `Some(false)` if the
    /// transport did not take it.
    #[inline]
    pub(super) fn send_first(
        &mut self,
        id: LinkId,
        next: impl FnOnce(&Link) -> Option<Payload>,
    ) -> Option<bool> {
        let Self { links, umb, transport, config, .. } = self;
        let link = links.get_mut(id)?;
        let payload = next(link)?;
        match link.send_first(payload, umb, &mut **transport, config.checksum)? {
            Ok(()) => Some(true),
            Err((index, refused)) => Some(self.requeue_refused((id, index), payload, refused)),
        }
    }

    /// Requeues a block that the transport has refused. Returns whether the transport has kept it nevertheless: a transport that
    /// hands back something else has, and is trusted with no more blocks.
    #[cold]
    fn requeue_refused(
        &mut self,
        (id, index): (LinkId, u32),
        payload: Payload,
        refused: Refused<T::Error>,
    ) -> bool {
        let given = matches!(&refused.op, Op::Send { block, .. } if self.umb.index_of(block) == Some(index));
        // Any reason other than `Busy` is permanent: the link fails.
        if !given || !matches!(refused.reason, Reason::Busy) {
            self.schedule_link_failure(id);
        }
        match refused.op {
            Op::Send { block, .. } if given => _ = self.umb.reclaim(block),
            op => self.reclaim_op(op),
        }
        let Self { links, umb, .. } = self;
        let Some(link) = links.get_mut(id) else { return false };
        if given {
            link.requeue(umb, index, payload);
        } else {
            link.on_sent(umb, index, (payload, link.credit()));
        }
        !given
    }

    /// Delivers blocks for parts of this node, bypassing the transport.
    fn loop_back(&mut self, pipes: &mut impl PrivatePipes) -> u32 {
        let own = self.links.own;
        let mut worked = 0;
        while worked < BUDGET as u32 {
            let Self { links, umb, config, .. } = self;
            let Some(link) = links.get_mut(own).filter(|link| link.recv.has_element()) else { break };
            let Some(index) = link.send.pop_front(umb) else { break };
            let Some(mut block) = umb.lend_sealed(index) else { break };
            if let Some(entry) = umb.entry(index) {
                entry.state = BlockState::InFlight;
            }
            link.stamp(&mut block, Payload::Data, (link.credit(), config.checksum));
            link.numbers.sent += 1;
            link.numbers.data_sent += 1;
            let Ok((header, _)) = BlockHeader::read_from_prefix(block.bytes()) else { break };
            let label = Label::of(&header);
            self.receive_block(own, (label, 0), block.into_arrived(), pipes);
            worked += 1;
        }
        self.mark_waiting(own);
        worked
    }

    /// Marks a link for the next poll if blocks still wait there.
    #[inline]
    fn mark_waiting(&mut self, id: LinkId) {
        if self.links.get(id).is_some_and(|link| link.send.waiting() > 0) {
            self.links.mark(id, Work::SEND);
        }
    }

    /// Handles a block that the transport has returned unsent.
    #[cold]
    pub(super) fn on_unsent(&mut self, id: LinkId, block: SealedBlock) {
        self.on_send_complete(id, block, true);
    }

    /// Handles a block of this node that the transport has returned.
    #[inline(always)]
    pub(super) fn on_send_complete(&mut self, id: LinkId, block: SealedBlock, failed: bool) {
        let Ok(index) = self.umb.reclaim(block) else {
            self.counters.foreign_tokens += 1;
            return;
        };
        let Some(entry) = self.umb.entry(index) else { return };
        if entry.state != BlockState::InFlight {
            // A block posted for receiving, which the transport has sealed.
            self.counters.foreign_tokens += 1;
            let link = self.on_unposted(index);
            self.umb.give(index);
            return self.post_again(link);
        }
        if entry.row == CONTROL_ROW {
            if let Some(link) = self.links.get_mut(id) {
                link.numbers.on_control_complete();
            }
            return self.recycle(index);
        }
        // UMBInfo-Tab determines the link of a data block, not the transport.
        let (id, slot) = (LinkId::from_index(usize::from(entry.row)), entry.slot);
        let Some(link) = self.links.data_mut(id) else { return };
        link.numbers.on_data_complete(link.posted, failed);
        if failed {
            return self.send_back(id, index);
        }
        entry.state = BlockState::Vacant;
        self.space.vacate(link, &mut self.umb, (index, slot));
    }

    /// Frees a block of this node: it returns to its row, or to the control blocks.
    pub(super) fn recycle(&mut self, index: u32) {
        let Self { links, umb, space, .. } = self;
        let Some(entry) = umb.entry(index) else { return };
        entry.state = BlockState::Vacant;
        let (row, freed) = (entry.row, entry.slot);
        if row == CONTROL_ROW {
            self.control_blocks.push_back(umb, index);
        } else if let Some(link) = links.get_mut(LinkId::from_index(usize::from(row))) {
            space.vacate(link, umb, (index, freed));
        }
    }

    /// Frees the control blocks queued for a failed peer.
    pub(super) fn clear_control(&mut self, id: LinkId) {
        while let Some(link) = self.links.get_mut(id).filter(|link| link.state.is_down())
            && let Some(index) = link.send.control.pop_front(&mut self.umb)
        {
            self.recycle(index);
        }
    }

    /// Takes back all data waiting in SCBP rows for credit or the transport, and returns it to its senders, as if the link had
    /// failed. For a host that is about to end; parts should send nothing more. Data in flight still arrives.
    pub fn withdraw(&mut self) {
        for node in (0..self.config.nodes).filter_map(NodeId::new) {
            let id = self.links.id(node);
            while let Some(link) = self.links.get_mut(id)
                && let Some(index) = link.send.pop_front(&mut self.umb)
            {
                self.send_back(id, index);
            }
        }
    }

    /// Returns to their writers the blocks queued for a peer that gets no more data.
    pub(super) fn return_queue(&mut self, id: LinkId, pipes: &mut impl PrivatePipes) {
        if let Some((block, _)) = self.relayed.take(id.index()) {
            self.submit(block);
        }
        while let Some(link) = self.links.get_mut(id)
            && let Some(index) = link.send.pop_front(&mut self.umb)
        {
            self.send_back(id, index);
        }
        let Some(link) = self.links.get_mut(id) else { return };
        self.space.shrink_send(link, &mut self.umb, u32::MAX);
        let undelivered = core::mem::take(&mut link.undelivered);
        pipes.event(Event::PeerFailed { peer: link.peer, undelivered });
        pipes.event(Event::FlushWanted);
    }
}

/// Writes the header fields that do not depend on when the block leaves.
#[inline]
fn seal(block: OpenBlock, link: &Link, source: NodeId, length: u32) -> SealedBlock {
    let body = length.saturating_sub(BLOCK_HEADER as u32);
    let mut label = Label::new(BlockClass::Message, body, block.packer.messages());
    if let Some(only) = block.packer.only_part() {
        label.flags = flag::UNIFORM;
        label.part = only;
    }
    match block.load {
        Load::Messages => {}
        Load::Urgent => label.flags |= flag::URGENT,
        Load::Segment(tag) => {
            label.class = BlockClass::Stream;
            label.flags |= tag.flags & (flag::FIRST | flag::LAST | flag::ABORTED);
            label.part = tag.dest.local();
            (label.stream, label.segment, label.group) = (tag.number.0, tag.segment, tag.group);
        }
    }
    let mut sealed = block.into_sealed(length);
    link.write_header(&mut sealed, source, &label);
    sealed
}
