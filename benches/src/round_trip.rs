//! Both ends of a pair on one thread: for timing and counting the work of a packet without any waiting.

use crate::fabric::{Endpoint, Fabric};
use crate::scenario::{Pattern, Scenario};
use crate::source::{Source, Tally};

/// Two connected nodes of a fabric; node 0 sends, node 1 receives.
pub struct RoundTrip<F: Fabric> {
    sender: F::Endpoint,
    receiver: F::Endpoint,
    source: Source,
    packet: usize,
    at: usize,
}

impl<F: Fabric> RoundTrip<F> {
    /// Connects two nodes for packets of `packet` bytes.
    ///
    /// # Panics
    ///
    /// When the fabric does not give two seats.
    pub fn new(packet: usize) -> Self {
        let seats = F::connect(&Scenario::new(Pattern::OneToMany, 2, packet));
        let Ok([sender, receiver]) = <[F::Seat; 2]>::try_from(seats) else {
            panic!("a scenario of two nodes has two seats")
        };
        Self {
            sender: sender.into(),
            receiver: receiver.into(),
            source: Source::new(0, packet),
            packet,
            at: 0,
        }
    }

    /// Sends `count` packets, as many as fit the fabric's buffers, then receives and reads them all.
    ///
    /// # Panics
    ///
    /// When a packet is refused or does not arrive.
    #[inline(never)]
    pub fn packets(&mut self, count: u64) -> u64 {
        let (packet, bytes) = (self.packet, self.source.bytes());
        for _ in 0..count {
            assert!(
                self.sender.try_send(1, &bytes[self.at..self.at + packet]),
                "the buffers hold {count} packets"
            );
            self.at = if self.at + 2 * packet <= bytes.len() { self.at + packet } else { 0 };
        }
        self.sender.flush();
        let mut tally = Tally::default();
        while tally.packets < count {
            let got = self.receiver.receive(|bytes| tally.add(bytes));
            assert!(got > 0, "what was sent and flushed can be received");
        }
        tally.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::{Boxed, RtrbGathering, StdMpsc};

    #[test]
    fn what_is_sent_is_received_at_once() {
        let expected = Source::new(0, 64).expected_sum(16);
        assert_eq!(RoundTrip::<RtrbGathering>::new(64).packets(16), expected);
        assert_eq!(RoundTrip::<Boxed<StdMpsc>>::new(64).packets(16), expected);
    }
}
