//! Tasks that can be handed out, by their demand: one lane for all tasks with the same needs and the same isolation.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::resources::Resources;
use crate::wire::TaskId;

use super::ready::Ready;

/// Number of a lane. [`PLAIN`] is that of tasks that need a processor and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct LaneId(u32);

pub(super) const PLAIN: LaneId = LaneId(0);

/// The most different needs that a pool accepts.
const MOST: usize = 1024;

/// How far a task that may have killed processors is isolated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Isolation {
    /// It may wait behind others in its processor.
    None,
    /// Its processor holds nothing else, and its node no other suspect.
    Processor,
    /// Its node holds nothing else.
    Node,
}

/// What the tasks of a lane demand.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Demand {
    pub(super) isolation: Isolation,
    pub(super) needs: Resources,
}

#[derive(Clone, Debug)]
pub(super) struct Lane {
    pub(super) demand: Demand,
    /// Tasks of the table that nobody holds.
    pub(super) lost: VecDeque<TaskId>,
    pub(super) ready: Ready,
    /// This node is given no task behind the first of this lane until there is room for that one.
    pub(super) waits_on: Option<u16>,
    /// Since when no node has offered what it needs.
    pub(super) unoffered: Option<Duration>,
}

impl Lane {
    fn new(demand: Demand) -> Self {
        Self { demand, lost: VecDeque::new(), ready: Ready::default(), waits_on: None, unoffered: None }
    }

    pub(super) fn len(&self) -> usize {
        self.lost.len() + self.ready.len()
    }
}

/// Which queue a task comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Lost,
    Ready,
}

/// All lanes. The plain one always exists.
#[derive(Clone, Debug)]
pub(super) struct Lanes {
    list: Vec<Lane>,
    ids: HashMap<Demand, LaneId>,
    /// All lanes but the plain one, the most demanding first.
    special: Vec<LaneId>,
}

impl Default for Lanes {
    fn default() -> Self {
        let plain = Demand { isolation: Isolation::None, needs: Resources::none() };
        Self {
            list: vec![Lane::new(plain.clone())],
            ids: HashMap::from([(plain, PLAIN)]),
            special: Vec::new(),
        }
    }
}

impl Lanes {
    /// The lane of new tasks with these needs; `None`: there are too many different needs.
    pub(super) fn of_needs(&mut self, needs: &Resources) -> Option<LaneId> {
        let demand = Demand { isolation: Isolation::None, needs: needs.clone() };
        // Each may have three lanes, one per isolation.
        let may = needs.is_plain() || self.ids.contains_key(&demand) || self.list.len() < 3 * MOST;
        may.then(|| self.of_accepted(needs))
    }

    /// The lane of tasks with these needs that this pool or an earlier one has accepted, however many different needs there are.
    pub(super) fn of_accepted(&mut self, needs: &Resources) -> LaneId {
        if needs.is_plain() {
            return PLAIN;
        }
        self.of(Demand { isolation: Isolation::None, needs: needs.clone() })
    }

    /// The lane for tasks of `lane` under this isolation.
    pub(super) fn isolated(&mut self, lane: LaneId, isolation: Isolation) -> LaneId {
        let needs = self.get(lane).demand.needs.clone();
        self.of(Demand { isolation, needs })
    }

    fn of(&mut self, demand: Demand) -> LaneId {
        if let Some(id) = self.ids.get(&demand) {
            return *id;
        }
        let id = LaneId(self.list.len() as u32); // no more than three for each task
        self.list.push(Lane::new(demand.clone()));
        self.ids.insert(demand, id);
        self.special.push(id);
        let list = &self.list;
        let key = |id: &LaneId| std::cmp::Reverse(list.get(id.0 as usize).map(|lane| &lane.demand));
        self.special.sort_by(|a, b| key(a).cmp(&key(b)));
        id
    }

    #[expect(clippy::indexing_slicing, reason = "ids are made by `of` only, and lanes are never removed")]
    pub(super) fn get(&self, id: LaneId) -> &Lane {
        &self.list[id.0 as usize]
    }

    #[expect(clippy::indexing_slicing, reason = "ids are made by `of` only, and lanes are never removed")]
    pub(super) fn get_mut(&mut self, id: LaneId) -> &mut Lane {
        &mut self.list[id.0 as usize]
    }

    /// All lanes but the plain one, the most demanding first.
    pub(super) fn special(&self) -> &[LaneId] {
        &self.special
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Lane> {
        self.list.iter_mut()
    }

    #[cfg(test)]
    pub(super) fn text(&self) -> String {
        format!("{:?}", self.list)
    }

    /// Queued tasks of all lanes, including cancelled ones not yet skipped.
    pub(super) fn len(&self) -> usize {
        self.list.iter().map(Lane::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Limits, NewTask, Pool};
    use super::*;
    use crate::wire::{KindId, Options};

    /// While no processor asks, nobody meets them.
    #[test]
    fn what_is_cancelled_is_queued_no_more() {
        let mut pool = Pool::new(1, 0, Limits::default());
        let stays = pool.begin();
        let add = |pool: &mut Pool, job, number: u32| {
            let options = Options { priority: (number % 3) as i16, ..Options::default() };
            let needs = if number.is_multiple_of(2) { Resources::none() } else { Resources::none().cpus(2) };
            let input = Vec::new().into();
            let (kind, needs) = (KindId(0), &needs);
            pool.add(job, &NewTask { kind, options, needs, input, join: None, after: &[], keep: false })
                .unwrap();
        };
        add(&mut pool, stays, 0);
        for _ in 0..10 {
            let job = pool.begin();
            (0..100).for_each(|number| add(&mut pool, job, number));
            pool.cancel(job);
            while pool.take_outcome(job).is_some() {}
        }
        assert_eq!((pool.len(), pool.lanes.len()), (1, 1));
    }
}
