//! What separates nodes: cuts, partitions, crashes; how their links fail at both ends and come up again.

use pdbp_core::Completion;

use super::Cause;
use super::events::Kind;
use super::pair::{Belief, End, Load};
use super::physics::CrashSight;
use super::wire::{Net, Ready, id, key};

impl Net {
    /// Starts a node, for the first time or again. Returns how often it has started.
    pub(super) fn attach(&mut self, node: u16) -> u32 {
        self.crash(node);
        let pairs = self.pairs_of(node);
        for (low, high) in &pairs {
            // Peers that have not noticed the end of the previous life learn of it from the beginning of this one.
            self.fail(*low, *high);
            let peer = if *low == node { *high } else { *low };
            // Where places pass to other processes, a link exists once the node is told of it.
            let belief = if self.tells_lives { Belief::Down } else { Belief::Up };
            *self.end(node, peer) = End { belief, ..End::default() };
            if let Some(pair) = self.pairs.get_mut(&(*low, *high)) {
                // The new life waits for the full time before it gives up.
                (pair.apart, pair.lives) = (false, [0; 2]);
            }
        }
        let life = self.nodes.get_mut(usize::from(node)).map_or(0, |state| {
            (state.alive, state.vacated, state.leads) = (true, false, false);
            state.life += 1;
            state.ready.clear();
            state.life
        });
        for (low, high) in pairs {
            self.check_link(low, high);
        }
        life
    }

    /// Crashes a node, which loses everything. On a fabric, packets that already wait at its endpoint still leave.
    pub(super) fn crash(&mut self, node: u16) {
        if !self.is_alive(node) {
            return;
        }
        if let Some(state) = self.nodes.get_mut(usize::from(node)) {
            state.alive = false;
            state.free_at = 0;
            state.ready.clear();
        }
        for peer in (0..self.nodes.len() as u16).filter(|peer| *peer != node) {
            *self.end(node, peer) = End::default();
            if !self.is_alive(peer) {
                continue;
            }
            match self.physics.crash_sight {
                CrashSight::AtOnce => {
                    self.fail(node, peer);
                    // Also where the session had already ended, and the peer's new life waits for the next one.
                    let (low, high) = key(node, peer);
                    self.notice_at_both(low, high);
                }
                CrashSight::BySilence => self.check_link(node, peer),
            }
        }
    }

    fn pairs_of(&self, node: u16) -> Vec<(u16, u16)> {
        let peers = (0..self.nodes.len() as u16).filter(|peer| *peer != node);
        peers.map(|peer| key(node, peer)).filter(|key| self.pairs.contains_key(key)).collect()
    }

    /// Checks all links in use after cuts or repairs.
    pub(super) fn check_all_links(&mut self) {
        let pairs: Vec<_> = self.pairs.keys().copied().collect();
        pairs.into_iter().for_each(|(low, high)| self.check_link(low, high));
    }

    /// Starts or ends the watch on two nodes, or plans their new session.
    fn check_link(&mut self, a: u16, b: u16) {
        let (low, high) = key(a, b);
        let together = self.reaches(low, high) && self.reaches(high, low);
        let at = self.now.saturating_add(self.physics.give_up);
        let Some(pair) = self.pairs.get_mut(&(low, high)) else { return };
        if together {
            pair.apart = false;
            pair.watch += 1;
            self.try_restore(low, high);
        } else if !std::mem::replace(&mut pair.apart, true) {
            pair.watch += 1;
            let serial = pair.watch;
            self.queue.plan(at, Kind::Watch { low, high, serial });
        }
    }

    pub(super) fn watch_ends(&mut self, low: u16, high: u16, serial: u32) {
        let Some(pair) = self.pairs.get(&(low, high)).filter(|p| p.watch == serial) else { return };
        if pair.broken {
            // The session that a new life has waited for never began.
            self.notice_at_both(low, high);
        } else {
            self.fail(low, high);
        }
    }

    /// Ends a session; the nodes that remain at its ends will notice.
    pub(super) fn fail(&mut self, a: u16, b: u16) {
        let (low, high) = key(a, b);
        let Some(pair) = self.pairs.get_mut(&(low, high)).filter(|p| !p.broken) else { return };
        pair.broken = true;
        // The number of the session that may follow; until it begins, nothing arrives.
        pair.session += 1;
        self.counts.failures += 1;
        self.notice_at_both(low, high);
    }

    fn notice_at_both(&mut self, low: u16, high: u16) {
        for (node, peer) in [(low, high), (high, low)] {
            if !self.is_alive(node) {
                continue;
            }
            let end = self.end(node, peer);
            if end.belief != Belief::Up {
                continue;
            }
            end.belief = Belief::Mistaken;
            let session = self.pairs.get(&(low, high)).map_or(0, |p| p.session);
            let late = match self.physics.crash_sight {
                CrashSight::AtOnce if !self.is_alive(peer) => 0,
                _ => self.random.below(self.physics.notice + 1),
            };
            self.queue.plan(self.now + late, Kind::Notice { node, peer, session });
        }
    }

    /// A node notices that the link is down, and gets its blocks back.
    pub(super) fn notice(&mut self, node: u16, peer: u16, session: u32) {
        let alive = self.is_alive(node);
        let peer_alive = self.is_alive(peer);
        let Some(pair) = self.pairs.get_mut(&key(node, peer)).filter(|p| p.session == session && alive)
        else {
            return;
        };
        let (end, _) = pair.ends_of(node, peer);
        if end.belief != Belief::Mistaken {
            return;
        }
        let before = std::mem::take(end);
        end.belief = Belief::Down;
        (end.posts_away, end.untold) = (before.posts_away, before.untold + 1);
        let from = id(peer);
        let loads = before.out.frames.into_iter().filter_map(|frame| match frame.load {
            Load::Block(block) => Some(block),
            _ => None,
        });
        let failed = before.lent.into_values().chain(loads);
        let mut completions: Vec<_> = failed.map(|block| Completion::Failed { peer: from, block }).collect();
        completions.extend(before.posted.into_iter().map(|block| Completion::Unused { peer: from, block }));
        let cause = if peer_alive { Cause::Silence(self.physics.give_up) } else { Cause::Crash };
        completions.push(Completion::PeerFailed { peer: from, cause: Some(cause) });
        completions.into_iter().for_each(|completion| self.make_ready(node, Ready::Done(completion)));
        let (low, high) = key(node, peer);
        self.try_restore(low, high);
    }

    fn can_restore(&mut self, low: u16, high: u16) -> bool {
        let together = self.reaches(low, high) && self.reaches(high, low);
        self.pairs.get(&(low, high)).is_some_and(|pair| {
            // An end that is up has not had this session: it belongs to a new life.
            let ready = |end: &End| end.belief != Belief::Mistaken;
            together && pair.broken && pair.ends.iter().all(ready)
        })
    }

    /// Plans a new session for two nodes that have both noticed the end of their link and reach each other.
    fn try_restore(&mut self, low: u16, high: u16) {
        if self.can_restore(low, high) {
            let session = self.pairs.get(&(low, high)).map_or(0, |p| p.session);
            let at = self.now + 2 * self.physics.longest_way();
            self.queue.plan(at, Kind::Restore { low, high, session });
        }
    }

    /// Begins the new session.
    pub(super) fn connect(&mut self, low: u16, high: u16, session: u32) {
        if !self.can_restore(low, high) {
            return;
        }
        let lives = [self.life(low), self.life(high)];
        let Some(pair) = self.pairs.get_mut(&(low, high)).filter(|p| p.session == session) else { return };
        (pair.broken, pair.apart, pair.lives) = (false, false, lives);
        pair.watch += 1;
        self.counts.restored += 1;
        let now = self.now;
        for (node, peer) in [(low, high), (high, low)] {
            let end = self.end(node, peer);
            let was_down = std::mem::take(&mut end.belief) == Belief::Down;
            end.out.heard = now;
            let waiting = end.out.base..end.out.next();
            if was_down {
                end.untold += 1;
                self.make_ready(node, Ready::Done(Completion::PeerRestored { peer: id(peer), session }));
            }
            waiting.for_each(|sequence| self.launch(node, peer, sequence));
            self.arm(node, peer);
        }
    }
}
