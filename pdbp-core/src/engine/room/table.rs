//! The space that a node has reserved, the messages it is for, and the answers that the node owes.

use managed::ManagedSlice;

use crate::id::PartId;
use crate::mesp::Control;
use crate::routing::LinkId;

/// A message of another part that needs space, or an answer still to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoomEntry {
    /// The sending part, the destination part, and the message's number at the sender.
    pub(super) source: PartId,
    pub(super) dest: PartId,
    pub(super) number: u32,
    pub(super) bytes: u64,
    pub(super) state: State,
    /// Whether the sender is to be notified over `hop`, the link by which it asked. Between two nodes connected by relays, each
    /// direction has its own relay, and one of them may be down.
    pub(super) owed: bool,
    pub(super) hop: LinkId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Its position in the queue.
    Queued(u32),
    Granted,
    /// Granted before its sender became unreachable. Freed once everything that had arrived from there has been read.
    Orphaned,
    /// It has begun to arrive.
    Taken,
    /// The same, before its sender became unreachable. A later process in the sender's place may use the number.
    Former,
    /// A message of this node that was given up; the receiver is still to be notified.
    Ending,
    /// A message of this node sent through a relay. If the link to the relay fails with part of the message, the receiver does
    /// not learn of it.
    Sent,
    /// The answer of the destination's node, to be sent and then forgotten.
    Reply {
        limit: u64,
    },
}

impl RoomEntry {
    /// A message of this node.
    pub(super) fn of_sender(source: PartId, dest: PartId, number: u32, state: State) -> Self {
        Self { source, dest, number, bytes: 0, state, owed: false, hop: LinkId::NONE }
    }
}

impl State {
    /// The limit reported to the sender: 0 if there is space for its message.
    pub(super) fn limit(self) -> u64 {
        if let Self::Reply { limit } = self { limit } else { 0 }
    }
}

/// Space that a node has reserved for messages in segments.
pub(in crate::engine) struct Rooms<'a> {
    pub(super) table: ManagedSlice<'a, Option<RoomEntry>>,
    pub(super) limit: u64,
    /// The size of the message buffers if they are all of one size, otherwise 0. Each message reserves that much, and none is
    /// longer.
    pub(super) each: u64,
    pub(super) reserved: u64,
    /// Number of requests so far.
    pub(super) requests: u32,
    /// Whether something may be granted.
    pub(super) dirty: bool,
    /// Whether receivers are to be notified of messages that were given up.
    pub(super) ending: bool,
}

impl<'a> Rooms<'a> {
    pub(in crate::engine) fn new(mut table: ManagedSlice<'a, Option<RoomEntry>>) -> Self {
        table.iter_mut().for_each(|entry| *entry = None);
        Self { table, limit: u64::MAX, each: 0, reserved: 0, requests: 0, dirty: false, ending: false }
    }

    /// Whether [`Engine::advance_rooms`] may have something to do.
    #[inline]
    pub(in crate::engine) fn have_work(&self) -> bool {
        self.dirty || self.ending
    }

    /// Finds such a message with that number.
    pub(super) fn find(
        &mut self,
        source: PartId,
        number: u32,
        which: impl Fn(&RoomEntry) -> bool,
    ) -> Option<(u32, &mut RoomEntry)> {
        let mut entries = (0..).zip(self.table.iter_mut());
        entries.find_map(|(i, entry)| {
            let entry = entry.as_mut()?;
            ((entry.source, entry.number) == (source, number) && which(entry)).then_some((i, entry))
        })
    }

    pub(super) fn add(&mut self, entry: RoomEntry) -> Option<u32> {
        let (i, slot) = (0..).zip(self.table.iter_mut()).find(|(_, slot)| slot.is_none())?;
        *slot = Some(entry);
        Some(i)
    }

    /// Whether half of the table is free, so that optional entries may be kept.
    pub(super) fn is_half_free(&self) -> bool {
        2 * self.table.iter().flatten().count() < self.table.len()
    }

    /// Drops messages, and frees the space reserved for them.
    pub(super) fn drop_if(&mut self, which: impl Fn(&RoomEntry) -> bool) {
        for slot in self.table.iter_mut() {
            let Some(entry) = slot.take_if(|entry| which(entry)) else { continue };
            if matches!(entry.state, State::Granted | State::Orphaned | State::Taken | State::Former) {
                self.reserved -= entry.bytes;
            }
            self.dirty = true;
        }
    }

    /// Grants the oldest request if there is space for it. Later ones wait behind it, so that a long message gets its turn.
    pub(super) fn grant_next(&mut self) -> Option<u32> {
        let requests = self.requests;
        let queued = (0..).zip(self.table.iter_mut()).filter_map(|(i, entry)| match entry.as_mut()?.state {
            State::Queued(number) => Some((requests.wrapping_sub(number), i, entry)),
            _ => None,
        });
        let (_, i, entry) = queued.max_by_key(|(age, ..)| *age)?;
        let entry = entry.as_mut().filter(|entry| entry.bytes <= self.limit.saturating_sub(self.reserved))?;
        entry.state = State::Granted;
        self.reserved += entry.bytes;
        Some(i)
    }

    /// Packs answers to senders behind a link. Returns `false` if there is not enough room for all of them.
    pub(in crate::engine) fn answer(&mut self, to: LinkId, mut pack: impl FnMut(&Control) -> bool) -> bool {
        for slot in self.table.iter_mut() {
            let Some(entry) = slot.as_mut().filter(|entry| entry.owed && entry.hop == to) else { continue };
            let RoomEntry { source: to, number, dest, .. } = *entry;
            if !pack(&Control::Room { to, number, dest, limit: entry.state.limit() }) {
                return false;
            }
            entry.owed = false;
            if let State::Reply { .. } = entry.state {
                *slot = None;
            }
        }
        true
    }
}
