//! Messages, batches and returned messages of a host.

use core::ops::Deref;

use super::Host;
use crate::endpoint;
use crate::id::{NodeId, PartId};
use crate::policy::SpacePolicy;
use crate::transport::Transport;
use crate::umb::BlockMemory;

/// A received message, read in place. Until it is dropped it holds its block, and with it some of its sender's credit.
#[must_use = "a message that is not read is gone"]
pub struct Message<'h, T: Transport, M: BlockMemory, P: SpacePolicy> {
    host: &'h Host<T, M, P>,
    /// `None` once dropped.
    message: Option<endpoint::Message<'static>>,
}

impl<'h, T: Transport, M: BlockMemory, P: SpacePolicy> Message<'h, T, M, P> {
    pub(super) fn new(host: &'h Host<T, M, P>, message: endpoint::Message<'static>) -> Self {
        Self { host, message: Some(message) }
    }

    /// The part that sent it.
    pub fn source(&self) -> Option<PartId> {
        self.message.as_ref().map(endpoint::Message::source)
    }

    /// The command number, for a command.
    pub fn command(&self) -> Option<u16> {
        self.message.as_ref().and_then(endpoint::Message::command)
    }
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Deref for Message<'_, T, M, P> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.message.as_ref().map_or(&[], endpoint::Message::bytes)
    }
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Drop for Message<'_, T, M, P> {
    fn drop(&mut self) {
        if let Some(message) = self.message.take() {
            self.host.on_drop(|endpoint| endpoint.release(message));
        }
    }
}

/// Messages of one length from one part, received together and read in place. Until the batch is dropped they hold their block, and
/// with it some of their sender's credit.
#[must_use = "messages that are not read are gone"]
pub struct Batch<'h, T: Transport, M: BlockMemory, P: SpacePolicy> {
    host: &'h Host<T, M, P>,
    /// `None` once dropped.
    batch: Option<endpoint::Batch<'static>>,
}

impl<'h, T: Transport, M: BlockMemory, P: SpacePolicy> Batch<'h, T, M, P> {
    pub(super) fn new(host: &'h Host<T, M, P>, batch: endpoint::Batch<'static>) -> Self {
        Self { host, batch: Some(batch) }
    }

    /// The part that sent them.
    pub fn source(&self) -> Option<PartId> {
        self.batch.as_ref().map(endpoint::Batch::source)
    }

    /// The command number, for commands.
    pub fn command(&self) -> Option<u16> {
        self.batch.as_ref().and_then(endpoint::Batch::command)
    }

    /// Number of messages, at least 1.
    pub fn count(&self) -> usize {
        self.batch.as_ref().map_or(0, endpoint::Batch::count)
    }

    /// Bytes of each message.
    pub fn message_len(&self) -> usize {
        self.batch.as_ref().map_or(0, endpoint::Batch::message_len)
    }

    /// The bytes of all messages, back to back.
    pub fn bytes(&self) -> &[u8] {
        self.batch.as_ref().map_or(&[], endpoint::Batch::bytes)
    }

    /// The messages, in the order sent.
    pub fn messages(&self) -> impl Iterator<Item = &[u8]> {
        let (bytes, length) = (self.bytes(), self.message_len());
        (0..self.count()).map(move |number| bytes.get(number * length..(number + 1) * length).unwrap_or(&[]))
    }
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Drop for Batch<'_, T, M, P> {
    fn drop(&mut self) {
        if let Some(batch) = self.batch.take() {
            self.host.on_drop(|endpoint| endpoint.release_batch(batch));
        }
    }
}

/// An undelivered message, or an undelivered segment of a stream or of a long message. It holds its block until it is dropped.
#[must_use = "a message that is not looked at is gone"]
pub struct Returned<'h, T: Transport, M: BlockMemory, P: SpacePolicy> {
    host: &'h Host<T, M, P>,
    /// `None` once dropped.
    returned: Option<endpoint::Returned<'static>>,
}

impl<'h, T: Transport, M: BlockMemory, P: SpacePolicy> Returned<'h, T, M, P> {
    pub(super) fn new(host: &'h Host<T, M, P>, returned: endpoint::Returned<'static>) -> Self {
        Self { host, returned: Some(returned) }
    }

    /// The node that did not receive it. If it was sent to a set, other nodes may have received it.
    pub fn node(&self) -> Option<NodeId> {
        self.returned.as_ref().and_then(endpoint::Returned::node)
    }

    /// The parts it was sent to.
    pub fn targets(&self) -> impl Iterator<Item = PartId> {
        self.returned.iter().flat_map(endpoint::Returned::targets)
    }

    /// The segment number, from 0, for a segment of a stream or of a long message.
    pub fn segment(&self) -> Option<u32> {
        self.returned.as_ref().and_then(endpoint::Returned::segment)
    }
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Deref for Returned<'_, T, M, P> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.returned.as_ref().map_or(&[], endpoint::Returned::bytes)
    }
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Drop for Returned<'_, T, M, P> {
    fn drop(&mut self) {
        if let Some(returned) = self.returned.take() {
            self.host.on_drop(|endpoint| endpoint.release_returned(returned));
        }
    }
}
