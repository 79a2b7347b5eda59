//! Releasing the private pipe of a part, and applying for it again.

use super::Endpoint;
#[cfg(doc)]
use crate::Event;
use crate::engine::Superstep;
use crate::id::{PartId, PipeId};
use crate::outbox::Staging;
use crate::pipe::PipeError;
use crate::policy::SpacePolicy;
use crate::transport::Transport;
use crate::umb::BlockMemory;

impl<T: Transport, M: BlockMemory, P: SpacePolicy, W: Staging> Endpoint<'_, T, M, P, W> {
    /// Releases the private pipe of a part (`prcsReleasePipe`). Unread deliveries are returned, and later ones are discarded and
    /// counted as [`Event::Unroutable`]. The part can still send.
    ///
    /// # Errors
    /// [`PipeError::NotBound`] if it was released before.
    pub fn release_pipe(&mut self, part: PartId) -> Result<(), PipeError> {
        let Some(pipe) = self.engine.private_pipe(part) else {
            return Err(PipeError::NotBound(PipeId(u16::MAX)));
        };
        self.clear(part);
        self.pipes.dirty = true;
        self.engine.release_pipe(pipe)
    }

    /// Binds a private pipe to a part of this node again (`prcsApplyPipe`) after [`release_pipe`](Self::release_pipe). A newly
    /// registered part already has one.
    ///
    /// # Errors
    /// [`PipeError::AlreadyBound`], [`PipeError::NoSuchPart`], and [`PipeError::NoneIdle`].
    pub fn apply_pipe(&mut self, part: PartId) -> Result<(), PipeError> {
        self.pipes.dirty = true;
        self.engine.bind_pipe(part)?;
        // Notices in the pipe were for the part that had it before.
        self.clear(part);
        let withheld = self.engine.superstep(part) == Superstep::Ending;
        if let Some((inbox, _)) = self.inbox_of(part) {
            inbox.withhold(withheld);
            inbox.reset_unreadable();
        }
        Ok(())
    }
}
