//! Arrivals that have not been read: private pipes, events, and buffers for messages longer than a block.

use managed::ManagedSlice;

use crate::embed::{RingState, Rings};
use crate::engine::{Config, DeliveryKind, Engine, PrivatePipes, RoomToken};
use crate::flaw::Flaw;
use crate::id::{NodeId, PartId, PipeId, StreamNo};
use crate::inbox::{Arrival, Arrivals};
use crate::policy::SpacePolicy;
use crate::routing::Routing;
use crate::transport::Transport;
use crate::umb::BlockMemory;
use crate::{Delivery, Event};

/// The right to read a delivery, or a reassembled message.
#[derive(Debug)]
pub enum Hold<'a> {
    /// A delivery of the engine.
    Piece(Delivery),
    /// A reassembled message.
    Whole(Buffer<'a>),
    /// Nothing.
    Nothing,
}

impl Hold<'_> {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Piece(delivery) => delivery.bytes(),
            Self::Whole(buffer) => buffer.bytes(),
            Self::Nothing => &[],
        }
    }
}

/// A buffer in which a message longer than a block is reassembled.
#[derive(Debug)]
pub struct Buffer<'a> {
    memory: ManagedSlice<'a, u8>,
    filled: usize,
    room: RoomToken,
}

impl Buffer<'_> {
    fn bytes(&self) -> &[u8] {
        self.memory.get(..self.filled).unwrap_or(&[])
    }
}

/// A notice for a part, due after what arrived before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Notice {
    /// Number of deliveries that come before it.
    behind: u32,
    kind: NoticeKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoticeKind {
    StreamBroken { source: NodeId, number: StreamNo },
    Failed(NodeId),
}

/// The private pipes of a node. Each has two lists, for commands and for everything else.
pub(super) struct Pipes<'a> {
    pieces: Rings<'a, Delivery>,
    notices: Rings<'a, Notice>,
    /// Free buffers for messages longer than a block.
    buffers: ManagedSlice<'a, Option<ManagedSlice<'a, u8>>>,
    me: NodeId,
    nodes: u16,
    masters: u16,
    routing: Routing,
    pub(super) events: Events<'a>,
    /// Whether the engine has asked for all open blocks to be flushed.
    pub(super) flush_wanted: bool,
    /// Whether anything was taken out of a pipe or released, which the next poll must see.
    pub(super) dirty: bool,
    /// Messages longer than a block that were given up in the middle.
    pub(super) incomplete: u64,
}

/// Events not yet taken: the most recent ones, up to the memory available.
pub(super) struct Events<'a> {
    slots: ManagedSlice<'a, Option<Event>>,
    first: usize,
    waiting: usize,
    pub(super) lost: u64,
}

impl<'a> Events<'a> {
    fn new(mut slots: ManagedSlice<'a, Option<Event>>) -> Self {
        slots.iter_mut().for_each(|slot| *slot = None);
        Self { slots, first: 0, waiting: 0, lost: 0 }
    }

    pub(super) fn pop(&mut self) -> Option<Event> {
        let event = self.slots.get_mut(self.first)?.take()?;
        self.first = (self.first + 1).checked_rem(self.slots.len())?;
        self.waiting -= 1;
        Some(event)
    }

    fn push(&mut self, event: Event) {
        if self.merge(&event) {
            return;
        }
        if self.waiting == self.slots.len() {
            self.pop();
            self.lost += 1;
        }
        let at = (self.first + self.waiting).checked_rem(self.slots.len());
        if let Some(slot) = at.and_then(|at| self.slots.get_mut(at)) {
            *slot = Some(event);
            self.waiting += 1;
        }
    }

    /// Merges a discard into an earlier one. Messages are discarded block by block, many per poll, so their count is added to a
    /// matching earlier event, provided that only discards have happened since.
    fn merge(&mut self, event: &Event) -> bool {
        let waiting = if event.is_discard() { self.waiting } else { 0 };
        for number in (0..waiting).rev() {
            let Some(before) = self.get_mut(number).filter(|before| before.is_discard()) else {
                return false;
            };
            if before.merge(event) {
                return true;
            }
        }
        false
    }

    /// A waiting event, by age: 0 is the oldest.
    fn get_mut(&mut self, number: usize) -> Option<&mut Event> {
        let at = (self.first + number).checked_rem(self.slots.len())?;
        self.slots.get_mut(at)?.as_mut()
    }
}

/// The list of a pipe's commands, and the list of everything else.
const fn lists(pipe: usize) -> (usize, usize) {
    (2 * pipe, 2 * pipe + 1)
}

impl<'a> Pipes<'a> {
    pub(super) fn new(
        config: &Config,
        (pieces, piece_rings): (ManagedSlice<'a, Option<Delivery>>, ManagedSlice<'a, RingState>),
        (notices, notice_rings): (ManagedSlice<'a, Option<Notice>>, ManagedSlice<'a, RingState>),
        (buffers, events): (ManagedSlice<'a, Option<ManagedSlice<'a, u8>>>, ManagedSlice<'a, Option<Event>>),
    ) -> Self {
        Self {
            pieces: Rings::new(pieces, piece_rings),
            notices: Rings::new(notices, notice_rings),
            buffers,
            me: config.node,
            nodes: config.nodes,
            masters: config.masters,
            routing: config.routing,
            events: Events::new(events),
            flush_wanted: false,
            dirty: true,
            incomplete: 0,
        }
    }

    /// Leaves a notice behind everything that has arrived. A repeated notice of a failed node moves to the end. One of a broken stream
    /// stays: a node that was restarted may have begun another stream of the same number behind it.
    fn push_notice(&mut self, pipe: usize, kind: NoticeKind) {
        let behind = self.pieces.len(lists(pipe).1) as u32;
        let moves = matches!(kind, NoticeKind::Failed(_));
        let is_repeated = |other: &Notice| other.kind == kind && (moves || other.behind == behind);
        for _ in 0..self.notices.len(pipe) {
            let other = self.notices.pop(pipe).filter(|notice| !is_repeated(notice));
            // It was there before, so it fits.
            let _ = other.map(|notice| self.notices.push(pipe, notice));
        }
        // Broken streams that have not been read are in the pipe or in the inbox, so there is room.
        let left = self.notices.push(pipe, Notice { behind, kind });
        debug_assert!(left.is_ok(), "{left:?}");
    }

    /// The next arrival in a pipe other than a command.
    #[inline]
    fn pull(&mut self, pipe: usize) -> Option<Arrival> {
        if self.notices.len(pipe) > 0 {
            return self.pull_with_notices(pipe);
        }
        let piece = self.pieces.pop(lists(pipe).1)?;
        self.dirty = true;
        Some(Arrival::Piece(piece))
    }

    /// As [`pull`](Self::pull), if the pipe has notices.
    #[inline(never)]
    fn pull_with_notices(&mut self, pipe: usize) -> Option<Arrival> {
        if let Some(Notice { behind: 0, kind }) = self.notices.get_mut(pipe, 0).copied() {
            self.notices.pop(pipe);
            // It may free space that others wait for.
            self.dirty = true;
            return Some(match kind {
                NoticeKind::StreamBroken { source, number } => Arrival::StreamBroken { source, number },
                NoticeKind::Failed(node) => Arrival::Failed(node),
            });
        }
        let piece = self.pieces.pop(lists(pipe).1)?;
        self.dirty = true;
        for number in 0..self.notices.len(pipe) {
            if let Some(notice) = self.notices.get_mut(pipe, number) {
                notice.behind = notice.behind.saturating_sub(1);
            }
        }
        Some(Arrival::Piece(piece))
    }

    /// The next command in a pipe.
    fn pull_command(&mut self, pipe: usize) -> Option<Delivery> {
        let piece = self.pieces.pop(lists(pipe).0)?;
        self.dirty = true;
        Some(piece)
    }

    /// Takes back what has been read.
    pub(super) fn release_hold<T: Transport, M: BlockMemory, P: SpacePolicy>(
        &mut self,
        hold: Hold<'a>,
        engine: &mut Engine<'_, T, M, P>,
    ) {
        self.dirty = true;
        match hold {
            Hold::Piece(delivery) => engine.release(delivery),
            Hold::Whole(buffer) => self.reclaim_buffer(buffer, engine),
            Hold::Nothing => {}
        }
    }

    fn reclaim_buffer<T: Transport, M: BlockMemory, P: SpacePolicy>(
        &mut self,
        buffer: Buffer<'a>,
        engine: &mut Engine<'_, T, M, P>,
    ) {
        if Flaw::KeepsBuffer.strikes() {
            return;
        }
        engine.release_room(buffer.room);
        if let Some(slot) = self.buffers.iter_mut().find(|slot| slot.is_none()) {
            *slot = Some(buffer.memory);
        }
    }

    /// Notes that nothing more arrives from a node, nor from the nodes that it relays.
    fn on_node_failed(&mut self, failed: NodeId) {
        for from in (0..self.nodes).filter_map(NodeId::new) {
            let relay = self.routing.relay(self.nodes, self.masters, from, self.me);
            if from == failed || relay == Some(failed) {
                (0..self.notices.lists()).for_each(|pipe| self.push_notice(pipe, NoticeKind::Failed(from)));
            }
        }
    }
}

impl PrivatePipes for Pipes<'_> {
    fn deliver(&mut self, pipe: PipeId, delivery: Delivery) -> Result<(), Delivery> {
        let (commands, others) = lists(usize::from(pipe.0));
        let urgent = matches!(delivery.kind(), DeliveryKind::Messages { urgent: true });
        self.pieces.push(if urgent { commands } else { others }, delivery)
    }

    fn event(&mut self, event: Event) {
        match &event {
            Event::FlushWanted => {
                self.flush_wanted = true;
                return;
            }
            Event::StreamBroken { mapping } => {
                let (source, number) = (mapping.source, mapping.number);
                self.push_notice(usize::from(mapping.pipe.0), NoticeKind::StreamBroken { source, number });
            }
            // Not when the link fails: earlier arrivals may still be waiting for room in a pipe.
            Event::LinkEnded { peer } => self.on_node_failed(*peer),
            _ => {}
        }
        self.events.push(event);
    }
}

/// The source of deliveries for the inbox of one part.
pub(super) struct Source<'e, 'a, T: Transport, M: BlockMemory, P> {
    pub(super) engine: &'e mut Engine<'a, T, M, P>,
    pub(super) pipes: &'e mut Pipes<'a>,
    pub(super) part: PartId,
    pub(super) pipe: usize,
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Source<'_, '_, T, M, P> {
    /// Whether the pipe is empty.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        let Pipes { pieces, notices, .. } = &*self.pipes;
        let (commands, others) = lists(self.pipe);
        pieces.len(commands) == 0 && pieces.len(others) == 0 && notices.len(self.pipe) == 0
    }

    /// Empties the pipe.
    pub(super) fn clear(&mut self) {
        while let Some(delivery) = self.pull_command() {
            self.engine.release(delivery);
        }
        while let Some(arrival) = self.pull() {
            if let Arrival::Piece(delivery) = arrival {
                self.engine.release(delivery);
            }
        }
    }
}

impl<'a, T: Transport, M: BlockMemory, P: SpacePolicy> Arrivals for Source<'_, 'a, T, M, P> {
    type Hold = Hold<'a>;
    type Buffer = Buffer<'a>;

    fn pull_command(&mut self) -> Option<Delivery> {
        self.pipes.pull_command(self.pipe)
    }

    fn pull(&mut self) -> Option<Arrival> {
        self.pipes.pull(self.pipe)
    }

    fn hold(&mut self, delivery: Delivery) -> Hold<'a> {
        Hold::Piece(delivery)
    }

    fn share(&mut self, hold: &Hold<'a>) -> Hold<'a> {
        match hold {
            Hold::Piece(delivery) => self.engine.share(delivery).map_or(Hold::Nothing, Hold::Piece),
            // A reassembled message is not shared.
            Hold::Whole(_) | Hold::Nothing => Hold::Nothing,
        }
    }

    fn release(&mut self, hold: Hold<'a>) {
        self.pipes.release_hold(hold, self.engine);
    }

    fn delivery<'h>(&'h self, hold: &'h Hold<'a>) -> Option<&'h Delivery> {
        match hold {
            Hold::Piece(delivery) => Some(delivery),
            Hold::Whole(_) | Hold::Nothing => None,
        }
    }

    fn begin(&mut self, source: PartId, message: u32, total: u32) -> Option<Buffer<'a>> {
        let room = self.engine.take_room(self.part, source, message, u64::from(total))?;
        // As many buffers exist as can be reserved, and all are long enough.
        match self.pipes.buffers.iter_mut().find_map(Option::take) {
            Some(memory) => Some(Buffer { memory, filled: 0, room }),
            None => {
                self.engine.release_room(room);
                None
            }
        }
    }

    fn append(&mut self, buffer: &mut Buffer<'a>, hold: &Hold<'a>, start: usize, end: usize) {
        let Some(bytes) = hold.bytes().get(start..end) else { return };
        if let Some(room) = buffer.memory.get_mut(buffer.filled..buffer.filled + bytes.len()) {
            room.copy_from_slice(bytes);
            buffer.filled += bytes.len();
        }
    }

    fn finish(&mut self, buffer: Buffer<'a>) -> Hold<'a> {
        Hold::Whole(buffer)
    }

    fn discard(&mut self, buffer: Buffer<'a>) {
        self.pipes.dirty = true;
        // If its space was granted but no bytes have arrived, nothing is lost.
        self.pipes.incomplete += u64::from(buffer.filled > 0);
        self.pipes.reclaim_buffer(buffer, self.engine);
    }

    fn lost(&mut self, node: NodeId) {
        // Others may wait for its space.
        self.pipes.dirty = true;
        self.engine.lose_rooms(self.part, node);
    }
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::*;
    use crate::umb::{BlockPool, HeapMemory, SharedBlock, stride};

    #[test]
    fn each_of_two_streams_of_one_number_is_broken_behind_its_own_segments() {
        let [me, peer] = [0, 1].map(|index| NodeId::new(index).unwrap());
        let mut pool = BlockPool::new(HeapMemory::new(stride(100)).unwrap(), me, 100);
        let mut block = SharedBlock::new(pool.take().unwrap().into_arrived(100));
        let place = (crate::routing::LinkId::from_index(0), 0);
        let rings = |count| ManagedSlice::Owned(vec![RingState::default(); count]);
        let pieces = (0..8).map(|_| None).collect::<Vec<_>>();
        let mut pipes = Pipes::new(
            &Config::new(me, 2),
            (ManagedSlice::Owned(pieces), rings(2)),
            (ManagedSlice::Owned(vec![None; 8]), rings(1)),
            (ManagedSlice::Owned(Vec::new()), ManagedSlice::Owned(Vec::new())),
        );
        let broken = NoticeKind::StreamBroken { source: peer, number: StreamNo(1) };
        pipes.push_notice(0, broken);
        pipes.push_notice(0, NoticeKind::Failed(peer));
        // The node is back, and has begun its first stream.
        assert!(pipes.deliver(PipeId(0), block.lend_whole(place, peer).unwrap()).is_ok());
        for _ in 0..3 {
            pipes.push_notice(0, broken);
            pipes.push_notice(0, NoticeKind::Failed(peer));
        }
        assert!(matches!(pipes.pull(0), Some(Arrival::StreamBroken { .. })));
        let Some(Arrival::Piece(segment)) = pipes.pull(0) else { panic!("no segment") };
        assert!(block.reclaim(segment, place).is_ok());
        assert!(matches!(pipes.pull(0), Some(Arrival::StreamBroken { .. })));
        assert!(matches!(pipes.pull(0), Some(Arrival::Failed(_))));
        assert!(pipes.pull(0).is_none());
        assert!(pool.give_arrived(block.take().unwrap()).is_ok());
    }
}
