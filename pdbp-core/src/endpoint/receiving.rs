//! Messages and commands that have arrived, and those returned undelivered.

use super::arrivals::Source;
use super::{Buffer, Endpoint, Hold};
use crate::id::{NodeId, PartId};
use crate::inbox::{self, Inbox, Info};
use crate::outbox::Staging;
use crate::policy::SpacePolicy;
use crate::transport::Transport;
use crate::umb::BlockMemory;

/// A received message. It holds its block, and thereby its sender's credit, until it is [released](Endpoint::release).
#[derive(Debug)]
#[must_use = "a message that is not released keeps its block from being used again"]
pub struct Message<'a>(inbox::Message<Hold<'a>>);

impl Message<'_> {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        let start = self.0.start();
        self.0.hold().bytes().get(start..start + self.0.length()).unwrap_or(&[])
    }

    /// The part that sent it.
    pub fn source(&self) -> PartId {
        self.0.info().source()
    }

    /// The number of a command; `None` for messages.
    pub fn command(&self) -> Option<u16> {
        let info = self.0.info();
        info.is_command().then(|| info.command())
    }
}

/// Messages of one length from one part, received together. It holds its block until it is
/// [released](Endpoint::release_batch).
#[derive(Debug)]
#[must_use = "a batch that is not released keeps its block from being used again"]
pub struct Batch<'a>(inbox::Batch<Hold<'a>>);

impl Batch<'_> {
    /// The bytes of all messages, back to back.
    pub fn bytes(&self) -> &[u8] {
        let start = self.0.start();
        self.0.hold().bytes().get(start..start + self.0.count() * self.0.length()).unwrap_or(&[])
    }

    /// Number of messages, at least 1.
    pub fn count(&self) -> usize {
        self.0.count()
    }

    /// Bytes of each message.
    pub fn message_len(&self) -> usize {
        self.0.length()
    }

    /// The part that sent them.
    pub fn source(&self) -> PartId {
        self.0.info().source()
    }

    /// The number of commands; `None` for messages.
    pub fn command(&self) -> Option<u16> {
        let info = self.0.info();
        info.is_command().then(|| info.command())
    }
}

/// A message, or a segment of a stream or of a long message, that was not delivered. It holds its block until it is
/// [released](Endpoint::release_returned).
#[derive(Debug)]
#[must_use = "a message that is not released keeps its block from being used again"]
pub struct Returned<'a>(inbox::Returned<Hold<'a>>);

impl Returned<'_> {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        let start = self.0.start();
        self.0.hold().bytes().get(start..start + self.0.length()).unwrap_or(&[])
    }

    /// The node that did not receive it. If it was sent to a set, other members may have.
    pub fn node(&self) -> Option<NodeId> {
        let Hold::Piece(delivery) = self.0.hold() else { return None };
        Some(self.0.node(delivery))
    }

    /// The parts it was sent to.
    pub fn targets(&self) -> impl Iterator<Item = PartId> {
        let Hold::Piece(delivery) = self.0.hold() else { return None.into_iter().flatten() };
        Some(self.0.targets(delivery)).into_iter().flatten()
    }

    /// The segment number, from 0, if this is a segment of a stream or of a long message.
    pub fn segment(&self) -> Option<u32> {
        self.0.segment()
    }
}

impl<'a, T: Transport, M: BlockMemory, P: SpacePolicy, W: Staging> Endpoint<'a, T, M, P, W> {
    /// Takes the next message for a part of this node, commands first. `None` if nothing has arrived.
    pub fn poll_recv(&mut self, part: PartId) -> Option<Message<'a>> {
        let (inbox, mut source) = self.inbox_of(part)?;
        let message = inbox.next(&mut source)?;
        // There may now be room to sort what lies behind it.
        self.pipes.dirty = true;
        Some(Message(message))
    }

    /// Releases a message. Its block becomes free once all its messages have been released.
    pub fn release(&mut self, message: Message<'a>) {
        self.release_hold(message.0.into_hold());
    }

    /// Takes the next messages of one length for a part of this node, commands first. A single message is a batch of one, and so
    /// is a message longer than a block. `None` if nothing has arrived.
    pub fn poll_recv_batch(&mut self, part: PartId) -> Option<Batch<'a>> {
        let (inbox, mut source) = self.inbox_of(part)?;
        let batch = inbox.next_batch(&mut source)?;
        // As after `poll_recv`.
        self.pipes.dirty = true;
        Some(Batch(batch))
    }

    /// Releases a batch.
    pub fn release_batch(&mut self, batch: Batch<'a>) {
        self.release_hold(batch.0.into_hold());
    }

    /// Reads the next messages for a part of this node in place, commands first: all messages of a block, or one longer than a
    /// block. Calls `each` with the sender, the kind and the bytes of each message; nothing has to be released. Returns the
    /// number of messages, 0 if none has arrived.
    #[inline]
    pub fn recv_each(&mut self, part: PartId, mut each: impl FnMut(Info, &[u8])) -> usize {
        let Some((inbox, mut source)) = self.inbox_of(part) else { return 0 };
        // A caller that reads until nothing is left ends here.
        if inbox.is_empty() && source.is_empty() {
            return 0;
        }
        match inbox.read_each(&mut source, &mut each) {
            Some(read) => read,
            None => self.recv_one(part, each),
        }
    }

    /// As [`recv_each`](Self::recv_each), for a message in segments.
    #[cold]
    fn recv_one(&mut self, part: PartId, mut each: impl FnMut(Info, &[u8])) -> usize {
        let Some(message) = self.poll_recv(part) else { return 0 };
        each(message.0.info(), message.bytes());
        self.release(message);
        1
    }

    /// Takes the next message sent by a part of this node that was not delivered because its destination has failed.
    pub fn poll_returned(&mut self, part: PartId) -> Option<Returned<'a>> {
        let (inbox, mut source) = self.inbox_of(part)?;
        let returned = inbox.next_returned(&mut source)?;
        // There is now room to sort what lies behind it.
        self.pipes.dirty = true;
        Some(Returned(returned))
    }

    /// Releases a returned message.
    pub fn release_returned(&mut self, returned: Returned<'a>) {
        self.release_hold(returned.0.into_hold());
    }

    /// Number of messages for a part, since it got its private pipe, that could not be read: malformed, or longer than the room
    /// for them.
    pub fn unreadable(&self, part: PartId) -> u64 {
        let pipe = self.engine.private_pipe(part);
        pipe.and_then(|pipe| self.inboxes.get(usize::from(pipe.0))).map_or(0, |inbox| inbox.unreadable())
    }

    /// Number of messages longer than a block, to any part of this node, that were abandoned after some segments had arrived: the
    /// sender gave up or failed, or the part was unregistered.
    pub fn incomplete(&self) -> u64 {
        self.pipes.incomplete
    }

    /// The inbox of a part of this node, and the source of its deliveries.
    #[expect(clippy::type_complexity, reason = "two references")]
    pub(super) fn inbox_of(
        &mut self,
        part: PartId,
    ) -> Option<(&mut Inbox<'a, Hold<'a>, Buffer<'a>>, Source<'_, 'a, T, M, P>)> {
        let Self { inboxes, pipes, engine, .. } = self;
        let pipe = usize::from(engine.private_pipe(part)?.0);
        Some((inboxes.get_mut(pipe)?, Source { engine, pipes, part, pipe }))
    }

    pub(super) fn release_hold(&mut self, hold: Hold<'a>) {
        self.pipes.release_hold(hold, &mut self.engine);
    }
}
