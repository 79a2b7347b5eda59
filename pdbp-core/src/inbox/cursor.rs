//! The reading position in one delivery of messages.

use super::Arrivals;
use crate::Delivery;
use crate::cdu::{CDU_HEADER, CduClass, Cdus, PlainTrain, SegmentHeader};
use crate::id::PartId;

/// Who sent a message, and what kind it is.
///
/// One word, so that a message is moved in whole words: fields of other widths would be stored in pieces and loaded whole, which a
/// processor cannot forward from its store buffer.
///
/// The default is of no message: what there is before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info(u64);

impl Info {
    const COMMAND: u64 = 1 << 48;

    #[inline]
    fn new(source: PartId, command: u16, class: CduClass) -> Self {
        let class = if class == CduClass::Command { Self::COMMAND } else { 0 };
        Self(u64::from(source.raw()) | u64::from(command) << 32 | class)
    }

    /// The part that sent it.
    #[inline]
    pub fn source(self) -> PartId {
        PartId::from_checked(self.0 as u32)
    }

    /// The command number (`COM`) that the sender gave; 0 for plain messages.
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

/// Where a message lies in its delivery: start in the lower half, length in the upper. A block is shorter than 4 GiB.
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

    /// The place behind it, of the same length. It begins inside the delivery or at its end, so that nothing is carried.
    #[inline]
    fn next(self) -> Self {
        Self(self.0.wrapping_add(self.0 >> 32))
    }
}

/// What comes behind a train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Train,
    End,
    Unreadable,
}

/// Reading position in a delivery.
pub(super) struct Cursor<H> {
    hold: H,
    /// Of the open train: place of the next message, messages left, who sent them.
    span: Span,
    info: Info,
    left: u32,
    /// Where the next train begins, and where the delivery ends.
    at: u32,
    end: u32,
    segment: Option<SegmentHeader>,
}

impl<H> Cursor<H> {
    /// Before the first train. The hold, when it is of no delivery.
    pub(super) fn new<A: Arrivals<Hold = H>>(hold: H, arrivals: &A) -> Result<Self, H> {
        let Some(delivery) = arrivals.delivery(&hold) else { return Err(hold) };
        let Some(source) = PartId::new(delivery.source(), 0) else { return Err(hold) };
        let end = delivery.bytes().len() as u32;
        // Overwritten by the first train.
        let info = Info::new(source, 0, CduClass::ShortMessage);
        Ok(Self { hold, span: Span::new(0, 0), info, left: 0, at: 0, end, segment: None })
    }

    pub(super) fn next_train<A: Arrivals<Hold = H>>(&mut self, arrivals: &A) -> Next {
        let bytes = arrivals.delivery(&self.hold).map_or(&[][..], Delivery::bytes);
        let rest = bytes.get(self.at as usize..).unwrap_or(&[]);
        if let Some(train) = PlainTrain::read(rest)
            && let Some(source) = PartId::new(self.info.source().node(), train.source_part)
        {
            // Inside the delivery, which is shorter than 4 GiB.
            self.span = Span::new(self.at + CDU_HEADER as u32, train.length);
            self.at += train.size as u32;
            self.left = train.count;
            self.segment = None;
            self.info = Info::new(source, train.command, train.class);
            return Next::Train;
        }
        self.next_extended(arrivals)
    }

    /// The same for any train, or none.
    #[inline(never)]
    fn next_extended<A: Arrivals<Hold = H>>(&mut self, arrivals: &A) -> Next {
        let bytes = arrivals.delivery(&self.hold).map_or(&[][..], Delivery::bytes);
        let mut cdus = Cdus::new(bytes.get(self.at as usize..).unwrap_or(&[]));
        let train = match cdus.next() {
            None => return Next::End,
            Some(Err(_)) => return Next::Unreadable,
            Some(Ok(train)) => train,
        };
        let Some(source) = PartId::new(self.info.source().node(), train.source_part()) else {
            return Next::Unreadable;
        };
        self.at = self.end - cdus.remaining() as u32;
        // Both slices lie in the delivery, so the difference is the data's place in it.
        let start = (train.data().as_ptr().addr() - bytes.as_ptr().addr()) as u32;
        self.span = Span::new(start, train.length() as u32);
        self.left = train.count();
        self.segment = train.segment().copied();
        self.info = Info::new(source, train.command(), train.class());
        Next::Train
    }

    /// Goes back over messages of the open train that were skipped.
    pub(super) fn back(&mut self, count: u32) {
        let bytes = u64::from(count) * u64::from(self.span.length());
        let start = u64::from(self.span.start()).saturating_sub(bytes);
        self.span = Span::new(start as u32, self.span.length());
        self.left += count;
    }

    /// The next message of the open train, of which some are left and which is not the last of the delivery.
    #[inline(always)]
    pub(super) fn step(&mut self) -> (Span, Info) {
        let span = self.span;
        self.span = span.next();
        self.left -= 1;
        (span, self.info)
    }

    /// Skips messages of the open train; the place of the first of them.
    #[inline]
    pub(super) fn skip(&mut self, count: u32) -> Span {
        let span = self.span;
        let behind = u64::from(span.start()) + u64::from(count) * u64::from(span.length());
        self.span = Span::new(behind as u32, span.length());
        self.left -= count;
        span
    }

    #[inline(always)]
    pub(super) fn hold(&self) -> &H {
        &self.hold
    }

    pub(super) fn into_hold(self) -> H {
        self.hold
    }

    pub(super) fn info(&self) -> Info {
        self.info
    }

    pub(super) fn span(&self) -> Span {
        self.span
    }

    /// Messages left of the open train.
    pub(super) fn left(&self) -> u32 {
        self.left
    }

    /// Whether the open train is the last of the delivery.
    pub(super) fn ends_here(&self) -> bool {
        self.at == self.end
    }

    pub(super) fn has_more(&self) -> bool {
        self.left > 0 || self.at < self.end
    }

    /// Of a train that is a segment of a message longer than a block: which.
    pub(super) fn segment(&self) -> Option<SegmentHeader> {
        self.segment
    }
}
