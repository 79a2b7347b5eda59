//! The room behind the last messages of a part: messages that follow to the same part as one before, as long as that, go there without
//! a look at the outbox.
#![allow(unsafe_code, reason = "room in blocks that the outbox has")]

use std::ptr::{self, NonNull};

use pdbp_core::cdu::{Full, Route};
use pdbp_core::outbox::{Hop, Outbox};

use super::Target;
use crate::sync::Windowed;

/// Windows at a time. Traffic to more nodes than that, message by message in turn, goes without them.
const WINDOWS: usize = 32;

/// An outbox. Only lanes of nodes are packed into here.
pub(crate) struct Packing {
    pub(super) outbox: Outbox<'static>,
}

/// The windows of lanes, each in the place that the lowest bits of its node name.
#[derive(Default)]
pub(crate) struct Windows {
    places: [Window; WINDOWS],
    /// A bit for each that is open.
    open: u32,
}

/// Where the messages go that continue the train at the end of an open block.
///
/// From `at` on, `length` bytes are the window's own, and so are those from each place up to `last`: they lie in a block of the outbox
/// behind all that is packed there, and nobody uses that lane of the outbox before the window is closed.
// As long as a power of 2, so that finding one among several takes a shift.
#[repr(align(64))]
struct Window {
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
    fn push(&mut self, to: Target, message: &[u8]) -> Option<()> {
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

impl Windows {
    /// Packs a message, if it continues the train of a window that has room for it.
    #[inline(always)]
    pub(super) fn push(&mut self, to: Target, message: &[u8]) -> Option<()> {
        self.places[place(to)].push(to, message)
    }
}

/// Which window is for messages to that part, or to others of its node and of some others.
#[inline(always)]
const fn place(to: Target) -> usize {
    to.node().index() % WINDOWS
}

impl Packing {
    pub(super) fn new(outbox: Outbox<'static>) -> Self {
        Self { outbox }
    }

    /// Packs a message into the open block to its node, and opens the window behind it, if it was not the first of its kind.
    #[inline]
    pub(super) fn push(
        &mut self,
        windows: &mut Windows,
        to: Target,
        route: Route,
        message: &[u8],
    ) -> Result<(), Full> {
        let place = place(to);
        self.close_one(windows, place);
        let room = self.outbox.push_on(Hop::to_node(to.node()), route, message)?;
        if let Some(window) = Window::open(to, message.len(), room) {
            windows.places[place] = window;
            windows.open |= 1 << place;
        }
        Ok(())
    }

    #[inline]
    fn close_one(&mut self, windows: &mut Windows, place: usize) {
        if windows.open & (1 << place) == 0 {
            return;
        }
        windows.open &= !(1 << place);
        let window = &mut windows.places[place];
        let written = window.written();
        if written > 0 {
            self.outbox.extend(Hop::to_node(window.to.node()).lane(), written);
        }
        window.length = CLOSED;
    }
}

impl Windowed for Packing {
    type Window = Windows;

    #[inline]
    fn is_open(windows: &Windows) -> bool {
        windows.open != 0
    }

    #[inline]
    fn close(&mut self, windows: &mut Windows) {
        while windows.open != 0 {
            self.close_one(windows, windows.open.trailing_zeros() as usize % WINDOWS);
        }
    }
}
