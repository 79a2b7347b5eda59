//! Results as an iterator, which reads the inputs of `each` as there is room.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::{Feed, Job};
use crate::error::Error;
use crate::pool::{NewTask, Outcome};
use crate::wire::{self, Bytes};

/// The most tasks that are added and whose results have not been returned.
const WINDOW: usize = 1 << 14;
/// Bytes of inputs and results in the pool above which no more tasks are added, unless it has few.
const BYTES: usize = 64 << 20;
const FEW: usize = 64;
/// Bytes of results taken from the pool at a time, each with its overhead: unread results stay in the pool, where they are bounded.
const TAKEN: usize = 1 << 20;
/// Overhead of a result.
const EACH: usize = 64;
/// Time until the next check for an input that was not available.
pub(super) const LOOK: Duration = Duration::from_micros(500);
/// Inputs that are read before they are added.
const AT_ONCE: usize = 512;

/// Lengths of results: unread ones are all in memory.
#[derive(Default)]
pub(super) struct Sizes {
    count: usize,
    bytes: usize,
}

impl Sizes {
    fn record(&mut self, bytes: usize) {
        (self.count, self.bytes) = (self.count + 1, self.bytes.saturating_add(bytes));
    }

    /// How many tasks may be added whose results have not been returned.
    fn window(&self) -> usize {
        match self.count {
            // No result yet, so their length is unknown.
            0 => AT_ONCE,
            count => (BYTES / (self.bytes / count).max(1)).clamp(FEW, WINDOW),
        }
    }
}

/// A task that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Done<O> {
    /// Its number in the job: how many tasks were added before it.
    pub number: u64,
    /// Its result.
    pub value: O,
}

/// Results in order of completion: see [`Job::results`].
pub struct Results<'j, 't, O> {
    job: &'j mut Job<'t, O>,
    error: Option<Error>,
    over: bool,
}

impl<'j, 't, O: DeserializeOwned> Results<'j, 't, O> {
    pub(super) fn new(job: &'j mut Job<'t, O>) -> Self {
        Self { job, error: None, over: false }
    }

    /// The same in the order in which the tasks were added. Early results are kept; no more tasks are added than the client may have unfinished.
    pub fn in_order(self) -> InOrder<'j, 't, O> {
        InOrder { results: self }
    }

    #[cfg(feature = "cli")]
    pub(super) fn job_name(&self) -> String {
        self.job.name.clone()
    }

    /// How many results there will be: those that have come plus the remaining inputs, if their number is known.
    fn expected(&self) -> Option<u64> {
        let left = self.job.feeds.iter().map(|feed| feed.inputs.size_hint().1);
        let left: Option<usize> = left.sum();
        Some(left? as u64 + self.job.fed.len() as u64)
    }

    fn give(&mut self, outcome: Outcome) -> Result<Done<O>, Error> {
        let Outcome { number, result } = outcome;
        self.job.fed.remove(&number);
        let bytes = result.map_err(|error| Error::Task { number, error })?;
        Ok(Done { number, value: wire::decode(&bytes)? })
    }

    fn next_outcome(&mut self) -> Option<Result<Outcome, Error>> {
        loop {
            if let Some(outcome) = self.job.came.pop_front() {
                return Some(Ok(outcome));
            }
            if self.over {
                return self.error.take().map(Err);
            }
            if let Err(error) = self.fill() {
                (self.error, self.over) = (Some(error), true);
                continue;
            }
            self.take();
        }
    }

    /// Waits for outcomes and takes those available.
    fn take(&mut self) {
        let served = self.job.tasks.served;
        let mut pool = served.pool();
        loop {
            let mut taken = 0;
            while taken < TAKEN
                && let Some(outcome) = pool.take_outcome(self.job.id)
            {
                let bytes = outcome.result.as_ref().map_or(0, |bytes| bytes.len());
                taken += bytes + EACH;
                self.job.sizes.record(bytes);
                self.job.came.push_back(outcome);
            }
            if pool.has_resumed() {
                self.job.tasks.wake();
            }
            if !self.job.came.is_empty() {
                return;
            }
            if pool.live(self.job.id) == 0 && self.job.feeds.is_empty() {
                self.over = true;
                return;
            }
            if let Some(error) = served.error() {
                (self.error, self.over) = (Some(error), true);
                return;
            }
            pool = match self.job.awaits_inputs {
                true => served.wait_for(pool, self.job.pause),
                false => served.wait(pool),
            };
            // Others have had all the room, or an input was missing: check again.
            if (self.job.fed.is_empty() || self.job.awaits_inputs) && !self.job.feeds.is_empty() {
                return;
            }
        }
    }

    /// Adds as many tasks as there is room for.
    fn fill(&mut self) -> Result<(), Error> {
        let before = self.job.fed.len();
        let filled = self.fill_more();
        if self.job.fed.len() > before {
            self.job.tasks.wake();
        }
        filled
    }

    fn fill_more(&mut self) -> Result<(), Error> {
        self.job.awaits_inputs = false;
        while let Some(feed) = self.job.feeds.front_mut() {
            let after = match &feed.after {
                Ok(after) => after,
                Err(refused) => {
                    let refused = *refused;
                    self.job.feeds.pop_front();
                    return Err(refused.into());
                }
            };
            let few = self.job.fed.len() < FEW;
            let room = {
                let pool = self.job.tasks.served.pool();
                let window = self.job.sizes.window().saturating_sub(self.job.fed.len()).min(AT_ONCE);
                if few || pool.bytes() < BYTES { window.min(pool.room()) } else { 0 }
            };
            if room == 0 {
                break;
            }
            // One at a time first, so that no processor waits for a slow iterator; and without the lock.
            let most = if few { 1 } else { room };
            let mut inputs = Vec::with_capacity(most);
            // Inputs before one that cannot be encoded are added.
            let (mut encoded, mut is_last) = (Ok(()), false);
            while inputs.len() < most && encoded.is_ok() && !is_last && !self.job.awaits_inputs {
                match feed.inputs.next() {
                    Some(Ok(Some(input))) => {
                        self.job.pause = LOOK;
                        inputs.push(input);
                    }
                    Some(Ok(None)) => {
                        self.job.pause = self.job.pause.saturating_mul(2);
                        self.job.awaits_inputs = true;
                    }
                    Some(Err(error)) => encoded = Err(error),
                    None => is_last = true,
                }
            }
            add(self.job.tasks, self.job.id, (feed, after), inputs, &mut self.job.fed)?;
            encoded?;
            if is_last {
                self.job.feeds.pop_front();
            }
            if few {
                self.job.tasks.wake();
            }
            if self.job.awaits_inputs {
                break;
            }
        }
        Ok(())
    }
}

fn add(
    tasks: &super::Tasks<'_>,
    job: crate::pool::JobId,
    (feed, after): (&Feed<'_>, &[u64]),
    inputs: Vec<Bytes>,
    fed: &mut BTreeSet<u64>,
) -> Result<(), Error> {
    let mut pool = tasks.served.pool();
    for input in inputs {
        let (kind, options) = (feed.kind, feed.options);
        let new = NewTask { kind, options, needs: &feed.needs, input, join: None, after, keep: false };
        fed.insert(pool.add(job, &new)?);
    }
    Ok(())
}

impl<O: DeserializeOwned> Iterator for Results<'_, '_, O> {
    type Item = Result<Done<O>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some((_, outcome)) = self.job.early.pop_first() {
            return Some(self.give(outcome));
        }
        Some(match self.next_outcome()? {
            Ok(outcome) => self.give(outcome),
            Err(error) => Err(error),
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, self.expected().and_then(|expected| usize::try_from(expected).ok()))
    }
}

/// Results in the order of their tasks: see [`Results::in_order`].
pub struct InOrder<'j, 't, O> {
    pub(super) results: Results<'j, 't, O>,
}

impl<O: DeserializeOwned> Iterator for InOrder<'_, '_, O> {
    type Item = Result<Done<O>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let job = &mut *self.results.job;
            if let Some(outcome) = job.fed.first().and_then(|first| job.early.remove(first)) {
                return Some(self.results.give(outcome));
            }
            match self.results.next_outcome()? {
                Ok(outcome) => drop(self.results.job.early.insert(outcome.number, outcome)),
                Err(error) => return Some(Err(error)),
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.results.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_results_let_fewer_tasks_in() {
        let mut sizes = Sizes::default();
        assert_eq!(sizes.window(), AT_ONCE, "nobody knows");
        (0..9).for_each(|_| sizes.record(8));
        assert_eq!(sizes.window(), WINDOW);
        let mut sizes = Sizes::default();
        (0..2).for_each(|_| sizes.record(BYTES / 200));
        assert_eq!(sizes.window(), 200);
        sizes.record(usize::MAX);
        assert_eq!(sizes.window(), FEW);
    }
}
