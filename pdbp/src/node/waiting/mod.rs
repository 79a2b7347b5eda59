//! How a thread waits: it polls a few times, then polls and yields for a while, and then sleeps on a bell.
//!
//! The threads of a node learn from earlier waits how long to poll, and whether to yield ([`policy`]):
//! * **A sleep that ends soon should have been polling**, so polling gets longer, up to a bound. Otherwise an exchange can stay slow:
//!   if waking a thread takes longer than threads poll, both ends sleep for each message.
//! * **A yield that takes as long as a time slice shows that other programs compute here.** A thread that yields to them runs again
//!   after their time slice; one that sleeps runs soon after it is woken. So threads sleep instead, for a while, and then try yielding
//!   again. Before they sleep they poll without yielding, unless that is useless because the peer waits for the same processor.
//!
//! With more nodes than processors nothing is learned: long yields there mean that peers are at work.
//!
//! # Figures
//! Medians of round trips of 64 bytes on two processors, in µs, the lowest and the highest of several runs of `pdbp ping` and `mpirun
//! -n 2 pdbp ping`; *busy* means alongside two processes of `while :; do :; done`. *Before*, threads yielded 200 times and then slept.
//!
//! | | before | now | two threads over `std::sync::mpsc`, in the runs of now |
//! |---|---|---|---|
//! | in process | 3.8–13 | 3.1–3.6 | 3.3–4.5 |
//! | in process, busy | 6.3–3,560 | 6.6–11 | 5.1–12 |
//! | over MPI | 3.6 | 3.0–3.4 | 4.9–5.2 |
//! | over MPI, busy | 2,690–4,330 | 2.8–2.9 | 5.4–8.9 |
//! | in process, waking takes 250 µs more | 534 | 3.8 | 527 |
//!
//! The machine had other work, which got a hundredth of the weight (`echo -20 > /proc/self/autogroup; nice -n -20 …`), though not in
//! some of the busy runs of *before*. For the last line, a preloaded library (`LD_PRELOAD`) kept threads busy for that long after each
//! `futex` wait that a wake had ended, with real-time scheduling (`chrt -f 10`). In 2,200 round trips, there were 3,394 more such
//! waits than with the channel in the run of *before*, and 82 and 276 more in runs of *now*.
//!
//! Long waits cost little: two nodes in one process, whose parts waited for a message, woke up 4,300 times a second and used 11 % of a
//! core in a debug build while naps took 2 ms and the progress thread checked every 0.5 ms; now they wake up 140 times a second and
//! use 1 %.

mod interrupt;
mod policy;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pdbp_core::id::NodeId;

use super::{Node, Pipe, Shared};
use crate::error::Timeout;
use crate::sync::try_lock;
pub use interrupt::interruptible;
#[cfg(feature = "net")]
pub(crate) use interrupt::with_interrupts;
pub(crate) use interrupt::{SeenInterrupts, WaitFailure};
use policy::{Policy, Processors};

/// Longest sleep on a bell after something has happened at the node; see [`NapBackoff`].
pub(super) const NAP: Duration = Duration::from_millis(2);
/// Longest sleep of all: anything that rings no bell is noticed at most this much late.
const LONGEST_NAP: Duration = Duration::from_millis(16);
/// Shortest sleep of a thread that polls for all, whatever is due.
const SHORTEST_NAP: Duration = Duration::from_micros(50);
/// Polls before the first yield. If each node has its own processor, they take longer than most answers do. A yield takes as long as
/// two polls, and delays anything that arrives meanwhile. They also delay the sleep of a thread whose peer waits for this processor.
const SPINS: u32 = 24;
const CROWDED_SPINS: u32 = 8;
/// Of consecutive polls, one in this many does all work and reads the clock; the others only deliver what has arrived.
const POLLS_PER_FULL_POLL: u32 = 4;
/// Yields before a thread sleeps with more nodes than processors: what it waits for needs this processor.
const CROWDED_YIELDS: u32 = 48;

/// What the threads of a node have learned about waiting. Each number is valid by itself, so that mixed-up updates do no harm and
/// relaxed ordering is enough.
pub(super) struct LearnedPolicy {
    epoch: Instant,
    /// The fields of [`Policy`], in nanoseconds.
    fields: [AtomicU64; 4],
}

impl LearnedPolicy {
    pub(super) fn new() -> Self {
        let learned_policy = Self { epoch: Instant::now(), fields: [const { AtomicU64::new(0) }; 4] };
        learned_policy.store(Policy::NEW);
        learned_policy
    }

    fn load(&self) -> Policy {
        let [free, contended, until, hold] =
            self.fields.each_ref().map(|field| Duration::from_nanos(field.load(Ordering::Relaxed)));
        Policy { free, contended, until, hold }
    }

    fn store(&self, Policy { free, contended, until, hold }: Policy) {
        for (field, time) in self.fields.iter().zip([free, contended, until, hold]) {
            field.store(time.as_nanos() as u64, Ordering::Relaxed);
        }
    }

    fn learn(&self, lesson: impl FnOnce(&mut Policy)) {
        let mut policy = self.load();
        lesson(&mut policy);
        self.store(policy);
    }
}

/// Longest sleep, in case nobody rings. It doubles as long as nothing happens at the node, so that a program that waits for the next
/// message costs next to nothing. Without progress threads it does not grow: the thread that polls for all may hand that job to this
/// one, or this one helps the other nodes of its process.
#[derive(Default)]
pub(super) struct NapBackoff {
    /// The last nap, and [`Shared::productive_polls`] at that time.
    last: Duration,
    turns: u64,
}

impl NapBackoff {
    pub(super) fn next(&mut self, shared: &Shared) -> Duration {
        let turns = shared.productive_polls.load(Ordering::Relaxed);
        let same = std::mem::replace(&mut self.turns, turns) == turns;
        let longest = if shared.driver.get().is_some() { LONGEST_NAP } else { NAP };
        self.last = if same { (2 * self.last).clamp(NAP, longest) } else { NAP };
        self.last
    }
}

/// Sleeps on the node's bell on behalf of all threads of the node, until something is due but for at most `longest`; polls before and
/// after. Returns how much the polls did. Requires [`Shared::leader`]. `is_idle` checks for work that a poll does not find.
pub(super) fn lead(shared: &Shared, longest: Duration, is_idle: impl Fn() -> bool) -> u32 {
    let poll = || {
        let Some(turn) = shared.try_engine().map(|mut engine| shared.poll_with(&mut engine)) else {
            // Another thread polls at this moment, or packs something that may have to be flushed.
            return (0, SHORTEST_NAP.min(longest));
        };
        (turn.worked, shared.due(&turn).map_or(longest, |due| due.max(SHORTEST_NAP).min(longest)))
    };
    let (mut worked, time) = poll();
    if worked > 0 || !is_idle() {
        return worked;
    }
    // What readers release meanwhile must not wait for long.
    shared.is_napping.store(longest > NAP, Ordering::Relaxed);
    shared.bell.sleep(time, &mut || {
        // Another thread may have opened a block, and rung, before the bell was armed.
        let (more, left) = poll();
        worked += more;
        worked == 0 && is_idle() && left + SHORTEST_NAP > time
    });
    shared.is_napping.store(false, Ordering::Relaxed);
    worked + shared.poll()
}

impl Shared {
    /// How long a thread that begins to wait now polls, yielding between its polls.
    pub(crate) fn polling(&self, now: Instant) -> Duration {
        if self.crowded {
            return Duration::ZERO;
        }
        let policy = self.learned_policy.load();
        match policy.processors_at(now.duration_since(self.learned_policy.epoch)) {
            Processors::Free => policy.polling(Processors::Free),
            Processors::Contended => Duration::ZERO,
        }
    }
}

impl Shared {
    /// Yields, and learns from it. Takes the time, and returns that afterwards and whether another program computes on this processor.
    pub(crate) fn yield_now(&self, before: Instant) -> (Instant, bool) {
        thread::yield_now();
        let now = Instant::now();
        let took = now.duration_since(before);
        let was_long = !self.crowded && took >= policy::LONG_YIELD;
        if was_long {
            let now = now.duration_since(self.learned_policy.epoch);
            self.learned_policy.learn(|policy| policy.yielded(now, took));
        }
        (now, was_long)
    }
}

/// A waiting thread: how long it has waited, and how.
pub(crate) struct Waiter {
    timeout: Duration,
    /// Set once the clock has been read: most waits end before that.
    clock: Option<Clock>,
    /// Calls of `is_over` before the clock was read.
    checks: u32,
    /// Whether there are more nodes than processors.
    crowded: bool,
    /// Pauses since there was something to do, not counting those after the thread began to sleep.
    rounds: u32,
    /// Whether there was a pause since `is_over` was last called.
    has_paused: bool,
    /// When it began to sleep between its polls.
    sleeping_since: Option<Instant>,
    processors: Processors,
    /// How long it polls after the first few times.
    polling: Duration,
    naps: NapBackoff,
    /// The node, if this thread slept as its leader.
    led: Option<Arc<Shared>>,
}

#[derive(Clone, Copy)]
struct Clock {
    /// When it was first read, after at most [`POLLS_PER_FULL_POLL`] looks, and when last.
    started: Instant,
    now: Instant,
    /// When the thread began to read it between its polls.
    polls_since: Instant,
}

impl Clock {
    fn start() -> Self {
        let now = Instant::now();
        Self { started: now, now, polls_since: now }
    }

    fn read(&mut self) -> Instant {
        self.now = Instant::now();
        self.now
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.stop_leading();
    }
}

impl Waiter {
    pub(crate) fn new(timeout: Duration, shared: &Shared) -> Self {
        Self {
            timeout,
            clock: None,
            checks: 0,
            crowded: shared.crowded,
            rounds: 0,
            has_paused: false,
            sleeping_since: None,
            processors: Processors::Free,
            polling: Duration::ZERO,
            naps: NapBackoff::default(),
            led: None,
        }
    }

    /// Wakes the progress thread, which may have left everything to this thread. For waits that go on after the program's own work.
    pub(crate) fn stop_leading(&mut self) {
        if let Some(shared) = self.led.take() {
            shared.resume_driver();
        }
    }

    /// The time when the clock was last read.
    fn now(&mut self) -> Instant {
        self.clock().now
    }

    fn clock(&mut self) -> &mut Clock {
        self.clock.get_or_insert_with(Clock::start)
    }

    /// Whether the time is up. It counts from when this has been called a few times.
    pub(crate) fn is_over(&mut self) -> bool {
        if self.clock.is_none() && self.checks < POLLS_PER_FULL_POLL && !self.timeout.is_zero() {
            self.checks += 1;
            return false;
        }
        // All but the first few pauses read the clock.
        let is_read = std::mem::take(&mut self.has_paused) && self.rounds > 0;
        let (timeout, clock) = (self.timeout, self.clock());
        let now = if is_read { clock.now } else { clock.read() };
        now.duration_since(clock.started) >= timeout
    }

    /// Returns that the time is up: `peers` have not done what is missing.
    pub(crate) fn failure(&self, peers: Vec<NodeId>, missing: &'static str) -> WaitFailure {
        WaitFailure::Timeout(Timeout { waited: self.timeout, peers, missing })
    }

    /// Starts again with short pauses, since there was something to do.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    pub(crate) fn made_progress(&mut self, node: &Node) -> Result<(), WaitFailure> {
        self.reset();
        self.check_node_interrupts(&node.shared, &node.seen)
    }

    /// Starts again with short pauses.
    pub(crate) fn reset(&mut self) {
        self.rounds = 0;
        self.sleeping_since = None;
    }

    /// Waits a little, longer each time. `pipes` are those in which the thread expects something. The caller must hold no lock: this
    /// may call the program.
    ///
    /// # Errors
    /// The wait was interrupted. The call then ends without taking what has come meanwhile: its caller would lose that, or the interrupt.
    pub(crate) fn pause(&mut self, node: &Node, pipes: &[&Pipe]) -> Result<(), WaitFailure> {
        self.pause_by(node, |shared, left| sleep(shared, pipes, left))
    }

    /// As [`pause`](Self::pause), of a thread that expects an event of the node. `nothing` tells whether there is none.
    pub(super) fn pause_for_event(
        &mut self,
        node: &Node,
        nothing: impl Fn() -> bool,
    ) -> Result<(), WaitFailure> {
        self.pause_by(node, |shared, left| sleep_until_event(shared, nothing, left))
    }

    /// Pauses; `sleep` is as the function of that name.
    #[inline]
    fn pause_by(
        &mut self,
        node: &Node,
        sleep: impl FnOnce(&Shared, Duration) -> (bool, bool),
    ) -> Result<(), WaitFailure> {
        self.pause_on(&node.shared, sleep);
        if self.rounds > self.spins() || self.sleeping_since.is_some() {
            self.check_interrupts(&node.shared, &node.seen)?;
        }
        Ok(())
    }

    /// Whether the thread checks for arrivals next, and for nothing else. It has polled before it began to wait.
    pub(crate) fn keeps_polling(&self) -> bool {
        let is_early = self.rounds <= self.spins() && self.sleeping_since.is_none();
        is_early && (self.clock.is_none() || !self.rounds.is_multiple_of(POLLS_PER_FULL_POLL))
    }

    /// Whether the thread has polled long enough, and now sleeps between polls.
    pub(crate) fn is_sleeping(&self) -> bool {
        self.sleeping_since.is_some()
    }

    fn spins(&self) -> u32 {
        if self.crowded { CROWDED_SPINS } else { SPINS }
    }

    fn pause_on(&mut self, shared: &Arc<Shared>, sleep: impl FnOnce(&Shared, Duration) -> (bool, bool)) {
        self.has_paused = true;
        if self.sleeping_since.is_some() {
            return self.sleep(shared, sleep);
        }
        self.rounds += 1;
        if self.rounds <= self.spins() {
            // A poll takes long enough by itself: a spin hint would only delay the next one.
            return;
        }
        if self.rounds == self.spins() + 1 && !self.crowded {
            let clock = self.clock();
            clock.polls_since = clock.read();
            let policy = shared.learned_policy.load();
            self.processors = policy.processors_at(self.now().duration_since(shared.learned_policy.epoch));
            self.polling = policy.polling(self.processors);
        }
        let polls = if self.crowded {
            self.rounds <= CROWDED_SPINS + CROWDED_YIELDS
        } else {
            let Clock { now, polls_since, .. } = *self.clock();
            now.duration_since(polls_since) < self.polling
        };
        match self.processors {
            _ if !polls => self.sleep(shared, sleep),
            Processors::Free => self.yield_now(shared),
            Processors::Contended => {
                std::hint::spin_loop();
                self.clock().read();
            }
        }
    }

    fn yield_now(&mut self, shared: &Shared) {
        let (now, was_long) = shared.yield_now(self.now());
        self.clock().now = now;
        if was_long {
            // If nothing has arrived meanwhile, polling on is no use either.
            (self.processors, self.polling) = (Processors::Contended, Duration::ZERO);
        }
    }

    fn sleep(&mut self, shared: &Arc<Shared>, sleep: impl FnOnce(&Shared, Duration) -> (bool, bool)) {
        let Clock { started, now, .. } = *self.clock();
        let since = *self.sleeping_since.get_or_insert(now);
        let left = self.timeout.saturating_sub(started.elapsed()).min(self.naps.next(shared));
        let (came, leads) = sleep(shared, left);
        if leads && self.led.is_none() {
            self.led = Some(Arc::clone(shared));
        }
        let now = self.clock().read();
        if came {
            if !self.crowded {
                let slept = now.duration_since(since);
                shared.learned_policy.learn(|policy| policy.slept(self.processors, slept));
            }
            self.reset();
        }
    }
}

/// Sleeps until a bell rings. Returns whether there was, or is, something to do, and whether this thread polled for all meanwhile.
fn sleep(shared: &Shared, pipes: &[&Pipe], left: Duration) -> (bool, bool) {
    let nothing = || pipes.iter().all(|pipe| pipe.is_empty());
    // Pairs with the load in `Pipe::ring`: another part that polls may deliver while this one sleeps.
    let sleeps_on = |bell| pipes.iter().for_each(|pipe| pipe.sleeps_on.store(bell, Ordering::Relaxed));
    match (try_lock(&shared.leader), pipes) {
        (Some(leader), _) => {
            sleeps_on(Pipe::NODES_BELL);
            let worked = lead(shared, left, nothing);
            sleeps_on(Pipe::OWN_BELL);
            drop(leader);
            return (worked > 0 || !nothing(), true);
        }
        (None, []) => {
            thread::sleep(left.min(Duration::from_micros(100)));
            return (false, false);
        }
        (None, [pipe]) => pipe.bell.sleep(left, nothing),
        (None, _) => {
            sleeps_on(Pipe::SEVERALS_BELL);
            shared.several.sleep(left, nothing);
            sleeps_on(Pipe::OWN_BELL);
        }
    }
    (!nothing(), false)
}

/// As [`sleep`], until an event is recorded.
pub(super) fn sleep_until_event(shared: &Shared, nothing: impl Fn() -> bool, left: Duration) -> (bool, bool) {
    let Some(leader) = try_lock(&shared.leader) else {
        shared.events.bell.sleep(left, &nothing);
        return (!nothing(), false);
    };
    shared.events.sleep_on_nodes_bell(true);
    let worked = lead(shared, left, &nothing);
    shared.events.sleep_on_nodes_bell(false);
    drop(leader);
    (worked > 0 || !nothing(), true)
}

#[cfg(test)]
mod tests;
