//! Density k: how many blocks of a link go into one column. A faster link has more, which is how S2 balances its flows.

use std::time::{Duration, Instant};

/// How long a column waits for rows that have fewer blocks than their k, and the period over which rates are measured: ts of S2.
pub(crate) const TS: Duration = Duration::from_millis(5);
/// The maximum of k.
pub(crate) const MOST: usize = 16;

/// The rate of a link, in blocks per [`TS`].
#[derive(Debug)]
pub(crate) struct Density {
    k: usize,
    /// When counting began, and how many blocks the peer had taken by then.
    since: Option<(Instant, u64)>,
}

impl Density {
    pub(crate) fn new() -> Self {
        Self { k: 1, since: None }
    }

    pub(crate) fn k(&self) -> usize {
        self.k
    }

    /// Updates k, the peer having taken `taken` blocks by now.
    pub(crate) fn measure(&mut self, now: Instant, taken: u64) {
        let (since, before) = *self.since.get_or_insert((now, taken));
        let elapsed = now.saturating_duration_since(since);
        if elapsed < TS {
            return;
        }
        let blocks = u128::from(taken.saturating_sub(before));
        let rate = blocks * TS.as_nanos() / elapsed.as_nanos().max(1);
        self.k = usize::try_from(rate).unwrap_or(MOST).clamp(1, MOST);
        self.since = Some((now, taken));
    }

    /// Restarts counting, with another session or connection.
    pub(crate) fn forget(&mut self) {
        self.since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_faster_link_has_the_greater_density() {
        let start = Instant::now();
        for (blocks_per_second, expected) in [(10, 1), (400, 2), (1000, 5), (100_000, MOST)] {
            let mut density = Density::new();
            for step in 0..=4u32 {
                density.measure(start + 10 * TS * step, u64::from(step) * blocks_per_second / 20);
            }
            assert_eq!(density.k(), expected, "{blocks_per_second} blocks per second");
        }
    }

    #[test]
    fn it_follows_a_link_that_slows_down() {
        let start = Instant::now();
        let mut density = Density::new();
        density.measure(start, 0);
        density.measure(start + TS, 100);
        assert_eq!(density.k(), MOST);
        density.measure(start + TS / 2 * 3, 100);
        assert_eq!(density.k(), MOST, "not before ts is over");
        density.measure(start + 3 * TS, 104);
        assert_eq!(density.k(), 2);
    }
}
