//! Messages that are sent step by step: those longer than a block, and those for parts of several nodes.

use super::{CopyBy, Hop, LongMessage, Outbox, Outgoing, SendError};
use crate::cdu::{CduClass, Route};
use crate::engine::{Engine, OpenError, RoomError};
use crate::flaw::Flaw;
use crate::id::{NodeId, PartId, Time};
use crate::policy::SpacePolicy;
use crate::transport::Transport;
use crate::umb::BlockMemory;

/// A message of any length on its way: [polled](Self::poll) until it was sent, then [ended](Self::end). The bytes are borrowed or owned, as
/// fits the program: `&[u8]`, `Vec<u8>`, `Arc<[u8]>`.
#[derive(Debug)]
#[must_use = "a message is sent by polling, or given up"]
pub struct LongSend<B> {
    from: PartId,
    to: PartId,
    number: u32,
    message: B,
    pieces: LongMessage,
}

impl<B> LongSend<B> {
    /// The part that sends it.
    pub fn source(&self) -> PartId {
        self.from
    }

    /// The part that it is for.
    pub fn dest(&self) -> PartId {
        self.to
    }

    /// The message.
    pub fn message(&self) -> &B {
        &self.message
    }

    /// The message, of one that was sent, was refused or is over by an error.
    pub fn into_message(self) -> B {
        self.message
    }
}

impl<B: AsRef<[u8]>> LongSend<B> {
    /// A message from a part of this node to another. A part sends one at a time, each with a greater number than the one before, in a
    /// circle. What does not fit a block is cut into segments of `most` bytes.
    pub fn new((from, to): (PartId, PartId), number: u32, message: B, most: usize) -> Self {
        let pieces = LongMessage::new(number, message.as_ref().len(), most);
        Self { from, to, number, message, pieces }
    }

    /// Bytes that were packed in segments.
    pub fn sent(&self) -> usize {
        self.pieces.sent()
    }

    /// Sends as much as there is room for, by the lane of `hop`: first asks the destination's node for room, then sends segment by segment.
    /// A message that fits a block leaves as any other. `Ok` when all was sent; else call again after a poll.
    ///
    /// # Errors
    /// See [`SendError`]: one that is not [transient](SendError::is_transient) means that the message is over.
    pub fn poll<T: Transport, M: BlockMemory, P: SpacePolicy>(
        &mut self,
        outbox: &mut Outbox<'_>,
        engine: &mut Engine<'_, T, M, P>,
        now: Time,
        hop: Hop,
    ) -> Result<(), SendError> {
        self.poll_copied(outbox, engine, now, hop, CopyBy::default())
    }

    /// As [`poll`](Self::poll), with the bytes copied in this way.
    ///
    /// # Errors
    /// As there.
    pub fn poll_copied<T: Transport, M: BlockMemory, P: SpacePolicy>(
        &mut self,
        outbox: &mut Outbox<'_>,
        engine: &mut Engine<'_, T, M, P>,
        now: Time,
        hop: Hop,
        copy: CopyBy<'_>,
    ) -> Result<(), SendError> {
        let Self { from, to, number, message, pieces } = self;
        let message = message.as_ref();
        let route = Route::new(CduClass::ShortMessage, 0, *from, *to);
        let outgoing = Outgoing::message(route, message).copied(copy);
        if message.len() <= engine.config().longest_unsegmented() {
            return outbox.send(engine, now, hop, &outgoing);
        }
        match engine.ask_room(*from, *to, *number, message.len() as u64) {
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
        Ok(())
    }

    /// It was sent, or is given up: then its receiver discards what has come of it.
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

/// A message to several parts on its way, one copy for each of their nodes: while there is a [next](Self::next_node) node,
/// [what it gets](Self::outgoing) is sent and [counted](Self::advance).
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
    /// Parts of nodes that have it, or have failed.
    done: usize,
}

impl<S: AsRef<[PartId]>, B: AsRef<[u8]>> SetSend<S, B> {
    /// A message from a part of this node to these, in ascending order, each once. Both are borrowed or owned, as fits the program:
    /// `&[PartId]`, `Vec<PartId>`, `Arc<[PartId]>`.
    ///
    /// # Errors
    /// The first part that is not behind all before it.
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

    /// The parts of nodes to which it is still to be sent.
    pub fn left(&self) -> &[PartId] {
        self.set.as_ref().get(self.done..).unwrap_or(&[])
    }

    /// The next node to send it to.
    pub fn next_node(&self) -> Option<NodeId> {
        self.left().first().map(|part| part.node())
    }

    /// What each node gets.
    pub fn outgoing(&self) -> Outgoing<'_> {
        Outgoing::to_set(self.route, self.set.as_ref(), self.message.as_ref())
    }

    /// The parts of the next node that get it.
    pub fn next_parts(&self) -> &[PartId] {
        let left = self.left();
        let node = self.next_node();
        let count = left.iter().take_while(|part| Some(part.node()) == node).count();
        left.get(..count).unwrap_or(&[])
    }

    /// The next node has it, or has failed.
    pub fn advance(&mut self) {
        self.done += self.next_parts().len();
    }
}
