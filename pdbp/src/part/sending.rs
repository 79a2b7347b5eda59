//! Sending messages.

use std::time::{Duration, Instant};

use bytemuck::NoUninit;
use pdbp_core::OpenBlock;
use pdbp_core::cdu::{CduClass, Full, Packer, Route, SegmentHeader};
use pdbp_core::id::{NodeId, Time};
use pdbp_core::outbox::{self, CopyBy, Hop, LongSend, Outbox, Outgoing, SetSend};

use pdbp_local::Copier;

use super::{HoldsPart, Message, Part, Share, Target};
use crate::error::SendError;
use crate::node::NodeEngine;

/// How long a call may wait for room.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// For the time of the setting `timeout_ms`.
    Set,
    None,
    For(Duration),
    Until(Instant),
}

impl Patience {
    /// Time left to wait; `None` for a call that must not wait.
    pub(super) fn timeout<S: Share>(self, part: &Part<S>) -> Option<Duration> {
        match self {
            Self::Set => Some(part.shared().settings.timeout),
            Self::None => None,
            Self::For(timeout) => Some(timeout),
            Self::Until(deadline) => Some(deadline.saturating_duration_since(Instant::now())),
        }
    }
}

/// A message longer than a block, in progress. A part sends one at a time; dropping this before the end gives the message up.
pub(super) struct Long<'m, P: HoldsPart> {
    part: P,
    sending: LongSend<&'m [u8]>,
    bytes: usize,
    sent: bool,
}

impl<'m, P: HoldsPart> Long<'m, P> {
    pub(super) fn begin(holder: P, to: Target, message: &'m [u8]) -> Result<Self, SendError> {
        let part = holder.part();
        part.check_length(message)?;
        if part.is_sending_long.replace(true) {
            return Err(part.needs_waiting(message));
        }
        let number = part.next_message.get();
        part.next_message.set(number.wrapping_add(1));
        let most = part.shared().longest_to(to.node()) - size_of::<SegmentHeader>();
        let sending = LongSend::new((part.id, to), number, message, most);
        Ok(Self { part: holder, sending, bytes: message.len(), sent: false })
    }

    pub(super) fn part(&self) -> &Part<P::Share> {
        self.part.part()
    }

    /// Once the receiver has room for the whole message, sends its segments until all are sent. Messages that arrive meanwhile are
    /// passed to `receive`, if given.
    pub(super) fn advance(
        &mut self,
        patience: Patience,
        receive: Option<&mut (dyn FnMut(Message<P::Share>) + '_)>,
    ) -> Result<(), SendError> {
        let Self { part, sending, bytes, sent } = self;
        let (part, node) = (part.part(), sending.dest().node());
        let all = part.when_room((node, *bytes), patience, receive, |engine, now| {
            // `receive` may have taken a loan.
            if part.loaned.get() == Some(node) {
                return Ok(Err(SendError::Loaned(node)));
            }
            let all = part.copying(node, *bytes, |copy| {
                let hop = Hop::to_node(node);
                part.lanes.send(now, |outbox| sending.poll_copied(outbox, engine, now, hop, copy))
            });
            all.map(Ok)
        });
        let all = all.and_then(|all| all);
        *sent = all.is_ok();
        all
    }
}

impl<P: HoldsPart> Drop for Long<'_, P> {
    fn drop(&mut self) {
        let part = self.part.part();
        self.sending.end(&mut part.shared().engine(), self.sent);
        part.is_sending_long.set(false);
    }
}

impl<S: Share> Part<S> {
    /// Sends a message. Returns as soon as the message is packed into a block. The block leaves when it is full, at
    /// [`flush`](Self::flush), when this part waits for something, or after the setting `flush_after_us`. Messages to one part arrive
    /// in order. If there is no room, this waits for up to the setting `timeout_ms`; the node keeps taking deliveries meanwhile.
    ///
    /// A message longer than a block travels in segments that the receiver reassembles. Sending begins when the receiving node has
    /// room for all of it, within `assembly_bytes`, which all its parts and senders share.
    ///
    /// # Errors
    /// See [`SendError`]. [`SendError::NoSuchPart`] may come late: see [`Part`].
    // Inlined, so that a copy whose length is known at the call needs no loop.
    #[inline(always)]
    pub fn send(&self, to: Target, message: &[u8]) -> Result<(), SendError> {
        if self.lanes.push_next(to, message) { Ok(()) } else { self.send_waiting(to, message) }
    }

    /// Sends a message without waiting for room; see [`send`](Self::send).
    ///
    /// # Errors
    /// [`SendError::WouldBlock`] if there is no room; [`SendError::NeedsWaiting`] for a message longer than a block
    /// ([`longest`](Self::longest)), since room for several blocks cannot be known in advance.
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

    /// Sends a message to another part than the last one, or of another length.
    #[inline]
    fn send_other(&self, to: Target, message: &[u8], patience: Patience) -> Result<(), SendError> {
        if self.lanes.are_open() && self.knows_target(to) {
            let route = self.route(to, CduClass::ShortMessage, 0);
            if self.push(to, route, message).is_ok() {
                return Ok(());
            }
        }
        self.send_slow(to, message, patience)
    }

    /// Sends one plain value: a number, an array, or a type of the program's own ([`bytemuck`](crate::bytemuck)). Values of one type to
    /// the same part share a header.
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
            return Err(SendError::LongerThanBlock { bytes: data.len(), limit });
        }
        self.await_target(to, patience)?;
        let (node, route) = (to.node(), self.route(to, CduClass::Command, command));
        self.when_room((node, data.len()), patience, None, |engine, _| {
            Outbox::send_urgent(engine, node, route, data)
        })?;
        self.poll_with(&mut self.shared().engine());
        Ok(())
    }

    /// Sends a message to several parts: one copy per destination node, shared by the parts there. Each part gets it once, even if it
    /// is listed more than once.
    ///
    /// # Errors
    /// See [`SendError`]. Nodes before the one that failed have already been sent the message.
    pub fn send_all(&self, to: &[Target], message: &[u8]) -> Result<(), SendError> {
        let mut parts: Vec<Target> = to.to_vec();
        parts.sort_unstable();
        parts.dedup();
        let most = self.shared().settings.block_bytes.saturating_sub(Packer::overhead(parts.len()));
        if parts.len() >= usize::from(u16::MAX) || most < 64 {
            return Err(SendError::TooManyDestinations { parts: parts.len() });
        }
        self.check_length(message)?;
        parts.iter().try_for_each(|part| self.await_target(*part, Patience::Set))?;
        if parts.is_empty() {
            return Err(SendError::NoDestination);
        }
        let mut sending = SetSend::new(self.id, &parts, message).map_err(SendError::NoSuchPart)?;
        while let Some(node) = sending.next_node() {
            if message.len() <= most {
                self.pack(node, &sending.outgoing(), Patience::Set)?;
            } else {
                // Each part reassembles it, and room is requested for one part at a time: senders that hold some and wait for more
                // could deadlock.
                sending.next_parts().iter().try_for_each(|to| self.send(*to, message))?;
            }
            sending.advance();
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn route(&self, to: Target, class: CduClass, command: u16) -> Route {
        Route::new(class, command, self.id, to)
    }

    /// Bytes of the longest message that travels in one block.
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
        let route = self.route(to, CduClass::ShortMessage, 0);
        // Checked at least once per block, so that the error names a part that has gone.
        let is_known = self.knows_target(to);
        self.await_target(to, patience)?;
        if !is_known && self.push(to, route, message).is_ok() {
            return Ok(());
        }
        if message.len() <= self.longest() {
            if let Patience::None = patience
                && self.is_stalled(to.node())
            {
                return Err(SendError::WouldBlock);
            }
            if self.send_first(to.node(), route, message) {
                return Ok(());
            }
            return self.copying(to.node(), message.len(), |copy| {
                self.pack_new(to.node(), &Outgoing::message(route, message).copied(copy), patience)
            });
        }
        match patience.timeout(self) {
            Some(timeout) => self.send_long(to, message, timeout, None),
            // The message needs several blocks, and a call that must not wait cannot know whether all of them will find room.
            None => self.check_length(message).and(Err(self.needs_waiting(message))),
        }
    }

    /// Packs a message when no block is open: the first or only one since the last flush. Returns `false` if it did nothing.
    fn send_first(&self, node: NodeId, route: Route, message: &[u8]) -> bool {
        if self.lanes.are_open() || message.len() >= Copier::LONG || self.loaned.get() == Some(node) {
            return false;
        }
        let shared = self.shared();
        let mut engine = shared.engine();
        // The time of the last poll will do: a part that answers has just polled, and reading the clock takes a tenth of the time that
        // its answer takes one way. If that poll was long ago, the block counts as old and leaves with the next one.
        let now = engine.last_poll();
        let (hop, outgoing) = (Hop::to_node(node), Outgoing::message(route, message));
        let common = self.send_in_common(&mut engine, now, (hop, &outgoing));
        let sent = common.unwrap_or_else(|| {
            self.lanes.send(now, |outbox| outbox.send_anew(&mut *engine, now, hop, &outgoing))
        });
        sent.is_ok()
    }

    /// Packs a message into the open block to its node.
    #[inline]
    fn push(&self, to: Target, route: Route, message: &[u8]) -> Result<(), Full> {
        if message.len() < Copier::LONG {
            return self.lanes.push(to, route, message);
        }
        self.copying(to.node(), message.len(), |copy| {
            let outgoing = Outgoing::message(route, message).copied(copy);
            self.lanes.with(|outbox| outbox.pack(Hop::to_node(to.node()), &outgoing))
        })
    }

    /// Calls `f` with the copy method for this many bytes to a node.
    pub(super) fn copying<R>(&self, node: NodeId, bytes: usize, f: impl FnOnce(CopyBy<'_>) -> R) -> R {
        let is_choice = bytes >= Copier::LONG && self.shared().is_read_remotely(node);
        let Some(cell) = self.copiers.get(node.index()).filter(|_| is_choice) else {
            return f(CopyBy::default());
        };
        f(CopyBy::function(Some(&|into, from| {
            let mut copier = cell.get();
            copier.copy(into, from);
            cell.set(copier);
        })))
    }

    fn needs_waiting(&self, message: &[u8]) -> SendError {
        SendError::NeedsWaiting { bytes: message.len(), limit: self.longest() }
    }

    /// Sends a message longer than a block. Messages that arrive meanwhile are passed to `receive`, if given.
    pub(super) fn send_long(
        &self,
        to: Target,
        message: &[u8],
        timeout: Duration,
        receive: Option<&mut (dyn FnMut(Message<S>) + '_)>,
    ) -> Result<(), SendError> {
        Long::begin(self, to, message)?.advance(Patience::For(timeout), receive)
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
        self.pack_new(node, outgoing, patience)
    }

    /// Packs into a new block to a node: the open one has no room, or none is open.
    fn pack_new(&self, node: NodeId, outgoing: &Outgoing<'_>, patience: Patience) -> Result<(), SendError> {
        if self.loaned.get() == Some(node) {
            return Err(SendError::Loaned(node));
        }
        let (hop, room) = (Hop::to_node(node), (node, outgoing.bytes().len()));
        if !outgoing.is_plain() {
            return self.when_room(room, patience, None, |engine, now| {
                self.lanes.send(now, |outbox| outbox.send(engine, now, hop, outgoing))
            });
        }
        self.await_room(room, patience, None, |engine, now| {
            let common = self.send_in_common(engine, now, (hop, outgoing));
            common.unwrap_or_else(|| self.lanes.send(now, |outbox| outbox.send(engine, now, hop, outgoing)))
        })
    }

    /// Packs into the block that the parts of this node share. `None` if they share none for its destination.
    fn send_in_common(
        &self,
        engine: &mut NodeEngine,
        now: Time,
        outgoing: (Hop, &Outgoing<'_>),
    ) -> Option<Result<(), outbox::SendError>> {
        let shared = self.shared();
        let sent = shared.common.get()?.send(shared, engine, now, self.id, outgoing)?;
        self.in_common.set(self.in_common.get() || sent.is_ok());
        Some(sent)
    }

    /// Returns a vacant block to a node, and the time. First submits what this part has packed for the node.
    pub(crate) fn open_block(
        &self,
        node: NodeId,
        patience: Patience,
    ) -> Result<(OpenBlock, Time), SendError> {
        self.when_room((node, 0), patience, None, |engine, now| Ok((engine.open(node)?, now)))
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
