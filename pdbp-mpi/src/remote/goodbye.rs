//! The end of a link.
//!
//! A node that leaves sends a *goodbye* with the number of blocks that it has sent. It keeps receiving until it has its peers'
//! goodbyes and all the blocks that these count, or its linger time is over. A node that gets a goodbye stops sending, answers with
//! its own, and waits for the counted blocks, for which receives must be posted, unless it has
//! [disconnected](RemoteLinks::disconnect) the peer. It reports the peer failed once its own requests to it are complete. An error
//! from MPI ends a link at once.

use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pdbp_core::Completion;
use pdbp_core::id::NodeId;

use super::link::{GRACE, PATIENCE, State};
use super::{BLOCK, Ready, RemoteLinks, Use};
use crate::error::MpiError;
use crate::process::{self, Gate};
use crate::result::{Comm, Request};
use crate::window::Region;

pub(super) const GOODBYE: i32 = 2;

impl RemoteLinks {
    /// Nothing more is wanted from the peer: when it leaves, the link does not wait for further receives to be posted.
    pub(crate) fn disconnect(&mut self, node: usize) {
        if let Some(link) = self.links.get_mut(node) {
            link.is_wanted = false;
        }
    }

    /// Whether the node has said goodbye. A node that is merely unreachable may still be alive.
    pub(crate) fn has_left(&self, peer: NodeId) -> bool {
        self.links.get(peer.index()).is_some_and(|link| link.expected.is_some())
    }

    pub(super) fn on_goodbye(&mut self, gate: &Gate, node: usize) {
        let words = self.region.own().goodbye_words(node);
        let expected = words.get(1).map_or(0, |word| word.load(Ordering::Relaxed)).saturating_sub(1);
        if let Some(link) = self.links.get_mut(node) {
            link.expected = Some(expected);
            if matches!(link.state, State::Up) {
                link.state = State::Leaving(expected);
                self.ending += 1;
            }
        }
        self.answer(gate, node);
    }

    /// Sends the node a goodbye, once: the number of blocks sent to it plus one, since zero stands for a node that cannot tell.
    fn answer(&mut self, gate: &Gate, node: usize) {
        let Some(link) = self.links.get_mut(node) else { return };
        if std::mem::replace(&mut link.sent_goodbye, true) {
            return;
        }
        let words = self.region.own().goodbye_words(node);
        words.iter().take(1).for_each(|word| word.store(link.sent + 1, Ordering::Relaxed));
        let (from, _) = self.region.own().goodbye(node);
        // SAFETY: a word of the region that is never written again; the region outlives the request.
        if let Ok(request) = unsafe { self.comm.isend(gate, (from, size_of::<u64>()), node, GOODBYE) } {
            self.track(request, Use::GoodbyeOut);
        }
    }

    /// Begins to end a link.
    pub(super) fn end(&mut self, gate: &Gate, node: usize, cause: Option<MpiError>) {
        let Some(link) = self.links.get_mut(node) else { return };
        match link.state {
            State::Up => self.ending += 1,
            State::Leaving(_) => {}
            State::Ending(..) | State::Down => return,
        }
        link.state = State::Ending(Instant::now(), cause);
        cancel(gate, &self.uses, &mut self.requests, node);
    }

    /// Takes a link one step closer to its end.
    pub(super) fn advance_end(&mut self, gate: &Gate, node: usize, ready: &mut Ready) {
        let Some(link) = self.links.get(node) else { return };
        if let State::Leaving(expected) = link.state
            && (link.received >= expected || (link.posted.is_empty() && !link.is_wanted))
        {
            self.end(gate, node, None);
        }
        let Some(link) = self.links.get_mut(node) else { return };
        let State::Ending(since, cause) = &mut link.state else { return };
        // A receive that MPI has begun to fill cannot be cancelled, and never completes if its sender is dead: its block is reported
        // if it does.
        let waited = since.elapsed();
        if (link.posted.is_empty() && (link.sends == 0 || waited > GRACE)) || waited > PATIENCE {
            let cause = cause.take();
            link.state = State::Down;
            self.ending -= 1;
            ready.push_back(Completion::PeerFailed { peer: link.peer, cause });
        }
    }

    /// Says goodbye to all peers whose links are still up, so that none waits for this node for ever.
    fn leave(&mut self, gate: &Gate) {
        for node in self.region.remote.clone().into_iter().map(NodeId::index) {
            if self.links.get(node).is_some_and(|l| !matches!(l.state, State::Down)) {
                self.answer(gate, node);
            }
        }
    }

    /// One round of lingering: receives what the peers have sent, which will not be read. Returns whether no peer needs anything more
    /// from this node.
    fn drain(&mut self, gate: &Gate) -> bool {
        self.test(gate, &mut Ready::new());
        let mut drained = true;
        for node in self.region.remote.clone().into_iter().map(NodeId::index) {
            let Some(link) = self.links.get_mut(node) else { continue };
            while link.posted.front().is_some_and(|p| p.outcome.is_some()) {
                link.posted.pop_front();
                link.received += 1;
            }
            if !link.is_drained() {
                drained = false;
                if link.posted.is_empty() && !link.has_scrap {
                    link.has_scrap = true;
                    self.post_scrap(gate, node);
                }
            }
        }
        drained
    }

    fn post_scrap(&mut self, gate: &Gate, node: usize) {
        let mut scrap: Box<[u8]> = vec![0; self.largest].into();
        let buffer = (NonNull::from(&mut scrap[..]).cast(), scrap.len());
        // SAFETY: the buffer travels with the request and is not touched before it is complete; if it never is, it is
        // leaked (see `Drop`).
        if let Ok(request) = unsafe { self.comm.irecv(gate, buffer, node, BLOCK) } {
            self.track(request, Use::Scrap(node, scrap));
        }
    }

    /// Keeps for ever the buffers outside the region of requests that may still be incomplete.
    fn keep_scraps(&mut self) {
        for usage in std::mem::take(&mut self.uses) {
            if let Use::Scrap(_, scrap) = usage {
                std::mem::forget(scrap);
            }
        }
    }

    /// Hands the incomplete requests to the process. Nothing is received from here on: only `drain` posts receives.
    fn give_up(&mut self, mut gate: Gate) {
        for (usage, request) in self.uses.iter().zip(&mut self.requests) {
            let receives = matches!(usage, Use::Recv(..) | Use::GoodbyeIn(_) | Use::Scrap(..));
            if receives && !request.is_null(&gate) {
                request.cancel(&gate);
            }
        }
        self.test(&gate, &mut Ready::new());
        self.keep_scraps();
        gate.keep_requests(self.serial, std::mem::take(&mut self.requests));
    }
}

/// Cancels the receives of a link; they complete in the next polls.
fn cancel(gate: &Gate, uses: &[Use], requests: &mut [Request], node: usize) {
    for (usage, request) in uses.iter().zip(requests) {
        // A request that is complete but not processed yet is null.
        if matches!(usage, Use::Recv(of, _) if *of == node) && !request.is_null(gate) {
            request.cancel(gate);
        }
    }
}

/// Tells the remote peers of a domain that this process leaves, when the number of blocks sent to them is no longer known.
pub(crate) fn write_goodbyes(gate: &Gate, comm: Comm, region: &Region) {
    for node in region.remote.iter().map(|peer| peer.index()) {
        let words = region.own().goodbye_words(node);
        if words.first().is_some_and(|word| word.load(Ordering::Relaxed) == 0) {
            let (from, _) = region.own().goodbye(node);
            // SAFETY: a word of the region, which the caller keeps for ever.
            let _ = unsafe { comm.isend(gate, (from, size_of::<u64>()), node, GOODBYE) };
        }
    }
}

impl Drop for RemoteLinks {
    /// Lingers until all peers have what was sent to them and everything they sent has arrived, at most for the configured time.
    /// Requests that are still incomplete then are kept until they complete (see [`process`]).
    fn drop(&mut self) {
        let began = Instant::now();
        if let Some(gate) = process::enter() {
            self.leave(&gate);
        }
        let mut rounds = 0;
        loop {
            // Entered anew in each round: other domains of this process must make progress too.
            let Some(gate) = process::enter() else {
                // MPI is finalised, or being finalised: it must not be called, and may still write what arrives.
                self.keep_scraps();
                return self.watch.keep_lifelines();
            };
            let drained = self.drain(&gate);
            if drained || began.elapsed() >= self.linger {
                if !drained {
                    self.record_deaths();
                    self.watch.keep_lifelines();
                }
                self.give_up(gate);
                return;
            }
            drop(gate);
            rounds += 1;
            if rounds > 100 {
                std::thread::sleep(Duration::from_micros(100));
            } else {
                std::thread::yield_now();
            }
        }
    }
}
