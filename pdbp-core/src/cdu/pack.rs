//! Packs CDUs back to back into the body of a block.

use zerocopy::{FromBytes, IntoBytes};

use super::header::{
    BLOCK_HEADER, CDU_HEADER, CduClass, CduHeader, HAS_SEGMENT, HAS_SET, HAS_VIA, MOST_EMPTY, SegmentHeader,
    SetHeader, VIA_HEADER, Via, padded,
};
use crate::id::PartId;

/// Sender, receiver, class and command of a message: the fields that all messages of a train share. Kept in wire format, so
/// checking for "same train as before" is a single comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route(u64);

impl Route {
    const NONE: Self = Self(u64::MAX);

    /// The route of messages of class `class` with command number `command` from `source` to `dest`.
    #[inline]
    pub const fn new(class: CduClass, command: u16, source: PartId, dest: PartId) -> Self {
        Self::raw(class as u8, command, source.local(), dest.local())
    }

    pub(crate) const fn raw(class: u8, command: u16, source: u16, dest: u16) -> Self {
        Self(class as u64 | (command as u64) << 16 | (source as u64) << 32 | (dest as u64) << 48)
    }

    const fn dest(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// Returns the header of a train of one message of `length` bytes. The number of messages is its [last field](COUNT_AT).
    #[inline]
    pub const fn header(self, length: u32) -> [u8; CDU_HEADER] {
        (self.0 as u128 | (length as u128) << 64 | 1 << 96).to_le_bytes()
    }
}

/// Offset of the message count in a [header](Route::header), four bytes long.
pub const COUNT_AT: usize = core::mem::offset_of!(CduHeader, count);

/// Room that a packer [lends](Packer::lend).
#[derive(Debug)]
pub struct Lent<'b> {
    /// The open train, starting at its header, and the rest of the body: a multiple of 8 bytes.
    pub room: &'b mut [u8],
    /// Number of these bytes in use.
    pub written: usize,
    /// Whether other trains may follow, each with its own [header](Route::header), aligned to 8 bytes. Otherwise only messages of
    /// the open train may.
    pub is_straight: bool,
}

/// Describes what was packed into [lent](Lent) room. Every train but the last must have its message count in the header, and zero
/// padding.
#[derive(Clone, Copy, Debug)]
pub struct Packed {
    /// Offset of the last train's header in the room.
    pub last_train: usize,
    /// The route of its messages.
    pub route: Route,
    /// Bytes of each of them.
    pub length: usize,
    /// End of the last train in the room.
    pub end: usize,
    /// Number of messages in the trains before it.
    pub before: u32,
    /// Whether all messages go to the same single part as those packed before.
    pub only_one_part: bool,
}

/// The block has no room for the message; it is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The state of packing one block body. `Copy`, so a reservation can be undone by restoring the earlier value.
///
/// ```
/// use pdbp_core::cdu::{CduClass, Cdus, Packer, Route};
/// use pdbp_core::id::{NodeId, PartId};
///
/// let camera = PartId::new(NodeId::new(0).unwrap(), 1).unwrap();
/// let analyser = PartId::new(NodeId::new(1).unwrap(), 0).unwrap();
/// let route = Route::new(CduClass::ShortMessage, 0, camera, analyser);
///
/// let mut body = [0; 256];
/// let mut packer = Packer::new();
/// packer.push(&mut body, route, b"first").unwrap();
/// packer.push(&mut body, route, b"again").unwrap(); // same length and route: joins the train, no second header
/// let length = packer.finish(&mut body);
///
/// let mut cdus = Cdus::new(&body[..length]);
/// let train = cdus.next().unwrap().unwrap();
/// assert_eq!(train.messages().collect::<Vec<_>>(), [b"first", b"again"]);
/// assert!(cdus.next().is_none());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Packer {
    written: usize,
    /// The open train: its route (or `NONE`), message length, message count, and header offset.
    route: Route,
    length: usize,
    count: u32,
    header_at: usize,
    /// Number of messages in the closed trains.
    closed: u32,
    /// Maximum messages of the open train.
    most: u32,
    /// The only destination part so far, `NOTHING` or `MIXED`.
    only: u32,
    /// The relay extension of further trains, in wire format; `STRAIGHT` for none.
    via: u64,
}

/// No pair of node numbers produces this value.
const STRAIGHT: u64 = u64::MAX;
const NOTHING: u32 = u32::MAX;
const MIXED: u32 = u32::MAX - 1;

/// Bytes of a body available to CDUs and their padding.
const fn usable(body: &[u8]) -> usize {
    body.len() & !7
}

impl Default for Packer {
    fn default() -> Self {
        Self::new()
    }
}

impl Packer {
    /// The state for an empty body.
    #[inline]
    pub const fn new() -> Self {
        Self {
            written: 0,
            route: Route::NONE,
            length: 0,
            count: 0,
            header_at: 0,
            closed: 0,
            most: 0,
            only: NOTHING,
            via: STRAIGHT,
        }
    }

    /// Bytes that [`finish`](Self::finish) would return now, without the final padding.
    #[inline]
    pub const fn written(&self) -> usize {
        self.written
    }

    /// Messages packed so far.
    #[inline]
    pub const fn messages(&self) -> u32 {
        self.closed.saturating_add(self.count)
    }

    /// The longest message that fits, unsegmented, into an empty body of `room` bytes.
    pub const fn longest(room: usize) -> usize {
        room.saturating_sub(CDU_HEADER) & !7
    }

    /// Sends the following messages through a relay, between the given ends of their route, or with `None` over the block's own
    /// link.
    pub fn turn(&mut self, via: Option<Via>) {
        let raw = via.map_or(STRAIGHT, |v| u64::from(v.origin.raw()) | u64::from(v.dest.raw()) << 16);
        if raw != self.via {
            self.via = raw;
            // This closes the open train, if any.
            self.route = Route::NONE;
        }
    }

    /// The state at `mark`, but with the current relay extension.
    pub(crate) const fn rewound(self, mark: Self) -> Self {
        Self { via: self.via, ..mark }
    }

    /// Appends a train of `messages` messages copied from another block: header, extensions and data, padded.
    pub(crate) fn copy(&mut self, body: &mut [u8], train: &[u8], messages: u32) -> Result<(), Full> {
        let at = padded(self.written);
        let end = at.checked_add(train.len()).filter(|end| *end <= usable(body)).ok_or(Full)?;
        self.close(body);
        body.get_mut(at..end).ok_or(Full)?.copy_from_slice(train);
        self.written = end;
        self.closed = self.closed.saturating_add(messages);
        self.only = MIXED;
        Ok(())
    }

    /// Appends one message.
    ///
    /// # Errors
    /// [`Full`] if there is no room; nothing was written.
    #[inline(always)]
    pub fn push(&mut self, body: &mut [u8], route: Route, data: &[u8]) -> Result<(), Full> {
        self.reserve(body, route, data.len())?.copy_from_slice(data);
        Ok(())
    }

    /// Reserves room for one message of `length` bytes and returns it to be filled. Its initial contents are arbitrary.
    ///
    /// # Errors
    /// [`Full`] if there is no room; nothing was written.
    #[inline(always)]
    pub fn reserve<'b>(
        &mut self,
        body: &'b mut [u8],
        route: Route,
        length: usize,
    ) -> Result<&'b mut [u8], Full> {
        if route == self.route && length == self.length && self.count < self.most {
            // The padding after the train must fit too: `usable` is a multiple of 8.
            let end = self.written + length;
            if end > usable(body) {
                return Err(Full);
            }
            let room = body.get_mut(self.written..end).ok_or(Full)?;
            self.written = end;
            self.count += 1;
            return Ok(room);
        }
        self.start(body, route, length)
    }

    /// Lends the open train, starting at its header, and the rest of the body to a sender that packs by itself. The sender must
    /// report what it packed through [`commit`](Self::commit) before anything else is done with the body. `None` if no
    /// message can follow in this train.
    #[inline]
    pub fn lend<'b>(&self, body: &'b mut [u8]) -> Option<Lent<'b>> {
        if self.count == 0 || self.route == Route::NONE || self.length == 0 {
            return None;
        }
        let end = usable(body);
        let room = body.get_mut(self.header_at..end)?;
        Some(Lent { room, written: self.written - self.header_at, is_straight: self.via == STRAIGHT })
    }

    /// Records what was packed into lent room. Impossible lengths or ends are ignored.
    #[inline]
    pub fn commit(&mut self, body: &[u8], packed: Packed) {
        let Packed { last_train, route, length, end, before, only_one_part } = packed;
        let via = if self.via == STRAIGHT { 0 } else { VIA_HEADER };
        let (header_at, written) = (self.header_at + last_train, self.header_at + end);
        let Some(data) = end.checked_sub(last_train + CDU_HEADER + via) else { return };
        // Both are less than 4 GiB, and the 32-bit division is cheaper.
        let Some(count) = (data as u32).checked_div(length as u32).filter(|_| written <= usable(body)) else {
            return;
        };
        self.closed = self.closed.saturating_add(before);
        (self.header_at, self.written) = (header_at, written);
        (self.route, self.length, self.count) = (route, length, count);
        if !only_one_part {
            self.only = MIXED;
        }
    }

    /// Reserves adjacent room for up to `most` messages of `length` bytes each in one train: as many as fit, at least one.
    ///
    /// # Errors
    /// [`Full`] if there is no room for one; nothing was written.
    pub fn reserve_train<'b>(
        &mut self,
        body: &'b mut [u8],
        route: Route,
        length: usize,
        most: u32,
    ) -> Result<(&'b mut [u8], u32), Full> {
        self.reserve(body, route, length)?;
        let start = self.written - length;
        if most <= 1 {
            return Ok((body.get_mut(start..self.written).ok_or(Full)?, 1));
        }
        let room = usable(body).saturating_sub(self.written).checked_div(length).unwrap_or(usize::MAX);
        let more = (most - 1).min(self.most - self.count).min(room.min(u32::MAX as usize) as u32);
        self.count += more;
        self.written += more as usize * length;
        Ok((body.get_mut(start..self.written).ok_or(Full)?, more + 1))
    }

    /// Reserves room for segment `segment` of a message longer than a block.
    ///
    /// # Errors
    /// [`Full`] if there is no room; nothing was written.
    pub fn reserve_segment<'b>(
        &mut self,
        body: &'b mut [u8],
        route: Route,
        segment: SegmentHeader,
        length: usize,
    ) -> Result<&'b mut [u8], Full> {
        let room = self.start_extended(body, route, length, Some(segment), &[])?;
        self.route = Route::NONE;
        Ok(room)
    }

    /// Reserves room for a message to every part of `set`; the parts on the block's destination node receive it. `segment` is set
    /// for a segment of a longer message.
    ///
    /// # Errors
    /// [`Full`] if there is no room, or if the set is empty or has more than 65,535 parts; nothing was written.
    pub fn reserve_set<'b>(
        &mut self,
        body: &'b mut [u8],
        route: Route,
        set: &[PartId],
        segment: Option<SegmentHeader>,
        length: usize,
    ) -> Result<&'b mut [u8], Full> {
        if set.is_empty() {
            return Err(Full);
        }
        let Route(raw) = route;
        let many = Route(raw | (PartId::MANY as u64) << 48);
        let room = self.start_extended(body, many, length, segment, set)?;
        self.route = Route::NONE;
        Ok(room)
    }

    /// Maximum number of bytes that a message to `parts` destinations takes in addition to its data (header, extensions, padding).
    pub const fn overhead(parts: usize) -> usize {
        CDU_HEADER + VIA_HEADER + 16 + Self::set_extension(parts) + 8 + 8
    }

    /// Number of bytes that name `parts` destinations.
    pub(crate) const fn set_extension(parts: usize) -> usize {
        size_of::<SetHeader>() + padded(4 * parts)
    }

    /// Closes the last train and returns the length of the body.
    #[inline]
    pub fn finish(&mut self, body: &mut [u8]) -> usize {
        self.close(body);
        self.written
    }

    /// The single part that all messages go to, if there is one.
    #[inline]
    pub(crate) const fn only_part(&self) -> Option<u16> {
        if self.only > u16::MAX as u32 { None } else { Some(self.only as u16) }
    }

    /// Begins a train with a plain header.
    #[inline(never)]
    fn start<'b>(&mut self, body: &'b mut [u8], route: Route, length: usize) -> Result<&'b mut [u8], Full> {
        let header_at = padded(self.written);
        let end = (header_at + CDU_HEADER).saturating_add(length);
        // The unusual cases, including a full block.
        if self.via != STRAIGHT || length == 0 || length > u32::MAX as usize || end > usable(body) {
            return self.start_extended(body, route, length, None, &[]);
        }
        let (packed, rest) = body.split_at_mut_checked(header_at).ok_or(Full)?;
        let (to, data) = rest.split_first_chunk_mut::<CDU_HEADER>().ok_or(Full)?;
        let data = data.get_mut(..length).ok_or(Full)?;
        self.close(packed);
        *to = route.header(length as u32);
        self.open(route, length, header_at, end);
        // `MIXED` stays, since no part has that number.
        let dest = u32::from(route.dest());
        if self.only != dest {
            self.only = if self.only == NOTHING { dest } else { MIXED };
        }
        Ok(data)
    }

    /// Records an open train with its header at `header_at` that holds one message.
    fn open(&mut self, route: Route, length: usize, header_at: usize, end: usize) {
        self.route = route;
        self.length = length;
        self.count = 1;
        self.most = if length == 0 { MOST_EMPTY } else { u32::MAX };
        self.header_at = header_at;
        self.written = end;
    }

    #[inline(never)]
    fn start_extended<'b>(
        &mut self,
        body: &'b mut [u8],
        route: Route,
        length: usize,
        segment: Option<SegmentHeader>,
        set: &[PartId],
    ) -> Result<&'b mut [u8], Full> {
        let header_at = padded(self.written);
        let extensions = if self.via == STRAIGHT { 0 } else { VIA_HEADER }
            + if segment.is_some() { size_of::<SegmentHeader>() } else { 0 }
            + if set.is_empty() { 0 } else { Self::set_extension(set.len()) };
        let data_at = header_at + CDU_HEADER + extensions;
        let end = data_at.checked_add(length).ok_or(Full)?;
        if end > usable(body) || length > u32::MAX as usize || set.len() > u16::MAX as usize {
            return Err(Full);
        }
        self.close(body);
        self.write_header(body, header_at, route, length, segment, set);
        self.open(route, length, header_at, end);
        let dest = u32::from(route.dest());
        let same = set.is_empty() && self.via == STRAIGHT && (self.only == NOTHING || self.only == dest);
        self.only = if same { dest } else { MIXED };
        // In bounds: `end <= body.len()` was checked above.
        body.get_mut(data_at..end).ok_or(Full)
    }

    fn write_header(
        &self,
        body: &mut [u8],
        at: usize,
        route: Route,
        length: usize,
        segment: Option<SegmentHeader>,
        set: &[PartId],
    ) {
        let Some(room) = body.get_mut(at..) else { return };
        let Ok((header, rest)) = CduHeader::mut_from_prefix(room) else { return };
        let [class, zero, c0, c1, s0, s1, d0, d1] = route.0.to_le_bytes();
        *header = CduHeader {
            class: class
                | if self.via == STRAIGHT { 0 } else { HAS_VIA }
                | if segment.is_some() { HAS_SEGMENT } else { 0 }
                | if set.is_empty() { 0 } else { HAS_SET },
            zero,
            command: u16::from_le_bytes([c0, c1]).into(),
            source_part: u16::from_le_bytes([s0, s1]).into(),
            dest_part: u16::from_le_bytes([d0, d1]).into(),
            length: (length as u32).into(),
            count: 1.into(),
        };
        let via_bytes = if self.via == STRAIGHT { 0 } else { VIA_HEADER };
        let Some((to, rest)) = rest.split_at_mut_checked(via_bytes) else { return };
        if via_bytes > 0 {
            to.copy_from_slice(&self.via.to_le_bytes());
        }
        let segment_bytes = if segment.is_some() { size_of::<SegmentHeader>() } else { 0 };
        let Some((to, rest)) = rest.split_at_mut_checked(segment_bytes) else { return };
        if let Some(segment) = segment {
            to.copy_from_slice(segment.as_bytes());
        }
        if !set.is_empty()
            && let Ok((to, after)) = SetHeader::mut_from_prefix(rest)
        {
            *to = SetHeader { count: (set.len() as u16).into(), zero: [0; 6] };
            if !set.len().is_multiple_of(2)
                && let Some(pad) = after.get_mut(4 * set.len()..padded(4 * set.len()))
            {
                pad.fill(0);
            }
            for (slot, part) in after.chunks_exact_mut(4).zip(set) {
                slot.copy_from_slice(&part.raw().to_le_bytes());
            }
        }
    }

    /// Writes the count of the open train and pads it. Idempotent, so restoring an earlier state is safe.
    #[inline(always)]
    fn close(&mut self, body: &mut [u8]) {
        if self.count == 0 {
            return;
        }
        let count_at = self.header_at + COUNT_AT;
        if let Some(count) = body.get_mut(count_at..).and_then(<[u8]>::first_chunk_mut::<4>) {
            *count = self.count.to_le_bytes();
        }
        if !self.written.is_multiple_of(8) {
            // Padding is zero, so no data from an earlier use of the block leaks.
            let word_at = self.written & !7;
            if let Some(word) = body.get_mut(word_at..).and_then(<[u8]>::first_chunk_mut::<8>) {
                let kept = (1u64 << (8 * (self.written - word_at))) - 1;
                *word = (u64::from_le_bytes(*word) & kept).to_le_bytes();
            }
            self.written = word_at + 8;
        }
        self.closed = self.closed.saturating_add(self.count);
        self.count = 0;
        self.route = Route::NONE;
    }
}

const _: () = assert!(BLOCK_HEADER.is_multiple_of(8) && CDU_HEADER.is_multiple_of(8));
