//! How long a thread polls before it sleeps, learned from the waits before. No clock and no thread in here: times come in as
//! arguments, counted from any moment on.

use std::time::Duration;

/// A thread polls at least so long: some of what it costs to sleep and to be woken.
const SHORTEST: Duration = Duration::from_micros(50);
/// And at most so long: several times what it takes to wake a thread, so that one end of a slow exchange stays awake and makes it
/// fast again.
const LONGEST: Duration = Duration::from_micros(400);
/// A thread that gives its processor away and gets it back so late has left it to a program that computes.
pub(super) const LONG_YIELD: Duration = Duration::from_micros(100);
/// How long threads do not yield then, at first, and at most. They lose a time slice each time they try again.
const FIRST_HOLD: Duration = Duration::from_millis(1);
const LONGEST_HOLD: Duration = Duration::from_millis(128);

/// What the threads of a node have learned of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    /// How long a thread polls.
    pub(super) polling: Duration,
    /// Until when threads sleep at once.
    pub(super) busy_until: Duration,
    /// How long they did, or do, for the last long yield.
    pub(super) hold: Duration,
}

impl Policy {
    pub(super) const NEW: Self =
        Self { polling: SHORTEST, busy_until: Duration::ZERO, hold: Duration::ZERO };

    /// How long a thread polls that begins to wait now.
    pub(super) fn polling_at(&self, now: Duration) -> Duration {
        if now < self.busy_until { Duration::ZERO } else { self.polling }
    }

    /// A thread has polled in vain, and then slept so long. A sleep that ended soon should not have been one: polling would have
    /// found what came, and both ends of an exchange that sleep keep each other sleeping, since being woken takes as long
    /// as they poll.
    pub(super) fn slept(&mut self, slept: Duration) {
        self.polling = if slept <= LONGEST {
            (self.polling * 2).min(LONGEST)
        } else {
            (self.polling / 2).max(SHORTEST)
        };
    }

    /// A thread got its processor back now, and had given it away `took` before. If that was long, others compute on it: who
    /// yields to those waits for the end of their time slice, while who sleeps is run as soon as it is woken.
    pub(super) fn yielded(&mut self, now: Duration, took: Duration) {
        if took < LONG_YIELD {
            return;
        }
        let soon = now.saturating_sub(took) <= self.busy_until + self.hold;
        self.hold = if soon { (self.hold * 2).clamp(FIRST_HOLD, LONGEST_HOLD) } else { FIRST_HOLD };
        self.busy_until = now + self.hold;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    /// Two ends that send to and fro. Each hop takes 1 us if the other end still polls, and what it takes to wake it otherwise.
    /// Returns how many of the last hundred hops found the other end asleep.
    fn sleeps_of_an_exchange(wake_up: Duration) -> usize {
        let mut ends = [Policy::NEW; 2];
        let mut sleeps = 0;
        // What the end that is sent to has waited when the message is on its way: as long as the hop before took. Both slept.
        let mut waited = wake_up;
        for hop in 0..1000 {
            let end = &mut ends[hop % 2];
            let polling = end.polling_at(Duration::ZERO);
            let took = if waited <= polling { us(1) } else { wake_up };
            if waited > polling {
                end.slept(waited - polling);
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
            policy.slept(us(100));
        }
        assert_eq!(policy.polling, LONGEST);
        for _ in 0..20 {
            policy.slept(LONGEST + us(1));
        }
        assert_eq!(policy.polling, SHORTEST, "what comes seldom is not waited for awake");
    }

    #[test]
    fn threads_sleep_at_once_where_others_compute() {
        let mut policy = Policy::NEW;
        policy.yielded(us(10_000), us(3000));
        assert_eq!(policy.polling_at(us(10_000)), Duration::ZERO);
        assert_eq!(policy.polling_at(us(10_000) + FIRST_HOLD), SHORTEST, "it is tried again");
    }

    #[test]
    fn yields_that_stay_long_are_tried_less_and_less() {
        let (mut policy, mut now, mut yields) = (Policy::NEW, Duration::ZERO, 0);
        // Two seconds in which each yield takes 4 ms.
        while now < Duration::from_secs(2) {
            now = now.max(policy.busy_until) + us(4000);
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
            assert_eq!(policy.busy_until, now + FIRST_HOLD);
        }
    }

    #[test]
    fn short_yields_say_nothing() {
        let mut policy = Policy::NEW;
        policy.yielded(us(10_000), LONG_YIELD - us(1));
        assert_eq!(policy, Policy::NEW);
    }
}
