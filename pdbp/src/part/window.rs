//! The room behind the last message that a part packed. Further messages to the same part go there without the outbox: into the open train if
//! they have its length, else with a header of their own.
#![allow(unsafe_code, reason = "room in blocks that the outbox has")]

use std::ptr::{self, NonNull};

use pdbp_core::cdu::{CDU_HEADER, COUNT_AT, CduClass, Full, Lent, Packed, Route};
use pdbp_core::outbox::{Hop, Outbox};
use pdbp_local::Copier;

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

/// The open train of a lane, and the room behind it, where the messages go that follow.
///
/// The `room` bytes from `base` on are the window's own: they lie in a block of the outbox, and nobody uses that lane of the outbox
/// before the window is closed. They begin with the header of the train that was open then. What is packed ends at `at`, and `last` is the
/// last place where one more message of the open train has room. Nothing has room in a window that is closed.
// As long as a power of 2, so that finding one among several takes a shift.
#[repr(align(64))]
struct Window {
    /// Whom the open train is for.
    to: Target,
    /// Where the next message goes, and the last place where one has room.
    at: NonNull<u8>,
    last: NonNull<u8>,
    base: NonNull<u8>,
    /// Where the header of the open train is, from `base` on.
    header_at: u32,
    /// Bytes of its messages.
    length: u32,
    /// Bytes for trains that begin here; 0 where none may.
    room: u32,
    /// Messages of the trains before the open one.
    before: u32,
    route: Route,
    /// Whether all messages are for one part.
    only_one_part: bool,
}

const _: () = assert!(size_of::<Window>() == 64);

const NOBODY: Target = match Target::from_bits(0) {
    Some(target) => target,
    None => panic!("0 is not reserved"),
};

// SAFETY: the bytes are the window's own (see there), and may be written by any thread.
unsafe impl Send for Window {}

impl Default for Window {
    fn default() -> Self {
        let nowhere = NonNull::dangling();
        Self {
            to: NOBODY,
            // Behind the last place.
            at: NonNull::<u64>::dangling().cast(),
            last: nowhere,
            base: nowhere,
            header_at: 0,
            length: 0,
            room: 0,
            before: 0,
            route: Route::new(CduClass::ShortMessage, 0, NOBODY, NOBODY),
            only_one_part: true,
        }
    }
}

impl Window {
    /// Packs a message, if it continues the train and has room.
    #[inline(always)]
    fn push(&mut self, to: Target, message: &[u8]) -> Option<()> {
        let at = self.at;
        if to != self.to || message.len() != self.length as usize || at > self.last {
            return None;
        }
        // SAFETY: the `length` bytes from `at` on are the window's own, since `at` is not behind `last`; so `message` is elsewhere.
        unsafe { ptr::copy_nonoverlapping(message.as_ptr(), at.as_ptr(), message.len()) }
        // SAFETY: the end of bytes of the block is in the block, or its end.
        self.at = unsafe { at.add(message.len()) };
        Some(())
    }

    /// Packs a message to a part of the same node, if it has room, as the first of a train.
    #[inline]
    fn push_to(&mut self, to: Target, route: Route, message: &[u8]) -> Option<()> {
        if to.node() != self.to.node() {
            return None;
        }
        let before = (self.to, self.route);
        (self.to, self.route) = (to, route);
        let packed = self.push_first(message);
        match packed {
            Some(()) => self.only_one_part &= to == before.0,
            None => (self.to, self.route) = before,
        }
        packed
    }

    /// Packs a message, if it has room, as the first of a train.
    #[inline]
    fn push_first(&mut self, message: &[u8]) -> Option<()> {
        let length = message.len();
        let written = self.written();
        // On the grid of headers, which begins at `base`.
        let header_at = written.next_multiple_of(8);
        let end = header_at + CDU_HEADER + length;
        // Long ones are copied in a way of their own, and those without bytes cannot be told from none.
        if end > self.room as usize || length.wrapping_sub(1) >= Copier::LONG - 1 {
            return None;
        }
        self.end_train(written);
        // SAFETY: up to `end`, which is within `room`, the bytes are the window's own, and nothing is packed from `written` on.
        let header = unsafe { self.base.add(header_at) };
        let bytes = self.route.header(length as u32);
        // SAFETY: as above.
        unsafe { header.cast().write_unaligned(bytes) }
        (self.header_at, self.length) = (header_at as u32, length as u32);
        // SAFETY: `room` is no less than `end`, so than `length`.
        self.last = unsafe { self.base.add(self.room as usize - length) };
        // SAFETY: as for the header.
        self.at = unsafe { self.base.add(end) };
        // SAFETY: as for the header.
        let data = unsafe { header.add(CDU_HEADER) };
        // SAFETY: as for the header; and `message` is elsewhere.
        unsafe { ptr::copy_nonoverlapping(message.as_ptr(), data.as_ptr(), length) }
        Some(())
    }

    /// Ends the open train, which ends at `written`: with the number of its messages, and with padding. The header that follows has room.
    #[inline(always)]
    fn end_train(&mut self, written: usize) {
        let data = (written - CDU_HEADER) as u32 - self.header_at;
        let mut count = 1;
        if data != self.length {
            count = data / self.length;
            // SAFETY: the open train has its header there, within the window's own bytes.
            let header = unsafe { self.base.add(self.header_at as usize + COUNT_AT) };
            // SAFETY: as above.
            unsafe { header.cast().write_unaligned(count.to_le_bytes()) }
        }
        self.before += count;
        // SAFETY: padding and the header are longer, and nothing is packed there.
        unsafe { self.at.cast().write_unaligned([0u8; 8]) }
    }

    /// The window behind the open train of a lane, which is for `to`. The caller leaves it alone until the window is closed.
    #[inline]
    fn open(to: Target, route: Route, length: usize, lent: Lent<'_>) -> Option<Self> {
        let Lent { room, written, is_straight } = lent;
        let last = room.len().checked_sub(length).filter(|_| written <= room.len())?;
        let base = NonNull::from(&mut *room).cast::<u8>();
        // SAFETY: `written` is no more than the length of the room.
        let at = unsafe { base.add(written) };
        // SAFETY: `last` is no more than the length of the room.
        let last = unsafe { base.add(last) };
        let (length, bytes) = (u32::try_from(length).ok()?, u32::try_from(room.len()).ok()?);
        let room = if is_straight { bytes } else { 0 };
        Some(Self { to, at, last, base, header_at: 0, length, room, before: 0, route, only_one_part: true })
    }

    /// What was packed since it was opened, and before in that train.
    fn close(&mut self) -> Packed {
        let packed = Packed {
            last_train: self.header_at as usize,
            route: self.route,
            length: self.length as usize,
            end: self.written(),
            before: self.before,
            only_one_part: self.only_one_part,
        };
        (self.last, self.room) = (self.base, 0);
        packed
    }

    /// Bytes from `base` on that are packed.
    fn written(&self) -> usize {
        self.at.addr().get() - self.base.addr().get()
    }
}

impl Windows {
    /// Packs a message, if it continues the train of a window that has room for it.
    #[inline(always)]
    pub(super) fn push(&mut self, to: Target, message: &[u8]) -> Option<()> {
        self.places[place(to)].push(to, message)
    }

    /// Packs a message, if there is a window for that part that has room for it, as the first of a train.
    // Apart, so that messages of one length keep their registers.
    #[inline(never)]
    pub(super) fn push_first(&mut self, to: Target, message: &[u8]) -> Option<()> {
        let window = &mut self.places[place(to)];
        if to == window.to { window.push_first(message) } else { None }
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

    /// Packs a message into the open block to its node, and opens the window behind it.
    #[inline]
    pub(super) fn push(
        &mut self,
        windows: &mut Windows,
        to: Target,
        route: Route,
        message: &[u8],
    ) -> Result<(), Full> {
        let place = place(to);
        let window = &mut windows.places[place];
        if window.push(to, message).or_else(|| window.push_to(to, route, message)).is_some() {
            return Ok(());
        }
        self.close_one(windows, place);
        let hop = Hop::to_node(to.node());
        self.outbox.push(hop, route, message)?;
        let lent = self.outbox.lend_room(hop.lane());
        if let Some(window) = lent.and_then(|lent| Window::open(to, route, message.len(), lent)) {
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
        let lane = Hop::to_node(window.to.node()).lane();
        self.outbox.take_back(lane, window.close());
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
