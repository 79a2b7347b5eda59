use super::{Adaptive, Fixed, Growth, SpacePolicy, ThresholdAllocation};
use crate::matrix::RowSpace;

/// A policy chosen at run time.
#[derive(Clone, Copy, Debug)]
pub enum Choice {
    /// See [`Adaptive`].
    Adaptive(Adaptive),
    /// See [`ThresholdAllocation`].
    Threshold(ThresholdAllocation),
    /// See [`Fixed`].
    Fixed(Fixed),
}

impl Choice {
    /// The default of the runtime: [`Adaptive::DEFAULT`].
    pub const DEFAULT: Self = Self::Adaptive(Adaptive::DEFAULT);

    fn chosen(&self) -> &dyn SpacePolicy {
        match self {
            Self::Adaptive(policy) => policy,
            Self::Threshold(policy) => policy,
            Self::Fixed(policy) => policy,
        }
    }
}

impl SpacePolicy for Choice {
    fn at_critical(&self, row: &RowSpace, free: u32) -> Growth {
        self.chosen().at_critical(row, free)
    }

    fn at_stall(&self, row: &RowSpace, free: u32) -> Growth {
        self.chosen().at_stall(row, free)
    }

    fn at_request(&self, row: &RowSpace, free: u32) -> Growth {
        self.chosen().at_request(row, free)
    }

    fn surplus(&self, row: &RowSpace) -> u32 {
        self.chosen().surplus(row)
    }

    fn spare(&self, row: &RowSpace, free: u32) -> u32 {
        self.chosen().spare(row, free)
    }
}
