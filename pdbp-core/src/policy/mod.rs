//! How much space a row gets: the threshold algorithm and its alternatives.
//!
//! A policy is given one row ([`RowSpace`]) and the number of free blocks, and decides how the row's real space changes. The same
//! policy serves send queues (SCBP) and receive credit (RCBP). The engine consults it
//!
//! * when a row's `recv` cursor reaches its critical real element ([`SpacePolicy::at_critical`], Algorithm 1 of S1),
//! * when a writer waits because the row has no vacant element, or the last block that a peer may send has arrived
//!   ([`SpacePolicy::at_stall`]),
//! * when a block has arrived whose sender could use more than half of the row ([`SpacePolicy::at_request`]),
//! * at the end of every interval ([`SpacePolicy::surplus`]), and for rows that could help one that is waiting
//!   ([`SpacePolicy::spare`]).

mod adaptive;
mod choice;
mod fixed;
#[cfg(test)]
mod tests;
mod threshold;

pub use adaptive::Adaptive;
pub use choice::Choice;
pub use fixed::Fixed;
pub use threshold::{Threshold, ThresholdAllocation};

use crate::matrix::RowSpace;

/// A policy's decision for a row that wants to grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// The space stays as it is.
    Keep,
    /// The real space grows by this many blocks, from the critical virtual element on.
    By(u32),
    /// The row should grow, but no block is free. Counted in the row's statistics as a notice to the user.
    Exhausted,
}

/// A policy for the space of rows. See the [module](self) for when it is consulted.
pub trait SpacePolicy {
    /// The `recv` cursor has reached the critical real element; `free` blocks are free.
    fn at_critical(&self, row: &RowSpace, free: u32) -> Growth;

    /// An element of this row is needed while all are in use; `free` blocks are free. For SM, the engine does not ask about a row
    /// without virtual elements.
    fn at_stall(&self, row: &RowSpace, free: u32) -> Growth {
        let _ = (row, free);
        Growth::Keep
    }

    /// For RM: a block has arrived whose sender could use more than half of the row ([`RowSpace::wanted`]); `free` blocks are free.
    fn at_request(&self, row: &RowSpace, free: u32) -> Growth {
        let _ = (row, free);
        Growth::Keep
    }

    /// At the end of an interval: returns how many elements the row gives back. [`RowSpace::peak`] is its maximum use in the
    /// interval; [`RowSpace::idle_intervals`] is the number of intervals for which that has been far below its space.
    fn surplus(&self, row: &RowSpace) -> u32 {
        let _ = row;
        0
    }

    /// Another row is waiting and no block is left for it: returns how many elements this row can spare now. `free` blocks are
    /// free.
    fn spare(&self, row: &RowSpace, free: u32) -> u32 {
        let _ = (row, free);
        0
    }
}

/// Growth according to Algorithm 1, `m = (RSR − 1) · curSize`, rounded down; `u64::MAX` for a row without vacant elements. (A row
/// of RM can have more elements in use than real ones: its peer sent before it learnt that the row had shrunk.)
fn published(row: &RowSpace) -> u64 {
    let (used, real, unused) = (u64::from(row.used()), u64::from(row.real()), u64::from(row.vacant()));
    // (RSR − 1) · curSize = (used / unused − 1) · curSize = (used − unused) · curSize / unused.
    used.saturating_sub(unused).saturating_mul(real).checked_div(unused).unwrap_or(u64::MAX)
}

/// Growth by `wanted` blocks, capped by the virtual space left and the free blocks.
fn capped(row: &RowSpace, wanted: u64, free: u32) -> Growth {
    let limit = row.virtual_space().min(free);
    match (wanted, limit) {
        (0, _) => Growth::Keep,
        (_, 0) if row.virtual_space() > 0 => Growth::Exhausted,
        (_, 0) => Growth::Keep,
        _ => Growth::By(wanted.min(u64::from(limit)) as u32),
    }
}
