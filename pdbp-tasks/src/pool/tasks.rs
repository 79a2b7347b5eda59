//! Storage of all tasks that are not over, and of the edges between them.

use std::sync::Arc;

use crate::wire::{Bytes, KindId, Options, TaskId};

use super::JobId;
use super::lanes::LaneId;

/// No edge.
const NONE: u32 = u32::MAX;

/// A task that is not over.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) job: JobId,
    pub(super) kind: KindId,
    pub(super) options: Options,
    /// Lane in which it is queued.
    pub(super) lane: LaneId,
    pub(super) state: State,
    /// Hand-outs so far.
    pub(super) attempts: u32,
    /// Number in the job of the task that the client has added: this task, or the one that it descends from.
    pub(super) number: u64,
    /// With a journal: 0 for a task that the client has added, else a unique number.
    pub(super) sub: u64,
    /// The run, as in its name.
    pub(super) run: u32,
    /// Whether its result becomes that of the task that the client has added.
    pub(super) gives: bool,
    /// Whether other tasks of the job may wait for that task.
    pub(super) is_awaited: bool,
    /// Whether its hand-out is recorded in the journal.
    pub(super) recorded: bool,
    pub(super) input: Input,
    /// First edge in the list of tasks that wait for it.
    first_edge: u32,
}

impl Entry {
    pub(super) fn new(job: JobId, kind: KindId, options: Options, lane: LaneId, input: Input) -> Self {
        let state = State::Waiting { edges: 0 };
        Self {
            job,
            kind,
            options,
            lane,
            state,
            attempts: 0,
            number: 0,
            sub: 0,
            run: 0,
            gives: false,
            is_awaited: false,
            recorded: false,
            input,
            first_edge: NONE,
        }
    }
}

/// The three states of S4: *not scheduled* is `Waiting` or `Ready`; *scheduled* has a row of the dynamic table; of a *submitted* task only the
/// result is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// For this many other tasks.
    Waiting {
        edges: u32,
    },
    Ready,
    /// In the dynamic table, in this row.
    Scheduled {
        row: u32,
    },
}

#[derive(Clone, Debug)]
pub(super) enum Input {
    Bytes(Bytes),
    Join(Box<Join>),
}

/// The input of a task that receives results of others.
#[derive(Clone, Debug)]
pub(super) struct Join {
    /// Precedes the results.
    pub(super) own: Bytes,
    pub(super) parts: Vec<Option<Bytes>>,
}

impl Input {
    pub(super) fn join(own: Bytes, parts: Vec<Option<Bytes>>) -> Self {
        Self::Join(Box::new(Join { own, parts }))
    }

    /// Encodes the input of a task whose parts are all present: a pair of its own input and a vector of results.
    pub(super) fn settle(&mut self) {
        let Self::Join(join) = self else { return };
        *self = Self::Bytes(joined(&join.own, join.parts.len(), join.parts.iter().flatten()));
    }

    pub(super) fn bytes(&self) -> Option<&Bytes> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Join(_) => None,
        }
    }
}

/// Encodes the pair of `own`, which is encoded already, and a vector of `count` encoded `parts`.
pub(crate) fn joined<'p>(own: &[u8], mut count: usize, parts: impl Iterator<Item = &'p Bytes>) -> Bytes {
    let mut bytes = own.to_vec();
    // The length of a sequence, in `postcard`'s encoding.
    while count >= 0x80 {
        bytes.push((count & 0x7f) as u8 | 0x80);
        count >>= 7;
    }
    bytes.push(count as u8);
    parts.for_each(|part| bytes.extend_from_slice(part));
    bytes.into()
}

/// A task that waits for the end of another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    /// The waiting task.
    pub(super) waits: TaskId,
    /// Where the result goes in its input, if anywhere.
    pub(super) part: Option<u32>,
    next: u32,
}

#[derive(Clone, Debug)]
struct Place {
    generation: u32,
    entry: Option<Entry>,
}

/// All tasks, by id.
#[derive(Clone, Debug, Default)]
pub(super) struct Tasks {
    places: Vec<Place>,
    free: Vec<u32>,
    /// Places with a task. The others need not be free: see [`remove`](Self::remove).
    live: usize,
    edges: Vec<Edge>,
    free_edges: Vec<u32>,
}

impl Tasks {
    pub(super) fn len(&self) -> usize {
        self.live
    }

    pub(super) fn insert(&mut self, entry: Entry) -> TaskId {
        self.live += 1;
        if let Some(index) = self.free.pop()
            && let Some(place) = self.places.get_mut(index as usize)
        {
            place.entry = Some(entry);
            return TaskId { index, generation: place.generation };
        }
        let index = self.places.len() as u32; // `most_tasks` is below 2³²
        self.places.push(Place { generation: 0, entry: Some(entry) });
        TaskId { index, generation: 0 }
    }

    pub(super) fn get(&self, id: TaskId) -> Option<&Entry> {
        let place = self.places.get(id.index as usize)?;
        if place.generation == id.generation { place.entry.as_ref() } else { None }
    }

    pub(super) fn get_mut(&mut self, id: TaskId) -> Option<&mut Entry> {
        let place = self.places.get_mut(id.index as usize)?;
        if place.generation == id.generation { place.entry.as_mut() } else { None }
    }

    /// Whether a task of this id has ever existed.
    pub(super) fn has_existed(&self, id: TaskId) -> bool {
        let place = self.places.get(id.index as usize);
        place.is_some_and(|place| {
            id.generation < place.generation || id.generation == place.generation && place.entry.is_some()
        })
    }

    pub(super) fn remove(&mut self, id: TaskId) -> Option<Entry> {
        let place = self.places.get_mut(id.index as usize)?;
        if place.generation != id.generation {
            return None;
        }
        let entry = place.entry.take()?;
        self.live -= 1;
        // A place that has been used 2³² times is retired.
        if let Some(next) = place.generation.checked_add(1) {
            place.generation = next;
            self.free.push(id.index);
        }
        Some(entry)
    }

    /// A flaw: makes the next task in this place get the same id.
    pub(super) fn reuse(&mut self, id: TaskId) {
        if let Some(place) = self.places.get_mut(id.index as usize) {
            place.generation = id.generation;
        }
    }

    #[cfg(all(feature = "metrics", feature = "net"))]
    pub(super) fn all(&self) -> impl Iterator<Item = &Entry> {
        self.places.iter().filter_map(|place| place.entry.as_ref())
    }

    /// The ids of all tasks of a job.
    pub(super) fn of_job(&self, job: JobId) -> Vec<TaskId> {
        let ids = self.places.iter().enumerate().filter_map(|(index, place)| {
            let entry = place.entry.as_ref().filter(|entry| entry.job == job)?;
            let _ = entry;
            Some(TaskId { index: index as u32, generation: place.generation })
        });
        ids.collect()
    }

    /// Makes `waits` wait for `on`, which is not over.
    pub(super) fn connect(&mut self, on: TaskId, waits: TaskId, part: Option<u32>) {
        let Some(next) = self.get(on).map(|entry| entry.first_edge) else { return };
        let edge = Edge { waits, part, next };
        let at = match self.free_edges.pop() {
            Some(at) => at,
            None => self.edges.len() as u32,
        };
        match self.edges.get_mut(at as usize) {
            Some(place) => *place = edge,
            None => self.edges.push(edge),
        }
        if let Some(entry) = self.get_mut(on) {
            entry.first_edge = at;
        }
        if let Some(Entry { state: State::Waiting { edges }, .. }) = self.get_mut(waits) {
            *edges += 1;
        }
    }

    /// Takes the edges of a task that has been removed, the latest first.
    pub(super) fn take_edges(&mut self, of: &Entry) -> Vec<Edge> {
        let mut at = of.first_edge;
        let mut edges = Vec::new();
        while let Some(edge) = self.edges.get(at as usize) {
            edges.push(*edge);
            self.free_edges.push(at);
            at = edge.next;
        }
        edges
    }

    /// Makes whatever waits for `from`, which has been removed, wait for `to` instead.
    pub(super) fn transfer_edges(&mut self, from: &Entry, to: TaskId) {
        let Some(first) = self.get(to).map(|entry| entry.first_edge) else { return };
        let mut last = from.first_edge;
        if last == NONE {
            return;
        }
        while let Some(edge) = self.edges.get(last as usize).filter(|edge| edge.next != NONE) {
            last = edge.next;
        }
        if let Some(edge) = self.edges.get_mut(last as usize) {
            edge.next = first;
        }
        if let Some(entry) = self.get_mut(to) {
            entry.first_edge = from.first_edge;
        }
    }
}

/// A result, or why there is none, shared by all who want it.
pub(super) type Ended = Result<Bytes, Arc<super::TaskError>>;

#[cfg(test)]
mod tests {
    use super::super::lanes::PLAIN;
    use super::*;

    /// One task after the other has the same place, so that a pool of short tasks gets there in half a day.
    #[test]
    fn a_place_that_has_been_used_as_often_as_it_can_be_holds_no_task() {
        let mut tasks = Tasks::default();
        let input = || Input::Bytes(Vec::new().into());
        let add = |tasks: &mut Tasks| {
            tasks.insert(Entry::new(JobId(0), KindId(0), Options::default(), PLAIN, input()))
        };
        let first = add(&mut tasks);
        assert!(tasks.remove(first).is_some());
        tasks.places.iter_mut().for_each(|place| place.generation = u32::MAX);
        let last = add(&mut tasks);
        assert_eq!((last.index, last.generation, tasks.len()), (first.index, u32::MAX, 1));
        assert!(tasks.remove(last).is_some());
        assert_eq!(tasks.len(), 0, "the pool would wait for it for ever");
        let next = add(&mut tasks);
        assert_ne!(next.index, last.index);
        assert!(tasks.get(last).is_none() && tasks.get(next).is_some());
    }
}
