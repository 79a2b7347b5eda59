//! A cluster in virtual time: replicas, links with sessions, clocks that drift, and the checks after every step.

mod heirs;
mod links;
mod schedule;

use std::boxed::Box;
use std::collections::{BTreeMap, VecDeque};
use std::format;
use std::string::String;
use std::vec::Vec;

use links::{Link, Session};

use super::history::{History, Op};
use super::plan::{Plan, Random};
use super::table::{Table, entry, node};
use crate::agreement::{Agreement, Change, Event, Reach, Role, Settings, Stage, Start, Storage};
use crate::id::{PartId, Time};
use crate::tables::NodeEntry;

struct Host {
    replica: Option<Box<Agreement<'static>>>,
    table: Table,
    /// Its clock is `offset` + true time · `rate` / 256.
    rate: u64,
    offset: u64,
    next_deadline: u64,
    slow_until: u64,
    restart_at: u64,
    /// Number of applied entries compared with those of the others.
    compared: u64,
    /// The operation that waits for an answer: its index in the history.
    asking: Option<usize>,
    last_answer: Option<bool>,
    /// The process's life in its place; 0 if places are never reassigned.
    life: u64,
}

pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) random: Random,
    now: u64,
    pub(super) steps: u64,
    hosts: Vec<Host>,
    links: Vec<Vec<Link>>,
    sessions: BTreeMap<(usize, usize), Session>,
    /// What was committed, entry by entry.
    committed: Vec<String>,
    primaries: BTreeMap<u32, (usize, u64)>,
    pub(super) history: History,
    trace: VecDeque<String>,
    /// How many of the last events are kept.
    keep: usize,
    /// Events so far.
    pub(super) events: u64,
    pub(super) broken: Option<String>,
    healed: bool,
    /// Members that replicas were told had gone down.
    downs: u32,
    /// Processes that have taken the place of one that is still running.
    pub(super) heirs: u64,
}

/// Maximum messages in flight on a link.
const WINDOW: usize = 6;

impl World {
    pub(super) fn new(seed: u64, plan: Plan) -> Self {
        let mut random = Random::new(seed);
        // The second half is for processes whose place another has taken.
        let slots = if plan.heirs { 2 * plan.nodes } else { plan.nodes };
        let hosts = (0..slots)
            .map(|_| Host {
                replica: None,
                table: Table::new(plan.nodes, plan.parts),
                rate: 240 + random.below(33),
                offset: random.below(1 << 30),
                next_deadline: 0,
                slow_until: 0,
                restart_at: u64::MAX,
                compared: 0,
                asking: None,
                last_answer: None,
                life: 0,
            })
            .collect();
        let links = (0..slots).map(|_| (0..slots).map(|_| Link::default()).collect()).collect();
        let mut sessions = BTreeMap::new();
        for a in 0..slots {
            for b in (a + 1..slots).filter(|b| b % plan.nodes != a % plan.nodes) {
                sessions.insert((a, b), Session { up: true, tell: [None; 2], ended: false, up_at: 0 });
            }
        }
        let mut world = Self {
            plan,
            random,
            now: 1_000,
            steps: 0,
            hosts,
            links,
            sessions,
            committed: Vec::new(),
            primaries: BTreeMap::new(),
            history: History::default(),
            trace: VecDeque::new(),
            keep: if std::env::var_os("PDBP_AGREEMENT_SEED").is_some() { usize::MAX } else { 100 },
            events: 0,
            broken: None,
            healed: false,
            downs: 0,
            heirs: 0,
        };
        if plan.open {
            world.found();
        } else {
            (0..plan.nodes).for_each(|i| world.start(i, Start::Together));
        }
        world
    }

    fn start(&mut self, i: usize, start: Start) {
        let settings = Settings {
            entry: NodeEntry { life: self.hosts[i].life, ..entry(self.place(i)) },
            nodes: self.plan.nodes as u16,
            masters: self.plan.masters.min(self.plan.nodes) as u16,
            voters: self.plan.voters() as u16,
            lease: self.plan.lease,
            patience: 6_000,
            reach: if i < self.plan.masters { Reach::All } else { self.plan.reach },
            start,
        };
        let storage = Storage::allocate_linked(self.plan.nodes as u16, settings.linked(), self.plan.log);
        let mut replica = Agreement::new(self.clock(i), settings, storage).unwrap();
        replica.flaw = self.plan.flaw;
        let host = &mut self.hosts[i];
        host.replica = Some(Box::new(replica));
        host.table = Table::new(self.plan.nodes, self.plan.parts);
        host.compared = 0;
        (host.next_deadline, host.restart_at) = (0, u64::MAX);
        let own = self.place(i);
        for j in (0..self.plan.nodes).filter(|j| *j != own) {
            let j = self.met(i, j);
            if !self.session(i, j).up {
                let now = self.clock(i);
                let place = node(self.place(j));
                self.replica_mut(i).link_down(now, place, false);
            }
        }
    }

    /// Node 0 is alone; each of the others starts at some time, and has no links before.
    fn found(&mut self) {
        self.sessions.values_mut().for_each(|session| session.up = false);
        self.start(0, Start::Alone);
        for i in 1..self.plan.nodes {
            self.hosts[i].restart_at = self.now + self.random.below(100_000);
        }
    }

    fn clock(&self, i: usize) -> Time {
        let host = &self.hosts[i];
        Time(host.offset + self.now * host.rate / 256)
    }

    pub(super) fn replica(&self, i: usize) -> &Agreement<'static> {
        self.hosts[i].replica.as_ref().expect("the node runs")
    }

    pub(super) fn replica_mut(&mut self, i: usize) -> &mut Agreement<'static> {
        self.hosts[i].replica.as_mut().expect("the node runs")
    }

    pub(super) fn table(&self, i: usize) -> &Table {
        &self.hosts[i].table
    }

    pub(super) fn runs(&self, i: usize) -> bool {
        self.hosts[i].replica.is_some()
    }

    pub(super) fn is_current(&self, i: usize) -> bool {
        self.runs(i) && self.replica(i).is_current(self.clock(i))
    }

    pub(super) fn is_requesting(&self, i: usize) -> bool {
        self.hosts[i].asking.is_some()
    }

    pub(super) fn last_answer(&self, i: usize) -> Option<bool> {
        self.hosts[i].last_answer
    }

    pub(super) fn note(&mut self, what: String) {
        self.events += 1;
        if self.trace.len() == self.keep {
            self.trace.pop_front();
        }
        self.trace.push_back(format!("{:>9} {what}", self.now));
    }

    /// The last events, for a report of a failure.
    pub(super) fn report(&self) -> String {
        self.trace.iter().fold(String::new(), |all, line| all + line + "\n")
    }

    /// The state of a node, in one line.
    fn state(&self, i: usize) -> String {
        let Some(r) = self.hosts[i].replica.as_ref() else { return format!("node {i} does not run") };
        let which = |is: &dyn Fn(usize) -> bool| (0..self.plan.nodes).filter(|n| is(*n)).collect::<Vec<_>>();
        let peer = |n: usize| r.peers.get(n);
        let members = which(&|n| peer(n).is_some_and(|p| p.member));
        let ended = which(&|n| peer(n).is_some_and(|p| p.ended));
        let linked = which(&|n| peer(n).is_some_and(|p| p.linked));
        format!(
            "node {i}: {:?} {:?} of {:?} in {:?}, {:?}, log {:?} to {:?}, committed {}, stable {}, members {members:?}, ended {ended:?}, linked {linked:?}",
            r.stage,
            r.role,
            r.primary,
            r.epoch,
            r.pending,
            r.log.base(),
            r.log.last(),
            r.commit,
            r.stable,
        )
    }

    fn fail(&mut self, what: String) {
        for i in 0..self.hosts.len() {
            let state = self.state(i);
            self.note(state);
        }
        self.note(format!("BROKEN: {what}"));
        self.broken.get_or_insert(what);
    }

    // What can happen.

    pub(super) fn ask(&mut self, i: usize, change: Change) {
        let (id, adds) = match &change {
            Change::PartAdded(entry) => (entry.id, true),
            Change::PartRemoved(id) => (*id, false),
            _ => panic!("only parts are asked for"),
        };
        self.note(format!("node {i} asks for {change:?}"));
        self.replica_mut(i).request(change).expect("one request at a time");
        self.hosts[i].asking = Some(self.history.call(id, if adds { Op::Add } else { Op::Remove }));
        self.pump(i);
    }

    fn look_up(&mut self, i: usize, id: PartId) {
        if self.is_current(i) {
            let found = self.hosts[i].table.has(id);
            self.note(format!("node {i} finds {id}: {found}"));
            self.history.read(id, found);
        }
    }

    pub(super) fn crash(&mut self, i: usize) {
        self.note(format!("node {i} crashes"));
        self.hosts[i].replica = None;
        if self.hosts[i].asking.take().is_some() {
            self.history.forget();
        }
        let ended = self.plan.ends && self.random.one_in(2);
        for j in self.others(i) {
            self.cut(i, j);
            self.session(i, j).ended = ended;
        }
        if self.plan.faults > 0 {
            self.hosts[i].restart_at = self.now + 1_000 + self.random.below(100_000);
        }
    }

    pub(super) fn restart(&mut self, i: usize) {
        self.note(format!("node {i} restarts"));
        let founds = i == 0 && self.plan.founds_again;
        if self.plan.heirs {
            self.hosts[i].life = self.heirs + 1;
            self.heirs += 1;
        }
        self.start(i, if founds { Start::Alone } else { Start::Joining });
    }

    /// Suspends the node for some time, while its clock keeps running.
    pub(super) fn stop(&mut self, i: usize, nanos: u64) {
        self.note(format!("node {i} stops for {nanos}"));
        self.hosts[i].slow_until = self.now + nanos;
    }

    pub(super) fn is_stopped(&self, i: usize) -> bool {
        self.hosts[i].slow_until > self.now
    }

    /// How often a replica was told that a member is down.
    pub(super) fn declared_down(&self) -> u32 {
        self.downs
    }

    /// Calls the node, and puts what it sends on its links.
    fn pump(&mut self, i: usize) {
        let now = self.clock(i);
        let Some(mut replica) = self.hosts[i].replica.take() else { return };
        let next = replica.tick(now, &mut self.hosts[i].table);
        let host = &self.hosts[i];
        self.hosts[i].next_deadline =
            next.map_or(u64::MAX, |t| t.0.saturating_sub(host.offset) * 256 / host.rate + 1);
        loop {
            let to = replica.next_receiver(|n| self.links[i][self.met(i, n.index())].queue.len() < WINDOW);
            let Some(to) = to else { break };
            let Some(message) = replica.next_message(to, &self.hosts[i].table) else { continue };
            let slot = self.met(i, to.index());
            self.send(i, slot, &message);
        }
        self.hosts[i].replica = Some(replica);
        self.take_events(i);
        self.check(i);
    }

    fn take_events(&mut self, i: usize) {
        while let Some(event) = self.hosts[i].replica.as_mut().and_then(|r| r.next_event()) {
            self.note(format!("node {i}: {event:?}"));
            self.downs += u32::from(matches!(event, Event::MemberDown(_) | Event::Expelled));
            if let Event::Answered { accepted, .. } = event {
                self.hosts[i].last_answer = Some(accepted);
                if let Some(op) = self.hosts[i].asking.take() {
                    self.history.answer(op, accepted);
                }
            }
        }
    }

    /// The invariants checked after every step.
    fn check(&mut self, i: usize) {
        let Some(replica) = self.hosts[i].replica.as_ref() else { return };
        let applied = replica.applied_index();
        let (mut wrong, mut compared) = (None, self.hosts[i].compared);
        if replica.role == Role::Primary {
            let this = (self.place(i), self.hosts[i].life);
            let other = *self.primaries.entry(replica.epoch().0).or_insert(this);
            if other != this {
                wrong = Some(format!("nodes {this:?} and {other:?} are primary in {:?}", replica.epoch()));
            }
            if self.plan.reach == Reach::Masters && this.0 >= self.plan.masters {
                wrong = Some(format!("node {} is primary, and reaches masters only", this.0));
            }
        }
        if !matches!(replica.stage, Stage::Following | Stage::Member) || applied < self.hosts[i].compared {
            compared = applied;
        }
        // The log may have dropped some of them already.
        let changes = &self.hosts[i].table.applied;
        let news = changes.iter().skip(changes.len().saturating_sub((applied - compared) as usize));
        for (index, change) in (compared + 1..).zip(news) {
            let own = format!("{change:?}");
            match self.committed.get(index as usize - 1) {
                Some(all) if *all == own => {}
                Some(all) => wrong = Some(format!("entry {index} is {own:?} at node {i} and was {all:?}")),
                None if self.committed.len() as u64 == index - 1 => self.committed.push(own),
                None => wrong = Some(format!("node {i} applied entry {index} before those ahead of it")),
            }
        }
        let log = replica.log.last().index - replica.log.base().index;
        if log > self.plan.log as u64 {
            wrong = Some(format!("the log of node {i} has {log} entries"));
        }
        self.hosts[i].compared = applied;
        self.hosts[i].table.applied.clear();
        if let Some(wrong) = wrong {
            self.fail(wrong);
        }
    }
}
