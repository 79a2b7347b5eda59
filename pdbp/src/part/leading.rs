//! How the tasks of a node share the work of polling: see [`TaskLeader`](crate::sync::TaskLeader).

use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use pdbp_core::id::NodeId;
use pdbp_core::outbox::Due;

use super::{Part, Share};
use crate::config::Progress;
use crate::node::NodeEngine;
use crate::wake_fd::is_descriptor;

/// A task polls so long before it yields between its polls: most answers take less.
const UNYIELDING: Duration = Duration::from_micros(10);

impl<S: Share> Part<S> {
    /// Makes the parts of this node pack into one block together, if several of them wait for room as tasks. They would take turns at the
    /// row's blocks, each with a message or two.
    pub(super) fn share_blocks(&self, node: NodeId) {
        let shared = self.shared();
        if !shared.has_common(node) && shared.have_several_row_waiters() {
            shared.begin_common(&shared.engine(), node);
        }
    }

    /// Whether another task polls for all. If so, submits what this part has packed into blocks of its own, and leaves the rest to that task.
    pub(super) fn is_led(&self) -> bool {
        let (shared, leader) = (self.shared(), &self.shared().task_leader);
        // A few tasks that all poll find what has come sooner than if each is woken for it.
        if shared.common.get().is_none() {
            return false;
        }
        let is_led = if self.in_common.get() {
            leader.leave_packed(self.id.local(), Instant::now)
        } else {
            leader.is_another(self.id.local(), Instant::now)
        };
        if is_led {
            if self.in_common.take() {
                self.has_left_packed.set(true);
            }
            if self.lanes.are_open() {
                let mut engine = shared.engine();
                let flushed = self.lanes.flush(&mut engine);
                self.send_flushed(&mut engine, flushed);
            }
        }
        is_led
    }

    /// Submits what is packed, and lets the node make progress. What tasks have packed together waits for more while the peer has something to
    /// read, and at first for the other tasks of the executor.
    pub(super) fn advance_node(&self) {
        let shared = self.shared();
        let mut engine = shared.engine();
        if shared.settings.progress == Progress::Inline {
            self.flush_lanes(&mut engine);
        } else {
            self.lanes.flush(&mut engine);
            if self.polls_since.get().is_some() {
                let due = Due::Behind(shared.settings.row_blocks / 4);
                shared.flush_common(&mut engine, due);
            }
        }
        self.poll_with(&mut engine);
    }

    /// Lets another task poll for all, if this one did.
    pub(super) fn resign(&self) {
        let shared = self.shared();
        shared.task_leader.resign(self.id.local());
        if shared.common.get().is_some() && (self.in_common.take() | shared.task_leader.take_packed()) {
            let mut engine = shared.engine();
            let flushed = shared.flush_common(&mut engine, Due::All);
            self.send_flushed(&mut engine, flushed);
        }
    }

    /// Lets blocks that were flushed leave, if they need a poll for that.
    fn send_flushed(&self, engine: &mut NodeEngine, blocks: u32) {
        if blocks > 0 && !self.shared().sends_without_poll(engine) {
            self.poll_with(engine);
        }
    }

    /// Whether a waiting task should poll once more, after the other tasks of its executor, before it sleeps. It polls as long as a waiting
    /// thread would, since waking takes longer than most answers.
    pub(super) fn keeps_polling(&self, waker: &Waker) -> bool {
        let (shared, now) = (self.shared(), Instant::now());
        let Some(since) = self.polls_since.get() else {
            self.polls_since.set(Some(now));
            shared.task_leader.lead(self.id.local(), now);
            return !shared.polling(now).is_zero() || self.in_common.get();
        };
        let (leader, mut after, mut was_long) = (&shared.task_leader, now, false);
        // What it waits for may need its processor. A loop over descriptors yields between all its polls, as a waiting thread does.
        if is_descriptor(waker) {
            (after, was_long) = shared.yield_now(now);
        } else if now.duration_since(since) > UNYIELDING && leader.may_yield(now) {
            thread::yield_now();
            after = Instant::now();
            leader.record_yield(now, after);
        }
        leader.lead(self.id.local(), after);
        !was_long && after.duration_since(since) < shared.polling(after)
    }
}
