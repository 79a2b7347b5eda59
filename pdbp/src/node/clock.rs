//! The clock of a node, which counts from its start.
//!
//! Leases need a clock that keeps running while the machine sleeps; otherwise, after waking up, a node would act on a lease that
//! has expired. On Linux [`Instant`](std::time::Instant) excludes sleep, so this uses `CLOCK_BOOTTIME` there, and `Instant` on
//! other systems.

use pdbp_core::id::Time;

/// Counts the time since it was started. It is monotonic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(imp::Origin);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(imp::Origin::now())
    }

    pub(crate) fn now(&self) -> Time {
        Time(self.0.elapsed())
    }
}

#[cfg(target_os = "linux")]
mod imp {
    use rustix::time::{ClockId, Timespec, clock_gettime};

    #[derive(Clone, Copy, Debug)]
    pub(super) struct Origin(u64);

    impl Origin {
        pub(super) fn now() -> Self {
            let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Boottime);
            // Nanoseconds since the machine was started: never negative, and enough for 584 years.
            Self((tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(tv_nsec as u64))
        }

        pub(super) fn elapsed(self) -> u64 {
            Self::now().0.saturating_sub(self.0)
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod imp {
    use std::time::Instant;

    #[derive(Clone, Copy, Debug)]
    pub(super) struct Origin(Instant);

    impl Origin {
        pub(super) fn now() -> Self {
            Self(Instant::now())
        }

        pub(super) fn elapsed(self) -> u64 {
            self.0.elapsed().as_nanos() as u64
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::Clock;

    #[test]
    fn time_goes_on_and_never_back() {
        let (began, clock) = (Instant::now(), Clock::start());
        let mut last = clock.now();
        while began.elapsed() < Duration::from_millis(20) {
            let now = clock.now();
            assert!(now >= last, "{now:?} comes after {last:?}");
            last = now;
        }
        assert!(last.0 > 0);
    }
}
