//! What a failed peer did not get goes back to the parts that wrote it.
//!
//! A returned block is one of ours, so that its readers are counted in UMBInfo-Tab; it needs no element of RM, whose rows are
//! the credit of peers. It stays in its row of SM until the last reader is done.

use zerocopy::FromBytes;

use super::{Delivery, DeliveryKind, Engine, PrivatePipes};
use crate::cdu::{BLOCK_HEADER, BlockClass, BlockHeader, Cdus};
use crate::id::StreamNo;
use crate::policy::SpacePolicy;
use crate::routing::Slot;
use crate::transport::Transport;
use crate::umb::{ArrivedBlock, BlockInfo, BlockMemory, BlockState, SealedBlock};

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Counts the messages of a data block that its peer did not get, and queues it for the parts that wrote it.
    pub(super) fn send_back(&mut self, node: Slot, index: u32, length: u32) {
        let block = SealedBlock { raw: self.umb.raw(index), length };
        let header = BlockHeader::ref_from_prefix(block.bytes()).map(|(header, _)| header);
        let messages = header.map_or(0, |h| u64::from(h.messages.get()));
        self.counters.undelivered += messages;
        if let Some(peer) = self.peers.get_mut(node.index()) {
            peer.undelivered += messages;
        }
        if let Some(entry) = self.umb.entry(index) {
            entry.state = BlockState::Returned;
            (entry.length, entry.readers) = (length, 1);
        }
        self.enqueue(index, |e| e.send_rows.get_mut(node.index()).map(|r| &mut r.returned));
        self.returning = true;
    }

    /// Routes returned blocks, those of each peer in the order in which they were sent, until a private pipe is full.
    pub(super) fn route_returned(&mut self, pipes: &mut impl PrivatePipes) -> u32 {
        if !core::mem::take(&mut self.returning) {
            return 0;
        }
        let mut worked = 0;
        for node in (0..self.send_rows.len()).map(Slot::from_index) {
            while let Some(row) = self.send_rows.get(node.index()).filter(|row| row.returned.len > 0) {
                let (index, at) = (row.returned.head, row.returned_at);
                let length = self.umb.entry(index).map_or(0, |e| e.length);
                let block = SealedBlock { raw: self.umb.raw(index), length }.into_arrived();
                let (readers, blocked) = self.route_back(&block, (node, index), at, pipes);
                worked += readers;
                self.tokens += u64::from(readers);
                if let Some(entry) = self.umb.entry(index) {
                    entry.readers += readers;
                }
                if let Some(row) = self.send_rows.get_mut(node.index()) {
                    row.returned_at = blocked.unwrap_or(0);
                }
                if blocked.is_some() {
                    self.returning = true;
                    break;
                }
                let routed = self.dequeue(|e| e.send_rows.get_mut(node.index()).map(|r| &mut r.returned));
                debug_assert_eq!(routed, Some(index));
                worked += 1;
                self.drop_reader_of_returned(index);
            }
        }
        worked
    }

    /// Runs of CDUs of the same part go back to it. How many deliveries were made, and where it goes on if a pipe was full.
    fn route_back(
        &mut self,
        block: &ArrivedBlock,
        place: (Slot, u32),
        mut at: usize,
        pipes: &mut impl PrivatePipes,
    ) -> (u32, Option<usize>) {
        let bytes = block.bytes();
        let Ok((header, body)) = BlockHeader::ref_from_prefix(bytes) else { return (0, None) };
        let segment = (StreamNo(header.stream.get()), header.segment.get());
        let stream = (header.class() == BlockClass::Stream).then_some(segment);
        let mut readers = 0;
        while at < body.len() {
            let mut cdus = Cdus::new(body.get(at..).unwrap_or(&[]));
            // This engine's writers have packed the block, so that it can be read.
            let Some(Ok(first)) = cdus.next() else { break };
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
                let dest = via.map_or(self.links.node(place.0), |via| via.dest);
                let kind = DeliveryKind::Returned { stream };
                let delivery = Delivery::new(block, (at, end), place, dest, kind);
                match pipes.deliver(pipe, delivery) {
                    // A host that hands back another delivery has kept this one.
                    Err(back) if back.is_of(block, place) => return (readers, Some(at)),
                    _ => readers += 1,
                }
            }
            at = end;
        }
        (readers, None)
    }

    pub(super) fn release_returned(&mut self, node: Slot, delivery: Delivery) {
        let index = delivery.element;
        let returned = |e: &mut BlockInfo| e.state == BlockState::Returned && e.readers > 0;
        let is_own = self.umb.entry(index).is_some_and(returned) && {
            let block = SealedBlock { raw: self.umb.raw(index), length: BLOCK_HEADER as u32 };
            delivery.is_of(&block.into_arrived(), (node, index))
        };
        if !is_own {
            self.counters.foreign_tokens += 1;
            return;
        }
        self.tokens -= 1;
        self.drop_reader_of_returned(index);
    }

    fn drop_reader_of_returned(&mut self, index: u32) {
        let Some(entry) = self.umb.entry(index) else { return };
        entry.readers = entry.readers.saturating_sub(1);
        if entry.readers == 0 {
            self.recycle(index);
        }
    }
}
