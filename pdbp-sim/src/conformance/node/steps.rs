//! The building blocks of cases: waits, exchanges, meetings.

use std::time::{Duration, Instant};

use pdbp_core::cdu::BLOCK_HEADER;
use pdbp_core::id::{BlockId, NodeId};
use pdbp_core::{BlockMemory, Op, Transport};

use super::super::Failure;
use super::super::contents::Kind;
use super::{Held, Node};

/// Number of idle polls after which a node sleeps between polls, so that other nodes get the processor.
const SPIN: u32 = 2_000;

/// The outcome of an attempt to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::conformance) enum Sending {
    Sent,
    /// No room at present.
    Later,
    /// The peer is gone.
    Never,
}

impl<T: Transport, M: BlockMemory> Node<T, M> {
    /// Begins a wait.
    fn begin_wait(&mut self) {
        (self.idle, self.idle_since) = (0, None);
    }

    /// Called between two rounds of a wait: yields to other threads, and fails when nothing has moved for too long.
    pub(in crate::conformance) fn pause(&mut self, moved: bool, waits_for: &str) -> Result<(), Failure> {
        if moved {
            self.begin_wait();
            return Ok(());
        }
        self.idle = self.idle.saturating_add(1);
        if self.idle <= SPIN {
            std::thread::yield_now();
            return Ok(());
        }
        if self.idle_since.get_or_insert_with(Instant::now).elapsed() > self.patience {
            let open: Vec<_> = (self.links.iter().enumerate())
                .filter(|(i, _)| *i != self.id().index())
                .map(|(i, l)| {
                    let (away, posted, arrived) = (l.away.len(), l.posted.len(), l.next_in);
                    format!(
                        "node{i}: {away} sent to it not back, {posted} posted for it not filled, {arrived} arrived from it"
                    )
                })
                .collect();
            let patience = self.patience;
            return Err(self.failure(format!(
                "nothing happened for {patience:?}; waits for {waits_for} [blocks of {}]",
                open.join("; ")
            )));
        }
        std::thread::sleep(Duration::from_micros(100));
        Ok(())
    }

    /// Polls until `done`.
    pub(in crate::conformance) fn wait(
        &mut self,
        what: &str,
        mut done: impl FnMut(&Self) -> bool,
    ) -> Result<(), Failure> {
        self.begin_wait();
        while !done(self) {
            let moved = self.poll()?;
            self.pause(moved, what)?;
        }
        Ok(())
    }

    /// Polls `times` times.
    pub(in crate::conformance) fn linger(&mut self, times: u32) -> Result<(), Failure> {
        for _ in 0..times {
            if !self.poll()? {
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    /// Waits, without calling the transport, until the peer has received all blocks sent to it.
    pub(in crate::conformance) fn watch_arrival(&mut self, peer: NodeId) -> Result<(), Failure> {
        let me = self.id();
        let sent = self.link(peer)?.next_out;
        let since = Instant::now();
        while self.beside.as_ref().is_some_and(|beside| beside.arrived(me, peer) < sent) {
            if since.elapsed() > self.patience {
                let what = "stay here until this node polls again; the peer fetches what was submitted (`Arrival::InPlace`)";
                return Err(self.failure(format!("blocks in place to {peer} {what}")));
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    /// Sends one block.
    pub(in crate::conformance) fn send(
        &mut self,
        peer: NodeId,
        kind: Kind,
        length: usize,
    ) -> Result<Sending, Failure> {
        self.begin_wait();
        loop {
            match self.try_send(peer, kind, length)? {
                Sending::Later => {}
                done => return Ok(done),
            }
            let moved = self.poll()?;
            self.pause(moved, "room to send")?;
        }
    }

    /// Receives one block and holds it.
    pub(in crate::conformance) fn receive(
        &mut self,
        peer: NodeId,
        kind: Kind,
        length: usize,
    ) -> Result<Held, Failure> {
        self.begin_wait();
        loop {
            if let Some(held) = self.next_arrived(peer, kind, length)? {
                return Ok(held);
            }
            self.keep_posted(peer, 1)?;
            let moved = self.poll()?;
            self.pause(moved, "a block to arrive")?;
        }
    }

    /// Sends and receives as planned, on all links of the plan at once; returns each block as soon as it arrives.
    pub(in crate::conformance) fn exchange(
        &mut self,
        plan: &[Traffic],
        kind: Kind,
        lengths: &[usize],
    ) -> Result<(), Failure> {
        let mut done: Vec<(u64, u64)> = plan.iter().map(|_| (0, 0)).collect();
        let length = |n: u64| lengths.get(n as usize % lengths.len().max(1)).copied().unwrap_or(BLOCK_HEADER);
        self.begin_wait();
        loop {
            let mut moved = false;
            for (traffic, (sent, received)) in plan.iter().zip(&mut done) {
                if *sent < traffic.send {
                    let outcome = self.try_send(traffic.peer, kind, length(*sent))?;
                    *sent += u64::from(outcome == Sending::Sent);
                    moved |= outcome == Sending::Sent;
                }
                self.keep_posted(traffic.peer, (traffic.receive - *received) as usize)?;
                if *received < traffic.receive
                    && let Some(held) = self.next_arrived(traffic.peer, kind, length(*received))?
                {
                    self.release(held)?;
                    *received += 1;
                    moved = true;
                }
            }
            moved |= self.poll()?;
            let is_done = |t: &Traffic, sent, received| {
                let gone = self.links.get(t.peer.index()).is_some_and(|l| l.down && l.may_fail);
                gone || (sent == t.send && received == t.receive)
            };
            if plan.iter().zip(&done).all(|(t, (sent, received))| is_done(t, *sent, *received)) {
                return Ok(());
            }
            self.pause(moved, "the peers' blocks of an exchange")?;
        }
    }

    /// Exchanges the same number of blocks with every peer that is up.
    pub(in crate::conformance) fn exchange_all(
        &mut self,
        count: u64,
        lengths: &[usize],
    ) -> Result<(), Failure> {
        let both = |peer| Traffic { peer, send: count, receive: count };
        let plan: Vec<_> = self.peers().into_iter().map(both).collect();
        self.exchange(&plan, Kind::Data, lengths)
    }

    /// Returns once every peer that is up has reached this point.
    pub(in crate::conformance) fn meet(&mut self) -> Result<(), Failure> {
        let both = |peer| Traffic { peer, send: 1, receive: 1 };
        let plan: Vec<_> = self.peers().into_iter().map(both).collect();
        self.exchange(&plan, Kind::Meet, &[BLOCK_HEADER])
    }

    /// Waits until every block is back in the pool.
    pub(in crate::conformance) fn settle(&mut self) -> Result<(), Failure> {
        self.wait("blocks to come back", |node| node.links.iter().all(|l| l.away.is_empty()))?;
        let (free, blocks) = (self.pool.free(), self.pool.blocks());
        self.ensure(free == blocks, || format!("{free} of {blocks} blocks are in the pool at the end"))
    }
}

/// What a node sends to, and receives from, a peer in an exchange.
#[derive(Clone, Copy, Debug)]
pub(in crate::conformance) struct Traffic {
    pub(in crate::conformance) peer: NodeId,
    pub(in crate::conformance) send: u64,
    pub(in crate::conformance) receive: u64,
}

/// The properties that an operation must keep when it is handed back.
pub(super) fn describe(op: &Op) -> (&'static str, NodeId, BlockId, Option<usize>) {
    match op {
        Op::Send { peer, block } => ("Send", *peer, block.id(), Some(block.bytes().len())),
        Op::Recv { peer, block } => ("Recv", *peer, block.id(), None),
        Op::Return { peer, block } => ("Return", *peer, block.id(), Some(block.bytes().len())),
    }
}
