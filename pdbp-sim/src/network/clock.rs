//! A node's clock, which may be off and may drift.

/// Time as seen by a node. It never goes back.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    /// Nanoseconds by which it is ahead.
    offset: i64,
    /// Parts per million by which it is fast.
    drift: i32,
    last: u64,
}

/// What a fresh node's clock shows at time 0, so that earlier times exist.
const ORIGIN: i128 = 1;

impl Clock {
    /// Sets its error from now on.
    pub(super) fn skew(&mut self, offset: i64, drift: i32) {
        (self.offset, self.drift) = (offset, drift.max(-999_999));
    }

    /// Returns what it shows at `now`.
    pub(super) fn local(&mut self, now: u64) -> u64 {
        let drifted = i128::from(now) + i128::from(now) * i128::from(self.drift) / 1_000_000;
        let shown = (drifted + i128::from(self.offset) + ORIGIN).clamp(0, i128::from(u64::MAX));
        self.last = self.last.max(shown as u64);
        self.last
    }

    /// Returns when it will show `local`.
    pub(super) fn global(&self, local: u64) -> u64 {
        let drifted = i128::from(local) - i128::from(self.offset) - ORIGIN;
        let rate = 1_000_000 + i128::from(self.drift);
        (drifted * 1_000_000 / rate + 1).clamp(0, i128::from(u64::MAX)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_back_stands_still_and_shows_what_was_asked_for_in_time() {
        let mut clock = Clock::default();
        assert_eq!(clock.local(1_000_000), 1_000_001);
        clock.skew(-500_000, 100);
        assert_eq!(clock.local(1_000_001), 1_000_001);
        for target in [2_000_000, 77_777_777_777] {
            let at = clock.global(target);
            assert!(clock.local(at) >= target, "{target} is not shown at {at}");
        }
    }
}
