//! A pool and the processors of many nodes in virtual time: the real state machines, and a queue of events.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::{Duration, Instant};

use pdbp_tasks::Resources;
use pdbp_tasks::pool::{JobId, Limits, NewTask, Outcome, Pool, Processor};
use pdbp_tasks::wire::{Assignment, Bytes, Down, Ending, KindId, Options, Up};
use pdbp_tasks::worker::{Over, Step, Worker};

const FINGERPRINT: u64 = 1;

/// An event at a processor.
enum Event {
    /// A message of the pool arrives at the processor.
    Down(Down),
    /// A message of the processor arrives at the pool.
    Up(Up),
    /// The processor polls for what to do.
    Wake,
    /// Its running task has ended.
    Ended,
    /// Its node dies.
    Death,
}

/// The behaviour of a task: how long it runs, and whether it kills its process.
pub(crate) struct Behaviour {
    pub(crate) runs: Duration,
    pub(crate) kills: bool,
}

pub(crate) struct Cluster {
    pub(crate) pool: Pool,
    pub(crate) now: Duration,
    pub(crate) job: JobId,
    latency: Duration,
    behave: Box<dyn Fn(u64) -> Behaviour>,
    workers: BTreeMap<u64, (Processor, Worker, Option<Assignment>)>,
    offers: BTreeMap<u16, Resources>,
    queue: BinaryHeap<Reverse<(Duration, u64, u64)>>,
    events: BTreeMap<u64, Event>,
    count: u64,
    born: u64,
    nodes: u16,
    /// When each task first began.
    pub(crate) began: BTreeMap<u64, Duration>,
    pub(crate) deaths: u64,
    /// Real time spent within the pool.
    pub(crate) in_pool: Duration,
}

impl Cluster {
    /// A cluster without nodes. `behave` returns the behaviour of the task with this input.
    pub(crate) fn new(limits: Limits, behave: impl Fn(u64) -> Behaviour + 'static) -> Self {
        let mut pool = Pool::new(1, FINGERPRINT, limits);
        let job = pool.begin();
        Self {
            pool,
            now: Duration::ZERO,
            job,
            latency: Duration::from_micros(50),
            behave: Box::new(behave),
            workers: BTreeMap::new(),
            offers: BTreeMap::new(),
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            count: 0,
            born: 0,
            nodes: 0,
            began: BTreeMap::new(),
            deaths: 0,
            in_pool: Duration::ZERO,
        }
    }

    pub(crate) fn add(&mut self, input: u64, needs: &Resources) -> u64 {
        let new = NewTask {
            kind: KindId(0),
            options: Options::default(),
            needs,
            input: Bytes::from(&input.to_le_bytes()[..]),
            join: None,
            after: &[],
            keep: false,
        };
        self.pool.add(self.job, &new).expect("there is room")
    }

    /// Adds a node with this many slots.
    pub(crate) fn join(&mut self, slots: usize, offer: &Resources) -> u16 {
        let node = self.nodes;
        self.nodes += 1;
        self.offers.insert(node, offer.clone());
        for _ in 0..slots {
            let number = self.born;
            self.born += 1;
            let worker = Worker::new(FINGERPRINT, offer.clone());
            self.workers.insert(number, (Processor { node, number }, worker, None));
            self.after(Duration::ZERO, number, Event::Wake);
        }
        node
    }

    /// Kills a node after this long.
    pub(crate) fn kill_after(&mut self, time: Duration, node: u16) {
        let of_node = self.workers.iter().find(|(_, (processor, ..))| processor.node == node);
        if let Some(number) = of_node.map(|(number, _)| *number) {
            self.after(time, number, Event::Death);
        }
    }

    fn after(&mut self, time: Duration, number: u64, event: Event) {
        self.count += 1;
        self.queue.push(Reverse((self.now + time, self.count, number)));
        self.events.insert(self.count, event);
    }

    /// Handles the next event. Returns the nodes that die of it; `None`: no more events are left.
    pub(crate) fn step(&mut self) -> Option<Vec<u16>> {
        let next = self.queue.peek().map(|Reverse((at, ..))| *at);
        // The pool also polls by itself now and then.
        if let Some(look) = self.pool.next_time().filter(|look| next.is_none_or(|next| *look < next)) {
            self.now = look.max(self.now);
            self.poll();
            return Some(Vec::new());
        }
        let Reverse((at, count, number)) = self.queue.pop()?;
        self.now = self.now.max(at);
        let event = self.events.remove(&count)?;
        let Some((processor, worker, running)) = self.workers.get_mut(&number) else {
            return Some(Vec::new());
        };
        let processor = *processor;
        match event {
            Event::Death => return Some(self.die(processor.node)),
            Event::Down(down) => {
                worker.receive(down);
                if running.is_none() {
                    self.turn(number);
                }
            }
            Event::Wake => {
                if running.is_none() {
                    self.turn(number);
                }
            }
            Event::Ended => {
                let assignment = running.take().expect("something runs");
                let behaviour = (self.behave)(input_of(&assignment));
                if behaviour.kills {
                    return Some(self.die(processor.node));
                }
                worker.ended(self.now, Ending::Value(assignment.input), Vec::new());
                self.turn(number);
            }
            Event::Up(up) => {
                let began = Instant::now();
                match up {
                    Up::Hello { fingerprint, offer, .. } => {
                        self.pool.hello(processor, fingerprint, offer);
                    }
                    Up::Report { room, results, .. } => {
                        results.into_iter().for_each(|result| self.pool.submit(self.now, processor, result));
                        self.pool.ask(self.now, processor, room.into());
                    }
                    Up::Bye => self.pool.leave(processor),
                    Up::Again { .. } | Up::Request { .. } | Up::Large { .. } => {
                        panic!("the pool knows nothing of it")
                    }
                }
                self.in_pool += began.elapsed();
                self.poll();
            }
        }
        Some(Vec::new())
    }

    fn die(&mut self, node: u16) -> Vec<u16> {
        self.deaths += 1;
        self.workers.retain(|_, (processor, ..)| processor.node != node);
        self.pool.lose_node(node);
        self.poll();
        vec![node]
    }

    /// Lets a processor do what it can now.
    fn turn(&mut self, number: u64) {
        loop {
            let Some((_, worker, running)) = self.workers.get_mut(&number) else { return };
            match worker.step(self.now) {
                Step::Send(up) => self.after(self.latency, number, Event::Up(up)),
                Step::Run(assignment) => {
                    let input = input_of(&assignment);
                    *running = Some(assignment);
                    self.began.entry(input).or_insert(self.now);
                    let runs = (self.behave)(input).runs;
                    return self.after(runs, number, Event::Ended);
                }
                Step::Wait(time) => {
                    return self.after(time.max(Duration::from_micros(1)), number, Event::Wake);
                }
                Step::Over(Over::Done) => return drop(self.workers.remove(&number)),
                Step::Over(refused) => panic!("{refused:?}"),
            }
        }
    }

    fn poll(&mut self) {
        let mut began = Instant::now();
        while let Some((to, down)) = self.pool.poll(self.now) {
            self.in_pool += began.elapsed();
            self.after(self.latency, to.number, Event::Down(down));
            began = Instant::now();
        }
        self.in_pool += began.elapsed();
    }

    /// Runs until all tasks are over. Each node that dies is replaced.
    pub(crate) fn run(&mut self, slots: usize) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        while !self.pool.is_empty() {
            let dead = self.step().expect("something happens");
            for node in dead {
                let offer = self.offers[&node].clone();
                self.join(slots, &offer);
            }
            outcomes.extend(std::iter::from_fn(|| self.pool.take_outcome(self.job)));
        }
        outcomes
    }
}

fn input_of(assignment: &Assignment) -> u64 {
    u64::from_le_bytes((*assignment.input).try_into().expect("8 bytes"))
}
