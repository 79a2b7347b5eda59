//! What a restarted pool waits for before it gives a task to another processor.

use std::time::Duration;

use super::{NOW, WORKER, begun, job_of, said, sub_task, sync, world};
use crate::durable::{AWAITED, Durable, Output};
use crate::pool::Processor;
use crate::resources::Resources;
use crate::store::Memory;
use crate::wire::{Assignment, Bytes, Down, Ending, Options, Submission, Up};

const OTHER: Processor = Processor { node: 3, number: 3 };
const LATER: Duration = Duration::from_secs(3);

fn given(durable: &mut Durable, to: Processor, term: u32, at: Duration) -> Option<Assignment> {
    durable.receive(at, to, Up::Report { term, first: 0, room: 1, results: Vec::new() });
    let out: Vec<_> = std::iter::from_fn(|| durable.poll(at)).collect();
    out.into_iter().find_map(|out| match out {
        Output::Down(of, Down::Tasks(mut tasks)) if of == to => tasks.pop(),
        _ => None,
    })
}

/// A task that may run twice, and that `WORKER` had held for `time` when the pool was killed.
fn killed_after(time: Duration) -> (Memory, Assignment) {
    let (mut store, mut durable) = begun();
    job_of(&mut durable, 1, Options::default());
    sync(&mut store, &mut durable);
    let task = given(&mut durable, WORKER, 1, NOW).unwrap();
    while durable.poll(NOW + time).is_some() {}
    sync(&mut store, &mut durable);
    (store, task)
}

#[test]
fn a_task_that_ran_for_a_while_is_not_given_elsewhere_before_its_holder_is_back() {
    let (mut store, task) = killed_after(LATER);
    let name = task.name.unwrap();
    let mut durable = world::take_up(&mut store);
    assert!(given(&mut durable, OTHER, 2, NOW).is_none(), "its holder may be on its way");
    let (fingerprint, offer) = (world::FINGERPRINT, Resources::none().cpus(1));
    durable.receive(NOW, WORKER, Up::Hello { fingerprint, offer, held: vec![name], of: 0 });
    let welcome = said(&mut durable);
    let held = welcome.iter().find_map(|down| match down {
        Down::Welcome { held, .. } => held.first().copied(),
        _ => None,
    });
    assert_eq!(held.map(|held| held.name), Some(name), "{welcome:?}");
    let ending = Ending::Value(Bytes::from(&[9][..]));
    let result = Submission {
        task: held.unwrap().task,
        attempt: held.unwrap().attempt,
        ran_ns: 1,
        ending,
        tasks: Vec::new(),
        large: Vec::new(),
    };
    durable.receive(NOW, WORKER, Up::Report { term: 2, first: 0, room: 1, results: vec![result] });
    said(&mut durable);
    sync(&mut store, &mut durable);
    let saved = store.load();
    assert!(saved.started.is_empty() && saved.ended.len() == 1, "nothing is left of it");
}

#[test]
fn it_is_given_elsewhere_when_its_holder_does_not_come() {
    let (mut store, _) = killed_after(LATER);
    let mut durable = world::take_up(&mut store);
    assert!(given(&mut durable, OTHER, 2, NOW).is_none());
    let soon = NOW + AWAITED - Duration::from_millis(1);
    assert!(given(&mut durable, OTHER, 2, soon).is_none());
    assert!(given(&mut durable, OTHER, 2, NOW + AWAITED).is_some());
}

/// Running it again costs less than waiting.
#[test]
fn what_had_just_been_handed_out_is_given_to_the_first_who_asks() {
    let (mut store, _) = killed_after(Duration::ZERO);
    assert!(store.load().started.is_empty(), "nothing is written for it");
    let mut durable = world::take_up(&mut store);
    assert!(given(&mut durable, OTHER, 2, NOW).is_some());
}

/// Its result would be ignored, but its sub-tasks would be added again, and after a retry its result would be taken.
#[test]
fn a_task_that_is_over_does_not_run_again_though_one_that_it_has_added_had_run_for_a_while() {
    let (mut store, mut durable) = begun();
    job_of(&mut durable, 1, Options::default());
    sync(&mut store, &mut durable);
    let task = given(&mut durable, WORKER, 1, NOW).unwrap();
    let result = Submission {
        task: task.task,
        attempt: task.attempt,
        ran_ns: 1,
        ending: Ending::Value(Bytes::from(&[9][..])),
        tasks: vec![sub_task(&[1])],
        large: Vec::new(),
    };
    durable.receive(NOW, WORKER, Up::Report { term: 1, first: 0, room: 0, results: vec![result] });
    sync(&mut store, &mut durable);
    let sub = given(&mut durable, WORKER, 1, NOW).unwrap().name.unwrap();
    while durable.poll(NOW + LATER).is_some() {}
    sync(&mut store, &mut durable);
    assert!(sub.sub != 0 && store.load().started.len() == 1 && store.load().ended.len() == 1);
    let mut durable = world::take_up(&mut store);
    assert!(
        given(&mut durable, OTHER, 2, NOW).is_none(),
        "the sub-task waits for its holder, and its parent is over"
    );
    let again = given(&mut durable, OTHER, 2, NOW + AWAITED).unwrap().name;
    assert_eq!(again, Some(sub));
    assert_eq!(durable.pool.len(), 1);
}
