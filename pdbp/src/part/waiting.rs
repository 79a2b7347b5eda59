//! How a part lets its node make progress, and waits.

use std::sync::atomic::Ordering;
use std::time::Duration;

use pdbp_core::id::NodeId;
use pdbp_core::outbox::Due;

use super::{Part, Share, Target, is_internal};
use crate::config::Progress;
use crate::error::RecvError;
use crate::node::{NodeEngine, Own, Pipe, Turn, Waiter};

/// Consecutive polls that find nothing, after which a part yields if there are more nodes than processors. Measured with 4 and 8 nodes on
/// 2 cores: with 1, all wait for the scheduler (n↔n 20 to 30 % slower, 1→n and n→1 by half), with and without progress threads.
const IDLE_POLLS: u32 = 6;

/// See [`Part::poll_seldom`]. Over sockets, a poll takes as long as many messages.
const LOOKS: u32 = 64;

impl<S: Share> Part<S> {
    /// Lets the node make progress, unless another thread is polling it.
    pub(crate) fn poll(&self) -> u32 {
        let polled = self.shared().try_engine().map(|mut engine| self.poll_with(&mut engine).worked);
        self.record_poll(polled.unwrap_or(0))
    }

    /// As [`poll`](Self::poll), for a look for something rare. While messages lie unread, only one of [`LOOKS`] polls: a program that looks
    /// after each message would poll for each, and one that reads nothing would never poll.
    pub(super) fn poll_seldom(&self) -> u32 {
        let looks = if self.is_drained() { 0 } else { (self.looks.get() + 1) % LOOKS };
        self.looks.set(looks);
        if looks == 0 { self.poll() } else { 0 }
    }

    /// Delivers what has arrived, between two calls of [`poll`](Self::poll).
    fn poll_arrivals(&self) -> u32 {
        let shared = self.shared();
        let worked = shared.try_engine().map(|mut engine| shared.poll_arrivals(&mut engine, self.own()));
        self.record_poll(worked.unwrap_or(0))
    }

    /// Records how much a poll has done, and yields after many that did nothing.
    fn record_poll(&self, worked: u32) -> u32 {
        let idle = if worked == 0 { self.idle.get().saturating_add(1) } else { 0 };
        self.idle.set(idle);
        if idle >= IDLE_POLLS {
            self.idle.set(0);
            self.shared().yield_if_crowded();
        }
        worked
    }

    /// Yields if there are more nodes than processors. Returns whether it did.
    pub(crate) fn yield_if_crowded(&self) -> bool {
        self.idle.set(0);
        self.shared().yield_if_crowded()
    }

    pub(crate) fn poll_with(&self, engine: &mut NodeEngine) -> Turn {
        let shared = self.shared();
        if self.in_common.get() {
            self.flush_common_due(engine);
        }
        self.polled.set(true);
        // Written only under the engine's lock, so no count is lost.
        shared.polls.store(shared.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        shared.poll_as(engine, Some(self.own()))
    }

    fn own(&self) -> Own<'_> {
        Own { lanes: &self.lanes, runs: &self.runs, pipe: self.bound_pipe() }
    }

    /// Sends what this part has packed without waiting for its blocks to fill. A block with an outstanding [loan](super::Sender::loan)
    /// leaves only after the loan has ended.
    pub fn flush(&self) {
        let mut engine = self.shared().engine();
        let flushed = self.flush_packed(&mut engine);
        // A part that receives between flushes polls as it receives; that does everything but send its blocks.
        let polled = self.polled.replace(false);
        if flushed > 0 && !(polled && self.shared().sends_without_poll(&engine)) {
            self.poll_with(&mut engine);
            self.polled.set(false);
        }
    }

    /// As [`flush`](Self::flush), for callers that poll themselves or need no poll now: on a link between hosts, a poll takes as long as a
    /// send.
    pub(crate) fn flush_only(&self) {
        self.flush_packed(&mut self.shared().engine());
    }

    /// Submits the open blocks of all parts of this node if they are all that fills the row to `node`: nothing is in flight there, so no
    /// reader makes room, and their parts may be on this thread. From then on they share a block, which is mostly in flight, and half of
    /// the row is enough. Returns whether it submitted any.
    pub(super) fn flush_row(&self, engine: &mut NodeEngine, node: NodeId) -> bool {
        let shared = self.shared();
        let most = if shared.has_common(node) { shared.settings.row_blocks / 2 } else { 0 };
        if engine.backlog(node) > most {
            return false;
        }
        let others = shared.flush_all(engine, &self.lanes);
        if others > 0 {
            shared.begin_common(engine, node);
        }
        others + self.lanes.flush(engine) > 0
    }

    /// As [`flush_lanes`](Self::flush_lanes), with what was left to another task, which need not have submitted it yet.
    pub(super) fn flush_packed(&self, engine: &mut NodeEngine) -> u32 {
        if self.has_left_packed.take() {
            self.in_common.set(true);
        }
        self.flush_lanes(engine)
    }

    /// Submits what this part has packed, alone or together with others. Returns how many blocks.
    pub(super) fn flush_lanes(&self, engine: &mut NodeEngine) -> u32 {
        let own = self.lanes.flush(engine);
        if self.in_common.replace(false) { own + self.shared().flush_common(engine, Due::All) } else { own }
    }

    /// Submits blocks that this part has packed together with others and that are due: where nobody else does.
    #[cold]
    fn flush_common_due(&self, engine: &mut NodeEngine) {
        if self.shared().settings.progress == Progress::Inline {
            let due = Due::Past(engine.last_poll());
            self.shared().flush_common(engine, due);
        }
    }

    /// Submits what this part has packed, and polls, unless nothing is packed and another thread polls.
    pub(super) fn flush_and_poll(&self) {
        if !self.lanes.are_open() && !self.in_common.get() {
            self.poll();
            return;
        }
        let mut engine = self.shared().engine();
        self.flush_lanes(&mut engine);
        let worked = self.poll_with(&mut engine).worked;
        drop(engine);
        self.record_poll(worked);
    }

    /// Returns what `attempt` finds, now or later: see [`await_by`](Self::await_by).
    pub(super) fn receive_by<'p, R>(
        &'p self,
        timeout: Duration,
        missing: &'static str,
        attempt: impl Fn(&'p Self) -> Result<Option<R>, RecvError>,
    ) -> Result<R, RecvError> {
        match attempt(self)? {
            Some(result) => Ok(result),
            None => self.await_by(timeout, missing, attempt),
        }
    }

    /// Flushes, then waits until `attempt` finds what others have sent, or until nobody is left who could send it.
    pub(super) fn await_by<'p, R>(
        &'p self,
        timeout: Duration,
        missing: &'static str,
        attempt: impl Fn(&'p Self) -> Result<Option<R>, RecvError>,
    ) -> Result<R, RecvError> {
        // Peers may be waiting for what is packed here. Later polls send what does not leave at once.
        self.flush_and_poll();
        if let Some(result) = attempt(self)? {
            return Ok(result);
        }
        self.wait_on(self.pipe().ok(), Self::is_alone, timeout, Vec::new(), missing, attempt)
    }

    /// Polls until `attempt`, which need not poll itself, returns a value, or the wait `is_hopeless`. The thread sleeps only while `pipe` is
    /// empty.
    pub(super) fn wait_on<'p, R>(
        &'p self,
        pipe: Option<&Pipe>,
        is_hopeless: impl Fn(&Self) -> bool,
        timeout: Duration,
        peers: Vec<NodeId>,
        missing: &'static str,
        attempt: impl Fn(&'p Self) -> Result<Option<R>, RecvError>,
    ) -> Result<R, RecvError> {
        let mut waiter = Waiter::new(timeout, self.shared());
        loop {
            let worked = if waiter.keeps_polling() { self.poll_arrivals() } else { self.poll() };
            if let Some(result) = attempt(self)? {
                return Ok(result);
            }
            let is_over = waiter.is_over();
            if (is_over || waiter.is_sleeping()) && is_hopeless(self) {
                // The last message may have arrived since the attempt above.
                return attempt(self)?.ok_or(RecvError::NobodyLeft);
            }
            if is_over {
                return Err(waiter.failure(peers, missing).into());
            }
            if worked > 0 {
                waiter.made_progress(&self.node)?;
            } else {
                waiter.pause(&self.node, pipe.as_slice())?;
            }
        }
    }

    /// Returns what `look` finds, or an error if it finds nothing and nobody is left who could send it.
    pub(super) fn unless_alone<R>(
        &self,
        look: impl Fn() -> Result<Option<R>, RecvError>,
    ) -> Result<Option<R>, RecvError> {
        // Looks last: by then, whatever the others sent before they left has arrived.
        let is_alone = self.is_alone();
        match look()? {
            None if is_alone => Err(RecvError::NobodyLeft),
            found => Ok(found),
        }
    }

    /// Whether no part is left that could send to this one, where a waiting call ends with [`RecvError::NobodyLeft`]: this node has no other, and
    /// every other node has failed or left. For loops that never wait, over [`try_recv`](Self::try_recv). What the others sent before they left has
    /// arrived by then: look for it once more.
    pub fn is_alone(&self) -> bool {
        are_alone(&[self])
    }
}

/// Whether no part but these, which are of one node and wait together, is left that could send to them.
pub(super) fn are_alone<S: Share>(parts: &[&Part<S>]) -> bool {
    let Some(first) = parts.first() else { return false };
    let engine = first.shared().engine();
    let me = first.id.node();
    let mut others = (0..engine.config().nodes).filter_map(NodeId::new).filter(|node| *node != me).peekable();
    // A single node is never alone: another thread may still register a part.
    let is_only = others.peek().is_none();
    // In an open cluster the founder waits for others to join.
    let waits = engine.config().is_open() && engine.master() == Some(me);
    let is_one = |id: Target| parts.iter().any(|part| part.id == id);
    let nameless = parts.iter().filter(|part| part.id.is_nameless()).count();
    let here = |part: &pdbp_core::tables::PartEntry| {
        part.id.node() == me && !is_one(part.id) && !is_internal(part.name.as_str())
    };
    let has_others = || engine.nameless() > nameless || engine.parts().any(here);
    !is_only && !waits && others.all(|node| engine.has_failed(node)) && !has_others()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::LOOKS;
    use crate::{Cluster, PartKind, Progress};

    #[test]
    fn who_looks_for_something_rare_after_each_message_does_not_poll_for_each() {
        let cluster = Cluster::builder().nodes(1).progress(Progress::Inline).start().unwrap();
        let node = cluster.node(0).unwrap();
        let part = node.register("part", PartKind::Cpu).unwrap();
        let polls = || node.shared.polls.load(Ordering::Relaxed);
        let look =
            || assert!(part.try_returned().unwrap().is_none() && part.try_accept_stream().unwrap().is_none());
        for _ in 0..10 {
            part.send(part.id(), b"message").unwrap();
        }
        part.flush();
        assert!(part.try_recv().is_some());
        let before = polls();
        while part.try_recv().is_some() {
            look();
        }
        // The last two looks, and that for a message.
        assert_eq!(polls() - before, 3);
        // Nothing to read: each look polls. Something to read, which is not read: some do.
        look();
        assert_eq!(polls() - before, 5);
        part.send(part.id(), b"unread").unwrap();
        part.flush();
        let before = polls();
        (0..2 * LOOKS).for_each(|_| look());
        assert_eq!(polls() - before, 4);
    }
}
