//! Space for messages longer than a block: **the receiver reserves it before the first segment leaves.**
//!
//! Messages in segments are reassembled in the receiver's memory, whose total is limited per node
//! ([`limit_assembly`](Engine::limit_assembly)). Before its first segment, a sender asks for space for the whole message, and
//! continues once the receiver's engine has reserved it, first come first served. The space is free again when the message has
//! been read and dropped.
//!
//! ```text
//!  sender: request_room ── ask, to the node itself ──▶ receiver: queue ─▶ reserved
//!          true   ◀── Control::Room, by the relay ──┘
//!          segments ──────────────────────────────▶ take_room … give_room
//!          end_room
//! ```
//!
//! # Why this cannot deadlock
//! * A request is a small message, read by the engine: it waits for no reader, except as all messages on its link do.
//! * The answer is a control message, which waits for no data ([`engine`](super)). A sender gets it even if it reads nothing in
//!   the meantime.
//! * While a sender waits, it has nothing in flight behind which others could be stuck.
//! * A message with reserved space needs nothing from other messages to complete. Its segments are copied out of their blocks as
//!   they are read, whatever else is waiting, so several senders behind one link or relay proceed side by side.
//! * So a sender can wait only for the receiver to read, as with every message; and only long messages wait for space that others
//!   hold. While the table is full, a part that has given up a message also waits for that one's receiver.
//!
//! # Failure
//! An unanswered request is repeated after a delay that doubles each time, so neither an unreadable block nor a full table blocks
//! the sender for good. Repeated requests are idempotent. A sender that gives up reports it after its segments. So does a sender
//! whose link to a relay has failed, once the link is up again, since the receiver knows nothing of that link; and so does one
//! that is granted space for a message that it has given up. Unused space granted to a node that fails is freed once everything
//! that had arrived from the node has been read.

mod ending;
mod sent;
mod table;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::parts::Local;
use super::{Delivery, Engine, OpenError};
use crate::cdu::{CduClass, Cdus, Route};
use crate::id::{NodeId, PartId, Time};
use crate::policy::SpacePolicy;
use crate::routing::LinkId;
use crate::transport::Transport;
use crate::umb::BlockMemory;

pub(super) use sent::SentMessages;
pub(crate) use table::RoomEntry;
pub(super) use table::Rooms;
use table::State;

/// Nanoseconds after which an unanswered request is first repeated.
const RETRY: u64 = 5_000_000;
/// Maximum number of times the delay doubles.
const MAX_DOUBLINGS: u32 = 10;

/// Announces to a node a message for one of its parts. Sent to [`PartId::NODE`].
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Announcement {
    number: U32,
    /// Local index of the destination part, combined with `ABORTED` if the message was given up.
    dest: U32,
    bytes: U64,
}

const ABORTED: u32 = 1 << 16;

/// A message that a part of this node sends in segments, and the state of its reservation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum RoomRequest {
    #[default]
    Idle,
    Open {
        to: PartId,
        number: u32,
        state: Answer,
    },
    /// The message was given up when the table had no room to remember it. The slot takes no other until the receiver has been
    /// notified.
    Ending {
        from: PartId,
        to: PartId,
        number: u32,
    },
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    Asked { at: Time, tries: u32 },
    Granted,
    TooLong { limit: u64 },
    Lost,
}

/// Why a message in segments gets no space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RoomError {
    /// It is longer than the receiving node can reassemble.
    TooLong {
        /// The limit of that node, in bytes.
        limit: u64,
    },
    /// The receiving node cannot be reached, or was temporarily unreachable.
    PeerFailed(NodeId),
    /// The sender is not a part of this node.
    NoSuchPart,
}

/// Space reserved for a message that has begun to arrive.
#[derive(Debug)]
#[must_use = "room that is not given back is not there for other messages"]
pub struct RoomToken {
    entry: u32,
    source: PartId,
    number: u32,
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Limits the total number of bytes of messages longer than a block that all parts of this node reassemble at a time. Until
    /// this is called, there is no limit. A message longer than the limit, or than `u32::MAX` bytes, is refused at its sender.
    pub fn limit_assembly(&mut self, bytes: u64) {
        self.rooms.limit = bytes;
        self.rooms.dirty = true;
        self.refuse_queued(bytes.max(1), |entry| entry.bytes > bytes);
    }

    /// As [`limit_assembly`](Self::limit_assembly), for a node with `buffers` buffers of equal size, each for one message of up
    /// to `bytes` bytes.
    pub fn divide_assembly(&mut self, buffers: usize, bytes: usize) {
        self.rooms.each = bytes as u64;
        self.limit_assembly(buffers as u64 * bytes as u64);
    }

    /// Returns the bytes reserved for messages longer than a block: granted, arriving, or received and not yet dropped.
    pub fn assembly_in_use(&self) -> u64 {
        self.rooms.reserved
    }

    /// Whether part `from` of this node may send the first segment of its message `number`, of `bytes` bytes, to `to`. Asks the
    /// receiving node; call this again after polls while it returns `false`. A part sends one such message at a time, to one
    /// part, with increasing numbers that wrap around; [`end_room`](Self::end_room) ends it.
    ///
    /// # Errors
    /// See [`RoomError`]; the message is over.
    pub fn request_room(
        &mut self,
        from: PartId,
        to: PartId,
        number: u32,
        bytes: u64,
    ) -> Result<bool, RoomError> {
        let Some(local) = self.parts.active_mut(from) else {
            return Err(RoomError::NoSuchPart);
        };
        let mut tries = 0;
        match local.room_request {
            RoomRequest::Idle => {}
            RoomRequest::Ending { .. } => return Ok(false),
            RoomRequest::Open { to: other, number: before, state } if (other, before) == (to, number) => {
                match state {
                    Answer::Granted => return Ok(true),
                    Answer::Asked { at, tries: before } => {
                        if self.now.since(at) < RETRY << before.min(MAX_DOUBLINGS) {
                            return Ok(false);
                        }
                        tries = before + 1;
                    }
                    Answer::TooLong { limit } => {
                        local.room_request = RoomRequest::Idle;
                        return Err(RoomError::TooLong { limit });
                    }
                    Answer::Lost => {
                        self.end_room(from, false);
                        return Err(RoomError::PeerFailed(to.node()));
                    }
                }
            }
            RoomRequest::Open { .. } => {
                self.end_room(from, false);
                let request = self.parts.get(from.local()).map(|local| local.room_request);
                if let Some(RoomRequest::Ending { .. }) = request {
                    return Ok(false);
                }
            }
        }
        let announcement =
            Announcement { number: number.into(), dest: u32::from(to.local()).into(), bytes: bytes.into() };
        let mut block = match self.open(to.node()) {
            Ok(block) => block,
            Err(OpenError::WouldBlock) => return Ok(false),
            Err(_) => {
                self.set_room_request(from.local(), RoomRequest::Idle);
                return Err(RoomError::PeerFailed(to.node()));
            }
        };
        // Before the request leaves: between parts of one node, it is answered at once.
        let state = Answer::Asked { at: self.now, tries };
        self.set_room_request(from.local(), RoomRequest::Open { to, number, state });
        let route = Route::raw(CduClass::Command as u8, 0, from.local(), PartId::NODE);
        let pushed = block.push(route, announcement.as_bytes());
        debug_assert!(pushed.is_ok(), "an empty block has room for an announcement");
        self.submit(block.into_urgent());
        Ok(false)
    }

    /// Takes the space of a message that begins to arrive at part `part`. `None` if its sender was not granted that much.
    pub fn take_room(&mut self, part: PartId, source: PartId, number: u32, bytes: u64) -> Option<RoomToken> {
        // A node that has returned may reuse the number: anything that had arrived before is read first.
        let is_it = |e: &RoomEntry, state| e.state == state && e.dest.local() == part.local();
        let orphaned = self.rooms.find(source, number, |e| is_it(e, State::Orphaned)).is_some();
        let state = if orphaned { State::Orphaned } else { State::Granted };
        let (entry, room) = self.rooms.find(source, number, |e| is_it(e, state))?;
        if room.bytes < bytes {
            return None;
        }
        room.state = if orphaned { State::Former } else { State::Taken };
        // Messages between two parts are ordered, so nothing more of earlier ones arrives. Later ones may have been granted
        // already.
        let before = |e: &RoomEntry| number.wrapping_sub(e.number) < u32::MAX / 2;
        let lost = |e: &RoomEntry| e.state == state && e.source == source && e.dest.local() == part.local();
        self.rooms.drop_if(|e| lost(e) && before(e));
        Some(RoomToken { entry, source, number })
    }

    /// Frees the space of a message that was read, or will not complete.
    pub fn release_room(&mut self, room: RoomToken) {
        let RoomToken { entry, source, number } = room;
        let slot = self.rooms.table.get_mut(entry as usize);
        let is_taken = |state| matches!(state, State::Taken | State::Former);
        let is_it = |e: &mut RoomEntry| is_taken(e.state) && (e.source, e.number) == (source, number);
        match slot.and_then(|slot| slot.take_if(is_it)) {
            Some(room) => self.rooms.reserved -= room.bytes,
            None => self.counters.foreign_tokens += 1,
        }
        self.rooms.dirty = true;
    }

    /// Frees the space granted to an unreachable node, once a part has read everything that had arrived from there.
    pub fn lose_rooms(&mut self, part: PartId, node: NodeId) {
        let lost = |e: &RoomEntry| e.state == State::Orphaned && e.dest.local() == part.local();
        self.rooms.drop_if(|e| lost(e) && e.source.node() == node);
    }

    fn set_room_request(&mut self, local: u16, room_request: RoomRequest) {
        if let Some(local) = self.parts.get_mut(local) {
            local.room_request = room_request;
        }
    }

    /// Grants requests as long as there is space, and notifies receivers of messages that were given up.
    pub(super) fn advance_rooms(&mut self) -> u32 {
        let mut worked = 0;
        while self.rooms.dirty {
            match self.rooms.grant_next() {
                Some(entry) => {
                    self.queue_room_answer(entry);
                    worked += 1;
                }
                None => self.rooms.dirty = false,
            }
        }
        if core::mem::take(&mut self.rooms.ending) {
            worked += self.end_messages();
        }
        worked
    }

    /// Reads messages of other nodes' parts to this node itself: bytes `start..end` of an arrived block.
    pub(super) fn read_node_messages(
        &mut self,
        (source, by): (NodeId, LinkId),
        block: &Delivery,
        (start, end): (usize, usize),
    ) {
        let trains = Cdus::new(block.bytes().get(start..end).unwrap_or(&[])).map_while(Result::ok);
        for train in trains {
            let Some(source) = PartId::new(source, train.source_part()) else { continue };
            for message in train.messages() {
                match Announcement::read_from_bytes(message) {
                    Ok(announcement) => self.on_room_request(source, by, announcement),
                    Err(_) => self.counters.malformed += 1,
                }
            }
        }
    }

    fn on_room_request(&mut self, source: PartId, hop: LinkId, announcement: Announcement) {
        let (number, bytes) = (announcement.number.get(), announcement.bytes.get());
        let Some(dest) = PartId::new(self.config.node, announcement.dest.get() as u16) else {
            self.counters.malformed += 1;
            return;
        };
        if announcement.dest.get() & ABORTED != 0 {
            // The reader frees granted space, because some of the message may have arrived.
            let waits = |e: &RoomEntry| matches!(e.state, State::Queued(_));
            self.rooms.drop_if(|e| waits(e) && (e.source, e.number) == (source, number));
            return;
        }
        // If the node has no link to this one, the agreement may report it gone while a relay still forwards its request.
        let (asker, me) = (source.node(), self.config.node);
        if asker != me && self.links.id(asker) == LinkId::NONE && !self.agreement.is_member(asker) {
            return;
        }
        // A leftover of a failed link: the answer would reach nobody. A sender that still wants space asks again.
        if self.links.get(hop).is_some_and(|link| link.recv.ending.is_some()) {
            return;
        }
        let known = |e: &RoomEntry| matches!(e.state, State::Queued(_) | State::Granted | State::Taken);
        if let Some((i, entry)) = self.rooms.find(source, number, known) {
            // Asked again, since the answer may have been lost.
            entry.hop = hop;
            if !matches!(entry.state, State::Queued(_)) {
                self.queue_room_answer(i);
            }
            return;
        }
        // A part sends one message at a time, so it has given up any that is still queued.
        self.rooms.drop_if(|e| matches!(e.state, State::Queued(_)) && e.source == source);
        let each = self.rooms.each;
        let limit = if each == 0 { self.rooms.limit } else { self.rooms.limit.min(each) };
        // The reader counts the bytes of a message in as many bits.
        let limit = limit.min(u64::from(u32::MAX));
        let state = if self.pipes.of(dest.local()).is_none() {
            // Arriving segments are discarded, and need no space.
            State::Reply { limit: 0 }
        } else if bytes > limit {
            State::Reply { limit: limit.max(1) }
        } else {
            State::Queued(self.rooms.requests)
        };
        self.rooms.requests = self.rooms.requests.wrapping_add(1);
        let bytes = bytes.max(each);
        let added = self.rooms.add(RoomEntry { source, dest, number, bytes, state, owed: false, hop });
        match (added, state) {
            (Some(_), State::Queued(_)) => self.rooms.dirty = true,
            (Some(entry), _) => self.queue_room_answer(entry),
            // There is no room to remember it; the sender will ask again.
            (None, _) => {}
        }
    }

    /// Records that the sender of a message is to be notified whether it has its space.
    fn queue_room_answer(&mut self, entry: u32) {
        let Some(Some(room)) = self.rooms.table.get_mut(entry as usize) else { return };
        let RoomEntry { source, number, dest, state, .. } = *room;
        if source.node() != self.config.node {
            room.owed = true;
            if let Some(link) = self.links.get_mut(room.hop) {
                link.control.owes_rooms = true;
            }
            return;
        }
        if let State::Reply { .. } = state
            && let Some(slot) = self.rooms.table.get_mut(entry as usize)
        {
            *slot = None;
        }
        self.on_room_answer(source, number, dest, state.limit());
    }

    /// Handles an answer from a node, or from its relay, about a message of this node, or of another one to which the answer is
    /// forwarded.
    pub(super) fn on_room_answer(&mut self, to: PartId, number: u32, dest: PartId, limit: u64) {
        if to.node() != self.config.node {
            let (state, hop) = (State::Reply { limit }, self.links.id(to.node()));
            let reply = RoomEntry { source: to, dest, number, bytes: 0, state, owed: false, hop };
            if hop != LinkId::NONE
                && let Some(entry) = self.rooms.add(reply)
            {
                self.queue_room_answer(entry);
            }
            return;
        }
        // The part that asked may be gone, and another one in its slot.
        let asker = self.parts.get_mut(to.local()).filter(|local| local.is_of(to.local()));
        if let Some(Local { room_request, sent, .. }) = asker {
            if let RoomRequest::Open { to: part, number: requested, state } = room_request
                && (part.node(), *requested) == (dest.node(), number)
            {
                if let Answer::Asked { .. } = state {
                    *state = if limit == 0 { Answer::Granted } else { Answer::TooLong { limit } };
                }
                return;
            }
            // The request was repeated, and so is the answer. Segments may still be waiting for their block to fill up.
            if sent.contains(number) {
                return;
            }
        }
        // The message was given up, but the receiver does not know: while it was not a member, nothing could be sent to it, and
        // the relay then passed the request on to its next life.
        if limit == 0 {
            self.end_message(to, dest, number);
        }
    }

    /// Handles the loss of the route to some nodes, because a link has failed or, for [`LinkId::NONE`], because they are not
    /// members. Messages to them are lost, and requests made over the link have been given up.
    pub(super) fn fail_room_requests(&mut self, lost: impl Fn(NodeId) -> bool, link: LinkId) {
        for local in self.parts.iter_mut() {
            match &mut local.room_request {
                RoomRequest::Open { to, state: state @ (Answer::Asked { .. } | Answer::Granted), .. }
                    if lost(to.node()) =>
                {
                    *state = Answer::Lost;
                }
                _ => {}
            }
        }
        for entry in self.rooms.table.iter_mut().flatten() {
            if entry.state == State::Sent && lost(entry.dest.node()) {
                entry.state = State::Ending;
                self.rooms.ending = true;
            }
        }
        let waits = |e: &RoomEntry| matches!(e.state, State::Queued(_) | State::Reply { .. });
        let by_it = |e: &RoomEntry| if link == LinkId::NONE { lost(e.source.node()) } else { e.hop == link };
        // An answer that has not left is not for a later process in the place of the one that asked.
        self.rooms.table.iter_mut().flatten().filter(|e| by_it(e)).for_each(|e| e.owed = false);
        self.rooms.drop_if(|e| waits(e) && by_it(e));
    }

    /// Prepares to notify parts that nothing more arrives from a node, nor from those behind it if it is a relay: of messages
    /// granted to those, only what has already arrived remains; an answer that has not left is not sent to a later process there.
    pub(super) fn orphan_rooms(&mut self, node: NodeId) {
        let topology = self.links.topology;
        let is_gone = |source| source == node || topology.relay(source, topology.own()) == Some(node);
        for entry in self.rooms.table.iter_mut().flatten() {
            let state = match entry.state {
                State::Granted => State::Orphaned,
                State::Taken => State::Former,
                _ => continue,
            };
            if is_gone(entry.source.node()) {
                (entry.state, entry.owed) = (state, false);
            }
        }
    }

    /// A part has released its pipe, so messages that have not begun to arrive will not be reassembled.
    pub(super) fn forget_rooms(&mut self, dest: u16) {
        let is_granted = |state| matches!(state, State::Granted | State::Orphaned);
        self.rooms.drop_if(|e| is_granted(e.state) && e.dest.local() == dest);
        self.refuse_queued(0, |entry| entry.dest.local() == dest);
    }

    /// Answers requests that are waiting for space: messages of up to `limit` bytes could get some or, for 0, none needs any.
    fn refuse_queued(&mut self, limit: u64, which: impl Fn(&RoomEntry) -> bool) {
        for i in (0..).take(self.rooms.table.len()) {
            let Some(Some(entry)) = self.rooms.table.get_mut(i as usize) else { continue };
            if matches!(entry.state, State::Queued(_)) && which(entry) {
                entry.state = State::Reply { limit };
                self.queue_room_answer(i);
            }
        }
    }
}
