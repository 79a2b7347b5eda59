//! Calls performed by other means than messages.

use super::{BARRIER, Member};
use crate::collective::Call;

impl Member<'_> {
    /// Begins a [checked](Call::check) call that is performed through notes in shared memory. Returns the call's signature, which
    /// is the same at all members. Returns `None` if the group has ended, a member has left, or there are messages to read first;
    /// then begin the call with [`Running::start`](crate::collective::Running::start).
    #[inline]
    pub fn enter(&mut self, call: &Call) -> Option<[u64; 2]> {
        if self.is_waited_for || self.early_count > 0 || self.has_anybody_left {
            return None;
        }
        self.begin(call).ok().map(|stamp| stamp.to_words())
    }

    /// Returns the signature of the last call begun.
    pub fn signature(&self) -> [u64; 2] {
        self.last[0].unwrap_or_default().to_words()
    }

    /// Begins a barrier that is performed by other means than messages, such as flags in shared memory. Returns its number, or
    /// `None` if the group has ended or there are messages to read first; then begin it with
    /// [`Running::start`](crate::collective::Running::start).
    #[inline]
    pub fn enter_barrier(&mut self) -> Option<u32> {
        if self.is_waited_for || self.early_count > 0 {
            return None;
        }
        self.begin(&BARRIER).ok()?;
        Some(self.stats.calls)
    }

    /// Completes that barrier: all members have arrived at it. Each has therefore received everything sent to it in earlier calls,
    /// so no acknowledgements are needed.
    #[inline]
    pub fn leave_barrier(&mut self) {
        self.is_synchronizing = false;
        for peer in self.peers.iter_mut() {
            peer.calls.acknowledged = peer.calls.sent;
            peer.calls.reported = peer.calls.taken;
        }
    }

    /// Counts the last call as performed by reading other members' memory.
    pub fn count_read(&mut self) {
        self.stats.by_reads += 1;
    }

    /// Counts the last call as performed by other means than messages.
    pub fn count_switched(&mut self) {
        self.stats.in_switches += 1;
    }
}
