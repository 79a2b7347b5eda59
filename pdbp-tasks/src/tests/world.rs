//! The real pool and real processors in random worlds: processors that crash, or are given up but live on; submissions that come late, twice,
//! from another processor or for no task. The oracle checks each operation.
//!
//! `flaws.rs` plants flaws into the pool and checks that worlds find them. More were planted by hand: taking results of present holders only,
//! adding sub-tasks of a failure, leaving a cancelled task in the table, handing out new tasks before those of lost processors, ignoring
//! priorities, and losing tasks that wait for one that another stands in for.
//!
//! One flaw that nobody had planted: two processors with copies of copies, each failing while the other runs, so that no failure ever counts.

mod operations;
mod small;

use std::collections::VecDeque;
use std::time::Duration;

use proptest::prelude::*;

use super::oracle::{Label, Oracle, Task, read_input, value_of};
use crate::pool::{JobId, Limits, NewTask, OUTCOME, Pool, Processor, Refused};
use crate::resources::Resources;
use crate::wire::{Assignment, Bytes, Down, Ending, Failure, KindId, Options, SubTask, Submission, Up};
use crate::worker::{Over, Step, Worker};
pub(super) use operations::{Operation, operations};

const PROCESSORS: usize = 4;
const KINDS: usize = 3;

/// What a task of a script does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behaviour {
    Value,
    Fails,
    /// It adds a task whose result becomes its own.
    Adds,
}
const NODES: u16 = 3;

/// What the processors of a node offer together.
fn offer(node: u16) -> Resources {
    let cpus = (0..PROCESSORS).filter(|place| place % usize::from(NODES) == usize::from(node)).count();
    Resources::none().cpus(cpus as u16).gpus(node).memory(7)
}

/// The needs of a task, mostly none.
fn needs(what: usize) -> Resources {
    match what {
        0 => Resources::none().cpus(2),
        1 => Resources::none().gpus(1),
        2 => Resources::none().memory(4),
        _ => Resources::none(),
    }
}

#[derive(Clone, Debug)]
struct Host {
    processor: Processor,
    worker: Worker,
    up: VecDeque<Up>,
    down: VecDeque<Down>,
    submitted: Vec<Submission>,
    over: bool,
}

impl Host {
    fn new(place: usize, number: u64) -> Self {
        Self {
            processor: Processor { node: (place % 3) as u16, number },
            worker: Worker::new(7, offer((place % 3) as u16)),
            up: VecDeque::new(),
            down: VecDeque::new(),
            submitted: Vec::new(),
            over: false,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct World {
    /// If set, decides what tasks do instead of the seed; tasks then take no time.
    script: Option<fn(Label) -> Behaviour>,
    seed: u64,
    now: Duration,
    pool: Pool,
    oracle: Oracle,
    jobs: [JobId; 2],
    /// For each job, the labels of added tasks by number.
    added: [Vec<(Label, bool)>; 2],
    hosts: Vec<Host>,
    born: u64,
    labels: Label,
    depths: Vec<u8>,
    closed: bool,
    /// Whether results stay unread until a client takes them late.
    reads_late: bool,
}

fn mix(seed: u64, value: u64) -> u64 {
    let mut z = seed ^ value.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn encode<T: serde::Serialize>(value: &T) -> Bytes {
    postcard::to_stdvec(value).unwrap().into()
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        // Batches of few bytes, so that this bound is reached, too.
        let reads_late = seed.is_multiple_of(2);
        let limits = Limits {
            unread_bytes: if reads_late { (seed >> 1 & 3) as usize * OUTCOME } else { usize::MAX },
            batch_bytes: 9,
            crashes: 2,
            failures: u32::MAX,
            offer_wait: Duration::MAX,
            ..Limits::default()
        };
        let mut pool = Pool::new(KINDS, 7, limits);
        let jobs = [pool.begin(), pool.begin()];
        let hosts = (0..PROCESSORS).map(|place| Host::new(place, place as u64)).collect();
        Self {
            script: None,
            seed,
            now: Duration::ZERO,
            pool,
            oracle: Oracle::new((0..NODES).map(offer).collect(), limits.crashes, limits.unread_bytes),
            jobs,
            added: [Vec::new(), Vec::new()],
            hosts,
            born: PROCESSORS as u64,
            labels: 0,
            depths: Vec::new(),
            closed: false,
            reads_late,
        }
    }

    fn label(&mut self, depth: u8) -> Label {
        self.depths.push(depth);
        self.labels += 1;
        self.labels - 1
    }

    /// What a task does in this run.
    fn behave(&mut self, what: &Assignment) -> (Ending, Vec<SubTask>) {
        let (label, parts) = read_input(&what.input);
        if let Some(script) = self.script {
            return self.act(script(label), label, &parts.unwrap_or_default());
        }
        let chance = mix(self.seed, u64::from(label));
        if what.attempt <= 4 && chance >> (2 * what.attempt) & 3 == 0 {
            let failure =
                if chance >> 60 == 0 { Failure::Unusable("x".into()) } else { Failure::Said("y".into()) };
            return (Ending::Failed(failure), Vec::new());
        }
        let depth = self.depths[label as usize];
        let count = if depth < 3 && chance >> 20 & 1 == 0 { chance >> 21 & 3 } else { 0 };
        let mut tasks = Vec::new();
        for i in 0..count as u16 {
            let chance = mix(chance, u64::from(i));
            let label = self.label(depth + 1);
            let join =
                (i > 0 && chance & 1 == 0).then(|| (0..i).filter(|j| chance >> (8 + j) & 1 == 0).collect());
            let after = if chance & 6 == 0 && i > 0 { vec![i - 1] } else { Vec::new() };
            // Now and then something invalid.
            let after = if chance >> 40 & 63 == 0 { vec![i] } else { after };
            let options = Options {
                retries: (chance >> 4 & 3) as u16,
                priority: 0,
                limit_ms: 0,
                once: chance >> 50 & 7 == 0,
                exclusive: chance >> 53 & 7 == 0,
            };
            let needs = needs((chance >> 44) as usize & 31);
            tasks.push(SubTask { kind: KindId(1), options, needs, input: encode(&label), join, after });
        }
        let ending = match chance >> 30 & 1 {
            0 if count > 0 => Ending::Of((chance >> 31) as u16 % count as u16),
            _ => Ending::Value(encode(&value_of(label, &parts.unwrap_or_default()))),
        };
        (ending, tasks)
    }

    fn act(&mut self, behaviour: Behaviour, label: Label, parts: &[u64]) -> (Ending, Vec<SubTask>) {
        match behaviour {
            Behaviour::Value => (Ending::Value(encode(&value_of(label, parts))), Vec::new()),
            Behaviour::Fails => (Ending::Failed(Failure::Said("y".into())), Vec::new()),
            Behaviour::Adds => {
                let label = self.label(1);
                let (options, needs) = (Options::default(), Resources::none());
                let (join, after) = (None, Vec::new());
                let sub = SubTask { kind: KindId(1), options, needs, input: encode(&label), join, after };
                (Ending::Of(0), vec![sub])
            }
        }
    }

    pub(super) fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::Add { job, needs, join, keep, options, what } => {
                self.add((job, what), &needs, join, keep, options);
            }
            Operation::Step(host) => self.step(host),
            Operation::Up(host) => {
                let from = self.hosts[host].processor;
                if let Some(up) = self.hosts[host].up.pop_front() {
                    self.deliver(from, up, host);
                }
            }
            Operation::Down(host) => {
                let host = &mut self.hosts[host];
                if let Some(down) = host.down.pop_front() {
                    host.worker.receive(down);
                }
            }
            Operation::Advance(ms) => self.now += Duration::from_millis(ms),
            Operation::Crash(place) => {
                let gone = self.hosts[place].processor;
                self.hosts[place] = Host::new(place, self.born);
                self.born += 1;
                self.pool.leave(gone);
                self.oracle.leave(gone);
            }
            Operation::LoseNode(node) => {
                for place in (usize::from(node)..self.hosts.len()).step_by(usize::from(NODES)) {
                    self.hosts[place] = Host::new(place, self.born);
                    self.born += 1;
                }
                self.pool.lose_node(node);
                self.oracle.lose_node(node);
            }
            Operation::GiveUp(host) => {
                let gone = self.hosts[host].processor;
                self.pool.leave(gone);
                self.oracle.leave(gone);
            }
            Operation::Again { from, which, as_from } => {
                let submitted = &self.hosts[from].submitted;
                if !submitted.is_empty() {
                    let submission = submitted[which % submitted.len()].clone();
                    self.submit(self.hosts[as_from].processor, submission);
                }
            }
            Operation::Forge { from, task, attempt, failed } => {
                let ending = if failed {
                    Ending::Failed(Failure::Said("z".into()))
                } else {
                    Ending::Value(encode(&3u64))
                };
                // The forgery adds a sub-task, as a genuine submission may.
                let label = self.label(3);
                let options = Options::default();
                let sub = SubTask {
                    kind: KindId(1),
                    options,
                    needs: Resources::none(),
                    input: encode(&label),
                    join: None,
                    after: Vec::new(),
                };
                let submission =
                    Submission { task, attempt, ran_ns: 1, ending, tasks: vec![sub], large: Vec::new() };
                self.submit(self.hosts[from].processor, submission);
            }
            Operation::Cancel(job) => {
                self.pool.cancel(self.jobs[job]);
                self.oracle.cancel(self.jobs[job]);
            }
            Operation::Read { job, count } => self.read(self.jobs[job], count),
        }
        self.poll();
        self.check();
    }

    fn add(
        &mut self,
        (place, what): (usize, usize),
        needs: &[usize],
        join: bool,
        keep: bool,
        options: Options,
    ) {
        let job = self.jobs[place];
        let kept: Vec<u64> =
            (0..self.added[place].len() as u64).filter(|n| self.added[place][*n as usize].1).collect();
        let needs: Vec<u64> =
            needs.iter().filter(|_| !kept.is_empty()).map(|i| kept[i % kept.len()]).collect();
        let (joined, after) = if join { (Some(&*needs), &[][..]) } else { (None, &*needs) };
        let label = self.label(0);
        let resources = self::needs(what);
        let new = NewTask {
            kind: KindId(0),
            options,
            needs: &resources,
            input: encode(&label),
            join: joined,
            after,
            keep,
        };
        match self.pool.add(job, &new) {
            Err(refused) => assert_eq!((refused, self.oracle.is_cancelled(job)), (Refused::Cancelled, true)),
            Ok(number) => {
                assert_eq!(number, self.added[place].len() as u64);
                let labels: Vec<Label> = needs.iter().map(|n| self.added[place][*n as usize].0).collect();
                self.added[place].push((label, keep));
                let mut task = Task::new(job, options);
                (task.number, task.keep, task.is_awaited) = (Some(number), keep, keep);
                task.needs = resources;
                if join {
                    task.join = Some(labels);
                } else {
                    task.after = labels;
                }
                self.oracle.add(label, task);
            }
        }
    }

    fn step(&mut self, host: usize) {
        match self.hosts[host].worker.step(self.now) {
            Step::Send(up) => self.hosts[host].up.push_back(up),
            Step::Run(what) => {
                let (ending, tasks) = self.behave(&what);
                if self.script.is_none() {
                    self.now += Duration::from_micros(mix(self.seed, u64::from(what.task.index)) % 3000);
                }
                self.hosts[host].worker.ended(self.now, ending, tasks);
            }
            Step::Wait(_) => {}
            Step::Over(Over::Done) => self.hosts[host].over = true,
            Step::Over(refused) => panic!("{refused:?}"),
        }
    }

    fn deliver(&mut self, from: Processor, up: Up, host: usize) {
        match up {
            Up::Hello { fingerprint, offer, .. } => {
                self.pool.hello(from, fingerprint, offer);
            }
            Up::Report { room, results, .. } => {
                for submission in results {
                    self.hosts[host].submitted.push(submission.clone());
                    self.submit(from, submission);
                }
                self.pool.ask(self.now, from, room.into());
                self.oracle.ask(from);
            }
            Up::Bye => self.pool.leave(from),
            Up::Again { .. } | Up::Request { .. } | Up::Large { .. } => {
                panic!("the pool knows nothing of it")
            }
        }
    }

    fn submit(&mut self, from: Processor, submission: Submission) {
        self.oracle.submit(from, &submission);
        self.pool.submit(self.now, from, submission);
    }

    fn poll(&mut self) {
        while let Some((to, down)) = self.pool.poll(self.now) {
            match &down {
                Down::Tasks(tasks) => {
                    tasks.iter().for_each(|task| self.oracle.hand_out(to, task));
                    self.oracle.check_node(to.node);
                }
                Down::Standby => {
                    assert!(!self.oracle.is_anything_available(), "standby, though there is something")
                }
                Down::Stop => assert!(self.closed && self.oracle.live() == 0, "stop, though it is not over"),
                Down::Drop(task) => self.oracle.drop(to, *task),
                Down::Refused { .. } => panic!("refused"),
                _ => panic!("{down:?} of the pool itself"),
            }
            if let Some(host) = self.hosts.iter_mut().find(|host| host.processor == to) {
                host.down.push_back(down);
            }
        }
    }

    fn check(&mut self) {
        assert_eq!(self.pool.len(), self.oracle.live(), "tasks that are not over");
        assert_eq!(self.oracle.drops, [], "who computes in vain and was not told");
        if !self.reads_late {
            self.jobs.into_iter().for_each(|job| self.read(job, usize::MAX));
            assert_eq!(self.oracle.expected, [], "outcomes");
        }
        for (job, added) in self.jobs.iter().zip(&self.added) {
            for (number, (label, _)) in added.iter().enumerate().filter(|(_, (_, keep))| *keep) {
                let result = self.pool.result(*job, number as u64);
                let value =
                    result.map(|result| result.ok().map(|bytes| crate::wire::decode(&bytes).unwrap()));
                assert_eq!(value, self.oracle.result(*label), "task {number}");
            }
        }
    }

    /// A client takes results, which must match the oracle's.
    fn read(&mut self, job: JobId, count: usize) {
        for outcome in (0..count).map_while(|_| self.pool.take_outcome(job)) {
            let value = outcome.result.ok().map(|bytes| crate::wire::decode(&bytes).unwrap());
            let came = (job, outcome.number, value);
            let at = self.oracle.expected.iter().position(|expected| *expected == came);
            self.oracle.expected.swap_remove(at.unwrap_or_else(|| panic!("nobody expects {came:?}")));
        }
    }

    /// Delivers everything in flight, and lets all processors work until all is over. Clients that read late first wait for results that are
    /// kept, then for all of one job, then for those of the other.
    pub(super) fn finish(&mut self) {
        self.pool.close();
        self.closed = true;
        let kept_are_over = |world: &Self| {
            let mut kept = world.oracle.tasks.iter().filter(|(_, task)| task.is_awaited);
            kept.all(|(label, _)| world.oracle.result(*label).is_some())
        };
        self.work_until(&kept_are_over, &[]);
        let [one, other] = self.jobs;
        self.work_until(&|world| world.pool.live(one) == 0, &[one]);
        self.work_until(&|world| world.hosts.iter().all(|host| host.over), &[one, other]);
        self.jobs.into_iter().for_each(|job| self.read(job, usize::MAX));
        assert_eq!(self.oracle.expected, [], "outcomes");
        let left = (self.pool.len(), self.pool.bytes(), self.pool.unread());
        assert_eq!(left, (0, 0, 0), "what is left in memory");
    }

    fn work_until(&mut self, is_over: &dyn Fn(&Self) -> bool, readers: &[JobId]) {
        for _ in 0..20_000 {
            if is_over(self) {
                return;
            }
            readers.iter().for_each(|job| self.read(*job, 1));
            for host in 0..self.hosts.len() {
                while !self.hosts[host].up.is_empty() {
                    self.apply(Operation::Up(host));
                }
                while !self.hosts[host].down.is_empty() {
                    self.apply(Operation::Down(host));
                }
                self.apply(Operation::Step(host));
            }
            self.apply(Operation::Advance(10));
        }
        panic!("it does not end: {:?}, {} live", self.pool.counts(), self.oracle.live());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 300, ..ProptestConfig::default() })]

    #[test]
    fn the_pool_does_what_the_rules_say_whatever_happens(seed in any::<u64>(), operations in operations()) {
        let mut world = World::new(seed);
        operations.into_iter().for_each(|operation| world.apply(operation));
        world.finish();
    }
}
