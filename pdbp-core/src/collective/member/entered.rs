//! Calls that something else than messages carries out.

use super::{BARRIER, Member};
use crate::collective::Call;

impl Member<'_> {
    /// Begins a call that was [checked](Call::check) and that notes in memory that members share carry out, unless the group has ended, a member has left,
    /// or there is something to look at first: [`Running::start`](crate::collective::Running::start) then begins it. What it returns says which call it is, and is the
    /// same at all members.
    #[inline]
    pub fn enter(&mut self, call: &Call) -> Option<[u64; 2]> {
        if self.is_waited_for || self.kept > 0 || self.has_anybody_left {
            return None;
        }
        self.begin(call).ok().map(|stamp| stamp.words())
    }

    /// The same of the last call that was begun.
    pub fn signature(&self) -> [u64; 2] {
        self.last[0].unwrap_or_default().words()
    }

    /// Begins a barrier that something else than messages carries out, such as flags in memory that members share. Returns its number; `None` if
    /// it was not begun, since the group has ended or there is something to look at first: [`Running::start`](crate::collective::Running::start) then does
    /// that.
    #[inline]
    pub fn enter_barrier(&mut self) -> Option<u32> {
        if self.is_waited_for || self.kept > 0 {
            return None;
        }
        self.begin(&BARRIER).ok()?;
        Some(self.stats.calls)
    }

    /// All have come to that barrier. So each has taken in all that was sent to it in calls before, and nobody needs to be told.
    #[inline]
    pub fn leave_barrier(&mut self) {
        self.meets = false;
        for peer in self.peers.iter_mut() {
            peer.calls.acknowledged = peer.calls.sent;
            peer.calls.told = peer.calls.taken;
        }
    }

    /// Notes that the last call was carried out by what members read in each other's memory.
    pub fn note_read(&mut self) {
        self.stats.by_reads += 1;
    }

    /// Notes that the last call was carried out by something else than messages.
    pub fn note_switched(&mut self) {
        self.stats.in_switches += 1;
    }
}
