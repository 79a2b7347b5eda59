//! Chooses between non-temporal and ordinary stores for data that another processor reads next.
//!
//! Non-temporal stores bypass the caches, and the reader fetches the bytes from memory. Ordinary stores leave them in the writer's cache, and
//! must first take each line that the reader had away from its cache. Which is better depends on where the two run, which nothing reports and
//! which changes whenever one of them migrates. But the writer can measure it: it times its stores, and now and then tries the other kind.
//!
//! **Messages of a slate** are copied in by one member and out by another. Between processors that share a cache, a message that stays there is
//! read at once: two members that each store 1 MiB and read the other's take 91 us, and 152 by way of memory. Between others the same takes 525
//! us, and 130 by way of memory; there 32 KiB through its caches take a writer 13 us, and elsewhere as long as past them, 1 to 2 us. This holds
//! where long messages go both ways, or several members send at a time (four on two processors that share a cache: a broadcast of 1 MiB takes
//! 160 us through it and 225 past it, a reduce 250 and 410). Where messages go one way between two members, one reads while the other writes,
//! and 1 MiB takes 70 us by way of memory and 50 or 90 by way of the caches, depending on which of several processors with a common cache these
//! are: there the writer's own time decides.
//!
//! **Blocks** of 128 KiB, written by one and read in place by another, 8 in turn. Between processors that share a cache the writer takes 11.2 us
//! through its caches and 5.4 past them, the reader 2.3 and 5.4. The slower of the two bounds a stream, and their sum bounds two that read and
//! write in turn; both are lower past the caches. Between other processors they are lower by far. But on one processor the writer takes 3.8 us
//! through and 6.5 past, and the reader 2.3 and 3.8.

use std::time::{Duration, Instant};

use super::words::{CHOICE, Stores, copy_lines};

/// Messages of a slate go through the caches unless that takes this many times as long as past them; those that go one way between two members,
/// if it takes less.
const LONGER: u64 = 4;
/// The number of messages past the caches after which one goes through them.
const TRIAL: u32 = 1024;
/// The number before the first trial: by then all slots have been in use.
const FIRST_TRIAL: u32 = 64;

/// A writer's measurements of both kinds of stores to one reader, for messages of a slate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreTimes {
    /// The time of the last message by each kind, in picoseconds per byte.
    non_temporal: u64,
    cached: u64,
    /// Messages until the next trial.
    left: u32,
}

impl StoreTimes {
    /// Starts past the caches, until more is known.
    pub(crate) const NEW: Self = Self { non_temporal: 1, cached: u64::MAX, left: FIRST_TRIAL };

    /// Stores `bytes` bytes with the better kind, or with the one being tried.
    pub(crate) fn store(&mut self, is_one_way: bool, bytes: usize, store: impl FnOnce(Stores)) {
        if !CHOICE {
            return store(Stores::NonTemporal);
        }
        let stores = self.next(is_one_way);
        let began = Instant::now();
        store(stores);
        self.record(stores, bytes, began.elapsed());
    }

    fn next(&mut self, is_one_way: bool) -> Stores {
        if self.cached / if is_one_way { 1 } else { LONGER } < self.non_temporal {
            return Stores::Cached;
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Stores::NonTemporal
            }
            None => {
                self.left = TRIAL;
                Stores::Cached
            }
        }
    }

    fn record(&mut self, stores: Stores, bytes: usize, time: Duration) {
        let known = match stores {
            Stores::NonTemporal => &mut self.non_temporal,
            Stores::Cached => &mut self.cached,
        };
        let picos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).saturating_mul(1000);
        // A message that was interrupted tells little.
        *known = (picos / bytes.max(1) as u64).min(known.saturating_mul(2)).max(1);
    }
}

/// The choice, for a writer to one reader on another processor, whether to write past the caches or through them: whichever takes less time.
///
/// Now and then it tries the other kind, for as many bytes as it takes the rows of a link to wrap round: until then the lines were last written
/// with the previous kind, and the time means nothing. It does so at once when the current kind costs twice as much as the other did.
#[derive(Clone, Copy, Debug)]
pub struct StoreChoice {
    stores: Stores,
    is_trial: bool,
    /// Bytes still to be written before time counts.
    uncounted: usize,
    /// Counted bytes left until the next trial, or until this one ends.
    left: usize,
    non_temporal: Cost,
    cached: Cost,
    rounds: Rounds,
}

/// Bytes of a round.
#[derive(Clone, Copy, Debug)]
struct Rounds {
    /// Of a trial.
    trial: usize,
    /// Between two trials, while writing past the caches and while writing through them.
    rest: usize,
    cached_rest: usize,
    /// Not timed at the start of a round that changes the kind of stores.
    uncounted: usize,
}

/// The time that writing takes, in picoseconds per byte; 0: unknown.
#[derive(Clone, Copy, Debug, Default)]
struct Cost(u64);

impl Cost {
    /// Counts a copy as at most twice the known cost, and at least half of it: one that was interrupted tells little.
    fn record(&mut self, bytes: usize, time: Duration) {
        let picos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).saturating_mul(1000);
        let cost = (picos / bytes.max(1) as u64).max(1);
        let known = if self.0 == 0 { cost } else { self.0 };
        self.0 = (known + cost.clamp(known / 2, known.saturating_mul(2))).div_ceil(2);
    }
}

impl StoreChoice {
    /// For copies, each timed by itself. A trial is two rows of 8 blocks.
    const COPIES: Rounds = Rounds { trial: 2 << 20, rest: 128 << 20, cached_rest: 128 << 20, uncounted: 0 };
    /// For blocks, timed from one to the next, which includes the reader's time once the reader has those of a row. Past the caches is never
    /// much worse, and through them takes several times as long when one of the two migrates.
    const BLOCKS: Rounds =
        Rounds { trial: 2 << 20, rest: 256 << 20, cached_rest: 32 << 20, uncounted: 2 << 20 };

    const fn new(rounds: Rounds) -> Self {
        let (non_temporal, cached) = (Cost(0), Cost(0));
        // Past the caches, until more is known.
        let stores = Stores::NonTemporal;
        Self { stores, is_trial: false, left: rounds.rest / 8, uncounted: 0, non_temporal, cached, rounds }
    }

    /// For blocks written one after the other.
    pub const fn of_blocks() -> Self {
        Self::new(Self::BLOCKS)
    }

    /// Whether the next write goes past the caches. Always false where there is no choice.
    pub fn is_past_caches(&self) -> bool {
        CHOICE && self.stores == Stores::NonTemporal
    }

    /// Records that `bytes` bytes were written as [`is_past_caches`](Self::is_past_caches) directed, and took `time`.
    pub fn record(&mut self, bytes: usize, time: Duration) {
        let (this, other) = match self.stores {
            Stores::NonTemporal => (&mut self.non_temporal, self.cached),
            Stores::Cached => (&mut self.cached, self.non_temporal),
        };
        if self.uncounted > 0 {
            self.uncounted = self.uncounted.saturating_sub(bytes);
            return;
        }
        this.record(bytes, time);
        let is_dear = other.0 > 0 && this.0 / 2 > other.0;
        self.left = self.left.saturating_sub(bytes);
        if self.left > 0 && (self.is_trial || !is_dear) {
            return;
        }
        let before = self.stores;
        self.stores = match before {
            _ if self.is_trial && self.non_temporal.0 <= self.cached.0.saturating_add(self.cached.0 / 8) => {
                Stores::NonTemporal
            }
            _ if self.is_trial => Stores::Cached,
            Stores::NonTemporal => Stores::Cached,
            Stores::Cached => Stores::NonTemporal,
        };
        self.is_trial = !self.is_trial;
        self.left = match self.stores {
            _ if self.is_trial => self.rounds.trial,
            Stores::NonTemporal => self.rounds.rest,
            Stores::Cached => self.rounds.cached_rest,
        };
        if self.stores != before {
            self.uncounted = self.rounds.uncounted;
        }
    }
}

/// Copies bytes into memory that another processor reads next, past the caches or through them, guided by a [`StoreChoice`].
#[derive(Clone, Copy, Debug)]
pub struct Copier(StoreChoice);

impl Default for Copier {
    fn default() -> Self {
        Self(StoreChoice::new(StoreChoice::COPIES))
    }
}

impl Copier {
    /// The length from which there is a choice.
    pub const LONG: usize = 8 << 10;

    /// Copies bytes; long copies go past the caches or through them, whichever takes less time. They are visible before anything that is stored
    /// later.
    ///
    /// # Panics
    /// Panics if the lengths differ.
    pub fn copy(&mut self, into: &mut [u8], from: &[u8]) {
        if !CHOICE || from.len() < Self::LONG {
            return into.copy_from_slice(from);
        }
        let began = Instant::now();
        if self.0.is_past_caches() {
            copy_lines(into, from);
        } else {
            into.copy_from_slice(from);
        }
        self.0.record(from.len(), began.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAR: u64 = 13_000;
    const NEAR: u64 = 1_500;

    /// Returns how many of `messages` messages of 32 KiB go through the caches, if one takes `nanos` nanoseconds there, and 1,000 past them.
    fn cached(times: &mut StoreTimes, messages: u32, nanos: u64) -> u32 {
        let mut count = 0;
        for _ in 0..messages {
            let stores = times.next(false);
            count += u32::from(stores == Stores::Cached);
            let nanos = if stores == Stores::Cached { nanos } else { 1_000 };
            times.record(stores, 32 << 10, Duration::from_nanos(nanos));
        }
        count
    }

    #[test]
    fn messages_go_past_the_caches_where_processors_share_none_and_through_them_where_they_do() {
        let times = &mut { StoreTimes::NEW };
        assert_eq!(cached(times, FIRST_TRIAL, FAR), 0);
        assert_eq!(cached(times, 10 * (TRIAL + 1), FAR), 10);
        // One of them migrates: noticed at the next trial, and then all go through.
        assert!(cached(times, 2 * TRIAL, NEAR) >= TRIAL);
        assert_eq!(cached(times, 100, NEAR), 100);
        // And back.
        assert!(cached(times, TRIAL, FAR) < 8);
    }

    #[test]
    fn messages_that_go_one_way_between_two_take_the_way_that_costs_their_writer_less() {
        let mut times = StoreTimes { non_temporal: 30, ..StoreTimes::NEW };
        for (cached, stores) in [(40, Stores::NonTemporal), (30, Stores::NonTemporal), (29, Stores::Cached)] {
            times.cached = cached;
            assert_eq!(times.next(true), stores, "{cached}");
            assert_eq!(times.next(false), Stores::Cached, "{cached}");
        }
    }

    #[test]
    fn one_message_that_was_interrupted_changes_nothing() {
        let times = &mut { StoreTimes::NEW };
        cached(times, 100, FAR);
        times.record(Stores::NonTemporal, 1000, Duration::from_secs(1));
        assert_eq!(cached(times, 100, FAR), 0);
        cached(times, TRIAL, NEAR);
        times.record(Stores::Cached, 1000, Duration::from_secs(1));
        assert_eq!(cached(times, 100, NEAR), 100);
    }

    /// Returns how many of `bytes` bytes go past the caches, in copies of 64 KiB that take the given microseconds with each kind.
    fn non_temporal(choice: &mut StoreChoice, bytes: usize, non_temporal: u64, cached: u64) -> usize {
        const COPY: usize = 64 << 10;
        let copies = (0..bytes / COPY).map(|_| {
            let stores = choice.stores;
            let micros = if stores == Stores::NonTemporal { non_temporal } else { cached };
            choice.record(COPY, Duration::from_micros(micros));
            stores
        });
        copies.filter(|stores| *stores == Stores::NonTemporal).count() * COPY
    }

    #[test]
    fn copies_go_by_the_way_that_takes_less_time_and_the_other_is_tried() {
        const ALL: usize = 2 * StoreChoice::COPIES.rest;
        let choice = &mut StoreChoice::new(StoreChoice::COPIES);
        assert_eq!(non_temporal(choice, ALL, 12, 36), ALL - 2 * StoreChoice::COPIES.trial);
        // On one processor.
        assert!(non_temporal(choice, ALL, 4, 2) <= StoreChoice::COPIES.rest + StoreChoice::COPIES.trial);
        assert!(non_temporal(choice, ALL, 4, 2) <= 2 * StoreChoice::COPIES.trial);
        // A kind that has become twice as expensive as the other was is abandoned at once.
        assert!(non_temporal(choice, ALL, 12, 36) >= ALL - 2 * StoreChoice::COPIES.trial);
    }

    #[test]
    fn blocks_go_past_the_caches_again_soon_when_a_processor_changes_and_unless_the_other_way_is_clearly_better()
     {
        const BLOCKS: Rounds = StoreChoice::BLOCKS;
        let choice = &mut StoreChoice::of_blocks();
        assert!(non_temporal(choice, BLOCKS.rest, 19, 18) > BLOCKS.rest - 3 * BLOCKS.trial);
        assert!(non_temporal(choice, BLOCKS.rest, 19, 10) < BLOCKS.rest);
        assert_eq!(choice.stores, Stores::Cached);
        // One of them migrates: no copy costs twice what the other kind did.
        assert!(
            non_temporal(choice, BLOCKS.rest, 20, 36) > BLOCKS.rest - BLOCKS.cached_rest - 3 * BLOCKS.trial
        );
    }

    #[test]
    fn a_trial_of_blocks_longer_than_itself_is_decided_by_one_whose_time_counts() {
        const LONG: usize = 64 << 20;
        let choice = &mut StoreChoice::of_blocks();
        for _ in 0..40 {
            let micros = if choice.stores == Stores::Cached { 36_000 } else { 12_000 };
            assert!(choice.is_trial || choice.stores == Stores::NonTemporal);
            choice.record(LONG, Duration::from_micros(micros));
        }
        assert!(choice.cached.0 > choice.non_temporal.0);
    }

    #[test]
    fn one_copy_that_was_interrupted_leads_to_no_more_than_a_trial() {
        let choice = &mut StoreChoice::new(StoreChoice::COPIES);
        non_temporal(choice, StoreChoice::COPIES.rest, 12, 36);
        choice.record(64 << 10, Duration::from_secs(1));
        assert!(
            non_temporal(choice, StoreChoice::COPIES.rest, 12, 36)
                >= StoreChoice::COPIES.rest - 2 * StoreChoice::COPIES.trial
        );
    }

    #[test]
    fn copies_are_whole_wherever_they_begin_and_end() {
        const LONG: usize = Copier::LONG;
        let from: Vec<u8> = (0..3 * LONG).map(|i| (i % 251) as u8).collect();
        let mut copier = Copier::default();
        for (start, length) in
            (0..70).flat_map(|start| [0, 1, 64, LONG - 1, LONG, 2 * LONG + 65].map(|l| (start, l)))
        {
            let mut into = vec![0xee; from.len()];
            copier.copy(&mut into[start..start + length], &from[..length]);
            assert_eq!(into[start..start + length], from[..length], "{length} bytes from {start} on");
            assert!(into[..start].iter().chain(&into[start + length..]).all(|byte| *byte == 0xee));
        }
    }
}
