//! The receiving half: RM, and PipeM, which routes blocks to private pipes.

use zerocopy::FromBytes;

use super::readers::Element;
use super::relaying::Way;
use super::{Delivery, DeliveryKind, Engine, Event, PrivatePipes};
use crate::cdu::{BlockClass, BlockHeader, Cdus, Malformed, flag};
use crate::id::{NodeId, PartId, StreamNo};
use crate::pipe::{Carried, StreamMapping};
use crate::policy::SpacePolicy;
use crate::routing::Slot;
use crate::transport::Transport;
use crate::umb::{ArrivedBlock, BlockMemory, NIL, SharedBlock};

/// How far routing of a block came.
pub(super) enum Routed {
    Done,
    /// A private pipe was full.
    Blocked,
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Puts an arrived block into a free element of its row.
    pub(super) fn hold(&mut self, node: Slot, block: ArrivedBlock) {
        let Some(row) = self.recv_rows.get_mut(node.index()) else { return };
        row.blocks += 1;
        if let Ok((header, _)) = BlockHeader::read_from_prefix(block.bytes()) {
            row.bytes += header.length() as u64;
            row.messages += u64::from(header.messages());
        }
        // Its header was read: it has one.
        let block = SharedBlock::new(block);
        let critical = row.space.take();
        let element = row.free;
        let at = node.index() * self.config.row as usize + element as usize;
        let Some(slot) = self.rm.get_mut(at) else { return };
        let session = self.peers.get(node.index()).map_or(0, |p| p.session);
        row.free = slot.next;
        *slot = Element { block, routed: false, session, next: NIL, at: 0, served: 0 };
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
            let (source, place) = (self.links.node(node), (node, element));
            let Some(whole) = slot.block.as_mut().and_then(|block| block.lend_whole(place, source)) else {
                return worked;
            };
            let mut routing = Routing { node, source, element, at: slot.at, served: slot.served, readers: 0 };
            // Goes on there if the host panics.
            let blocked = core::mem::replace(&mut self.blocked, true);
            let outcome = self.route(&whole, &mut routing, pipes);
            let Some(slot) = self.rm.get_mut(at) else { return worked };
            let session = slot.session;
            (slot.at, slot.served) = (routing.at, routing.served);
            let back = slot.block.as_mut().map(|block| block.take_back(whole, place));
            debug_assert!(matches!(back, Some(Ok(()))), "the block was lent above");
            if let Routed::Blocked = outcome {
                return worked + routing.readers;
            }
            self.blocked = blocked;
            slot.routed = true;
            let done = slot.is_done();
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
            if done {
                self.empty(node, element);
            }
        }
    }

    fn route(&mut self, block: &Delivery, to: &mut Routing, pipes: &mut impl PrivatePipes) -> Routed {
        // A copy, so that the length which was looked at is the one that is used.
        let header = &{ *block.block() };
        let Some(body) = block.bytes().get(..header.length()) else { return Routed::Done };
        let kind = DeliveryKind::Messages { urgent: header.has(flag::URGENT) };
        match header.class() {
            BlockClass::Stream => self.route_stream(block, header, body.len(), to, pipes),
            _ if header.has(flag::UNIFORM) => {
                let (part, messages) = (header.part.get(), header.messages());
                self.hand_out((part, block), (0, body.len()), kind, messages, to, pipes)
            }
            _ => self.route_mixed(block, body, kind, to, pipes),
        }
    }

    /// A block of several parts: runs of CDUs for the same part are delivered together.
    fn route_mixed(
        &mut self,
        block: &Delivery,
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
                if let Routed::Blocked = self.hand_out((of, block), (to.at, here), kind, messages, to, pipes)
                {
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
                                self.hand_out((part.local(), block), (to.at, end), kind, count, to, pipes)
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
        block: &Delivery,
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
        if !self.offer(pipe, (0, length), kind, to, pipes) {
            return Routed::Blocked;
        }
        match self.streams.entry(to.node, group) {
            Some(entry) if last => *entry = Carried::Nothing,
            Some(Carried::Here(mapping)) => mapping.segment = mapping.segment.wrapping_add(1),
            _ => {}
        }
        Routed::Done
    }

    /// Delivers a piece of a block to a part of this node.
    fn hand_out(
        &mut self,
        (part, block): (u16, &Delivery),
        range: (usize, usize),
        kind: DeliveryKind,
        messages: u32,
        to: &mut Routing,
        pipes: &mut impl PrivatePipes,
    ) -> Routed {
        let Some(pipe) = self.pipes.of(part) else {
            if part == PartId::NODE {
                self.node_told((to.source, to.node), block, range);
                return Routed::Done;
            }
            self.counters.unroutable += u64::from(messages);
            pipes.event(Event::Unroutable { peer: to.source, part, messages });
            return Routed::Done;
        };
        if self.offer(pipe, range, kind, to, pipes) { Routed::Done } else { Routed::Blocked }
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
    pub(super) node: Slot,
    /// The node that has sent what is routed.
    pub(super) source: NodeId,
    pub(super) element: u32,
    pub(super) at: usize,
    pub(super) served: usize,
    pub(super) readers: u32,
}
