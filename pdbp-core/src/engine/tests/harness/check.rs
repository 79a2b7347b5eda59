//! Invariants that hold at any time, and those that hold at rest.

use std::vec::Vec;

use pdbp_core::Arrival;

use super::{Cluster, Host, PARTS, Policy, node};

/// Number of rounds without work after which a cluster is at rest. They last longer than `patience`.
const REST: u32 = 30;

impl Cluster {
    /// Invariants that hold at any time.
    pub(super) fn check(&mut self, i: usize) {
        let (row, blocks) = (self.setup.row, self.setup.blocks(i));
        let (setup, nodes) = (&self.setup, self.hosts.len());
        let arrivals: Vec<_> = self.hosts.iter().flatten().map(|h| h.barriers).collect();
        let counted = self.counted(i);
        let oldest = self.oracle.borrow().oldest(|node| counted.contains(&node));
        let (net, dead) = (self.net.borrow(), self.dead.clone());
        let oracle = self.oracle.borrow();
        let (lossy, sure) = (oracle.lossy, oracle.is_sure());
        let Some(host) = self.hosts[i].as_mut() else { return };
        let engine = &host.engine;
        let mut accounted = engine.free_blocks() + setup.control_blocks(i) + engine.copy_blocks();
        for peer in 0..nodes {
            let rows = (engine.send_row(node(peer)), engine.recv_row(node(peer)));
            let (Some(send), Some(recv)) = rows else {
                assert!(engine.is_relayed(node(peer)));
                continue;
            };
            assert!(send.space.used() <= send.space.real() && send.space.real() <= row);
            assert!(recv.space.used() <= row && recv.space.real() <= row);
            assert_eq!(send.space.recv() - send.space.send(), u64::from(send.space.used()));
            assert_eq!(recv.space.recv() - recv.space.send(), u64::from(recv.space.used()));
            if let Policy::Fixed = setup.policy
                && peer != i
                && !dead.contains(&peer)
                && !oracle.doubts(i, peer)
            {
                assert!(recv.space.used() <= setup.initial, "the peer sent without credit");
                assert!(recv.space.real() == setup.initial);
            }
            accounted += send.space.real();
            if peer != i && setup.links.between(i, peer) == Arrival::Posted {
                accounted += net.posted(i, peer) + recv.unposted + recv.space.used();
            }
        }
        accounted += net.unused(i);
        assert_eq!(accounted, blocks, "blocks of node {i}");
        let counters = engine.counters();
        assert_eq!((counters.dropped_control, counters.foreign_tokens), (0, 0));
        if sure && dead.is_empty() {
            assert_eq!((counters.stale, counters.out_of_sequence), (0, 0));
            assert_eq!((counters.unroutable, counters.stray_segments, counters.undelivered), (0, 0, 0));
            assert_eq!(counters.relay_lost, 0);
            if !oracle.garbled {
                assert_eq!((counters.malformed, counters.misdirected), (0, 0));
            }
        }
        if let Some(barrier) = host.barrier
            && engine.barrier_passed(barrier)
        {
            assert!(arrivals.iter().all(|a| *a >= barrier), "a barrier was passed before all arrived");
            host.barrier = None;
        }
        if let Some((number, serial)) = host.quiet
            && engine.is_quiescent(number)
        {
            assert!(
                lossy || oldest.is_none_or(|o| o > serial),
                "quiet, but message {oldest:?} is on its way"
            );
            (host.quiet, host.quiets) = (None, host.quiets + 1);
        }
        let lost = host.barrier.and_then(|barrier| Some((barrier, host.engine.barrier_lost(barrier)?)));
        if let Some((barrier, lost)) = lost.filter(|_| sure) {
            assert!(dead.contains(&lost.index()), "{lost} may still arrive");
            // If a primary has died, some may have heard from it what the next one has not.
            let is_one_primary = dead.iter().all(|node| *node >= usize::from(setup.masters()));
            let has_passed = |host: &Host| host.engine.barrier_passed(barrier);
            assert!(
                !is_one_primary || !self.hosts.iter().flatten().any(has_passed),
                "{barrier} has completed"
            );
        }
    }

    /// The nodes that are members to a host and its primary: quiescence concerns their messages.
    fn counted(&self, i: usize) -> Vec<usize> {
        let Some(host) = self.hosts[i].as_ref().filter(|host| host.quiet.is_some()) else {
            return Vec::new();
        };
        let primary = host.engine.master().and_then(|node| self.hosts[node.index()].as_ref());
        let knows = |host: &Host, n: usize| !host.engine.has_failed(node(n));
        (0..self.hosts.len()).filter(|n| knows(host, *n) && primary.is_some_and(|p| knows(p, *n))).collect()
    }

    /// As [`settle`](Self::settle), for messages not sent by operations.
    pub fn settle_unchecked(&mut self) {
        self.oracle.borrow_mut().lossy = true;
        self.settle();
    }

    /// Lets everything come to rest, and checks that nothing is left anywhere.
    pub fn settle(&mut self) {
        for link in self.net.borrow_mut().links.iter_mut().flatten() {
            (link.closed, link.busy, link.flip, link.garbled) = (false, 0, None, 0);
        }
        for i in self.live() {
            for to in 0..self.hosts.len() {
                self.submit(i, to, false);
                self.submit(i, to, true);
            }
        }
        let mut rest = 0;
        for _ in 0..3000 {
            let mut worked = 0;
            // Nodes that were declared down are disconnected as well.
            for i in self.live() {
                (0..i).for_each(|to| self.mend(i, to));
            }
            for i in self.live() {
                worked += self.poll(i);
                for local in 0..=PARTS {
                    self.read(i, local, usize::MAX, false);
                }
                self.release(i);
                for source in 0..PARTS {
                    let open = self.host(i).streams.get(&source).map(|s| s.tag.dest);
                    if let Some(dest) = open {
                        worked += 1;
                        self.segment(i, source, (dest.node().index(), dest.local()), 3, true);
                    }
                }
            }
            // As in `run`: it takes many rounds before a node that gets an occasional message loses patience.
            self.now = self.now.after(100);
            let quiet = self.hosts.iter().flatten().all(|h| h.quiet.is_none() || !has_primary(h));
            // Unless a node has died, all are readmitted.
            let apart = |h: &Host| (0..self.hosts.len()).any(|n| h.engine.has_failed(node(n)));
            let whole = !self.dead.is_empty() || !self.hosts.iter().flatten().any(apart);
            rest = if worked == 0 && quiet && whole { rest + 1 } else { 0 };
            if rest == REST {
                break;
            }
        }
        assert_eq!(rest, REST, "the cluster does not come to rest");
        let lossy = self.oracle.borrow().lossy;
        let oldest = self.oracle.borrow().oldest(|_| true);
        assert!(lossy || oldest.is_none(), "message {oldest:?} was never delivered");
        for i in self.live() {
            self.check(i);
            let nodes = self.hosts.len();
            let engine = &mut self.host(i).engine;
            for peer in 0..nodes {
                let rows = (engine.send_row(node(peer)), engine.recv_row(node(peer)));
                let (Some(send), Some(recv)) = rows else { continue };
                assert_eq!((send.space.used(), send.waiting), (0, 0), "send row {peer} of node {i}");
                assert_eq!((recv.space.used(), recv.waiting), (0, 0), "receive row {peer} of node {i}");
            }
            if !lossy {
                assert_eq!(engine.stream_mappings().count(), 0);
            }
        }
    }
}

/// Whether a host can ask for quiescence: too many nodes may have died to elect a primary.
fn has_primary(host: &Host) -> bool {
    let engine = &host.engine;
    engine.master().is_some_and(|master| master == engine.config().node || !engine.has_failed(master))
}
