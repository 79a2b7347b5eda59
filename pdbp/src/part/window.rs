//! The room behind the last message of a part: messages that follow to the same part, as long as that one, go there without a
//! look at the outbox.
#![allow(unsafe_code, reason = "room in a block that the outbox has")]

use std::ptr::{self, NonNull};

use pdbp_core::cdu::{Full, Route};
use pdbp_core::outbox::{Hop, Outbox};

use super::Target;
use super::biased::Windowed;

/// An outbox, and the lane that has the window.
pub(crate) struct Packing {
    pub(super) outbox: Outbox<'static>,
    lane: usize,
}

/// Where the messages go that continue the train at the end of an open block.
///
/// From `at` on, `length` bytes are the window's own, and so are those from each place up to `last`: they lie in a block of the outbox
/// behind all that is packed there, and nobody uses the outbox before the window is closed.
pub(crate) struct Window {
    /// Whom the train is for.
    to: Target,
    /// Bytes of its messages; [`CLOSED`] when there is none.
    length: usize,
    /// Where the next message goes, and the last place where one has room.
    at: NonNull<u8>,
    last: NonNull<u8>,
    /// Where the window began.
    start: NonNull<u8>,
}

/// No message is as long.
const CLOSED: usize = usize::MAX;

const NOBODY: Target = match Target::from_bits(0) {
    Some(target) => target,
    None => panic!("0 is not reserved"),
};

// SAFETY: the bytes are the window's own (see there), and may be written by any thread.
unsafe impl Send for Window {}

impl Default for Window {
    fn default() -> Self {
        let nowhere = NonNull::dangling();
        Self { to: NOBODY, length: CLOSED, at: nowhere, last: nowhere, start: nowhere }
    }
}

impl Window {
    /// Packs a message, if it continues the train and has room.
    #[inline(always)]
    pub(super) fn push(&mut self, to: Target, message: &[u8]) -> Option<()> {
        let at = self.at;
        if to != self.to || message.len() != self.length || at > self.last {
            return None;
        }
        // SAFETY: the `length` bytes from `at` on are the window's own, since `at` is not behind `last`; so `message` is elsewhere.
        unsafe { ptr::copy_nonoverlapping(message.as_ptr(), at.as_ptr(), message.len()) }
        // SAFETY: the end of bytes of the block is in the block, or its end.
        self.at = unsafe { at.add(message.len()) };
        Some(())
    }

    /// The room of a train of messages of `length` bytes to `to`. The caller leaves it alone until the window is closed.
    #[inline]
    fn open(to: Target, length: usize, room: &mut [u8]) -> Option<Self> {
        let last = room.len().checked_sub(length).filter(|_| length > 0)?;
        let start = NonNull::from(&mut *room).cast::<u8>();
        // SAFETY: `last` is less than the length of the room.
        let last = unsafe { start.add(last) };
        Some(Self { to, length, at: start, last, start })
    }

    /// Bytes packed since it was opened.
    fn written(&self) -> usize {
        self.at.addr().get() - self.start.addr().get()
    }
}

impl Packing {
    pub(super) fn new(outbox: Outbox<'static>) -> Self {
        Self { outbox, lane: 0 }
    }

    /// Packs a message into the open block to its node. The window behind it, if it was not the first of its kind.
    #[inline]
    pub(super) fn push(&mut self, to: Target, route: Route, message: &[u8]) -> Result<Option<Window>, Full> {
        let hop = Hop::to_node(to.node());
        let room = self.outbox.push_on(hop, route, message)?;
        self.lane = hop.lane();
        Ok(Window::open(to, message.len(), room))
    }
}

impl Windowed for Packing {
    type Window = Window;

    #[inline]
    fn is_open(window: &Window) -> bool {
        window.length != CLOSED
    }

    #[inline]
    fn close(&mut self, window: Window) {
        let written = window.written();
        if written > 0 {
            self.outbox.extend(self.lane, written);
        }
    }
}
