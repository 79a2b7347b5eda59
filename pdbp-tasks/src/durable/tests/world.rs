//! A world: see [the tests](super).

mod checks;
mod client;
mod small;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::super::{Durable, Group, Output};
use crate::pool::{Flaw, Limits, Processor};
use crate::resources::Resources;
use crate::store::{Change, Memory, Reader, Store};
use crate::wire::{
    self, Answer, Assignment, Bytes, Chunk, Down, Ending, Failure, KindId, Name, Options, SubTask, Up,
};
use crate::worker::{Step, Worker};
use client::Client;
pub(super) use small::Happens;

pub(super) const FINGERPRINT: u64 = 7;
const WORKERS: usize = 3;
const STEPS: usize = 400;
/// Tasks of a job in a random world; the first is `once`.
const TASKS: u64 = 6;
/// The task that receives results of others. The last task waits for others.
const JOIN: u64 = 4;
const JOINED: [u64; 2] = [1, 2];
const AFTER: [u64; 2] = [0, 4];
const CLIENT: Processor = Processor { node: 9, number: 9 };

/// Opens the journal as a new pool's driver does.
pub(super) fn take_up(store: &mut Memory) -> Durable {
    take_up_with(store, None)
}

/// As [`take_up`], with a flaw.
fn take_up_with(store: &mut Memory, flaw: Option<Flaw>) -> Durable {
    let mut saved = store.load();
    let term = saved.term + 1;
    store.commit(&[Change::Term(term, term.into())]).unwrap();
    saved.pools.push(term.into());
    let term = if flaw == Some(Flaw::NoTerms) { 1 } else { term };
    let limits = Limits { crashes: usize::MAX, ..Limits::default() };
    let reader = Box::new(store.clone());
    let mut durable = Durable::empty(saved.next_job, term, (1, FINGERPRINT), limits, judged, reader);
    durable.pool.flaw = flaw;
    durable.restore_jobs(saved).unwrap();
    durable
}

/// The value of a run, as other tasks receive it; 0: it counts as failed.
fn value_of(bytes: &[u8]) -> u64 {
    if judged(bytes) { 0 } else { wire::decode(bytes).unwrap() }
}

/// Every fourth run of some tasks, or of their sub-tasks, counts as failed, beginning with the first.
fn judged(bytes: &[u8]) -> bool {
    let value: u64 = wire::decode(bytes).unwrap();
    matches!(value >> 9 & 7, 3 | 5) && value & 3 == 1
}

/// The name common to all runs of a task.
fn of_all_runs(name: Name) -> Name {
    Name { run: 0, ..name }
}

#[derive(Clone)]
struct Host {
    worker: Worker,
    processor: Processor,
    up: VecDeque<Up>,
    down: VecDeque<Down>,
    runs: Option<Assignment>,
    /// Names of results by number, up to the last one acknowledged.
    results: Vec<Option<Name>>,
}

impl Host {
    fn new(born: u64) -> Self {
        let number = born + 100;
        Self {
            worker: Worker::keeping(FINGERPRINT, Resources::none().cpus(1)),
            processor: Processor { node: number as u16, number },
            up: VecDeque::new(),
            down: VecDeque::new(),
            runs: None,
            results: Vec::new(),
        }
    }
}

pub(super) struct World {
    seed: u64,
    flaw: Option<Flaw>,
    now: Duration,
    store: Memory,
    /// Groups that are written but not synced.
    written: VecDeque<Group>,
    /// Reports from lost links.
    late: Vec<(Processor, Up)>,
    pool: Durable,
    hosts: Vec<Host>,
    client: Client,
    born: u64,
    /// How often each task has run: each run returns another value, as if its input had been run afresh.
    runs: BTreeMap<Name, u64>,
    /// The chunk with the dependencies and options of each task of the client.
    chunks: BTreeMap<Name, Chunk>,
    /// A second record of what is on disk.
    names: BTreeSet<Name>,
    values: BTreeMap<Name, u64>,
    took: BTreeSet<Name>,
    started: BTreeMap<Name, u32>,
    /// How many runs a task had before it was to run again: results of those do not count any more.
    stale: BTreeMap<Name, u64>,
    /// Tasks of the client that were over when this pool began, and are not to run again.
    over: BTreeSet<Name>,
    /// Tasks that are to run again, and their runs so far, while that is not on disk yet; the earliest entry of each comes first.
    running_again: VecDeque<(Name, u64)>,
    /// The latest run in which each was to run again; not every retry request concerns every task.
    again: BTreeMap<Name, u32>,
    /// Tasks of the client that have ever failed, and those of which a sub-task has.
    failed: BTreeSet<Name>,
    failing: BTreeSet<Name>,
    /// Names ever given to sub-tasks.
    used: BTreeSet<Name>,
    faults: bool,
    /// Whether everything that can happen in this world is tried.
    is_small: bool,
}

fn sub(join: Option<Vec<u16>>, retries: u16) -> SubTask {
    let options = Options { retries, ..Options::default() };
    let (needs, after) = (Resources::none(), Vec::new());
    SubTask { kind: KindId(0), options, needs, input: encode(&5u64), join, after }
}

fn encode<T: serde::Serialize>(value: &T) -> Bytes {
    postcard::to_stdvec(value).unwrap().into()
}

impl World {
    pub(super) fn new(seed: u64, flaw: Option<Flaw>) -> Self {
        let mut store = Memory::default();
        let pool = take_up_with(&mut store, flaw);
        Self {
            seed: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            flaw,
            now: Duration::from_secs(1),
            store,
            written: VecDeque::new(),
            late: Vec::new(),
            pool,
            hosts: (0..WORKERS as u64).map(Host::new).collect(),
            client: Client { jobs: 2, ..Client::default() },
            born: WORKERS as u64,
            runs: BTreeMap::new(),
            chunks: BTreeMap::new(),
            names: BTreeSet::new(),
            values: BTreeMap::new(),
            took: BTreeSet::new(),
            started: BTreeMap::new(),
            stale: BTreeMap::new(),
            over: BTreeSet::new(),
            running_again: VecDeque::new(),
            again: BTreeMap::new(),
            failed: BTreeSet::new(),
            failing: BTreeSet::new(),
            used: BTreeSet::new(),
            faults: true,
            is_small: false,
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed >> 11) % below
    }

    pub(super) fn run(mut self) {
        for _ in 0..STEPS {
            let place = self.random(WORKERS as u64) as usize;
            match self.random(40) {
                0 => self.kill_pool(),
                1 => {
                    let gone = std::mem::replace(&mut self.hosts[place], Host::new(self.born));
                    self.born += 1;
                    self.pool.lose_node(gone.processor.node);
                }
                2 => self.unlink(place),
                3..=5 => self.arrive_late(),
                6..=8 => self.sync(),
                9..=12 => self.client_step(),
                13..=15 => self.client_hears(),
                16 => self.now += Duration::from_millis(self.seed % 8000),
                17..=23 => self.hear(place),
                24..=30 => self.be_told(place),
                _ => self.step(place),
            }
            self.poll();
        }
        self.faults = false;
        for _ in 0..4000 {
            for place in 0..WORKERS {
                self.hear(place);
                self.be_told(place);
                self.step(place);
            }
            self.sync();
            self.client_step();
            self.client_hears();
            self.poll();
            self.now += Duration::from_millis(50);
            if self.client.done == self.client.jobs {
                for _ in 0..20 {
                    self.sync();
                    self.poll();
                }
                return self.check_end(u64::from(self.client.jobs) * TASKS);
            }
        }
        let explained = self.pool.pool.explain(crate::pool::JobId(self.client.done));
        let has: Vec<_> =
            self.hosts.iter().map(|host| (host.processor, host.worker.has(), host.runs.is_some())).collect();
        panic!("it does not end: {} jobs of {}, {has:?}: {explained}", self.client.done, self.client.jobs);
    }

    fn check_end(&self, ended: u64) {
        let saved = self.store.load();
        assert_eq!(saved.steps.len(), 0, "families that are over are in the journal: {:?}", saved.steps);
        assert_eq!(saved.started.len(), 0, "hand-outs of what is over are in the journal");
        assert_eq!(saved.ended.len() as u64, ended);
    }

    /// Loses everything written but not synced, and all links.
    fn kill_pool(&mut self) {
        self.written.clear();
        // The client repeats its retry, unless the task's end was lost as well.
        for (name, runs) in self.running_again.drain(..).filter(|(name, _)| self.values.contains_key(name)) {
            self.stale.entry(name).or_insert(runs);
        }
        self.over = self.values.keys().filter(|name| name.sub == 0).copied().collect();
        self.pool = take_up_with(&mut self.store, self.flaw);
        (0..self.hosts.len()).for_each(|place| self.unlink(place));
        self.client.up.clear();
        self.client.down.clear();
        self.client.asked = false;
    }

    /// Loses a link and what is in flight on it. To the pool, the next link belongs to another processor.
    fn unlink(&mut self, place: usize) {
        let born = self.born;
        self.born += 1;
        let host = &mut self.hosts[place];
        let reports = host.up.drain(..).filter(|up| matches!(up, Up::Report { .. }));
        self.late.extend(reports.map(|report| (host.processor, report)));
        host.down.clear();
        host.worker.lost();
        let gone = host.processor;
        host.processor = Host::new(born).processor;
        self.pool.lose_node(gone.node);
    }

    /// A report from a lost link arrives after all, at the current pool, and perhaps again later.
    fn arrive_late(&mut self) {
        if self.late.is_empty() {
            return;
        }
        let at = self.random(self.late.len() as u64) as usize;
        self.arrive(at);
    }

    fn arrive(&mut self, at: usize) {
        let (from, report) = self.late[at].clone();
        self.pool.receive(self.now, from, report);
        self.pool.lose_node(from.node);
    }

    fn sync(&mut self) {
        if self.faults && self.random(3) == 0 {
            return;
        }
        let Some(group) = self.written.pop_front() else { return };
        for change in &group.changes {
            self.note(change);
        }
        self.store.commit(&group.changes).unwrap();
        self.pool.durable(group.number);
    }

    fn poll(&mut self) {
        while let Some(group) = self.pool.take_group() {
            for change in &group.changes {
                let Change::Unended(job, numbers, _) = change else { continue };
                for number in numbers.clone() {
                    let name = Name { job: *job, number, sub: 0, run: 0 };
                    let runs = self.runs.get(&name).copied().unwrap_or(0);
                    self.running_again.push_back((name, runs));
                }
            }
            self.written.push_back(group);
        }
        while let Some(out) = self.pool.poll(self.now) {
            match out {
                Output::Down(to, down) if to == CLIENT => self.client.down.push_back(down),
                Output::Down(to, down) => {
                    let Some(place) = self.hosts.iter().position(|host| host.processor == to) else {
                        continue;
                    };
                    match &down {
                        Down::Tasks(tasks) => tasks.iter().for_each(|task| self.check_hand_out(task)),
                        Down::Taken { up_to } => self.check_taken(place, *up_to),
                        _ => {}
                    }
                    self.hosts[place].down.push_back(down);
                }
                Output::Read(_, reading) => {
                    let (mut next, mut results) = (reading.from, Vec::new());
                    for (number, behind) in &reading.items {
                        let ended = self
                            .store
                            .ended(reading.job, *number)
                            .unwrap()
                            .expect("what is shown is durable");
                        let result = ended.result.map_err(|error| error.to_string());
                        results.push(wire::ResultOf { number: *number, result });
                        next = *behind;
                    }
                    let answer = Answer::Results { next, over: reading.over, results };
                    self.client.down.push_back(Down::Answer { id: reading.id, answer });
                }
            }
        }
    }

    fn hear(&mut self, place: usize) {
        let host = &mut self.hosts[place];
        let Some(up) = host.up.pop_front() else { return };
        self.pool.receive(self.now, host.processor, up);
    }

    fn be_told(&mut self, place: usize) {
        let host = &mut self.hosts[place];
        if let Some(down) = host.down.pop_front() {
            host.worker.receive(down);
        }
    }

    fn step(&mut self, place: usize) {
        if let Some(task) = self.hosts[place].runs.take() {
            let (ending, tasks) = self.behave(&task);
            let host = &mut self.hosts[place];
            let (kept, _) = host.worker.has();
            // A failure is acknowledged, and its task runs again.
            let name = task.name.filter(|_| !matches!(ending, Ending::Failed(_)));
            host.worker.ended(self.now, ending, tasks);
            if host.worker.has().0 > kept {
                host.results.push(name);
            }
            return;
        }
        let host = &mut self.hosts[place];
        match host.worker.step(self.now) {
            Step::Send(up) => host.up.push_back(up),
            Step::Run(task) => host.runs = Some(task),
            Step::Wait(_) => {}
            Step::Over(over) => panic!("{over:?}"),
        }
    }

    /// Every run gives another value. Some fail once; task 0 of a job is `once`, and others add tasks.
    fn behave(&mut self, task: &Assignment) -> (Ending, Vec<SubTask>) {
        let name = of_all_runs(task.name.expect("all have names"));
        let runs = self.runs.entry(name).or_default();
        *runs += 1;
        let of = name.sub << 4 | name.number << 1 | u64::from(name.job);
        let (count, value) = (*runs, Ending::Value(encode(&(of << 8 | *runs & 0xff))));
        if self.is_small {
            return small::behave(name, value);
        }
        let fails = self.faults && name.number != 0 && self.random(if name.sub == 0 { 8 } else { 3 }) == 0;
        if fails {
            self.failing.insert(Name { sub: 0, ..name });
            return (Ending::Failed(Failure::Said("no".into())), Vec::new());
        }
        if name.number < 2 || name.sub != 0 && self.random(3) > 0 {
            return (value, Vec::new());
        }
        if wire::decode::<(u64, Vec<u64>)>(&task.input).is_ok() {
            return (value, Vec::new());
        }
        // Some fail for good: their client's task has failed, while others that it has added run on.
        let retries = if self.faults && self.random(2) == 0 { 0 } else { 1000 };
        let first = SubTask { input: encode(&count), ..sub(None, retries) };
        let tasks = vec![first, sub(None, 1000), sub(Some(vec![0, 1]), 1000)];
        if self.random(4) == 0 { (value, tasks) } else { (Ending::Of(2), tasks) }
    }
}
