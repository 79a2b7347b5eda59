//! Sending messages.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytemuck::NoUninit;
use pdbp_core::OpenBlock;
use pdbp_core::cdu::{CduClass, Packer, Route};
use pdbp_core::engine::OpenError;
use pdbp_core::id::{NodeId, Time};
use pdbp_core::outbox::{Hop, LongMessage, Outbox, Outgoing};

use super::{Message, Part, Share, Target};
use crate::config::Progress;
use crate::error::{SendError, Timeout};
use crate::node::{NodeEngine, Waiter};

/// Sends that found no room between two polls, when nothing else polls.
const RETRY: u32 = 8;

/// How long a call may wait for room.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// As long as the setting `timeout_ms` says.
    Set,
    None,
    For(Duration),
    Until(Instant),
}

impl Patience {
    /// Time left to wait; `None` if the call must not wait.
    fn timeout<S: Share>(self, part: &Part<S>) -> Option<Duration> {
        match self {
            Self::Set => Some(part.shared().settings.timeout),
            Self::None => None,
            Self::For(timeout) => Some(timeout),
            Self::Until(deadline) => Some(deadline.saturating_duration_since(Instant::now())),
        }
    }
}

/// Unsets a flag in the end, after a panic too.
struct End<'f>(&'f Cell<bool>);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl<S: Share> Part<S> {
    /// Sends a message. Returns as soon as it is packed; it leaves when its block is full, at [`flush`](Self::flush), when this
    /// part waits for something, or after the setting `flush_after_us`. Messages to one part arrive in order. When there is no
    /// room it waits, as long as the setting `timeout_ms` says, and goes on taking deliveries meanwhile.
    ///
    /// A message longer than a block travels in segments and is put together at the receiver. Before the first of them this waits
    /// until the receiving node has room for it, of which it has `assembly_bytes` for all its parts and senders.
    ///
    /// # Errors
    /// See [`SendError`].
    // Inlined where it is called, so that copies of a length known there need no loop.
    #[inline(always)]
    pub fn send(&self, to: Target, message: &[u8]) -> Result<(), SendError> {
        if self.lanes.push_next(to, message) { Ok(()) } else { self.send_waiting(to, message) }
    }

    /// As [`send`](Self::send), without waiting for room.
    ///
    /// # Errors
    /// [`SendError::WouldBlock`] when there is none; [`SendError::NeedsWaiting`] for a message longer than a block
    /// ([`longest`](Self::longest)), for which no call can know whether there is room.
    #[inline(always)]
    pub fn try_send(&self, to: Target, message: &[u8]) -> Result<(), SendError> {
        if self.lanes.push_next(to, message) { Ok(()) } else { self.send_at_once(to, message) }
    }

    /// As [`send`](Self::send).
    #[inline(always)]
    pub(super) fn send_with(&self, to: Target, message: &[u8], patience: Patience) -> Result<(), SendError> {
        if self.lanes.push_next(to, message) { Ok(()) } else { self.send_other(to, message, patience) }
    }

    #[inline(never)]
    fn send_waiting(&self, to: Target, message: &[u8]) -> Result<(), SendError> {
        self.send_other(to, message, Patience::Set)
    }

    #[inline(never)]
    fn send_at_once(&self, to: Target, message: &[u8]) -> Result<(), SendError> {
        self.send_other(to, message, Patience::None)
    }

    /// A message to another part than the one before, or of another length.
    #[inline]
    fn send_other(&self, to: Target, message: &[u8], patience: Patience) -> Result<(), SendError> {
        let is_packed = self.knows_target(to) && {
            let route = self.route(to, CduClass::ShortMessage, 0);
            self.lanes.push(to, route, message).is_ok()
        };
        if is_packed { Ok(()) } else { self.send_slow(to, message, patience) }
    }

    /// Sends one plain value. Values of one type to the same part form trains, which cost no header each.
    ///
    /// # Errors
    /// See [`SendError`].
    #[inline(always)]
    pub fn send_value<T: NoUninit>(&self, to: Target, value: &T) -> Result<(), SendError> {
        self.send(to, bytemuck::bytes_of(value))
    }

    /// As [`send_value`](Self::send_value), without waiting for room.
    ///
    /// # Errors
    /// As [`try_send`](Self::try_send).
    #[inline(always)]
    pub fn try_send_value<T: NoUninit>(&self, to: Target, value: &T) -> Result<(), SendError> {
        self.try_send(to, bytemuck::bytes_of(value))
    }

    /// Sends a command: see [`Sender::command`](super::Sender::command).
    pub(super) fn send_command(
        &self,
        to: Target,
        command: u16,
        data: &[u8],
        patience: Patience,
    ) -> Result<(), SendError> {
        let limit = self.longest();
        if data.len() > limit {
            return Err(SendError::TooLong { bytes: data.len(), limit });
        }
        self.check_target(to)?;
        let route = self.route(to, CduClass::Command, command);
        let (block, _) = self.open_block(to.node(), patience)?;
        let mut engine = self.shared().engine();
        let packed = Outbox::send_urgent_in(&mut *engine, block, route, data);
        debug_assert!(packed.is_ok(), "a command of at most `longest` bytes fits an empty block");
        self.poll_with(&mut engine);
        Ok(())
    }

    /// Sends a message to several parts: one copy per destination node, shared by the parts of a node. Every receiver gets it
    /// once, however often it is listed on one node.
    ///
    /// # Errors
    /// See [`SendError`]. Nodes that come before one that fails have the message.
    pub fn send_all(&self, to: &[Target], message: &[u8]) -> Result<(), SendError> {
        let mut parts: Vec<Target> = to.to_vec();
        parts.sort_unstable();
        parts.dedup();
        let most = self.shared().settings.block_bytes.saturating_sub(Packer::overhead(parts.len()));
        if parts.len() >= usize::from(u16::MAX) || most < 64 {
            return Err(SendError::TooManyDestinations { parts: parts.len() });
        }
        self.check_length(message)?;
        parts.iter().try_for_each(|part| self.check_target(*part))?;
        let Some(first) = parts.first().copied() else { return Err(SendError::NoDestination) };
        let route = self.route(first, CduClass::ShortMessage, 0);
        let mut nodes: Vec<NodeId> = parts.iter().map(|p| p.node()).collect();
        nodes.dedup();
        for node in nodes {
            let outgoing = Outgoing::to_set(route, &parts, message);
            if message.len() <= most {
                self.pack(node, &outgoing, Patience::Set)?;
            } else {
                // Each part puts it together, and the room is asked for part by part: who holds some and waits for more could wait
                // for ever.
                for to in parts.iter().filter(|part| part.node() == node) {
                    self.send(*to, message)?;
                }
            }
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn route(&self, to: Target, class: CduClass, command: u16) -> Route {
        Route::new(class, command, self.id, to)
    }

    /// The longest message that travels in one block.
    pub fn longest(&self) -> usize {
        self.shared().longest()
    }

    fn check_length(&self, message: &[u8]) -> Result<(), SendError> {
        let limit = self.shared().settings.assembly_bytes.max(self.longest());
        let bytes = message.len();
        if bytes > limit { Err(SendError::TooLong { bytes, limit }) } else { Ok(()) }
    }

    #[cold]
    #[inline(never)]
    fn send_slow(&self, to: Target, message: &[u8], patience: Patience) -> Result<(), SendError> {
        self.check_target(to)?;
        let route = self.route(to, CduClass::ShortMessage, 0);
        if message.len() <= self.longest() {
            if let Patience::None = patience
                && self.is_stalled(to.node())
            {
                return Err(SendError::WouldBlock);
            }
            return self.pack(to.node(), &Outgoing::message(route, message), patience);
        }
        match patience.timeout(self) {
            Some(timeout) => self.send_long(to, message, timeout, None),
            // Several blocks are needed; that there is room for all cannot be known.
            None => self.check_length(message).and(Err(self.needs_waiting(message))),
        }
    }

    fn needs_waiting(&self, message: &[u8]) -> SendError {
        SendError::NeedsWaiting { bytes: message.len(), limit: self.longest() }
    }

    /// Whether a send to the node found no room and nothing has happened at this node since. A part that tries again and again
    /// is told so at once, without the engine's lock; every [`RETRY`]th time it polls all the same.
    fn is_stalled(&self, node: NodeId) -> bool {
        let Some(stalled) = self.stalled.get(node.index()) else { return false };
        let (turn, tries) = stalled.get();
        if turn != self.shared().turns.load(Ordering::Relaxed)
            || self.lanes.with(|outbox| outbox.room(node.index())).is_some()
        {
            return false;
        }
        stalled.set((turn, tries.wrapping_add(1)));
        !tries.wrapping_add(1).is_multiple_of(RETRY)
    }

    /// Sends a message longer than a block, in pieces, when its receiver has room for it; what arrives meanwhile is handed to `receive`, if
    /// there is one. A part has one such message on its way at a time.
    pub(super) fn send_long(
        &self,
        to: Target,
        message: &[u8],
        timeout: Duration,
        mut receive: Option<&mut (dyn FnMut(Message<S>) + '_)>,
    ) -> Result<(), SendError> {
        self.check_length(message)?;
        if self.is_sending_long.replace(true) {
            return Err(self.needs_waiting(message));
        }
        let _end = End(&self.is_sending_long);
        let number = self.next_message.get();
        self.next_message.set(number.wrapping_add(1));
        let bytes = message.len();
        let started = Instant::now();
        self.wait_for_room(to, (number, bytes), timeout, receive.as_deref_mut())?;
        let outgoing = Outgoing::message(self.route(to, CduClass::ShortMessage, 0), message);
        let mut pieces = LongMessage::new(number, bytes, self.shared().longest_to(to.node()) - 16);
        while let Some(piece) = pieces.piece() {
            // The timeout is for the whole message.
            let left = timeout.saturating_sub(started.elapsed());
            let kept = self.keep_room(to, (number, bytes));
            let packed = kept.and_then(|()| match receive.as_deref_mut() {
                Some(receive) => self.pack_or(to, &outgoing.piece(&piece), left, receive),
                None => self.pack(to.node(), &outgoing.piece(&piece), Patience::For(left)),
            });
            packed.inspect_err(|_| self.end_room(false)).map_err(|e| match e {
                SendError::Timeout(t) => SendError::Timeout(Timeout { waited: timeout, ..t }),
                other => other,
            })?;
            pieces.advance();
        }
        self.end_room(true);
        Ok(())
    }

    /// Packs into the open block to a node, or into a new one.
    pub(super) fn pack(
        &self,
        node: NodeId,
        outgoing: &Outgoing<'_>,
        patience: Patience,
    ) -> Result<(), SendError> {
        if self.lanes.with(|outbox| outbox.pack(Hop::to_node(node), outgoing)).is_ok() {
            return Ok(());
        }
        if self.loaned.get() == Some(node) {
            return Err(SendError::Loaned(node));
        }
        let (block, now) = self.open_block(node, patience)?;
        let refused = match self.lanes.place(block, node, outgoing, now) {
            Ok(before) => {
                // `open_block` emptied the lane and only this thread fills it; submit anything found rather than lose it.
                before.into_iter().for_each(|block| self.shared().engine().submit(block));
                None
            }
            Err(vacant) => Some(vacant),
        };
        if let Some(vacant) = refused {
            self.shared().engine().submit(vacant);
            return Err(SendError::TooLong { bytes: outgoing.bytes().len(), limit: self.longest() });
        }
        if self.shared().settings.progress == Progress::Thread {
            // Somebody must flush the block if this part does not come back.
            self.shared().bell.ring();
        }
        Ok(())
    }

    /// A vacant block to a node, and the time. What this part has packed for the node is submitted first.
    pub(crate) fn open_block(
        &self,
        node: NodeId,
        patience: Patience,
    ) -> Result<(OpenBlock, Time), SendError> {
        let full = self.lanes.take(node);
        let mut engine = self.shared().engine();
        match full {
            Some(full) => engine.submit(full),
            // Nothing was sent before that would have to be taken care of, so that the message need not wait for a poll.
            None => {
                if let Ok(block) = engine.open(node) {
                    return Ok((block, self.shared().now()));
                }
            }
        }
        let mut now = self.poll_with(&mut engine).now;
        let timeout = patience.timeout(self);
        let mut waiter = None;
        loop {
            match engine.open(node) {
                Ok(block) => return Ok((block, now)),
                Err(OpenError::PeerFailed(node)) => return Err(failed(&engine, node)),
                Err(OpenError::NoSuchNode(node)) => return Err(SendError::PeerFailed(node)),
                Err(_) => {}
            }
            let Some(timeout) = timeout else {
                if let Some(stalled) = self.stalled.get(node.index()) {
                    stalled.set((self.shared().turns.load(Ordering::Relaxed), 0));
                }
                drop(engine);
                self.shared().give_way();
                return Err(SendError::WouldBlock);
            };
            let waiter = waiter.get_or_insert_with(|| Waiter::new(timeout, self.shared()));
            if waiter.is_over() {
                let missing = if engine.backlog(node) > 0 {
                    "read what was sent before, so that there is no room"
                } else {
                    "got any block: streams and parts of this node hold all that its row may have open; finish or flush some"
                };
                return Err(waiter.late(route_nodes(&engine, node), missing).into());
            }
            drop(engine);
            waiter.pause(&self.node, &[]);
            engine = self.shared().engine();
            // Other open blocks of this part may be what keeps the row full.
            self.lanes.flush(&mut engine);
            now = self.poll_with(&mut engine).now;
        }
    }

    /// Whether a send of a short message to the target would not wait now.
    pub(crate) fn has_room(&self, to: Target) -> bool {
        const SHORT: usize = 256;
        let node = to.node();
        if self.lanes.with(|outbox| outbox.room(node.index())).is_some_and(|room| room >= SHORT) {
            return true;
        }
        if self.loaned.get() == Some(node) {
            // `send` will report it.
            return true;
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

/// The nodes on the route to `node`: its relay, if any, then the node.
pub(super) fn route_nodes(engine: &NodeEngine, node: NodeId) -> Vec<NodeId> {
    engine.relay_to(node).into_iter().chain([node]).collect()
}

/// The error for a node that cannot be reached: names it, or the relay that has failed.
pub(super) fn failed(engine: &NodeEngine, node: NodeId) -> SendError {
    match engine.relay_to(node).filter(|relay| engine.has_failed(*relay)) {
        Some(relay) => SendError::RelayFailed { relay, dest: node },
        None => SendError::PeerFailed(node),
    }
}
