//! The space of rows is laid out, grows and shrinks here: of SM by blocks, which are linked into queues, and of RM by credit.

use super::posting::SPARE_POSTS;
use super::{CONTROL_ROW, ConfigError, Engine};
use crate::matrix::{Queue, RowSpace, Side};
use crate::policy::{Growth, SpacePolicy};
use crate::routing::Slot;
use crate::transport::Transport;
use crate::umb::{BlockMemory, BlockState, NIL};

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Gives every row its initial space.
    pub(super) fn lay_out(&mut self) -> Result<(), ConfigError> {
        let (row, initial) = (self.config.row, self.config.initial);
        let nodes = self.links.len() as u32;
        let per_row = u64::from(initial);
        let own = self.own;
        let peers = || (0..self.peers.len()).map(Slot::from_index).filter(|n| *n != own);
        let posted_rows = peers().filter(|n| self.is_posted_link(*n)).count() as u32;
        let need = u64::from(nodes) * per_row
            + u64::from(posted_rows) * (per_row + u64::from(SPARE_POSTS))
            + u64::from(self.config.control_blocks);
        let have = self.umb.free();
        if u64::from(have) < need {
            return Err(ConfigError::Blocks { have, need });
        }
        for _ in 0..self.config.control_blocks {
            if let Some(index) = self.umb.take() {
                if let Some(entry) = self.umb.entry(index) {
                    entry.row = CONTROL_ROW;
                    entry.state = BlockState::Vacant;
                }
                self.enqueue(index, |engine| Some(&mut engine.reserve));
            }
        }
        let credit_rows = nodes - 1 - posted_rows;
        self.credit = have.saturating_sub(credit_rows * initial);
        let credit_part = have.checked_div(credit_rows).unwrap_or(0);
        let block_part = if posted_rows == 0 { have / nodes.max(1) } else { 0 };
        for node in (0..self.peers.len()).map(Slot::from_index) {
            let (is_own, posted) = (node == self.own, self.is_posted_link(node));
            if let Some(send) = self.send_rows.get_mut(node.index()) {
                send.space = RowSpace::new(row, 0).with_equal_part(block_part);
            }
            self.grow_send(node, initial);
            if let Some(recv) = self.recv_rows.get_mut(node.index()) {
                let space = RowSpace::new(row, if is_own { row } else { initial });
                recv.space = match posted {
                    true => space.on(Side::Posted),
                    false => space.on(Side::Credit).with_equal_part(credit_part),
                };
            }
            self.link_elements(node);
            if posted && !is_own {
                self.post(node);
            }
        }
        Ok(())
    }

    /// A block of ours is vacant again: it goes back to its row, or to the blocks set aside.
    pub(super) fn recycle(&mut self, index: u32) {
        let Some(entry) = self.umb.entry(index) else { return };
        entry.state = BlockState::Vacant;
        if entry.row == CONTROL_ROW {
            self.enqueue(index, |engine| Some(&mut engine.reserve));
            return;
        }
        let (freed, dest) = (entry.slot, Slot::from_index(usize::from(entry.row)));
        let Some(row) = self.send_rows.get_mut(dest.index()) else { return };
        row.space.give();
        let last = row.space.used();
        let (freed_at, last_at) = (self.element(dest, freed), self.element(dest, last));
        if let Some(&moved) = self.sm.get(last_at) {
            self.sm.swap(freed_at, last_at);
            if let Some(entry) = self.umb.entry(moved) {
                entry.slot = freed;
            }
            if let Some(entry) = self.umb.entry(index) {
                entry.slot = last;
            }
        }
        if self.is_gone(dest) {
            self.shrink_send(dest, u32::MAX);
        } else if self.contended {
            // Others wait for what comes free here.
            let free = self.free_for_rows();
            let spare = self.send_rows.get(dest.index()).map_or(0, |r| self.policy.spare(&r.space, free));
            self.shrink_send(dest, spare.min(1));
        }
    }

    /// Index in SM or RM of element `element` of a row.
    pub(super) fn element(&self, row: Slot, element: u32) -> usize {
        row.index() * self.config.row as usize + element as usize
    }

    /// Asks the policy whether SCBP_node should have more space, and gives it.
    pub(super) fn extend_send(&mut self, node: Slot, ask: fn(&P, &RowSpace, u32) -> Growth) {
        for attempt in 0..2 {
            let Some(row) = self.send_rows.get(node.index()) else { return };
            match ask(&self.policy, &row.space, self.free_for_rows()) {
                Growth::Keep => return,
                Growth::By(blocks) => {
                    self.grow_send(node, blocks.min(self.free_for_rows()));
                    self.grown = true;
                    return;
                }
                Growth::Exhausted if attempt == 0 && !self.contended => {
                    self.contended = true;
                    self.collect_spare(Some(node));
                }
                Growth::Exhausted => break,
            }
        }
        if let Some(row) = self.send_rows.get_mut(node.index()) {
            row.exhausted += 1;
            self.contended = true;
        }
    }

    /// Takes back what rows other than one that waits can spare, since the UMB is exhausted. Once in an interval: until its end rows
    /// give back what they can spare as it comes free.
    pub(super) fn collect_spare(&mut self, needy: Option<Slot>) {
        for node in (0..self.send_rows.len()).map(Slot::from_index).filter(|n| Some(*n) != needy) {
            let spare = self
                .send_rows
                .get(node.index())
                .map_or(0, |r| self.policy.spare(&r.space, self.free_for_rows()));
            self.shrink_send(node, spare);
        }
    }

    pub(super) fn grow_send(&mut self, node: Slot, blocks: u32) {
        // A policy may ask for more than the row can hold.
        let room = self.send_rows.get(node.index()).map_or(0, |r| r.space.virtual_space());
        for _ in 0..blocks.min(room) {
            let Some(index) = self.umb.take() else { return };
            let Some(real) = self.send_rows.get(node.index()).map(|r| r.space.real()) else { return };
            let at = self.element(node, real);
            if let Some(entry) = self.umb.entry(index) {
                entry.state = BlockState::Vacant;
                entry.row = node.raw();
                entry.slot = real;
            }
            if let Some(slot) = self.sm.get_mut(at) {
                *slot = index;
            }
            if let Some(row) = self.send_rows.get_mut(node.index()) {
                row.space.grow(1);
            }
        }
    }

    /// Takes up to `blocks` vacant blocks from a row and leaves it one, unless its peer has failed.
    pub(super) fn shrink_send(&mut self, node: Slot, blocks: u32) {
        let least = u32::from(!self.is_gone(node));
        for _ in 0..blocks {
            let Some(row) = self.send_rows.get_mut(node.index()) else { return };
            if row.space.vacant() == 0 || row.space.real() <= least {
                return;
            }
            row.space.shrink(1);
            let real = row.space.real();
            let at = self.element(node, real);
            if let Some(slot) = self.sm.get_mut(at) {
                let index = core::mem::replace(slot, NIL);
                self.umb.give(index);
            }
        }
    }

    pub(super) fn enqueue(&mut self, index: u32, queue: impl Fn(&mut Self) -> Option<&mut Queue>) {
        if let Some(entry) = self.umb.entry(index) {
            entry.next = NIL;
        }
        let Some(list) = queue(self) else { return };
        let tail = core::mem::replace(&mut list.tail, index);
        list.len += 1;
        if tail == NIL {
            list.head = index;
        } else if let Some(entry) = self.umb.entry(tail) {
            entry.next = index;
        }
    }

    /// Puts a block back at the head of its queue.
    pub(super) fn requeue(&mut self, index: u32, queue: impl Fn(&mut Self) -> Option<&mut Queue>) {
        let Some(list) = queue(self) else { return };
        let head = core::mem::replace(&mut list.head, index);
        list.len += 1;
        if head == NIL {
            list.tail = index;
        }
        if let Some(entry) = self.umb.entry(index) {
            entry.next = head;
        }
    }

    pub(super) fn dequeue(&mut self, queue: impl Fn(&mut Self) -> Option<&mut Queue>) -> Option<u32> {
        let head = queue(self)?.head;
        let next = self.umb.entry(head)?.next;
        let list = queue(self)?;
        list.head = next;
        list.len -= 1;
        if next == NIL {
            list.tail = NIL;
        }
        Some(head)
    }

    /// The peer says that it could use credit for so many blocks.
    #[inline]
    pub(super) fn requested(&mut self, node: Slot, wanted: u32) {
        let Some(row) = self.recv_rows.get_mut(node.index()) else { return };
        row.space.want(wanted);
        // It is below any threshold: most blocks of a link that is not busy.
        if wanted <= row.space.real() / 2 {
            return;
        }
        row.stalls += u64::from(wanted + super::kept(row.space.real()) > row.space.real());
        self.extend_recv(node, SpacePolicy::at_request);
    }

    /// Asks the policy whether RCBP_node should have more space, which is more credit for the peer.
    pub(super) fn extend_recv(&mut self, node: Slot, ask: fn(&P, &RowSpace, u32) -> Growth) {
        let posted = self.is_posted_link(node);
        let answer = |engine: &Self| {
            let free = if posted { engine.free_for_rows() } else { engine.free_credit() };
            engine
                .recv_rows
                .get(node.index())
                .map_or(Growth::Keep, |row| ask(&engine.policy, &row.space, free))
        };
        let mut growth = answer(self);
        if growth == Growth::Keep {
            return;
        }
        if growth == Growth::Exhausted {
            if !posted {
                self.collect_credit(node, ask);
            } else if !self.contended {
                self.contended = true;
                self.collect_spare(None);
            }
            growth = answer(self);
        }
        let free = if posted { self.free_for_rows() } else { self.free_credit() };
        let Some(row) = self.recv_rows.get_mut(node.index()) else { return };
        match growth {
            Growth::Keep => {}
            Growth::Exhausted => row.exhausted += 1,
            Growth::By(blocks) => {
                let before = row.space.real();
                row.space.grow(blocks.min(free));
                let grown = row.space.real() - before;
                self.grown = true;
                if posted { self.post(node) } else { self.credit -= grown }
            }
        }
    }

    /// Takes back credit that other rows can spare, since one waits and none is left, until the policy has something to give: of one
    /// row after another half of it, then the rest. The next time it begins with the row after the last.
    fn collect_credit(&mut self, needy: Slot, ask: fn(&P, &RowSpace, u32) -> Growth) {
        let rows = self.recv_rows.len();
        let (own, start) = (self.own, self.collected.index());
        let mut found = false;
        for step in 0..2 * rows {
            if step == rows && !found {
                return;
            }
            let node = Slot::from_index((start + 1 + step) % rows);
            if node == needy || node == own || self.is_posted_link(node) {
                continue;
            }
            let free = self.free_credit();
            let space = self.recv_rows.get(node.index()).map(|row| row.space);
            let spare = space.map_or(0, |space| self.policy.spare(&space, free));
            if spare == 0 {
                continue;
            }
            found = true;
            self.shrink_recv(node, if step < rows { spare.div_ceil(2) } else { spare });
            self.collected = node;
            let free = self.free_credit();
            let waiting = self.recv_rows.get(needy.index()).map(|row| ask(&self.policy, &row.space, free));
            if waiting != Some(Growth::Exhausted) {
                return;
            }
        }
    }

    /// Takes up to `blocks` of its vacant elements from a row and leaves it one, unless its peer has failed: without any
    /// credit nothing would arrive that could make the row grow again.
    pub(super) fn shrink_recv(&mut self, node: Slot, blocks: u32) {
        let least = u32::from(!self.is_gone(node));
        let posted = self.is_posted_link(node);
        let Some(row) = self.recv_rows.get_mut(node.index()) else { return };
        let before = row.space.real();
        row.space.shrink(blocks.min(before.saturating_sub(least)));
        if !posted {
            self.credit += before - row.space.real();
        }
        // With posted arrival the blocks come back as they are filled: `repost` keeps those beyond the real space.
    }
}
