//! Processes that join and leave at random, some by SIGKILL, while a pool hands out numbered work.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use pdbp::{Event, NodeId, PartKind, Target};

use super::open::Process;
use super::{Patience, SOON, address, builder};

/// Processes at a time.
const PROCESSES: usize = 8;
/// Seconds for which they join and leave, unless `ELASTIC_SECONDS` is set.
const LONG: f64 = 1.5;

/// A worker sends this to ask for work. A message without bytes tells it to leave.
const WANTS: u64 = u64::MAX;

/// The result for a number.
fn work(number: u64) -> u64 {
    (0..500).fold(number, |value, _| value.wrapping_mul(6_364_136_223_846_793_005).rotate_left(17))
}

/// Takes numbers and sends their results, until it is asked to leave or is killed.
#[test]
#[ignore = "the program of the processes that another test starts"]
fn worker() {
    let join = std::env::var("WORKER_JOINS").unwrap();
    let joined = builder().join(join).start().unwrap();
    let part = joined.nodes()[0].register("worker", PartKind::Cpu).unwrap();
    let pool = part.find("pool@node0", SOON).unwrap();
    let mut said = [WANTS, 0];
    loop {
        part.send_value(pool, &said).unwrap();
        part.flush();
        let Ok(message) = part.recv() else { return };
        let Ok(number) = <[u8; 8]>::try_from(&*message).map(u64::from_le_bytes) else { return };
        said = [number, work(number)];
    }
}

/// Numbers, and the workers that have them.
#[derive(Default)]
struct Pool {
    next: u64,
    /// Numbers whose worker has gone.
    again: BTreeSet<u64>,
    given: BTreeMap<Target, u64>,
    done: BTreeSet<u64>,
    /// Number of times that a number was given to another worker.
    taken_over: usize,
}

impl Pool {
    /// Takes a worker's result or request for work. Returns its next number, if it is to get one.
    fn hear(&mut self, worker: Target, [number, worth]: [u64; 2], goes_on: bool) -> Option<u64> {
        if number != WANTS {
            // If the worker was thought to be gone, the number may have been given to another.
            assert_eq!(worth, work(number), "{number}");
            if self.given.remove(&worker) == Some(number) {
                assert!(self.done.insert(number), "{number} was done twice");
            }
        }
        let next = self.again.pop_first().or_else(|| {
            let next = self.next;
            self.next += u64::from(goes_on);
            goes_on.then_some(next)
        })?;
        self.given.insert(worker, next);
        Some(next)
    }

    fn lose(&mut self, node: NodeId) {
        let of_it: Vec<_> = self.given.keys().copied().filter(|worker| worker.node() == node).collect();
        self.taken_over += of_it.len();
        let lost = of_it.into_iter().filter_map(|worker| self.given.remove(&worker));
        self.again.extend(lost);
    }

    fn is_done(&self) -> bool {
        self.done.len() as u64 == self.next
    }
}

#[test]
fn eight_processes_come_and_go_and_all_numbered_work_is_done_once() {
    let seconds = std::env::var("ELASTIC_SECONDS").ok().and_then(|text| text.parse().ok());
    let long = Duration::from_secs_f64(seconds.unwrap_or(LONG));
    let address = address();
    let founder = builder().nodes(24).outage(Duration::from_secs(1)).listen(address.clone()).found(true);
    let founder = founder.start().unwrap();
    let (node, mut pool) = (&founder.nodes()[0], Pool::default());
    let part = node.register("pool", PartKind::Cpu).unwrap();
    let start = || Process::start("elastic::worker", "WORKER_JOINS", &address);
    let mut processes: Vec<_> = (0..PROCESSES).map(|_| start()).collect();
    // Workers that wait for a number.
    let mut waiting = BTreeSet::new();
    let (mut random, mut due, mut gone) = (0x2545_F491_4F6C_DD1D_u64, Duration::ZERO, [0, 0]);
    let (mut began, patience) = (None, Patience::new());
    // On a busy machine it may take longer until the first is killed.
    let is_over = |began: Instant, killed: usize| began.elapsed() >= long && killed > 0;
    while !(began.is_some_and(|began| is_over(began, gone[1])) && pool.is_done()) {
        patience.check();
        for event in node.take_events() {
            if let Event::NodeDown { node } = event {
                pool.lose(node);
                waiting.retain(|worker: &Target| worker.node() != node);
            }
        }
        if let Ok(message) = part.recv_timeout(Duration::from_millis(1)) {
            // The first worker has joined.
            let began = began.get_or_insert_with(Instant::now);
            let said = message.as_chunks::<8>().0;
            let said = [said[0], said[1]].map(u64::from_le_bytes);
            waiting.insert(message.source());
            if let Some(number) = pool.hear(message.source(), said, !is_over(*began, gone[1])) {
                waiting.remove(&message.source());
                // If the worker has gone, its number may have been given up already.
                if part.send_value(message.source(), &number).is_err() {
                    pool.again.extend(pool.given.remove(&message.source()));
                }
                part.flush();
            }
        }
        hand_out_again(&part, &mut pool, &mut waiting);
        let Some(began) = began.filter(|began| !is_over(*began, gone[1])) else { continue };
        if began.elapsed() >= due {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            due += Duration::from_millis(20 + random % 150);
            let at = (random >> 32) as usize % processes.len();
            let leaves = random.is_multiple_of(3).then(|| pool.given.keys().next().copied()).flatten();
            match leaves {
                // It leaves in order, with the number that it had; its place here goes to a worker that is killed
                // later.
                Some(worker) => gone[0] += usize::from(part.send(worker, &[]).is_ok()),
                None => {
                    drop(processes.swap_remove(at));
                    gone[1] += 1;
                }
            }
            part.flush();
            processes.push(start());
        }
    }
    let (numbers, taken_over, [left, killed]) = (pool.next, pool.taken_over, gone);
    println!(
        "elastic: {numbers} numbers done, {taken_over} of them by another than first; {left} processes left, {killed} were killed"
    );
    assert!(pool.given.is_empty() && pool.done.iter().copied().eq(0..pool.next));
    assert!(pool.next > 0 && gone[1] > 0);
}

/// Gives the numbers of workers that have gone to workers that wait.
fn hand_out_again(part: &pdbp::Part, pool: &mut Pool, waiting: &mut BTreeSet<Target>) {
    while !pool.again.is_empty()
        && let Some(worker) = waiting.pop_first()
    {
        if let Some(number) = pool.hear(worker, [WANTS, 0], false)
            && part.send_value(worker, &number).is_err()
        {
            pool.again.extend(pool.given.remove(&worker));
        }
    }
    part.flush();
}
