//! Several runs of the same.

use std::error::Error;
use std::time::Duration;

/// GB/s (10^9 bytes) of several runs, or whatever they measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Runs {
    pub(crate) median: f64,
    pub(crate) lowest: f64,
    pub(crate) highest: f64,
}

impl Runs {
    /// Of the runs, one or more.
    pub(crate) fn of(mut all: Vec<f64>) -> Self {
        all.sort_by(f64::total_cmp);
        let at = |n: usize| all.get(n).copied().unwrap_or(f64::NAN);
        Self { median: at(all.len() / 2), lowest: at(0), highest: at(all.len().saturating_sub(1)) }
    }

    /// Rates of so many runs, each of which moves so many bytes, after one that does not count.
    pub(crate) fn measure(
        runs: usize,
        bytes: usize,
        mut run: impl FnMut() -> Result<Duration, Box<dyn Error>>,
    ) -> Result<Self, Box<dyn Error>> {
        run()?;
        let rates = (0..runs).map(|_| Ok(rate(bytes, run()?)));
        Ok(Self::of(rates.collect::<Result<_, Box<dyn Error>>>()?))
    }
}

/// GB/s.
pub(crate) fn rate(bytes: usize, time: Duration) -> f64 {
    bytes as f64 / time.max(Duration::from_nanos(1)).as_secs_f64() / 1e9
}
