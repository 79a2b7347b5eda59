//! By which way a member stores long messages for another one.
//!
//! Between processors that share a cache a message that stays there is read at once: two members that each store 1 MiB and read the other's take 91 us,
//! and 152 by way of the memory. Between others each line has first to be taken away from the reader's cache: the same take 525 us, and 130 by
//! way of the memory. Nobody says which it is, and it changes whenever one of the two runs elsewhere. But the writer sees it: 32 KiB through
//! its caches take it 13 us then, and else as long as past them, 1 to 2 us. So it looks at the clock, and now and then tries.
//!
//! This is so where long messages go both ways. Where they go one way, one reads while the other writes, and 1 MiB takes 70 us by way of the
//! memory and 90 by that of the caches, since each line has to leave the cache of the writer.

use std::time::{Duration, Instant};

use super::super::words::{CHOICE, Way};

/// Messages go through the caches unless that takes so many times as long as past them.
const LONGER: u64 = 4;
/// After so many messages past the caches one goes through them.
const TRIAL: u32 = 1024;
/// The first one does when all slots have been in use.
const FIRST_TRIAL: u32 = 64;

/// What a writer knows of both ways to a reader.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ways {
    /// How long the last message took by each, in picoseconds per byte.
    past: u64,
    through: u64,
    /// Messages until the next trial.
    left: u32,
}

impl Ways {
    /// Past the caches, until more is known.
    pub(super) const NEW: Self = Self { past: 1, through: u64::MAX, left: FIRST_TRIAL };

    /// Stores a message of so many bytes by the way that is the better one, or is tried; `is_exchange` says that another has come for it.
    pub(super) fn store(&mut self, is_exchange: bool, bytes: usize, store: impl FnOnce(Way)) {
        if !(CHOICE && is_exchange) {
            return store(Way::Past);
        }
        let way = self.next();
        let began = Instant::now();
        store(way);
        self.note(way, bytes, began.elapsed());
    }

    fn next(&mut self) -> Way {
        if self.through / LONGER < self.past {
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

#[cfg(test)]
mod tests {
    use super::*;

    const FAR: u64 = 13_000;
    const NEAR: u64 = 1_500;

    /// How many of so many messages of 32 KiB go through the caches, if one takes so many nanoseconds there, and else 1,000.
    fn through(ways: &mut Ways, messages: u32, nanos: u64) -> u32 {
        let mut count = 0;
        for _ in 0..messages {
            let way = ways.next();
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
    fn one_message_that_was_interrupted_changes_nothing() {
        let ways = &mut { Ways::NEW };
        through(ways, 100, FAR);
        ways.note(Way::Past, 1000, Duration::from_secs(1));
        assert_eq!(through(ways, 100, FAR), 0);
        through(ways, TRIAL, NEAR);
        ways.note(Way::Through, 1000, Duration::from_secs(1));
        assert_eq!(through(ways, 100, NEAR), 100);
    }
}
