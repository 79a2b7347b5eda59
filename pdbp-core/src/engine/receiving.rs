//! The receiving half: RM, and PipeM, which routes blocks to private pipes.

use super::link::{Label, Work};
use super::readers::Element;
use super::relaying::NextHop;
use super::{Delivery, DeliveryKind, Engine, Event, PrivatePipes, StreamTag};
use crate::cdu::{BlockClass, Cdus, Malformed, Train, flag};
use crate::id::{NodeId, PartId, PipeId, StreamNo};
use crate::matrix::{Queue, RowSpace, kept};
use crate::pipe::{StreamMapping, StreamUse};
use crate::policy::{Growth, SpacePolicy};
use crate::routing::LinkId;
use crate::transport::Transport;
use crate::umb::{ArrivedBlock, BlockMemory, NIL, SharedBlock};

/// The outcome of routing a block.
pub(super) enum Routed {
    Done,
    /// A private pipe was full.
    Blocked,
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Puts an arrived block, whose sender could use `wanted` blocks of credit, into a free element of its row. Routes it once
    /// all blocks before it have been routed. The caller has checked that an element is free.
    #[inline(always)]
    pub(super) fn receive_block(
        &mut self,
        id: LinkId,
        (label, wanted): (Label, u32),
        block: ArrivedBlock,
        pipes: &mut impl PrivatePipes,
    ) {
        let Self { links, rm, config, pipes: bound, .. } = self;
        let (is_own, Some(link)) = (id == links.own, links.data_mut(id)) else { return };
        let is_late = link.state.is_down();
        // The usual case: messages for one part, with nothing waiting ahead of them.
        let is_next = link.recv.pending.len == 0 && link.recv.ending.is_none() && !is_late;
        let pipe = if is_next && label.is_for_one_part() { bound.of(label.part) } else { None };
        let source = link.peer;
        let row = &mut link.recv;
        row.blocks += 1;
        row.bytes += u64::from(label.length);
        row.messages += u64::from(label.messages);
        let element = row.free;
        let Some(slot) = rm.get_mut(config.element(id, element)) else { return };
        row.free = slot.next;
        // The header was read, so the block has one.
        let block = SharedBlock::new(block);
        *slot = Element { block, label, routed: false, session: link.session, next: NIL, at: 0, served: 0 };
        let tail = core::mem::replace(&mut row.pending.tail, element);
        row.pending.len += 1;
        if is_late {
            // Streams end behind everything that still arrives over a failed link.
            row.ending = Some(row.pending.len);
        }
        if tail == NIL {
            row.pending.head = element;
        } else if let Some(last) = rm.get_mut(config.element(id, tail)) {
            last.next = element;
        }
        let critical = row.space.take();
        // Less credit is left than used, perhaps none. For messages between parts of this node, the send row decides.
        let is_scarce = 2 * row.space.used() > row.space.real();
        let wants_more = row.record_wanted(wanted);
        let copies = (critical | is_scarce | wants_more | is_own) && {
            if !is_own {
                self.extend_held(id, critical, wants_more);
            }
            self.should_copy(id, &label)
        };
        match pipe {
            Some(pipe) => self.route_at_once((id, element), (source, copies), &label, pipe, pipes),
            None => _ = self.route_row(id, pipes),
        }
    }

    /// Routes the only pending block of a row, which is for one part.
    #[inline(always)]
    fn route_at_once(
        &mut self,
        (id, element): (LinkId, u32),
        (source, copies): (NodeId, bool),
        label: &Label,
        pipe: PipeId,
        pipes: &mut impl PrivatePipes,
    ) {
        let mut cursor = Cursor { id, source, element, copies, at: 0, served: 0, readers: 0 };
        // Routing resumes here if the host panics.
        let before = core::mem::replace(&mut self.routed_link, id);
        let range = (0, label.length as usize);
        let room = self.offer(pipe, range, label.kind(), &mut cursor, pipes);
        self.routed_link = before;
        let Self { links, rm, config, .. } = self;
        let Some(link) = links.data_mut(id) else { return };
        let Some(slot) = rm.get_mut(config.element(id, element)) else { return };
        if !room {
            return links.mark(id, Work::ROUTE);
        }
        slot.routed = true;
        let done = slot.is_done();
        link.recv.pending = Queue::default();
        link.numbers.delivered += 1;
        self.counters.blocks_delivered += 1;
        if done {
            // The part has a copy, or the host has kept a delivery of another block.
            self.free_unread(id, element);
        }
    }

    /// Asks the policy for more space for each reason that applies: the two given, and that all credit for messages is used
    /// (windows of four and more reserve one element for commands).
    #[inline(never)]
    fn extend_held(&mut self, id: LinkId, critical: bool, wants_more: bool) {
        let held = self.links.get(id).map(|link| &link.recv.space);
        let is_full = held.is_some_and(|held| held.vacant() <= kept(held.real()));
        if critical {
            self.extend_recv(id, SpacePolicy::at_critical);
        }
        if is_full {
            if let Some(link) = self.links.data_mut(id) {
                link.recv.stalls += 1;
            }
            self.extend_recv(id, SpacePolicy::at_stall);
        }
        if wants_more {
            self.extend_recv(id, SpacePolicy::at_request);
        }
    }

    /// Asks the policy whether the row of a link should have more space, and posts blocks for it.
    pub(super) fn extend_recv(&mut self, id: LinkId, ask: fn(&P, &RowSpace, u32) -> Growth) {
        let Self { links, umb, space, .. } = self;
        if space.extend_recv(links, umb, id, ask) {
            self.post(id);
        }
    }

    /// Links the free elements of each row.
    pub(super) fn link_elements(&mut self) {
        let size = self.config.row;
        for (at, element) in self.rm.iter_mut().enumerate() {
            let next = at as u32 % size + 1;
            element.next = if next < size { next } else { NIL };
        }
        self.links.iter_mut().for_each(|link| link.recv.free = 0);
    }

    /// Resumes routing of blocks for which a private pipe was full.
    pub(super) fn route_pending(&mut self, pipes: &mut impl PrivatePipes) -> u32 {
        // The host panicked while blocks of this link were being routed, perhaps in the middle of a pass over links with blocks to
        // send.
        let interrupted = core::mem::replace(&mut self.routed_link, LinkId::NONE);
        self.links.mark(interrupted, Work::ROUTE);
        self.links.mark(interrupted, Work::SEND);
        let mut worked = 0;
        let mut blocked = self.links.first_with(Work::ROUTE);
        while let Some(id) = blocked {
            worked += self.route_row(id, pipes);
            blocked = self.links.next_with(id, Work::ROUTE);
        }
        worked
    }

    /// PipeM: routes the arrived blocks of a row, oldest first, until one finds no room.
    pub(super) fn route_row(&mut self, id: LinkId, pipes: &mut impl PrivatePipes) -> u32 {
        let mut worked = 0;
        loop {
            self.end_streams(id, pipes);
            let Some(link) = self.links.get(id).filter(|link| link.recv.pending.len > 0) else {
                return worked;
            };
            let (element, source) = (link.recv.pending.head, link.peer);
            let at = self.config.element(id, element);
            let Some(slot) = self.rm.get(at) else { return worked };
            let (label, at_body, served) = (slot.label, slot.at, slot.served);
            let copies = self.should_copy(id, &label);
            let mut cursor = Cursor { id, source, element, copies, at: at_body, served, readers: 0 };
            // Routing resumes here if the host panics.
            let before = core::mem::replace(&mut self.routed_link, id);
            let outcome = self.route(&label, &mut cursor, pipes);
            self.routed_link = before;
            let Self { links, rm, .. } = self;
            let (Some(slot), Some(link)) = (rm.get_mut(at), links.data_mut(id)) else { return worked };
            if let Routed::Blocked = outcome {
                (slot.at, slot.served) = (cursor.at, cursor.served);
                self.links.mark(id, Work::ROUTE);
                return worked + cursor.readers;
            }
            slot.routed = true;
            let done = slot.is_done();
            let next = core::mem::replace(&mut slot.next, NIL);
            link.recv.pending.head = next;
            link.recv.pending.len -= 1;
            link.recv.ending = link.recv.ending.map(|left| left.saturating_sub(1));
            if next == NIL {
                link.recv.pending.tail = NIL;
            }
            link.numbers.delivered += u64::from(link.session == slot.session);
            let over = next == NIL && link.recv.ending.is_none();
            self.counters.blocks_delivered += 1;
            worked += 1;
            if done {
                self.free_unread(id, element);
            }
            if over {
                return worked;
            }
        }
    }

    /// Routes the block with this label.
    #[inline]
    fn route(&mut self, label: &Label, to: &mut Cursor, pipes: &mut impl PrivatePipes) -> Routed {
        if label.is_for_one_part()
            && let Some(pipe) = self.pipes.of(label.part)
        {
            // All of it goes there, whatever it contains.
            let room = self.offer(pipe, (0, label.length as usize), label.kind(), to, pipes);
            return if room { Routed::Done } else { Routed::Blocked };
        }
        let place = (to.id, to.element);
        let at = self.config.element(place.0, place.1);
        let lend = |slot: &mut Element| slot.block.lend_whole(place, to.source);
        let Some(whole) = self.rm.get_mut(at).and_then(lend) else { return Routed::Done };
        let outcome = self.route_by_body(&whole, label, to, pipes);
        let back = self.rm.get_mut(at).map(|slot| slot.block.reclaim(whole, place));
        debug_assert!(matches!(back, Some(Ok(()))), "the block was lent above");
        outcome
    }

    #[inline(never)]
    fn route_by_body(
        &mut self,
        block: &Delivery,
        label: &Label,
        to: &mut Cursor,
        pipes: &mut impl PrivatePipes,
    ) -> Routed {
        let Some(body) = block.bytes().get(..label.length as usize) else { return Routed::Done };
        let kind = label.kind();
        match label.class {
            BlockClass::Stream => self.route_stream(block, label, to, pipes),
            _ if label.has(flag::UNIFORM) => {
                self.deliver_piece((label.part, block), (0, body.len()), kind, label.messages, to, pipes)
            }
            _ => self.route_mixed(block, body, kind, to, pipes),
        }
    }

    /// Routes a block for several parts: runs of CDUs for the same part are delivered together.
    fn route_mixed(
        &mut self,
        block: &Delivery,
        body: &[u8],
        kind: DeliveryKind,
        to: &mut Cursor,
        pipes: &mut impl PrivatePipes,
    ) -> Routed {
        let from = to.source;
        let mut run: Option<(u16, NodeId, u32)> = None;
        let mut cdus = Cdus::new(body.get(to.at..).unwrap_or(&[]));
        loop {
            let here = body.len() - cdus.remaining();
            let next = cdus.next();
            let (part, hop) = match &next {
                Some(Ok(train)) => (train.dest_part(), self.links.topology.next_hop(train.via(), from)),
                _ => (None, NextHop::Invalid),
            };
            // A run ends before a CDU for another part or from another source, before a set, before a CDU to be forwarded, before
            // a malformed CDU, and at the end.
            if let Some((of, source, messages)) = run
                && !matches!(hop, NextHop::Here(node) if part == Some(of) && node == source)
            {
                to.source = source;
                if let Routed::Blocked =
                    self.deliver_piece((of, block), (to.at, here), kind, messages, to, pipes)
                {
                    return Routed::Blocked;
                }
                to.at = here;
                run = None;
            }
            match next {
                None => return Routed::Done,
                Some(Err(reason)) => {
                    // Blocks of untrusted peers were checked on arrival, so this one is from a trusted peer.
                    self.report_malformed(from, reason, pipes);
                    return Routed::Done;
                }
                Some(Ok(train)) => match (hop, part) {
                    (NextHop::Here(source), Some(part)) => {
                        let messages = run.map_or(0, |(_, _, n)| n);
                        run = Some((part, source, messages.saturating_add(train.count())));
                    }
                    (hop, _) => {
                        let end = body.len() - cdus.remaining();
                        let bytes = body.get(to.at..end).unwrap_or(&[]);
                        if let Routed::Blocked =
                            self.route_single((&train, bytes), hop, block, kind, to, pipes)
                        {
                            return Routed::Blocked;
                        }
                        to.at = end;
                    }
                },
            }
        }
    }

    /// Routes a CDU that belongs to no run: for a set of parts, to be forwarded, or with no valid destination. It is `bytes` of
    /// the block, from `to.at` on.
    fn route_single(
        &mut self,
        (train, bytes): (&Train<'_>, &[u8]),
        hop: NextHop,
        block: &Delivery,
        kind: DeliveryKind,
        to: &mut Cursor,
        pipes: &mut impl PrivatePipes,
    ) -> Routed {
        let source = match hop {
            NextHop::Here(source) => source,
            NextHop::Relay(via) => {
                let urgent = matches!(kind, DeliveryKind::Messages { urgent: true });
                return self.relay_train((train, bytes), via, urgent, to, pipes);
            }
            NextHop::Invalid => {
                // As in `route_mixed`.
                let from = self.links.peer(to.id);
                self.report_malformed(from, Malformed::Relay, pipes);
                return Routed::Done;
            }
        };
        let (me, range) = (self.config.node, (to.at, to.at + bytes.len()));
        to.source = source;
        for part in train.set().parts().filter(|part| part.node() == me).skip(to.served) {
            if let Routed::Blocked =
                self.deliver_piece((part.local(), block), range, kind, train.count(), to, pipes)
            {
                return Routed::Blocked;
            }
            to.served += 1;
        }
        to.served = 0;
        Routed::Done
    }

    /// Routes a block of a stream by its mapping tuple.
    fn route_stream(
        &mut self,
        block: &Delivery,
        label: &Label,
        to: &mut Cursor,
        pipes: &mut impl PrivatePipes,
    ) -> Routed {
        let Label { group, part, segment, .. } = *label;
        let number = StreamNo(label.stream);
        let first = label.has(flag::FIRST) && segment == 0;
        if self.links.topology.is_grid()
            && let Some(routed) = self.route_segment_in_grid(block, (group, first), to, pipes)
        {
            return routed;
        }
        let bound = self.pipes.of(part);
        let Some(entry) = self.streams.entry(to.id, group) else {
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
            let is_known =
                matches!(entry, StreamUse::Local(mapping) if is_this(mapping) && mapping.part == part);
            let mapping = StreamMapping { source, group, number, part, pipe, segment: 0, ignored: false };
            if !is_known
                && let StreamUse::Local(mapping) = core::mem::replace(entry, StreamUse::Local(mapping))
            {
                // The pipe was reused before the last segment of the old stream arrived.
                pipes.event(Event::StreamBroken { mapping });
            }
        }
        let StreamUse::Local(mapping) = entry else {
            self.counters.stray_segments += 1;
            return Routed::Done;
        };
        if !is_this(mapping) {
            self.counters.stray_segments += 1;
            return Routed::Done;
        }
        let (pipe, ignored) = (mapping.pipe, mapping.ignored);
        // A segment is missing or comes again: the stream ends here, and its reader is notified.
        let lost = mapping.segment != segment;
        // With number 0 it would be a stream that ended before anything of it was sent.
        let segment = if lost { segment.max(1) } else { segment };
        let last = label.has(flag::LAST) || lost;
        let aborted = label.has(flag::ABORTED) || lost;
        let kind = DeliveryKind::Stream { number, segment, last, aborted };
        let is_read = !ignored || last;
        if is_read && !self.offer(pipe, (0, label.length as usize), kind, to, pipes) {
            return Routed::Blocked;
        }
        match self.streams.entry(to.id, group) {
            Some(entry) if last => *entry = StreamUse::Nothing,
            Some(StreamUse::Local(mapping)) => mapping.segment = StreamTag::after(mapping.segment),
            _ => {}
        }
        Routed::Done
    }

    /// Routes a stream segment in a grid. Returns `None` if the segment is for this node.
    fn route_segment_in_grid(
        &mut self,
        block: &Delivery,
        (group, first): (u16, bool),
        to: &mut Cursor,
        pipes: &mut impl PrivatePipes,
    ) -> Option<Routed> {
        match self.next_hop_of_segment(block, group, to.source) {
            NextHop::Here(source) => to.source = source,
            NextHop::Relay(via) => return Some(self.relay_segment(block, via, (to.id, group), pipes)),
            NextHop::Invalid => {
                // As in a block of messages.
                self.report_malformed(to.source, Malformed::Relay, pipes);
                return Some(Routed::Done);
            }
        }
        (first && !self.end_relayed((to.id, group))).then_some(Routed::Blocked)
    }

    /// Delivers a piece of a block to a part of this node.
    fn deliver_piece(
        &mut self,
        (part, block): (u16, &Delivery),
        range: (usize, usize),
        kind: DeliveryKind,
        messages: u32,
        to: &mut Cursor,
        pipes: &mut impl PrivatePipes,
    ) -> Routed {
        let Some(pipe) = self.pipes.of(part) else {
            if part == PartId::NODE {
                self.read_node_messages((to.source, to.id), block, range);
                return Routed::Done;
            }
            self.counters.unroutable += u64::from(messages);
            pipes.event(Event::Unroutable { peer: to.source, part, messages });
            return Routed::Done;
        };
        if self.offer(pipe, range, kind, to, pipes) { Routed::Done } else { Routed::Blocked }
    }

    /// Ends the streams that arrived over a failed link, once all their segments have been delivered.
    #[inline]
    pub(super) fn end_streams(&mut self, id: LinkId, pipes: &mut impl PrivatePipes) {
        if self.links.get(id).is_some_and(|link| link.recv.ending == Some(0)) {
            self.end_streams_of(id, pipes);
        }
    }
}

/// Progress of routing one block.
pub(super) struct Cursor {
    pub(super) id: LinkId,
    /// The node that sent the messages being routed.
    pub(super) source: NodeId,
    pub(super) element: u32,
    /// Whether parts get copies of its pieces, as long as there is space.
    pub(super) copies: bool,
    pub(super) at: usize,
    pub(super) served: usize,
    pub(super) readers: u32,
}
