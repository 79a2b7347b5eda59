//! Sequence numbers and credit of one session of a link.

use super::Payload;
use crate::cdu::{BlockClass, BlockHeader, Malformed};

/// How many blocks beyond the size of a row may be missing ahead of another; a greater gap means that the number is invalid.
pub(in crate::engine) const MAX_MISSING: u64 = 1024;

/// Block counts in both directions, and how many blocks each node may have at the other.
#[derive(Debug, Default)]
pub(in crate::engine) struct Numbers {
    /// Blocks of all classes given to the transport: the next sequence number.
    pub(in crate::engine) sent: u64,
    /// The next sequence number expected.
    pub(in crate::engine) received: u64,
    /// Data blocks submitted to the transport, and how many of them the peer has released.
    pub(in crate::engine) data_sent: u64,
    pub(in crate::engine) data_acked: u64,
    /// Blocks that this node may have unreleased at the peer.
    pub(in crate::engine) window: u32,
    /// Data blocks of the peer that this node has released, and how many of these releases have been reported to the peer.
    pub(in crate::engine) released: u64,
    pub(in crate::engine) released_reported: u64,
    /// The credit last reported to the peer.
    pub(in crate::engine) window_reported: u32,
    /// Data blocks of the peer that have arrived, including unreadable ones once they are known.
    pub(in crate::engine) data_received: u64,
    /// Blocks refused as unreadable since the last readable one.
    pub(in crate::engine) unread: u64,
    /// Data blocks of the peer that went to private pipes, or were refused.
    pub(in crate::engine) delivered: u64,
    /// Control blocks and data blocks now with the transport.
    pub(in crate::engine) control_in_flight: u32,
    pub(in crate::engine) data_in_flight: u32,
    /// Data blocks that had left on a posted link and came back when it failed.
    pub(in crate::engine) returned: u64,
}

/// Blocks missing ahead of one that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Missing {
    pub(in crate::engine) data: u64,
    pub(in crate::engine) control: u64,
    /// Missing blocks of either kind that were not refused as unreadable.
    pub(in crate::engine) unexplained: u64,
}

impl Missing {
    pub(in crate::engine) const NOTHING: Self = Self { data: 0, control: 0, unexplained: 0 };
}

impl Numbers {
    /// Data blocks that have left and that the peer, to this node's knowledge, has not released.
    #[inline]
    pub(in crate::engine) fn outstanding(&self) -> u64 {
        self.data_sent - self.data_acked
    }

    /// After the link has failed: data blocks whose delivery is uncertain.
    pub(in crate::engine) fn in_doubt(&self) -> u64 {
        self.data_sent.saturating_sub(self.data_acked + self.returned)
    }

    /// Notes that a block has left, which carries the peer's credit.
    #[inline]
    pub(in crate::engine) fn on_sent(&mut self, payload: Payload, credit: u32) {
        self.sent += 1;
        if payload.is_data() {
            self.data_sent += 1;
            self.data_in_flight += 1;
        } else {
            self.control_in_flight += 1;
        }
        self.released_reported = self.released;
        self.window_reported = credit;
    }

    /// Notes that the transport has returned a data block. In place, this means that the peer has read it.
    #[inline]
    pub(in crate::engine) fn on_data_complete(&mut self, posted: bool, failed: bool) {
        self.data_acked += u64::from(!posted);
        self.returned += u64::from(failed && posted);
        self.data_in_flight = self.data_in_flight.saturating_sub(1);
    }

    /// Notes that the transport has returned a control block.
    #[inline]
    pub(in crate::engine) fn on_control_complete(&mut self) {
        self.control_in_flight = self.control_in_flight.saturating_sub(1);
    }

    /// Returns the peer its credit for data blocks that are finished and did not enter RM.
    #[inline]
    pub(in crate::engine) fn settle(&mut self, blocks: u64) {
        self.released += blocks;
        self.delivered += blocks;
    }

    /// Compares the numbers of a block with those expected, and takes the credit that it carries. `None` if the block is a
    /// duplicate.
    ///
    /// Missing blocks were refused as unreadable, or lost by a transport that broke its contract. The numbers show how many of
    /// them needed credit; those are settled here.
    ///
    /// # Errors
    /// [`Malformed::Sequence`]: more blocks are missing than the possible maximum, `most`.
    #[inline]
    pub(in crate::engine) fn accept(
        &mut self,
        header: &BlockHeader,
        posted: bool,
        most: u64,
    ) -> Result<Option<Missing>, Malformed> {
        let Some(missing) = header.sequence().checked_sub(self.received) else { return Ok(None) };
        let data = u64::from(header.data.get().wrapping_sub(self.data_received as u32));
        if missing > most || data > missing {
            return Err(Malformed::Sequence);
        }
        let unexplained = missing.saturating_sub(core::mem::take(&mut self.unread));
        self.received = header.sequence() + 1;
        self.data_received += data + u64::from(header.class() != BlockClass::Control);
        self.window = header.window.get();
        if posted {
            self.data_acked = header.released.get().clamp(self.data_acked, self.data_sent);
        }
        self.settle(data);
        Ok(Some(Missing { data, control: missing - data, unexplained }))
    }

    /// Whether to report to the peer that its credit is `credit`, or that blocks of it were released. `idle`: nothing else is
    /// left to do.
    #[inline]
    pub(in crate::engine) fn has_news(&self, credit: u32, posted: bool, idle: bool) -> bool {
        if self.window_reported != credit {
            return true;
        }
        let news = self.released - self.released_reported;
        if !posted || news == 0 {
            return false;
        }
        // A reader may hold half of the blocks while it waits for more. Then even small news matters to the peer once it may be
        // out of credit (less the element reserved for commands).
        let short = self.data_received.saturating_sub(self.released_reported) + 1 >= u64::from(credit);
        news >= u64::from((credit / 2).max(1)) || (idle && short)
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    /// A data block with these numbers, in which the peer reports that it has released `released`, and gives a credit of 4.
    fn header(sequence: u64, data: u32, released: u64) -> BlockHeader {
        let mut header = BlockHeader::new_zeroed();
        header.class = BlockClass::Message as u8;
        header.sequence.set(sequence);
        header.data.set(data);
        header.released.set(released);
        header.window.set(4);
        header
    }

    #[test]
    fn blocks_in_order_leave_nothing_missing() {
        let mut numbers = Numbers::default();
        for i in 0..3 {
            assert_eq!(numbers.accept(&header(i.into(), i, 0), true, 10), Ok(Some(Missing::NOTHING)));
        }
        assert_eq!((numbers.received, numbers.data_received, numbers.window), (3, 3, 4));
        assert_eq!(numbers.accept(&header(1, 1, 0), true, 10), Ok(None), "it was here before");
    }

    #[test]
    fn missing_data_is_settled_and_missing_control_is_told() {
        let mut numbers = Numbers { unread: 2, ..Numbers::default() };
        let missing = Missing { data: 2, control: 1, unexplained: 1 };
        assert_eq!(numbers.accept(&header(3, 2, 0), true, 10), Ok(Some(missing)));
        assert_eq!((numbers.released, numbers.delivered, numbers.unread), (2, 2, 0));
        assert_eq!(numbers.accept(&header(15, 3, 0), true, 10), Err(Malformed::Sequence));
    }

    #[test]
    fn a_peer_cannot_release_more_than_was_sent_nor_take_a_release_back() {
        let mut numbers = Numbers { data_sent: 5, ..Numbers::default() };
        numbers.accept(&header(0, 0, 3), true, 10).expect("the first block");
        assert_eq!(numbers.outstanding(), 2);
        numbers.accept(&header(1, 1, 9), true, 10).expect("the second");
        assert_eq!(numbers.outstanding(), 0);
        numbers.accept(&header(2, 2, 1), true, 10).expect("the third");
        assert_eq!(numbers.outstanding(), 0);
    }

    #[test]
    fn the_peer_learns_of_half_of_its_credit_and_at_rest_of_all_that_it_needs() {
        let mut numbers = Numbers { window_reported: 8, data_received: 3, released: 3, ..Numbers::default() };
        assert!(!numbers.has_news(8, true, true), "five are left to it");
        numbers.data_received = 7;
        assert!(numbers.has_news(8, true, true) && !numbers.has_news(8, true, false));
        numbers.released = 4;
        assert!(numbers.has_news(8, true, false));
        assert!(!numbers.has_news(8, false, true), "in place a block itself says that it was released");
        assert!(numbers.has_news(9, false, false), "other credit is news in any case");
    }
}
