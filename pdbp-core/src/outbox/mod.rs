//! The open blocks of a sender, and the rule that decides when they leave.
//!
//! An [`Outbox`] has *lanes*, each with at most one open block. A sender packs messages into the open block of a lane. Once the
//! block is full, flushed or [due](Due), it goes to the engine. The owner chooses what a lane stands for ([`Hop`]):
//!
//! * A destination node, if the owner packs without consulting the engine for each message, like a part with its own thread.
//! * A link, if the owner has its engine at hand. Messages for all nodes behind a relay share blocks on their first hop.
//!
//! ```text
//!  push ─▶ open block of the lane ─ full ───────────────▶ Blocks::submit ─▶ SCBP row
//!                 ▲        └─ flushed, due or urgent ─────────▲
//!                 └────────── Blocks::open ◀── place ◀────────┘
//! ```
//!
//! **The rule.** A block leaves when it is full, when it is flushed, when it has been open for [`Rule::flush_after`] and its peer
//! has read everything sent before, or when it has been open [`PATIENCE`] times as long. While the peer still has blocks to read,
//! sending gains nothing: the block would queue behind the others, half empty, in the place of a full one. An owner whose poll
//! finds nothing to do may send blocks sooner ([`Due::Idle`]); an [endpoint](crate::Endpoint) does. An owner with blocking calls,
//! like a part with its own thread, flushes in those instead.
//!
//! An outbox has no clock and no lock, and uses only the memory it is given, so it works without a heap.

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
pub use stage::{InPlace, Stage, Staging};
pub use stream::{Ending, Missing, StreamError, StreamOut};
pub use window::Windows;

/// The source of an outbox's blocks, and the place it submits them to: an engine.
pub trait Blocks {
    /// Returns a vacant block for messages to a node, set up for the route to it.
    ///
    /// # Errors
    /// See [`OpenError`].
    fn open(&mut self, dest: NodeId) -> Result<OpenBlock, OpenError>;

    /// As [`open`](Self::open), but stores the block in `place`, which is empty.
    ///
    /// # Errors
    /// See [`OpenError`]; `place` is unchanged.
    #[inline]
    fn open_into(&mut self, dest: NodeId, place: &mut Option<OpenBlock>) -> Result<(), OpenError> {
        *place = Some(self.open(dest)?);
        Ok(())
    }

    /// Takes a block back and sends it. A block without messages just becomes vacant.
    fn submit(&mut self, block: OpenBlock);

    /// Returns the number of blocks submitted to the node, or to its relay, and not yet read.
    fn backlog(&self, dest: NodeId) -> u32;
}

/// Where messages for a node are packed: the lane, and the addressing within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    lane: usize,
    dest: NodeId,
    addressing: Addressing,
}

/// How messages are routed from the far end of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Addressing {
    /// As set when the block was opened: all its messages are for one node.
    Opened,
    /// Through this relay, or through none: the lane carries messages for several nodes.
    Own(Option<Via>),
}

impl Hop {
    /// The lane for messages to this node alone; its index is that of the node.
    #[inline]
    pub const fn to_node(dest: NodeId) -> Self {
        Self { lane: dest.index(), dest, addressing: Addressing::Opened }
    }

    /// The lane of a link that leads to `dest`.
    pub(crate) const fn by_link(lane: usize, dest: NodeId, via: Option<Via>) -> Self {
        Self { lane, dest, addressing: Addressing::Own(via) }
    }

    /// The node the messages are for.
    #[inline]
    pub const fn dest(&self) -> NodeId {
        self.dest
    }

    /// The index of the lane.
    #[inline]
    pub const fn lane(&self) -> usize {
        self.lane
    }
}

/// A lane and its open block, if it has one.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    block: Option<OpenBlock>,
    since: Time,
    /// Best size of this lane's blocks, in bytes of CDUs; 0 means as large as possible.
    body: usize,
    /// Whether another processor reads the blocks in place.
    is_read_elsewhere: bool,
}

/// Why a message, or the rest of one, was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendError {
    /// No block could be opened.
    Open(OpenError),
    /// The message does not fit a block. Send it in segments ([`LongSend`]) or as a stream.
    TooLong,
    /// The destination's node has no room for this long message yet. Try again after a poll.
    AwaitsRoom,
    /// The destination's node never has room for messages longer than this many bytes.
    NoRoom(u64),
    /// The sender is not a part of this node.
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
    /// Number of lanes with an open block.
    open: usize,
}

impl<'a> Outbox<'a> {
    /// Creates an outbox with these lanes, which are reset.
    pub(crate) fn new(mut lanes: ManagedSlice<'a, Lane>, rule: Rule) -> Self {
        lanes.iter_mut().for_each(|lane| *lane = Lane::default());
        Self { lanes, rule, open: 0 }
    }

    /// Creates an outbox with this many lanes on the heap.
    #[cfg(feature = "alloc")]
    pub fn allocate(lanes: usize, rule: Rule) -> Self {
        let lanes: alloc::vec::Vec<_> = (0..lanes).map(|_| Lane::default()).collect();
        Self::new(ManagedSlice::Owned(lanes), rule)
    }

    /// Sets the size, in bytes of CDUs, at which a lane's blocks of more than one message leave: the size that the link carries
    /// best.
    pub fn set_body(&mut self, lane: usize, body: usize) {
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.body = body;
        }
    }

    /// Sets whether another processor reads a lane's blocks in place. If so, they may be written through a [stage](Staging).
    pub fn set_read_elsewhere(&mut self, lane: usize, is_read_elsewhere: bool) {
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.is_read_elsewhere = is_read_elsewhere;
        }
    }

    pub(crate) fn set_all_read_elsewhere(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.is_read_elsewhere = true);
    }

    /// Number of lanes with an open block.
    #[inline]
    pub fn open(&self) -> usize {
        self.open
    }

    /// Returns the bytes left in the open block of a lane; `None` if it has no open block.
    pub fn room(&self, lane: usize) -> Option<usize> {
        let block = self.lanes.get(lane)?.block.as_ref()?;
        Some(block.room().saturating_sub(block.written()))
    }

    /// Packs a message into the open block of its lane.
    ///
    /// # Errors
    /// [`Full`] if there is no room or no open block; nothing was written.
    #[inline(always)]
    pub fn push(&mut self, hop: Hop, route: Route, data: &[u8]) -> Result<(), Full> {
        self.block(hop)?.push(route, data)
    }

    /// Lends a [window](Windows) the open train of a lane and the rest of its block. Also returns whether another processor reads
    /// the block.
    #[inline]
    fn lend_room(&mut self, lane: usize) -> Option<(Lent<'_>, bool)> {
        let Lane { block, is_read_elsewhere, .. } = self.lanes.get_mut(lane)?;
        Some((block.as_mut()?.lend_room()?, *is_read_elsewhere))
    }

    /// Takes back [lent room](Self::lend_room) along with what was packed into it.
    #[inline]
    fn commit(&mut self, lane: usize, packed: Packed) {
        if let Some(block) = self.lanes.get_mut(lane).and_then(|lane| lane.block.as_mut()) {
            block.commit(packed);
        }
    }

    /// Packs a message that `fill` writes in place. If that panics, nothing was packed.
    ///
    /// # Errors
    /// Hands `fill` back if there is no room or no open block.
    #[inline]
    pub(crate) fn push_with<F: FnOnce(&mut [u8])>(
        &mut self,
        hop: Hop,
        route: Route,
        length: usize,
        fill: F,
    ) -> Result<(), F> {
        match self.block(hop) {
            Ok(block) => block.push_with(route, length, fill),
            Err(Full) => Err(fill),
        }
    }

    /// Packs a message, or a segment of one.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn pack(&mut self, hop: Hop, outgoing: &Outgoing<'_>) -> Result<(), Full> {
        outgoing.pack(self.block(hop)?)
    }

    /// The open block of a lane, set up for the route of the hop.
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
    /// A block of short messages is limited to [`Rule::pack`] bytes of CDUs, and other blocks to the size that the link carries
    /// best, so that they leave earlier. Blocks for segments of a long message are not limited.
    ///
    /// # Errors
    /// [`Full`] if the message does not fit an empty block.
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

    /// Sends a message, or a segment of one. Packs it into the open block of its lane; if it does not fit, submits that block and
    /// opens another.
    ///
    /// # Errors
    /// See [`SendError`]; the message was not taken.
    pub fn send(
        &mut self,
        blocks: &mut impl Blocks,
        now: Time,
        hop: Hop,
        outgoing: &Outgoing<'_>,
    ) -> Result<(), SendError> {
        if self.pack(hop, outgoing).is_ok() { Ok(()) } else { self.send_anew(blocks, now, hop, outgoing) }
    }

    /// As [`send`](Self::send), for a lane whose open block has no room, or that has none.
    ///
    /// # Errors
    /// See [`SendError`]; the lane's open block, if any, was submitted.
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
        // Packed in place, because moving a block's token is costly.
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

    /// Sends a command in a block of its own, which leaves at once and overtakes others that wait for the same link.
    ///
    /// # Errors
    /// See [`SendError`]; the command was not taken.
    pub fn send_urgent(
        blocks: &mut impl Blocks,
        dest: NodeId,
        route: Route,
        data: &[u8],
    ) -> Result<(), SendError> {
        let mut block = blocks.open(dest)?.into_urgent();
        let pushed = block.push(route, data);
        // If the push failed, the block just becomes vacant.
        blocks.submit(block);
        pushed.map_err(|Full| SendError::TooLong)
    }

    /// Returns all open blocks without sending their messages.
    pub fn discard(&mut self, blocks: &mut impl Blocks) {
        let mut at = 0;
        while let Some(mut block) = self.next_due(&mut at, Due::All, |_| 0) {
            block.rewind(Packer::new());
            blocks.submit(block);
        }
    }

    /// Forgets all open blocks, without returning them to the engine.
    pub(crate) fn clear(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.block = None);
        self.open = 0;
    }

    /// Takes the open block of a lane, along with the time at which it was opened.
    #[inline]
    pub fn take(&mut self, lane: usize) -> Option<(OpenBlock, Time)> {
        let lane = self.lanes.get_mut(lane)?;
        let block = lane.block.take()?;
        self.open -= 1;
        Some((block, lane.since))
    }

    /// Makes `block`, opened at `since`, the open block of a lane. Returns the lane's previous open block, or `block` itself if
    /// there is no such lane.
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
