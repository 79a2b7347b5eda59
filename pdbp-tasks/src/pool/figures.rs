//! How long tasks of a kind take.

use std::time::Duration;

/// Four steps per power of two.
const STEPS: usize = 4 * 64;
/// Below this number of ended tasks nothing is reported about how long most of them take.
const FEW: u64 = 10;

/// The running times of one kind.
#[derive(Clone, Debug)]
pub(super) struct Figures {
    ends: u64,
    mean_ns: f64,
    histogram: Box<[u64]>,
}

impl Default for Figures {
    fn default() -> Self {
        Self { ends: 0, mean_ns: 0.0, histogram: vec![0; STEPS].into() }
    }
}

impl Figures {
    pub(super) fn record(&mut self, ran_ns: u64) {
        self.ends += 1;
        // Recent tasks weigh most, so that the mean follows changes.
        self.mean_ns += (ran_ns as f64 - self.mean_ns) / self.ends.min(32) as f64;
        if let Some(count) = self.histogram.get_mut(step(ran_ns)) {
            *count += 1;
        }
    }

    pub(super) fn mean(&self) -> Option<Duration> {
        (self.ends > 0).then(|| Duration::from_nanos(self.mean_ns as u64))
    }

    /// The time that nine of ten did not exceed; `None` while too few have ended.
    pub(super) fn most(&self) -> Option<Duration> {
        if self.ends < FEW {
            return None;
        }
        let mut left = self.ends - self.ends / 10;
        let step = self.histogram.iter().position(|count| {
            left = left.saturating_sub(*count);
            left == 0
        })?;
        Some(Duration::from_nanos(end_of(step)))
    }
}

fn step(ns: u64) -> usize {
    let log = ns.max(4).ilog2() as usize;
    log * 4 + (ns.max(4) >> (log - 2) & 3) as usize
}

/// The least value above the step.
fn end_of(step: usize) -> u64 {
    let (log, quarter) = (step / 4, step % 4);
    (quarter as u64 + 5).checked_shl(log.saturating_sub(2) as u32).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nine_of_ten_are_below_what_most_take_and_it_is_no_more_than_a_quarter_above() {
        let mut figures = Figures::default();
        for ns in 1..=1000u64 {
            assert!(figures.ends >= FEW || figures.most().is_none());
            figures.record(ns * 1000);
        }
        let most = figures.most().unwrap().as_nanos();
        assert!((900_000..=1_125_000).contains(&most), "{most}");
        assert!(figures.mean().unwrap() > Duration::from_micros(900), "the latest count most");
        for ns in [0, 1, 4, 5, 1 << 40, u64::MAX / 4] {
            assert!(end_of(step(ns)) > ns && end_of(step(ns)) <= ns.max(4) + ns.max(4) / 4 + 1, "{ns}");
        }
    }
}
