//! The reading position in one delivery of messages.

use super::Arrivals;
use crate::Delivery;
use crate::cdu::{CDU_HEADER, CduClass, Cdus, PlainRoute, PlainRun, SegmentHeader, header_words};
use crate::id::PartId;

/// The sender and kind of a message.
///
/// One word, so that a message is moved in whole words: fields of other widths would be stored in pieces and loaded whole, which
/// defeats the processor's store forwarding.
///
/// The default belongs to no message; it is the state before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info(u64);

impl Info {
    const COMMAND: u64 = 1 << 48;

    #[inline]
    fn new(source: PartId, command: u16, class: CduClass) -> Self {
        let class = if class == CduClass::Command { Self::COMMAND } else { 0 };
        Self(u64::from(source.raw()) | u64::from(command) << 32 | class)
    }

    /// The info of another train from the same node, from the first word of its header.
    #[inline]
    fn of_train(self, route: u64) -> Option<Self> {
        let PlainRoute { class, command, source_part } = PlainRoute::read(route)?;
        let source = PartId::new(self.source().node(), source_part)?;
        Some(Self::new(source, command, class))
    }

    /// The part that sent it.
    #[inline]
    pub fn source(self) -> PartId {
        PartId::from_checked(self.0 as u32)
    }

    /// The command number (`COM`) given by the sender; 0 for plain messages.
    #[inline]
    pub fn command(self) -> u16 {
        (self.0 >> 32) as u16
    }

    /// Whether it was sent as a command, ahead of messages.
    #[inline]
    pub fn is_command(self) -> bool {
        self.0 & Self::COMMAND != 0
    }
}

/// The place of a message in its delivery: start in the lower half, length in the upper half. A block is shorter than 4 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span(u64);

impl Span {
    #[inline]
    pub(super) fn new(start: u32, length: u32) -> Self {
        Self(u64::from(start) | u64::from(length) << 32)
    }

    #[inline]
    pub(super) fn start(self) -> u32 {
        self.0 as u32
    }

    #[inline]
    pub(super) fn length(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The next place of the same length. It begins inside the delivery or at its end, so there is no carry.
    #[inline]
    fn next(self) -> Self {
        Self(self.0.wrapping_add(self.0 >> 32))
    }
}

/// What follows a train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Train,
    End,
    Unreadable,
}

/// A position in a delivery: the rest of a train, and the start of the next one.
#[derive(Clone, Copy, Debug)]
struct Position {
    /// For the open train: its next message, its sender, and how many messages are left.
    span: Span,
    info: Info,
    left: u32,
    /// The first word of its header, equivalent to `info`, if the train is a plain one, so that the next header need not be parsed
    /// again.
    route: u64,
    /// Where the next train begins, and where the delivery ends.
    at: u32,
    end: u32,
}

impl Position {
    /// Moves on to the next train of `bytes`, the delivery's bytes, if it is a valid plain one.
    #[inline]
    fn next_plain(&mut self, bytes: &[u8]) -> bool {
        let plain = bytes.get(self.at as usize..).and_then(header_words);
        let Some((route, run, rest)) = plain else { return false };
        let Some(info) = self.info.of_train(route) else { return false };
        let run = PlainRun::read(run).filter(|run| run.size <= rest.len() as u64);
        let Some(PlainRun { length, count, size }) = run else { return false };
        // The train lies inside the delivery, which is shorter than 4 GiB.
        self.span = Span::new(self.at + CDU_HEADER as u32, length);
        self.at += CDU_HEADER as u32 + size as u32;
        self.left = count;
        (self.info, self.route) = (info, route);
        true
    }

    /// Skips messages of the open train and returns the place of the first skipped one.
    #[inline]
    fn skip(&mut self, count: u32) -> Span {
        let span = self.span;
        let behind = u64::from(span.start()) + u64::from(count) * u64::from(span.length());
        self.span = Span::new(behind as u32, span.length());
        self.left -= count;
        span
    }

    /// Messages left in the open train, not counting the last one of the delivery.
    #[inline]
    fn left_but_last(&self) -> u32 {
        self.left - u32::from(self.left > 0 && self.at == self.end)
    }
}

/// No plain train has this header word.
const NO_ROUTE: u64 = u64::MAX;

/// Adjacent messages of one length from one part in the delivery being read, and access to those that follow. For a reader that
/// hands them out itself; see [`Inbox::ahead`](super::Inbox::ahead).
#[derive(Clone, Copy, Debug)]
pub struct Ahead {
    position: Position,
    /// Messages left in the open train that may be read.
    count: u32,
    /// Number of further messages that may be read without a check for commands.
    unchecked: u32,
}

impl Ahead {
    /// Where the first message begins.
    #[inline]
    pub fn start(&self) -> usize {
        self.position.span.start() as usize
    }

    /// Bytes of each message.
    #[inline]
    pub fn length(&self) -> usize {
        self.position.span.length() as usize
    }

    /// Number of messages, which may be none.
    #[inline]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Maximum number of messages that [`next_train`](Self::next_train) can still return.
    #[inline]
    pub fn unchecked(&self) -> u32 {
        self.unchecked
    }

    /// Their sender and kind.
    #[inline]
    pub fn info(&self) -> Info {
        self.position.info
    }

    /// Once all these messages were read, moves on to the next train of the delivery, whose bytes are `bytes`; the train must be
    /// read whole. `None` if only the inbox can continue.
    #[inline]
    pub fn next_train<'b>(&mut self, bytes: &'b [u8]) -> Option<AheadTrain<'b>> {
        let Position { left, at, end, .. } = self.position;
        // The reader was not given all of the open train.
        if left != self.count {
            return None;
        }
        let (route, run, rest) = header_words(bytes.get(at as usize..)?)?;
        // A block comes from one part, unless a relay has packed it.
        if route != self.position.route {
            return None;
        }
        let PlainRun { length, count, size } = PlainRun::read(run)?;
        let messages = rest.get(..usize::try_from(size).ok()?)?;
        // The train lies inside the delivery, which is shorter than 4 GiB.
        let start = at + CDU_HEADER as u32;
        let next = start + size as u32;
        // The delivery's last train is left to the inbox.
        if next == end || count > self.unchecked {
            return None;
        }
        self.unchecked -= count;
        self.position.at = next;
        // A single message leaves nothing over, just like the train before.
        if count > 1 {
            self.position.span = Span::new(start, length);
            (self.position.left, self.count) = (count, count);
        }
        Some(AheadTrain { messages, length: length as usize, count, info: self.position.info })
    }
}

/// A train [further ahead](Ahead::next_train).
#[derive(Clone, Copy, Debug)]
pub struct AheadTrain<'b> {
    /// Its messages, back to back, followed by any padding.
    pub messages: &'b [u8],
    /// Bytes of each message.
    pub length: usize,
    /// Number of messages, at least 1.
    pub count: u32,
    /// Their sender and kind.
    pub info: Info,
}

/// The reading position in a held delivery.
pub(super) struct Cursor<H> {
    hold: H,
    position: Position,
    segment: Option<SegmentHeader>,
}

impl<H> Cursor<H> {
    /// A cursor before the first train. Hands back the hold if it has no delivery.
    pub(super) fn new<A: Arrivals<Hold = H>>(hold: H, arrivals: &A) -> Result<Self, H> {
        let Some(delivery) = arrivals.delivery(&hold) else { return Err(hold) };
        let Some(source) = PartId::new(delivery.source(), 0) else { return Err(hold) };
        let end = delivery.bytes().len() as u32;
        // Overwritten by the first train.
        let info = Info::new(source, 0, CduClass::ShortMessage);
        let position = Position { span: Span::new(0, 0), info, left: 0, route: NO_ROUTE, at: 0, end };
        Ok(Self { hold, position, segment: None })
    }

    #[inline]
    pub(super) fn next_train<A: Arrivals<Hold = H>>(&mut self, arrivals: &A) -> Next {
        if self.ends_here() {
            return Next::End;
        }
        let bytes = arrivals.delivery(&self.hold).map_or(&[][..], Delivery::bytes);
        if self.position.next_plain(bytes) {
            self.segment = None;
            return Next::Train;
        }
        self.next_extended(arrivals)
    }

    /// As `next_train`, for any kind of train, or none.
    #[inline(never)]
    fn next_extended<A: Arrivals<Hold = H>>(&mut self, arrivals: &A) -> Next {
        let position = &mut self.position;
        let bytes = arrivals.delivery(&self.hold).map_or(&[][..], Delivery::bytes);
        let mut cdus = Cdus::new(bytes.get(position.at as usize..).unwrap_or(&[]));
        let train = match cdus.next() {
            None => return Next::End,
            Some(Err(_)) => return Next::Unreadable,
            Some(Ok(train)) => train,
        };
        let Some(source) = PartId::new(position.info.source().node(), train.source_part()) else {
            return Next::Unreadable;
        };
        position.at = position.end - cdus.remaining() as u32;
        // Both slices lie in the delivery, so the difference is the offset of the data.
        let start = (train.data().as_ptr().addr() - bytes.as_ptr().addr()) as u32;
        position.span = Span::new(start, train.length() as u32);
        position.left = train.count();
        position.info = Info::new(source, train.command(), train.class());
        position.route = NO_ROUTE;
        self.segment = train.segment().copied();
        Next::Train
    }

    /// Messages from here on, up to `most`, that need no check for commands or for the end of the delivery.
    #[inline]
    pub(super) fn ahead(&self, most: u32) -> Option<Ahead> {
        let position = self.position;
        let count = position.left_but_last().min(most);
        let more = count > 0 || position.left == 0 && position.at < position.end;
        more.then_some(Ahead { position, count, unchecked: most - count })
    }

    /// Moves to the position of a reader that has handed messages out itself, but not the last `unread` of the adjacent ones.
    #[inline]
    pub(super) fn resume(&mut self, ahead: Ahead, unread: u32) {
        self.position = ahead.position;
        self.position.skip(ahead.count.saturating_sub(unread));
        self.segment = None;
    }

    /// Takes the next message of the open train, which must have one that is not the last of the delivery.
    #[inline(always)]
    pub(super) fn step(&mut self) -> (Span, Info) {
        let position = &mut self.position;
        let span = position.span;
        position.span = span.next();
        position.left -= 1;
        (span, position.info)
    }

    /// Skips messages of the open train and returns the place of the first skipped one.
    #[inline]
    pub(super) fn skip(&mut self, count: u32) -> Span {
        self.position.skip(count)
    }

    #[inline(always)]
    pub(super) fn hold(&self) -> &H {
        &self.hold
    }

    pub(super) fn into_hold(self) -> H {
        self.hold
    }

    pub(super) fn info(&self) -> Info {
        self.position.info
    }

    pub(super) fn span(&self) -> Span {
        self.position.span
    }

    /// Messages left in the open train.
    pub(super) fn left(&self) -> u32 {
        self.position.left
    }

    /// Whether the open train is the last of the delivery.
    #[inline]
    pub(super) fn ends_here(&self) -> bool {
        self.position.at == self.position.end
    }

    /// Whether the cursor is at the last message of the delivery.
    #[inline]
    pub(super) fn is_at_last(&self) -> bool {
        self.position.left == 1 && self.ends_here()
    }

    pub(super) fn has_more(&self) -> bool {
        self.position.left > 0 || self.position.at < self.position.end
    }

    /// The segment header, if the train is a segment of a message longer than a block.
    pub(super) fn segment(&self) -> Option<SegmentHeader> {
        self.segment
    }
}
