//! Messages and commands.

use super::Endpoint;
use crate::cdu::{CduClass, Route, SegmentHeader};
use crate::engine::{OpenError, RoomError};
use crate::id::{NodeId, PartId};
use crate::outbox::{self, Due, LongMessage, Outbox, Outcome, Outgoing};
use crate::policy::SpacePolicy;
use crate::transport::Transport;
use crate::umb::BlockMemory;

/// Nanoseconds after which a long message that waits is looked at again though nothing has happened.
const ASK_AGAIN: u64 = 50_000_000;

/// Why nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendError {
    /// There is no room now; some comes free as the destination reads.
    WouldBlock,
    /// The node has failed, or the relay by which it is reached.
    PeerFailed(NodeId),
    /// There is no such node.
    NoSuchNode(NodeId),
    /// The message does not fit a block, which takes this many bytes at most: see [`Endpoint::begin_long`].
    TooLong(usize),
    /// The node of the destination has no room for messages of more than this many bytes.
    NoRoom(u64),
    /// The sender is no part of this node.
    NoSuchPart(PartId),
    /// This part has begun a long message that has not been sent.
    Unfinished(PartId),
    /// The parts of a set are not in ascending order, each once: this one comes after a greater one, or twice.
    Unsorted(PartId),
}

impl core::fmt::Display for SendError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::WouldBlock => OpenError::WouldBlock.fmt(f),
            Self::PeerFailed(node) => OpenError::PeerFailed(*node).fmt(f),
            Self::NoSuchNode(node) => OpenError::NoSuchNode(*node).fmt(f),
            Self::TooLong(most) => {
                write!(f, "the message is longer than {most} bytes; send it as a long message or as a stream")
            }
            Self::NoRoom(most) => {
                write!(f, "the destination puts together messages of up to {most} bytes; send a stream")
            }
            Self::NoSuchPart(part) => write!(f, "this node has no {part}; register it first"),
            Self::Unfinished(part) => write!(f, "{part} has begun a long message; send the rest of it first"),
            Self::Unsorted(part) => {
                write!(
                    f,
                    "{part} is not behind all before it in the set; sort the set, and name each part once"
                )
            }
        }
    }
}

impl core::error::Error for SendError {}

impl From<OpenError> for SendError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::PeerFailed(node) => Self::PeerFailed(node),
            OpenError::NoSuchNode(node) => Self::NoSuchNode(node),
            OpenError::WouldBlock => Self::WouldBlock,
        }
    }
}

/// The long messages of a part: the number of the next one, and whether one is under way.
#[derive(Clone, Copy, Debug, Default)]
pub struct Numbers {
    next: u32,
    busy: bool,
}

/// A message of any length on its way: see [`Endpoint::begin_long`].
#[derive(Debug)]
#[must_use = "a message is sent by polling, or given up"]
pub struct LongSend<'m> {
    from: PartId,
    to: PartId,
    message: &'m [u8],
    number: u32,
    long: LongMessage,
}

/// A message to several parts on its way: see [`Endpoint::begin_set`].
#[derive(Debug)]
#[must_use = "a message is sent by polling"]
pub struct SetSend<'m> {
    route: Route,
    set: &'m [PartId],
    message: &'m [u8],
    /// Parts of nodes that have it.
    done: usize,
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Endpoint<'_, T, M, P> {
    /// Sends a message of a part of this node. It leaves when its block is full, after
    /// [`Config::flush_after`](crate::Config::flush_after), at [`flush`](Self::flush), or when a poll finds nothing else to do.
    ///
    /// # Errors
    /// See [`SendError`]; nothing was sent.
    pub fn send(&mut self, from: PartId, to: PartId, message: &[u8]) -> Result<(), SendError> {
        let route = Route::new(CduClass::ShortMessage, 0, from, to);
        self.pack(to.node(), &Outgoing::message(route, message))
    }

    /// Sends a message of `length` bytes that `fill` writes where it leaves from, without a copy. The bytes are whatever was there.
    ///
    /// # Errors
    /// See [`SendError`]; nothing was sent, and `fill` was not called.
    pub fn send_with(
        &mut self,
        from: PartId,
        to: PartId,
        length: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), SendError> {
        let route = Route::new(CduClass::ShortMessage, 0, from, to);
        let Self { engine, outbox, now, stirred, .. } = self;
        let hop = engine.hop(to.node())?;
        let mut loan = match outbox.lend(hop, route, length) {
            Some(loan) => loan,
            None => {
                outbox.take(hop.lane()).into_iter().for_each(|(full, _)| engine.submit(full));
                *stirred = true;
                Outbox::lend_in(engine.open(to.node())?, hop, (route, length), *now).map_err(|vacant| {
                    engine.submit(vacant);
                    SendError::TooLong(engine.config().longest_unsegmented())
                })?
            }
        };
        fill(loan.bytes_mut());
        *stirred = true;
        outbox.end_loan(loan, Outcome::Committed).into_iter().for_each(|block| engine.submit(block));
        Ok(())
    }

    /// Sends messages of `length` bytes each, one behind the other in `bytes`: trains, which cost less than messages one by one. Returns
    /// how many there was room for, from the first on. What is left at the end, if `bytes` are no multiple, is not sent.
    ///
    /// # Errors
    /// See [`SendError`], but for [`SendError::WouldBlock`], which shows as fewer sent.
    pub fn send_train(
        &mut self,
        from: PartId,
        to: PartId,
        bytes: &[u8],
        length: usize,
    ) -> Result<usize, SendError> {
        let route = Route::new(CduClass::ShortMessage, 0, from, to);
        let count = bytes.len().checked_div(length).unwrap_or(0);
        let mut sent = 0;
        while sent < count {
            let hop = self.engine.hop(to.node())?;
            let rest = bytes.get(sent * length..).unwrap_or(&[]);
            let most = u32::try_from(count - sent).unwrap_or(u32::MAX);
            let taken = self.outbox.push_train(hop, route, rest, length, most) as usize;
            sent += taken;
            if taken > 0 {
                self.stirred = true;
                continue;
            }
            match self.send(from, to, rest.get(..length).unwrap_or(&[])) {
                Ok(()) => sent += 1,
                Err(SendError::WouldBlock) => break,
                Err(e) => return Err(e),
            }
        }
        Ok(sent)
    }

    /// Begins to send a message to several parts, which [`poll_set`](Self::poll_set) sends: one copy for each node. The parts are in
    /// ascending order, each once.
    ///
    /// # Errors
    /// [`SendError::Unsorted`].
    pub fn begin_set<'m>(
        &mut self,
        from: PartId,
        set: &'m [PartId],
        message: &'m [u8],
    ) -> Result<SetSend<'m>, SendError> {
        let unsorted = set.windows(2).find_map(|two| match two {
            [one, next] if one >= next => Some(*next),
            _ => None,
        });
        if let Some(part) = unsorted {
            return Err(SendError::Unsorted(part));
        }
        let to = set.first().copied().unwrap_or(from);
        Ok(SetSend { route: Route::new(CduClass::ShortMessage, 0, from, to), set, message, done: 0 })
    }

    /// Sends a message to the nodes for which there is room. Whether all have it; else call again after a poll.
    ///
    /// # Errors
    /// See [`SendError`]; nodes that come before the one that fails have the message, and nothing more is sent.
    pub fn poll_set(&mut self, sending: &mut SetSend<'_>) -> Result<bool, SendError> {
        while let Some(part) = sending.set.get(sending.done) {
            let node = part.node();
            match self.pack(node, &Outgoing::to_set(sending.route, sending.set, sending.message)) {
                Ok(()) => sending.done += sending.set.iter().filter(|part| part.node() == node).count(),
                Err(SendError::WouldBlock) => return Ok(false),
                Err(e) => {
                    sending.done = sending.set.len();
                    return Err(e);
                }
            }
        }
        Ok(true)
    }

    /// Sends a command: a message with a number that is received ahead of others. It leaves at once.
    ///
    /// # Errors
    /// See [`SendError`]; nothing was sent.
    pub fn send_command(
        &mut self,
        from: PartId,
        to: PartId,
        command: u16,
        data: &[u8],
    ) -> Result<(), SendError> {
        self.stirred = true;
        let route = Route::new(CduClass::Command, command, from, to);
        let sent = Outbox::send_urgent(&mut self.engine, to.node(), route, data);
        sent.map_err(|error| self.explain(error))
    }

    /// Begins to send a message of any length, which [`poll_long`](Self::poll_long) sends. A part sends one at a time.
    ///
    /// # Errors
    /// [`SendError::Unfinished`], [`SendError::NoSuchPart`].
    pub fn begin_long<'m>(
        &mut self,
        from: PartId,
        to: PartId,
        message: &'m [u8],
    ) -> Result<LongSend<'m>, SendError> {
        let most = self.engine.config().longest_unsegmented().saturating_sub(size_of::<SegmentHeader>());
        let numbers = self.long.get_mut(usize::from(from.local())).ok_or(SendError::NoSuchPart(from))?;
        if numbers.busy {
            return Err(SendError::Unfinished(from));
        }
        numbers.busy = true;
        numbers.next = numbers.next.wrapping_add(1);
        let number = numbers.next;
        Ok(LongSend { from, to, message, number, long: LongMessage::new(number, message.len(), most) })
    }

    /// Sends as much of a long message as there is room for. Whether all of it was sent; else call again after a poll.
    ///
    /// # Errors
    /// See [`SendError`]; the message is given up.
    pub fn poll_long(&mut self, sending: &mut LongSend<'_>) -> Result<bool, SendError> {
        let route = Route::new(CduClass::ShortMessage, 0, sending.from, sending.to);
        let whole = Outgoing::message(route, sending.message);
        let sent = if sending.message.len() <= self.engine.config().longest_unsegmented() {
            self.pack(sending.to.node(), &whole)
        } else {
            self.send_pieces(route, sending)
        };
        match sent {
            Err(SendError::WouldBlock) => {
                // Room is asked for again when there is no answer for long.
                let again = self.now.after(ASK_AGAIN);
                self.engine_next = Some(self.engine_next.map_or(again, |next| next.min(again)));
                return Ok(false);
            }
            _ => self.end_long(sending, sent.is_ok()),
        }
        sent.map(|()| true)
    }

    fn send_pieces(&mut self, route: Route, sending: &mut LongSend<'_>) -> Result<(), SendError> {
        let LongSend { from, to, number, .. } = *sending;
        match self.engine.ask_room(from, to, number, sending.message.len() as u64) {
            Ok(true) => {}
            Ok(false) => return Err(SendError::WouldBlock),
            Err(RoomError::TooLong { limit }) => return Err(SendError::NoRoom(limit)),
            Err(RoomError::PeerFailed(node)) => return Err(SendError::PeerFailed(node)),
            Err(RoomError::NoSuchPart) => return Err(SendError::NoSuchPart(from)),
        }
        while let Some(piece) = sending.long.piece() {
            let data = sending.message.get(piece.range).unwrap_or(&[]);
            self.pack(sending.to.node(), &Outgoing::message(route, data).segment(piece.header))?;
            sending.long.advance();
        }
        Ok(())
    }

    /// Gives up a long message. What was sent of it is discarded by its receiver.
    pub fn give_up_long(&mut self, sending: LongSend<'_>) {
        self.end_long(&sending, false);
    }

    pub(crate) fn end_long(&mut self, sending: &LongSend<'_>, sent: bool) {
        if let Some(numbers) = self.long.get_mut(usize::from(sending.from.local())) {
            numbers.busy = false;
        }
        if sending.message.len() > self.engine.config().longest_unsegmented() {
            self.engine.end_room(sending.from, sent);
            self.stirred = true;
        }
    }

    /// Sends what was packed.
    pub fn flush(&mut self) {
        self.stirred = true;
        self.outbox.flush(&mut self.engine, Due::All);
    }

    fn pack(&mut self, dest: NodeId, outgoing: &Outgoing<'_>) -> Result<(), SendError> {
        let Self { engine, outbox, now, stirred, .. } = self;
        let hop = engine.hop(dest)?;
        let sent = outbox.send(engine, *now, hop, outgoing);
        *stirred |= sent.is_ok();
        sent.map_err(|error| self.explain(error))
    }

    fn explain(&self, error: outbox::SendError) -> SendError {
        match error {
            outbox::SendError::Open(error) => error.into(),
            outbox::SendError::TooLong => SendError::TooLong(self.engine.config().longest_unsegmented()),
        }
    }
}
