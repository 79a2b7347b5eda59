//! Messages sent step by step: those longer than a block, and those for parts on several nodes.

use super::{CopyBy, Hop, LongMessage, Outbox, Outgoing, SendError};
use crate::cdu::{CduClass, Route};
use crate::engine::{Engine, OpenError, RoomError};
use crate::flaw::Flaw;
use crate::id::{NodeId, PartId, Time};
use crate::policy::SpacePolicy;
use crate::transport::Transport;
use crate::umb::BlockMemory;

/// A message of any length in progress: [poll](Self::poll) it until it has been sent, then [end](Self::end) it. Its bytes may be
/// borrowed or owned: `&[u8]`, `Vec<u8>`, `Arc<[u8]>`.
#[derive(Debug)]
#[must_use = "a message is sent by polling, or given up"]
pub struct LongSend<B> {
    from: PartId,
    to: PartId,
    number: u32,
    message: B,
    pieces: LongMessage,
    is_sent: bool,
}

impl<B> LongSend<B> {
    /// The part that sends the message.
    pub fn source(&self) -> PartId {
        self.from
    }

    /// The part it is for.
    pub fn dest(&self) -> PartId {
        self.to
    }

    /// Its number at the sending part.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Whether all of it has been sent.
    pub(crate) fn is_sent(&self) -> bool {
        self.is_sent
    }

    /// The message.
    pub fn message(&self) -> &B {
        &self.message
    }

    /// Returns the message after it was sent or refused, or has failed.
    pub fn into_message(self) -> B {
        self.message
    }
}

impl<B: AsRef<[u8]>> LongSend<B> {
    /// Creates a message from a part of this node to another part. A part sends one at a time, with increasing numbers that wrap
    /// around. A message that does not fit a block is cut into segments of `most` bytes.
    pub fn new((from, to): (PartId, PartId), number: u32, message: B, most: usize) -> Self {
        let pieces = LongMessage::new(number, message.as_ref().len(), most);
        Self { from, to, number, message, pieces, is_sent: false }
    }

    /// Bytes packed in segments so far.
    pub fn sent(&self) -> usize {
        self.pieces.sent()
    }

    /// Sends as much as there is room for through the lane of `hop`. A message that fits a block is sent like any other. For a
    /// longer one, the destination's node is first asked for room; then the segments are sent. Returns `Ok` once all of it has
    /// been sent.
    ///
    /// # Errors
    /// See [`SendError`]. If it is [transient](SendError::is_transient), call again after a poll; otherwise the message has failed.
    pub fn poll<T: Transport, M: BlockMemory, P: SpacePolicy>(
        &mut self,
        outbox: &mut Outbox<'_>,
        engine: &mut Engine<'_, T, M, P>,
        now: Time,
        hop: Hop,
    ) -> Result<(), SendError> {
        self.poll_copied(outbox, engine, now, hop, CopyBy::default())
    }

    /// As [`poll`](Self::poll), copying the bytes as `copy` specifies.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn poll_copied<T: Transport, M: BlockMemory, P: SpacePolicy>(
        &mut self,
        outbox: &mut Outbox<'_>,
        engine: &mut Engine<'_, T, M, P>,
        now: Time,
        hop: Hop,
        copy: CopyBy<'_>,
    ) -> Result<(), SendError> {
        let Self { from, to, number, message, pieces, is_sent } = self;
        let message = message.as_ref();
        let route = Route::new(CduClass::ShortMessage, 0, *from, *to);
        let outgoing = Outgoing::message(route, message).copied(copy);
        if message.len() <= engine.config().longest_unsegmented() {
            outbox.send(engine, now, hop, &outgoing)?;
            *is_sent = true;
            return Ok(());
        }
        match engine.request_room(*from, *to, *number, message.len() as u64) {
            Ok(true) => {}
            Ok(false) => return Err(SendError::AwaitsRoom),
            Err(RoomError::TooLong { limit }) => return Err(SendError::NoRoom(limit)),
            Err(RoomError::PeerFailed(node)) => return Err(OpenError::PeerFailed(node).into()),
            Err(RoomError::NoSuchPart) => return Err(SendError::NoSuchPart(*from)),
        }
        while let Some(piece) = pieces.piece() {
            outbox.send(engine, now, hop, &outgoing.piece(&piece))?;
            pieces.advance();
        }
        *is_sent = true;
        Ok(())
    }

    /// Ends the message. Unless it was `sent`, it is given up, and its receiver discards the segments that have arrived.
    pub fn end<T: Transport, M: BlockMemory, P: SpacePolicy>(
        &self,
        engine: &mut Engine<'_, T, M, P>,
        sent: bool,
    ) {
        if self.message.as_ref().len() > engine.config().longest_unsegmented() {
            engine.end_room(self.from, sent && !Flaw::GivesUpRoom.strikes());
        }
    }
}

/// A message to several parts in progress, one copy per node. While there is a [next node](Self::next_node), send it [the
/// message](Self::outgoing) and [advance](Self::advance).
///
/// ```
/// use pdbp_core::id::{NodeId, PartId};
/// use pdbp_core::outbox::SetSend;
///
/// let [zero, one] = [0, 1].map(|node| NodeId::new(node).expect("a node number"));
/// let part = |node, number| PartId::new(node, number).expect("a part number");
/// let set = [part(zero, 3), part(one, 1), part(one, 2)];
/// let mut sending = SetSend::new(part(zero, 0), &set[..], b"to all of them").expect("the set is sorted");
/// let mut nodes = Vec::new();
/// while let Some(node) = sending.next_node() {
///     assert_eq!(sending.outgoing().bytes(), b"to all of them");
///     // Sent, or tried again later; then:
///     nodes.push(node);
///     sending.advance();
/// }
/// assert_eq!(nodes, [zero, one]);
/// ```
#[derive(Debug)]
#[must_use = "a message is sent by polling"]
pub struct SetSend<S, B> {
    route: Route,
    set: S,
    message: B,
    /// Number of parts, from the start of the set, whose nodes have been sent the message or have failed.
    done: usize,
}

impl<S: AsRef<[PartId]>, B: AsRef<[u8]>> SetSend<S, B> {
    /// Creates a message from a part of this node to the parts in `set`, which must be in ascending order without duplicates.
    /// Both may be borrowed or owned: `&[PartId]`, `Vec<PartId>`, `Arc<[PartId]>`.
    ///
    /// # Errors
    /// The first part that is out of order or a duplicate.
    pub fn new(from: PartId, set: S, message: B) -> Result<Self, PartId> {
        let unsorted = set.as_ref().windows(2).find_map(|two| match two {
            [one, next] if one >= next => Some(*next),
            _ => None,
        });
        if let Some(part) = unsorted {
            return Err(part);
        }
        let to = set.as_ref().first().copied().unwrap_or(from);
        Ok(Self { route: Route::new(CduClass::ShortMessage, 0, from, to), set, message, done: 0 })
    }

    /// Number of parts in the set.
    pub(crate) fn parts(&self) -> usize {
        self.set.as_ref().len()
    }

    /// The parts whose nodes have not been sent the message yet.
    pub fn remaining(&self) -> &[PartId] {
        self.set.as_ref().get(self.done..).unwrap_or(&[])
    }

    /// The next node to send the message to; `None` at the end.
    pub fn next_node(&self) -> Option<NodeId> {
        self.remaining().first().map(|part| part.node())
    }

    /// The message as each node gets it.
    pub fn outgoing(&self) -> Outgoing<'_> {
        Outgoing::to_set(self.route, self.set.as_ref(), self.message.as_ref())
    }

    /// The parts on the next node that get the message.
    pub fn next_parts(&self) -> &[PartId] {
        let left = self.remaining();
        let node = self.next_node();
        let count = left.iter().take_while(|part| Some(part.node()) == node).count();
        left.get(..count).unwrap_or(&[])
    }

    /// Advances to the next node, once the current one has been sent the message or has failed.
    pub fn advance(&mut self) {
        self.done += self.next_parts().len();
    }
}
