//! Send operations that may take a host several polls.

use super::Host;
use crate::endpoint::{LongSend, SendError, SetSend};
use crate::id::PartId;
use crate::policy::SpacePolicy;
use crate::transport::Transport;
use crate::umb::BlockMemory;

/// A message of any length being sent. [`poll`](Self::poll) it until it is sent; dropping it earlier abandons the message.
#[must_use = "a message is sent by polling"]
pub struct Sending<'h, 'm, T: Transport, M: BlockMemory, P: SpacePolicy> {
    host: &'h Host<T, M, P>,
    /// `None` once sent.
    sending: Option<LongSend<&'m [u8]>>,
}

impl<'h, 'm, T: Transport, M: BlockMemory, P: SpacePolicy> Sending<'h, 'm, T, M, P> {
    pub(super) fn new(host: &'h Host<T, M, P>, sending: LongSend<&'m [u8]>) -> Self {
        Self { host, sending: Some(sending) }
    }

    /// Sends as much as fits. Returns whether all of it was sent; if not, call again after [`Host::poll`].
    ///
    /// # Errors
    /// See [`SendError`]; the message is abandoned.
    pub fn poll(&mut self) -> Result<bool, SendError> {
        let Some(sending) = &mut self.sending else { return Ok(true) };
        let sent = self.host.with(|endpoint| endpoint.poll_long(sending));
        if !matches!(sent, Ok(false)) {
            self.sending = None;
        }
        sent
    }
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Drop for Sending<'_, '_, T, M, P> {
    fn drop(&mut self) {
        if let Some(sending) = self.sending.take() {
            self.host.on_drop(|endpoint| endpoint.abort_long(sending));
        }
    }
}

/// A message being sent to several parts. [`poll`](Self::poll) it until it was sent to all nodes; dropping it earlier skips the
/// remaining nodes.
#[must_use = "a message is sent by polling"]
pub struct SendingSet<'h, 'm, T: Transport, M: BlockMemory, P: SpacePolicy> {
    host: &'h Host<T, M, P>,
    sending: SetSend<&'m [PartId], &'m [u8]>,
}

impl<'h, 'm, T: Transport, M: BlockMemory, P: SpacePolicy> SendingSet<'h, 'm, T, M, P> {
    pub(super) fn new(host: &'h Host<T, M, P>, sending: SetSend<&'m [PartId], &'m [u8]>) -> Self {
        Self { host, sending }
    }

    /// Sends it to every node for which there is room. Returns whether it was sent to all; if not, call again after [`Host::poll`].
    ///
    /// # Errors
    /// See [`SendError`]: one node will not get the message, namely the last before those that are [left](Self::remaining). Call again
    /// to send to the rest.
    pub fn poll(&mut self) -> Result<bool, SendError> {
        self.host.with(|endpoint| endpoint.poll_set(&mut self.sending))
    }

    /// The parts on nodes to which it has not been sent yet.
    pub fn remaining(&self) -> &[PartId] {
        self.sending.remaining()
    }
}
