//! A store in memory, for tests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Change, Ended, JobRecord, Reader, Saved, Store, StoreError, key};
use crate::pool::{Processor, Step};
use crate::wire::{Bytes, Name};

#[derive(Clone, Debug, Default)]
struct Content {
    term: u32,
    pools: BTreeMap<u32, u64>,
    next_job: u32,
    functions: Option<u64>,
    jobs: BTreeMap<u32, JobRecord>,
    added: BTreeMap<(u32, u64), Bytes>,
    ended: BTreeMap<(u32, u64), Ended>,
    /// The end of each range, by job, run and first number.
    again: BTreeMap<(u32, u32, u64), u64>,
    steps: BTreeMap<(u32, u64, u64), Step>,
    started: BTreeMap<Name, Processor>,
}

/// See the [module](self). Clones are the same store.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory(Arc<Mutex<Content>>);

impl Memory {
    fn content(&self) -> MutexGuard<'_, Content> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An independent copy of the store.
    #[cfg(test)]
    pub(crate) fn copy(&self) -> Self {
        Self(Arc::new(Mutex::new(self.content().clone())))
    }

    pub(crate) fn load(&self) -> Saved {
        let content = self.content();
        Saved {
            term: content.term,
            pools: content.pools.values().copied().collect(),
            next_job: content.next_job,
            functions: content.functions,
            jobs: content.jobs.iter().map(|(job, record)| (*job, record.clone())).collect(),
            added: content.added.iter().map(|((job, first), chunk)| (*job, *first, chunk.clone())).collect(),
            ended: content.ended.iter().map(|((job, number), ended)| (*job, *number, ended.head)).collect(),
            again: content.again.iter().map(|((job, run, first), end)| (*job, *first..*end, *run)).collect(),
            steps: content.steps.values().cloned().collect(),
            started: content.started.iter().map(|(name, processor)| (*name, *processor)).collect(),
        }
    }
}

impl Content {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Term(term, number) => {
                self.term = *term;
                self.pools.insert(*term, *number);
            }
            Change::Functions(functions) => self.functions = Some(*functions),
            Change::NextJob(job) => self.next_job = *job,
            Change::Job(job, record) => drop(self.jobs.insert(*job, record.clone())),
            Change::Forget(job) => {
                self.jobs.remove(job);
                self.added.retain(|(of, _), _| of != job);
                self.ended.retain(|(of, _), _| of != job);
                self.again.retain(|(of, ..), _| of != job);
                self.steps.retain(|(of, ..), _| of != job);
                self.started.retain(|name, _| name.job != *job);
            }
            Change::Added(job, first, chunk) => drop(self.added.insert((*job, *first), chunk.clone())),
            Change::Ended(job, number, ended) => drop(self.ended.insert((*job, *number), ended.clone())),
            Change::Unended(job, numbers, run) => {
                numbers.clone().for_each(|number| drop(self.ended.remove(&(*job, number))));
                self.again.insert((*job, *run, numbers.start), numbers.end);
            }
            Change::Step(step) => {
                if let Some(key) = key(step) {
                    self.steps.insert(key, step.clone());
                }
            }
            Change::FamilyOver(job, number) => {
                self.steps.retain(|(j, n, _), _| (j, n) != (job, number));
            }
            Change::Started(name, processor) => drop(self.started.insert(*name, *processor)),
            Change::Settled(name) => drop(self.started.remove(name)),
            Change::Keeps(..) => {}
        }
    }
}

impl Store for Memory {
    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        let mut content = self.content();
        changes.iter().for_each(|change| content.apply(change));
        Ok(())
    }
}

impl Reader for Memory {
    #[cfg(test)]
    fn clone_reader(&self) -> Box<dyn Reader> {
        Box::new(self.clone())
    }

    fn ended(&self, job: u32, number: u64) -> Result<Option<Ended>, StoreError> {
        Ok(self.content().ended.get(&(job, number)).cloned())
    }
}
