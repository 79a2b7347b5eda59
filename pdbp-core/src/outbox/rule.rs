//! When an open block that is not full leaves.

use super::{Blocks, Lane, Outbox};
use crate::cdu::Packer;
use crate::flaw::Flaw;
use crate::id::{NodeId, Time};
use crate::umb::OpenBlock;

/// A block waits at most this many times [`Rule::flush_after`] for its peer to read everything sent before.
pub const PATIENCE: u64 = 50;

/// The parameters of an outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Nanoseconds after which a block leaves even if it is not full, provided that its peer has read everything sent before.
    pub flush_after: u64,
    /// Size at which a block of short messages leaves, in bytes of CDUs.
    pub pack: usize,
}

/// Which open blocks leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// All of them.
    All,
    /// Those whose deadline has passed at this time.
    Past(Time),
    /// Those, plus any whose peer has read everything sent before: the owner has nothing else to do.
    Idle(Time),
    /// Those whose peer has at most this many earlier blocks to read: the owner has nothing else to do, and will flush again soon.
    Behind(u32),
}

/// The result of flushing an outbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flushed {
    /// Blocks submitted.
    pub blocks: u32,
    /// When the oldest of the remaining open blocks was opened.
    pub left: Option<Time>,
}

impl Rule {
    /// When a block opened at `since` leaves if `backlog` earlier blocks have not been read.
    fn deadline(&self, since: Time, backlog: u32) -> Time {
        let times = if backlog == 0 { 1 } else { PATIENCE };
        since.after(self.flush_after.saturating_mul(times))
    }

    fn is_due(&self, since: Time, due: Due, backlog: impl FnOnce() -> u32) -> bool {
        let (now, idle) = match due {
            Due::All => return true,
            Due::Behind(most) => return backlog() <= most,
            Due::Past(now) => (now, false),
            Due::Idle(now) => (now, true),
        };
        if !idle && now.since(since) < self.flush_after {
            return false;
        }
        let backlog = backlog();
        idle && backlog == 0 || self.deadline(since, backlog) <= now
    }
}

impl Lane {
    /// Whether the lane has an open block that is due.
    #[inline]
    fn is_due(&self, rule: &Rule, due: Due, backlog: impl Fn(NodeId) -> u32) -> bool {
        let since = self.since;
        self.block.as_ref().is_some_and(|block| rule.is_due(since, due, || backlog(block.dest())))
    }
}

impl Outbox<'_> {
    /// Submits the open blocks that are due.
    #[inline]
    pub fn flush(&mut self, blocks: &mut impl Blocks, due: Due) -> Flushed {
        if self.open == 0 {
            return Flushed::default();
        }
        self.flush_open(blocks, due)
    }

    fn flush_open(&mut self, blocks: &mut impl Blocks, due: Due) -> Flushed {
        let Self { lanes, rule, open } = self;
        let mut flushed = 0;
        for lane in lanes.iter_mut() {
            // Taken only once it is known to be due, because moving a block's token is costly.
            if lane.is_due(rule, due, |dest| blocks.backlog(dest))
                && let Some(mut block) = lane.block.take()
            {
                if Flaw::EmptiesDue.strikes() {
                    block.rewind(Packer::new());
                }
                blocks.submit(block);
                (*open, flushed) = (*open - 1, flushed + 1);
                if *open == 0 {
                    break;
                }
            }
        }
        Flushed { blocks: flushed, left: self.oldest() }
    }

    /// Takes the next block that is due, starting at lane `at`, and sets `at` to the lane after it.
    #[inline(always)]
    pub(crate) fn next_due(
        &mut self,
        at: &mut usize,
        due: Due,
        backlog: impl Fn(NodeId) -> u32,
    ) -> Option<OpenBlock> {
        if self.open == 0 {
            return None;
        }
        let Self { lanes, rule, open } = self;
        // Taken only once it is known to be due, because moving a block's token is costly.
        while let Some(lane) = lanes.get_mut(*at) {
            *at += 1;
            if lane.is_due(rule, due, &backlog) {
                *open -= 1;
                return lane.block.take();
            }
        }
        None
    }

    /// Returns when the first open block leaves, given the current backlogs; `None` if none is open. A block that waits for its
    /// peer leaves earlier if the peer reads in the meantime.
    pub fn deadline(&self, backlog: impl Fn(NodeId) -> u32) -> Option<Time> {
        let open = self.open_lanes().filter_map(|lane| Some((lane.since, lane.block.as_ref()?)));
        open.map(|(since, block)| self.rule.deadline(since, backlog(block.dest()))).min()
    }

    /// When the oldest open block was opened.
    #[inline]
    fn oldest(&self) -> Option<Time> {
        if self.open == 0 {
            return None;
        }
        self.open_lanes().map(|lane| lane.since).min()
    }

    fn open_lanes(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.iter().filter(|lane| lane.block.is_some()).take(self.open)
    }
}
