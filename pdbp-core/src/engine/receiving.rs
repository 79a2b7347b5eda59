//! The receiving half: arrivals, RM, and PipeM, which routes blocks to private pipes.

use zerocopy::FromBytes;

use super::{BUDGET, Delivery, DeliveryKind, Engine, Event, PrivatePipes};
use crate::cdu::{BLOCK_HEADER, BlockClass, BlockHeader, Cdus, Malformed, flag};
use crate::id::{NodeId, PipeId, StreamNo};
use crate::pipe::StreamMapping;
use crate::policy::{Growth, SpacePolicy};
use crate::transport::{Arrival, Completion, Op, Reason, Transport};
use crate::umb::{ArrivedBlock, BlockMemory, BlockState, NIL, VacantBlock};

/// With posted arrival: blocks that each row posts beyond its credit, for control messages.
pub(super) const SPARE_POSTS: u32 = 2;
/// Blocks beyond the size of a row that may be missing before another; a greater leap is no number of this link.
const MOST_MISSING: u64 = 1024;

/// An element of RM: an arrived block and who still needs it.
#[derive(Debug)]
pub struct Element {
    block: Option<ArrivedBlock>,
    /// Deliveries that are out, and one while the block is not routed to its end.
    readers: u32,
    /// Next of the list that the element is in (free or pending).
    next: u32,
    /// Where routing goes on: offset in the body, and parts of a destination set that have their delivery.
    at: usize,
    served: usize,
}

impl Default for Element {
    fn default() -> Self {
        Self { block: None, readers: 0, next: NIL, at: 0, served: 0 }
    }
}

/// How far routing of a block came.
enum Routed {
    Done,
    /// A private pipe was full.
    Blocked,
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Takes what the transport reports, up to the budget.
    pub(super) fn poll_transport(&mut self, pipes: &mut impl PrivatePipes) -> u32 {
        let mut worked = 0;
        if let Some(node) = self.control.failing.take() {
            self.peer_failed(node, pipes);
        }
        while worked < BUDGET as u32 {
            let Some(completion) = self.transport.poll_completion() else { break };
            worked += 1;
            match completion {
                Completion::Sent { peer, block } => self.sent(peer, block, false),
                Completion::Failed { peer, block } => self.sent(peer, block, true),
                Completion::Received { peer, block } => self.arrived(peer, block, pipes),
                Completion::Unused { peer, block } => self.unpost(peer, block),
                Completion::PeerFailed { peer, .. } => self.peer_failed(peer, pipes),
            }
        }
        worked
    }

    /// Takes back a delivery. When it was the last of its block, the block goes back to its owner.
    pub fn release(&mut self, delivery: Delivery) {
        let node = NodeId::from_index(usize::from(delivery.row));
        let held = self.rm.get(self.element(node, delivery.element)).and_then(|slot| slot.block.as_ref());
        if !held.is_some_and(|block| delivery.is_of(block, (node, delivery.element))) {
            self.counters.foreign_tokens += 1;
            return;
        }
        self.tokens -= 1;
        self.drop_reader(node, delivery.element);
    }

    fn arrived(&mut self, peer: NodeId, block: ArrivedBlock, pipes: &mut impl PrivatePipes) {
        if let Some(row) = self.recv_rows.get_mut(peer.index()) {
            row.posted = row.posted.saturating_sub(1);
        }
        match self.admit(peer, &block) {
            Err(reason) => {
                self.note_malformed(peer, reason, pipes);
                self.give_back(peer, block);
            }
            Ok(Admitted::Stale) => {
                self.counters.stale += 1;
                self.give_back(peer, block);
            }
            Ok(Admitted::Control) => {
                self.read_control(peer, &block, pipes);
                self.give_back(peer, block);
            }
            Ok(Admitted::Data) if !self.has_element(peer) => {
                self.settle(peer, 1);
                self.note_malformed(peer, Malformed::Overrun, pipes);
                self.give_back(peer, block);
            }
            Ok(Admitted::Data) => {
                self.hold(peer, block);
                self.route_row(peer, pipes);
            }
        }
    }

    /// Checks a block against its link, and takes the credit it carries. The block is settled unless it is admitted.
    fn admit(&mut self, from: NodeId, block: &ArrivedBlock) -> Result<Admitted, Malformed> {
        let bytes = block.bytes();
        let header = self.read_header(from, bytes).inspect_err(|_| self.note_unreadable(from))?;
        if !self.take_turn(from, header).inspect_err(|_| self.note_unreadable(from))? {
            return Ok(Admitted::Stale);
        }
        let data = header.class() != BlockClass::Control;
        if header.epoch() != self.config.epoch {
            self.settle(from, u64::from(data));
            return Ok(Admitted::Stale);
        }
        let body = bytes.get(BLOCK_HEADER..BLOCK_HEADER + header.length()).unwrap_or(&[]);
        if !self.capabilities.trusted
            && let Err(reason) = check_body(header, body)
        {
            self.settle(from, u64::from(data));
            return Err(reason);
        }
        Ok(if data { Admitted::Data } else { Admitted::Control })
    }

    fn read_header<'b>(&self, from: NodeId, bytes: &'b [u8]) -> Result<&'b BlockHeader, Malformed> {
        let header = BlockHeader::read(bytes)?;
        if header.source() != Some(from) || header.dest() != Some(self.config.node) {
            return Err(Malformed::Address);
        }
        Ok(header)
    }

    /// Compares the block's numbers with those expected. `false`: it was here before.
    ///
    /// Blocks that are missing were refused as unreadable, or lost by a transport that broke its contract. How many of them
    /// needed credit the numbers tell; these are settled now.
    fn take_turn(&mut self, from: NodeId, header: &BlockHeader) -> Result<bool, Malformed> {
        let posted = self.capabilities.arrival == Arrival::Posted;
        let most = u64::from(self.config.row) + MOST_MISSING;
        let peer = self.peers.get_mut(from.index()).ok_or(Malformed::Address)?;
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
        Ok(true)
    }

    /// A block whose numbers cannot be read: the peer is asked for another one, whose numbers will tell what this one was.
    fn note_unreadable(&mut self, from: NodeId) {
        if let Some(peer) = self.peers.get_mut(from.index()) {
            peer.unread += 1;
        }
        self.tell(from, crate::mesp::Control::Probe);
    }

    /// Data blocks that are done with and did not enter RM: their credit is the peer's again.
    fn settle(&mut self, from: NodeId, blocks: u64) {
        self.counters.blocks_delivered += blocks;
        if let Some(peer) = self.peers.get_mut(from.index()) {
            peer.released += blocks;
            peer.delivered += blocks;
        }
    }

    fn note_malformed(&mut self, peer: NodeId, reason: Malformed, pipes: &mut impl PrivatePipes) {
        if let Some(entry) = self.peers.get_mut(peer.index()) {
            entry.malformed += 1;
        }
        self.counters.malformed += 1;
        pipes.event(Event::Malformed { peer, reason });
    }

    /// Returns a block to its owner: the peer, or with posted arrival the transport for the next one.
    fn give_back(&mut self, peer: NodeId, block: ArrivedBlock) {
        if self.capabilities.arrival == Arrival::Posted {
            self.repost(peer, VacantBlock { raw: block.raw });
            return;
        }
        if self.transport.submit(Op::Return { peer, block }).is_err() {
            // Contract: a return is refused only when the peer has failed, and then its memory is the transport's concern.
            self.counters.lost_returns += 1;
        }
    }

    /// Puts an arrived block into a free element of its row.
    pub(super) fn hold(&mut self, node: NodeId, block: ArrivedBlock) {
        let Some(row) = self.recv_rows.get_mut(node.index()) else { return };
        let element = row.free;
        let at = node.index() * self.config.row as usize + element as usize;
        let Some(slot) = self.rm.get_mut(at) else { return };
        row.free = slot.next;
        row.blocks += 1;
        if let Ok((header, _)) = BlockHeader::ref_from_prefix(block.bytes()) {
            row.bytes += header.length() as u64;
            row.messages += u64::from(header.messages());
        }
        let critical = row.space.take();
        *slot = Element { block: Some(block), readers: 1, next: NIL, at: 0, served: 0 };
        let tail = core::mem::replace(&mut row.pending.tail, element);
        row.pending.len += 1;
        if tail == NIL {
            row.pending.head = element;
        } else if let Some(last) = self.rm.get_mut(node.index() * self.config.row as usize + tail as usize) {
            last.next = element;
        }
        if node == self.config.node {
            return;
        }
        // As full as the peer may make it with messages: one element of four and more is kept for commands.
        let full =
            self.recv_rows.get(node.index()).is_some_and(|r| r.space.vacant() <= super::kept(r.space.real()));
        if critical {
            self.extend_recv(node, SpacePolicy::at_critical);
        }
        if full {
            if let Some(row) = self.recv_rows.get_mut(node.index()) {
                row.stalls += 1;
            }
            self.extend_recv(node, SpacePolicy::at_stall);
        }
    }

    pub(super) fn has_element(&self, node: NodeId) -> bool {
        self.recv_rows.get(node.index()).is_some_and(|r| r.free != NIL)
    }

    pub(super) fn link_elements(&mut self, node: NodeId) {
        let size = self.config.row;
        for i in 0..size {
            let at = self.element(node, i);
            if let Some(slot) = self.rm.get_mut(at) {
                slot.next = if i + 1 < size { i + 1 } else { NIL };
            }
        }
        if let Some(row) = self.recv_rows.get_mut(node.index()) {
            row.free = 0;
        }
    }

    /// Goes on with the blocks that found a private pipe full.
    pub(super) fn route_pending(&mut self, pipes: &mut impl PrivatePipes) -> u32 {
        let mut worked = 0;
        for node in (0..self.recv_rows.len()).map(NodeId::from_index) {
            if self.recv_rows.get(node.index()).is_some_and(|r| r.pending.len > 0) {
                worked += self.route_row(node, pipes);
            }
        }
        worked
    }

    /// PipeM: routes the arrived blocks of a row, oldest first, until one does not find room.
    pub(super) fn route_row(&mut self, node: NodeId, pipes: &mut impl PrivatePipes) -> u32 {
        let mut worked = 0;
        loop {
            let Some(row) = self.recv_rows.get(node.index()) else { return worked };
            let element = row.pending.head;
            let at = self.element(node, element);
            if row.pending.len == 0 {
                if worked > 0 && self.has_failed(node) {
                    self.end_streams_of(node, pipes);
                }
                return worked;
            }
            let Some(slot) = self.rm.get_mut(at) else { return worked };
            let Some(block) = slot.block.take() else { return worked };
            let mut routing = Routing { node, element, at: slot.at, served: slot.served, readers: 0 };
            let outcome = self.route(&block, &mut routing, pipes);
            self.tokens += u64::from(routing.readers);
            let Some(slot) = self.rm.get_mut(at) else { return worked };
            slot.block = Some(block);
            (slot.at, slot.served) = (routing.at, routing.served);
            slot.readers += routing.readers;
            if let Routed::Blocked = outcome {
                return worked + routing.readers;
            }
            let next = core::mem::replace(&mut slot.next, NIL);
            if let Some(row) = self.recv_rows.get_mut(node.index()) {
                row.pending.head = next;
                row.pending.len -= 1;
                if next == NIL {
                    row.pending.tail = NIL;
                }
            }
            self.counters.blocks_delivered += 1;
            if let Some(peer) = self.peers.get_mut(node.index()) {
                peer.delivered += 1;
            }
            worked += 1;
            self.drop_reader(node, element);
        }
    }

    fn route(&mut self, block: &ArrivedBlock, to: &mut Routing, pipes: &mut impl PrivatePipes) -> Routed {
        let bytes = block.bytes();
        let Ok(header) = BlockHeader::ref_from_prefix(bytes).map(|(header, _)| header) else {
            return Routed::Done;
        };
        let Some(body) = bytes.get(BLOCK_HEADER..BLOCK_HEADER + header.length()) else { return Routed::Done };
        let kind = DeliveryKind::Messages { urgent: header.has(flag::URGENT) };
        match header.class() {
            BlockClass::Stream => self.route_stream(block, header, body.len(), to, pipes),
            _ if header.has(flag::UNIFORM) => {
                let part = header.part.get();
                self.hand_out(block, part, (0, body.len()), kind, header.messages(), to, pipes)
            }
            _ => self.route_mixed(block, body, kind, to, pipes),
        }
    }

    /// A block of several parts: runs of CDUs for the same part are delivered together.
    fn route_mixed(
        &mut self,
        block: &ArrivedBlock,
        body: &[u8],
        kind: DeliveryKind,
        to: &mut Routing,
        pipes: &mut impl PrivatePipes,
    ) -> Routed {
        let mut run: Option<(u16, u32)> = None;
        let mut cdus = Cdus::new(body.get(to.at..).unwrap_or(&[]));
        loop {
            let here = body.len() - cdus.remaining();
            let next = cdus.next();
            let part = match &next {
                Some(Ok(train)) => train.dest_part(),
                _ => None,
            };
            // A run ends before a CDU of another part, before a set, at a malformed CDU and at the end.
            if let Some((of, messages)) = run
                && part != Some(of)
            {
                if let Routed::Blocked = self.hand_out(block, of, (to.at, here), kind, messages, to, pipes) {
                    return Routed::Blocked;
                }
                to.at = here;
                run = None;
            }
            match next {
                None => return Routed::Done,
                Some(Err(reason)) => {
                    // Untrusted blocks were checked whole before; this is one of a trusted peer, read in parts.
                    self.counters.malformed += 1;
                    pipes.event(Event::Malformed { peer: to.node, reason });
                    return Routed::Done;
                }
                Some(Ok(train)) => match part {
                    Some(part) => {
                        let messages = run.map_or(0, |(_, n)| n);
                        run = Some((part, messages.saturating_add(train.count())));
                    }
                    None => {
                        let end = body.len() - cdus.remaining();
                        let me = self.config.node;
                        let here_parts = train.set();
                        for part in here_parts.parts().filter(|p| p.node() == me).skip(to.served) {
                            let count = train.count();
                            if let Routed::Blocked =
                                self.hand_out(block, part.local(), (to.at, end), kind, count, to, pipes)
                            {
                                return Routed::Blocked;
                            }
                            to.served += 1;
                        }
                        to.served = 0;
                        to.at = end;
                    }
                },
            }
        }
    }

    /// A block of a stream: the mapping tuple says where it goes.
    fn route_stream(
        &mut self,
        block: &ArrivedBlock,
        header: &BlockHeader,
        length: usize,
        to: &mut Routing,
        pipes: &mut impl PrivatePipes,
    ) -> Routed {
        let (group, number) = (header.group.get(), StreamNo(header.stream.get()));
        let (part, segment) = (header.part.get(), header.segment.get());
        let first = header.has(flag::FIRST);
        let bound = self.pipes.of(part);
        let Some(entry) = self.streams.entry(to.node, group) else {
            self.counters.stray_segments += 1;
            return Routed::Done;
        };
        if first && segment == 0 {
            let Some(pipe) = bound else {
                self.counters.unroutable += 1;
                pipes.event(Event::Unroutable { peer: to.node, part, messages: 1 });
                return Routed::Done;
            };
            let mapping = StreamMapping { source: to.node, group, number, part, pipe, segment: 0 };
            let before = entry.replace(mapping).filter(|m| m.number != number);
            if let Some(mapping) = before {
                // The pipe was given to another stream before the last segment of this one came.
                pipes.event(Event::StreamBroken { mapping });
            }
        }
        let Some(mapping) = entry.as_mut().filter(|m| m.number == number) else {
            self.counters.stray_segments += 1;
            return Routed::Done;
        };
        let pipe = mapping.pipe;
        // A segment is missing: the stream ends here, for its reader too.
        let lost = mapping.segment != segment;
        let last = header.has(flag::LAST) || lost;
        let aborted = header.has(flag::ABORTED) || lost;
        let kind = DeliveryKind::Stream { number, segment, last, aborted };
        if !to.offer(block, pipe, (0, length), kind, pipes) {
            return Routed::Blocked;
        }
        mapping.segment = mapping.segment.wrapping_add(1);
        if last {
            *entry = None;
        }
        Routed::Done
    }

    /// Delivers a piece of a block to a part of this node.
    #[expect(clippy::too_many_arguments, reason = "one piece, one part, one pipe")]
    fn hand_out(
        &mut self,
        block: &ArrivedBlock,
        part: u16,
        range: (usize, usize),
        kind: DeliveryKind,
        messages: u32,
        to: &mut Routing,
        pipes: &mut impl PrivatePipes,
    ) -> Routed {
        let Some(pipe) = self.pipes.of(part) else {
            self.counters.unroutable += u64::from(messages);
            pipes.event(Event::Unroutable { peer: to.node, part, messages });
            return Routed::Done;
        };
        if to.offer(block, pipe, range, kind, pipes) { Routed::Done } else { Routed::Blocked }
    }

    fn drop_reader(&mut self, node: NodeId, element: u32) {
        let at = self.element(node, element);
        let Some(slot) = self.rm.get_mut(at) else { return };
        slot.readers = slot.readers.saturating_sub(1);
        if slot.readers > 0 {
            return;
        }
        let Some(block) = slot.block.take() else { return };
        if let Some(row) = self.recv_rows.get_mut(node.index()) {
            slot.next = core::mem::replace(&mut row.free, element);
            row.space.give();
        }
        if node == self.config.node {
            self.recycle(block.id().index);
            return;
        }
        if self.has_failed(node) {
            self.shrink_recv(node, u32::MAX);
        }
        if let Some(peer) = self.peers.get_mut(node.index()) {
            peer.released += 1;
        }
        self.give_back(node, block);
    }

    /// Asks the policy whether RCBP_node should have more space, which is more credit for the peer.
    fn extend_recv(&mut self, node: NodeId, ask: fn(&P, &crate::matrix::RowSpace, u32) -> Growth) {
        let posted = self.capabilities.arrival == Arrival::Posted;
        let free = if posted { self.umb.free() } else { self.credit };
        let Some(row) = self.recv_rows.get_mut(node.index()) else { return };
        match ask(&self.policy, &row.space, free) {
            Growth::Keep => {}
            Growth::Exhausted => row.exhausted += 1,
            Growth::By(blocks) => {
                let before = row.space.real();
                row.space.grow(blocks.min(free));
                let grown = row.space.real() - before;
                self.grown = true;
                if posted { self.post(node) } else { self.credit -= grown }
            }
        }
    }

    /// Takes up to `blocks` of its vacant elements from a row and leaves it one, unless its peer has failed: without any
    /// credit nothing would arrive that could make the row grow again.
    pub(super) fn shrink_recv(&mut self, node: NodeId, blocks: u32) {
        let least = u32::from(!self.has_failed(node));
        let Some(row) = self.recv_rows.get_mut(node.index()) else { return };
        let before = row.space.real();
        row.space.shrink(blocks.min(before.saturating_sub(least)));
        if self.capabilities.arrival == Arrival::InPlace {
            self.credit += before - row.space.real();
        }
        // With posted arrival the blocks come back as they are filled: `repost` keeps those beyond the real space.
    }

    /// Gives the transport blocks to receive into, as many as the row's space asks for.
    pub(super) fn post(&mut self, node: NodeId) {
        loop {
            if self.has_posts(node) {
                return;
            }
            let Some(index) = self.umb.take() else {
                self.short_of_posts = true;
                return;
            };
            if let Some(entry) = self.umb.entry(index) {
                entry.state = BlockState::InFlight;
                entry.row = node.raw();
            }
            let block = VacantBlock { raw: self.umb.raw(index) };
            if !self.post_block(node, block) {
                return;
            }
        }
    }

    /// Whether enough blocks are posted: one for each vacant element, and the spare ones in any case.
    fn has_posts(&self, node: NodeId) -> bool {
        let failed = self.has_failed(node);
        self.recv_rows.get(node.index()).is_none_or(|r| {
            failed || r.posted >= SPARE_POSTS && r.posted + r.space.used() >= r.space.real() + SPARE_POSTS
        })
    }

    /// Tries again to post what could not be posted before, for want of blocks or since the transport was busy.
    pub(super) fn post_missing(&mut self) {
        if !core::mem::take(&mut self.short_of_posts) {
            return;
        }
        for node in (0..self.recv_rows.len()).map(NodeId::from_index) {
            if node != self.config.node {
                self.post(node);
            }
        }
    }

    fn post_block(&mut self, peer: NodeId, block: VacantBlock) -> bool {
        match self.transport.submit(Op::Recv { peer, block }) {
            Ok(()) => {
                if let Some(row) = self.recv_rows.get_mut(peer.index()) {
                    row.posted += 1;
                }
                true
            }
            Err(refused) => {
                if matches!(refused.reason, Reason::Busy) {
                    self.short_of_posts = true;
                } else {
                    self.control.failing = Some(peer);
                }
                if let Op::Recv { block, .. } = refused.op {
                    self.umb.give(block.id().index);
                }
                false
            }
        }
    }

    fn repost(&mut self, peer: NodeId, block: VacantBlock) {
        if !self.is_posted(&block) {
            return;
        }
        if self.has_posts(peer) {
            self.umb.give(block.id().index);
        } else {
            self.post_block(peer, block);
        }
    }

    /// Whether a block that comes back from the transport is one that was given to it.
    fn is_posted(&mut self, block: &VacantBlock) -> bool {
        let owned = self.umb.owns(&block.raw);
        let state = self.umb.entry(block.id().index).map(|entry| entry.state);
        let posted = owned && state == Some(BlockState::InFlight);
        self.counters.foreign_tokens += u64::from(!posted);
        posted
    }

    fn unpost(&mut self, peer: NodeId, block: VacantBlock) {
        if let Some(row) = self.recv_rows.get_mut(peer.index()) {
            row.posted = row.posted.saturating_sub(1);
        }
        if self.is_posted(&block) {
            self.umb.give(block.id().index);
        }
    }

    fn peer_failed(&mut self, node: NodeId, pipes: &mut impl PrivatePipes) {
        let Some(peer) = self.peers.get_mut(node.index()) else { return };
        if peer.failed {
            return;
        }
        peer.fail();
        if let Some(Some(entry)) = self.tables.nodes.get_mut(node.index()) {
            entry.failed = true;
        }
        // Segments that have arrived and wait for a private pipe are delivered first.
        if self.recv_rows.get(node.index()).is_none_or(|r| r.pending.len == 0) {
            self.end_streams_of(node, pipes);
        }
        self.give_up_queue(node, pipes);
        self.shrink_recv(node, u32::MAX);
    }

    /// Ends the streams that come from a failed node.
    fn end_streams_of(&mut self, node: NodeId, pipes: &mut impl PrivatePipes) {
        self.streams.remove_if(|mapping| {
            if mapping.source == node {
                pipes.event(Event::StreamBroken { mapping: *mapping });
            }
            mapping.source == node
        });
    }

    /// Reads a control block's messages.
    fn read_control(&mut self, peer: NodeId, block: &ArrivedBlock, pipes: &mut impl PrivatePipes) {
        let body = block.bytes().get(BLOCK_HEADER..).unwrap_or(&[]);
        for train in Cdus::new(body) {
            let Ok(train) = train else {
                self.counters.malformed += 1;
                return;
            };
            for message in train.messages() {
                match crate::mesp::Control::decode(train.command(), message) {
                    Some(control) => self.handle_control(peer, control, pipes),
                    None => {
                        self.counters.malformed += 1;
                        pipes.event(Event::Malformed { peer, reason: Malformed::Field });
                    }
                }
            }
        }
    }
}

/// Where routing of a block stands.
struct Routing {
    node: NodeId,
    element: u32,
    at: usize,
    served: usize,
    readers: u32,
}

impl Routing {
    /// Offers a piece of the block to a private pipe. `false`: the pipe is full.
    fn offer(
        &mut self,
        block: &ArrivedBlock,
        pipe: PipeId,
        range: (usize, usize),
        kind: DeliveryKind,
        pipes: &mut impl PrivatePipes,
    ) -> bool {
        let place = (self.node, self.element);
        match pipes.deliver(pipe, Delivery::new(block, range, place, kind)) {
            // A host that hands back another delivery has kept this one.
            Err(back) if back.is_of(block, place) => false,
            _ => {
                self.readers += 1;
                true
            }
        }
    }
}

enum Admitted {
    Data,
    Control,
    /// Of another epoch, or seen before.
    Stale,
}

/// Checks what the readers of an untrusted peer's block rely on: every CDU is whole, there are as many messages as the
/// header says, all for the part that it names if it names one, and in a block of a stream just one.
fn check_body(header: &BlockHeader, body: &[u8]) -> Result<(), Malformed> {
    let stream = header.class() == BlockClass::Stream;
    let one_part = stream || header.has(flag::UNIFORM);
    let mut messages = 0u64;
    for train in Cdus::new(body) {
        let train = train?;
        messages += u64::from(train.count());
        if one_part && train.dest_part() != Some(header.part.get()) {
            return Err(Malformed::Field);
        }
    }
    if messages != u64::from(header.messages()) || (stream && messages != 1) {
        return Err(Malformed::Length);
    }
    Ok(())
}
