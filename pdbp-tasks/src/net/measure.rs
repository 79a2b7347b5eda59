//! The measurements of the benchmark `journal`; not for other use.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::durable::{Durable, Output};
use crate::error::Error;
use crate::pool::{Limits, Processor};
use crate::store::{Change, Disk, Store};
use crate::wire::{Assignment, Bytes, Chunk, Down, Ending, Inputs, KindId, Request, Submission, Up};

const FINGERPRINT: u64 = 1;
const PROCESSORS: u64 = 8;
const CLIENT: Processor = Processor { node: 1, number: 0 };
const CHUNK: u64 = 4096;

/// The times measured.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Until all added tasks were durable.
    pub loaded: Duration,
    /// Until all results were durable; the tasks take no time.
    pub done: Duration,
    /// The part of that spent in the store.
    pub stored: Duration,
    /// Commits of results.
    pub commits: u64,
    /// Until a pool was rebuilt from the journal when that held half of the results.
    pub restored: Duration,
}

struct Bench {
    store: Disk,
    durable: Durable,
    stored: Duration,
    commits: u64,
    given: Vec<Vec<Assignment>>,
    firsts: Vec<u64>,
}

fn take_up(path: &Path) -> Result<(Disk, Durable), Error> {
    let mut store = Disk::open(path).map_err(Error::other)?;
    let saved = store.load().map_err(Error::other)?;
    let term = saved.term + 1;
    store.commit(&[Change::Term(term, 1)]).map_err(Error::other)?;
    let judge = |_: &[u8]| false;
    let durable =
        Durable::restore(saved, term, (1, FINGERPRINT), Limits::default(), judge, Box::new(store.clone()))
            .map_err(Error::other)?;
    Ok((store, durable))
}

impl Bench {
    fn new(path: &Path) -> Result<Self, Error> {
        let (store, durable) = take_up(path)?;
        let (given, firsts) = ((0..PROCESSORS).map(|_| Vec::new()).collect(), vec![0; PROCESSORS as usize]);
        Ok(Self { store, durable, stored: Duration::ZERO, commits: 0, given, firsts })
    }

    fn sync(&mut self) -> Result<(), Error> {
        while let Some(group) = self.durable.take_group() {
            let began = Instant::now();
            if !group.changes.is_empty() {
                self.store.commit(&group.changes).map_err(Error::other)?;
                self.commits += 1;
            }
            self.stored += began.elapsed();
            self.durable.durable(group.number);
        }
        Ok(())
    }

    fn poll(&mut self, now: Duration) {
        while let Some(out) = self.durable.poll(now) {
            if let Output::Down(to, Down::Tasks(tasks)) = out
                && let Some(given) = self.given.get_mut(to.number as usize)
            {
                given.extend(tasks);
            }
        }
    }

    fn ask(&mut self, request: Request) {
        self.durable.receive(Duration::ZERO, CLIENT, Up::Request { id: 0, request });
    }

    /// Runs everything that processors have, in groups of `group` results, until `count` have ended.
    fn work(&mut self, term: u32, count: u64, group: usize) -> Result<(), Error> {
        let (mut done, mut now, mut grouped) = (0, Duration::from_secs(1), 0);
        while done < count {
            for number in 0..PROCESSORS {
                let from = Processor { node: 2, number };
                let (Some(given), Some(first)) =
                    (self.given.get_mut(number as usize), self.firsts.get_mut(number as usize))
                else {
                    continue;
                };
                let results: Vec<_> = given
                    .drain(..)
                    .map(|task| {
                        let ending = Ending::Value(Bytes::from(&task.input[..]));
                        Submission {
                            task: task.task,
                            attempt: task.attempt,
                            ran_ns: 1000,
                            ending,
                            tasks: Vec::new(),
                            large: Vec::new(),
                        }
                    })
                    .collect();
                let ended = results.len();
                let report = Up::Report { term, first: *first, room: 256, results };
                (*first, done, grouped) = (*first + ended as u64, done + ended as u64, grouped + ended);
                self.durable.receive(now, from, report);
                if grouped >= group {
                    self.sync()?;
                    grouped = 0;
                }
                self.poll(now);
            }
            now += Duration::from_micros(100);
        }
        self.sync()
    }
}

/// Loads `count` tasks with inputs of 8 bytes into a new journal at `path`, and ends them with results of 8 bytes, in groups of `group`. `loaded`
/// is called when the tasks are queued.
///
/// # Errors
/// An error of the store.
pub fn durable(path: &Path, count: u64, group: usize, loaded: impl FnOnce()) -> Result<Figures, Error> {
    let mut bench = Bench::new(path)?;
    let mut figures = Figures::default();
    let began = Instant::now();
    bench.ask(Request::Begin { fingerprint: FINGERPRINT, nonce: 1, name: "bench".into() });
    for first in (0..count).step_by(CHUNK as usize) {
        let numbers = first..count.min(first + CHUNK);
        let inputs = Inputs::List(numbers.map(|number| Bytes::from(&number.to_le_bytes()[..])).collect());
        bench.ask(Request::Add {
            fingerprint: FINGERPRINT,
            job: 0,
            first,
            chunks: vec![Chunk::new(KindId(0), inputs)],
        });
        bench.sync()?;
    }
    figures.loaded = began.elapsed();
    bench.poll(Duration::ZERO);
    loaded();
    (bench.stored, bench.commits) = (Duration::ZERO, 0);
    let began = Instant::now();
    bench.work(1, count / 2, group)?;
    (figures.done, figures.stored) = (began.elapsed(), bench.stored);
    figures.commits = bench.commits;
    drop(bench);
    let began = Instant::now();
    drop(take_up(path)?);
    figures.restored = began.elapsed();
    Ok(figures)
}
