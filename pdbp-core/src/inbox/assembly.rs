//! Reassembles messages longer than a block from their segments.

use managed::ManagedSlice;

use super::Arrivals;
use super::cursor::{Cursor, Info, Span};
use crate::cdu::SegmentHeader;
use crate::flaw::Flaw;
use crate::id::{NodeId, PartId};

/// A message some of whose segments have arrived. A part sends one at a time, so there is one per source.
#[derive(Debug)]
pub(crate) struct Assembly<B> {
    source: PartId,
    message: u32,
    /// The next segment.
    next: u32,
    total: u32,
    filled: u32,
    buffer: B,
}

/// The outcome of a segment.
pub(super) enum SegmentOutcome<H> {
    /// The message is complete.
    Whole(H, Span, Info),
    /// More segments must follow, or the beginning of the message was refused or abandoned.
    More,
    /// The message cannot be read.
    Unreadable,
}

/// The messages being reassembled: the first `used` of the table.
pub(super) struct Assemblies<'a, B> {
    table: ManagedSlice<'a, Option<Assembly<B>>>,
    used: usize,
}

impl<'a, B> Assemblies<'a, B> {
    pub(super) fn new(mut table: ManagedSlice<'a, Option<Assembly<B>>>) -> Self {
        table.iter_mut().for_each(|slot| *slot = None);
        Self { table, used: 0 }
    }

    /// Number of messages that it has room for.
    pub(super) fn capacity(&self) -> usize {
        self.table.len()
    }

    /// Takes the segment at the cursor.
    pub(super) fn take_segment<A: Arrivals<Buffer = B>>(
        &mut self,
        cursor: &mut Cursor<A::Hold>,
        arrivals: &mut A,
    ) -> SegmentOutcome<A::Hold> {
        let Some(header) = cursor.segment() else { return SegmentOutcome::More };
        let (info, left) = (cursor.info(), cursor.left());
        let span = cursor.skip(left);
        let source = info.source();
        if header.segment() == SegmentHeader::ABORTED {
            let message = header.message();
            self.discard_if(arrivals, |a| (a.source, a.message) == (source, message));
            // Space may have been granted to it before it began.
            if let Some(buffer) = arrivals.begin(source, message, 0) {
                arrivals.discard(buffer);
            }
            return SegmentOutcome::More;
        }
        if header.segment() == 0 {
            // Discards any earlier message that was abandoned halfway.
            self.discard_if(arrivals, |assembly| assembly.source == source);
            if !self.begin(source, (header.message(), header.total()), arrivals) {
                return SegmentOutcome::Unreadable;
            }
        }
        let Some(at) = self.position(|assembly| assembly.source == source) else {
            return SegmentOutcome::More;
        };
        let Some(Some(assembly)) = self.table.get_mut(at) else { return SegmentOutcome::More };
        if (assembly.message, assembly.next) != (header.message(), header.segment()) {
            return SegmentOutcome::More;
        }
        if span.length() > assembly.total - assembly.filled {
            self.discard_at(at, arrivals);
            return SegmentOutcome::Unreadable;
        }
        let (start, end) = (span.start() as usize, (span.start() + span.length()) as usize);
        if !Flaw::SkipsSegment.strikes() {
            arrivals.append(&mut assembly.buffer, cursor.hold(), start, end);
        }
        assembly.next += 1;
        assembly.filled += span.length();
        if assembly.filled < assembly.total {
            return SegmentOutcome::More;
        }
        match self.remove(at) {
            Some(whole) => {
                SegmentOutcome::Whole(arrivals.finish(whole.buffer), Span::new(0, whole.total), info)
            }
            None => SegmentOutcome::More,
        }
    }

    /// Begins a message. Returns `false` if there is no space for it.
    fn begin<A: Arrivals<Buffer = B>>(
        &mut self,
        source: PartId,
        (message, total): (u32, u64),
        arrivals: &mut A,
    ) -> bool {
        let length = u32::try_from(total);
        let Some(buffer) = arrivals.begin(source, message, length.unwrap_or(0)) else { return false };
        let (Some(slot), Ok(total)) = (self.table.get_mut(self.used), length) else {
            // The space reserved for it is free.
            arrivals.discard(buffer);
            return false;
        };
        *slot = Some(Assembly { source, message, next: 0, total, filled: 0, buffer });
        self.used += 1;
        true
    }

    /// Discards the unfinished messages of a node.
    pub(super) fn discard_of<A: Arrivals<Buffer = B>>(&mut self, node: NodeId, arrivals: &mut A) {
        self.discard_if(arrivals, |assembly| assembly.source.node() == node);
    }

    pub(super) fn discard_all<A: Arrivals<Buffer = B>>(&mut self, arrivals: &mut A) {
        self.discard_if(arrivals, |_| true);
    }

    fn discard_if<A: Arrivals<Buffer = B>>(
        &mut self,
        arrivals: &mut A,
        mut which: impl FnMut(&Assembly<B>) -> bool,
    ) {
        while let Some(at) = self.position(&mut which) {
            self.discard_at(at, arrivals);
        }
    }

    fn discard_at<A: Arrivals<Buffer = B>>(&mut self, at: usize, arrivals: &mut A) {
        if let Some(given_up) = self.remove(at) {
            arrivals.discard(given_up.buffer);
        }
    }

    fn position(&self, mut which: impl FnMut(&Assembly<B>) -> bool) -> Option<usize> {
        self.table.iter().take(self.used).position(|slot| slot.as_ref().is_some_and(&mut which))
    }

    fn remove(&mut self, at: usize) -> Option<Assembly<B>> {
        let last = self.used.checked_sub(1)?;
        let removed = self.table.get_mut(at)?.take();
        if at < last {
            self.table.swap(at, last);
        }
        self.used = last;
        removed
    }
}
