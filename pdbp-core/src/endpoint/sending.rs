//! Sends messages and commands.

use super::{Endpoint, PartState};
use crate::cdu::{CduClass, Packer, Route, SegmentHeader};
use crate::engine::OpenError;
use crate::id::{NodeId, PartId};
use crate::outbox::{self, Due, Hop, LongSend, Outbox, Outcome, Outgoing, SetSend, Staging};
use crate::policy::SpacePolicy;
use crate::transport::Transport;
use crate::umb::BlockMemory;

/// Nanoseconds after which a waiting long message is retried even if nothing has happened.
const RETRY_INTERVAL: u64 = 50_000_000;

/// Why nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendError {
    /// There is no room now; room appears as the destination reads.
    WouldBlock,
    /// The node, or the relay on its route, has failed.
    PeerFailed(NodeId),
    /// There is no such node.
    NoSuchNode(NodeId),
    /// The message does not fit in a block, which holds this many bytes of it: see [`Endpoint::begin_long`].
    TooLong(usize),
    /// The destination node reassembles messages of up to this many bytes.
    NoRoom(u64),
    /// The sender is not a part of this node.
    NoSuchPart(PartId),
    /// This part has begun a long message and has not finished it.
    Unfinished(PartId),
    /// The parts of a set are not in strictly ascending order: this one is out of order or a duplicate.
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
                write!(f, "the destination reassembles messages of up to {most} bytes; send a stream")
            }
            Self::NoSuchPart(part) => write!(f, "this node has no {part}; register it first"),
            Self::Unfinished(part) => write!(f, "{part} has begun a long message; send the rest of it first"),
            Self::Unsorted(part) => {
                write!(
                    f,
                    "{part} is not in ascending order in the set; sort the set, and name each part once"
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

impl<T: Transport, M: BlockMemory, P: SpacePolicy, W: Staging> Endpoint<'_, T, M, P, W> {
    /// Sends a message from a part of this node. The message leaves when its block is full, after
    /// [`Config::flush_after`](crate::Config::flush_after), at [`flush`](Self::flush), or when a poll finds nothing else to do.
    ///
    /// # Errors
    /// See [`SendError`]; nothing was sent.
    #[inline]
    pub fn send(&mut self, from: PartId, to: PartId, message: &[u8]) -> Result<(), SendError> {
        let route = Route::new(CduClass::ShortMessage, 0, from, to);
        // The usual case: the open block has room for one more message.
        let is_direct = self.engine.is_direct();
        if is_direct && self.packing.push(to, route, message).is_ok() {
            self.pipes.dirty = true;
            return Ok(());
        }
        self.send_slow(to.node(), is_direct, &Outgoing::message(route, message))
    }

    #[inline(never)]
    fn send_slow(&mut self, dest: NodeId, is_full: bool, outgoing: &Outgoing<'_>) -> Result<(), SendError> {
        if is_full { self.send_anew(Hop::to_node(dest), outgoing) } else { self.pack(dest, outgoing) }
    }

    /// Sends a message of `length` bytes that `fill` writes directly into the outgoing block. The initial contents are arbitrary.
    ///
    /// # Errors
    /// See [`SendError`]; nothing was sent, and `fill` was not called.
    #[inline]
    pub fn send_with(
        &mut self,
        from: PartId,
        to: PartId,
        length: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), SendError> {
        let route = Route::new(CduClass::ShortMessage, 0, from, to);
        let hop = self.engine.hop(to.node())?;
        if let Err(fill) = self.packing.outbox().push_with(hop, route, length, fill) {
            let lent = self.packing.outbox().lend_anew(&mut self.engine, self.now, hop, (route, length));
            // Even a refused message may have caused a full block to leave.
            self.pipes.dirty = true;
            let loan = lent.map_err(|error| self.map_error(error))?;
            // The outbox has the block before `fill` is called, which may panic.
            let before = self.packing.outbox().end_loan(loan, Outcome::Undone);
            before.into_iter().for_each(|block| self.engine.submit(block));
            let packed = self.packing.outbox().push_with(hop, route, length, fill);
            debug_assert!(packed.is_ok(), "the block has the room that was lent");
        }
        self.pipes.dirty = true;
        Ok(())
    }

    /// Sends messages of `length` bytes each, stored back to back in `bytes`, which costs less than sending them one by one.
    /// Returns how many were sent, counted from the first. A remainder shorter than `length` is not sent.
    ///
    /// # Errors
    /// See [`SendError`], except that [`SendError::WouldBlock`] is reported by a smaller count instead.
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
            let rest = bytes.get(sent * length..).unwrap_or(&[]);
            let is_direct = self.engine.is_direct();
            let taken =
                if is_direct { self.packing.push_each((to, route), rest, length, count - sent) } else { 0 };
            sent += taken;
            if taken > 0 {
                self.pipes.dirty = true;
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

    /// Begins a message to several parts, one copy per node; [`poll_set`](Self::poll_set) sends it. The parts must be in
    /// ascending order, without duplicates. Parts and bytes may be borrowed or owned: `&[PartId]`, `Vec<PartId>`,
    /// `Arc<[PartId]>`.
    ///
    /// # Errors
    /// [`SendError::Unsorted`].
    pub fn begin_set<S: AsRef<[PartId]>, B: AsRef<[u8]>>(
        &mut self,
        from: PartId,
        set: S,
        message: B,
    ) -> Result<SetSend<S, B>, SendError> {
        SetSend::new(from, set, message).map_err(SendError::Unsorted)
    }

    /// Sends the message to every node that has room for it. Returns whether all nodes have been sent it; if not, call again
    /// after a poll.
    ///
    /// # Errors
    /// See [`SendError`]. One node will not get the message: the one just before those [left](SetSend::remaining). Call again for the
    /// rest.
    pub fn poll_set<S: AsRef<[PartId]>, B: AsRef<[u8]>>(
        &mut self,
        sending: &mut SetSend<S, B>,
    ) -> Result<bool, SendError> {
        while let Some(node) = sending.next_node() {
            let sent = self.pack(node, &sending.outgoing());
            if sent == Err(SendError::WouldBlock) {
                return Ok(false);
            }
            sending.advance();
            sent.map_err(|error| match error {
                SendError::TooLong(most) => {
                    SendError::TooLong(most.saturating_sub(Packer::set_extension(sending.parts())))
                }
                error => error,
            })?;
        }
        Ok(true)
    }

    /// Sends a command: a numbered message that leaves at once and overtakes other messages.
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
        let route = Route::new(CduClass::Command, command, from, to);
        let sent = Outbox::send_urgent(&mut self.engine, to.node(), route, data);
        self.pipes.dirty |= sent.is_ok();
        sent.map_err(|error| self.map_error(error))
    }

    /// Begins a message of any length; [`poll_long`](Self::poll_long) sends it. A part may have only one in progress. The message
    /// may be borrowed or owned: `&[u8]`, `Vec<u8>`, `Arc<[u8]>`.
    ///
    /// # Errors
    /// [`SendError::Unfinished`], [`SendError::NoSuchPart`].
    pub fn begin_long<B: AsRef<[u8]>>(
        &mut self,
        from: PartId,
        to: PartId,
        message: B,
    ) -> Result<LongSend<B>, SendError> {
        let most = self.engine.config().longest_unsegmented().saturating_sub(size_of::<SegmentHeader>());
        let owner = self.owner(from).ok_or(SendError::NoSuchPart(from))?;
        if owner.busy {
            return Err(SendError::Unfinished(from));
        }
        owner.busy = true;
        owner.number = owner.number.wrapping_add(1);
        let number = owner.number;
        Ok(LongSend::new((from, to), number, message, most))
    }

    fn owner(&mut self, part: PartId) -> Option<&mut PartState> {
        let place = self.engine.slot_of(part)?;
        self.part_states.get_mut(place).filter(|owner| owner.part == Some(part))
    }

    /// Sends as much of a long message as there is room for. Returns whether it has been sent completely; if not, call again
    /// after a poll. Further calls do nothing.
    ///
    /// # Errors
    /// See [`SendError`]; the message is abandoned.
    pub fn poll_long<B: AsRef<[u8]>>(&mut self, sending: &mut LongSend<B>) -> Result<bool, SendError> {
        if sending.is_sent() {
            return Ok(true);
        }
        let Self { engine, packing, now, pipes, .. } = self;
        let (outbox, dest) = (packing.outbox(), sending.dest().node());
        let before = (outbox.open(), sending.sent(), engine.backlog(dest));
        let sent = match engine.hop(dest) {
            Ok(hop) => sending.poll(outbox, engine, *now, hop),
            Err(error) => Err(error.into()),
        };
        // A request for room to this node itself waits for a poll, too.
        pipes.dirty |= sent.is_ok() || (outbox.open(), sending.sent(), engine.backlog(dest)) != before;
        match sent.map_err(|error| self.map_error(error)) {
            Err(SendError::WouldBlock) => {
                // Asks for room again if the answer takes long.
                let again = self.now.after(RETRY_INTERVAL);
                self.retry = Some(self.retry.map_or(again, |next| next.min(again)));
                Ok(false)
            }
            over => {
                self.end_long(sending, over.is_ok());
                over.map(|()| true)
            }
        }
    }

    /// Gives up a long message, unless it is over. Its receiver discards the segments already sent.
    pub fn abort_long<B: AsRef<[u8]>>(&mut self, sending: LongSend<B>) {
        self.end_long(&sending, false);
    }

    fn end_long<B: AsRef<[u8]>>(&mut self, sending: &LongSend<B>, sent: bool) {
        // It may have been over before, and the part may have begun another since.
        let owner = self.owner(sending.source());
        let is_it = |owner: &&mut PartState| owner.busy && owner.number == sending.number();
        let Some(owner) = owner.filter(is_it) else { return };
        owner.busy = false;
        sending.end(&mut self.engine, sent);
        self.pipes.dirty = true;
    }

    /// Sends everything packed so far.
    pub fn flush(&mut self) {
        // A program may call this before each of its sleeps.
        self.pipes.dirty |= self.packing.outbox().flush(&mut self.engine, Due::All).blocks > 0;
    }

    fn pack(&mut self, dest: NodeId, outgoing: &Outgoing<'_>) -> Result<(), SendError> {
        let hop = self.engine.hop(dest)?;
        if self.packing.outbox().pack(hop, outgoing).is_err() {
            return self.send_anew(hop, outgoing);
        }
        self.pipes.dirty = true;
        Ok(())
    }

    /// Sends in a new block: the open one has no room, or there is none.
    fn send_anew(&mut self, hop: Hop, outgoing: &Outgoing<'_>) -> Result<(), SendError> {
        let Self { engine, packing, now, pipes, .. } = self;
        let outbox = packing.outbox();
        let open = outbox.open();
        let sent = outbox.send_anew(engine, *now, hop, outgoing);
        // Even a refused message may have caused a full block to leave.
        pipes.dirty |= sent.is_ok() || outbox.open() != open;
        sent.map_err(|error| self.map_error(error))
    }

    fn map_error(&self, error: outbox::SendError) -> SendError {
        match error {
            outbox::SendError::Open(error) => error.into(),
            outbox::SendError::AwaitsRoom => SendError::WouldBlock,
            outbox::SendError::TooLong => SendError::TooLong(self.engine.config().longest_unsegmented()),
            outbox::SendError::NoRoom(most) => SendError::NoRoom(most),
            outbox::SendError::NoSuchPart(part) => SendError::NoSuchPart(part),
        }
    }
}
