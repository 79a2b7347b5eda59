//! Windows let a sender pack further messages to a node right behind the last one, without going through the outbox. A message
//! joins the open train if it has the train's route and length; otherwise it gets its own header.
//!
//! If the reader is on another processor of this host and reads the block in place, a run of messages can first be written to a
//! [stage](Stage) and copied to the block from there. The host decides ([`Staging`]).

use core::{array, mem, ptr};

use super::{Hop, Outbox, Stage, Staging};
use crate::cdu::{CDU_HEADER, COUNT_AT, CduClass, Full, Lent, Packed, Route};
use crate::flaw::Flaw;
use crate::id::PartId;

/// The windows of an outbox: one each for up to `N` destination nodes, where `N` is at most 32. A sender that alternates between
/// more nodes with every message gains nothing from them.
#[derive(Debug)]
pub struct Windows<B, const N: usize> {
    /// A node's window is at the index of the node modulo `N`.
    places: [Window; N],
    /// One bit for each open window.
    open: u32,
    /// One bit for each window through which many bytes were written the last time it was open.
    streams: u32,
    stages: [Staged<B>; N],
}

/// The stage of a window.
#[derive(Debug, Default)]
struct Staged<B> {
    stage: Stage<B>,
    /// Bytes written through the window the last time it was open.
    written: usize,
}

/// The open train of a lane, and the room behind it for the messages that follow.
///
/// While open, the window owns the bytes of the lane's block from the header of the train that was open at the time. It writes
/// bytes `origin` to `end` of that room, at `base` plus their offset: in the block itself, or in a stage. What has been packed
/// ends at `at`; `last` is the last address at which one more message of the open train fits. Nothing fits in a closed window.
// Its size is a power of 2, so that indexing takes a shift. Whatever a message needs is in its first cache line.
#[derive(Debug)]
#[repr(C, align(128))]
struct Window {
    /// The part that the open train is for.
    to: PartId,
    /// Where the next message goes, and the last place where one still fits.
    at: *mut u8,
    last: *mut u8,
    base: *mut u8,
    /// Where the first message of the open train ends.
    first_end: *mut u8,
    /// Offset of the open train's header.
    header_at: u32,
    /// Length of each of its messages, in bytes.
    length: u32,
    /// Where trains that begin here have to end; 0 if none may begin.
    room: u32,
    /// Number of messages in the trains before the open one.
    before: u32,
    route: Route,
    /// Whether all messages are for one part.
    only_one_part: bool,
    /// Whether it writes into a stage.
    is_staged: bool,
    origin: u32,
    end: u32,
    /// Where the message count of an ended train belongs, and that count: still to be written to the block, before `origin`.
    ended: Option<(u32, u32)>,
}

const _: () = assert!(size_of::<Window>() == 128);

const NO_PART: PartId = PartId::from_checked(0);

// SAFETY: the bytes belong to the window alone (see its docs), and any thread may write them.
unsafe impl Send for Window {}

impl Default for Window {
    fn default() -> Self {
        Self {
            to: NO_PART,
            // Beyond `last`.
            at: ptr::without_provenance_mut(1),
            last: ptr::null_mut(),
            base: ptr::null_mut(),
            first_end: ptr::null_mut(),
            header_at: 0,
            length: 0,
            room: 0,
            before: 0,
            route: Route::new(CduClass::ShortMessage, 0, NO_PART, NO_PART),
            only_one_part: true,
            is_staged: false,
            origin: 0,
            end: 0,
            ended: None,
        }
    }
}

impl Window {
    /// Packs a message with the route of the train, if it has the train's part and length and there is room.
    #[inline(always)]
    fn push(&mut self, to: PartId, message: &[u8]) -> Option<()> {
        let at = self.at;
        if to != self.to || message.len() != self.length as usize || at > self.last {
            return None;
        }
        // SAFETY: the `length` bytes from `at` on belong to the window, since `at` is not beyond `last`; so `message` lies
        // elsewhere.
        unsafe { ptr::copy_nonoverlapping(message.as_ptr(), at, message.len()) }
        // SAFETY: the window's bytes end within the block or stage, or at its end.
        self.at = unsafe { at.add(message.len()) };
        Some(())
    }

    /// As [`push`](Self::push), for up to `most` adjacent messages of `length` bytes each. Returns the number packed.
    fn push_each(&mut self, to: PartId, messages: &[u8], length: usize, most: usize) -> usize {
        let at = self.at;
        if to != self.to || length != self.length as usize || at > self.last {
            return 0;
        }
        let room = (self.last.addr() - at.addr()).checked_div(length).unwrap_or(0) + 1;
        let count = room.min(most);
        let Some(messages) = messages.get(..count * length) else { return 0 };
        // SAFETY: the bytes from `at` to `last`, and `length` more, belong to the window; so `messages` lie elsewhere.
        unsafe { ptr::copy_nonoverlapping(messages.as_ptr(), at, messages.len()) }
        // SAFETY: as in `push`.
        self.at = unsafe { at.add(messages.len()) };
        count
    }

    /// Packs a message to a part of the same node as the first of a train, if there is room.
    #[inline]
    fn push_to<B: Staging>(&mut self, to: PartId, route: Route, message: &[u8]) -> Option<()> {
        if to.node() != self.to.node() {
            return None;
        }
        let before = (self.to, self.route);
        (self.to, self.route) = (to, if Flaw::KeepsRoute.strikes() { before.1 } else { route });
        let packed = self.push_first::<B>(message);
        match packed {
            Some(()) => self.only_one_part &= to == before.0,
            None => (self.to, self.route) = before,
        }
        packed
    }

    /// Packs a message as the first of a train, if there is room.
    #[inline]
    fn push_first<B: Staging>(&mut self, message: &[u8]) -> Option<()> {
        let length = message.len();
        // On the grid of headers, which begins at `base`.
        let header_at = self.written().next_multiple_of(8);
        // Long messages are copied by another path, and empty ones cannot be told from no message at all.
        if header_at + CDU_HEADER + length > self.room as usize || length.wrapping_sub(1) >= B::LONG - 1 {
            return None;
        }
        if self.at != self.first_end {
            return self.push_after_several(header_at, message);
        }
        self.begin_train(1, header_at, message);
        Some(())
    }

    /// As `push_first`, after a train of more than one message. There is room.
    #[inline(never)]
    fn push_after_several(&mut self, header_at: usize, message: &[u8]) -> Option<()> {
        let data = (self.written() - CDU_HEADER) as u32 - self.header_at;
        let count = data / self.length - u32::from(Flaw::CountsEndedShort.strikes());
        let count_at = self.header_at + COUNT_AT as u32;
        if count_at >= self.origin {
            let number = self.base.wrapping_add(count_at as usize);
            // SAFETY: the header of the open train is there, and the window writes the bytes from `origin` on.
            unsafe { number.cast::<[u8; 4]>().write_unaligned(count.to_le_bytes()) }
        } else {
            self.ended = Some((count_at, count));
        }
        self.begin_train(count, header_at, message);
        Some(())
    }

    /// Ends the open train of `count` messages, whose header has that number, and packs the first message of the next one, whose
    /// header goes to `header_at`. There is room.
    #[inline(always)]
    fn begin_train(&mut self, count: u32, header_at: usize, message: &[u8]) {
        self.before += count;
        // The padding.
        // SAFETY: padding and header are longer than this; they belong to the window, and nothing is packed there.
        unsafe { self.at.cast::<[u8; 8]>().write_unaligned([0; 8]) }
        let header = self.base.wrapping_add(header_at);
        let length = message.len() as u32;
        // SAFETY: the room for header and message belongs to the window.
        unsafe { header.cast::<[u8; CDU_HEADER]>().write_unaligned(self.route.header(length)) }
        (self.header_at, self.length) = (header_at as u32, length);
        self.last = self.base.wrapping_add((self.room - length) as usize);
        let data = header.wrapping_add(CDU_HEADER);
        self.at = data.wrapping_add(message.len());
        self.first_end = self.at;
        // SAFETY: as for the header; and `message` lies elsewhere.
        unsafe { ptr::copy_nonoverlapping(message.as_ptr(), data, message.len()) }
    }

    /// Becomes the window behind the open train of a lane, which is for `to`. Returns whether it could. The caller leaves the
    /// train alone until the window is closed.
    #[inline]
    fn open(&mut self, to: PartId, route: Route, length: usize, lent: Lent<'_>) -> bool {
        let Lent { room, written, is_straight } = lent;
        let (Ok(short), Ok(end)) = (u32::try_from(length), u32::try_from(room.len())) else { return false };
        if length > room.len() || written > room.len() {
            return false;
        }
        self.to = to;
        (self.header_at, self.length, self.before) = (0, short, 0);
        (self.room, self.end, self.origin) = (if is_straight { end } else { 0 }, end, 0);
        self.write_to(room.as_mut_ptr(), written, room.len());
        self.route = route;
        (self.only_one_part, self.is_staged, self.ended) = (true, false, None);
        true
    }

    /// Writes into the stage from now on, as far as the stage extends.
    fn write_to_stage<B: Staging>(&mut self, stage: &mut Stage<B>) {
        let (written, origin) = (self.written(), stage.origin());
        let bytes = stage.room(0);
        let end = (self.end as usize).min(origin + bytes.len());
        // Where the block's room would begin if all of it were staged; nothing accesses bytes before `origin` there.
        self.write_to(bytes.as_mut_ptr().wrapping_sub(origin), written, end);
        self.room = if self.room > 0 { end as u32 } else { 0 };
        (self.is_staged, self.origin) = (true, origin as u32);
    }

    /// Writes at `base` plus the offset from now on: from offset `written` to `end`.
    #[inline]
    fn write_to(&mut self, base: *mut u8, written: usize, end: usize) {
        self.base = base;
        self.at = base.wrapping_add(written);
        self.last = base.wrapping_add(end.saturating_sub(self.length as usize));
        self.first_end = base.wrapping_add(self.header_at as usize + CDU_HEADER + self.length as usize);
    }

    /// Completes the room of the block: copies everything staged, or only its whole lines if more is to follow.
    fn settle<B: Staging>(&mut self, stage: &mut Stage<B>, room: &mut [u8], follows: bool) {
        let end = self.written();
        if follows {
            stage.advance(room, end)
        } else {
            stage.settle(room, end)
        }
        if let Some((count_at, count)) = self.ended.take()
            && let Some(number) = room.get_mut(count_at as usize..).and_then(<[u8]>::first_chunk_mut::<4>)
        {
            *number = count.to_le_bytes();
        }
    }

    /// Returns what was packed since the window was opened, including the part of that train packed before.
    fn close(&mut self) -> Packed {
        let packed = Packed {
            last_train: self.header_at as usize,
            route: self.route,
            length: self.length as usize,
            end: self.written(),
            before: self.before,
            only_one_part: self.only_one_part,
        };
        (self.last, self.room, self.is_staged) = (ptr::null_mut(), 0, false);
        packed
    }

    /// The lane that has its block as the open one.
    fn lane(&self) -> usize {
        Hop::to_node(self.to.node()).lane()
    }

    /// Number of bytes packed from `base` on.
    fn written(&self) -> usize {
        self.at.addr().wrapping_sub(self.base.addr())
    }
}

impl<B: Staging, const N: usize> Default for Windows<B, N> {
    fn default() -> Self {
        const { assert!(N <= u32::BITS as usize) };
        Self {
            places: array::from_fn(|_| Window::default()),
            open: 0,
            streams: 0,
            stages: array::from_fn(|_| Staged::default()),
        }
    }
}

impl<B: Staging, const N: usize> Windows<B, N> {
    /// Whether any window is open.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.open != 0
    }

    /// Packs a message with the same route as the last one to that part, if it fits an open window.
    #[inline(always)]
    pub fn push(&mut self, to: PartId, message: &[u8]) -> Option<()> {
        let window = self.places.get_mut(Self::place(to))?;
        if to == window.to {
            window.push(to, message).or_else(|| Self::push_first(window, message))
        } else {
            None
        }
    }

    // Not inlined, so that messages of one length keep their registers.
    #[inline(never)]
    fn push_first(window: &mut Window, message: &[u8]) -> Option<()> {
        window.push_first::<B>(message)
    }

    /// Packs a message with any route as the first of a train, if it fits an open window for its node.
    #[inline(always)]
    pub fn push_first_by(&mut self, to: PartId, route: Route, message: &[u8]) -> Option<()> {
        if self.open & (1 << Self::place(to)) == 0 { None } else { self.push_to(to, route, message) }
    }

    #[inline(never)]
    fn push_to(&mut self, to: PartId, route: Route, message: &[u8]) -> Option<()> {
        self.places.get_mut(Self::place(to))?.push_to::<B>(to, route, message)
    }

    /// As [`push`](Self::push), for any route.
    #[inline(always)]
    pub fn push_by(&mut self, to: PartId, route: Route, message: &[u8]) -> Option<()> {
        let window = self.places.get_mut(Self::place(to))?;
        if route == window.route { window.push(to, message) } else { None }
    }

    /// Packs a message into the open block of its [node's lane](Hop::to_node), and opens a window behind it.
    ///
    /// # Errors
    /// [`Full`] if there is no room or no open block; nothing was written.
    ///
    /// # Safety
    /// Until these windows have been [closed](Self::close) with the same outbox, only this function and [`pack_each`](Self::pack_each) may
    /// use the outbox mutably, and the memory of its blocks must stay valid.
    #[inline]
    pub unsafe fn pack(
        &mut self,
        outbox: &mut Outbox<'_>,
        to: PartId,
        route: Route,
        message: &[u8],
    ) -> Result<(), Full> {
        let place = Self::place(to);
        let mut may_renew = true;
        while self.open & (1 << place) != 0 {
            let packed = self.push_by(to, route, message).or_else(|| self.push_to(to, route, message));
            if packed.is_some() {
                return Ok(());
            }
            let window =
                self.places.get(place).filter(|window| window.is_staged && window.to.node() == to.node());
            if !(window.is_some() && mem::take(&mut may_renew) && self.renew(outbox, place)) {
                self.close_one(outbox, place);
            }
        }
        let hop = Hop::to_node(to.node());
        outbox.push(hop, route, message)?;
        if let Some((lent, is_read_elsewhere)) = outbox.lend_room(hop.lane())
            && let Some(window) = self.places.get_mut(place)
            && window.open(to, route, message.len(), lent)
        {
            self.open |= 1 << place;
            if is_read_elsewhere && self.streams & (1 << place) != 0 {
                self.begin_stream(place);
            }
        }
        Ok(())
    }

    /// Packs up to `most` messages of `length` bytes each, adjacent in `messages`, as long as the open block to their node has
    /// room. Returns the number packed.
    ///
    /// # Safety
    /// As for [`pack`](Self::pack).
    pub unsafe fn pack_each(
        &mut self,
        outbox: &mut Outbox<'_>,
        (to, route): (PartId, Route),
        messages: &[u8],
        length: usize,
        most: usize,
    ) -> usize {
        let mut packed = 0;
        while packed < most
            && let Some(rest) = messages.get(packed * length..)
            && let Some(first) = rest.get(..length)
        {
            let window = self.places.get_mut(Self::place(to)).filter(|window| route == window.route);
            let count = window.map_or(0, |window| window.push_each(to, rest, length, most - packed));
            packed += count;
            if count == 0 {
                // SAFETY: the same contract.
                match unsafe { self.pack(outbox, to, route, first) } {
                    Ok(()) => packed += 1,
                    Err(Full) => break,
                }
            }
        }
        packed - usize::from(packed > 1 && Flaw::CountsTrainShort.strikes())
    }

    /// Closes all windows, and reports to their outbox what was packed.
    #[inline]
    pub fn close(&mut self, outbox: &mut Outbox<'_>) {
        while self.open != 0 {
            self.close_one(outbox, self.open.trailing_zeros() as usize % N);
        }
    }

    /// The index of the window for messages to a part.
    #[inline(always)]
    const fn place(to: PartId) -> usize {
        to.node().index() % N
    }

    fn at(&mut self, place: usize) -> Option<(&mut Window, &mut Staged<B>)> {
        Some((self.places.get_mut(place)?, self.stages.get_mut(place)?))
    }

    /// Begins a stage if the host so decides: many bytes were written through this window the last time.
    #[cold]
    fn begin_stream(&mut self, place: usize) {
        let Some((window, Staged { stage, written })) = self.at(place) else { return };
        if stage.staging().next(*written) {
            stage.begin(window.written());
            window.write_to_stage(stage);
        }
    }

    /// Makes room in the stage of a window. Returns `false` if the block has no more room.
    #[cold]
    fn renew(&mut self, outbox: &mut Outbox<'_>, place: usize) -> bool {
        let Some((window, Staged { stage, .. })) = self.at(place) else { return false };
        let Some((lent, _)) = outbox.lend_room(window.lane()) else { return false };
        if stage.origin() + stage.room(0).len() >= window.end as usize {
            return false;
        }
        window.settle(stage, lent.room, true);
        window.write_to_stage(stage);
        true
    }

    /// Closes a window that is open.
    #[inline]
    fn close_one(&mut self, outbox: &mut Outbox<'_>, place: usize) {
        self.open &= !(1 << place);
        self.streams &= !(1 << place);
        let Some((window, staged)) = self.at(place) else { return };
        staged.written = window.written();
        let is_stream = staged.written >= B::LONG;
        if !is_stream {
            staged.stage.staging().pause();
        }
        let lane = window.lane();
        if window.is_staged
            && let Some((lent, _)) = outbox.lend_room(lane)
        {
            window.settle(&mut staged.stage, lent.room, false);
        }
        outbox.commit(lane, window.close());
        self.streams |= u32::from(is_stream) << place;
    }
}
