//! The entry points of the fuzz target `pool`; not for other use.

use std::time::Duration;

use crate::durable::{Durable, Output};
use crate::pool::{Limits, Processor};
use crate::resources::Resources;
use crate::store::{Change, Memory, Reader, Store};
use crate::wire::{
    self, Bytes, Chunk, Down, Ending, Inputs, KindId, Options, Request, Submission, Up, pieces,
};
use crate::worker::{Step, Worker};

const FINGERPRINT: u64 = 7;
const CLIENT: Processor = Processor { node: 1, number: 1 };
const HONEST: Processor = Processor { node: 2, number: 2 };
const HOSTILE: Processor = Processor { node: 9, number: 9 };
/// Tasks of the honest client's job, and the most tasks of all jobs of the hostile client: all of them are run.
const TASKS: u64 = 4;
const FOREIGN: u64 = 1000;
/// More rounds than any of this takes.
const ROUNDS: u32 = 10_000;

/// Feeds a pool with a journal whatever a processor or client may send it, and a processor whatever a pool may send: pieces of messages, each
/// preceded by its length. Whatever arrives, the tasks of another client must end exactly once, and the next pool must be able to open the
/// journal.
pub fn pool(bytes: &[u8]) {
    let mut place = Place::new();
    place.begin();
    let mut worker = Worker::keeping(FINGERPRINT, Resources::none().cpus(1));
    let (mut joined, mut rest, mut foreign) = (pieces::Joined::default(), bytes, 0);
    while let Some((length, behind)) = rest.split_first() {
        let (piece, behind) = behind.split_at(behind.len().min(usize::from(*length)));
        rest = behind;
        match joined.add(piece, |whole| (same::<Up>(whole), same::<Down>(whole))) {
            Some(Some((up, down))) => {
                match up {
                    Some(up) if !is_allowed(&up, &mut foreign) => {}
                    Some(up) => place.durable.receive(place.now, HOSTILE, up),
                    None => place.durable.pool.malformed(HOSTILE),
                }
                down.into_iter().for_each(|down| hear(&mut worker, down, place.now));
            }
            Some(None) => {}
            None => place.durable.pool.malformed(HOSTILE),
        }
        place.round();
    }
    place.durable.lose_node(HOSTILE.node);
    place.sync();
    place.take_up();
    for _ in 0..ROUNDS {
        if (0..TASKS).all(|number| place.has_ended(number)) {
            return;
        }
        place.round();
    }
    panic!("the job does not end: {}", place.durable.pool.explain(crate::pool::JobId(0)));
}

/// Decodes a message, and checks that it survives being encoded again.
fn same<T: serde::Serialize + for<'a> serde::Deserialize<'a> + PartialEq>(bytes: &[u8]) -> Option<T> {
    let message = wire::decode::<T>(bytes).ok()?;
    let again = postcard::to_stdvec(&message).ok().and_then(|bytes| wire::decode::<T>(&bytes).ok());
    assert!(again.as_ref() == Some(&message), "it is another message when it comes again");
    Some(message)
}

/// Excludes what any holder of the token may do, but this test cannot allow: ending the jobs of others, and adding more tasks than there is time
/// for.
fn is_allowed(up: &Up, foreign: &mut u64) -> bool {
    match up {
        Up::Request { request: Request::Cancel { job: 0 } | Request::Forget { job: 0 }, .. } => false,
        Up::Request { request: Request::Add { chunks, .. }, .. } => {
            let count = chunks.iter().fold(0, |sum: u64, chunk| sum.saturating_add(chunk.inputs.len()));
            *foreign = foreign.saturating_add(count);
            *foreign <= FOREIGN
        }
        _ => true,
    }
}

/// Delivers a message that no pool has sent to a processor.
fn hear(worker: &mut Worker, down: Down, now: Duration) {
    worker.receive(down);
    for _ in 0..8 {
        if let Step::Run(task) = worker.step(now) {
            worker.ended(now, Ending::Value(task.input), Vec::new());
        }
    }
}

/// A pool, its journal, and an honest processor.
struct Place {
    store: Memory,
    durable: Durable,
    now: Duration,
    term: u32,
    results: Vec<Submission>,
    sent: u64,
}

fn taken_up(store: &mut Memory) -> (Durable, u32) {
    let mut saved = store.load();
    let term = saved.term + 1;
    assert!(store.commit(&[Change::Term(term, term.into())]).is_ok());
    saved.pools.push(term.into());
    let reader = Box::new(store.clone());
    match Durable::restore(saved, term, (2, FINGERPRINT), Limits::default(), |_| false, reader) {
        Ok(durable) => (durable, term),
        Err(error) => panic!("the journal cannot be taken up: {error}"),
    }
}

impl Place {
    fn new() -> Self {
        let mut store = Memory::default();
        let (durable, term) = taken_up(&mut store);
        Self { store, durable, now: Duration::from_secs(1), term, results: Vec::new(), sent: 0 }
    }

    /// Starts the next pool, which the honest processor joins.
    fn take_up(&mut self) {
        (self.durable, self.term) = taken_up(&mut self.store);
        (self.results, self.sent) = (Vec::new(), 0);
        self.greet();
    }

    fn greet(&mut self) {
        let (fingerprint, offer) = (FINGERPRINT, Resources::none().cpus(1));
        self.durable.receive(self.now, HONEST, Up::Hello { fingerprint, offer, held: Vec::new(), of: 0 });
    }

    /// The honest client's job is number 0.
    fn begin(&mut self) {
        let (fingerprint, name) = (FINGERPRINT, "honest".to_owned());
        let options = Options { retries: 3, ..Options::default() };
        let chunk = Chunk { options, ..Chunk::new(KindId(0), Inputs::Numbers { first: 0, count: TASKS }) };
        for request in [
            Request::Begin { fingerprint, nonce: 7, name },
            Request::Add { fingerprint, job: 0, first: 0, chunks: vec![chunk] },
            Request::Close { job: 0 },
        ] {
            self.durable.receive(self.now, CLIENT, Up::Request { id: 1, request });
        }
        self.greet();
    }

    fn sync(&mut self) {
        while let Some(group) = self.durable.take_group() {
            assert!(self.store.commit(&group.changes).is_ok());
            self.durable.durable(group.number);
        }
    }

    /// Lets the honest processor report its results and run its next tasks, and makes everything durable.
    fn round(&mut self) {
        self.now += Duration::from_secs(1);
        let (results, first) = (std::mem::take(&mut self.results), self.sent);
        self.sent += results.len() as u64;
        self.durable.receive(self.now, HONEST, Up::Report { term: self.term, first, room: 64, results });
        for _ in 0..2 {
            self.sync();
            while let Some(out) = self.durable.poll(self.now) {
                let Output::Down(to, down) = out else { continue };
                assert!(postcard::to_stdvec(&down).is_ok());
                if let (HONEST, Down::Tasks(tasks)) = (to, down) {
                    self.results.extend(tasks.into_iter().map(|task| Submission {
                        task: task.task,
                        attempt: task.attempt,
                        ran_ns: 1,
                        ending: Ending::Value(Bytes::from(&b"honest"[..])),
                        tasks: Vec::new(),
                        large: Vec::new(),
                    }));
                }
            }
        }
    }

    fn has_ended(&self, number: u64) -> bool {
        self.store.ended(0, number).is_ok_and(|ended| ended.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seeds start the fuzzer at valid messages.
    #[test]
    fn the_seeds_are_messages() {
        for (name, seed, is_up) in [
            ("processor", &include_bytes!("../../fuzz/seeds/pool/processor")[..], true),
            ("client", include_bytes!("../../fuzz/seeds/pool/client"), true),
            ("down", include_bytes!("../../fuzz/seeds/pool/down"), false),
        ] {
            let (mut rest, mut at) = (seed, 0);
            while let Some((length, behind)) = rest.split_first() {
                let (piece, behind) = behind.split_at(usize::from(*length));
                let is_one = if is_up {
                    same::<Up>(&piece[1..]).is_some()
                } else {
                    same::<Down>(&piece[1..]).is_some()
                };
                assert!(piece[0] == 0 && is_one, "message {at} of {name}: {piece:?}");
                (rest, at) = (behind, at + 1);
            }
            pool(seed);
        }
    }
}
