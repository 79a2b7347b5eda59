//! Where the time goes: clocks, and counters of the work that threads do.
//!
//! Work is counted in processor time of the thread, so that figures stay true when there are more threads than cores. The time a run spends outside
//! decoding and analysis is the processor time of the whole process minus those two.

use core::ops::AddAssign;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// A monotonic clock whose readings are nanoseconds since the Unix epoch, so that those of several processes compare (as
/// well as their hosts' clocks agree).
#[derive(Debug, Clone, Copy)]
pub struct RunClock {
    started: Instant,
    epoch_ns: u64,
}

impl RunClock {
    /// Reads the wall clock once; all readings follow the monotonic clock from here.
    pub fn start() -> Self {
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { started: Instant::now(), epoch_ns: nanoseconds(epoch) }
    }

    /// Now, in nanoseconds since the Unix epoch.
    pub fn now_ns(&self) -> u64 {
        self.epoch_ns + nanoseconds(self.started.elapsed())
    }
}

fn nanoseconds(duration: core::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Processor time that the calling thread has used, in nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    cpu_ns(ClockId::ThreadCPUTime)
}

/// Processor time that all threads of this process have used, in nanoseconds.
pub fn process_cpu_ns() -> u64 {
    cpu_ns(ClockId::ProcessCPUTime)
}

fn cpu_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let part = |value: i64| u64::try_from(value).unwrap_or_default();
    part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
}

/// Processor time by kind of work, in nanoseconds, and how many frames it was spent on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct Work {
    /// Parsing and decoding H.264.
    pub decode_ns: u64,
    /// Frames decoded.
    pub decoded: u64,
    /// Restoring and measuring.
    pub analyse_ns: u64,
    /// Frames analysed.
    pub analysed: u64,
    /// All processor time of the process during the passes.
    pub total_ns: u64,
}

impl Work {
    /// Share of the processor time spent outside decoding and analysis, 0 to 1.
    pub fn outside_share(&self) -> f64 {
        if self.total_ns == 0 {
            return 0.0;
        }
        let inside = self.decode_ns.saturating_add(self.analyse_ns).min(self.total_ns);
        (self.total_ns - inside) as f64 / self.total_ns as f64
    }
}

impl AddAssign for Work {
    /// Adds up to what a number holds: other processes may send any numbers.
    fn add_assign(&mut self, other: Self) {
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        add(&mut self.decode_ns, other.decode_ns);
        add(&mut self.decoded, other.decoded);
        add(&mut self.analyse_ns, other.analyse_ns);
        add(&mut self.analysed, other.analysed);
        add(&mut self.total_ns, other.total_ns);
    }
}

/// Splits the processor time of a thread into stretches.
#[derive(Debug)]
pub struct Stopwatch(u64);

impl Stopwatch {
    /// Starts the first stretch.
    pub fn start() -> Self {
        Self(thread_cpu_ns())
    }

    /// Ends the stretch, returns its nanoseconds, and starts the next one.
    pub fn lap(&mut self) -> u64 {
        let now = thread_cpu_ns();
        now.saturating_sub(core::mem::replace(&mut self.0, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_spent_working_is_counted_and_time_spent_asleep_is_not() {
        let (mut watch, began) = (Stopwatch::start(), Instant::now());
        std::thread::sleep(std::time::Duration::from_millis(200));
        let (asleep, passed) = (watch.lap(), nanoseconds(began.elapsed()));
        assert!(asleep < passed / 2, "{asleep} ns of {passed} ns asleep");
        // Until it has worked for a while, however long others have the processor.
        let (mut value, mut worked, began) = (1u64, 0, Instant::now());
        while worked < 5_000_000 {
            value = std::hint::black_box(value.wrapping_mul(3));
            worked += watch.lap();
            assert!(began.elapsed().as_secs() < 60, "work is not counted");
        }
    }

    #[test]
    fn the_share_outside_is_what_neither_counter_covers() {
        let work = Work { decode_ns: 60, analyse_ns: 30, total_ns: 100, ..Work::default() };
        assert!((work.outside_share() - 0.1).abs() < 1e-12);
        assert_eq!(Work { decode_ns: 200, total_ns: 100, ..Work::default() }.outside_share(), 0.0);
        assert_eq!(Work::default().outside_share(), 0.0);
    }

    #[test]
    fn the_run_clock_agrees_with_the_wall_clock() {
        // A second for a wall clock that is being set.
        const SET: u64 = 1_000_000_000;
        let wall = || nanoseconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap());
        let before = wall();
        let now = RunClock::start().now_ns();
        assert!((before - SET..=wall() + SET).contains(&now));
    }
}
