//! Worlds that are searched exhaustively: see [the search](super::super::exhaustive).

use super::{Behaviour, Label, Operation, World};
use crate::pool::Flaw;
use crate::worker::Step;

impl World {
    /// A world small enough to be searched exhaustively, with this many processors and the tasks of a script. Clients add nothing more.
    pub(in crate::tests) fn small(
        processors: usize,
        script: fn(Label) -> Behaviour,
        tasks: &[Operation],
    ) -> Self {
        let mut world = Self { script: Some(script), ..Self::new(1) };
        world.hosts.truncate(processors);
        tasks.iter().for_each(|task| world.apply(task.clone()));
        world.pool.close();
        world.closed = true;
        world
    }

    /// The state as text: worlds with the same text behave alike.
    pub(in crate::tests) fn digest(&self) -> String {
        format!("{}{:?}{:?}", self.pool.digest(), self.hosts, self.now)
    }

    pub(in crate::tests) fn is_over(&self) -> bool {
        self.pool.is_empty() && self.hosts.iter().all(|host| host.over)
    }

    /// The operations possible without a fault: messages arrive, processors work.
    pub(in crate::tests) fn possible(&self) -> Vec<Operation> {
        let mut all = Vec::new();
        for (place, host) in self.hosts.iter().enumerate() {
            all.extend((!host.up.is_empty()).then_some(Operation::Up(place)));
            all.extend((!host.down.is_empty()).then_some(Operation::Down(place)));
            let waits = matches!(host.worker.clone().step(self.now), Step::Wait(_));
            all.extend((!waits && !host.over).then_some(Operation::Step(place)));
        }
        all
    }

    /// How many submissions a processor has made.
    pub(in crate::tests) fn submitted(&self, place: usize) -> usize {
        self.hosts.get(place).map_or(0, |host| host.submitted.len())
    }

    pub(in crate::tests) fn plant(&mut self, flaw: Option<Flaw>) {
        self.pool.flaw = flaw;
    }
}
