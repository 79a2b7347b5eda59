//! Arrivals from peers: checks blocks against their link, and takes over the numbers and credit they carry; fails and restores
//! links.

use zerocopy::FromBytes;

use super::link::{Label, MAX_MISSING, Missing, Work};
use super::relaying::NextHop;
use super::{BUDGET, Engine, Event, PrivatePipes};
use crate::cdu::{BLOCK_HEADER, BlockClass, BlockHeader, Cdus, Malformed, Via, flag};
use crate::id::NodeId;
use crate::mesp::Control;
use crate::policy::SpacePolicy;
use crate::routing::LinkId;
use crate::transport::{Completion, Op, Transport};
use crate::umb::{ArrivedBlock, BlockMemory};

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Takes completions from the transport, up to the budget.
    pub(super) fn poll_transport(&mut self, pipes: &mut impl PrivatePipes) -> u32 {
        let (mut worked, mut looks_again) = (0, core::mem::take(&mut self.budget_spent));
        while worked < BUDGET as u32 {
            let Some(completion) = self.transport.poll_completion() else {
                // A poll that did something will be followed by another; one that did nothing may be the last for a long time.
                if core::mem::take(&mut looks_again) && worked == 0 {
                    continue;
                }
                if self.links.have_work() {
                    self.fail_refused(pipes);
                }
                break;
            };
            worked += 1;
            match completion {
                Completion::Sent { peer, block } => self.on_send_complete(self.links.id(peer), block, false),
                Completion::Failed { peer, block } => self.on_unsent(self.links.id(peer), block),
                Completion::Received { peer, block } => self.on_arrival(peer, block, pipes),
                Completion::Unused { block, .. } => _ = self.unpost(block),
                Completion::PeerFailed { peer, .. } => self.link_failed(self.links.id(peer), pipes),
                Completion::PeerRestored { peer, session } => {
                    self.link_restored(self.links.id(peer), session)
                }
            }
        }
        self.budget_spent = worked == BUDGET as u32;
        worked
    }

    /// Fails links on which the transport has refused a block for good. This waits until everything that the transport gives back
    /// has been taken, since those blocks left before any still queued here.
    #[inline(never)]
    fn fail_refused(&mut self, pipes: &mut impl PrivatePipes) {
        let mut failed = self.links.first_with(Work::FAIL);
        while let Some(id) = failed {
            self.link_failed(id, pipes);
            failed = self.links.next_with(id, Work::FAIL);
        }
    }

    fn on_arrival(&mut self, peer: NodeId, block: ArrivedBlock, pipes: &mut impl PrivatePipes) {
        let id = self.links.id(peer);
        if id == LinkId::NONE {
            return self.refuse_unlinked(peer, block, pipes);
        }
        if let Some(index) = self.umb.index_of(&block) {
            self.on_filled(id, index);
        }
        match self.admit(id, &block) {
            Ok(Admitted::Data { label, wanted }) => {
                self.receive_block(id, (label, wanted), block, pipes);
            }
            other => self.handle_non_data(id, other, block, pipes),
        }
    }

    /// Reads a control block, or records why a block was not admitted, and returns it.
    #[inline(never)]
    fn handle_non_data(
        &mut self,
        id: LinkId,
        what: Result<Admitted, Malformed>,
        block: ArrivedBlock,
        pipes: &mut impl PrivatePipes,
    ) {
        match what {
            Ok(Admitted::Control { round, wanted }) => {
                self.record_demand(id, wanted);
                self.read_control(id, round, &block, pipes);
            }
            Ok(Admitted::Data { .. } | Admitted::Stale) => self.counters.stale += 1,
            Err(reason) => self.report_malformed(self.links.peer(id), reason, pipes),
        }
        self.return_block(id, block);
    }

    /// This topology has no link to the peer: returns its block.
    #[cold]
    fn refuse_unlinked(&mut self, peer: NodeId, block: ArrivedBlock, pipes: &mut impl PrivatePipes) {
        self.inspect_unlinked(peer, &block, pipes);
        self.report_malformed(peer, Malformed::Address, pipes);
        self.return_to(peer, block);
    }

    /// Checks a block against its link, and takes the credit that it carries. A block that is not admitted is settled.
    #[inline(always)]
    fn admit(&mut self, id: LinkId, block: &ArrivedBlock) -> Result<Admitted, Malformed> {
        let Some(mut link) = self.links.data_mut(id) else { return Err(Malformed::Address) };
        let bytes = block.bytes();
        fetch(bytes);
        // A single copy of the header, checked and used in place.
        let Ok((header, body)) = BlockHeader::read_from_prefix(bytes) else {
            return Err(self.record_unreadable(id, Malformed::Truncated));
        };
        if let Err(reason) = check_header(&header, body, link.peer, self.config.node) {
            return Err(self.record_unreadable(id, reason));
        }
        if header.session() != link.session {
            return Ok(Admitted::Stale);
        }
        let most = u64::from(self.config.row) + MAX_MISSING;
        match link.numbers.accept(&header, link.posted, most) {
            Ok(Some(Missing::NOTHING)) => {}
            Ok(Some(missing)) => {
                self.record_missing(id, missing);
                let Some(again) = self.links.data_mut(id) else { return Err(Malformed::Address) };
                link = again;
            }
            Ok(None) => return Ok(Admitted::Stale),
            Err(reason) => return Err(self.record_unreadable(id, reason)),
        }
        let data = header.class() != BlockClass::Control;
        if data && !link.state.takes_data() {
            return self.refuse_data(id);
        }
        let (peer, has_element) = (link.peer, link.recv.has_element());
        if !self.capabilities.trusted {
            let body = bytes.get(BLOCK_HEADER..BLOCK_HEADER + header.length()).unwrap_or(&[]);
            let topology = self.links.topology;
            if let Err(reason) = check_body(&header, body, |via| topology.next_hop(via, peer)) {
                if data {
                    self.settle(id, 1);
                } else {
                    self.on_missed_control(id);
                }
                return Err(reason);
            }
        }
        if data && !has_element {
            self.settle(id, 1);
            return Err(Malformed::Overrun);
        }
        let wanted = header.wanted.get().into();
        if !data {
            return Ok(Admitted::Control { round: header.round(), wanted });
        }
        Ok(Admitted::Data { label: Label::of(&header), wanted })
    }

    /// Refuses data from a peer that is not a member or whose settings are not known.
    #[cold]
    fn refuse_data(&mut self, id: LinkId) -> Result<Admitted, Malformed> {
        let Some(link) = self.links.get(id) else { return Err(Malformed::Address) };
        let (is_member, peer) = (link.state.is_member(), link.peer);
        self.settle(id, 1);
        if is_member {
            // A peer has no credit until its settings are known.
            return Err(Malformed::Overrun);
        }
        // The peer does not know yet that one of the two is not a member. It learns from the end of the link that the fate of its
        // messages is uncertain.
        self.transport.disconnect(peer);
        Ok(Admitted::Stale)
    }

    /// Records that blocks before this one are missing: their data is lost, and control messages are requested again.
    #[cold]
    fn record_missing(&mut self, id: LinkId, missing: Missing) {
        self.counters.out_of_sequence += missing.unexplained;
        self.counters.blocks_delivered += missing.data;
        if missing.control > 0 {
            self.on_missed_control(id);
        }
    }

    /// Counts an unreadable block, and asks the peer for a control block, whose numbers reveal what was lost.
    #[cold]
    fn record_unreadable(&mut self, id: LinkId, reason: Malformed) -> Malformed {
        if let Some(link) = self.links.get_mut(id) {
            link.numbers.unread += 1;
            if link.state.is_incompatible() {
                // The block may have asked for this node's settings.
                link.on_probe();
            } else {
                self.queue_control(id, Control::Probe);
            }
        }
        reason
    }

    /// Gives the peer back the credit of data blocks that did not enter RM.
    fn settle(&mut self, id: LinkId, blocks: u64) {
        self.counters.blocks_delivered += blocks;
        if let Some(link) = self.links.get_mut(id) {
            link.numbers.settle(blocks);
        }
    }

    /// Records how much credit the peer could use, and asks the policy whether to grant more.
    fn record_demand(&mut self, id: LinkId, wanted: u32) {
        if self.links.get_mut(id).is_some_and(|link| link.recv.record_wanted(wanted)) {
            self.extend_recv(id, SpacePolicy::at_request);
        }
    }

    #[cold]
    pub(super) fn report_malformed(
        &mut self,
        peer: NodeId,
        reason: Malformed,
        pipes: &mut impl PrivatePipes,
    ) {
        self.counters.malformed += 1;
        pipes.event(Event::Malformed { peer, reason });
    }

    /// Returns a block to its owner: the peer or, with posted arrival, the transport, for the next block.
    #[inline]
    pub(super) fn return_block(&mut self, id: LinkId, block: ArrivedBlock) {
        if self.umb.index_of(&block).is_none() && !self.links.is_posted(id) {
            return self.return_to(self.links.peer(id), block);
        }
        match self.umb.reclaim(block) {
            Ok(index) => self.repost(id, index),
            Err(_) => self.counters.foreign_tokens += 1,
        }
    }

    #[inline(always)]
    pub(super) fn return_to(&mut self, peer: NodeId, block: ArrivedBlock) {
        if let Err(refused) = self.transport.submit(Op::Return { peer, block }) {
            // By contract, a return is refused only if the peer has failed; the block's memory is then the transport's concern.
            self.counters.lost_returns += 1;
            if !matches!(refused.op, Op::Return { .. }) {
                self.reclaim_op(refused.op);
            }
        }
    }

    /// Handles a transport that hands back a different block than the one it refused. A block of this node goes where its row of
    /// UMBInfo-Tab assigns it; any other is dropped.
    #[cold]
    pub(super) fn reclaim_op(&mut self, op: Op) {
        match op {
            Op::Send { peer, block } => {
                self.counters.foreign_tokens += u64::from(self.umb.index_of(&block).is_some());
                self.on_unsent(self.links.id(peer), block);
            }
            Op::Recv { block, .. } => {
                self.counters.foreign_tokens += u64::from(self.umb.index_of(&block).is_some());
                let link = self.unpost(block);
                self.post_again(link);
            }
            Op::Return { block, .. } => {
                // A peer's block can be returned only by the operation that carries it.
                self.counters.foreign_tokens += 1;
                if let Ok(index) = self.umb.reclaim(block) {
                    let link = self.on_unposted(index);
                    self.umb.give(index);
                    self.post_again(link);
                }
            }
        }
    }

    /// The transport accepts no more blocks for the peer: the link fails at the next poll.
    pub(super) fn schedule_link_failure(&mut self, id: LinkId) {
        self.links.mark(id, Work::FAIL);
    }

    #[cold]
    fn link_failed(&mut self, id: LinkId, pipes: &mut impl PrivatePipes) {
        let Some(link) = self.links.get_mut(id) else { return };
        let (was_down, was_up, peer) = (link.state.is_down(), link.is_up(), link.peer);
        let ended = self.transport.has_ended(peer);
        if was_down && !ended {
            return;
        }
        if !was_down {
            link.fail();
        }
        // That the peer has ended may become known only after the link went down.
        self.agreement.link_down(self.now, peer, ended);
        self.wake_agreement();
        if was_up {
            self.close_link(id, pipes);
        } else {
            if !was_down {
                // Nothing was queued for the peer, but data from it may have arrived before it was welcomed here.
                self.stop_streams(id, pipes);
                self.fail_rooms(id);
                self.reserve_space(id);
                self.clear_control(id);
            }
            self.on_link_lost();
        }
        self.vacate_unused(id);
    }

    /// Restores a link that is up again. The rows get their initial space. Deliveries of the old link, and blocks being returned
    /// to their writers, keep theirs until they are released.
    #[cold]
    fn link_restored(&mut self, id: LinkId, session: u32) {
        let own = self.links.own;
        let failed = self.links.get_mut(id).filter(|link| link.state.is_down() && id != own);
        let Some(link) = failed else { return };
        link.restore(session);
        let (peer, posted, mut member) = (link.peer, link.posted, link.state.is_member());
        self.links.unmark(id, Work::FAIL);
        self.agreement.link_up(self.now, peer, self.transport.life(peer));
        if self.config.is_open()
            && let Some(link) = self.links.get_mut(id)
        {
            // A different process may have taken the place.
            member = self.agreement.has_membership() && self.agreement.is_linked_member(peer);
            link.state.set_member(member);
        }
        self.wake_agreement();
        // Control messages need no credit, but they need blocks to arrive in.
        if posted {
            self.post(id);
        }
        if member {
            self.queue_control(id, Control::Welcome);
        }
    }
}

/// An admitted block, with the amount of credit that its sender could use.
enum Admitted {
    Data {
        label: Label,
        wanted: u32,
    },
    Control {
        round: u32,
        wanted: u32,
    },
    /// The block belongs to another session, is a duplicate, or comes from a non-member.
    Stale,
}

/// Prefetches the lines behind a block's header. Fetching a line written by another core takes about as long as all the
/// processing of a block here, and without the prefetch the lines would be waited for one by one.
#[inline(always)]
fn fetch(bytes: &[u8]) {
    const LINE: usize = 64;
    let Some(last) = bytes.len().checked_sub(1) else { return };
    let [a, b, c, d] = [1, 2, 3, 4].map(|line| bytes.get(last.min(line * LINE)).copied().unwrap_or(0));
    // Loads whose results nothing waits for.
    core::hint::black_box(a ^ b ^ c ^ d);
}

/// Checks the header of a block from one node to another.
#[inline]
fn check_header(header: &BlockHeader, body: &[u8], from: NodeId, to: NodeId) -> Result<(), Malformed> {
    header.check(body)?;
    if (header.source.get(), header.dest.get()) != (from.raw(), to.raw()) {
        return Err(Malformed::Address);
    }
    Ok(())
}

/// Checks what readers of an untrusted peer's block rely on: every CDU is whole; the number of messages matches the header; if
/// the header names a part, all messages are for it; a stream block has exactly one CDU; and relayed CDUs are on their route.
fn check_body(
    header: &BlockHeader,
    body: &[u8],
    next_hop: impl Fn(Option<Via>) -> NextHop,
) -> Result<(), Malformed> {
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
            if let NextHop::Invalid = next_hop(train.via()) {
                return Err(Malformed::Relay);
            }
        }
    }
    if messages != u64::from(header.messages()) || (stream && messages != 1) {
        return Err(Malformed::Length);
    }
    Ok(())
}
