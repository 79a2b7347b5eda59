//! The space of rows: blocks of the UMB for SM, credit for RM. Space is laid out, and grows and shrinks as the policy decides.

use managed::ManagedSlice;

use super::config::{Config, ConfigError};
use super::link::{Link, Links};
use super::posting::SPARE_POSTS;
use crate::id::Time;
use crate::matrix::{RowSpace, Side};
use crate::policy::{Growth, SpacePolicy};
use crate::routing::LinkId;
use crate::umb::{BlockMemory, BlockState, NIL, Umb};

/// A question to the policy about a row, given the number of blocks free for it.
type PolicyQuery<P> = fn(&P, &RowSpace, u32) -> Growth;

/// The allocation of blocks and credit to rows.
pub(super) struct Space<'a, P> {
    policy: P,
    /// SM: the blocks of each link's send row.
    sm: ManagedSlice<'a, u32>,
    /// Number of elements of a row.
    row: u32,
    /// Initial number of real elements of a row.
    initial: u32,
    /// Credit that no row of RM holds, for peers whose blocks are read in place.
    pub(super) credit: u32,
    /// Free blocks, and credit, reserved for links that may come up again.
    reserved_blocks: u32,
    reserved_credit: u32,
    /// Whether a row has found no free block in this interval. If so, rows with more than they need give back blocks as they
    /// become free.
    contended: bool,
    /// The link that credit was last taken back from.
    last_collected: LinkId,
    /// Whether any row may have something to give back.
    grown: bool,
    /// When the interval began.
    interval_began: Time,
}

impl<'a, P: SpacePolicy> Space<'a, P> {
    pub(super) fn new(policy: P, mut sm: ManagedSlice<'a, u32>, config: &Config) -> Self {
        sm.fill(NIL);
        Self {
            policy,
            sm,
            row: config.row,
            initial: config.initial,
            credit: 0,
            reserved_blocks: 0,
            reserved_credit: 0,
            contended: false,
            last_collected: LinkId::from_index(0),
            grown: false,
            interval_began: Time(0),
        }
    }

    /// Returns the number of blocks, provided that they suffice for the initial space of all rows and for `control` messages.
    pub(super) fn check<M: BlockMemory>(
        &self,
        links: &Links<'_>,
        umb: &Umb<'_, M>,
        control: u32,
    ) -> Result<u32, ConfigError> {
        let (rows, posted_rows) = (links.len() as u64, u64::from(links.posted_peers()));
        let per_row = u64::from(self.initial);
        let need = rows * per_row + posted_rows * (per_row + u64::from(SPARE_POSTS)) + u64::from(control);
        let have = umb.free();
        if u64::from(have) < need {
            return Err(ConfigError::Blocks { have, need });
        }
        Ok(have)
    }

    /// Gives every row its initial space, out of `blocks` in total.
    pub(super) fn distribute_space<M: BlockMemory>(
        &mut self,
        links: &mut Links<'_>,
        umb: &mut Umb<'_, M>,
        blocks: u32,
    ) {
        let (own, rows, posted_rows) = (links.own, links.len() as u32, links.posted_peers());
        let credit_rows = links.peers() - posted_rows;
        self.credit = blocks.saturating_sub(credit_rows * self.initial);
        let credit_part = blocks.checked_div(credit_rows).unwrap_or(0);
        let block_part = if posted_rows == 0 { blocks / rows.max(1) } else { 0 };
        for link in links.iter_mut() {
            link.send.space = RowSpace::new(self.row, 0).with_equal_part(block_part);
            self.grow_send(link, umb, self.initial);
            let space = RowSpace::new(self.row, if link.id == own { self.row } else { self.initial });
            link.recv.space = match link.posted {
                true => space.on(Side::Posted),
                false => space.on(Side::Credit).with_equal_part(credit_part),
            };
        }
    }

    /// Index in SM of an element of a row.
    fn element(&self, link: &Link, element: u32) -> usize {
        link.id.index() * self.row as usize + element as usize
    }

    /// Number of blocks by which rows may grow.
    pub(super) fn free_blocks<M: BlockMemory>(&self, umb: &Umb<'_, M>) -> u32 {
        umb.free().saturating_sub(self.reserved_blocks)
    }

    /// Credit, for blocks read in place, by which rows may grow.
    fn free_credit(&self) -> u32 {
        self.credit.saturating_sub(self.reserved_credit)
    }

    /// By how much the receive row of a link may grow.
    fn free_for<M: BlockMemory>(&self, link: &Link, umb: &Umb<'_, M>) -> u32 {
        if link.posted { self.free_blocks(umb) } else { self.free_credit() }
    }

    /// Returns the vacant block of a send row to be taken next.
    #[inline]
    pub(super) fn vacant(&self, link: &Link) -> u32 {
        self.sm.get(self.element(link, link.send.space.used())).copied().unwrap_or(NIL)
    }

    /// Notes that a block of a send row, in element `freed`, is vacant again.
    #[inline]
    pub(super) fn vacate<M: BlockMemory>(
        &mut self,
        link: &mut Link,
        umb: &mut Umb<'_, M>,
        (index, freed): (u32, u32),
    ) {
        link.send.space.give();
        let last = link.send.space.used();
        let (freed_at, last_at) = (self.element(link, freed), self.element(link, last));
        if freed != last
            && let Some(&moved) = self.sm.get(last_at)
        {
            self.sm.swap(freed_at, last_at);
            if let Some(entry) = umb.entry(moved) {
                entry.slot = freed;
            }
            if let Some(entry) = umb.entry(index) {
                entry.slot = last;
            }
        }
        if !link.is_up() {
            self.shrink_send(link, umb, u32::MAX);
        } else if self.contended {
            // Others are waiting for blocks freed here.
            let spare = self.policy.spare(&link.send.space, self.free_blocks(umb));
            self.shrink_send(link, umb, spare.min(1));
        }
    }

    /// Asks the policy whether a send row should have more space, and grants it.
    pub(super) fn extend_send<M: BlockMemory>(
        &mut self,
        links: &mut Links<'_>,
        umb: &mut Umb<'_, M>,
        id: LinkId,
        ask: PolicyQuery<P>,
    ) {
        for attempt in 0..2 {
            let Some(link) = links.get_mut(id) else { return };
            match ask(&self.policy, &link.send.space, self.free_blocks(umb)) {
                Growth::Keep => return,
                Growth::By(blocks) => {
                    let free = self.free_blocks(umb);
                    self.grow_send(link, umb, blocks.min(free));
                    self.grown = true;
                    return;
                }
                Growth::Exhausted if attempt == 0 && !self.contended => {
                    self.contended = true;
                    self.collect_blocks(links, umb, Some(id));
                }
                Growth::Exhausted => break,
            }
        }
        if let Some(link) = links.get_mut(id) {
            link.send.exhausted += 1;
            self.contended = true;
        }
    }

    /// Whether a send row that a writer is waiting for would get space.
    pub(super) fn may_grow<M: BlockMemory>(&self, row: &RowSpace, umb: &Umb<'_, M>) -> bool {
        let free = self.free_blocks(umb);
        match self.policy.at_stall(row, free) {
            Growth::By(blocks) => blocks.min(free) > 0,
            // Other rows give back what they can spare once per interval.
            Growth::Exhausted => !self.contended,
            Growth::Keep => false,
        }
    }

    /// Takes back what other send rows can spare for a waiting one, since the UMB is exhausted. Done once per interval: until its
    /// end, rows give back what they can spare as it becomes free.
    fn collect_blocks<M: BlockMemory>(
        &mut self,
        links: &mut Links<'_>,
        umb: &mut Umb<'_, M>,
        needy: Option<LinkId>,
    ) {
        for link in links.iter_mut().filter(|link| Some(link.id) != needy) {
            let spare = self.policy.spare(&link.send.space, self.free_blocks(umb));
            self.shrink_send(link, umb, spare);
        }
    }

    fn grow_send<M: BlockMemory>(&mut self, link: &mut Link, umb: &mut Umb<'_, M>, blocks: u32) {
        // A policy may ask for more than the row can hold.
        for _ in 0..blocks.min(link.send.space.virtual_space()) {
            let Some(index) = umb.take() else { return };
            let real = link.send.space.real();
            if let Some(entry) = umb.entry(index) {
                entry.state = BlockState::Vacant;
                entry.row = link.id.raw();
                entry.slot = real;
            }
            let at = self.element(link, real);
            if let Some(slot) = self.sm.get_mut(at) {
                *slot = index;
            }
            link.send.space.grow(1);
        }
    }

    /// Takes up to `blocks` vacant blocks from a send row, but leaves it one unless its link carries no data.
    pub(super) fn shrink_send<M: BlockMemory>(&mut self, link: &mut Link, umb: &mut Umb<'_, M>, blocks: u32) {
        let least = u32::from(link.is_up());
        for _ in 0..blocks {
            if link.send.space.vacant() == 0 || link.send.space.real() <= least {
                return;
            }
            link.send.space.shrink(1);
            let at = self.element(link, link.send.space.real());
            if let Some(slot) = self.sm.get_mut(at) {
                umb.give(core::mem::replace(slot, NIL));
            }
        }
    }

    /// Asks the policy whether a receive row should have more space, which is more credit for the peer. Returns `true` if blocks
    /// are to be posted for it.
    pub(super) fn extend_recv<M: BlockMemory>(
        &mut self,
        links: &mut Links<'_>,
        umb: &mut Umb<'_, M>,
        id: LinkId,
        ask: PolicyQuery<P>,
    ) -> bool {
        let Some(link) = links.get(id) else { return false };
        let posted = link.posted;
        let mut growth = ask(&self.policy, &link.recv.space, self.free_for(link, umb));
        if growth == Growth::Keep {
            return false;
        }
        if growth == Growth::Exhausted {
            let space = link.recv.space;
            if !posted {
                self.collect_credit(links, (id, space), ask);
            } else if !self.contended {
                self.contended = true;
                self.collect_blocks(links, umb, None);
            }
            let free = if posted { self.free_blocks(umb) } else { self.free_credit() };
            growth = ask(&self.policy, &space, free);
        }
        let Some(link) = links.get_mut(id) else { return false };
        match growth {
            Growth::Keep => false,
            Growth::Exhausted => {
                link.recv.exhausted += 1;
                false
            }
            Growth::By(blocks) => {
                let free = self.free_for(link, umb);
                self.grow_recv(link, blocks.min(free));
                self.grown = true;
                posted
            }
        }
    }

    fn grow_recv(&mut self, link: &mut Link, elements: u32) {
        let before = link.recv.space.real();
        link.recv.space.grow(elements);
        if !link.posted {
            self.credit -= link.recv.space.real() - before;
        }
    }

    /// Takes back credit that other rows can spare, since one is waiting and none is left, until the policy grants something:
    /// first half of it from one row after another, then the rest. The next call begins with the row after the last.
    fn collect_credit(
        &mut self,
        links: &mut Links<'_>,
        (needy, space): (LinkId, RowSpace),
        ask: PolicyQuery<P>,
    ) {
        let rows = links.len();
        let (own, start) = (links.own, self.last_collected.index());
        let mut found = false;
        for step in 0..2 * rows {
            if step == rows && !found {
                return;
            }
            let id = LinkId::from_index((start + 1 + step) % rows);
            let others = links.get_mut(id).filter(|link| id != needy && id != own && !link.posted);
            let Some(link) = others else { continue };
            let spare = self.policy.spare(&link.recv.space, self.free_credit());
            if spare == 0 {
                continue;
            }
            found = true;
            self.shrink_recv(link, if step < rows { spare.div_ceil(2) } else { spare });
            self.last_collected = id;
            if ask(&self.policy, &space, self.free_credit()) != Growth::Exhausted {
                return;
            }
        }
    }

    /// Takes up to `blocks` vacant elements from a receive row, but leaves it one unless its link carries no data: without any
    /// credit, nothing would arrive that could make the row grow again.
    pub(super) fn shrink_recv(&mut self, link: &mut Link, blocks: u32) {
        let least = u32::from(link.is_up());
        let before = link.recv.space.real();
        link.recv.space.shrink(blocks.min(before.saturating_sub(least)));
        if !link.posted {
            self.credit += before - link.recv.space.real();
        }
        // With posted arrival, the blocks come back as they are filled; `repost` does not post those beyond the real space again.
    }

    /// While a link is not up, prevents other rows from using what it needs to carry anything at all.
    pub(super) fn reserve(&mut self, link: &mut Link) {
        if !core::mem::replace(&mut link.reserved, true) {
            let (blocks, credit) = least(link);
            self.reserved_blocks += blocks;
            self.reserved_credit += credit;
        }
    }

    /// Gives space to the rows of a link that is up again, as much as is available. The caller must still post for its receive
    /// row.
    pub(super) fn restore<M: BlockMemory>(&mut self, link: &mut Link, umb: &mut Umb<'_, M>) {
        if core::mem::take(&mut link.reserved) {
            let (blocks, credit) = least(link);
            self.reserved_blocks -= blocks;
            self.reserved_credit -= credit;
        }
        let real = link.send.space.real();
        let more = self.free_blocks(umb).max(u32::from(real == 0));
        self.grow_send(link, umb, self.initial.saturating_sub(real).min(more));
        let window = link.recv.window();
        let more = self.free_for(link, umb).max(u32::from(window == 0));
        let more = if link.posted { more } else { more.min(self.credit) };
        self.grow_recv(link, self.initial.saturating_sub(window).min(more));
        self.grown = true;
    }

    /// Ends the interval when it is due, so that the policy decides what rows give back. Returns whether it ended.
    pub(super) fn end_interval(&mut self, now: Time, interval: u64) -> bool {
        let ends = now.since(self.interval_began) >= interval;
        if ends {
            self.interval_began = now;
            self.contended = false;
            self.grown = false;
        }
        ends
    }

    /// Takes back surplus space of a link's rows at the end of an interval.
    pub(super) fn take_surplus<M: BlockMemory>(
        &mut self,
        link: &mut Link,
        umb: &mut Umb<'_, M>,
        own: LinkId,
    ) {
        link.send.space.close_interval();
        let surplus = self.policy.surplus(&link.send.space);
        self.shrink_send(link, umb, surplus);
        link.send.space.open_interval();
        self.grown |= link.send.space.real() > self.initial;
        if link.id == own {
            return;
        }
        link.recv.space.close_interval();
        let surplus = self.policy.surplus(&link.recv.space);
        self.shrink_recv(link, surplus);
        link.recv.space.open_interval();
        self.grown |= link.recv.space.real() > self.initial;
    }

    /// Returns when the interval ends, if a row could have something to give back then.
    pub(super) fn deadline(&self, interval: u64) -> Option<Time> {
        self.grown.then(|| self.interval_began.after(interval))
    }
}

/// Blocks, and credit for blocks read in place, that a link needs to carry anything at all.
fn least(link: &Link) -> (u32, u32) {
    if link.posted { (1 + 1 + SPARE_POSTS, 0) } else { (1, 1) }
}
