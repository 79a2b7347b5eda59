//! What comes from a peer: blocks are checked against their link, their numbers and credit taken; and the end of a link.

use zerocopy::FromBytes;

use super::posting::SPARE_POSTS;
use super::protocol::Accord;
use super::relaying::Way;
use super::{BUDGET, Engine, Event, PrivatePipes};
use crate::cdu::{BLOCK_HEADER, BlockClass, BlockHeader, Cdus, Malformed, Via, flag};
use crate::id::NodeId;
use crate::matrix::RecvRow;
use crate::policy::SpacePolicy;
use crate::routing::Slot;
use crate::transport::{Completion, Op, Transport};
use crate::umb::{ArrivedBlock, BlockMemory};

/// Blocks beyond the size of a row that may be missing before another; a greater leap is no number of this link.
const MOST_MISSING: u64 = 1024;

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Takes what the transport reports, up to the budget.
    pub(super) fn poll_transport(&mut self, pipes: &mut impl PrivatePipes) -> u32 {
        let mut worked = 0;
        while worked < BUDGET as u32 {
            let Some(completion) = self.transport.poll_completion() else {
                self.fail_refused(pipes);
                break;
            };
            worked += 1;
            match completion {
                Completion::Sent { peer, block } => self.sent(self.links.slot(peer), block, false),
                Completion::Failed { peer, block } => self.sent(self.links.slot(peer), block, true),
                Completion::Received { peer, block } => self.arrived(peer, block, pipes),
                Completion::Unused { block, .. } => self.unpost(block),
                Completion::PeerFailed { peer, .. } => self.peer_failed(self.links.slot(peer), pipes),
                Completion::PeerRestored { peer, session } => {
                    self.peer_restored(self.links.slot(peer), session)
                }
            }
        }
        worked
    }

    /// Links on which the transport has refused a block for good have failed. Not before all is taken that it gives back, since
    /// that left before what still waits here.
    fn fail_refused(&mut self, pipes: &mut impl PrivatePipes) {
        if core::mem::take(&mut self.control.refused) {
            for node in (0..self.peers.len()).map(Slot::from_index) {
                if self.peers.get(node.index()).is_some_and(|p| p.refused) {
                    self.peer_failed(node, pipes);
                }
            }
        }
    }

    fn arrived(&mut self, peer: NodeId, block: ArrivedBlock, pipes: &mut impl PrivatePipes) {
        let node = peer;
        let peer = self.links.slot(node);
        if peer == Slot::NONE {
            // There is no link in this routing; its owner gets it back.
            self.look_at_stranger(node, &block, pipes);
            self.note_malformed(node, Malformed::Address, pipes);
            self.return_to(node, block);
            return;
        }
        if let Some(index) = self.umb.index_of(&block) {
            self.note_filled(peer, index);
        }
        match self.admit(peer, &block) {
            Err(reason) => {
                self.note_malformed(node, reason, pipes);
                self.give_back(peer, block);
            }
            Ok(Admitted::Stale) => {
                self.counters.stale += 1;
                self.give_back(peer, block);
            }
            Ok(Admitted::Control(round)) => {
                self.requested(peer, wanted(&block));
                self.read_control(node, &block, round, pipes);
                self.give_back(peer, block);
            }
            Ok(Admitted::Data) if !self.has_element(peer) => {
                self.settle(peer, 1);
                self.note_malformed(node, Malformed::Overrun, pipes);
                self.give_back(peer, block);
            }
            Ok(Admitted::Data) => {
                let wanted = wanted(&block);
                self.hold(peer, block);
                self.route_row(peer, pipes);
                self.requested(peer, wanted);
            }
        }
    }

    /// Checks a block against its link, and takes the credit it carries. The block is settled unless it is admitted.
    fn admit(&mut self, from: Slot, block: &ArrivedBlock) -> Result<Admitted, Malformed> {
        let bytes = block.bytes();
        let header = &self.read_header(from, bytes).inspect_err(|_| self.note_unreadable(from))?;
        if !self.take_turn(from, header).inspect_err(|_| self.note_unreadable(from))? {
            return Ok(Admitted::Stale);
        }
        let data = header.class() != BlockClass::Control;
        if data && self.peers.get(from.index()).is_some_and(|p| p.down) {
            // The peer does not know that one of the two is no member. It learns that its messages are in doubt by the end of
            // the link.
            self.settle(from, 1);
            self.transport.disconnect(self.links.node(from));
            return Ok(Admitted::Stale);
        }
        let body = bytes.get(BLOCK_HEADER..BLOCK_HEADER + header.length()).unwrap_or(&[]);
        let node = self.links.node(from);
        if data && self.peers.get(from.index()).is_none_or(|p| p.accord != Accord::Alike) {
            // It has no credit before its settings are known.
            self.settle(from, 1);
            return Err(Malformed::Overrun);
        }
        if !self.capabilities.trusted
            && let Err(reason) = check_body(header, body, |via| self.links.way(via, node))
        {
            self.settle(from, u64::from(data));
            if !data {
                self.note_missed(from);
            }
            return Err(reason);
        }
        Ok(if data { Admitted::Data } else { Admitted::Control(header.round()) })
    }

    fn read_header(&self, from: Slot, bytes: &[u8]) -> Result<BlockHeader, Malformed> {
        let header = BlockHeader::read(bytes)?;
        if header.source() != Some(self.links.node(from)) || header.dest() != Some(self.config.node) {
            return Err(Malformed::Address);
        }
        Ok(header)
    }

    /// Compares the block's numbers with those expected. `false`: it was here before, or is of another session.
    ///
    /// Blocks that are missing were refused as unreadable, or lost by a transport that broke its contract. How many of them
    /// needed credit the numbers tell; these are settled now.
    fn take_turn(&mut self, from: Slot, header: &BlockHeader) -> Result<bool, Malformed> {
        let posted = self.is_posted_link(from);
        let most = u64::from(self.config.row) + MOST_MISSING;
        let peer = self.peers.get_mut(from.index()).ok_or(Malformed::Address)?;
        if header.session() != peer.session {
            return Ok(false);
        }
        let Some(missing) = header.sequence().checked_sub(peer.received) else { return Ok(false) };
        let missing_data = u64::from(header.data.get().wrapping_sub(peer.data_received as u32));
        if missing > most || missing_data > missing {
            return Err(Malformed::Sequence);
        }
        self.counters.out_of_sequence += missing.saturating_sub(peer.unread);
        peer.unread = 0;
        peer.received = header.sequence() + 1;
        peer.data_received += missing_data + u64::from(header.class() != BlockClass::Control);
        peer.window = header.window.get();
        if posted {
            peer.data_acked = header.released.get().clamp(peer.data_acked, peer.data_sent);
        }
        self.settle(from, missing_data);
        if missing > missing_data {
            self.note_missed(from);
        }
        Ok(true)
    }

    /// A block whose numbers cannot be read: the peer is asked for a control block, whose numbers will tell what this one was.
    fn note_unreadable(&mut self, from: Slot) {
        if let Some(peer) = self.peers.get_mut(from.index()) {
            peer.unread += 1;
            if peer.accord == Accord::Unlike {
                // It may have asked for the settings of this node.
                return self.note_probe(from);
            }
        }
        self.tell(self.links.node(from), crate::mesp::Control::Probe);
    }

    /// Data blocks that are done with and did not enter RM: their credit is the peer's again.
    fn settle(&mut self, from: Slot, blocks: u64) {
        self.counters.blocks_delivered += blocks;
        if let Some(peer) = self.peers.get_mut(from.index()) {
            peer.released += blocks;
            peer.delivered += blocks;
        }
    }

    pub(super) fn note_malformed(&mut self, peer: NodeId, reason: Malformed, pipes: &mut impl PrivatePipes) {
        if let Some(entry) = self.peers.get_mut(self.links.slot(peer).index()) {
            entry.malformed += 1;
        }
        self.counters.malformed += 1;
        pipes.event(Event::Malformed { peer, reason });
    }

    /// Returns a block to its owner: the peer, or with posted arrival the transport for the next one.
    pub(super) fn give_back(&mut self, peer: Slot, block: ArrivedBlock) {
        match self.umb.take_back(block) {
            Ok(index) => self.repost(peer, index),
            Err(_) if self.is_posted_link(peer) => self.counters.foreign_tokens += 1,
            Err(block) => self.return_to(self.links.node(peer), block),
        }
    }

    fn return_to(&mut self, peer: NodeId, block: ArrivedBlock) {
        if let Err(refused) = self.transport.submit(Op::Return { peer, block }) {
            // Contract: a return is refused only when the peer has failed, and then its memory is the transport's concern.
            self.counters.lost_returns += 1;
            if !matches!(refused.op, Op::Return { .. }) {
                self.handed_back(refused.op);
            }
        }
    }

    /// The transport has handed back another block than the one that it refused. Its token says whose it is: one of ours goes where its
    /// own row of UMBInfo-Tab says, any other is dropped.
    #[cold]
    pub(super) fn handed_back(&mut self, op: Op) {
        match op {
            Op::Send { peer, block } => {
                self.counters.foreign_tokens += u64::from(self.umb.index_of(&block).is_some());
                self.sent(self.links.slot(peer), block, true);
            }
            Op::Recv { block, .. } => {
                self.counters.foreign_tokens += u64::from(self.umb.index_of(&block).is_some());
                self.unpost(block);
            }
            Op::Return { block, .. } => {
                // A peer's block has no other way back than the one that it was given by.
                self.counters.foreign_tokens += 1;
                if let Ok(index) = self.umb.take_back(block) {
                    self.note_unposted(index);
                    self.umb.give(index);
                }
            }
        }
    }

    /// The transport does not take blocks for the peer, and will not: the link counts as failed from the next poll on.
    pub(super) fn give_up(&mut self, node: Slot) {
        if let Some(peer) = self.peers.get_mut(node.index()) {
            peer.refused = true;
            self.control.refused = true;
        }
    }

    fn peer_failed(&mut self, node: Slot, pipes: &mut impl PrivatePipes) {
        let Some(peer) = self.peers.get_mut(node.index()) else { return };
        let (had_failed, was_gone) = (peer.failed, peer.is_gone());
        let id = self.links.node(node);
        let ended = self.transport.has_ended(id);
        if had_failed && !ended {
            return;
        }
        // That the peer has ended may become known when the link is down already.
        self.control.stirred = true;
        self.agreement.link_down(self.control.now, id, ended);
        self.control.tick_at = Some(self.control.now);
        if had_failed {
            return;
        }
        peer.fail();
        if was_gone {
            // It has given nothing up, but for what comes back of the transport now; the peer may have sent before this node could.
            self.stop_streams(node, pipes);
            self.set_aside(node);
            self.empty_control(node);
        } else {
            self.leave_peer(node, pipes);
        }
    }

    /// The link is up again. Rows get space as at the start; deliveries of the old link, and blocks on their way back to their
    /// writers, keep theirs until they are released.
    fn peer_restored(&mut self, node: Slot, session: u32) {
        let failed = self.peers.get_mut(node.index()).filter(|p| p.failed && node != self.own);
        let Some(peer) = failed else { return };
        peer.renew(session);
        let down = peer.down;
        self.agreement.link_up(self.control.now, self.links.node(node));
        self.control.tick_at = Some(self.control.now);
        if let Some(row) = self.recv_rows.get_mut(node.index()) {
            row.old = row.space.used();
        }
        self.control.stirred = true;
        // Control messages need no credit, but room to arrive in.
        if self.is_posted_link(node) {
            self.post(node);
        }
        if !down {
            self.tell(self.links.node(node), crate::mesp::Control::Welcome);
        }
    }

    /// Of blocks, and of credit for what arrives in place: what a link needs to carry anything at all.
    fn least(&self, node: Slot) -> (u32, u32) {
        if self.is_posted_link(node) { (1 + 1 + SPARE_POSTS, 0) } else { (1, 1) }
    }

    /// While a link is down, what it needs is kept from other rows, if it may come up again.
    pub(super) fn set_aside(&mut self, node: Slot) {
        let (blocks, credit) = self.least(node);
        if self.transport.restores_links()
            && let Some(peer) = self.peers.get_mut(node.index())
            && !core::mem::replace(&mut peer.aside, true)
        {
            self.blocks_aside += blocks;
            self.credit_aside += credit;
        }
    }

    /// Gives the rows of a restored link space, as far as there is some. A row that got none, since readers or writers keep its
    /// blocks, is seen to at the next interval.
    pub(super) fn furnish(&mut self, node: Slot) {
        let (blocks, credit) = self.least(node);
        if let Some(peer) = self.peers.get_mut(node.index())
            && core::mem::take(&mut peer.aside)
        {
            self.blocks_aside -= blocks;
            self.credit_aside -= credit;
        }
        let initial = self.config.initial;
        let real = self.send_rows.get(node.index()).map_or(0, |r| r.space.real());
        let more = self.free_for_rows().max(u32::from(real == 0));
        self.grow_send(node, initial.saturating_sub(real).min(more));
        let posted = self.is_posted_link(node);
        let window = self.recv_rows.get(node.index()).map_or(0, RecvRow::window);
        let more = if posted { self.free_for_rows() } else { self.free_credit() }.max(u32::from(window == 0));
        let more = if posted { more } else { more.min(self.credit) };
        if let Some(row) = self.recv_rows.get_mut(node.index()) {
            let before = row.space.real();
            row.space.grow(initial.saturating_sub(window).min(more));
            if !posted {
                self.credit -= row.space.real() - before;
            }
        }
        if posted {
            self.post(node);
        }
        self.grown = true;
        let send = self.send_rows.get(node.index()).is_some_and(|r| r.space.real() > 0);
        let recv = self.recv_rows.get(node.index());
        let recv = recv.is_some_and(|r| r.window() > 0 && (!posted || r.posted > SPARE_POSTS));
        if !send || !recv {
            // What it lacks is with readers and writers still; no other row shall have it when it comes back.
            self.set_aside(node);
        }
    }

    /// Blocks that rows may grow by.
    pub(super) fn free_for_rows(&self) -> u32 {
        self.umb.free().saturating_sub(self.blocks_aside)
    }

    /// Credit, for blocks that arrive in place, that rows may grow by.
    pub(super) fn free_credit(&self) -> u32 {
        self.credit.saturating_sub(self.credit_aside)
    }
}

/// Credit that the sender of a block could use.
fn wanted(block: &ArrivedBlock) -> u32 {
    BlockHeader::read_from_prefix(block.bytes()).map_or(0, |(header, _)| header.wanted.get().into())
}

enum Admitted {
    Data,
    /// In this round.
    Control(u32),
    /// Of another session, seen before, or from a node that is no member.
    Stale,
}

/// Checks what the readers of an untrusted peer's block rely on: every CDU is whole, there are as many messages as the
/// header says, all for the part that it names if it names one, and in a block of a stream just one; and that what goes by a
/// relay is on its way.
fn check_body(header: &BlockHeader, body: &[u8], way: impl Fn(Option<Via>) -> Way) -> Result<(), Malformed> {
    let stream = header.class() == BlockClass::Stream;
    let one_part = stream || header.has(flag::UNIFORM);
    let mut messages = 0u64;
    for train in Cdus::new(body) {
        let train = train?;
        messages += u64::from(train.count());
        if one_part && train.dest_part() != Some(header.part.get()) {
            return Err(Malformed::Field);
        }
        if train.via().is_some() {
            if header.has(flag::UNIFORM) || header.class() == BlockClass::Control {
                return Err(Malformed::Field);
            }
            if let Way::None = way(train.via()) {
                return Err(Malformed::Relay);
            }
        }
    }
    if messages != u64::from(header.messages()) || (stream && messages != 1) {
        return Err(Malformed::Length);
    }
    Ok(())
}
