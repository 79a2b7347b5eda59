//! By which way a writer stores what another processor reads next.
//!
//! Past the caches the bytes go to memory, whence the reader fetches them; through them they stay in the writer's cache, and each line that the
//! reader had is taken away from its own first. Which is better depends on where the two run, which nobody says and which changes whenever one
//! of them runs elsewhere. But the writer sees it: so it looks at the clock, and now and then tries the other way.
//!
//! **Messages of a slate**, copied in by one and out by the other. Between processors that share a cache a message that stays there is read at
//! once: two members that each store 1 MiB and read the other's take 91 us, and 152 by way of the memory. Between others the same take 525 us,
//! and 130 by way of the memory; 32 KiB through its caches take a writer 13 us then, and else as long as past them, 1 to 2 us. So it is where
//! long messages go both ways, or of several members at a time (four on two processors that share a cache: a broadcast of 1 MiB takes 160 us through
//! it and 225 past it, a reduce 250 and 410). Where they go one way between two, one reads while the other writes, and 1 MiB takes 70 us by way of the memory
//! and 50 or 90 by that of the caches, whichever of several processors with a common cache these are: there it is what takes the writer less.
//!
//! **Blocks** of 128 KiB that are written by one and read by another where they lie, 8 in turn. Between processors that share a cache the writer
//! takes 11.2 us through its caches and 5.4 past them, the reader 2.3 and 5.4: the slower of the two is what a stream goes by, and the sum what
//! those have that read and write in turn. Both are less past the caches. Between others that is so by far. But on one processor the
//! writer takes 3.8 us through and 6.5 past, and the reader 2.3 and 3.8.

use std::time::{Duration, Instant};

use super::words::{CHOICE, Way, copy_lines};

/// Messages of a slate go through the caches unless that takes so many times as long as past them; those that go one way between two if it takes less.
const LONGER: u64 = 4;
/// After so many messages past the caches one goes through them.
const TRIAL: u32 = 1024;
/// The first one does when all slots have been in use.
const FIRST_TRIAL: u32 = 64;

/// What a writer of messages of a slate knows of both ways to a reader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ways {
    /// How long the last message took by each, in picoseconds per byte.
    past: u64,
    through: u64,
    /// Messages until the next trial.
    left: u32,
}

impl Ways {
    /// Past the caches, until more is known.
    pub(crate) const NEW: Self = Self { past: 1, through: u64::MAX, left: FIRST_TRIAL };

    /// Stores so many bytes by the way that is the better one, or is tried.
    pub(crate) fn store(&mut self, is_one_way: bool, bytes: usize, store: impl FnOnce(Way)) {
        if !CHOICE {
            return store(Way::Past);
        }
        let way = self.next(is_one_way);
        let began = Instant::now();
        store(way);
        self.note(way, bytes, began.elapsed());
    }

    fn next(&mut self, is_one_way: bool) -> Way {
        if self.through / if is_one_way { 1 } else { LONGER } < self.past {
            return Way::Through;
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Way::Past
            }
            None => {
                self.left = TRIAL;
                Way::Through
            }
        }
    }

    fn note(&mut self, way: Way, bytes: usize, time: Duration) {
        let known = match way {
            Way::Past => &mut self.past,
            Way::Through => &mut self.through,
        };
        let picos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).saturating_mul(1000);
        // One that was interrupted says little.
        *known = (picos / bytes.max(1) as u64).min(known.saturating_mul(2)).max(1);
    }
}

/// Copies bytes into memory that another processor reads next, for one that writes to one reader.
///
/// Now and then it tries the other way, for as many bytes as make the rows of a link go round: what was written last by the other way says nothing
/// yet. It does so at once when the one that it has taken costs twice as much as the other has.
#[derive(Clone, Copy, Debug)]
pub struct Copier {
    way: Way,
    is_trial: bool,
    /// Bytes until the next trial, or until this one ends.
    left: usize,
    past: Cost,
    through: Cost,
}

/// How long copies take, in picoseconds per byte; 0: not known.
#[derive(Clone, Copy, Debug, Default)]
struct Cost(u64);

impl Cost {
    /// One copy that was interrupted says little: so it counts for no more than twice as long as is known.
    fn note(&mut self, bytes: usize, time: Duration) {
        let picos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).saturating_mul(1000);
        let cost = (picos / bytes.max(1) as u64).max(1);
        let known = if self.0 == 0 { cost } else { self.0 };
        self.0 = (known + cost.clamp(known / 2, known.saturating_mul(2))).div_ceil(2);
    }
}

impl Default for Copier {
    /// Past the caches, until more is known.
    fn default() -> Self {
        let unknown = Cost::default();
        Self { way: Way::Past, is_trial: false, left: Self::REST / 8, past: unknown, through: unknown }
    }
}

impl Copier {
    /// From so many bytes on there is a choice.
    pub const LONG: usize = 8 << 10;
    /// Bytes of a trial: two rows of 8 blocks.
    const TRIAL: usize = 2 << 20;
    /// Bytes between two trials.
    const REST: usize = 128 << 20;

    /// Copies bytes, long ones past the caches or through them as takes less time. They are visible before anything that is stored later.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn copy(&mut self, into: &mut [u8], from: &[u8]) {
        if !CHOICE || from.len() < Self::LONG {
            return into.copy_from_slice(from);
        }
        let began = Instant::now();
        match self.way {
            Way::Past => copy_lines(into, from),
            Way::Through => into.copy_from_slice(from),
        }
        self.note(from.len(), began.elapsed());
    }

    /// A copy of so many bytes has taken so long.
    fn note(&mut self, bytes: usize, time: Duration) {
        let (this, other) = match self.way {
            Way::Past => (&mut self.past, self.through),
            Way::Through => (&mut self.through, self.past),
        };
        this.note(bytes, time);
        let is_dear = other.0 > 0 && this.0 / 2 > other.0;
        self.left = self.left.saturating_sub(bytes);
        if self.left > 0 && (self.is_trial || !is_dear) {
            return;
        }
        if self.is_trial {
            self.way = if self.past.0 <= self.through.0 { Way::Past } else { Way::Through };
        } else {
            self.way = if self.way == Way::Past { Way::Through } else { Way::Past };
        }
        self.is_trial = !self.is_trial;
        self.left = if self.is_trial { Self::TRIAL } else { Self::REST };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAR: u64 = 13_000;
    const NEAR: u64 = 1_500;

    /// How many of so many messages of 32 KiB go through the caches, if one takes so many nanoseconds there, and else 1,000.
    fn through(ways: &mut Ways, messages: u32, nanos: u64) -> u32 {
        let mut count = 0;
        for _ in 0..messages {
            let way = ways.next(false);
            count += u32::from(way == Way::Through);
            let nanos = if way == Way::Through { nanos } else { 1_000 };
            ways.note(way, 32 << 10, Duration::from_nanos(nanos));
        }
        count
    }

    #[test]
    fn messages_go_past_the_caches_where_processors_share_none_and_through_them_where_they_do() {
        let ways = &mut { Ways::NEW };
        assert_eq!(through(ways, FIRST_TRIAL, FAR), 0);
        assert_eq!(through(ways, 10 * (TRIAL + 1), FAR), 10);
        // One of them runs elsewhere: with the next trial, and then all.
        assert!(through(ways, 2 * TRIAL, NEAR) >= TRIAL);
        assert_eq!(through(ways, 100, NEAR), 100);
        // And back.
        assert!(through(ways, TRIAL, FAR) < 8);
    }

    #[test]
    fn messages_that_go_one_way_between_two_take_the_way_that_costs_their_writer_less() {
        let mut ways = Ways { past: 30, ..Ways::NEW };
        for (through, way) in [(40, Way::Past), (30, Way::Past), (29, Way::Through)] {
            ways.through = through;
            assert_eq!(ways.next(true), way, "{through}");
            assert_eq!(ways.next(false), Way::Through, "{through}");
        }
    }

    #[test]
    fn one_message_that_was_interrupted_changes_nothing() {
        let ways = &mut { Ways::NEW };
        through(ways, 100, FAR);
        ways.note(Way::Past, 1000, Duration::from_secs(1));
        assert_eq!(through(ways, 100, FAR), 0);
        through(ways, TRIAL, NEAR);
        ways.note(Way::Through, 1000, Duration::from_secs(1));
        assert_eq!(through(ways, 100, NEAR), 100);
    }

    /// How many bytes of so many go past the caches, in copies of 64 KiB that take so many microseconds by each way.
    fn past(copier: &mut Copier, bytes: usize, past: u64, through: u64) -> usize {
        const COPY: usize = 64 << 10;
        let ways = (0..bytes / COPY).map(|_| {
            let way = copier.way;
            let micros = if way == Way::Past { past } else { through };
            copier.note(COPY, Duration::from_micros(micros));
            way
        });
        ways.filter(|way| *way == Way::Past).count() * COPY
    }

    #[test]
    fn copies_go_by_the_way_that_takes_less_time_and_the_other_is_tried() {
        const ALL: usize = 2 * Copier::REST;
        let copier = &mut Copier::default();
        assert_eq!(past(copier, ALL, 12, 36), ALL - 2 * Copier::TRIAL);
        // On one processor.
        assert!(past(copier, ALL, 4, 2) <= Copier::REST + Copier::TRIAL);
        assert!(past(copier, ALL, 4, 2) <= 2 * Copier::TRIAL);
        // What has become twice as dear as the other was is left at once.
        assert!(past(copier, ALL, 12, 36) >= ALL - 2 * Copier::TRIAL);
    }

    #[test]
    fn one_copy_that_was_interrupted_leads_to_no_more_than_a_trial() {
        let copier = &mut Copier::default();
        past(copier, Copier::REST, 12, 36);
        copier.note(64 << 10, Duration::from_secs(1));
        assert!(past(copier, Copier::REST, 12, 36) >= Copier::REST - 2 * Copier::TRIAL);
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
