//! Checks of a world against what its disk holds.

use super::{World, judged, of_all_runs, value_of};
use crate::pool::Step as Noted;
use crate::store::Change;
use crate::wire::{self, Assignment, Chunk, Ending, Name};

impl World {
    /// The task whose value this is.
    fn ran(&self, value: u64) -> Name {
        let (sub, number, job) = (value >> 12, value >> 9 & 7, value >> 8 & 1);
        Name { job: job as u32, number, sub, run: 0 }
    }

    /// Checks that a result is not one of a run that ended before its task was to run again.
    fn check_run(&self, name: Name, count: u64) {
        let stale = self.stale.get(&name).copied().unwrap_or(0);
        assert!(count > stale, "{name} runs again after {stale} runs, and has what came of run {count}");
    }

    /// Records a change that is now on disk.
    pub(super) fn note(&mut self, change: &Change) {
        match change {
            Change::Added(job, first, chunk) => {
                let chunk: Chunk = wire::decode(chunk).unwrap();
                for number in *first..first + chunk.inputs.len() {
                    let name = Name { job: *job, number, sub: 0, run: 0 };
                    self.names.insert(name);
                    self.chunks.insert(name, chunk.clone());
                }
            }
            Change::Step(Noted::Took { name, serial, ending, tasks }) => {
                let name = &of_all_runs(*name);
                self.took.insert(*name);
                if let Some(first) = tasks.first().filter(|_| name.sub == 0 && !self.is_small) {
                    self.check_run(*name, wire::decode(&first.input).unwrap());
                }
                for i in 0..tasks.len() as u64 {
                    let name = Name { sub: serial + 1 + i, ..*name };
                    assert!(self.used.insert(name), "{name} has been another task");
                    self.names.insert(name);
                }
                if let Ending::Value(bytes) = ending {
                    let value = wire::decode(bytes).unwrap();
                    assert_eq!(self.ran(value), *name, "it has the result of another task");
                    if name.sub != 0 {
                        self.values.insert(*name, value);
                    }
                }
            }
            Change::Ended(job, number, ended) => {
                // A task may end without a value if it must not be started again, if one that it needs has none, or if a sub-task has failed.
                let name = Name { job: *job, number: *number, sub: 0, run: 0 };
                let value = match &ended.result {
                    Ok(bytes) => {
                        let value = wire::decode(bytes).unwrap();
                        assert_eq!(ended.head.failed, judged(bytes));
                        assert_eq!((self.ran(value).job, self.ran(value).number), (*job, *number), "{name}");
                        if self.ran(value).sub == 0 {
                            self.check_run(name, value & 0xff);
                        }
                        if judged(bytes) {
                            self.failed.insert(name);
                        }
                        value_of(bytes)
                    }
                    Err(error) => {
                        let chunk = &self.chunks[&name];
                        let is_without = |number| self.values.get(&Name { number, ..name }) == Some(&0);
                        let may_fail = chunk.options.once || self.failing.contains(&name);
                        assert!(may_fail || chunk.needed().any(is_without), "{name}: {error}");
                        self.failed.insert(name);
                        0
                    }
                };
                self.stale.remove(&name);
                assert!(self.values.insert(name, value).is_none(), "{name} has ended twice");
            }
            Change::Unended(job, numbers, run) => {
                for number in numbers.clone() {
                    let name = Name { job: *job, number, sub: 0, run: 0 };
                    assert_eq!(self.values.remove(&name), Some(0), "{name} has not failed and runs again");
                    self.started.remove(&name);
                    self.over.remove(&name);
                    if let Some(at) = self.running_again.iter().position(|(other, _)| *other == name)
                        && let Some((_, runs)) = self.running_again.remove(at)
                    {
                        self.stale.entry(name).or_insert(runs);
                    }
                    let before = self.again.insert(name, *run).unwrap_or(0);
                    assert!(
                        before < *run && *run <= self.client.wished(*job),
                        "{name} runs again more often than was asked"
                    );
                }
            }
            _ => {}
        }
    }

    /// Checks that a hand-out is on disk, with all that it rests on.
    pub(super) fn check_hand_out(&mut self, task: &Assignment) {
        let name = of_all_runs(task.name.expect("all have names"));
        assert!(self.names.contains(&name), "{name} is handed out and not durable");
        assert!(!self.over.contains(&name), "{name} was over when the pool began, and runs again");
        if name.sub == 0 && self.chunks[&name].options.once {
            let count = self.started.entry(name).or_default();
            *count += 1;
            assert_eq!(*count, 1, "{name} is started again");
        }
        if name.sub == 0 {
            self.check_needed(name, &task.input);
        } else if let Ok((_, parts)) = wire::decode::<(u64, Vec<u64>)>(&task.input) {
            for part in parts {
                let is_durable =
                    self.values.iter().any(|(of, value)| of.number == name.number && *value == part);
                assert!(is_durable, "{name} is given {part}, which is not durable");
            }
        }
    }

    /// Checks that the dependencies of a client's task are on disk, and that it receives their values.
    fn check_needed(&self, name: Name, input: &[u8]) {
        let (value, chunk) =
            (|number| self.values.get(&Name { number, ..name }).copied(), &self.chunks[&name]);
        let needed: Vec<_> = chunk.needed().map(value).collect();
        assert!(needed.iter().all(|value| value.is_some_and(|value| value != 0)), "{name} needs {needed:?}");
        if let Some(joined) = &chunk.join {
            let parts = joined.iter().filter_map(|number| value(*number)).collect();
            assert_eq!(wire::decode::<(u64, Vec<u64>)>(input).unwrap(), (4, parts), "{name}");
        }
    }

    /// Checks that acknowledged results are on disk, or were superseded by another result that is.
    pub(super) fn check_taken(&self, place: usize, up_to: u64) {
        for name in self.hosts[place].results[..up_to as usize].iter().flatten() {
            let plain = of_all_runs(*name);
            if self.took.contains(&plain) || self.values.contains_key(&plain) {
                continue;
            }
            // This run is over and its task runs again, perhaps with another result.
            if self.again.get(&plain).is_some_and(|run| *run > name.run) {
                continue;
            }
            // Another run's result was taken, or the task ended for another reason; either is durable.
            let is_written = self.written.iter().any(|group| {
                group.changes.iter().any(|change| match change {
                    Change::Ended(job, number, _) => (*job, *number, 0) == (name.job, name.number, name.sub),
                    Change::Step(Noted::Took { name: of, .. } | Noted::Failed { name: of, .. }) => of == name,
                    _ => false,
                })
            });
            assert!(
                !self.pool.pool.has_named(*name) && !is_written,
                "{name} is acknowledged and not durable"
            );
        }
    }
}
