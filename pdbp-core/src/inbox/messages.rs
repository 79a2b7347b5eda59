//! Messages one by one, trains as batches, and pieces for readers that copy the bytes themselves.

use core::mem;

use super::assembly::SegmentOutcome;
use super::cursor::{Ahead, Cursor, Info, Next, Span};
use super::lists::Item;
use super::{Arrivals, Inbox, Pulled};
use crate::Delivery;
use crate::flaw::Flaw;

/// Maximum number of messages of a delivery read between two checks for commands.
const CHECK_INTERVAL: u32 = 128;

/// A message, represented by the hold on its bytes. Three words if the hold is one word: see [`Info`].
#[derive(Debug)]
pub struct Message<H> {
    hold: H,
    span: Span,
    info: Info,
}

impl<H> Message<H> {
    /// The hold on its bytes.
    #[inline]
    pub fn hold(&self) -> &H {
        &self.hold
    }

    /// Returns the hold on its bytes, which the caller must release.
    pub fn into_hold(self) -> H {
        self.hold
    }

    /// Its offset in the delivery.
    #[inline]
    pub fn start(&self) -> usize {
        self.span.start() as usize
    }

    /// Its length in bytes.
    #[inline]
    pub fn length(&self) -> usize {
        self.span.length() as usize
    }

    /// Its sender and kind.
    #[inline]
    pub fn info(&self) -> Info {
        self.info
    }
}

/// The rest of a train: messages of one length from one part.
#[derive(Debug)]
pub struct Batch<H> {
    hold: H,
    span: Span,
    info: Info,
    count: u32,
}

impl<H> Batch<H> {
    /// The hold on their bytes.
    pub fn hold(&self) -> &H {
        &self.hold
    }

    /// Returns the hold on their bytes, which the caller must release.
    pub fn into_hold(self) -> H {
        self.hold
    }

    /// Offset of the first message in the delivery.
    pub fn start(&self) -> usize {
        self.span.start() as usize
    }

    /// Bytes of each message; they are contiguous.
    pub fn length(&self) -> usize {
        self.span.length() as usize
    }

    /// Number of messages, at least 1.
    pub fn count(&self) -> usize {
        self.count as usize
    }

    /// Their sender and kind.
    pub fn info(&self) -> Info {
        self.info
    }
}

/// Which cursor is in a train.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    Command,
    Message,
}

/// The last message of a delivery takes the hold along, so the delivery is released as soon as the message is dropped.
#[inline]
fn last<A: Arrivals>(cursor: Cursor<A::Hold>, arrivals: &mut A) -> Message<A::Hold> {
    let (span, info, hold) = (cursor.span(), cursor.info(), cursor.into_hold());
    if Flaw::KeepsDelivery.strikes() {
        drop(arrivals.share(&hold));
    }
    Message { hold, span, info }
}

impl<H, B> Inbox<'_, H, B> {
    /// Returns the messages that follow the one returned by [`next`](Self::next) in the same delivery, up to the point where a
    /// check for commands or for the end of the delivery is due. For a reader that hands them out itself; it must report its
    /// progress through [`resume`](Self::resume) before doing anything else with the inbox. `None` if there are no such messages.
    #[inline]
    pub fn ahead(&mut self) -> Option<(&H, Ahead)> {
        let unchecked = mem::take(&mut self.unchecked);
        let cursor = self.current.as_ref().filter(|_| unchecked > 0)?;
        Some((cursor.hold(), cursor.ahead(unchecked)?))
    }

    /// Records that a reader went ahead as far as `ahead`, but did not read the last `unread` messages of its open train.
    #[inline]
    pub fn resume(&mut self, ahead: Ahead, unread: u32) {
        if let Some(cursor) = self.current.as_mut() {
            cursor.resume(ahead, unread);
        }
    }

    /// Returns the next message, commands first.
    #[inline]
    pub fn next<A: Arrivals<Hold = H, Buffer = B>>(&mut self, arrivals: &mut A) -> Option<Message<H>> {
        self.unchecked = 0;
        // The usual case: a message of the delivery being read, or of one that has just arrived.
        if !self.open_command(arrivals) {
            if let Some(cursor) = self.current.as_mut() {
                let is_train = cursor.left() > 0 || cursor.next_train(arrivals) == Next::Train;
                if is_train && cursor.segment().is_none() {
                    return self.take(Open::Message, arrivals);
                }
            } else if self.messages.is_empty() && !self.withheld {
                return self.next_pulled(arrivals);
            }
        }
        self.next_slow(arrivals)
    }

    /// Returns the next message, given that everything taken out of the pipe has been read.
    #[inline]
    fn next_pulled<A: Arrivals<Hold = H, Buffer = B>>(&mut self, arrivals: &mut A) -> Option<Message<H>> {
        match self.pull_run(arrivals) {
            Pulled::Run(hold) => match Cursor::new(hold, arrivals) {
                Ok(mut cursor) => {
                    let is_train = cursor.next_train(arrivals) == Next::Train && cursor.segment().is_none();
                    if is_train && cursor.is_at_last() {
                        return Some(last(cursor, arrivals));
                    }
                    self.current = Some(cursor);
                    if is_train {
                        return self.take(Open::Message, arrivals);
                    }
                }
                Err(hold) => arrivals.release(hold),
            },
            Pulled::Sorted => {}
            Pulled::Nothing => return None,
        }
        self.next_slow(arrivals)
    }

    #[inline(never)]
    fn next_slow<A: Arrivals<Hold = H, Buffer = B>>(&mut self, arrivals: &mut A) -> Option<Message<H>> {
        loop {
            let open = self.open(arrivals)?;
            let segment = self.slot(open).as_ref().and_then(Cursor::segment);
            if segment.is_none() {
                return self.take(open, arrivals);
            }
            if let Some((hold, span, info)) = self.put_segment(open, arrivals) {
                return Some(Message { hold, span, info });
            }
        }
    }

    /// Takes the next message of the train at a cursor.
    #[inline]
    fn take<A: Arrivals<Hold = H, Buffer = B>>(
        &mut self,
        open: Open,
        arrivals: &mut A,
    ) -> Option<Message<H>> {
        let slot = match open {
            Open::Command => &mut self.command,
            Open::Message => &mut self.current,
        };
        let cursor = slot.as_mut()?;
        if cursor.is_at_last() {
            return slot.take().map(|cursor| last(cursor, arrivals));
        }
        if cursor.left() > 1 && Flaw::SkipsMessage.strikes() {
            cursor.step();
        }
        let (span, info) = cursor.step();
        let hold = arrivals.share(cursor.hold());
        self.unchecked = if open == Open::Message { CHECK_INTERVAL } else { 0 };
        Some(Message { hold, span, info })
    }

    /// Returns the rest of the open train, or the next one, commands first. A message in segments is a batch of one.
    pub fn next_batch<A: Arrivals<Hold = H, Buffer = B>>(&mut self, arrivals: &mut A) -> Option<Batch<H>> {
        loop {
            let open = self.open(arrivals)?;
            let slot = self.slot(open);
            let Some(cursor) = slot else { continue };
            if cursor.segment().is_some() {
                if let Some((hold, span, info)) = self.put_segment(open, arrivals) {
                    return Some(Batch { hold, span, info, count: 1 });
                }
                continue;
            }
            let (info, count) = (cursor.info(), cursor.left());
            let again = count > 1 && Flaw::ReadsLastAgain.strikes();
            let span = cursor.skip(count - u32::from(again));
            let hold = if cursor.ends_here() && !again {
                slot.take().map(Cursor::into_hold)?
            } else {
                arrivals.share(cursor.hold())
            };
            return Some(Batch { hold, span, info, count });
        }
    }

    /// Passes messages of one delivery, from the next one on, commands first, to a reader that copies them itself. From each train
    /// it consumes as many as `take` returns. `take` receives the sender, the offset of the train's next message in the delivery,
    /// the length of each message, and how many remain. Returns a shared hold on the delivery, or as an error the length of the
    /// next message in bytes if it comes in segments.
    pub fn take_pieces<A: Arrivals<Hold = H, Buffer = B>>(
        &mut self,
        arrivals: &mut A,
        mut take: impl FnMut(Info, usize, usize, u32) -> u32,
    ) -> Option<Result<H, u64>> {
        let open = self.open(arrivals)?;
        let mut unreadable = 0;
        let slot = self.slot(open);
        let cursor = slot.as_mut()?;
        if let Some(segment) = cursor.segment() {
            return Some(Err(segment.total()));
        }
        let hold = arrivals.share(cursor.hold());
        let mut all = 0;
        let over = loop {
            let (span, left) = (cursor.span(), cursor.left());
            let taken = take(cursor.info(), span.start() as usize, span.length() as usize, left).min(left);
            all += taken;
            cursor.skip(taken);
            if cursor.left() > 0 {
                break false;
            }
            match cursor.next_train(arrivals) {
                Next::Train if cursor.segment().is_none() => {}
                Next::Train => break false,
                end => {
                    unreadable = u64::from(end == Next::Unreadable);
                    break true;
                }
            }
        };
        if over && let Some(cursor) = slot.take() {
            arrivals.release(cursor.into_hold());
        }
        self.unreadable += unreadable;
        if all == 0 {
            arrivals.release(hold);
            return None;
        }
        Some(Ok(hold))
    }

    /// Reads the messages of one delivery in place, from the next one on, commands first, and releases it. `each` receives the
    /// sender, kind and bytes of each message. Returns their number; 0 if none has arrived. `None` if the next message comes in
    /// segments, which [`next`](Self::next) must reassemble.
    #[inline(never)]
    pub fn read_each<A: Arrivals<Hold = H, Buffer = B>>(
        &mut self,
        arrivals: &mut A,
        mut each: impl FnMut(Info, &[u8]),
    ) -> Option<usize> {
        let Some(open) = self.open(arrivals) else { return Some(0) };
        let slot = self.slot(open);
        let (mut read, mut next) = (0, Next::Train);
        while next == Next::Train {
            let cursor = slot.as_mut()?;
            if cursor.segment().is_some() {
                return (read > 0).then_some(read);
            }
            let (info, count) = (cursor.info(), cursor.left() as usize);
            // Skipped first, so that they are not read again if `each` panics.
            let span = cursor.skip(cursor.left());
            let (start, length) = (span.start() as usize, span.length() as usize);
            let bytes = arrivals.delivery(cursor.hold()).map_or(&[][..], Delivery::bytes);
            let bytes = bytes.get(start..start + count * length).unwrap_or(&[]);
            match length {
                0 => (0..count).for_each(|_| each(info, &[])),
                _ => bytes.chunks_exact(length).for_each(|message| each(info, message)),
            }
            read += count;
            next = cursor.next_train(arrivals);
        }
        if let Some(cursor) = slot.take() {
            arrivals.release(cursor.into_hold());
        }
        self.unreadable += u64::from(next == Next::Unreadable);
        Some(read)
    }

    fn slot(&mut self, open: Open) -> &mut Option<Cursor<H>> {
        match open {
            Open::Command => &mut self.command,
            Open::Message => &mut self.current,
        }
    }

    /// Takes the segment at a cursor and returns the message if that completes it. If this was the delivery's last train, the
    /// delivery is released at once, since its bytes were copied.
    fn put_segment<A: Arrivals<Hold = H, Buffer = B>>(
        &mut self,
        open: Open,
        arrivals: &mut A,
    ) -> Option<(H, Span, Info)> {
        let slot = match open {
            Open::Command => &mut self.command,
            Open::Message => &mut self.current,
        };
        let put = self.assemblies.take_segment(slot.as_mut()?, arrivals);
        if let Some(over) = slot.take_if(|cursor| cursor.ends_here()) {
            arrivals.release(over.into_hold());
        }
        match put {
            SegmentOutcome::Whole(hold, span, info) => Some((hold, span, info)),
            SegmentOutcome::More => None,
            SegmentOutcome::Unreadable => {
                self.unreadable += 1;
                None
            }
        }
    }

    /// Moves a cursor into a train with unread messages: the commands' cursor if any commands have arrived.
    fn open<A: Arrivals<Hold = H, Buffer = B>>(&mut self, arrivals: &mut A) -> Option<Open> {
        self.unchecked = 0;
        if self.withheld {
            return None;
        }
        if self.open_command(arrivals) {
            return Some(Open::Command);
        }
        loop {
            if self.current.is_some() && self.advance(Open::Message, arrivals) {
                return Some(Open::Message);
            }
            match self.lists.pop(&mut self.messages) {
                Some(Item::Hold(run)) => self.begin(Open::Message, run, arrivals),
                Some(Item::Failed(node)) => self.forget_node(node, arrivals),
                None => match self.pull_run(arrivals) {
                    Pulled::Run(run) => self.begin(Open::Message, run, arrivals),
                    Pulled::Sorted => {}
                    Pulled::Nothing => return None,
                },
            }
        }
    }

    /// Moves the commands' cursor into a train; returns whether there is one.
    #[inline]
    pub(super) fn open_command<A: Arrivals<Hold = H, Buffer = B>>(&mut self, arrivals: &mut A) -> bool {
        if self.command.is_none() {
            let Some(delivery) = arrivals.pull_command() else { return false };
            let hold = arrivals.hold(delivery);
            self.begin(Open::Command, hold, arrivals);
        }
        self.next_command(arrivals)
    }

    #[inline(never)]
    fn next_command<A: Arrivals<Hold = H, Buffer = B>>(&mut self, arrivals: &mut A) -> bool {
        loop {
            if self.command.is_some() && self.advance(Open::Command, arrivals) {
                return !self.withheld;
            }
            let Some(delivery) = arrivals.pull_command() else { return false };
            let hold = arrivals.hold(delivery);
            self.begin(Open::Command, hold, arrivals);
        }
    }

    #[inline(always)]
    fn begin<A: Arrivals<Hold = H, Buffer = B>>(&mut self, open: Open, hold: H, arrivals: &mut A) {
        match Cursor::new(hold, arrivals) {
            Ok(cursor) => *self.slot(open) = Some(cursor),
            Err(hold) => arrivals.release(hold),
        }
    }

    /// Moves on to the next train if the open one is exhausted. Returns `false` if the delivery was read to its end and released.
    fn advance<A: Arrivals<Hold = H, Buffer = B>>(&mut self, open: Open, arrivals: &mut A) -> bool {
        let Some(cursor) = self.slot(open) else { return false };
        if cursor.left() > 0 {
            return true;
        }
        let next = cursor.next_train(arrivals);
        if next == Next::Train {
            return true;
        }
        self.unreadable += u64::from(next == Next::Unreadable);
        if let Some(cursor) = self.slot(open).take() {
            arrivals.release(cursor.into_hold());
        }
        false
    }
}
