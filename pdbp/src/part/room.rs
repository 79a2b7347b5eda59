//! Room for messages longer than a block: the receiver's share of it, and the sender that waits for some.

use std::sync::Arc;
use std::time::Duration;

use pdbp_core::engine::{RoomError, RoomToken};
use pdbp_core::id::PartId;

use super::sending::{failed, route_nodes};
use super::{Message, Part, Share, Target};
use crate::error::SendError;
use crate::node::{Shared, Waiter};

/// The room that one message takes of the setting `assembly_bytes`. Given back when it is dropped.
pub(crate) struct Room {
    token: Option<RoomToken>,
    shared: Arc<Shared>,
}

impl Room {
    /// What was reserved for a message when its sender asked for it; `None` if that has not, or has asked for less.
    pub(crate) fn take<S: Share>(part: &Part<S>, source: PartId, message: u32, total: u32) -> Option<Self> {
        let token = part.shared().engine().take_room(part.id(), source, message, u64::from(total))?;
        Some(Self { token: Some(token), shared: Arc::clone(part.shared()) })
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(token) = self.token.take() {
            self.shared.give_room(token);
        }
    }
}

impl<S: Share> Part<S> {
    /// Waits until the node of `to` has room for message number `number` of `bytes` bytes. What arrives meanwhile is handed to `receive`, if
    /// there is one.
    pub(crate) fn wait_for_room(
        &self,
        to: Target,
        (number, bytes): (u32, usize),
        timeout: Duration,
        mut receive: Option<&mut (dyn FnMut(Message<S>) + '_)>,
    ) -> Result<(), SendError> {
        let shared = self.shared();
        let mut waiter = Waiter::new(timeout, shared);
        // What was packed before goes first.
        self.flush();
        loop {
            let mut engine = shared.engine();
            match engine.ask_room(self.id(), to, number, bytes as u64) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(RoomError::TooLong { limit }) => {
                    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
                    return Err(SendError::TooLong { bytes, limit });
                }
                Err(_) => return Err(failed(&engine, to.node())),
            }
            let worked = self.poll_with(&mut engine).worked;
            if waiter.is_over() {
                engine.end_room(self.id(), false);
                let missing =
                    "got room for a long message: those before it have not been read (`assembly_bytes`)";
                return Err(waiter.late(route_nodes(&engine, to.node()), missing).into());
            }
            drop(engine);
            shared.help_siblings();
            let received = receive.as_deref_mut().is_some_and(|receive| self.hand_on(receive));
            if received || worked > 0 {
                waiter.worked(&self.node);
            } else {
                waiter.pause(&self.node, &[]);
            }
        }
    }

    /// Refuses to go on with a message whose link has failed since it was granted its room: it may be up again, but what was sent before
    /// is lost.
    pub(crate) fn keep_room(&self, to: Target, (number, bytes): (u32, usize)) -> Result<(), SendError> {
        let mut engine = self.shared().engine();
        match engine.ask_room(self.id(), to, number, bytes as u64) {
            Ok(_) => Ok(()),
            Err(_) => Err(failed(&engine, to.node())),
        }
    }

    /// The last segment was submitted, or the message is given up.
    pub(crate) fn end_room(&self, sent: bool) {
        self.shared().engine().end_room(self.id(), sent);
    }
}
