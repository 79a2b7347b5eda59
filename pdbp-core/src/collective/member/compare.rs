//! Detects members that make different calls.

use super::{BARRIER, Member};
use crate::collective::Fault;
use crate::collective::message::Stamp;

impl Member<'_> {
    /// Compares another member's call with this one's.
    #[inline]
    pub(in crate::collective) fn compare(
        &mut self,
        rank: usize,
        theirs: Stamp,
        ours: Stamp,
    ) -> Result<(), Fault> {
        if theirs == ours { Ok(()) } else { Err(self.differ(rank, theirs, ours)) }
    }

    #[cold]
    fn differ(&mut self, rank: usize, theirs: Stamp, ours: Stamp) -> Fault {
        let calls = theirs.call().zip(ours.call());
        self.fail(calls.map_or(Fault::Garbled { rank }, |(their_call, our_call)| Fault::Mismatch {
            rank,
            number: theirs.number(),
            theirs: their_call,
            own_number: ours.number(),
            ours: our_call,
        }))
    }

    /// Fails the group because a member has arrived at the barrier with this number while this one is at another barrier: one of
    /// them made a different call before.
    pub fn barrier_mismatch(&mut self, rank: usize, number: u32) -> Fault {
        let ours = self.last[0].unwrap_or_default();
        self.differ(rank, Stamp::new(number, &BARRIER), ours)
    }

    /// Fails the group because a member has shown, by other means than messages, that it made a different call.
    pub fn call_mismatch(&mut self, rank: usize, theirs: [u64; 2]) -> Fault {
        let theirs = Stamp::from_words(theirs);
        let mut own = self.last.iter().flatten();
        let ours = own.find(|ours| ours.number() == theirs.number()).or(self.last[0].as_ref());
        let ours = ours.copied().unwrap_or_default();
        self.differ(rank, theirs, ours)
    }

    /// Looks for members that made a different call: one that waits in this call or the one before, or one whose unused data this
    /// member has kept. Everything received from the awaited member must have been used or kept.
    #[inline]
    pub(in crate::collective) fn check_others(
        &mut self,
        awaited: Option<(usize, Stamp)>,
    ) -> Result<(), Fault> {
        if !self.is_early_checked {
            self.check_early()?;
        }
        if self.is_waited_for { self.compare_with_waiting(awaited) } else { Ok(()) }
    }

    /// Whether a piece belongs to a call that this member has completed, having received everything for it.
    pub(super) fn is_over(&self, stamp: Stamp) -> bool {
        !stamp.is_tagged() && (self.stats.calls.wrapping_sub(stamp.number()) as i32) > 0
    }

    fn check_early(&mut self) -> Result<(), Fault> {
        self.is_early_checked = true;
        let pieces = self.peers.iter().enumerate();
        let mut pieces =
            pieces.flat_map(|(rank, peer)| peer.early.iter().map(move |early| (rank, early.stamp)));
        match pieces.find(|(_, stamp)| self.is_over(*stamp)).zip(self.last[0]) {
            Some(((rank, stamp), ours)) => self.compare(rank, stamp, ours),
            None => Ok(()),
        }
    }

    fn compare_with_waiting(&mut self, awaited: Option<(usize, Stamp)>) -> Result<(), Fault> {
        // Messages are ordered: a member that waits in a later call will send nothing more for this one.
        if let Some((from, ours)) = awaited.filter(|(_, ours)| !ours.is_tagged())
            && let Some(theirs) = self.peers.get(from).and_then(|peer| peer.waits)
            && theirs.number().wrapping_sub(ours.number()) as i32 > 0
        {
            return self.compare(from, theirs, ours);
        }
        self.is_waited_for = false;
        let calls = self.stats.calls;
        let found = self.peers.iter_mut().enumerate().find_map(|(rank, peer)| {
            let theirs = peer.waits?;
            if theirs.number().wrapping_sub(calls) as i32 > 0 {
                // It waits in a call that this member has yet to make.
                self.is_waited_for = true;
                return None;
            }
            // The next time it waits, it reports that again.
            peer.waits = None;
            let ours = self.last.iter().flatten().find(|ours| ours.number() == theirs.number())?;
            (theirs != *ours).then_some((rank, theirs, *ours))
        });
        found.map_or(Ok(()), |(rank, theirs, ours)| self.compare(rank, theirs, ours))
    }
}
