use super::{Growth, SpacePolicy, capped, published};
use crate::matrix::RowSpace;

/// A threshold for the space utilisation SU, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threshold(u16);

impl Threshold {
    /// 0.75.
    pub const DEFAULT: Self = Self(750);

    /// `permille` thousandths; `None` unless 500 ≤ `permille` < 1000. (From 0.5 up, RSR ≥ 1, so the growth is not negative.)
    pub const fn from_permille(permille: u16) -> Option<Self> {
        if permille >= 500 && permille < 1000 { Some(Self(permille)) } else { None }
    }

    /// The value in thousandths.
    pub const fn permille(self) -> u16 {
        self.0
    }

    /// The smallest space in which `used` elements do not exceed the threshold.
    pub(super) fn enough_for(self, used: u32) -> u32 {
        (u64::from(used) * 1000).div_ceil(u64::from(self.0)).min(u64::from(u32::MAX)) as u32
    }

    /// Whether SU of the row exceeds the threshold.
    pub(super) fn exceeded(self, row: &RowSpace) -> bool {
        u64::from(row.used()) * 1000 > u64::from(self.0) * u64::from(row.real())
    }
}

/// Algorithm 1 of S1, "threshold-based UMB allocation", as published. When a row's `recv` cursor reaches its critical real
/// element, SU > threshold, DF < 1 and blocks are free, the real space grows by `m = (RSR − 1) · curSize` blocks, rounded down
/// and limited by the row's virtual space and the free blocks. The row never gives space back.
///
/// With `used = curSize`, RSR is infinite, and the row grows to those limits.
#[derive(Clone, Copy, Debug)]
pub struct ThresholdAllocation {
    /// The value of SU above which a row grows.
    pub threshold: Threshold,
}

impl SpacePolicy for ThresholdAllocation {
    fn at_critical(&self, row: &RowSpace, free: u32) -> Growth {
        if !self.threshold.exceeded(row) || row.virtual_space() == 0 {
            return Growth::Keep;
        }
        capped(row, published(row), free)
    }
}
