//! Returns undelivered messages to their senders when a peer fails.
//!
//! A returned block belongs to this node, so its readers are counted in UMBInfo-Tab. It needs no element of RM, whose rows are
//! the credit of peers, and stays in its row of SM until the last reader is done. The end of an aborted stream is not returned if
//! it has no data: its writer knows, and its reader lost the stream with the link.

use zerocopy::FromBytes;

use super::circuits::is_bare_end;
use super::link::Work;
use super::{Delivery, DeliveryKind, Engine, PrivatePipes};
use crate::cdu::{BlockClass, BlockHeader, Cdus};
use crate::id::{PipeId, StreamNo};
use crate::policy::SpacePolicy;
use crate::routing::LinkId;
use crate::transport::Transport;
use crate::umb::{BlockMemory, BlockState, Place};

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Counts the messages of a data block that the peer did not receive, and queues the block for the parts that wrote it.
    pub(super) fn send_back(&mut self, id: LinkId, index: u32) {
        let Self { links, umb, .. } = self;
        let messages = messages_in(umb.sealed(index).unwrap_or(&[]));
        self.counters.undelivered += messages;
        if let Some(entry) = umb.entry(index) {
            entry.state = BlockState::Returned;
        }
        if let Some(link) = links.get_mut(id) {
            link.undelivered += messages;
            link.send.returned.push_back(umb, index);
        }
        links.mark(id, Work::RETURN);
    }

    /// Routes returned blocks, in the order in which they were sent to each peer, until a private pipe is full.
    pub(super) fn route_returned(&mut self, pipes: &mut impl PrivatePipes) -> u32 {
        let mut worked = 0;
        let mut returned = self.links.first_with(Work::RETURN);
        while let Some(id) = returned {
            // Routing resumes here if the host panics.
            self.links.mark(id, Work::RETURN);
            let (done, blocked) = self.route_row_back(id, pipes);
            worked += done;
            if !blocked {
                self.links.unmark(id, Work::RETURN);
            }
            returned = self.links.next_with(id, Work::RETURN);
        }
        worked
    }

    /// Routes the returned blocks of one peer. Returns the work done, and whether a private pipe was full.
    fn route_row_back(&mut self, id: LinkId, pipes: &mut impl PrivatePipes) -> (u32, bool) {
        let mut worked = 0;
        while let Some(link) = self.links.get(id).filter(|link| !link.send.returned.is_empty()) {
            let (index, at) = (link.send.returned.head, link.send.returned_at);
            let (readers, blocked) = self.route_back((id, index), at, pipes);
            worked += readers;
            let Self { links, umb, .. } = self;
            let Some(link) = links.get_mut(id) else { return (worked, false) };
            link.send.returned_at = blocked.unwrap_or(0);
            if blocked.is_some() {
                return (worked, true);
            }
            let routed = link.send.returned.pop_front(umb);
            debug_assert_eq!(routed, Some(index));
            worked += 1;
            if let Some(entry) = umb.entry(index) {
                entry.state = BlockState::Reread;
            }
            self.recycle_reread(index);
        }
        (worked, false)
    }

    /// Delivers runs of CDUs to the parts that sent them. Returns the number of deliveries, and where to resume if a pipe was full.
    fn route_back(&mut self, place: Place, at: usize, pipes: &mut impl PrivatePipes) -> (u32, Option<usize>) {
        let Some(whole) = self.umb.lend_whole(place, self.links.peer(place.0)) else { return (0, None) };
        let outcome = self.route_runs_back(&whole, place, at, pipes);
        let back = self.umb.take_piece(whole);
        debug_assert!(back.is_ok(), "the block was lent above");
        outcome
    }

    fn route_runs_back(
        &mut self,
        whole: &Delivery,
        place: Place,
        mut at: usize,
        pipes: &mut impl PrivatePipes,
    ) -> (u32, Option<usize>) {
        let (header, body) = (whole.block(), whole.bytes());
        let segment = (StreamNo(header.stream.get()), header.segment.get());
        let stream = (header.class() == BlockClass::Stream).then_some(segment);
        let mut readers = 0;
        while at < body.len() {
            let mut cdus = Cdus::new(body.get(at..).unwrap_or(&[]));
            // The block was packed by this engine, so it is well formed.
            let Some(Ok(first)) = cdus.next() else { break };
            if is_bare_end(header, &first) {
                break;
            }
            let (part, via) = (first.source_part(), first.via());
            let mut messages = first.count();
            let mut end = body.len() - cdus.remaining();
            while let Some(Ok(next)) = cdus.next()
                && (next.source_part(), next.via()) == (part, via)
            {
                messages = messages.saturating_add(next.count());
                end = body.len() - cdus.remaining();
            }
            let me = self.config.node;
            if let Some(via) = via.filter(|via| via.origin != me) {
                self.drop_relayed(via, messages, pipes);
            // Messages of a part that no longer exists are dropped.
            } else if let Some(pipe) = self.pipes.of(part) {
                let dest = via.map_or(self.links.peer(place.0), |via| via.dest);
                let kind = DeliveryKind::Returned { stream };
                if let Some(delivery) = self.umb.lend_piece((at, end), place, dest, kind) {
                    if !self.offer_returned(pipe, delivery, at, pipes) {
                        return (readers, Some(at));
                    }
                    readers += 1;
                }
            }
            at = end;
        }
        (readers, None)
    }

    /// Offers a piece of a returned block to a private pipe, counting it before the host has it. Returns `false` if the pipe is
    /// full.
    fn offer_returned(
        &mut self,
        pipe: PipeId,
        delivery: Delivery,
        at: usize,
        pipes: &mut impl PrivatePipes,
    ) -> bool {
        let place = delivery.place();
        self.tokens += 1;
        if let Some(link) = self.links.get_mut(place.0) {
            link.send.returned_at = at;
        }
        let Err(back) = pipes.deliver(pipe, delivery) else { return true };
        let is_it = back.begins_at(place, at) && matches!(back.kind(), DeliveryKind::Returned { .. });
        // A host that hands back another delivery has kept the one it was offered.
        self.release(back);
        !is_it
    }

    pub(super) fn release_returned(&mut self, delivery: Delivery) {
        let index = delivery.place().1;
        if self.umb.take_piece(delivery).is_err() {
            self.counters.foreign_tokens += 1;
            return;
        }
        self.tokens -= 1;
        self.recycle_reread(index);
    }

    /// Frees a returned block once it has been routed and read.
    fn recycle_reread(&mut self, index: u32) {
        let routed = self.umb.entry(index).is_some_and(|entry| entry.state == BlockState::Reread);
        if routed && self.umb.is_idle(index) {
            self.recycle(index);
        }
    }
}

/// Number of messages in a block, not counting a bare end of stream.
fn messages_in(bytes: &[u8]) -> u64 {
    let Ok((header, body)) = BlockHeader::ref_from_prefix(bytes) else { return 0 };
    match Cdus::new(body).next() {
        Some(Ok(train)) if is_bare_end(header, &train) => 0,
        _ => u64::from(header.messages.get()),
    }
}
