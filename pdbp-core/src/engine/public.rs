//! The engine's own public pipes: blocks that it fills itself, message by message.

use super::Engine;
use super::sending::OpenError;
use crate::cdu::Route;
use crate::id::{PartId, Time};
use crate::policy::SpacePolicy;
use crate::routing::Slot;
use crate::transport::Transport;
use crate::umb::{BlockMemory, OpenBlock};

/// Why [`Engine::send`] did not take a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendError {
    /// No block is to be had now.
    Open(OpenError),
    /// The message has more bytes than fit a block; the most is given. Send it in segments or as a stream.
    TooLong(usize),
}

/// A public pipe of the message group: the block to one node that the engine itself is filling.
#[derive(Debug, Default)]
pub struct PublicPipe {
    open: Option<OpenBlock>,
    since: Time,
}

impl PublicPipe {
    pub(super) fn take(&mut self) -> Option<OpenBlock> {
        self.open.take()
    }

    pub(super) fn since(&self) -> Time {
        self.since
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    pub(super) fn deadline(&self, flush_after: u64) -> Option<Time> {
        self.open.as_ref().map(|_| self.since.after(flush_after))
    }
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Packs one message into the engine's own public pipe to the destination's node. It leaves when the block is full, after
    /// [`Config::flush_after`](super::Config::flush_after), at [`flush`](Self::flush), or when a poll has nothing else to do.
    ///
    /// # Errors
    /// See [`SendError`]; nothing was sent.
    pub fn send(&mut self, now: Time, route: Route, dest: PartId, data: &[u8]) -> Result<(), SendError> {
        let most = self.config.longest_unsegmented();
        if data.len() > most {
            return Err(SendError::TooLong(most));
        }
        let node = dest.node();
        let (slot, via) = self.first_hop(node).map_err(SendError::Open)?;
        for _ in 0..2 {
            let Some(pipe) = self.public.get_mut(slot.index()) else {
                return Err(SendError::Open(OpenError::NoSuchNode(node)));
            };
            if let Some(block) = &mut pipe.open {
                if self.links.is_grid() {
                    block.packer.turn(via);
                }
                if block.push(route, data).is_ok() {
                    return Ok(());
                }
            }
            if let Some(full) = pipe.open.take() {
                self.submit(full);
            }
            let block = self.open_row(slot, node).map_err(SendError::Open)?;
            self.fill_public(slot, block, now);
        }
        Err(SendError::TooLong(most))
    }

    /// The engine goes on filling a block that it has begun at `since`.
    pub(super) fn fill_public(&mut self, slot: Slot, block: OpenBlock, since: Time) {
        self.filling = true;
        if let Some(pipe) = self.public.get_mut(slot.index()) {
            *pipe = PublicPipe { open: Some(block), since };
        }
    }

    /// Submits what [`send`](Self::send) has packed.
    pub fn flush(&mut self) {
        for i in 0..self.public.len() {
            if let Some(block) = self.public.get_mut(i).and_then(|p| p.open.take()) {
                self.submit(block);
            }
        }
    }

    /// Whether blocks to node number `node` wait for credit or for the transport. One more that leaves half empty would not arrive
    /// earlier for it; it would only take the element that a full one could have.
    pub(super) fn is_held_up(&self, node: usize) -> bool {
        self.send_rows.get(node).is_some_and(|row| row.queue.len + row.urgent.len > 0)
    }

    /// Submits blocks past their time, and when there is nothing else to do all that would leave at once.
    pub(super) fn flush_public(&mut self, now: Time, idle: bool) -> u32 {
        if !core::mem::take(&mut self.filling) {
            return 0;
        }
        let mut flushed = 0;
        for i in 0..self.public.len() {
            let due = self
                .public
                .get(i)
                .and_then(|p| p.deadline(self.config.flush_after))
                .is_some_and(|deadline| idle || deadline <= now)
                && !self.is_held_up(i);
            if due && let Some(block) = self.public.get_mut(i).and_then(|p| p.open.take()) {
                self.submit(block);
                flushed += 1;
            }
            self.filling |= self.public.get(i).is_some_and(PublicPipe::is_open);
        }
        flushed
    }

    /// When the first of the blocks being filled is past its time.
    pub(super) fn public_deadline(&self) -> Option<Time> {
        if !self.filling {
            return None;
        }
        let after = self.config.flush_after;
        let open = self.public.iter().enumerate().filter(|(i, _)| !self.is_held_up(*i));
        open.filter_map(|(_, p)| p.deadline(after)).min()
    }
}
