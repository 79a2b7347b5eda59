//! The outbox of an endpoint, and what is packed behind its back.

use crate::cdu::{Full, Route};
use crate::id::PartId;
use crate::outbox::{Beside, Outbox, Windows};

/// Nodes that an endpoint sends short messages to in turn without looking each block up.
const WINDOWS: usize = 4;

/// An outbox and its windows, which are closed before anything else is done with it.
pub(super) struct Packing<'a, B> {
    outbox: Outbox<'a>,
    windows: Windows<B, WINDOWS>,
}

impl<'a, B: Beside> Packing<'a, B> {
    pub(super) fn new(mut outbox: Outbox<'a>) -> Self {
        outbox.set_all_read_elsewhere();
        Self { outbox, windows: Windows::default() }
    }

    /// Packs one message into the open block of the lane of its node.
    ///
    /// # Errors
    /// [`Full`] when there is no room, or no open block; nothing was written.
    #[inline(always)]
    pub(super) fn push(&mut self, to: PartId, route: Route, message: &[u8]) -> Result<(), Full> {
        let windows = &mut self.windows;
        let packed = windows.push_by(to, route, message);
        match packed.or_else(|| windows.push_first_by(to, route, message)) {
            Some(()) => Ok(()),
            None => self.push_other(to, route, message),
        }
    }

    #[inline(never)]
    #[expect(unsafe_code, reason = "the promise that the outbox is used with closed windows")]
    fn push_other(&mut self, to: PartId, route: Route, message: &[u8]) -> Result<(), Full> {
        // SAFETY: `outbox` closes the windows; and tokens in an outbox know that the memory of blocks stays.
        unsafe { self.windows.pack(&mut self.outbox, to, route, message) }
    }

    /// Packs as many messages of `length` bytes each, of `most` that lie side by side, as the open block has room for; how many.
    #[expect(unsafe_code, reason = "as above")]
    pub(super) fn push_each(
        &mut self,
        (to, route): (PartId, Route),
        messages: &[u8],
        length: usize,
        most: usize,
    ) -> usize {
        // SAFETY: as above.
        unsafe { self.windows.pack_each(&mut self.outbox, (to, route), messages, length, most) }
    }

    /// The outbox.
    #[inline]
    pub(super) fn outbox(&mut self) -> &mut Outbox<'a> {
        if self.windows.is_open() {
            self.windows.close(&mut self.outbox);
        }
        &mut self.outbox
    }

    /// The outbox, for questions of which blocks are open.
    pub(super) fn peek(&self) -> &Outbox<'a> {
        &self.outbox
    }
}
