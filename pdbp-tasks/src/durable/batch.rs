//! A job of a journal: its chunks, and which of its tasks are over.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::resources::Resources;
use crate::store::JobRecord;
use crate::wire::{self, Bytes, Chunk, KindId, Options};

/// No task has this number.
const NONE: u64 = u64::MAX;

/// A task of a chunk.
pub(super) struct Task<'b> {
    pub(super) kind: KindId,
    pub(super) options: Options,
    pub(super) needs: &'b Resources,
    pub(super) input: Bytes,
}

/// See the [module](self).
pub(super) struct Batch {
    pub(super) record: JobRecord,
    /// Encoded, by the number of the first task.
    chunks: BTreeMap<u64, Bytes>,
    /// The one that was looked at last.
    open: Option<(u64, Chunk)>,
    /// Tasks that were added, and those of them that may be handed out.
    pub(super) next: u64,
    pub(super) there: u64,
    /// Of those that may, the next that comes into the pool, and what comes before it.
    fed: u64,
    first: VecDeque<u64>,
    /// Those of them that are in the pool already.
    begun: BTreeSet<u64>,
    /// A bit for each task.
    ended: Vec<u64>,
    /// Numbers of tasks as they ended; [`NONE`] for one that runs again.
    order: Vec<u64>,
    /// How many of them are durable.
    pub(super) shown: usize,
    /// Places in `order` of those that have failed.
    failed: BTreeMap<u64, u64>,
    count: u64,
}

impl Batch {
    pub(super) fn new(record: JobRecord) -> Self {
        Self {
            record,
            chunks: BTreeMap::new(),
            open: None,
            next: 0,
            there: 0,
            fed: 0,
            first: VecDeque::new(),
            begun: BTreeSet::new(),
            ended: Vec::new(),
            order: Vec::new(),
            shown: 0,
            failed: BTreeMap::new(),
            count: 0,
        }
    }

    pub(super) fn add(&mut self, chunk: Bytes, count: u64) {
        self.chunks.insert(self.next, chunk);
        self.next += count;
    }

    /// The next task that comes into the pool.
    pub(super) fn next_to_feed(&mut self) -> Option<u64> {
        loop {
            let number = match self.first.pop_front() {
                Some(number) => number,
                None if self.fed < self.there => {
                    self.fed += 1;
                    self.fed - 1
                }
                None => return None,
            };
            if !self.is_ended(number) && !self.begun.remove(&number) {
                return Some(number);
            }
        }
    }

    /// It is in the pool, though those before it may not be.
    pub(super) fn is_begun(&mut self, number: u64) {
        self.begun.insert(number);
    }

    pub(super) fn was_begun(&self, number: u64) -> bool {
        self.begun.contains(&number)
    }

    pub(super) fn task(&mut self, number: u64) -> Option<Task<'_>> {
        let (first, encoded) = self.chunks.range(..=number).next_back()?;
        if self.open.as_ref().is_none_or(|(open, _)| open != first) {
            // It was decoded when it was added, or read from the journal.
            self.open = Some((*first, wire::decode(encoded).ok()?));
        }
        let (first, chunk) = self.open.as_ref()?;
        let end = chunk.inputs.get(number - first)?;
        let input = if chunk.prefix.is_empty() { end } else { [&*chunk.prefix, &*end].concat().into() };
        Some(Task { kind: chunk.kind, options: chunk.options, needs: &chunk.needs, input })
    }

    pub(super) fn is_ended(&self, number: u64) -> bool {
        let bits = usize::try_from(number / 64).ok().and_then(|at| self.ended.get(at));
        bits.is_some_and(|bits| bits >> (number % 64) & 1 == 1)
    }

    fn set_ended(&mut self, number: u64, ended: bool) {
        let Ok(at) = usize::try_from(number / 64) else { return };
        if at >= self.ended.len() {
            self.ended.resize(at + 1, 0);
        }
        if let Some(bits) = self.ended.get_mut(at) {
            let bit = 1 << (number % 64);
            if ended { *bits |= bit } else { *bits &= !bit }
        }
    }

    /// A task is over. Returns how many were before.
    pub(super) fn end(&mut self, number: u64, failed: bool) -> u64 {
        let position = self.order.len() as u64;
        self.end_at(number, position, failed);
        position
    }

    /// A task was over, as the journal says.
    pub(super) fn end_at(&mut self, number: u64, position: u64, failed: bool) {
        self.set_ended(number, true);
        self.count += 1;
        if failed {
            self.failed.insert(number, position);
        }
        let at = usize::try_from(position).unwrap_or(usize::MAX - 1);
        if at >= self.order.len() {
            self.order.resize(at + 1, NONE);
        }
        if let Some(place) = self.order.get_mut(at) {
            *place = number;
        }
    }

    /// All that have failed run again. Returns which.
    pub(super) fn retry(&mut self) -> Vec<u64> {
        let failed = std::mem::take(&mut self.failed);
        for (number, position) in &failed {
            self.set_ended(*number, false);
            self.count -= 1;
            if let Some(place) = usize::try_from(*position).ok().and_then(|at| self.order.get_mut(at)) {
                *place = NONE;
            }
            self.first.push_back(*number);
        }
        failed.into_keys().collect()
    }

    /// How many tasks are over.
    pub(super) fn ended(&self) -> u64 {
        self.count
    }

    pub(super) fn failed(&self) -> u64 {
        self.failed.len() as u64
    }

    /// How many places there are in the order in which tasks end.
    pub(super) fn positions(&self) -> usize {
        self.order.len()
    }

    pub(super) fn is_over(&self) -> bool {
        self.record.cancelled || self.record.closed && self.count == self.next
    }

    /// Durable results in the order in which they came: numbers of tasks, and the place behind each.
    pub(super) fn by_completion(&self, from: u64, most: usize) -> Vec<(u64, u64)> {
        let from = usize::try_from(from).unwrap_or(usize::MAX).min(self.shown);
        let shown = self.order.get(from..self.shown).unwrap_or(&[]).iter().zip(from as u64 + 1..);
        shown
            .filter(|(number, _)| **number != NONE)
            .take(most)
            .map(|(number, next)| (*number, next))
            .collect()
    }

    /// Results by number, up to the first that is not there. Whether they are durable the store knows.
    pub(super) fn by_number(&self, from: u64, most: usize) -> Vec<(u64, u64)> {
        let cancelled = self.record.cancelled;
        let there = (from..self.next).take_while(|number| cancelled || self.is_ended(*number));
        let ended = there.filter(|number| self.is_ended(*number));
        ended.take(most).map(|number| (number, number + 1)).collect()
    }
}
