use super::{Growth, SpacePolicy, Threshold, capped};
use crate::matrix::{RowSpace, Side};

/// The default: rows grow when they are waited for, within a share of the free space, and give back what they do not use.
///
/// **A row of SM grows when a writer waits**, by a quarter. It needs no look-ahead, since a free block is available at once.
///
/// **A row of RM grows when the peer wants more** than `threshold` of it ([`RowSpace::wanted`]), to the size at which this is
/// below the threshold again. Here look-ahead matters: the peer learns of its credit half a round trip later. Algorithm 1
/// considers blocks that have arrived and are unread; on a link with latency, most blocks are in flight, and a row too short for
/// the link never appears full. The row grows to twice what the peer wants where that is cheap: within its share if it is credit
/// alone, and within an eighth of the free blocks if each element takes a block. When everything that the peer may send has
/// arrived and is unread, the row doubles, since no block is left that could report what the peer wants.
///
/// **Shares.** No row grows beyond `share` times what is then free (dynamic thresholds: Choudhury and Hahne, 1998). If n rows
/// want as much as they can get, each has 1 / (n + 1/`share`) of the memory; a single one leaves a third of it free. So rows that
/// fall behind cannot take what those behind them in their host's queue would need to catch up. When a row waits and its share is
/// used up, other rows give back what they do not use, and what they have beyond their own share as it becomes free.
///
/// **Equal parts.** Rows that wait cannot take what another row has up to its equal part ([`RowSpace::equal_part`]), as long as
/// that is used: in a row of SM, up to twice its recent use; in a row of credit, all of it until the row has been idle for
/// `patience` intervals, since credit takes a round trip to return. So links that are busy in turn, or all at once after a pause,
/// do not take space from each other.
///
/// **Hysteresis.** A row shrinks only if its peak use was below a quarter of its space for `patience` consecutive intervals, and
/// then to twice the largest of those peaks: SU is at most 0.5 afterwards, below the value at which the row would grow again. So
/// a steady load changes a row at most once in each direction. Patience is long, since rows that wait are helped at once.
///
/// `pdbp sim --compare all` measures this policy against Algorithm 1 and static allocations; `benches/figures/policies.md` has
/// the figures.
#[derive(Clone, Copy, Debug)]
pub struct Adaptive {
    /// The fraction of a row of RM that the peer may want before it grows.
    pub threshold: Threshold,
    /// Maximum size of a row, as a multiple of what is free.
    pub share: u32,
    /// No row shrinks below this many elements.
    pub least: u32,
    /// Intervals of low use after which a row shrinks.
    pub patience: u32,
}

impl Adaptive {
    /// Threshold 0.75, share 2, at least 2 elements a row, patience 16 intervals.
    pub const DEFAULT: Self = Self { threshold: Threshold::DEFAULT, share: 2, least: 2, patience: 16 };

    fn floor(&self, row: &RowSpace) -> u32 {
        row.recent_peak().saturating_mul(2).max(self.least)
    }

    /// Growth by `wanted` blocks, or as much as the row's share allows; by at least one while the row has no more than its share.
    fn within_share(&self, row: &RowSpace, wanted: u32, free: u32) -> Growth {
        let share = free.saturating_mul(self.share);
        // real + n <= share * (free - n)
        let most = match share.checked_sub(row.real()) {
            Some(room) => (room / self.share.saturating_add(1)).max(1).min(free),
            None => 0,
        };
        capped(row, wanted.into(), most)
    }
}

impl SpacePolicy for Adaptive {
    fn at_critical(&self, _: &RowSpace, _: u32) -> Growth {
        Growth::Keep
    }

    fn at_stall(&self, row: &RowSpace, free: u32) -> Growth {
        let more = match row.side() {
            Side::Send => row.real() / 4,
            Side::Posted | Side::Credit => row.real(),
        };
        self.within_share(row, more.max(1), free)
    }

    fn at_request(&self, row: &RowSpace, free: u32) -> Growth {
        let enough = self.threshold.enough_for(row.wanted());
        let ample = row.wanted().saturating_mul(2).min(match row.side() {
            Side::Send | Side::Posted => free / 8,
            Side::Credit => free.saturating_mul(self.share),
        });
        match self.within_share(row, enough.max(ample).saturating_sub(row.real()), free) {
            // A reserve is not worth what other rows would give up for it.
            Growth::Exhausted if row.wanted() + 1 < row.real() => Growth::Keep,
            growth => growth,
        }
    }

    fn surplus(&self, row: &RowSpace) -> u32 {
        if row.idle_intervals() < self.patience {
            return 0;
        }
        row.real().saturating_sub(self.floor(row)).min(row.vacant())
    }

    fn spare(&self, row: &RowSpace, free: u32) -> u32 {
        let used = match row.side() {
            // Vacant elements beyond the share can be regained at once when needed.
            Side::Send => {
                let kept = row.recent_peak().saturating_mul(2).min(row.equal_part());
                row.used().max(free.saturating_mul(self.share)).max(kept)
            }
            // Elements that seem vacant may be in flight.
            Side::Posted | Side::Credit if row.idle_intervals() >= self.patience => row.recent_peak(),
            Side::Posted | Side::Credit => row.recent_peak().max(row.equal_part()),
        };
        row.real().saturating_sub(used.max(self.least)).min(row.vacant())
    }
}
