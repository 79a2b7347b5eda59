//! Places that pass to other processes while the former ones run on: partitioned from those that have declared them down, they are
//! unaware of it, and meet others again.
//!
//! Slot `i` of the world has the process that currently holds place `i`, slot `i + nodes` the one that held it before. A process
//! talks to one of the two at a time; the later one takes the link over.

use std::format;
use std::vec::Vec;

use super::{Host, World};
use crate::agreement::Start;
use crate::agreement::tests::table::{Table, node};

impl World {
    /// The node whose place a process has, or has had.
    pub(super) fn place(&self, slot: usize) -> usize {
        slot % self.plan.nodes
    }

    /// The processes that one can have links to.
    pub(super) fn others(&self, slot: usize) -> Vec<usize> {
        (0..self.hosts.len()).filter(|other| self.place(*other) != self.place(slot)).collect()
    }

    /// The process that another one talks to as a node.
    pub(super) fn met(&self, slot: usize, place: usize) -> usize {
        let former = place + self.plan.nodes;
        let ends = (slot.min(former), slot.max(former));
        if self.sessions.get(&ends).is_some_and(|session| session.up) { former } else { place }
    }

    fn twin(&self, slot: usize) -> Option<usize> {
        let nodes = self.plan.nodes;
        self.plan.heirs.then(|| if slot < nodes { slot + nodes } else { slot - nodes })
    }

    /// Whether two processes can have a link now. A process that talks to the former process of the other's place gives that up
    /// first.
    pub(super) fn may_meet(&mut self, a: usize, b: usize) -> bool {
        let mut free = true;
        for (this, other) in [(a, b), (b, a)] {
            let Some(twin) = self.twin(other) else { return true };
            let is_later = self.hosts[other].life > self.hosts[twin].life;
            let session = self.session(this, twin);
            let knows = session.tell[usize::from(this > twin)].is_none();
            free &= !session.up && knows;
            if session.up && is_later {
                self.note(format!("process {this} gives {twin} up for {other}"));
                self.cut(this, twin);
            }
        }
        free
    }

    /// Gives the place of a running process to another one, as a primary does: it has declared the node down, and all know.
    pub(super) fn bequeath(&mut self) -> bool {
        let Some(place) = (0..self.plan.nodes).find(|place| self.may_inherit(*place)) else { return false };
        let former = place + self.plan.nodes;
        if self.runs(former) {
            self.note(format!("process {former} ends"));
            self.hosts[former].replica = None;
            self.others(former).into_iter().for_each(|other| self.cut(former, other));
        }
        self.swap(place, former);
        self.heirs += 1;
        self.hosts[place] = Host {
            replica: None,
            table: Table::new(self.plan.nodes, self.plan.parts),
            rate: 240 + self.random.below(33),
            offset: self.random.below(1 << 30),
            next_deadline: 0,
            slow_until: 0,
            restart_at: u64::MAX,
            compared: 0,
            asking: None,
            last_answer: None,
            life: self.heirs,
        };
        self.note(format!("another process gets the place of node {place}, whose process is {former} now"));
        self.start(place, Start::Joining);
        true
    }

    fn may_inherit(&self, place: usize) -> bool {
        let others = || (0..self.plan.nodes).filter(|other| *other != place);
        let gives = |p: usize| {
            let replica = self.replica(p);
            let whole = others().all(|other| replica.is_member(node(other)));
            replica.term().is_some()
                && replica.is_serving(self.clock(p))
                && !replica.is_expected(node(place))
                && replica.stable_index() == replica.log.last().index
                && whole
        };
        self.runs(place) && others().all(|other| self.runs(other)) && others().any(gives)
    }

    /// Two processes change slots, with all their state.
    fn swap(&mut self, a: usize, b: usize) {
        self.hosts.swap(a, b);
        self.links.swap(a, b);
        self.links.iter_mut().for_each(|links| links.swap(a, b));
        for other in self.others(a) {
            let of = |slot: usize| (slot.min(other), slot.max(other));
            let (Some(mut first), Some(mut second)) =
                (self.sessions.remove(&of(a)), self.sessions.remove(&of(b)))
            else {
                continue;
            };
            if (a < other) != (b < other) {
                first.tell.reverse();
                second.tell.reverse();
            }
            self.sessions.insert(of(a), second);
            self.sessions.insert(of(b), first);
        }
    }
}
