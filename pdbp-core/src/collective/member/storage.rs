//! The memory of a member: what it knows of the others, and what has come too early.

use managed::ManagedSlice;

use super::WINDOW;
use crate::collective::Message;
use crate::collective::message::Stamp;

/// Pieces that a member may have to keep of another one.
pub(super) const SLOTS: usize = 2 * WINDOW;

/// A piece taken too early, and where it lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Early {
    pub(super) slot: usize,
    pub(super) length: usize,
    pub(super) stamp: Stamp,
}

/// The pieces of calls, or the tagged ones, between this member and another.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flow {
    /// Pieces sent, and those of them that the other has taken, as far as it has said.
    pub(super) sent: u32,
    pub(super) acknowledged: u32,
    /// Pieces taken, and how many of them the other has been told of.
    pub(super) taken: u32,
    pub(super) told: u32,
}

impl Flow {
    /// Whether the other should be told what was taken.
    pub(super) fn owes(&self) -> bool {
        self.taken.wrapping_sub(self.told) >= WINDOW as u32 / 2
    }

    /// The other says how many it has taken. What it said before a barrier may be read after it.
    #[inline]
    pub(super) fn acknowledge(&mut self, taken: u32) {
        if taken.wrapping_sub(self.acknowledged) as i32 > 0 {
            self.acknowledged = taken;
        }
    }
}

/// A piece that was kept.
pub(super) struct Kept<'d>(pub(super) &'d [u8]);

impl Message for Kept<'_> {
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

/// What a member knows of another one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer {
    pub(super) calls: Flow,
    pub(super) tagged: Flow,
    pub(super) early: heapless::Vec<Early, SLOTS>,
    /// The call in which it said that it waits.
    pub(super) waits: Option<Stamp>,
    pub(super) has_left: bool,
    pub(super) knows_fault: bool,
    pub(super) knows_leave: bool,
}

/// The memory of a [`Member`](super::Member); see `allocate`.
pub struct MemberStorage<'m> {
    /// One per member.
    pub(crate) peers: ManagedSlice<'m, Peer>,
    /// [`early_bytes`](Self::early_bytes). What nobody is late for is never touched.
    pub(crate) early: ManagedSlice<'m, u8>,
}

impl MemberStorage<'_> {
    /// How much memory a member of a group needs for what comes too early.
    pub const fn early_bytes(members: usize, piece: usize) -> usize {
        members.saturating_mul(SLOTS).saturating_mul(piece)
    }
}

#[cfg(feature = "alloc")]
impl MemberStorage<'static> {
    /// On the heap.
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
