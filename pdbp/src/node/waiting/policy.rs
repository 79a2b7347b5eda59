//! How long a thread polls before it sleeps, learned from earlier waits. Contains no clock and no thread: times are arguments,
//! counted from an arbitrary origin.

use std::time::Duration;

/// A thread polls at least this long: part of what it costs to sleep and be woken.
const SHORTEST: Duration = Duration::from_micros(50);
/// And at most this long: several times what it takes to wake a thread, so that one end of a slow exchange stays awake and makes it
/// fast again.
const LONGEST: Duration = Duration::from_micros(400);
/// A yield that takes this long has given the processor to a program that computes.
pub(super) const LONG_YIELD: Duration = Duration::from_micros(100);
/// How long threads then stop yielding, at first and at most. Each new try costs a time slice.
const FIRST_HOLD: Duration = Duration::from_millis(1);
const LONGEST_HOLD: Duration = Duration::from_millis(128);

/// A thread that does not yield polls no longer than this. Less than [`BRIEFEST`] is not worth reading the clock.
const LONGEST_UNYIELDING: Duration = Duration::from_micros(50);
const BRIEFEST: Duration = Duration::from_micros(1);

/// What else uses the processors that threads of a node wait on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Processors {
    /// Nothing for long: a waiting thread yields between its polls and gets its processor back at once.
    Free,
    /// Other programs that compute: a waiting thread does not yield.
    Contended,
}

/// What the threads of a node have learned about waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    /// How long a thread polls on free processors.
    pub(super) free: Duration,
    /// How long on contended ones.
    pub(super) contended: Duration,
    /// Until when they count as contended.
    pub(super) until: Duration,
    /// How long they counted, or count, as contended after the last long yield.
    pub(super) hold: Duration,
}

impl Policy {
    pub(super) const NEW: Self =
        Self { free: SHORTEST, contended: LONGEST_UNYIELDING, until: Duration::ZERO, hold: Duration::ZERO };

    /// What a thread that begins to wait now must expect.
    pub(super) fn processors_at(&self, now: Duration) -> Processors {
        if now < self.until { Processors::Contended } else { Processors::Free }
    }

    /// How long such a thread polls.
    pub(super) fn polling(&self, processors: Processors) -> Duration {
        match processors {
            Processors::Free => self.free,
            Processors::Contended => self.contended,
        }
    }

    /// Learns from a thread that polled in vain and then slept this long until something arrived.
    pub(super) fn slept(&mut self, processors: Processors, slept: Duration) {
        match processors {
            // The thread should have polled on. Two ends that sleep for each message keep each other asleep, since neither is woken
            // before the other has polled in vain.
            Processors::Free if slept <= LONGEST => self.free = (self.free * 2).min(LONGEST),
            Processors::Free => self.free = (self.free / 2).max(SHORTEST),
            // The message came as soon as the thread slept: the sender needed this processor.
            Processors::Contended if slept < LONG_YIELD => {
                self.contended =
                    Some(self.contended / 2).filter(|half| *half >= BRIEFEST).unwrap_or_default();
            }
            // The sender had to wait for its time slice on another processor, where it answers quickly while it has one.
            Processors::Contended => {
                self.contended = (self.contended * 2).clamp(BRIEFEST, LONGEST_UNYIELDING);
            }
        }
    }

    /// Learns from a thread that got its processor back now, `took` after it yielded. If that was long, other programs compute on
    /// it: a thread that yields to them waits for the end of their time slice, while one that sleeps runs soon after it is woken.
    pub(super) fn yielded(&mut self, now: Duration, took: Duration) {
        if took < LONG_YIELD {
            return;
        }
        let soon = now.saturating_sub(took) <= self.until + self.hold;
        self.hold = if soon { (self.hold * 2).clamp(FIRST_HOLD, LONGEST_HOLD) } else { FIRST_HOLD };
        self.until = now + self.hold;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    /// Two ends in a ping-pong exchange. Each hop takes 1 us if the other end still polls, and otherwise the time to wake it.
    /// Returns how many of the last hundred hops found the other end asleep.
    fn sleeps_of_an_exchange(wake_up: Duration) -> usize {
        let mut ends = [Policy::NEW; 2];
        let mut sleeps = 0;
        // How long the receiving end has waited when the message leaves: as long as the previous hop took. Both slept.
        let mut waited = wake_up;
        for hop in 0..1000 {
            let end = &mut ends[hop % 2];
            let polling = end.polling(Processors::Free);
            let took = if waited <= polling { us(1) } else { wake_up };
            if waited > polling {
                end.slept(Processors::Free, waited - polling);
                sleeps += usize::from(hop >= 900);
            }
            waited = took + us(1);
        }
        sleeps
    }

    #[test]
    fn an_exchange_does_not_stay_slow() {
        for wake_up in [40, 60, 75, 120, 240, 390] {
            assert_eq!(sleeps_of_an_exchange(us(wake_up)), 0, "{wake_up} us to wake a thread");
        }
    }

    #[test]
    fn polling_has_bounds() {
        let mut policy = Policy::NEW;
        for _ in 0..20 {
            policy.slept(Processors::Free, us(100));
        }
        assert_eq!(policy.free, LONGEST);
        for _ in 0..20 {
            policy.slept(Processors::Free, LONGEST + us(1));
        }
        assert_eq!(policy.free, SHORTEST, "what comes seldom is not waited for awake");
    }

    #[test]
    fn threads_do_not_yield_to_programs_that_compute() {
        let mut policy = Policy::NEW;
        policy.yielded(us(10_000), us(3000));
        assert_eq!(policy.processors_at(us(10_000)), Processors::Contended);
        assert_eq!(policy.processors_at(us(10_000) + FIRST_HOLD), Processors::Free, "it is tried again");
    }

    #[test]
    fn who_shares_a_processor_with_its_peer_sleeps_at_once() {
        let mut policy = Policy::NEW;
        for _ in 0..10 {
            policy.slept(Processors::Contended, us(5));
        }
        assert_eq!(policy.polling(Processors::Contended), Duration::ZERO);
        for _ in 0..10 {
            policy.slept(Processors::Contended, us(4000));
        }
        assert_eq!(policy.polling(Processors::Contended), LONGEST_UNYIELDING, "the peer has moved");
    }

    #[test]
    fn yields_that_stay_long_are_tried_less_and_less() {
        let (mut policy, mut now, mut yields) = (Policy::NEW, Duration::ZERO, 0);
        // Two seconds in which each yield takes 4 ms.
        while now < Duration::from_secs(2) {
            now = now.max(policy.until) + us(4000);
            policy.yielded(now, us(4000));
            yields += 1;
        }
        assert_eq!(policy.hold, LONGEST_HOLD);
        assert!(yields < 30, "{yields} time slices were lost");
    }

    #[test]
    fn a_single_long_yield_is_soon_forgotten() {
        let mut policy = Policy::NEW;
        for i in 1..100 {
            let now = us(100_000) * i;
            policy.yielded(now, us(300));
            assert_eq!(policy.until, now + FIRST_HOLD);
        }
    }

    #[test]
    fn short_yields_say_nothing() {
        let mut policy = Policy::NEW;
        policy.yielded(us(10_000), LONG_YIELD - us(1));
        assert_eq!(policy, Policy::NEW);
    }
}
