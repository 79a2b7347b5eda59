//! The reading end of a private pipe: turns deliveries into messages, batches, streams and returned messages.
//!
//! An [`Inbox`] is the reading half of a part, without threads, locks or memory of its own. It obtains deliveries through
//! [`Arrivals`], which its owner implements: a part on a thread of its own takes them out of lock-free queues and shares them by
//! reference counts; an endpoint that owns its engine keeps them in a table and counts readers there. The inbox itself handles only
//! [`Arrivals::Hold`], the owner's representation of the right to read one delivery.
//!
//! ```text
//!  pull_command ─▶ command cursor ─┐
//!  pull ─▶ sort ─┬─ messages ─▶ cursor ─┬─▶ next, ahead, next_batch, read_each, take_pieces
//!                │                      └─ segment ─▶ assembly ─▶ a message put together
//!                ├─ streams ─▶ accept, next_segment
//!                └─ returned ─▶ next_returned
//! ```
//!
//! * Commands come first. Messages of one source come in the order sent.
//! * **Memory is bounded by the storage given** ([`InboxStorage`]). When there is no room to sort another delivery, it stays where
//!   it is and keeps its sender's credit until something has been read.
//! * A delivery is released as soon as it has been read completely: the last message takes the hold along.

mod assembly;
mod cursor;
mod lists;
mod messages;
mod returned;
mod streams;
#[cfg(test)]
mod tests;

use managed::ManagedSlice;

use crate::Delivery;
use crate::engine::DeliveryKind;
use crate::flaw::Flaw;
use crate::id::{NodeId, PartId, StreamNo};

use assembly::Assemblies;
pub(crate) use assembly::Assembly;
use cursor::Cursor;
pub use cursor::{Ahead, AheadTrain, Info};
pub(crate) use lists::Entry;
use lists::{Item, List, Lists};
pub use messages::{Batch, Message};
use returned::Reread;
pub use returned::Returned;
pub(crate) use streams::Incoming;
use streams::Streams;
pub use streams::{Accepted, Segment, StreamKey};

/// An item from a private pipe, in order.
#[derive(Debug)]
pub enum Arrival {
    /// A delivery.
    Piece(Delivery),
    /// No more of this stream will arrive, although it has not ended: [`Event::StreamBroken`](crate::Event::StreamBroken). Comes
    /// after all its segments.
    StreamBroken {
        /// The node that sent it.
        source: NodeId,
        /// Its number there.
        number: StreamNo,
    },
    /// A node is unreachable, and its unfinished messages in segments will not be completed. Comes after everything that arrived
    /// from it.
    Failed(NodeId),
}

/// Supplies an [`Inbox`] with deliveries, and stores them. Implemented by the owner of the inbox.
pub trait Arrivals {
    /// The right to read one delivery, or one reassembled message. Several may share it.
    type Hold;
    /// Memory in which a message is being reassembled.
    type Buffer;

    /// Takes the next command.
    fn pull_command(&mut self) -> Option<Delivery>;

    /// Takes the next arrival other than a command.
    fn pull(&mut self) -> Option<Arrival>;

    /// Stores a delivery until every sharer of the hold has released it.
    fn hold(&mut self, delivery: Delivery) -> Self::Hold;

    /// Returns another hold on the same delivery.
    fn share(&mut self, hold: &Self::Hold) -> Self::Hold;

    /// Releases a hold. Releasing the last one returns the delivery to the engine.
    fn release(&mut self, hold: Self::Hold);

    /// The delivery; `None` for a reassembled message.
    fn delivery<'h>(&'h self, hold: &'h Self::Hold) -> Option<&'h Delivery>;

    /// Returns memory for message number `message` of `source`, of `total` bytes. `None` if no space was reserved for it; the
    /// message is then discarded.
    fn begin(&mut self, source: PartId, message: u32, total: u32) -> Option<Self::Buffer>;

    /// Appends bytes `start..end` of a delivery.
    fn append(&mut self, buffer: &mut Self::Buffer, hold: &Self::Hold, start: usize, end: usize);

    /// Completes the message.
    fn finish(&mut self, buffer: Self::Buffer) -> Self::Hold;

    /// Discards a message that will not be completed.
    fn discard(&mut self, buffer: Self::Buffer);

    /// Called once everything that had arrived from an unreachable node has been sorted: the space reserved for its messages is
    /// free ([`Engine::lose_rooms`](crate::Engine::lose_rooms)).
    fn lost(&mut self, node: NodeId) {
        let _ = node;
    }
}

/// The memory of an inbox; see `allocate`.
pub struct InboxStorage<'a, H, B> {
    /// Deliveries that were sorted but not read.
    pub(crate) entries: ManagedSlice<'a, Entry<H>>,
    /// Messages being reassembled: one for each part that is sending one.
    pub(crate) assemblies: ManagedSlice<'a, Option<Assembly<B>>>,
    /// Streams that have begun to arrive and whose end the reader has not seen.
    pub(crate) streams: ManagedSlice<'a, Option<Incoming>>,
}

#[cfg(feature = "alloc")]
impl<H, B> InboxStorage<'static, H, B> {
    /// Allocates memory on the heap for this many deliveries, messages in segments, and streams.
    pub fn allocate(entries: usize, assemblies: usize, streams: usize) -> Self {
        use alloc::vec::Vec;
        fn table<T>(length: usize, make: impl Fn() -> T) -> ManagedSlice<'static, T> {
            ManagedSlice::Owned((0..length).map(|_| make()).collect::<Vec<_>>())
        }
        Self {
            entries: table(entries, Entry::default),
            assemblies: table(assemblies, || None),
            streams: table(streams, || None),
        }
    }
}

/// What an inbox holds for its reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// A message, command or segment of a message.
    pub message: bool,
    /// A stream to be accepted, or a piece of one of those that are [read together](Inbox::next_of_streams).
    pub stream: bool,
    /// There is no room to sort the next arrival until the reader has read something of a stream, or a returned message. Messages
    /// may be waiting behind it.
    pub stalled: bool,
}

/// Everything that has come out of a private pipe but has not been read. See the [module](self).
pub struct Inbox<'a, H, B> {
    current: Option<Cursor<H>>,
    command: Option<Cursor<H>>,
    /// Number of messages of the delivery that may be read without a check for commands, right after one was returned.
    unchecked: u32,
    lists: Lists<'a, H>,
    messages: List,
    returned: List,
    /// The returned delivery being read.
    reread: Option<Reread<H>>,
    assemblies: Assemblies<'a, B>,
    streams: Streams<'a>,
    /// An item taken out of the pipe for which there is no room.
    stalled: Option<Item<H>>,
    unreadable: u64,
    /// Whether messages are held back.
    withheld: bool,
}

impl<H, B> Default for Inbox<'_, H, B> {
    /// Creates an inbox without memory.
    fn default() -> Self {
        Self::new(InboxStorage {
            entries: ManagedSlice::Borrowed(&mut []),
            assemblies: ManagedSlice::Borrowed(&mut []),
            streams: ManagedSlice::Borrowed(&mut []),
        })
    }
}

impl<'a, H, B> Inbox<'a, H, B> {
    /// Creates an empty inbox.
    pub fn new(storage: InboxStorage<'a, H, B>) -> Self {
        let InboxStorage { entries, assemblies, streams } = storage;
        Self {
            current: None,
            command: None,
            unchecked: 0,
            lists: Lists::new(entries),
            messages: List::EMPTY,
            returned: List::EMPTY,
            reread: None,
            assemblies: Assemblies::new(assemblies),
            streams: Streams::new(streams),
            stalled: None,
            unreadable: 0,
            withheld: false,
        }
    }

    /// Number of messages that can be reassembled at a time.
    pub(crate) fn assemblies(&self) -> usize {
        self.assemblies.capacity()
    }

    /// Number of messages that could not be read because they were malformed, or came in segments without space for them.
    pub fn unreadable(&self) -> u64 {
        self.unreadable
    }

    /// Counts them from here on, for another part.
    pub(crate) fn reset_unreadable(&mut self) {
        self.unreadable = 0;
    }

    /// Holds back messages that arrive from now on, as if they had not arrived, until this is revoked. Streams and returned
    /// messages are not affected. Call it only after [`poll`](Self::poll) has found no message: the rest of a delivery being read
    /// is not held back.
    pub fn withhold(&mut self, messages: bool) {
        self.withheld = messages;
    }

    /// Whether all messages taken out of the pipe have been read.
    #[inline]
    pub fn is_empty(&self) -> bool {
        let reads = self.current.is_some() || self.command.is_some();
        !reads && self.messages.is_empty() && self.stalled.is_none()
    }

    /// Takes as many arrivals as there is room for, and reports what can be read.
    pub fn poll<A: Arrivals<Hold = H, Buffer = B>>(&mut self, arrivals: &mut A) -> Waiting {
        while self.pull(arrivals) {}
        let command = self.open_command(arrivals);
        // The notice of a failed node is nothing to read.
        while !self.is_reading()
            && let Some(Item::Failed(node)) = self.lists.front(&self.messages)
        {
            let node = *node;
            self.lists.pop(&mut self.messages);
            self.forget_node(node, arrivals);
        }
        let message =
            command || self.is_reading() || !self.messages.is_empty() || self.stalls_message(arrivals);
        let message = message && !self.withheld;
        Waiting { message, stream: self.streams.is_readable(), stalled: self.stalled.is_some() }
    }

    /// Releases everything. Messages in segments are abandoned, and streams become unknown.
    pub fn clear<A: Arrivals<Hold = H, Buffer = B>>(&mut self, arrivals: &mut A) {
        self.unchecked = 0;
        let cursors = [self.current.take(), self.command.take()];
        let reread = self.reread.take().map(Reread::into_hold);
        let held = cursors.into_iter().flatten().map(Cursor::into_hold);
        held.chain(reread).for_each(|hold| arrivals.release(hold));
        let mut drop = |item| match item {
            Item::Hold(hold) => arrivals.release(hold),
            Item::Failed(node) => arrivals.lost(node),
        };
        for list in [&mut self.messages, &mut self.returned] {
            while let Some(item) = self.lists.pop(list) {
                drop(item);
            }
        }
        self.stalled.take().into_iter().for_each(drop);
        self.assemblies.discard_all(arrivals);
        self.streams.clear(&mut self.lists, arrivals);
    }

    /// Whether the delivery read last has anything left, not counting commands.
    fn is_reading(&self) -> bool {
        self.current.as_ref().is_some_and(Cursor::has_more)
    }

    /// Whether the unsorted arrival is a message, which can be read without being sorted.
    fn stalls_message<A: Arrivals<Hold = H, Buffer = B>>(&self, arrivals: &A) -> bool {
        let Some(Item::Hold(hold)) = &self.stalled else { return false };
        matches!(arrivals.delivery(hold).map(Delivery::kind), Some(DeliveryKind::Messages { .. }) | None)
    }

    /// Called once everything that had arrived from a node has been read: its unfinished messages will not be completed.
    fn forget_node<A: Arrivals<Hold = H, Buffer = B>>(&mut self, node: NodeId, arrivals: &mut A) {
        self.assemblies.discard_of(node, arrivals);
        arrivals.lost(node);
    }

    /// Takes one arrival out of the pipe and sorts it. Returns `false` if nothing has arrived, or there is no room for it.
    fn pull<A: Arrivals<Hold = H, Buffer = B>>(&mut self, arrivals: &mut A) -> bool {
        match self.pull_run(arrivals) {
            Pulled::Run(hold) => {
                if let Err(item) = self.lists.push(&mut self.messages, Item::Hold(hold)) {
                    self.stalled = Some(item);
                    return false;
                }
                true
            }
            Pulled::Sorted => true,
            Pulled::Nothing => false,
        }
    }

    /// As [`pull`](Self::pull), but returns messages instead of queueing them.
    #[inline(always)]
    fn pull_run<A: Arrivals<Hold = H, Buffer = B>>(&mut self, arrivals: &mut A) -> Pulled<H> {
        if self.stalled.is_some() {
            return self.pull_stalled(arrivals);
        }
        match arrivals.pull() {
            // The usual case.
            Some(Arrival::Piece(run)) if matches!(run.kind(), DeliveryKind::Messages { .. }) => {
                Pulled::Run(arrivals.hold(run))
            }
            Some(other) => self.sort(other, arrivals),
            None => Pulled::Nothing,
        }
    }

    /// Retries the arrival that found no room.
    #[inline(never)]
    fn pull_stalled<A: Arrivals<Hold = H, Buffer = B>>(&mut self, arrivals: &mut A) -> Pulled<H> {
        match self.stalled.take() {
            Some(Item::Hold(hold)) => self.sort_hold(hold, arrivals),
            Some(Item::Failed(node)) => self.node_failed(node, arrivals),
            None => Pulled::Nothing,
        }
    }

    #[inline(never)]
    fn sort<A: Arrivals<Hold = H, Buffer = B>>(&mut self, arrival: Arrival, arrivals: &mut A) -> Pulled<H> {
        match arrival {
            Arrival::Piece(delivery) => {
                let hold = arrivals.hold(delivery);
                self.sort_hold(hold, arrivals)
            }
            Arrival::StreamBroken { source, number } => {
                self.streams.mark_broken(source, number);
                Pulled::Sorted
            }
            Arrival::Failed(node) => self.node_failed(node, arrivals),
        }
    }

    fn sort_hold<A: Arrivals<Hold = H, Buffer = B>>(&mut self, hold: H, arrivals: &mut A) -> Pulled<H> {
        let kind = arrivals.delivery(&hold).map(Delivery::kind);
        let refused = match kind {
            Some(DeliveryKind::Messages { .. }) | None => return Pulled::Run(hold),
            Some(DeliveryKind::Returned { .. }) => self.lists.push(&mut self.returned, Item::Hold(hold)),
            Some(DeliveryKind::Stream { number, segment, last, aborted }) => {
                let piece = streams::Piece { number, segment, last, aborted };
                let sorted = self.streams.sort(hold, piece, &mut self.lists, arrivals);
                sorted.map(|readable| self.unreadable += u64::from(!readable))
            }
        };
        match refused {
            Ok(()) => Pulled::Sorted,
            Err(item) => {
                self.stalled = Some(item);
                Pulled::Nothing
            }
        }
    }

    /// Records that a node has failed. Earlier messages from it may still be waiting to be read.
    fn node_failed<A: Arrivals<Hold = H, Buffer = B>>(
        &mut self,
        node: NodeId,
        arrivals: &mut A,
    ) -> Pulled<H> {
        if Flaw::WaitsForFailed.strikes() {
            return Pulled::Sorted;
        }
        if !self.is_reading() && self.messages.is_empty() {
            self.forget_node(node, arrivals);
            return Pulled::Sorted;
        }
        match self.lists.push(&mut self.messages, Item::Failed(node)) {
            Ok(()) => Pulled::Sorted,
            Err(item) => {
                self.stalled = Some(item);
                Pulled::Nothing
            }
        }
    }
}

/// The outcome of polling the pipe.
enum Pulled<H> {
    /// A delivery of messages.
    Run(H),
    /// Something else, which has been sorted.
    Sorted,
    /// Nothing has arrived, or there is no room for it.
    Nothing,
}
