//! The client of a world.

use std::collections::{BTreeMap, VecDeque};

use super::{AFTER, CLIENT, FINGERPRINT, JOIN, JOINED, TASKS, World, encode};
use crate::wire::{self, Answer, By, Chunk, Down, Inputs, KindId, Name, Options, Request, Up};

/// The client makes one request at a time, and repeats it when no answer comes.
#[derive(Clone, Default)]
pub(super) struct Client {
    pub(super) id: u64,
    pub(super) jobs: u32,
    pub(super) stage: u32,
    pub(super) asked: bool,
    pub(super) up: VecDeque<Up>,
    pub(super) down: VecDeque<Down>,
    pub(super) read: u64,
    /// Values by number, for the job that it waits for.
    pub(super) came: BTreeMap<u64, u64>,
    pub(super) done: u32,
    /// Nonce of the retry request that has no answer yet.
    pub(super) retries: Option<u128>,
    /// How many retry requests each job has had.
    pub(super) nonces: BTreeMap<u32, u32>,
}

impl Client {
    /// The most retries that a job may have had.
    pub(super) fn wished(&self, job: u32) -> u32 {
        self.nonces.get(&job).copied().unwrap_or(0)
    }

    fn retry(&mut self) {
        let nonces = self.nonces.entry(self.done).or_default();
        *nonces += 1;
        self.retries = Some(u128::from(*nonces));
    }
}

impl World {
    /// Makes the client's next request, unless it is waiting for an answer.
    pub(super) fn client_step(&mut self) {
        let again = self.faults && self.random(10) == 0;
        if self.client.done < self.client.jobs && (!self.client.asked || again) {
            self.client.id += 1;
            self.client.asked = true;
            let (job, id) = (self.client.done, self.client.id);
            let chunk = |once, count| {
                let inputs = Inputs::List((0..count).map(|_| encode(&4u64)).collect());
                let options = Options { retries: 1000, once, ..Options::default() };
                Chunk { options, ..Chunk::new(KindId(0), inputs) }
            };
            if self.client.stage > 3 && self.client.retries.is_none() && self.faults && self.random(8) == 0 {
                self.client.retry();
            }
            let request = match self.client.stage {
                0 => Request::Begin {
                    fingerprint: FINGERPRINT,
                    nonce: u128::from(job) + 50,
                    name: "job".into(),
                },
                1 => Request::Add { fingerprint: FINGERPRINT, job, first: 0, chunks: vec![chunk(true, 1)] },
                2 => {
                    let join = Chunk { join: Some(JOINED.to_vec()), ..chunk(false, 1) };
                    let later = Chunk { after: AFTER.to_vec(), ..chunk(false, 1) };
                    Request::Add {
                        fingerprint: FINGERPRINT,
                        job,
                        first: 1,
                        chunks: vec![chunk(false, JOIN - 1), join, later],
                    }
                }
                3 => Request::Close { job },
                _ => match self.client.retries {
                    Some(nonce) => Request::Retry { job, nonce },
                    None => Request::Read { job, by: By::Completion, from: self.client.read, most: 2 },
                },
            };
            self.client.up.push_back(Up::Request { id, request });
        }
        if let Some(up) = self.client.up.pop_front() {
            self.pool.receive(self.now, CLIENT, up);
        }
    }

    pub(super) fn client_hears(&mut self) {
        let Some(Down::Answer { id, answer }) = self.client.down.pop_front() else { return };
        if id != self.client.id {
            return;
        }
        self.client.asked = false;
        match answer {
            Answer::Job(job) => {
                assert_eq!(job, self.client.done, "a job that was begun is another");
                self.client.stage += 1;
            }
            // This many tasks run again.
            Answer::Done(_) if self.client.stage > 3 => self.client.retries = None,
            Answer::Done(count) => {
                let stage = self.client.stage;
                assert!(
                    stage != 1
                        || self.names.contains(&Name { job: self.client.done, number: 0, sub: 0, run: 0 })
                );
                assert_eq!(count, if stage == 1 { 1 } else { TASKS }, "stage {stage}");
                self.client.stage += 1;
            }
            Answer::Results { next, over, results } => {
                for wire::ResultOf { number, result } in results {
                    let value = result.map_or(0, |bytes| super::value_of(&bytes));
                    let name = Name { job: self.client.done, number, sub: 0, run: 0 };
                    let has_failed = value == 0 && self.failed.contains(&name);
                    assert!(has_failed || self.values.get(&name) == Some(&value), "{name}: {value}");
                    let before = self.client.came.insert(number, value);
                    assert!(before.is_none_or(|before| before == 0), "{name} has come twice");
                }
                self.client.read = next;
                if over && self.client.came.values().any(|value| *value == 0) && self.random(2) == 0 {
                    self.client.retry();
                } else if over {
                    let came = std::mem::take(&mut self.client.came);
                    assert_eq!(came.len() as u64, TASKS, "results of job {}", self.client.done);
                    self.client.done += 1;
                    (self.client.stage, self.client.read) = (0, 0);
                }
            }
            other => panic!("{other:?}"),
        }
    }
}
