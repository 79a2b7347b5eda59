//! When an open block leaves though it is not full.

use super::{Blocks, Lane, Outbox};
use crate::cdu::Packer;
use crate::flaw::Flaw;
use crate::id::{NodeId, Time};
use crate::umb::OpenBlock;

/// How many times [`Rule::flush_after`] a block waits for its peer to read what was sent before.
pub const PATIENCE: u64 = 50;

/// The constants of an outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Nanoseconds after which a block leaves though it is not full, if its peer has read all that was sent before.
    pub flush_after: u64,
    /// Bytes of CDUs after which a block of short messages leaves.
    pub pack: usize,
}

/// Which open blocks are to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// All of them.
    All,
    /// At this time: those whose time is over.
    Past(Time),
    /// The same, and as nothing else is to be done, those whose peer has read all that was sent before.
    Idle(Time),
}

/// What a look through an outbox has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flushed {
    /// Blocks submitted.
    pub blocks: u32,
    /// Since when the oldest of the blocks that are left is open.
    pub left: Option<Time>,
}

impl Rule {
    /// When a block that is open since `since` leaves, with so many blocks before it that nobody has read.
    fn deadline(&self, since: Time, backlog: u32) -> Time {
        let times = if backlog == 0 { 1 } else { PATIENCE };
        since.after(self.flush_after.saturating_mul(times))
    }

    fn is_due(&self, since: Time, due: Due, backlog: impl FnOnce() -> u32) -> bool {
        let (now, idle) = match due {
            Due::All => return true,
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
    /// Whether there is an open block that is due.
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
            // Taken when it is known that it is due, since a block's token is long.
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

    /// The next block that is due, of the lanes from number `at` on; `at` is set behind it.
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
        // Taken when it is known that it is due, since a block's token is long.
        while let Some(lane) = lanes.get_mut(*at) {
            *at += 1;
            if lane.is_due(rule, due, &backlog) {
                *open -= 1;
                return lane.block.take();
            }
        }
        None
    }

    /// When the first of the open blocks leaves, as far as is known now: one that waits for its peer leaves earlier if that reads.
    pub fn deadline(&self, backlog: impl Fn(NodeId) -> u32) -> Option<Time> {
        let open = self.open_lanes().filter_map(|lane| Some((lane.since, lane.block.as_ref()?)));
        open.map(|(since, block)| self.rule.deadline(since, backlog(block.dest()))).min()
    }

    /// Since when the oldest of the open blocks is open.
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
