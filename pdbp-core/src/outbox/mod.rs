//! The open blocks of a sender, and the one rule by which they leave.
//!
//! An [`Outbox`] has *lanes*, each with at most one open block. Whoever sends packs into the open block of a lane; a block that is
//! full, flushed or [due](Due) goes to the engine. What a lane stands for is its owner's choice ([`Hop`]):
//!
//! * A destination node: for a sender that packs without asking the engine for each message, such as a part with a
//!   thread of its own.
//! * A link: for one that has its engine at hand. Messages for all nodes behind a relay share blocks on their first hop.
//!
//! ```text
//!  push ─▶ open block of the lane ─ full ───────────────▶ Blocks::submit ─▶ SCBP row
//!                 ▲        └─ flushed, due or urgent ─────────▲
//!                 └────────── Blocks::open ◀── place ◀────────┘
//! ```
//!
//! **The rule.** A block leaves when it is full, when it is flushed, when it has been open for [`Rule::flush_after`] and its peer has
//! read all that was sent before, or when it has been open for [`PATIENCE`] times as long. Until its peer has read what was sent
//! before, nothing is gained by sending it: it would lie behind the others, half empty, and take the place of a full one. An
//! owner whose poll finds nothing to do may also send what has been open for less time ([`Due::Idle`]): an [endpoint](crate::Endpoint) does. Who has
//! calls that wait, as a part with a thread of its own, flushes there instead.
//!
//! An outbox has no clock, no lock and no memory but what it is given, so that it works without a heap.

mod loan;
mod long;
mod outgoing;
mod rule;
mod sends;
#[allow(unsafe_code, reason = "a promise about memory of hosts")]
mod stage;
mod stream;
#[cfg(test)]
mod tests;
#[allow(unsafe_code, reason = "room in blocks that the outbox has")]
mod window;

use managed::ManagedSlice;

use crate::cdu::{Full, Lent, Packed, Packer, Route, Via};
use crate::engine::OpenError;
use crate::flaw::Flaw;
use crate::id::{NodeId, PartId, Time};
use crate::umb::OpenBlock;

pub use loan::{Loan, Outcome};
pub use long::{LongMessage, Piece};
pub use outgoing::{CopyBy, Copying, Outgoing};
pub use rule::{Due, Flushed, PATIENCE, Rule};
pub use sends::{LongSend, SetSend};
pub use stage::{Beside, InPlace, Stage};
pub use stream::{Ending, Missing, StreamError, StreamOut};
pub use window::Windows;

/// Where the blocks of an outbox come from and where they go: an engine.
pub trait Blocks {
    /// A vacant block for messages to a node, turned to the way that they go.
    ///
    /// # Errors
    /// See [`OpenError`].
    fn open(&mut self, dest: NodeId) -> Result<OpenBlock, OpenError>;

    /// As [`open`](Self::open), with the block put where there is none.
    ///
    /// # Errors
    /// As there; nothing was put.
    #[inline]
    fn open_into(&mut self, dest: NodeId, place: &mut Option<OpenBlock>) -> Result<(), OpenError> {
        *place = Some(self.open(dest)?);
        Ok(())
    }

    /// Takes a block back and sends it. One without messages just becomes vacant.
    fn submit(&mut self, block: OpenBlock);

    /// Blocks to the node, or to its relay, that have been submitted and that nobody has read.
    fn backlog(&self, dest: NodeId) -> u32;
}

/// Where messages for a node are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    lane: usize,
    dest: NodeId,
    addressing: Addressing,
}

/// How messages find their destination from the block's end of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Addressing {
    /// As the block was opened: all its messages are for one node.
    Opened,
    /// By this relay, or by none: the lane has messages for several nodes.
    Own(Option<Via>),
}

impl Hop {
    /// The lane that is for the messages to this node alone; its index is that of the node.
    #[inline]
    pub const fn to_node(dest: NodeId) -> Self {
        Self { lane: dest.index(), dest, addressing: Addressing::Opened }
    }

    /// The lane of a link, by which the messages go to `dest`.
    pub(crate) const fn by_link(lane: usize, dest: NodeId, via: Option<Via>) -> Self {
        Self { lane, dest, addressing: Addressing::Own(via) }
    }

    /// The node that the messages are for.
    #[inline]
    pub const fn dest(&self) -> NodeId {
        self.dest
    }

    /// Index of the lane.
    #[inline]
    pub const fn lane(&self) -> usize {
        self.lane
    }
}

/// The open block of a lane, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    block: Option<OpenBlock>,
    since: Time,
    /// Bytes of CDUs in the blocks that travel best on this lane; 0: as many as there is room for.
    body: usize,
    /// Whether blocks are read on another processor where they were written.
    is_read_elsewhere: bool,
}

/// Why a message, or the rest of one, was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendError {
    /// No block is available now.
    Open(OpenError),
    /// The message has more bytes than fit a block. Send it in segments ([`LongSend`]) or as a stream.
    TooLong,
    /// The node of the destination has no room for this long message yet: ask again after a poll.
    AwaitsRoom,
    /// The node of the destination never has room for messages of more than this many bytes.
    NoRoom(u64),
    /// The sender is no part of this node.
    NoSuchPart(PartId),
}

impl SendError {
    /// Whether it is worth trying again after a poll.
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Open(OpenError::WouldBlock) | Self::AwaitsRoom)
    }
}

impl From<OpenError> for SendError {
    fn from(error: OpenError) -> Self {
        Self::Open(error)
    }
}

impl core::fmt::Display for SendError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Open(error) => error.fmt(f),
            Self::TooLong => {
                f.write_str("the message does not fit a block; send it in segments or as a stream")
            }
            Self::AwaitsRoom => f.write_str("the destination has no room for it yet; try again after a poll"),
            Self::NoRoom(most) => {
                write!(f, "the destination reassembles messages of up to {most} bytes; send a stream")
            }
            Self::NoSuchPart(part) => write!(f, "this node has no {part}; register it first"),
        }
    }
}

impl core::error::Error for SendError {}

/// The open blocks of a sender. See the [module](self).
#[derive(Debug)]
pub struct Outbox<'a> {
    lanes: ManagedSlice<'a, Lane>,
    rule: Rule,
    /// Lanes that have an open block.
    open: usize,
}

impl<'a> Outbox<'a> {
    /// An outbox with these lanes, which it empties.
    pub(crate) fn new(mut lanes: ManagedSlice<'a, Lane>, rule: Rule) -> Self {
        lanes.iter_mut().for_each(|lane| *lane = Lane::default());
        Self { lanes, rule, open: 0 }
    }

    /// An outbox with so many lanes on the heap.
    #[cfg(feature = "alloc")]
    pub fn allocate(lanes: usize, rule: Rule) -> Self {
        let lanes: alloc::vec::Vec<_> = (0..lanes).map(|_| Lane::default()).collect();
        Self::new(ManagedSlice::Owned(lanes), rule)
    }

    /// Blocks of a lane that are to hold more than one message leave with `body` bytes of CDUs: those that the link carries best.
    pub fn set_body(&mut self, lane: usize, body: usize) {
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.body = body;
        }
    }

    /// Whether blocks of a lane are read where they were written, by another processor: they may be written [beside](Beside) themselves.
    pub fn set_read_elsewhere(&mut self, lane: usize, is_read_elsewhere: bool) {
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.is_read_elsewhere = is_read_elsewhere;
        }
    }

    pub(crate) fn set_all_read_elsewhere(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.is_read_elsewhere = true);
    }

    /// Lanes that have an open block.
    #[inline]
    pub fn open(&self) -> usize {
        self.open
    }

    /// Bytes that an open block has left; `None` when the lane has none.
    pub fn room(&self, lane: usize) -> Option<usize> {
        let block = self.lanes.get(lane)?.block.as_ref()?;
        Some(block.room().saturating_sub(block.written()))
    }

    /// Packs one message into the open block of its lane.
    ///
    /// # Errors
    /// [`Full`] when there is no room, or no open block; nothing was written.
    #[inline(always)]
    pub fn push(&mut self, hop: Hop, route: Route, data: &[u8]) -> Result<(), Full> {
        self.block(hop)?.push(route, data)
    }

    /// The open train of a lane and what its block has left behind it, to be packed by a [window](Windows); and whether that block is read
    /// elsewhere.
    #[inline]
    fn lend_room(&mut self, lane: usize) -> Option<(Lent<'_>, bool)> {
        let Lane { block, is_read_elsewhere, .. } = self.lanes.get_mut(lane)?;
        Some((block.as_mut()?.lend_room()?, *is_read_elsewhere))
    }

    /// Takes what was packed into [lent room](Self::lend_room).
    #[inline]
    fn take_back(&mut self, lane: usize, packed: Packed) {
        if let Some(block) = self.lanes.get_mut(lane).and_then(|lane| lane.block.as_mut()) {
            block.take_back(packed);
        }
    }

    /// Makes room for one message, to be filled. The bytes are whatever was there.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    #[inline(always)]
    pub fn reserve(&mut self, hop: Hop, route: Route, length: usize) -> Result<&mut [u8], Full> {
        self.block(hop)?.reserve(route, length)
    }

    /// Packs a message, or a piece of one.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn pack(&mut self, hop: Hop, outgoing: &Outgoing<'_>) -> Result<(), Full> {
        outgoing.pack(self.block(hop)?)
    }

    /// The open block of a lane, turned to the way of the hop.
    #[inline(always)]
    fn block(&mut self, hop: Hop) -> Result<&mut OpenBlock, Full> {
        let block = self.lanes.get_mut(hop.lane).and_then(|lane| lane.block.as_mut()).ok_or(Full)?;
        if let Addressing::Own(via) = hop.addressing {
            let via = via.filter(|_| !Flaw::ForgetsWay.strikes());
            block.packer.turn(via);
        }
        Ok(block)
    }

    /// Packs the first message into the open block of a lane.
    ///
    /// A block of short messages is limited to [`Rule::pack`] bytes of CDUs, one of others to what the link carries best, so
    /// that it leaves earlier; segments of a long message fill theirs.
    ///
    /// # Errors
    /// [`Full`] when even that has no room.
    #[inline]
    fn begin(&mut self, lane: usize, outgoing: &Outgoing<'_>) -> Result<(), Full> {
        let Lane { block, body, .. } = self.lanes.get_mut(lane).ok_or(Full)?;
        let block = block.as_mut().ok_or(Full)?;
        outgoing.pack(block)?;
        let body = if *body == 0 { block.room() } else { *body };
        let pack = self.rule.pack.min(body);
        match outgoing.length() {
            _ if outgoing.is_segment() => {}
            short if short < pack / 2 => block.limit(pack),
            _ if block.written() <= body => block.limit(body),
            _ => {}
        }
        Ok(())
    }

    /// Sends a message, or a piece of one: packs it into the open block of its lane, or submits that and begins another.
    ///
    /// # Errors
    /// See [`SendError`]; nothing was taken.
    pub fn send(
        &mut self,
        blocks: &mut impl Blocks,
        now: Time,
        hop: Hop,
        outgoing: &Outgoing<'_>,
    ) -> Result<(), SendError> {
        if self.pack(hop, outgoing).is_ok() { Ok(()) } else { self.send_anew(blocks, now, hop, outgoing) }
    }

    /// As [`send`](Self::send), where the open block of the lane has no room, or there is none.
    ///
    /// # Errors
    /// As there; what was open was submitted.
    pub fn send_anew(
        &mut self,
        blocks: &mut impl Blocks,
        now: Time,
        hop: Hop,
        outgoing: &Outgoing<'_>,
    ) -> Result<(), SendError> {
        if let Some((mut full, _)) = self.take(hop.lane) {
            if Flaw::EmptiesFull.strikes() {
                full.rewind(Packer::new());
            }
            blocks.submit(full);
        }
        let Some(lane) = self.lanes.get_mut(hop.lane) else {
            return Err(OpenError::NoSuchNode(hop.dest).into());
        };
        // Packed where it stays, since a block's token is long.
        blocks.open_into(hop.dest, &mut lane.block)?;
        lane.since = now;
        self.open += 1;
        if self.begin(hop.lane, outgoing).is_ok() {
            return Ok(());
        }
        if let Some((vacant, _)) = self.take(hop.lane) {
            blocks.submit(vacant);
        }
        Err(SendError::TooLong)
    }

    /// Sends a command: in a block of its own, which overtakes others that wait for the same link, and leaves at once.
    ///
    /// # Errors
    /// See [`SendError`]; nothing was taken.
    pub fn send_urgent(
        blocks: &mut impl Blocks,
        dest: NodeId,
        route: Route,
        data: &[u8],
    ) -> Result<(), SendError> {
        let mut block = blocks.open(dest)?.into_urgent();
        let pushed = block.push(route, data);
        // Without a message it just becomes vacant.
        blocks.submit(block);
        pushed.map_err(|Full| SendError::TooLong)
    }

    /// Gives all open blocks back without their messages.
    pub fn discard(&mut self, blocks: &mut impl Blocks) {
        let mut at = 0;
        while let Some(mut block) = self.next_due(&mut at, Due::All, |_| 0) {
            block.rewind(Packer::new());
            blocks.submit(block);
        }
    }

    /// Drops all open blocks, which does not give them back.
    pub(crate) fn clear(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.block = None);
        self.open = 0;
    }

    /// Takes the open block of a lane, and since when it is open.
    #[inline]
    pub fn take(&mut self, lane: usize) -> Option<(OpenBlock, Time)> {
        let lane = self.lanes.get_mut(lane)?;
        let block = lane.block.take()?;
        self.open -= 1;
        Some((block, lane.since))
    }

    /// Makes a block that is open since `since` the open one of a lane; returns the one that was, or the block itself when there is no
    /// such lane.
    #[must_use = "a block that is not submitted is lost to the pool"]
    #[inline]
    pub fn put(&mut self, lane: usize, block: OpenBlock, since: Time) -> Option<OpenBlock> {
        let Some(lane) = self.lanes.get_mut(lane) else { return Some(block) };
        lane.since = since;
        if lane.block.is_some() {
            return lane.block.replace(block);
        }
        lane.block = Some(block);
        self.open += 1;
        None
    }
}
