//! The outbox of an endpoint and its windows.

use crate::cdu::{Full, Route};
use crate::id::PartId;
use crate::outbox::{Outbox, Staging, Windows};

/// Number of nodes that an endpoint can send short messages to alternately without looking up each block.
const WINDOWS: usize = 4;

/// An outbox and its windows. The windows are closed before the outbox is used in any other way.
pub(super) struct Packing<'a, B> {
    outbox: Outbox<'a>,
    windows: Windows<B, WINDOWS>,
}

impl<'a, B: Staging> Packing<'a, B> {
    pub(super) fn new(mut outbox: Outbox<'a>) -> Self {
        outbox.set_all_read_elsewhere();
        Self { outbox, windows: Windows::default() }
    }

    /// Packs one message into the open block of the lane of its node.
    ///
    /// # Errors
    /// [`Full`] if there is no room or no open block; nothing was written.
    #[inline(always)]
    pub(super) fn push(&mut self, to: PartId, route: Route, message: &[u8]) -> Result<(), Full> {
        let windows = &mut self.windows;
        let packed = windows.push_by(to, route, message);
        match packed.or_else(|| windows.push_first_by(to, route, message)) {
            Some(()) => Ok(()),
            None => self.push_slow(to, route, message),
        }
    }

    #[inline(never)]
    #[expect(unsafe_code, reason = "the promise that the outbox is used with closed windows")]
    fn push_slow(&mut self, to: PartId, route: Route, message: &[u8]) -> Result<(), Full> {
        // SAFETY: `outbox` closes the windows before it hands out the outbox; the tokens in it keep the memory of their blocks in place.
        unsafe { self.windows.pack(&mut self.outbox, to, route, message) }
    }

    /// Packs up to `most` adjacent messages of `length` bytes each, as many as fit in the open block. Returns the number packed.
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

    /// The outbox, for inspecting which blocks are open.
    pub(super) fn peek(&self) -> &Outbox<'a> {
        &self.outbox
    }
}
