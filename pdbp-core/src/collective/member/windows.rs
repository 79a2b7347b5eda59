//! Windows, which bound how far members may be ahead of each other.

use zerocopy::IntoBytes;

use super::Member;
use crate::collective::message::{Header, Stamp, What};
use crate::collective::{Carrier, Sent};

impl Member<'_> {
    /// Records that a piece from a member has been used.
    #[inline]
    pub(in crate::collective) fn note_taken(&mut self, from: usize, stamp: Stamp) {
        if let Some(peer) = self.peers.get_mut(from) {
            let flow = peer.flow(stamp);
            if !stamp.is_tagged() {
                flow.takes(stamp.number(), self.met);
            }
            flow.taken = flow.taken.wrapping_add(1);
            self.owes |= flow.owes(self.meets);
        }
        self.stats.received += 1;
    }

    /// Whether the window towards a member allows another piece now.
    #[inline]
    pub(in crate::collective) fn may_send(&mut self, to: usize, stamp: Stamp) -> bool {
        let met = self.met;
        self.peers.get_mut(to).is_some_and(|peer| {
            let flow = peer.flow(stamp);
            if !flow.is_full() {
                return true;
            }
            if !stamp.is_tagged() {
                flow.meet(met);
            }
            !flow.is_full()
        })
    }

    /// Records that this member has completed the last call.
    #[inline]
    pub(in crate::collective) fn finish(&mut self) {
        if core::mem::take(&mut self.meets) {
            self.met = self.stats.calls;
        }
    }

    /// Sends the acknowledgements that are due: to members from which at least half a window was taken, and which were sent no data
    /// that would have carried the acknowledgement. Returns whether any was sent.
    #[inline]
    pub(in crate::collective) fn tell_taken(&mut self, carrier: &mut impl Carrier) -> bool {
        self.owes && self.tell_those_it_owes(carrier)
    }

    fn tell_those_it_owes(&mut self, carrier: &mut impl Carrier) -> bool {
        self.owes = false;
        let mut sent = false;
        for (rank, peer) in self.peers.iter_mut().enumerate() {
            peer.calls.meet(self.met);
            let flows = [(&mut peer.calls, Stamp::default()), (&mut peer.tagged, Stamp::tagged())];
            for (flow, stamp) in flows.into_iter().filter(|(flow, _)| flow.owes(self.meets)) {
                let header = Header::new(What::Taken, self.rank, flow.taken, stamp);
                match carrier.try_send(rank, header.as_bytes(), &[]) {
                    Sent::Done => {
                        (flow.told, sent) = (flow.taken, true);
                        self.stats.control += 1;
                    }
                    Sent::NoRoom => self.owes = true,
                    // A member that needs this one will notice.
                    Sent::Gone => flow.told = flow.taken,
                }
            }
        }
        sent
    }
}
