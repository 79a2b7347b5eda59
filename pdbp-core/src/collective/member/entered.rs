//! Calls that are carried out by other means than messages.

use super::{BARRIER, Member};
use crate::collective::Call;

impl Member<'_> {
    /// Begins a [checked](Call::check) call that is carried out by notes in shared memory, unless the group has ended, a member has
    /// left, or there are messages to read first; then [`Running::start`](crate::collective::Running::start) begins it. Returns the
    /// call's signature, the same at all members.
    #[inline]
    pub fn enter(&mut self, call: &Call) -> Option<[u64; 2]> {
        if self.is_waited_for || self.kept > 0 || self.has_anybody_left {
            return None;
        }
        self.begin(call).ok().map(|stamp| stamp.words())
    }

    /// The signature of the last call begun.
    pub fn signature(&self) -> [u64; 2] {
        self.last[0].unwrap_or_default().words()
    }

    /// Begins a barrier that is carried out by other means than messages, such as flags in shared memory. Returns its number;
    /// `None` if it was not begun, since the group has ended or there are messages to read first: then
    /// [`Running::start`](crate::collective::Running::start) does it.
    #[inline]
    pub fn enter_barrier(&mut self) -> Option<u32> {
        if self.is_waited_for || self.kept > 0 {
            return None;
        }
        self.begin(&BARRIER).ok()?;
        Some(self.stats.calls)
    }

    /// All have arrived at that barrier. So each has received everything sent to it in earlier calls, and nobody needs
    /// acknowledgements.
    #[inline]
    pub fn leave_barrier(&mut self) {
        self.meets = false;
        for peer in self.peers.iter_mut() {
            peer.calls.acknowledged = peer.calls.sent;
            peer.calls.told = peer.calls.taken;
        }
    }

    /// Counts the last call as carried out by reads of other members' memory.
    pub fn note_read(&mut self) {
        self.stats.by_reads += 1;
    }

    /// Counts the last call as carried out by other means than messages.
    pub fn note_switched(&mut self) {
        self.stats.in_switches += 1;
    }
}
