//! What a failed peer did not get goes back to the parts that wrote it.
//!
//! A returned block is one of ours, so that its readers are counted in UMBInfo-Tab; it needs no element of RM, whose rows are
//! the credit of peers. It stays in its row of SM until the last reader is done. Of a stream that was given up the end does not come
//! back if it has no data: its writer knows, and its reader has lost the stream with the link.

use zerocopy::FromBytes;

use super::circuits::is_bare_end;
use super::{Delivery, DeliveryKind, Engine, PrivatePipes};
use crate::cdu::{BlockClass, BlockHeader, Cdus};
use crate::id::{PipeId, StreamNo};
use crate::policy::SpacePolicy;
use crate::routing::LinkId;
use crate::transport::Transport;
use crate::umb::{BlockMemory, BlockState, Place};

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Counts the messages of a data block that its peer did not get, and queues it for the parts that wrote it.
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
        self.returning = true;
    }

    /// Routes returned blocks, those of each peer in the order in which they were sent, until a private pipe is full.
    pub(super) fn route_returned(&mut self, pipes: &mut impl PrivatePipes) -> u32 {
        if !core::mem::take(&mut self.returning) {
            return 0;
        }
        let (mut worked, mut waiting) = (0, false);
        for id in self.links.ids() {
            while let Some(link) = self.links.get(id).filter(|link| !link.send.returned.is_empty()) {
                let (index, at) = (link.send.returned.head, link.send.returned_at);
                // Goes on there if the host panics.
                self.returning = true;
                let (readers, blocked) = self.route_back((id, index), at, pipes);
                worked += readers;
                let Self { links, umb, .. } = self;
                let Some(link) = links.get_mut(id) else { break };
                link.send.returned_at = blocked.unwrap_or(0);
                if blocked.is_some() {
                    waiting = true;
                    break;
                }
                let routed = link.send.returned.pop_front(umb);
                debug_assert_eq!(routed, Some(index));
                worked += 1;
                if let Some(entry) = umb.entry(index) {
                    entry.state = BlockState::Reread;
                }
                self.recycle_reread(index);
            }
        }
        self.returning = waiting;
        worked
    }

    /// Runs of CDUs of the same part go back to it. How many deliveries were made, and where it goes on if a pipe was full.
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
            // This engine's writers have packed the block, so that it can be read.
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
                self.lose(via, messages, pipes);
            // A part that is gone does not want them back.
            } else if let Some(pipe) = self.pipes.of(part) {
                let dest = via.map_or(self.links.peer(place.0), |via| via.dest);
                let kind = DeliveryKind::Returned { stream };
                if let Some(delivery) = self.umb.lend_piece((at, end), place, dest, kind) {
                    if !self.offer_back(pipe, delivery, at, pipes) {
                        return (readers, Some(at));
                    }
                    readers += 1;
                }
            }
            at = end;
        }
        (readers, None)
    }

    /// Offers a piece of a returned block to a private pipe, counted before the host has it. `false`: the pipe is full.
    fn offer_back(
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
        // A host that hands back another delivery has kept this one.
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

    /// A returned block that is routed to its end, and read, is vacant.
    fn recycle_reread(&mut self, index: u32) {
        let routed = self.umb.entry(index).is_some_and(|entry| entry.state == BlockState::Reread);
        if routed && self.umb.is_here(index) {
            self.recycle(index);
        }
    }
}

/// Messages of a block that somebody would miss.
fn messages_in(bytes: &[u8]) -> u64 {
    let Ok((header, body)) = BlockHeader::ref_from_prefix(bytes) else { return 0 };
    match Cdus::new(body).next() {
        Some(Ok(train)) if is_bare_end(header, &train) => 0,
        _ => u64::from(header.messages.get()),
    }
}
