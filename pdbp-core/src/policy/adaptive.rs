use super::{Growth, SpacePolicy, Threshold, capped, published};
use crate::matrix::RowSpace;

/// The default: rows grow as by Algorithm 1, but at most double at a time, also when somebody waits for them; rows that stay
/// far below their space give it back.
///
/// **Hysteresis.** A row grows above SU = `threshold` (≥ 0.5). It shrinks only when, for `patience` intervals in a row, the
/// most it used was under a quarter of its space, and then to twice the largest of those peaks: SU is at most 0.5
/// afterwards, below the value at which it would grow again. So a steady load moves a row at most once in each direction.
///
/// **Helping.** When a row waits and no block is free, rows with vacant elements beyond twice their recent peak give them
/// up at once.
#[derive(Clone, Copy, Debug)]
pub struct Adaptive {
    /// The value of SU above which a row grows.
    pub threshold: Threshold,
    /// No row shrinks below so many elements.
    pub least: u32,
    /// Intervals of low use after which a row shrinks.
    pub patience: u32,
}

impl Adaptive {
    /// Threshold 0.75, at least 2 elements a row, patience 4 intervals.
    pub const DEFAULT: Self = Self { threshold: Threshold::DEFAULT, least: 2, patience: 4 };

    fn floor(&self, row: &RowSpace) -> u32 {
        row.recent_peak().saturating_mul(2).max(self.least)
    }
}

impl SpacePolicy for Adaptive {
    fn at_critical(&self, row: &RowSpace, free: u32) -> Growth {
        if !self.threshold.exceeded(row) {
            return Growth::Keep;
        }
        capped(row, published(row).min(u64::from(row.real()).max(1)), free)
    }

    fn at_stall(&self, row: &RowSpace, free: u32) -> Growth {
        capped(row, u64::from(row.real()).max(1), free)
    }

    fn surplus(&self, row: &RowSpace) -> u32 {
        if row.quiet() < self.patience {
            return 0;
        }
        row.real().saturating_sub(self.floor(row)).min(row.vacant())
    }

    fn spare(&self, row: &RowSpace) -> u32 {
        row.real().saturating_sub(self.floor(row)).min(row.vacant())
    }
}
