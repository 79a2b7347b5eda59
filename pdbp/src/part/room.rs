//! Space for messages longer than a block, at their receiver.

use std::sync::Arc;

use pdbp_core::engine::RoomToken;
use pdbp_core::id::PartId;

use super::{Part, Share};
use crate::node::Shared;

/// The share of the setting `assembly_bytes` that one message takes. Dropping it returns the share.
pub(crate) struct Room {
    token: Option<RoomToken>,
    shared: Arc<Shared>,
}

impl Room {
    /// Takes the room that was reserved when the sender asked; `None` if the sender has not asked, or asked
    /// for less.
    pub(crate) fn take<S: Share>(part: &Part<S>, source: PartId, message: u32, total: u32) -> Option<Self> {
        let token =
            part.shared().engine_without_wakes().take_room(part.id(), source, message, u64::from(total))?;
        Some(Self { token: Some(token), shared: Arc::clone(part.shared()) })
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(token) = self.token.take() {
            self.shared.return_room(token);
        }
    }
}
