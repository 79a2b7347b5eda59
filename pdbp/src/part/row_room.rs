//! Waiting for room in the row to a node.

use pdbp_core::engine::OpenError;
use pdbp_core::id::{NodeId, Time};
use pdbp_core::outbox;

use super::sending::{Patience, failed, route_nodes};
use super::{Message, Part, Share, Target};
use crate::error::SendError;
use crate::node::{NodeEngine, Turn, WaitFailure, Waiter};

impl<S: Share> Part<S> {
    /// As [`await_room`](Self::await_room), for messages in blocks of this part's own, which leave after what it has packed into a block that
    /// it shares with others.
    pub(super) fn when_room<R>(
        &self,
        (node, bytes): (NodeId, usize),
        patience: Patience,
        receive: Option<&mut (dyn FnMut(Message<S>) + '_)>,
        mut attempt: impl FnMut(&mut NodeEngine, Time) -> Result<R, outbox::SendError>,
    ) -> Result<R, SendError> {
        let common = self.shared().common.get();
        if (self.in_common.get() || self.has_left_packed.get())
            && let Some(common) = common
        {
            common.submit(&mut self.shared().engine(), node);
            if common.oldest().is_none() {
                self.has_left_packed.set(false);
            }
        }
        // Who does not wait here asks `has_room` next, which sees the block that parts share. That has no room for this: it leaves, or, if a
        // look for room has opened it and nobody has used it, makes room.
        let common = common.filter(|_| patience.timeout(self).is_none_or(|timeout| timeout.is_zero()));
        self.await_room((node, bytes), patience, receive, |engine, now| match attempt(engine, now) {
            Err(outbox::SendError::Open(OpenError::WouldBlock))
                if common.is_some_and(|common| common.submit(engine, node)) =>
            {
                attempt(engine, now)
            }
            done => done,
        })
    }

    /// Submits what this part has packed for a node. Then repeats `attempt`, which needs room for a message of `bytes` bytes there,
    /// until it succeeds. Messages that arrive meanwhile are passed to `receive`, if given.
    pub(super) fn await_room<R>(
        &self,
        (node, bytes): (NodeId, usize),
        patience: Patience,
        mut receive: Option<&mut (dyn FnMut(Message<S>) + '_)>,
        mut attempt: impl FnMut(&mut NodeEngine, Time) -> Result<R, outbox::SendError>,
    ) -> Result<R, SendError> {
        let shared = self.shared();
        let full = self.lanes.take(node);
        let mut engine = shared.engine();
        // If no earlier block had to be submitted, the message need not wait for a poll.
        let mut polled = full.is_some();
        let mut turn = match full {
            Some(full) => {
                engine.submit(full);
                self.poll_with(&mut engine)
            }
            None => Turn::at(shared.now()),
        };
        let timeout = patience.timeout(self);
        let mut waiter = None;
        loop {
            let error = match attempt(&mut engine, turn.now) {
                Err(error) if error.is_transient() => error,
                done => return done.map_err(|error| self.send_error(&engine, error, bytes)),
            };
            if !std::mem::replace(&mut polled, true) || self.flush_row(&mut engine, node) {
                turn = self.poll_with(&mut engine);
                continue;
            }
            let Some(timeout) = timeout else {
                self.stall(&engine, node);
                drop(engine);
                if turn.worked == 0 {
                    self.shared().yield_if_crowded();
                }
                return Err(SendError::WouldBlock);
            };
            let waiter = waiter.get_or_insert_with(|| Waiter::new(timeout, shared));
            if waiter.is_over() {
                let missing = missing(&engine, node, error);
                return Err(waiter.failure(route_nodes(&engine, node), missing).into());
            }
            drop(engine);
            self.pause_send(waiter, error, turn.worked, receive.as_deref_mut())?;
            engine = shared.engine();
            // Other open blocks of this part may be what fills the row.
            self.flush_lanes(&mut engine);
            turn = self.poll_with(&mut engine);
        }
    }

    /// Waits briefly for room.
    fn pause_send(
        &self,
        waiter: &mut Waiter,
        error: outbox::SendError,
        worked: u32,
        receive: Option<&mut (dyn FnMut(Message<S>) + '_)>,
    ) -> Result<(), WaitFailure> {
        let waits_for_reader = error == outbox::SendError::AwaitsRoom;
        if waits_for_reader {
            self.shared().help_siblings();
        }
        let pipe = receive.as_ref().and_then(|_| self.pipe().ok());
        let received = receive.is_some_and(|receive| self.hand_on(receive));
        if received || waits_for_reader && worked > 0 {
            waiter.made_progress(&self.node)
        } else {
            waiter.pause(&self.node, pipe.as_slice())
        }
    }

    fn send_error(&self, engine: &NodeEngine, error: outbox::SendError, bytes: usize) -> SendError {
        match error {
            outbox::SendError::Open(OpenError::PeerFailed(node)) => failed(engine, node),
            outbox::SendError::Open(OpenError::NoSuchNode(node)) => SendError::NoSuchNode(node),
            outbox::SendError::NoRoom(limit) => {
                SendError::TooLong { bytes, limit: usize::try_from(limit).unwrap_or(usize::MAX) }
            }
            outbox::SendError::NoSuchPart(part) => SendError::NoSuchPart(part),
            _ if error.is_transient() => SendError::WouldBlock,
            _ => SendError::TooLong { bytes, limit: self.longest() },
        }
    }

    /// Whether sending a short message to the target would succeed without waiting.
    pub(crate) fn has_room(&self, to: Target) -> bool {
        const SHORT: usize = 256;
        let node = to.node();
        if let Err(SendError::WouldBlock) = self.check_target(to) {
            return false;
        }
        if self.lanes.with(|outbox| outbox.room(node.index())).is_some_and(|room| room >= SHORT) {
            return true;
        }
        if self.loaned.get() == Some(node) {
            // `send` will report it, but a stream is written meanwhile, and needs a block.
            return self.shared().engine().may_open(node);
        }
        let shared = self.shared();
        let common = shared.common.get();
        if let Some(has_room) =
            common.and_then(|c| c.has_room(shared, &mut shared.engine(), shared.now(), node, SHORT))
        {
            if has_room {
                self.retry_now(node);
            }
            return has_room;
        }
        let (block, now) = match self.open_block(node, Patience::None) {
            Ok(opened) => opened,
            Err(SendError::WouldBlock) => return false,
            // `send` will report the error without waiting.
            Err(_) => return true,
        };
        if let Some(before) = self.lanes.put(block, now) {
            self.shared().engine().submit(before);
        }
        true
    }
}

/// What the peers failed to do, if there was no room for the whole wait.
fn missing(engine: &NodeEngine, node: NodeId, error: outbox::SendError) -> &'static str {
    if error == outbox::SendError::AwaitsRoom {
        "made room for a long message, since earlier ones are unread; receive them, or raise `assembly_bytes`"
    } else if engine.unread_returns(node) > 0 {
        "freed a block: undelivered messages that came back fill its row; take them out with `try_returned`"
    } else if engine.backlog(node) > 0 {
        "read what was sent before, so there is no room; parts that send to each other must receive meanwhile (`send_or`, \
         `write_or`), and a part that gets several streams must read them all (`streams`)"
    } else {
        "freed a block: streams and parts of this node hold all blocks that its row may have open; finish or flush some, or \
         raise `row_blocks`"
    }
}
