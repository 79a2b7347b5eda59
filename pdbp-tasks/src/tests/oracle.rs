//! A second statement of the rules, as simple as possible: no queues, no reused memory, no batches. It sees what goes into the pool and checks
//! what comes out.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::pool::{JobId, OUTCOME, Processor};
use crate::resources::Resources;
use crate::wire::{self, Assignment, Ending, Failure, Options, Submission, TaskId};

/// A task, as the oracle names it. Each run of a task that adds others gives them new labels.
pub(super) type Label = u32;

#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) job: JobId,
    pub(super) options: Options,
    pub(super) needs: Resources,
    /// Nodes that died when it may have been running there, and those of them that held nothing else.
    deaths: usize,
    alone: usize,
    /// Tasks whose results it receives, and tasks that must be over first.
    pub(super) join: Option<Vec<Label>>,
    pub(super) after: Vec<Label>,
    pub(super) number: Option<u64>,
    pub(super) keep: bool,
    /// Whether it, or the client's task that it descends from, is kept.
    pub(super) is_awaited: bool,
    id: Option<TaskId>,
    handed_out: u32,
    in_table: bool,
    held: Vec<(Processor, u32)>,
    /// Whether it has been copied since nobody held it.
    copied: bool,
    /// The task whose result becomes its own.
    heir: Option<Label>,
    /// Its value, or `None` if it ended without one.
    over: Option<Option<u64>>,
}

impl Task {
    pub(super) fn new(job: JobId, options: Options) -> Self {
        Self {
            job,
            options,
            needs: Resources::none(),
            deaths: 0,
            alone: 0,
            join: None,
            after: Vec::new(),
            number: None,
            keep: false,
            is_awaited: false,
            id: None,
            handed_out: 0,
            in_table: false,
            held: Vec::new(),
            copied: false,
            heir: None,
            over: None,
        }
    }
}

/// The expected value of a task.
pub(super) fn value_of(label: Label, parts: &[u64]) -> u64 {
    parts.iter().fold(u64::from(label), |sum, part| sum.wrapping_mul(31).wrapping_add(*part))
}

/// Label, and results of others if it is a join.
pub(super) fn read_input(input: &[u8]) -> (Label, Option<Vec<u64>>) {
    match wire::decode::<u32>(input) {
        Ok(label) => (label, None),
        Err(_) => {
            let (label, parts) = wire::decode::<(u32, Vec<u64>)>(input).expect("an input of this world");
            (label, Some(parts))
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Oracle {
    pub(super) tasks: BTreeMap<Label, Task>,
    by_id: HashMap<TaskId, Label>,
    /// Outcomes that must come: job, number, and the value if it has one.
    pub(super) expected: Vec<(JobId, u64, Option<u64>)>,
    /// Above this many bytes of `expected`, nothing is handed out for jobs that have outcomes in it.
    pub(super) most_unread: usize,
    cancelled: Vec<JobId>,
    /// Processors that compute something no longer wanted, and must be told.
    pub(super) drops: Vec<(Processor, TaskId)>,
    /// By node number.
    offers: Vec<Resources>,
    /// Deaths of nodes holding nothing else after which a task is given up.
    crashes: usize,
    /// Processors that were told to drop their task, or have submitted it, and have not asked since.
    dropping: BTreeSet<Processor>,
    turn: u64,
    /// Number of the hand-out, and deaths of the task before it.
    turns: HashMap<(Processor, Label), (u64, usize)>,
}

impl Oracle {
    pub(super) fn new(offers: Vec<Resources>, crashes: usize, most_unread: usize) -> Self {
        Self { offers, crashes, most_unread, ..Self::default() }
    }

    pub(super) fn add(&mut self, label: Label, task: Task) {
        assert!(self.tasks.insert(label, task).is_none(), "labels are new");
        self.give_up_what_cannot_run();
    }

    pub(super) fn live(&self) -> usize {
        self.tasks.values().filter(|task| task.over.is_none() && task.heir.is_none()).count()
    }

    /// The result of a task, or of its heir. `None`: it is not over.
    pub(super) fn result(&self, label: Label) -> Option<Option<u64>> {
        let task = &self.tasks[&label];
        match task.heir {
            Some(heir) => self.result(heir),
            None => task.over,
        }
    }

    fn needs(task: &Task) -> impl Iterator<Item = &Label> {
        task.join.iter().flatten().chain(&task.after)
    }

    /// Whether it waits until results of its job are read.
    fn is_held_back(&self, task: &Task) -> bool {
        let bytes = |value: &u64| wire_length(*value);
        let weight = |outcome: &(JobId, u64, Option<u64>)| OUTCOME + outcome.2.as_ref().map_or(0, bytes);
        !task.is_awaited
            && !task.in_table
            && self.expected.iter().any(|outcome| outcome.0 == task.job)
            && self.expected.iter().map(weight).sum::<usize>() > self.most_unread
    }

    /// Whether it could be handed out and nobody holds it.
    fn is_available(&self, task: &Task) -> bool {
        task.over.is_none()
            && task.heir.is_none()
            && task.held.is_empty()
            && !self.is_held_back(task)
            && Self::needs(task).all(|needed| matches!(self.result(*needed), Some(Some(_))))
    }

    /// Whether some processor can be given something. This is only claimed while no isolated or demanding task is about, which could withhold
    /// others.
    pub(super) fn is_anything_available(&self) -> bool {
        let is_special = |task: &Task| task.deaths > 0 || !task.needs.is_plain();
        let live = |task: &&Task| self.is_available(task) || !task.held.is_empty();
        self.dropping.is_empty()
            && !self.tasks.values().filter(live).any(is_special)
            && self.tasks.values().any(|task| self.is_available(task))
    }

    /// What a node holds: processors and tasks.
    fn held_on(&self, node: u16) -> Vec<(Processor, Label)> {
        let held = self.tasks.iter().flat_map(|(label, task)| {
            task.held.iter().map(|held| (held.0, *label)).filter(|held| held.0.node == node)
        });
        held.collect()
    }

    /// Checks that a node holds no more than it offers, that a processor with a demanding task holds nothing else, and that suspects are
    /// isolated.
    pub(super) fn check_node(&self, node: u16) {
        let held = self.held_on(node);
        let mut by: BTreeMap<Processor, Vec<(&Resources, usize)>> = BTreeMap::new();
        for at in &held {
            by.entry(at.0).or_default().push((&self.tasks[&at.1].needs, self.turns[at].1));
        }
        let offer = &self.offers[usize::from(node)];
        let mut used = crate::resources::Used::default();
        let (mut suspects, mut alone) = (0, false);
        for tasks in by.values() {
            let is_apart = tasks.iter().any(|(needs, deaths)| *deaths > 0 || !needs.is_plain());
            assert!(tasks.len() == 1 || !is_apart, "behind what is kept apart");
            suspects += tasks.iter().filter(|(_, deaths)| *deaths > 0).count();
            alone |= tasks.iter().any(|(_, deaths)| *deaths > 1);
            let needs = tasks[0].0;
            assert!(used.short(offer, needs).is_empty(), "node{node} holds more than it offers");
            used.take(needs);
        }
        assert!(suspects <= 1, "two suspects on node{node}");
        assert!(!alone || held.len() == 1, "a suspect shares node{node}");
    }

    pub(super) fn lose_node(&mut self, node: u16) {
        let held = self.held_on(node);
        let mut oldest: BTreeMap<Processor, (u64, Label)> = BTreeMap::new();
        for (processor, label) in &held {
            let turn = (self.turns[&(*processor, *label)].0, *label);
            let first = oldest.entry(*processor).or_insert(turn);
            *first = turn.min(*first);
        }
        for (_, label) in oldest.values() {
            let task = self.tasks.get_mut(label).unwrap();
            task.deaths += 1;
            task.alone += usize::from(held.len() == 1);
        }
        held.iter().for_each(|(processor, _)| self.leave(*processor));
    }

    pub(super) fn hand_out(&mut self, to: Processor, what: &Assignment) {
        let (label, parts) = read_input(&what.input);
        let task = self.tasks.get(&label).unwrap_or_else(|| panic!("{label} does not exist"));
        assert!(task.over.is_none() && task.heir.is_none(), "{label} was submitted, and is handed out again");
        assert!(task.id.is_none_or(|id| id == what.task), "{label} exists twice");
        let needed = task.join.as_ref().map(|join| join.iter().map(|n| self.result(*n).flatten()).collect());
        assert_eq!(parts.map(|parts| parts.into_iter().map(Some).collect::<Vec<_>>()), needed, "its inputs");
        assert!(task.after.iter().all(|n| matches!(self.result(*n), Some(Some(_)))), "{label} is too early");
        assert!(!self.is_held_back(task), "{label} is handed out, though nobody reads results");
        assert_eq!(what.attempt, task.handed_out + 1);
        assert!(!task.options.once || task.handed_out == 0, "{label} is started a second time");
        assert!(task.held.len() < 2, "{label} is held twice");
        assert!(task.held.is_empty() || !task.options.exclusive, "{label} runs twice at the same time");
        assert!(task.held.is_empty() || !task.copied, "{label} is copied again");
        assert!(task.held.iter().all(|(processor, _)| *processor != to), "{label} is held there");
        let better = |other: &Task| {
            self.is_available(other)
                && (&other.needs, other.deaths.min(2)) == (&task.needs, task.deaths.min(2))
                && (other.in_table && !task.in_table
                    || other.in_table == task.in_table
                        && !task.in_table
                        && other.options.priority > task.options.priority
                    || !task.held.is_empty())
        };
        assert!(!self.tasks.values().any(better), "something goes before {label}");
        let known = self.by_id.insert(what.task, label);
        assert!(known.is_none_or(|known| known == label), "the id of {label} was that of another task");
        let task = self.tasks.get_mut(&label).unwrap();
        (task.id, task.in_table) = (Some(what.task), true);
        task.handed_out += 1;
        task.copied = !task.held.is_empty();
        task.held.push((to, what.attempt));
        let gpus = if task.needs == Resources::none().gpus(1) { 1 } else { 0 };
        assert_eq!(what.gpus.count_ones(), gpus, "its GPUs");
        self.turn += 1;
        self.turns.insert((to, label), (self.turn, task.deaths));
    }

    pub(super) fn drop(&mut self, to: Processor, id: TaskId) {
        let at = self.drops.iter().position(|drop| *drop == (to, id));
        self.drops.remove(at.unwrap_or_else(|| panic!("who may be the only one is told to drop {id}")));
        self.dropping.insert(to);
    }

    pub(super) fn submit(&mut self, from: Processor, submission: &Submission) {
        let Submission { task: id, attempt, ending, tasks, .. } = submission;
        let Some(label) = self.by_id.get(id).copied() else { return };
        let task = self.tasks.get_mut(&label).unwrap();
        if task.over.is_some() || task.heir.is_some() || !task.in_table {
            return;
        }
        if *attempt == 0 || *attempt > task.handed_out {
            return;
        }
        let is_wrong = tasks.iter().enumerate().any(|(i, task)| {
            task.join.iter().flatten().chain(&task.after).any(|needed| usize::from(*needed) >= i)
        });
        let failure = match ending {
            _ if is_wrong => Some(false),
            Ending::Failed(failure) => Some(!matches!(failure, Failure::Unusable(_))),
            _ => None,
        };
        if let Some(may_pass) = failure {
            let Some(at) = task.held.iter().position(|held| *held == (from, *attempt)) else { return };
            task.held.remove(at);
            self.dropping.insert(from);
            if !task.held.is_empty() {
                return;
            }
            if may_pass && task.options.retries > 0 && !task.options.once {
                task.options.retries -= 1;
            } else {
                self.end(label, None);
            }
            return;
        }
        if task.held.iter().any(|held| held.0 == from) {
            // The submission may have been forged in its name: then it still computes, and keeps its share of the node until it asks.
            self.dropping.insert(from);
        }
        let (job, is_awaited) = (task.job, task.is_awaited);
        self.drops.extend(task.held.drain(..).filter(|held| held.0 != from).map(|held| (held.0, *id)));
        let labels: Vec<Label> = tasks.iter().map(|task| read_label(&task.input)).collect();
        let label_of = |i: &u16| labels[usize::from(*i)];
        for (sub, label) in tasks.iter().zip(&labels) {
            let mut task = Task::new(job, sub.options);
            (task.needs, task.is_awaited) = (sub.needs.clone(), is_awaited);
            task.join = sub.join.as_ref().map(|join| join.iter().map(label_of).collect());
            task.after = sub.after.iter().map(label_of).collect();
            self.add(*label, task);
        }
        match ending {
            Ending::Value(bytes) => self.end(label, Some(wire::decode(bytes).unwrap())),
            Ending::Of(which) => {
                let heir = label_of(which);
                let parent = self.tasks.get_mut(&label).unwrap();
                parent.heir = Some(heir);
                let (number, keep) = (parent.number, parent.keep);
                let task = self.tasks.get_mut(&heir).unwrap();
                (task.number, task.keep) = (number, keep);
            }
            Ending::Failed(_) => unreachable!(),
        }
    }

    pub(super) fn ask(&mut self, from: Processor) {
        self.dropping.remove(&from);
    }

    pub(super) fn leave(&mut self, gone: Processor) {
        self.dropping.remove(&gone);
        let held: Vec<_> =
            self.tasks.iter().filter(|(_, t)| t.held.iter().any(|h| h.0 == gone)).map(|(l, _)| *l).collect();
        for label in held {
            let task = self.tasks.get_mut(&label).unwrap();
            task.held.retain(|held| held.0 != gone);
            if task.held.is_empty() && (task.options.once || task.alone >= self.crashes) {
                self.end(label, None);
            }
        }
    }

    pub(super) fn cancel(&mut self, job: JobId) {
        self.cancelled.push(job);
        let live = self.tasks.iter().filter(|(_, t)| t.job == job && t.over.is_none() && t.heir.is_none());
        let live: Vec<_> = live.map(|(label, _)| *label).collect();
        live.into_iter().for_each(|label| self.close(label, None));
    }

    pub(super) fn is_cancelled(&self, job: JobId) -> bool {
        self.cancelled.contains(&job)
    }

    fn end(&mut self, label: Label, value: Option<u64>) {
        self.close(label, value);
        self.give_up_what_cannot_run();
    }

    fn close(&mut self, label: Label, value: Option<u64>) {
        let task = self.tasks.get_mut(&label).unwrap();
        assert!(task.over.is_none());
        task.over = Some(value);
        self.drops.extend(task.held.drain(..).filter_map(|held| Some((held.0, task.id?))));
        if let Some(number) = task.number.filter(|_| !task.keep) {
            self.expected.push((task.job, number, value));
        }
    }

    fn give_up_what_cannot_run(&mut self) {
        loop {
            let cannot = |task: &Task| {
                task.over.is_none()
                    && task.heir.is_none()
                    && Self::needs(task).any(|needed| self.result(*needed) == Some(None))
            };
            let Some(label) = self.tasks.iter().find(|(_, task)| cannot(task)).map(|(label, _)| *label)
            else {
                return;
            };
            self.close(label, None);
        }
    }
}

fn wire_length(value: u64) -> usize {
    postcard::to_stdvec(&value).unwrap().len()
}

/// The label at the start of an input.
pub(super) fn read_label(input: &[u8]) -> Label {
    postcard::take_from_bytes::<u32>(input).unwrap().0
}
