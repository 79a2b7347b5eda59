use super::{Growth, SpacePolicy, Threshold, capped};
use crate::matrix::{RowSpace, Side};

/// The default: rows grow when somebody waits for them, within a share of what is free, and give back what they do not use.
///
/// **A row of SM grows when a writer waits**, by a quarter. No look-ahead is needed: a free block is available at once.
///
/// **A row of RM grows when the peer wants more** than `threshold` of it ([`RowSpace::wanted`]), to what leaves it below. Here
/// look-ahead counts: the peer hears of its credit half a round trip later. Algorithm 1 looks at blocks that have arrived and are
/// not read; on a link with latency most are on their way, and a row that is too short for the link never seems full. It grows to
/// twice of what the peer wants where that is cheap: within its share of credit alone, and within an eighth of the free blocks if
/// each element takes one. When all that the peer may use has arrived and is not read, the row doubles, since no block is left
/// that could say what the peer wants.
///
/// **Shares.** No row grows beyond `share` times what is then free (dynamic thresholds: Choudhury and Hahne, 1998). Of n rows that
/// want all they can get each has 1 / (n + 1/`share`) of the memory; one alone leaves a third of it. So rows that fall behind cannot
/// take what those behind them in the queue of their host would need to catch up. When a row waits and has no share left, rows
/// give back what they have beyond theirs as it comes free, and what they do not use.
///
/// **Equal parts.** What a row has is safe from those that wait up to its equal part ([`RowSpace::equal_part`]) as long as it is used:
/// of a row of SM, twice what it used lately; of a row of credit, all of that until it has been idle for `patience` intervals,
/// since credit takes a round trip to come back. So links that are busy by turns, or all at once after a pause, do not take it from
/// each other.
///
/// **Hysteresis.** A row shrinks only when, for `patience` intervals in a row, the most it used was under a quarter of its space,
/// and then to twice the largest of those peaks: SU is at most 0.5 afterwards, below the value at which it would grow again. So a
/// steady load moves a row at most once in each direction. Patience is long, since others that wait are helped at once.
///
/// `pdbp sim --compare all` measures it against Algorithm 1 and static allocations; `benches/figures/policies.md` has the figures.
#[derive(Clone, Copy, Debug)]
pub struct Adaptive {
    /// The share of a row of RM that the peer may want without its growing.
    pub threshold: Threshold,
    /// How many times as large as what is free a row may be.
    pub share: u32,
    /// No row shrinks below so many elements.
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

    /// Growth by `wanted` blocks, or as far as the row then has no more than its share; one at least while it has less.
    fn within_share(&self, row: &RowSpace, wanted: u32, free: u32) -> Growth {
        let share = free.saturating_mul(self.share);
        // real + n <= share * (free - n)
        let most = match share.checked_sub(row.real()) {
            Some(room) => (room / (self.share + 1)).max(1).min(free),
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
            // What is in reserve is not worth what others give for it.
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
            // What is vacant beyond the share can be had again at once when it is needed.
            Side::Send => {
                let kept = row.recent_peak().saturating_mul(2).min(row.equal_part());
                row.used().max(free.saturating_mul(self.share)).max(kept)
            }
            // What seems vacant may be on its way.
            Side::Posted | Side::Credit if row.idle_intervals() >= self.patience => row.recent_peak(),
            Side::Posted | Side::Credit => row.recent_peak().max(row.equal_part()),
        };
        row.real().saturating_sub(used.max(self.least)).min(row.vacant())
    }
}
