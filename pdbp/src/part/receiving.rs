//! Receiving messages, one by one and train by train.

use std::cell::RefMut;
use std::time::Duration;

use super::inbox::{Inbox, Source};
use super::{Batch, Message, Part, Share};
use crate::error::RecvError;
use crate::node::Pipe;

impl<S: Share> Part<S> {
    /// Returns the next message if one has arrived, commands first. Does not wait, but lets the node make progress.
    ///
    /// A part that has released its pipe receives nothing; [`recv`](Self::recv) reports this as an error.
    #[inline]
    #[expect(clippy::map_identity, reason = "it keeps a message in registers, see below")]
    pub fn try_recv(&self) -> Option<Message<S>> {
        match self.train.next() {
            Some(message) => Some(message),
            // Field by field; otherwise messages would pass through memory on both paths.
            None => self.try_recv_slow().map(|Message { run, bytes, info }| Message { run, bytes, info }),
        }
    }

    #[inline(never)]
    fn try_recv_slow(&self) -> Option<Message<S>> {
        match self.train.next_train() {
            Some(message) => Some(message),
            None => self.try_recv_inbox(),
        }
    }

    #[inline(never)]
    fn try_recv_inbox(&self) -> Option<Message<S>> {
        self.next_message().or_else(|| (self.poll() > 0).then(|| self.next_message()).flatten())
    }

    #[inline]
    pub(super) fn next_message(&self) -> Option<Message<S>> {
        // Checked first, since a waiting part finds nothing over and over.
        if self.is_drained() { None } else { self.take_message() }
    }

    /// Whether nothing is left to read.
    #[inline]
    pub(super) fn is_drained(&self) -> bool {
        let is_empty = !self.train.is_ahead() && self.inbox.borrow().is_empty();
        is_empty && self.bound_pipe().is_some_and(Pipe::is_empty)
    }

    #[inline(never)]
    fn take_message(&self) -> Option<Message<S>> {
        let mut inbox = self.inbox();
        let message = inbox.next(&mut Source(self))?;
        self.train.fill(&mut inbox);
        Some(Message::new(message))
    }

    /// The inbox, after putting back what was read ahead.
    #[inline]
    pub(crate) fn inbox(&self) -> RefMut<'_, Inbox<S>> {
        let mut inbox = self.inbox.borrow_mut();
        self.train.put_back(&mut inbox);
        inbox
    }

    pub(super) fn next_batch(&self) -> Option<Batch<S>> {
        self.inbox().next_batch(&mut Source(self)).map(Batch::new)
    }

    /// Waits until a message arrives, or until none can arrive any more. First flushes what this part has packed.
    ///
    /// # Errors
    /// [`RecvError::NobodyLeft`] if every other node has failed or left and this node has no other part (a cluster of one node
    /// keeps waiting: another thread may still register a part); [`RecvError::NoPipe`], and [`RecvError::Interrupted`].
    pub fn recv(&self) -> Result<Message<S>, RecvError> {
        match self.train.next() {
            Some(message) => Ok(message),
            None => self.receive(),
        }
    }

    #[inline(never)]
    fn receive(&self) -> Result<Message<S>, RecvError> {
        if let Some(message) = self.train.next_train().or_else(|| self.next_message()) {
            return Ok(message);
        }
        self.pipe()?;
        self.await_by(Duration::MAX, "", |part| Ok(part.next_message()))
    }

    /// Waits up to `timeout` for the next message.
    ///
    /// # Errors
    /// [`RecvError::Timeout`], and those of [`recv`](Self::recv): [`RecvError::NobodyLeft`] at once, however long the timeout.
    #[inline]
    pub fn recv_timeout(&self, timeout: Duration) -> Result<Message<S>, RecvError> {
        if let Some(message) = self.train.next() {
            return Ok(message);
        }
        self.pipe()?;
        self.receive_by(timeout, "sent a message to this part", |part| Ok(part.next_message()))
    }

    /// Returns the messages of one length from one sender that arrived together, without waiting: the fastest way to read many. A
    /// single message is a batch of one, as is a message longer than a block. Commands come first, in their own batches
    /// ([`Batch::is_command`]).
    pub fn try_recv_batch(&self) -> Option<Batch<S>> {
        self.next_batch().or_else(|| (self.poll() > 0).then(|| self.next_batch()).flatten())
    }

    /// As [`try_recv_batch`](Self::try_recv_batch), but waits up to `timeout`.
    ///
    /// # Errors
    /// As [`recv_timeout`](Self::recv_timeout).
    pub fn recv_batch(&self, timeout: Duration) -> Result<Batch<S>, RecvError> {
        self.pipe()?;
        self.receive_by(timeout, "sent a message to this part", |part| Ok(part.next_batch()))
    }

    /// Whether a message, and whether a new stream, has arrived.
    pub(super) fn has_arrived(&self) -> (bool, bool) {
        let waiting = self.inbox().poll(&mut Source(self));
        (waiting.message, waiting.stream)
    }
}
