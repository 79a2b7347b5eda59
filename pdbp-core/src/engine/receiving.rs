//! The receiving half: RM, and PipeM, which routes blocks to private pipes.

use zerocopy::FromBytes;

use super::relaying::Way;
use super::{Delivery, DeliveryKind, Engine, Event, PrivatePipes};
use crate::cdu::{BLOCK_HEADER, BlockClass, BlockHeader, Cdus, Malformed, flag};
use crate::id::{NodeId, PipeId, StreamNo};
use crate::pipe::{Carried, StreamMapping};
use crate::policy::SpacePolicy;
use crate::routing::Slot;
use crate::transport::Transport;
use crate::umb::{ArrivedBlock, BlockMemory, NIL};

/// An element of RM: an arrived block and who still needs it.
#[derive(Debug)]
pub struct Element {
    block: Option<ArrivedBlock>,
    /// Deliveries that are out, and one while the block is not routed to its end.
    readers: u32,
    /// Of the link by which it came.
    session: u32,
    /// Next of the list that the element is in (free or pending).
    next: u32,
    /// Where routing goes on: offset in the body, and parts of a destination set that have their delivery.
    at: usize,
    served: usize,
}

impl Default for Element {
    fn default() -> Self {
        Self { block: None, readers: 0, session: 0, next: NIL, at: 0, served: 0 }
    }
}

/// How far routing of a block came.
pub(super) enum Routed {
    Done,
    /// A private pipe was full.
    Blocked,
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Takes back a delivery. When it was the last of its block, the block goes back to its owner.
    pub fn release(&mut self, delivery: Delivery) {
        let node = Slot::from_index(usize::from(delivery.row));
        if let DeliveryKind::Returned { .. } = delivery.kind() {
            self.release_returned(node, delivery);
            return;
        }
        if !self.holds(node, &delivery) {
            self.counters.foreign_tokens += 1;
            return;
        }
        self.tokens -= 1;
        self.drop_reader(node, delivery.element);
    }

    /// A second delivery of the same piece, for a reader that goes its own way, such as a device. It goes back with
    /// [`release`](Self::release) as well. `None` for what was returned, and for a delivery of another engine.
    pub fn share(&mut self, delivery: &Delivery) -> Option<Delivery> {
        let node = Slot::from_index(usize::from(delivery.row));
        let returned = matches!(delivery.kind(), DeliveryKind::Returned { .. });
        if returned || !self.holds(node, delivery) {
            return None;
        }
        let at = self.element(node, delivery.element);
        self.rm.get_mut(at)?.readers += 1;
        self.tokens += 1;
        Some(delivery.again())
    }

    /// Whether a delivery is of a block in that row.
    fn holds(&self, node: Slot, delivery: &Delivery) -> bool {
        let held = self.rm.get(self.element(node, delivery.element)).and_then(|slot| slot.block.as_ref());
        held.is_some_and(|block| delivery.is_of(block, (node, delivery.element)))
    }

    /// Puts an arrived block into a free element of its row.
    pub(super) fn hold(&mut self, node: Slot, block: ArrivedBlock) {
        let Some(row) = self.recv_rows.get_mut(node.index()) else { return };
        row.blocks += 1;
        if let Ok((header, _)) = BlockHeader::ref_from_prefix(block.bytes()) {
            row.bytes += header.length() as u64;
            row.messages += u64::from(header.messages());
        }
        let critical = row.space.take();
        let element = row.free;
        let at = node.index() * self.config.row as usize + element as usize;
        let Some(slot) = self.rm.get_mut(at) else { return };
        let session = self.peers.get(node.index()).map_or(0, |p| p.session);
        row.free = slot.next;
        *slot = Element { block: Some(block), readers: 1, session, next: NIL, at: 0, served: 0 };
        let tail = core::mem::replace(&mut row.pending.tail, element);
        row.pending.len += 1;
        if tail == NIL {
            row.pending.head = element;
        } else if let Some(last) = self.rm.get_mut(node.index() * self.config.row as usize + tail as usize) {
            last.next = element;
        }
        if node == self.own {
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

    pub(super) fn has_element(&self, node: Slot) -> bool {
        self.recv_rows.get(node.index()).is_some_and(|r| r.free != NIL)
    }

    pub(super) fn link_elements(&mut self, node: Slot) {
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
        if !core::mem::take(&mut self.blocked) {
            return 0;
        }
        let mut worked = 0;
        for node in (0..self.recv_rows.len()).map(Slot::from_index) {
            if self.recv_rows.get(node.index()).is_some_and(|r| r.pending.len > 0) {
                worked += self.route_row(node, pipes);
            }
        }
        worked
    }

    /// PipeM: routes the arrived blocks of a row, oldest first, until one does not find room.
    pub(super) fn route_row(&mut self, node: Slot, pipes: &mut impl PrivatePipes) -> u32 {
        let mut worked = 0;
        loop {
            self.end_streams(node, pipes);
            let Some(row) = self.recv_rows.get(node.index()) else { return worked };
            let element = row.pending.head;
            let at = self.element(node, element);
            if row.pending.len == 0 {
                return worked;
            }
            let Some(slot) = self.rm.get_mut(at) else { return worked };
            let Some(block) = slot.block.take() else { return worked };
            let source = self.links.node(node);
            let mut routing = Routing { node, source, element, at: slot.at, served: slot.served, readers: 0 };
            let outcome = self.route(&block, &mut routing, pipes);
            self.tokens += u64::from(routing.readers);
            let Some(slot) = self.rm.get_mut(at) else { return worked };
            let session = slot.session;
            slot.block = Some(block);
            (slot.at, slot.served) = (routing.at, routing.served);
            slot.readers += routing.readers;
            if let Routed::Blocked = outcome {
                self.blocked = true;
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
                peer.delivered += u64::from(peer.session == session);
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
        let from = to.source;
        let urgent = matches!(kind, DeliveryKind::Messages { urgent: true });
        let mut run: Option<(u16, NodeId, u32)> = None;
        let mut cdus = Cdus::new(body.get(to.at..).unwrap_or(&[]));
        loop {
            let here = body.len() - cdus.remaining();
            let next = cdus.next();
            let (part, way) = match &next {
                Some(Ok(train)) => (train.dest_part(), self.links.way(train.via(), from)),
                _ => (None, Way::None),
            };
            // A run ends before a CDU of another part or source, before a set, what is to be passed on, a malformed CDU and at
            // the end.
            if let Some((of, source, messages)) = run
                && !matches!(way, Way::Here(node) if part == Some(of) && node == source)
            {
                to.source = source;
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
                    self.note_malformed(from, reason, pipes);
                    return Routed::Done;
                }
                Some(Ok(train)) => match (way, part) {
                    (Way::Here(source), Some(part)) => {
                        let messages = run.map_or(0, |(_, _, n)| n);
                        run = Some((part, source, messages.saturating_add(train.count())));
                    }
                    (Way::On(via), _) => {
                        let end = body.len() - cdus.remaining();
                        let bytes = body.get(to.at..end).unwrap_or(&[]);
                        if let Routed::Blocked = self.pass_on((&train, bytes), via, urgent, to, pipes) {
                            return Routed::Blocked;
                        }
                        to.at = end;
                    }
                    (Way::None, _) => {
                        // As above.
                        self.note_malformed(from, Malformed::Relay, pipes);
                        to.at = body.len() - cdus.remaining();
                    }
                    (Way::Here(source), None) => {
                        let end = body.len() - cdus.remaining();
                        to.source = source;
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
        let first = header.has(flag::FIRST) && segment == 0;
        if self.links.is_grid() {
            match self.way_of_segment(block, group, to.source) {
                Way::Here(source) => to.source = source,
                Way::On(via) => return self.pass_segment(block, via, (to.node, group), pipes),
                Way::None => {
                    // As in a block of messages.
                    self.note_malformed(to.source, Malformed::Relay, pipes);
                    return Routed::Done;
                }
            }
            if first && !self.end_passed((to.node, group)) {
                return Routed::Blocked;
            }
        }
        let bound = self.pipes.of(part);
        let Some(entry) = self.streams.entry(to.node, group) else {
            self.counters.stray_segments += 1;
            return Routed::Done;
        };
        let source = to.source;
        let is_this = |m: &StreamMapping| (m.source, m.number) == (source, number);
        if first {
            let Some(pipe) = bound else {
                self.counters.unroutable += 1;
                pipes.event(Event::Unroutable { peer: source, part, messages: 1 });
                return Routed::Done;
            };
            let mapping = StreamMapping { source, group, number, part, pipe, segment: 0 };
            if let Carried::Here(mapping) = core::mem::replace(entry, Carried::Here(mapping))
                && !is_this(&mapping)
            {
                // The pipe was given to another stream before the last segment of this one came.
                pipes.event(Event::StreamBroken { mapping });
            }
        }
        let Carried::Here(mapping) = entry else {
            self.counters.stray_segments += 1;
            return Routed::Done;
        };
        if !is_this(mapping) {
            self.counters.stray_segments += 1;
            return Routed::Done;
        }
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
            *entry = Carried::Nothing;
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
            pipes.event(Event::Unroutable { peer: to.source, part, messages });
            return Routed::Done;
        };
        if to.offer(block, pipe, range, kind, pipes) { Routed::Done } else { Routed::Blocked }
    }

    fn drop_reader(&mut self, node: Slot, element: u32) {
        let at = self.element(node, element);
        let Some(slot) = self.rm.get_mut(at) else { return };
        slot.readers = slot.readers.saturating_sub(1);
        if slot.readers > 0 {
            return;
        }
        let Some(block) = slot.block.take() else { return };
        let session = slot.session;
        if let Some(row) = self.recv_rows.get_mut(node.index()) {
            slot.next = core::mem::replace(&mut row.free, element);
            row.space.give();
        }
        if node == self.own {
            self.recycle(block.id().index);
            return;
        }
        let gone = self.is_gone(node);
        if gone {
            self.shrink_recv(node, u32::MAX);
        }
        let Some(peer) = self.peers.get_mut(node.index()) else { return };
        if peer.session == session {
            peer.released += 1;
        } else {
            // Its element was lent to the old link, beyond the space of the present one, whose peer may not be let in yet.
            if let Some(row) = self.recv_rows.get_mut(node.index()) {
                row.old = row.old.saturating_sub(1);
            }
            if !gone {
                self.shrink_recv(node, 1);
            }
        }
        self.give_back(node, block);
    }

    /// Ends the streams that came from a node by a link that has failed, once all their segments that have arrived are
    /// delivered.
    pub(super) fn end_streams(&mut self, node: Slot, pipes: &mut impl PrivatePipes) {
        let Some(session) = self.recv_rows.get(node.index()).and_then(|row| row.ending) else { return };
        let first = self.recv_rows.get(node.index()).filter(|row| row.pending.len > 0);
        let first = first.and_then(|row| self.rm.get(self.element(node, row.pending.head)));
        // Or of a link before that one, which has failed too.
        if first.is_some_and(|element| session.wrapping_sub(element.session) < u32::MAX / 2) {
            return;
        }
        self.end_streams_of(node, pipes);
    }
}

/// Where routing of a block stands.
pub(super) struct Routing {
    node: Slot,
    /// The node that has sent what is routed.
    source: NodeId,
    element: u32,
    at: usize,
    pub(super) served: usize,
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
        match pipes.deliver(pipe, Delivery::new(block, range, place, self.source, kind)) {
            // A host that hands back another delivery has kept this one.
            Err(back) if back.is_of(block, place) => false,
            _ => {
                self.readers += 1;
                true
            }
        }
    }
}
