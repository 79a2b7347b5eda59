//! What happens in a cluster, step by step: due events, faults, and operations of clients.

use std::format;

use super::World;
use crate::agreement::tests::table::{added, node, part};
use crate::agreement::{Change, Stage};
use crate::id::Time;

impl World {
    /// Performs a step: the next due event, a fault, or an operation of a client.
    pub(in crate::agreement::tests) fn step(&mut self) {
        self.steps += 1;
        if self.random.below(1000) < self.plan.clients {
            self.client();
        }
        if !self.healed && self.random.below(1000) < self.plan.faults {
            self.fault();
        }
        if !self.healed && self.plan.losses > 0 && self.random.below(1000) < self.plan.losses {
            let nodes = self.plan.nodes as u64;
            let (from, to) = (self.random.below(nodes) as usize, self.random.below(nodes) as usize);
            if from != to {
                self.renew(from, to);
            }
        }
        let mut next = (self.now + 500, None);
        for to in 0..self.hosts.len() {
            let host = &self.hosts[to];
            let call = host.next_deadline.max(host.slow_until);
            if self.runs(to) && call < next.0 {
                next = (call, Some((to, to)));
            }
            for from in self.others(to) {
                let link = &self.links[from][to];
                let Some((at, _)) = link.queue.front() else { continue };
                let at = (*at).max(link.blocked_until).max(host.slow_until);
                if at < next.0 {
                    next = (at, Some((from, to)));
                }
            }
        }
        self.now = self.now.max(next.0);
        match next.1 {
            Some((from, to)) if from == to => self.pump(to),
            Some((from, to)) => self.deliver(from, to),
            None => {}
        }
        self.keep_sessions();
        for i in 0..self.plan.nodes {
            // A node reported as terminated does not return before all have heard of it.
            let told = self.others(i).into_iter().all(|j| self.session(i, j).tell == [None; 2]);
            if !self.runs(i) && told && self.hosts[i].restart_at <= self.now {
                self.restart(i);
            }
        }
    }

    fn client(&mut self) {
        let mut i = self.random.below(self.plan.nodes as u64) as usize;
        if self.plan.heirs && self.random.one_in(4) {
            i += self.plan.nodes;
        }
        if !self.runs(i) {
            return;
        }
        let owner = self.random.below(self.plan.nodes as u64) as usize;
        let local = self.random.below(2) as u16;
        if !self.is_requesting(i) && self.random.one_in(4) {
            let id = part(self.place(i), local);
            let change = if self.random.one_in(2) { added(id) } else { Change::PartRemoved(id) };
            self.ask(i, change);
        } else {
            self.look_up(i, part(owner, local));
        }
    }

    fn fault(&mut self) {
        if self.plan.heirs && self.random.one_in(2) && self.bequeath() {
            return;
        }
        let nodes = self.plan.nodes as u64;
        let (a, b) = (self.random.below(nodes) as usize, self.random.below(nodes) as usize);
        let long = self.random.below(4 * self.plan.lease.max(4_000));
        match self.random.below(if self.plan.lease == 0 { 3 } else { 8 }) {
            0 | 1 if self.may_crash(a) => self.crash(a),
            2 => self.stop(a, long),
            3 if a != b => self.block(a, b, long),
            4 if a != b => {
                self.block(a, b, long);
                self.block(b, a, long);
            }
            5 => {
                for other in (0..self.plan.nodes).filter(|o| *o != a) {
                    self.block(a, other, long);
                    self.block(other, a, long);
                }
            }
            6 if a != b && self.session(a, b).up => {
                self.note(format!("session {a} - {b} breaks"));
                self.cut(a, b);
            }
            _ => {}
        }
    }

    /// Whether the others can go on if this node loses its state: a primary followed by a quorum has everybody as a member, and
    /// nothing is about to make one of the others fail too.
    fn may_crash(&self, i: usize) -> bool {
        if i >= self.plan.voters() {
            // Learners may fail at any time.
            return self.runs(i);
        }
        let all = |p: usize| (0..self.plan.nodes).all(|n| self.replica(p).is_member(node(n)));
        let serves = |p: usize| {
            self.replica(p).is_serving(self.clock(p)) && self.replica(p).pending.is_none() && all(p)
        };
        let now = |slots: &(usize, usize)| slots.0.max(slots.1) < self.plan.nodes;
        let whole = self.sessions.iter().filter(|(ends, _)| now(ends)).all(|(_, s)| s.up)
            && self.links.iter().flatten().all(|l| l.blocked_until <= self.now)
            && self.hosts.iter().all(|h| h.slow_until <= self.now);
        whole
            && self.plan.voters() > 2
            && (0..self.plan.nodes).all(|n| self.runs(n) && self.replica(n).stage == Stage::Member)
            && (0..self.plan.nodes).any(serves)
            && self.runs(i)
    }

    /// Ends all faults.
    pub(in crate::agreement::tests) fn heal(&mut self) {
        self.note("all is healed".into());
        self.healed = true;
        let now = self.now;
        for host in &mut self.hosts {
            host.slow_until = 0;
            host.restart_at = host.restart_at.min(now + 1_000);
        }
        for link in self.links.iter_mut().flatten() {
            link.blocked_until = 0;
        }
        for session in self.sessions.values_mut() {
            session.up_at = session.up_at.min(now + 5_000);
        }
    }

    pub(in crate::agreement::tests) fn run_for(&mut self, nanos: u64) {
        let end = self.now + nanos;
        while self.now < end && self.broken.is_none() {
            self.step();
        }
    }

    /// Runs until a condition holds, which must take bounded time.
    pub(in crate::agreement::tests) fn run_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let (end, last) = (self.now + 2_000_000, self.steps + 200_000);
        while !done(self) && self.broken.is_none() {
            self.step();
            if self.now > end || self.steps > last {
                self.fail(format!("waited in vain for {what}"));
            }
        }
        if self.plan.faults == 0 {
            assert!(self.broken.is_none(), "{}\n{:?}", self.report(), self.broken);
        }
    }

    pub(in crate::agreement::tests) fn tick(&mut self, i: usize) -> Option<Time> {
        let now = self.clock(i);
        let host = &mut self.hosts[i];
        host.replica.as_mut().and_then(|r| r.tick(now, &mut host.table))
    }
}
