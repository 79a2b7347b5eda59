//! Which of the waiting tasks of a node polls for all of them.
//!
//! A task that waits looks again each time its executor comes back to it, for a while: waking a thread takes longer than most answers. If many
//! tasks of a node did so, each would poll in each round of its executor. So one does, the *leader*, and the others are woken by its polls. (A
//! few all poll: that takes less than waking each of them.)
//!
//! The others also leave to it what they have packed into a common block (`node/common_lanes.rs`). It is submitted when the executor has come
//! to the leader again, after the other tasks that could go on, so that one block takes the messages of all of them.

use std::time::{Duration, Instant};

use super::primitives::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// A leader that has not polled for so long may have been dropped, or its executor has much to do. Others then poll as well.
const LATE: Duration = Duration::from_millis(1);

/// For so long after a leader's last poll the progress thread looks often whether tasks need it: when a leader's wait ends, the others wait on.
const ACTIVE: Duration = Duration::from_millis(10);

/// An executor comes back to its only task within this time.
const ALONE: Duration = Duration::from_micros(4);

/// A yield that takes this long has given the processor to a program that computes. Tasks then yield no more for a while, so that this costs
/// them some hundredths of their time at most.
const LONG_YIELD: Duration = Duration::from_micros(100);
const HOLD: Duration = Duration::from_millis(100);

/// Nobody leads.
const NOBODY: u32 = u32::MAX;

pub(crate) struct TaskLeader {
    epoch: Instant,
    /// Number of the leader's part, and when it last polled, in nanoseconds since the epoch. Both are hints.
    part: AtomicU32,
    polled: AtomicU64,
    /// Whether others have left something to it.
    has_packed: AtomicBool,
    /// Until when it does not yield, in nanoseconds since the epoch.
    holds_until: AtomicU64,
}

impl Default for TaskLeader {
    fn default() -> Self {
        Self {
            epoch: Instant::now(),
            part: AtomicU32::new(NOBODY),
            polled: AtomicU64::new(0),
            has_packed: AtomicBool::new(false),
            holds_until: AtomicU64::new(0),
        }
    }
}

impl TaskLeader {
    fn nanos(&self, now: Instant) -> u64 {
        now.duration_since(self.epoch).as_nanos() as u64
    }

    /// Whether a task of another part than this one polls for all. Asks for the time only if that matters.
    pub(crate) fn is_another(&self, part: u16, now: impl FnOnce() -> Instant) -> bool {
        let leader = self.part.load(Ordering::Relaxed);
        leader != NOBODY && leader != u32::from(part) && self.has_polled_within(LATE, now())
    }

    fn has_polled_within(&self, time: Duration, now: Instant) -> bool {
        self.nanos(now).saturating_sub(self.polled.load(Ordering::Relaxed)) < time.as_nanos() as u64
    }

    /// Whether a task has polled for all not long ago, and perhaps left others without a poller.
    pub(crate) fn was_active(&self, now: Instant) -> bool {
        self.has_polled_within(ACTIVE, now)
    }

    /// Whether the thread of the leader, which polls now, should yield: its executor has come back as if it had no other task that could go on,
    /// and yields have not been long lately.
    pub(crate) fn may_yield(&self, now: Instant) -> bool {
        let (now, polled) = (self.nanos(now), self.polled.load(Ordering::Relaxed));
        now.saturating_sub(polled) < ALONE.as_nanos() as u64
            && now >= self.holds_until.load(Ordering::Relaxed)
    }

    /// Records that it has yielded. If that was long, other programs compute on its processor, and have got a time slice each.
    pub(crate) fn record_yield(&self, before: Instant, after: Instant) {
        if after.duration_since(before) >= LONG_YIELD {
            self.holds_until.store(self.nanos(after + HOLD), Ordering::Relaxed);
        }
    }

    /// As [`is_another`](Self::is_another), for a part that has packed something. If it is another one, that will [submit](Self::take_packed)
    /// it, now or as it resigns.
    pub(crate) fn leave_packed(&self, part: u16, now: impl Fn() -> Instant) -> bool {
        if !self.is_another(part, &now) {
            return false;
        }
        self.has_packed.store(true, Ordering::Relaxed);
        // Pairs with that in `take_packed`: either this part sees that the leader has resigned, or the leader sees what was packed.
        fence(Ordering::SeqCst);
        self.is_another(part, now)
    }

    /// Whether others have left something that is to be submitted now.
    pub(crate) fn take_packed(&self) -> bool {
        // Pairs with that in `leave_packed`.
        fence(Ordering::SeqCst);
        self.has_packed.load(Ordering::Relaxed) && self.has_packed.swap(false, Ordering::Relaxed)
    }

    /// Records that the task of this part polls for all.
    pub(crate) fn lead(&self, part: u16, now: Instant) {
        self.part.store(part.into(), Ordering::Relaxed);
        self.polled.store(self.nanos(now), Ordering::Relaxed);
    }

    /// The task of this part polls no longer. The caller submits what others have [left](Self::take_packed).
    pub(crate) fn resign(&self, part: u16) {
        if self.part.load(Ordering::Relaxed) == u32::from(part) {
            self.part.store(NOBODY, Ordering::Relaxed);
        }
    }
}
