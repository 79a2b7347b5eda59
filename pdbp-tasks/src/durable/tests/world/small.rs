//! The possible events of a small world, one at a time.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::*;
use crate::wire::{Inputs, Request};

/// The second task adds a sub-task, whose result becomes its own.
pub(super) fn behave(name: Name, value: Ending) -> (Ending, Vec<SubTask>) {
    if (name.number, name.sub) == (1, 0) {
        (Ending::Of(0), vec![sub(None, 1000)])
    } else {
        (value, Vec::new())
    }
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Happens {
    /// The pool receives a message of a processor.
    Hear(usize),
    /// A processor receives all messages of the pool.
    Told(usize),
    /// The running task of a processor ends.
    Ends(usize),
    /// A group becomes durable.
    Sync,
    /// Time passes, since nothing else is in flight.
    Later,
    /// The pool is killed, and the next one opens the journal.
    KillPool,
    /// A link is lost.
    Unlink(usize),
    /// A processor is killed and replaced.
    Crash(usize),
    /// A report from a lost link arrives.
    Late(usize),
}

impl Clone for World {
    fn clone(&self) -> Self {
        let store = self.store.copy();
        let mut pool = self.pool.clone();
        pool.reader = Box::new(store.clone());
        Self {
            pool,
            store,
            written: self.written.clone(),
            late: self.late.clone(),
            hosts: self.hosts.clone(),
            client: self.client.clone(),
            runs: self.runs.clone(),
            chunks: self.chunks.clone(),
            names: self.names.clone(),
            values: self.values.clone(),
            took: self.took.clone(),
            started: self.started.clone(),
            stale: self.stale.clone(),
            over: self.over.clone(),
            running_again: self.running_again.clone(),
            again: self.again.clone(),
            failed: self.failed.clone(),
            failing: self.failing.clone(),
            used: self.used.clone(),
            ..*self
        }
    }
}

impl World {
    /// Two processors, and a job that is in the journal: a task, and one that receives its result and adds another.
    pub(in super::super) fn small(flaw: Option<Flaw>, options: Options) -> Self {
        let mut world = Self::new(1, flaw);
        (world.is_small, world.faults, world.client.jobs) = (true, false, 0);
        world.hosts.truncate(2);
        let plain = || Chunk::new(KindId(0), Inputs::List(vec![encode(&4u64)]));
        let chunks = vec![plain(), Chunk { join: Some(vec![0]), options, ..plain() }];
        for request in [
            Request::Begin { fingerprint: FINGERPRINT, nonce: 1, name: "job".into() },
            Request::Add { fingerprint: FINGERPRINT, job: 0, first: 0, chunks },
            Request::Close { job: 0 },
        ] {
            world.pool.receive(world.now, CLIENT, Up::Request { id: 1, request });
        }
        world.poll();
        while !world.written.is_empty() {
            world.sync();
        }
        (0..2).for_each(|place| world.settle(place));
        world.poll();
        world
    }

    /// The events that can happen without a fault.
    pub(in super::super) fn possible(&self) -> Vec<Happens> {
        let mut possible = Vec::new();
        for (place, host) in self.hosts.iter().enumerate() {
            possible.extend((!host.up.is_empty()).then_some(Happens::Hear(place)));
            possible.extend((!host.down.is_empty()).then_some(Happens::Told(place)));
            possible.extend(host.runs.is_some().then_some(Happens::Ends(place)));
        }
        possible.extend((!self.written.is_empty()).then_some(Happens::Sync));
        if possible.is_empty() {
            possible.push(Happens::Later);
        }
        possible
    }

    /// Whether all is over and nothing is in flight.
    pub(in super::super) fn is_over(&self) -> bool {
        let is_over = self.possible() == [Happens::Later]
            && self.pool.jobs.values().all(|job| job.is_over())
            && self.pool.pool.is_empty();
        if is_over {
            self.check_end(2);
        }
        is_over
    }

    /// How many reports from lost links may still arrive.
    pub(in super::super) fn late(&self) -> usize {
        self.late.len()
    }

    pub(in super::super) fn apply(&mut self, happens: Happens) {
        match happens {
            Happens::Hear(place) => self.hear(place),
            Happens::Told(place) => {
                while !self.hosts[place].down.is_empty() {
                    self.be_told(place);
                }
                self.settle(place);
            }
            Happens::Ends(place) => {
                self.step(place);
                self.settle(place);
            }
            Happens::Sync => self.sync(),
            Happens::Later => {
                self.now += Duration::from_secs(6);
                (0..self.hosts.len()).for_each(|place| self.settle(place));
            }
            Happens::KillPool => {
                self.kill_pool();
                (0..self.hosts.len()).for_each(|place| self.settle(place));
            }
            Happens::Unlink(place) => {
                self.unlink(place);
                self.settle(place);
            }
            Happens::Crash(place) => {
                let gone = std::mem::replace(&mut self.hosts[place], Host::new(self.born));
                self.born += 1;
                self.pool.lose_node(gone.processor.node);
                self.settle(place);
            }
            Happens::Late(at) => self.arrive(at),
        }
        self.poll();
    }

    /// Lets a processor act until it runs something or has to wait.
    fn settle(&mut self, place: usize) {
        let host = &mut self.hosts[place];
        while host.runs.is_none() {
            match host.worker.step(self.now) {
                Step::Send(up) => host.up.push_back(up),
                Step::Run(task) => host.runs = Some(task),
                Step::Wait(_) => return,
                Step::Over(over) => panic!("{over:?}"),
            }
        }
    }

    /// The state as text, without caches and ever-growing numbers.
    pub(in super::super) fn digest(&self) -> String {
        let (mut text, pool) = (self.pool.pool.digest(), &self.pool);
        let since = |group: &u64| group.saturating_sub(pool.durable);
        let waiting: Vec<_> = pool.waiting.iter().map(|(group, waiting)| (since(group), waiting)).collect();
        let written: Vec<_> =
            self.written.iter().map(|group| (since(&group.number), &group.changes)).collect();
        let jobs: Vec<_> = pool.jobs.values().map(super::super::super::Batch::digest).collect();
        let waiting_for: BTreeMap<_, _> = pool.waiting_for.iter().collect();
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "{}{waiting:?}{written:?}{jobs:?}{waiting_for:?}{:?}{:?}{:?}{:?}",
            pool.term, pool.changes, pool.ready, pool.orphans, pool.orphaned
        );
        let _ = write!(text, "{:?}{:?}{:?}{:?}", self.now, self.store, self.late, self.values);
        let _ = write!(text, "{:?}{:?}{}", self.started, self.runs, self.born);
        for Host { worker, processor, up, down, runs, results } in &self.hosts {
            let _ = write!(text, "{worker:?}{processor:?}{up:?}{down:?}{runs:?}{results:?}");
        }
        text
    }
}
