//! The sending half: SM and the hand-over to the transport.

use zerocopy::FromBytes;

use super::{BUDGET, CONTROL_ROW, Checksum, Engine, Event, PrivatePipes};
use crate::cdu::{self, BLOCK_HEADER, BlockClass, BlockHeader, MAGIC, VERSION, flag};
use crate::id::NodeId;
use crate::policy::SpacePolicy;
use crate::routing::Slot;
use crate::transport::{Op, Reason, Refused, Transport};
use crate::umb::{BlockMemory, BlockState, NIL, OpenBlock, SealedBlock};

/// Why a block could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenError {
    /// All blocks that the row may have are in use; some come free as the peer reads.
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
    /// Gives out a vacant block of SCBP_dest, or of the relay by which that node is reached, to be filled with messages for that
    /// node; it comes back with [`submit`](Self::submit).
    ///
    /// # Errors
    /// See [`OpenError`].
    #[inline]
    pub fn open(&mut self, dest: NodeId) -> Result<OpenBlock, OpenError> {
        let (slot, via) = self.first_hop(dest)?;
        let mut block = self.open_row(slot, dest)?;
        if via.is_some() {
            block.packer.turn(via);
        }
        Ok(block)
    }

    /// A vacant block of a row, for messages to `dest`.
    #[inline]
    pub(super) fn open_row(&mut self, slot: Slot, dest: NodeId) -> Result<OpenBlock, OpenError> {
        self.find_vacant(slot, dest)?;
        self.take_vacant(slot, dest)
    }

    /// Sees to it that the row has a vacant block. Writers that have found it full come here again and again, so that a row
    /// which cannot grow is looked at and nothing else.
    #[inline]
    fn find_vacant(&mut self, slot: Slot, dest: NodeId) -> Result<(), OpenError> {
        let peer = self.peers.get(slot.index()).ok_or(OpenError::NoSuchNode(dest))?;
        if peer.is_gone() {
            return Err(OpenError::PeerFailed(dest));
        }
        let row = self.send_rows.get_mut(slot.index()).ok_or(OpenError::NoSuchNode(dest))?;
        if row.space.vacant() > 0 {
            return Ok(());
        }
        if row.space.virtual_space() > 0 && self.grow_waiting(slot) {
            return Ok(());
        }
        if let Some(row) = self.send_rows.get_mut(slot.index()) {
            row.stalls += 1;
        }
        Err(OpenError::WouldBlock)
    }

    /// Asks for more space for a row in which a writer waits. Whether it has some now.
    #[inline(never)]
    fn grow_waiting(&mut self, slot: Slot) -> bool {
        self.extend_send(slot, SpacePolicy::at_stall);
        self.send_rows.get(slot.index()).is_some_and(|row| row.space.vacant() > 0)
    }

    #[inline(never)]
    fn take_vacant(&mut self, slot: Slot, dest: NodeId) -> Result<OpenBlock, OpenError> {
        let row = self.send_rows.get(slot.index()).ok_or(OpenError::NoSuchNode(dest))?;
        let element = row.space.used();
        let index = self.sm.get(self.element(slot, element)).copied().unwrap_or(NIL);
        let Some(raw) = self.umb.lend(index) else { return Err(OpenError::WouldBlock) };
        if let Some(entry) = self.umb.entry(index) {
            entry.state = BlockState::Open;
        }
        let row = self.send_rows.get_mut(slot.index()).ok_or(OpenError::NoSuchNode(dest))?;
        let critical = row.space.take();
        row.open += 1;
        self.tokens += 1;
        if critical {
            self.extend_send(slot, SpacePolicy::at_critical);
        }
        Ok(OpenBlock { raw, packer: cdu::Packer::new(), dest, row: slot, urgent: false, stream: None })
    }

    /// Takes a block back from its writer and sends it, or queues it for its node when there is no credit. One without messages
    /// just becomes vacant.
    pub fn submit(&mut self, mut block: OpenBlock) {
        let dest = block.row;
        let length = block.finish();
        let messages = block.packer.messages();
        let urgent = block.urgent;
        if self.umb.index_of(&block).is_none() {
            self.counters.foreign_tokens += 1;
            return;
        }
        self.tokens -= 1;
        if let Some(row) = self.send_rows.get_mut(dest.index()) {
            row.open -= 1;
        }
        if messages == 0 {
            if let Ok(index) = self.umb.take_back(block) {
                self.recycle(index);
            }
            return;
        }
        if let Some(tag) = &block.stream {
            // The number of a circuit, of a stream that this node passes on, is no pipe's.
            self.pipes.note_segment(self.stream_pipe(tag.group), tag);
        }
        let sealed = self.seal(block, length, messages);
        let Ok(index) = self.umb.take_back(sealed) else { return };
        if self.is_gone(dest) {
            if let Some(entry) = self.umb.entry(index) {
                entry.length = length;
            }
            self.send_back(dest, index);
            return;
        }
        if let Some(row) = self.send_rows.get_mut(dest.index()) {
            row.blocks += 1;
            row.bytes += u64::from(length) - BLOCK_HEADER as u64;
            row.messages += u64::from(messages);
        }
        if let Some(entry) = self.umb.entry(index) {
            entry.state = BlockState::Queued;
            entry.length = length;
        }
        self.counters.blocks_sent += 1;
        self.enqueue(index, |engine| {
            let row = engine.send_rows.get_mut(dest.index())?;
            Some(if urgent { &mut row.urgent } else { &mut row.queue })
        });
        // It need not wait for a poll.
        if dest == self.own {
            self.queued = true;
        } else {
            self.pump_row(dest);
        }
    }

    /// Writes the header's fields that do not depend on when the block leaves.
    fn seal(&self, block: OpenBlock, length: u32, messages: u32) -> SealedBlock {
        let mut flags = if block.urgent { flag::URGENT } else { 0 };
        let (mut class, mut part, mut stream, mut segment, mut group) = (BlockClass::Message, 0, 0, 0, 0);
        if let Some(only) = block.packer.only_part() {
            flags |= flag::UNIFORM;
            part = only;
        }
        if let Some(tag) = block.stream {
            class = BlockClass::Stream;
            flags |= tag.flags & (flag::FIRST | flag::LAST | flag::ABORTED);
            part = tag.dest.local();
            (stream, segment, group) = (tag.number.0, tag.segment, tag.group);
        }
        let row = block.row;
        let mut sealed = block.into_sealed(length);
        self.write_fixed(&mut sealed, row, class, flags, messages);
        if let Ok((header, _)) = BlockHeader::mut_from_prefix(sealed.header_mut()) {
            header.part.set(part);
            header.stream.set(stream);
            header.segment.set(segment);
            header.group.set(group);
        }
        sealed
    }

    pub(super) fn write_fixed(
        &self,
        block: &mut SealedBlock,
        dest: Slot,
        class: BlockClass,
        flags: u16,
        messages: u32,
    ) {
        let length = block.bytes().len().saturating_sub(BLOCK_HEADER) as u32;
        if let Ok((header, _)) = BlockHeader::mut_from_prefix(block.header_mut()) {
            *header = BlockHeader {
                magic: MAGIC,
                version: VERSION,
                class: class as u8,
                source: self.config.node.raw().into(),
                dest: self.links.node(dest).raw().into(),
                session: 0.into(),
                length: length.into(),
                sequence: 0.into(),
                released: 0.into(),
                window: 0.into(),
                flags: flags.into(),
                part: 0.into(),
                stream: 0.into(),
                segment: 0.into(),
                checksum: 0.into(),
                messages: messages.into(),
                group: 0.into(),
                data: 0.into(),
                wanted: 0.into(),
            };
        }
    }

    /// Hands queued blocks to the transport as far as credit goes.
    pub(super) fn pump_rows(&mut self, pipes: &mut impl PrivatePipes) -> u32 {
        if !core::mem::take(&mut self.queued) {
            return 0;
        }
        let mut worked = 0;
        for node in (0..self.send_rows.len()).map(Slot::from_index) {
            if !self.is_held_up(node.index()) {
                continue;
            }
            if node == self.own {
                worked += self.loop_back(pipes);
            } else {
                worked += self.pump_row(node);
            }
        }
        worked
    }

    fn pump_row(&mut self, node: Slot) -> u32 {
        let mut worked = 0;
        for _ in 0..BUDGET {
            let Some(urgent) = self.may_send(node) else { break };
            let Some(index) = self.dequeue(|engine| {
                let row = engine.send_rows.get_mut(node.index())?;
                Some(if urgent { &mut row.urgent } else { &mut row.queue })
            }) else {
                break;
            };
            if !self.transmit(node, index, true) {
                self.requeue(index, |engine| {
                    let row = engine.send_rows.get_mut(node.index())?;
                    Some(if urgent { &mut row.urgent } else { &mut row.queue })
                });
                break;
            }
            worked += 1;
        }
        self.queued |= self.is_held_up(node.index());
        worked
    }

    /// Whether credit and the places of the link allow one more block, and whether that is an urgent one.
    fn may_send(&self, node: Slot) -> Option<bool> {
        let peer = self.peers.get(node.index())?;
        let row = self.send_rows.get(node.index())?;
        let outstanding = peer.data_sent - peer.data_acked;
        let window = u64::from(peer.window);
        let kept = u64::from(super::kept(peer.window));
        if peer.is_gone() || peer.data_away >= peer.places {
            return None;
        }
        if row.urgent.len > 0 && outstanding < window {
            return Some(true);
        }
        (row.queue.len > 0 && outstanding + kept < window).then_some(false)
    }

    /// Gives a block to the transport. `false`: it did not take it.
    pub(super) fn transmit(&mut self, node: Slot, index: u32, data: bool) -> bool {
        let Some(mut block) = self.umb.lend_sealed(index) else { return false };
        self.stamp(node, &mut block, data);
        if let Err(refused) = self.transport.submit(Op::Send { peer: self.links.node(node), block })
            && self.is_refused(node, index, refused)
        {
            return false;
        }
        if let Some(entry) = self.umb.entry(index) {
            entry.state = BlockState::InFlight;
        }
        let Some(recv) = self.recv_rows.get(node.index()) else { return true };
        if let Some(peer) = self.peers.get_mut(node.index()) {
            let window = peer.credit_in(recv);
            peer.sent += 1;
            peer.data_sent += u64::from(data);
            peer.control_away += u32::from(!data);
            peer.data_away += u32::from(data);
            peer.announced(window);
        }
        true
    }

    /// Whether the transport has handed back the block that it refused. One that hands back something else has the block, and is
    /// not to be trusted with others.
    #[cold]
    fn is_refused(&mut self, node: Slot, index: u32, refused: Refused<T::Error>) -> bool {
        let given = matches!(&refused.op, Op::Send { block, .. } if self.umb.index_of(block) == Some(index));
        // What is not busy now will not do better later: the link is given up rather than tried for ever.
        if !given || !matches!(refused.reason, Reason::Busy) {
            self.give_up(node);
        }
        match refused.op {
            Op::Send { block, .. } if given => _ = self.umb.take_back(block),
            op => self.handed_back(op),
        }
        given
    }

    /// Credit that this node could use: blocks under way, and blocks that wait.
    pub(super) fn wanted(&self, node: Slot) -> u64 {
        let waiting = self.send_rows.get(node.index()).map_or(0, |row| row.urgent.len + row.queue.len);
        self.peers.get(node.index()).map_or(0, |peer| peer.data_sent - peer.data_acked) + u64::from(waiting)
    }

    /// Writes session, sequence, credit and checksum.
    fn stamp(&self, node: Slot, block: &mut SealedBlock, data: bool) {
        let (Some(peer), Some(recv)) = (self.peers.get(node.index()), self.recv_rows.get(node.index()))
        else {
            return;
        };
        let wanted = self.wanted(node) + u64::from(data);
        if let Ok((header, _)) = BlockHeader::mut_from_prefix(block.header_mut()) {
            header.wanted.set(wanted.min(u64::from(u16::MAX)) as u16);
            header.session.set(peer.session);
            header.sequence.set(peer.sent);
            header.data.set(peer.data_sent as u32);
            header.released.set(peer.released);
            header.window.set(peer.credit_in(recv));
        }
        if self.config.checksum == Checksum::Off {
            return;
        }
        if let Ok((header, _)) = BlockHeader::mut_from_prefix(block.header_mut()) {
            header.flags.set(header.flags.get() | flag::CHECKSUM);
        }
        let Ok((header, body)) = BlockHeader::ref_from_prefix(block.bytes()) else { return };
        let sum = cdu::checksum(header, body);
        if let Ok((header, _)) = BlockHeader::mut_from_prefix(block.header_mut()) {
            header.checksum.set(sum);
        }
    }

    /// Blocks for parts of this node: they meet no transport.
    fn loop_back(&mut self, pipes: &mut impl PrivatePipes) -> u32 {
        let me = self.own;
        let mut worked = 0;
        while worked < BUDGET as u32 && self.has_element(me) {
            let next = self
                .dequeue(|e| e.send_rows.get_mut(me.index()).map(|r| &mut r.urgent))
                .or_else(|| self.dequeue(|e| e.send_rows.get_mut(me.index()).map(|r| &mut r.queue)));
            let Some(index) = next else { break };
            let Some(mut block) = self.umb.lend_sealed(index) else { break };
            if let Some(entry) = self.umb.entry(index) {
                entry.state = BlockState::InFlight;
            }
            self.stamp(me, &mut block, true);
            if let Some(peer) = self.peers.get_mut(me.index()) {
                peer.sent += 1;
                peer.data_sent += 1;
            }
            self.hold(me, block.into_arrived());
            self.route_row(me, pipes);
            worked += 1;
        }
        self.queued |= self.is_held_up(me.index());
        worked
    }

    /// A block of ours has come back from the transport.
    pub(super) fn sent(&mut self, node: Slot, block: SealedBlock, failed: bool) {
        let Ok(index) = self.umb.take_back(block) else {
            self.counters.foreign_tokens += 1;
            return;
        };
        let Some(entry) = self.umb.entry(index) else { return };
        if entry.state != BlockState::InFlight {
            // A block to receive into, which the transport has sealed.
            self.counters.foreign_tokens += 1;
            self.note_unposted(index);
            self.umb.give(index);
            return;
        }
        let row = entry.row;
        let data = row != CONTROL_ROW;
        // The row of the block, not the transport, says where a data block went.
        let node = if data { Slot::from_index(usize::from(row)) } else { node };
        let in_place = !self.is_posted_link(node);
        if let Some(peer) = self.peers.get_mut(node.index()) {
            peer.data_acked += u64::from(data && in_place);
            peer.came_back += u64::from(data && failed && !in_place);
            peer.control_away = peer.control_away.saturating_sub(u32::from(!data));
            peer.data_away = peer.data_away.saturating_sub(u32::from(data));
        }
        if failed && data { self.send_back(node, index) } else { self.recycle(index) }
    }

    /// Control blocks that a failed peer will not get.
    pub(super) fn empty_control(&mut self, node: Slot) {
        if self.peers.get(node.index()).is_none_or(|p| !p.failed) {
            return;
        }
        while let Some(index) = self.dequeue(|e| e.send_rows.get_mut(node.index()).map(|r| &mut r.control)) {
            self.recycle(index);
        }
    }

    /// Sends back what waits for a peer that has failed.
    pub(super) fn give_up_queue(&mut self, node: Slot, pipes: &mut impl PrivatePipes) {
        if let Some((block, _)) = self.relayed.take(node.index()) {
            self.submit(block);
        }
        while let Some(index) = self
            .dequeue(|e| e.send_rows.get_mut(node.index()).map(|r| &mut r.urgent))
            .or_else(|| self.dequeue(|e| e.send_rows.get_mut(node.index()).map(|r| &mut r.queue)))
        {
            self.send_back(node, index);
        }
        self.shrink_send(node, u32::MAX);
        let undelivered = self.peers.get(node.index()).map_or(0, |p| p.undelivered);
        pipes.event(Event::PeerFailed { peer: self.links.node(node), undelivered });
        pipes.event(Event::FlushWanted);
    }
}
