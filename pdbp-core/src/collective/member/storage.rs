//! The memory of a member: its view of the others, and pieces that arrived early.

use core::cmp::Ordering;

use managed::ManagedSlice;

use super::WINDOW;
use crate::collective::Message;
use crate::collective::message::Stamp;

/// Maximum number of pieces kept from another member.
pub(super) const SLOTS: usize = 2 * WINDOW;

/// A piece received early, and the slot that holds it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Early {
    pub(super) slot: usize,
    pub(super) length: usize,
    pub(super) stamp: Stamp,
}

impl Early {
    /// Whether a call with this stamp receives the piece, or the piece has this tag. The taker detects a piece of another call.
    #[inline]
    pub(super) fn is_for(&self, stamp: Stamp) -> bool {
        self.stamp.is_tagged() == stamp.is_tagged()
            && (!stamp.is_tagged() || self.stamp.number() == stamp.number())
    }
}

/// Counts the pieces between this member and another: either those of calls, or the tagged ones.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flow {
    /// Pieces sent, and how many of them the other member has acknowledged.
    pub(super) sent: u32,
    pub(super) acknowledged: u32,
    /// Pieces taken, and how many of them the other member has been told of, or knows of from a call that all arrived at.
    pub(super) taken: u32,
    pub(super) reported: u32,
    /// The calls of the last piece sent and of the last one taken. Unused for tagged pieces.
    last_sent: Last,
    last_taken: Last,
}

/// The call of a piece, and how many pieces had been sent or taken before that call.
#[derive(Clone, Copy, Debug, Default)]
struct Last {
    call: u64,
    before: u32,
}

impl Last {
    /// Returns how many of `all` pieces belong to calls before `call`.
    fn before(self, call: u64, all: u32) -> Option<u32> {
        match call.cmp(&self.call) {
            Ordering::Less => None,
            Ordering::Equal => Some(self.before),
            Ordering::Greater => Some(all),
        }
    }
}

impl Flow {
    /// Notes that a piece of a call is about to be sent. `synchronized` is the last call that all members have arrived at.
    #[inline]
    pub(super) fn sends(&mut self, call: u64, synchronized: u64) {
        if self.last_sent.call != call {
            self.on_synchronized(synchronized);
            self.last_sent = Last { call, before: self.sent };
        }
    }

    /// Notes that a piece of a call has been received.
    #[inline]
    pub(super) fn takes(&mut self, call: u64, synchronized: u64) {
        if self.last_taken.call != call {
            self.on_synchronized(synchronized);
            self.last_taken = Last { call, before: self.taken };
        }
    }

    /// Records that all members have arrived at this call, and know that of each other: they have received all pieces of earlier
    /// calls.
    pub(super) fn on_synchronized(&mut self, call: u64) {
        if let Some(taken) = self.last_sent.before(call, self.sent) {
            self.acknowledge(taken);
        }
        if let Some(taken) = self.last_taken.before(call, self.taken)
            && taken.wrapping_sub(self.reported) as i32 > 0
        {
            self.reported = taken;
        }
    }

    /// Whether an acknowledgement is due. In calls of one piece it is delayed, because a later call may be one that all arrive at,
    /// which makes it unnecessary. `comes`: this is such a call.
    pub(super) fn is_acknowledgement_due(&self, comes: bool) -> bool {
        let most = WINDOW as u32;
        let unacknowledged = self.taken.wrapping_sub(self.reported);
        match self.taken.wrapping_sub(self.last_taken.before) {
            0..2 => unacknowledged >= if comes { most } else { most - 1 },
            _ => unacknowledged >= most / 2,
        }
    }

    /// Whether nothing more may be sent until the other member has taken some pieces.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.sent.wrapping_sub(self.acknowledged) >= WINDOW as u32
    }

    /// Records that the other member acknowledges `taken` pieces. An acknowledgement from before a barrier may be read after it.
    #[inline]
    pub(super) fn acknowledge(&mut self, taken: u32) {
        if taken.wrapping_sub(self.acknowledged) as i32 > 0 {
            self.acknowledged = taken;
        }
    }
}

/// A piece that was kept.
pub(super) struct EarlyPiece<'d>(pub(super) &'d [u8]);

impl Message for EarlyPiece<'_> {
    fn header(&self) -> &[u8] {
        &[]
    }

    fn data_length(&self) -> usize {
        self.0.len()
    }

    fn read(&mut self, into: &mut [u8]) {
        if into.len() == self.0.len() {
            into.copy_from_slice(self.0);
        }
    }

    fn data(&mut self) -> &[u8] {
        self.0
    }
}

/// A member's view of another.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer {
    pub(super) calls: Flow,
    pub(super) tagged: Flow,
    pub(super) early: heapless::Vec<Early, SLOTS>,
    /// The call in which the other member reported that it is waiting.
    pub(super) waits: Option<Stamp>,
    pub(super) has_left: bool,
    pub(super) fault_reported: bool,
    pub(super) leave_reported: bool,
}

/// The memory of a [`Member`](super::Member); see `allocate`.
pub struct MemberStorage<'m> {
    /// One per member.
    pub(crate) peers: ManagedSlice<'m, Peer>,
    /// [`early_bytes`](Self::early_bytes) long. Memory that is not needed is never touched.
    pub(crate) early: ManagedSlice<'m, u8>,
}

impl MemberStorage<'_> {
    /// Returns the bytes that a member of a group needs for early messages.
    pub const fn early_bytes(members: usize, piece: usize) -> usize {
        members.saturating_mul(SLOTS).saturating_mul(piece)
    }
}

#[cfg(feature = "alloc")]
impl MemberStorage<'static> {
    /// Allocates the memory on the heap.
    pub fn allocate(members: usize, piece: usize) -> Self {
        let peers = (0..members).map(|_| Peer::default()).collect::<alloc::vec::Vec<_>>();
        Self { peers: peers.into(), early: alloc::vec![0; Self::early_bytes(members, piece)].into() }
    }
}

impl Peer {
    #[inline]
    pub(super) fn flow(&mut self, stamp: Stamp) -> &mut Flow {
        if stamp.is_tagged() { &mut self.tagged } else { &mut self.calls }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_stays_shut_however_many_calls_ago_all_have_met() {
        for call in [2, 1 << 31, (1 << 31) + 2, 1 << 32] {
            let mut flow = Flow::default();
            flow.sends(call, 1);
            flow.sent = WINDOW as u32;
            flow.on_synchronized(1);
            assert!(flow.is_full(), "call {call}");
            flow.on_synchronized(call + 1);
            assert!(!flow.is_full(), "call {call}");
        }
    }
}
