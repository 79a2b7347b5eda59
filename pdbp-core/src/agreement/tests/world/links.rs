//! Links with sessions: what is on its way, is lost, or waits.

use std::collections::VecDeque;
use std::format;
use std::vec::Vec;

use super::World;
use crate::agreement::Message;
use crate::agreement::tests::table::node;

#[derive(Default)]
pub(super) struct Link {
    /// An empty message says that its sender has renewed the link.
    pub(super) queue: VecDeque<(u64, Vec<u8>)>,
    pub(super) blocked_until: u64,
    /// Messages are ignored until the sender has renewed the link as well.
    pub(super) void: bool,
}

/// The session between two nodes.
pub(super) struct Session {
    pub(super) up: bool,
    /// When each end learns that it is down.
    pub(super) tell: [Option<u64>; 2],
    /// Whether they learn that the other has terminated, and is not merely unreachable.
    pub(super) ended: bool,
    pub(super) up_at: u64,
}

impl World {
    pub(super) fn session(&mut self, a: usize, b: usize) -> &mut Session {
        self.sessions.get_mut(&(a.min(b), a.max(b))).unwrap()
    }

    /// Breaks the session of two nodes; everything in flight is lost.
    pub(super) fn cut(&mut self, a: usize, b: usize) {
        let (now, lag) = (self.now, [self.random.below(4_000), self.random.below(4_000)]);
        let ends = [a.min(b), a.max(b)];
        for (from, to) in [(a, b), (b, a)] {
            self.links[from][to].queue.clear();
            self.links[from][to].void = false;
        }
        let runs = ends.map(|e| self.runs(e));
        let up_at = now + 4_000 + self.random.below(40_000);
        let session = self.session(a, b);
        for end in 0..2 {
            if !runs[end] {
                session.tell[end] = None;
            } else if session.up {
                session.tell[end] = Some(now + lag[end]);
            }
        }
        (session.up, session.up_at, session.ended) = (false, up_at, false);
    }

    /// A message in flight between two nodes is lost, and the link is renewed.
    pub(super) fn renew(&mut self, from: usize, to: usize) {
        let busy = self.links[from][to].void || self.links[to][from].void;
        if busy || !self.session(from, to).up || !self.runs(from) || !self.runs(to) {
            return;
        }
        self.note(format!("node {to} misses something of {from}"));
        let link = &mut self.links[from][to];
        (link.void, link.queue) = (true, VecDeque::new());
        let now = self.clock(to);
        let place = node(self.place(from));
        self.replica_mut(to).link_renewed(now, place);
        self.post(to, from, Vec::new());
        self.pump(to);
    }

    /// Delays what goes from one node to the other for some time.
    pub(in crate::agreement::tests) fn block(&mut self, from: usize, to: usize, nanos: u64) {
        self.note(format!("node {from} is cut off from {to} for {nanos}"));
        self.links[from][to].blocked_until = self.now + nanos;
    }

    pub(super) fn keep_sessions(&mut self) {
        let keys: Vec<_> = self.sessions.keys().copied().collect();
        for (a, b) in keys {
            if self.session(a, b).up {
                continue;
            }
            for (end, (i, j)) in [(a, b), (b, a)].into_iter().enumerate() {
                let due = self.session(a, b).tell[end].is_some_and(|t| t <= self.now);
                if due {
                    self.session(a, b).tell[end] = None;
                    let ended = self.session(a, b).ended;
                    let what = if ended { "has ended" } else { "is out of reach" };
                    self.note(format!("node {i} learns that {j} {what}"));
                    let (now, place) = (self.clock(i), node(self.place(j)));
                    self.replica_mut(i).link_down(now, place, ended);
                    self.pump(i);
                }
            }
            let now = self.now;
            let both = self.runs(a) && self.runs(b);
            let session = self.session(a, b);
            if both && session.tell == [None; 2] && session.up_at <= now && self.may_meet(a, b) {
                self.session(a, b).up = true;
                self.note(format!("link {a} - {b} is up"));
                for (i, j) in [(a, b), (b, a)] {
                    let (now, place, life) = (self.clock(i), node(self.place(j)), self.hosts[j].life);
                    self.replica_mut(i).link_up(now, place, life);
                }
                self.pump(a);
                self.pump(b);
            }
        }
    }

    pub(super) fn send(&mut self, from: usize, to: usize, message: &Message) {
        if self.session(from, to).up && !self.links[from][to].void {
            self.post(from, to, message.encode().to_vec());
        }
    }

    pub(super) fn post(&mut self, from: usize, to: usize, bytes: Vec<u8>) {
        let slow = self.plan.slow > 0 && !self.healed && self.random.one_in(self.plan.slow);
        let delay = if slow { self.random.below(20_000) } else { 30 + self.random.below(400) };
        let queue = &mut self.links[from][to].queue;
        let at = queue.back().map_or(0, |(t, _)| *t).max(self.now + delay);
        queue.push_back((at, bytes));
    }

    pub(super) fn deliver(&mut self, from: usize, to: usize) {
        let Some((_, bytes)) = self.links[from][to].queue.pop_front() else { return };
        if bytes.is_empty() {
            self.note(format!("node {to} hears that {from} has missed something"));
            let (now, place) = (self.clock(to), node(self.place(from)));
            self.replica_mut(to).link_renewed(now, place);
            self.links[to][from].void = false;
            self.pump(to);
            return self.pump(from);
        }
        let message = Message::decode(&bytes).expect("what a node says is well-formed");
        self.note(format!("{from} -> {to} {message:?}"));
        let (now, place) = (self.clock(to), node(self.place(from)));
        let host = &mut self.hosts[to];
        if let Some(replica) = host.replica.as_mut() {
            replica.handle(now, place, message, &mut host.table);
            replica.heard_from(place, now);
        }
        self.check(to);
        self.pump(to);
        // There is room on the link now.
        self.pump(from);
    }
}
