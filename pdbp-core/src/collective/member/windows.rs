//! Windows, which bound how far members may be ahead of each other.

use zerocopy::IntoBytes;

use super::Member;
use crate::collective::message::{Header, MessageKind, Stamp};
use crate::collective::{Carrier, Sent};

impl Member<'_> {
    /// Records that a piece from a member has been used.
    #[inline]
    pub(in crate::collective) fn record_taken(&mut self, from: usize, stamp: Stamp) {
        if let Some(peer) = self.peers.get_mut(from) {
            let flow = peer.flow(stamp);
            if !stamp.is_tagged() {
                flow.takes(self.calls, self.synchronized);
            }
            flow.taken = flow.taken.wrapping_add(1);
            self.acknowledgements_due |= flow.is_acknowledgement_due(self.is_synchronizing);
        }
        self.stats.received += 1;
    }

    /// Whether the window towards a member allows another piece now.
    #[inline]
    pub(in crate::collective) fn may_send(&mut self, to: usize, stamp: Stamp) -> bool {
        let synchronized = self.synchronized;
        self.peers.get_mut(to).is_some_and(|peer| {
            let flow = peer.flow(stamp);
            if !flow.is_full() {
                return true;
            }
            if !stamp.is_tagged() {
                flow.on_synchronized(synchronized);
            }
            !flow.is_full()
        })
    }

    /// Records that this member has completed the last call.
    #[inline]
    pub(in crate::collective) fn finish(&mut self) {
        if core::mem::take(&mut self.is_synchronizing) {
            self.synchronized = self.calls;
        }
    }

    /// Sends the acknowledgements that are due: to members from which at least half a window was taken, and which were sent no data
    /// that would have carried the acknowledgement. Returns whether any was sent.
    #[inline]
    pub(in crate::collective) fn acknowledge_due(&mut self, carrier: &mut impl Carrier) -> bool {
        self.acknowledgements_due && self.send_acknowledgements(carrier)
    }

    fn send_acknowledgements(&mut self, carrier: &mut impl Carrier) -> bool {
        self.acknowledgements_due = false;
        let mut sent = false;
        for (rank, peer) in self.peers.iter_mut().enumerate() {
            peer.calls.on_synchronized(self.synchronized);
            let flows = [(&mut peer.calls, Stamp::default()), (&mut peer.tagged, Stamp::tagged())];
            for (flow, stamp) in
                flows.into_iter().filter(|(flow, _)| flow.is_acknowledgement_due(self.is_synchronizing))
            {
                let header = Header::new(MessageKind::Taken, self.rank, flow.taken, stamp);
                match carrier.try_send(rank, header.as_bytes(), &[]) {
                    Sent::Done => {
                        (flow.reported, sent) = (flow.taken, true);
                        self.stats.control += 1;
                    }
                    Sent::NoRoom => self.acknowledgements_due = true,
                    // A member that needs this one will notice.
                    Sent::Gone => flow.reported = flow.taken,
                }
            }
        }
        sent
    }
}
