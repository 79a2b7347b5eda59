//! What a part has sent, remembered for answers that arrive late.

/// Which of a part's last 64 messages in segments were sent completely.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::engine) struct SentMessages {
    /// The number of the most recent one, which has the lowest bit.
    last: u32,
    bits: u64,
}

impl SentMessages {
    /// Records that the part has sent a message completely.
    pub(super) fn record(&mut self, number: u32) {
        self.bits = self.bits.checked_shl(number.wrapping_sub(self.last)).unwrap_or(0) | 1;
        self.last = number;
    }

    /// Whether the message is one of these.
    pub(super) fn contains(&self, number: u32) -> bool {
        self.bits.checked_shr(self.last.wrapping_sub(number)).unwrap_or(0) & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_known_and_those_given_up_between_them_are_not_among_them() {
        for first in [1, u32::MAX - 1] {
            let at = |ahead: u32| first.wrapping_add(ahead);
            let mut sent = SentMessages::default();
            assert!(!sent.contains(first), "nothing was sent");
            [0, 1, 3].into_iter().for_each(|ahead| sent.record(at(ahead)));
            let known = [0, 1, 2, 3, 4].map(|ahead| sent.contains(at(ahead)));
            assert_eq!(known, [true, true, false, true, false]);
            sent.record(at(64));
            assert_eq!([0, 1, 3, 64].map(|ahead| sent.contains(at(ahead))), [false, true, true, true]);
            // A different part in the slot, which counts from the start.
            sent.record(at(0));
            assert_eq!([0, 1, 64].map(|ahead| sent.contains(at(ahead))), [true, false, false]);
        }
    }
}
