//! Failed tasks that run again: places in the order of results, and sub-tasks of the failed run.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::store::Change;
use crate::wire::{Assignment, Name, SubTask};

fn fails(_: u64) -> Ending {
    Ending::Failed(Failure::Said("no".into()))
}

fn retry(store: &mut Memory, durable: &mut super::super::Durable) -> u64 {
    static NONCE: AtomicU64 = AtomicU64::new(1);
    retry_by(NONCE.fetch_add(1, Ordering::Relaxed).into(), store, durable)
}

fn retry_by(nonce: u128, store: &mut Memory, durable: &mut super::super::Durable) -> u64 {
    said(durable);
    ask(durable, Request::Retry { job: 0, nonce });
    sync(store, durable);
    let answers = said(durable);
    let count = answers.iter().find_map(|down| match down {
        Down::Answer { answer: Answer::Done(count), .. } => Some(*count),
        _ => None,
    });
    count.unwrap_or_else(|| panic!("{answers:?}"))
}

/// Reads results in order of completion, from a place. Returns their numbers, the place after them, and whether they are all.
fn read(durable: &mut super::super::Durable, from: u64) -> (Vec<u64>, u64, bool) {
    said(durable);
    ask(durable, Request::Read { job: 0, by: By::Completion, from, most: 100 });
    let reading = std::iter::from_fn(|| durable.poll(NOW)).find_map(|out| match out {
        super::super::Output::Read(_, reading) => Some(reading),
        super::super::Output::Down(..) => None,
    });
    let reading = reading.unwrap();
    let numbers = reading.items.iter().map(|(number, _)| *number).collect();
    (numbers, reading.items.last().map_or(from, |(_, next)| *next), reading.over)
}

#[test]
fn who_reads_results_gets_all_of_them_though_failed_ones_run_again_and_the_pool_is_killed() {
    let (mut store, mut durable) = begun();
    job_of(&mut durable, 3, Options::default());
    sync(&mut store, &mut durable);
    let value = |number| if number == 2 { fails(2) } else { Ending::Value(Bytes::from(&[1][..])) };
    work(&mut store, &mut durable, &mut 0, value);
    let (numbers, place, over) = read(&mut durable, 0);
    assert_eq!((numbers.len(), place, over), (3, 3, true));
    assert_eq!(retry(&mut store, &mut durable), 1);
    // The last place belongs to the task that runs again.
    let mut durable = world::take_up(&mut store);
    work(&mut store, &mut durable, &mut 0, |_| Ending::Value(Bytes::from(&[2][..])));
    assert_eq!(read(&mut durable, place), (vec![2], 4, true));
    // The journal agrees, after another restart.
    let mut durable = world::take_up(&mut store);
    assert_eq!(read(&mut durable, place), (vec![2], 4, true));
}

#[test]
fn a_journal_whose_tasks_have_run_again_and_again_is_sound() {
    const TASKS: u64 = 1 << 12;
    let (mut store, mut durable) = begun();
    job_of(&mut durable, TASKS, Options::default());
    sync(&mut store, &mut durable);
    // As if each had failed 300 times, which would take too long to do.
    let mut record = store.load().jobs[0].1.clone();
    record.again.places = 300 * TASKS;
    store.commit(&[Change::Job(0, record)]).unwrap();
    let mut durable = world::take_up(&mut store);
    let chunk = |durable: &super::super::Durable| durable.jobs[&0].positions() as u64;
    assert_eq!(chunk(&durable), 300 * TASKS);
    work(&mut store, &mut durable, &mut 0, fails);
    let mut durable = world::take_up(&mut store);
    assert_eq!(chunk(&durable), 301 * TASKS);
    assert_eq!(read(&mut durable, 300 * TASKS + 1).0.len(), 100);
}

/// Task 0 has added two sub-tasks; one has failed while the other is running.
fn half_failed() -> (Memory, super::super::Durable) {
    let (mut store, mut durable) = begun();
    job_of(&mut durable, 1, Options::default());
    sync(&mut store, &mut durable);
    add_two(&mut store, &mut durable, 0);
    assert!(store.ended(0, 0).unwrap().unwrap().result.is_err());
    assert_eq!(store.load().steps.len(), 2);
    (store, durable)
}

/// Task 0 runs and adds two sub-tasks; the first one handed out fails, and the other keeps running.
fn add_two(store: &mut Memory, durable: &mut super::super::Durable, mut first: u64) {
    let term = durable.term;
    let report = |durable: &mut super::super::Durable, first: u64, room, results| {
        durable.receive(NOW, WORKER, Up::Report { term, first, room, results });
    };
    let given = |store: &mut Memory, durable: &mut super::super::Durable| {
        sync(store, durable);
        let downs = said(durable);
        let tasks =
            downs.iter().find_map(|down| if let Down::Tasks(tasks) = down { Some(tasks) } else { None });
        tasks.unwrap_or_else(|| panic!("{downs:?}"))[0].clone()
    };
    said(durable);
    report(durable, first, 1, Vec::new());
    let root = given(store, durable);
    assert_eq!(Name { run: 0, ..root.name.unwrap() }, ROOT);
    let sub = |join| SubTask {
        kind: root.kind,
        options: Options::default(),
        needs: Resources::none(),
        input: Bytes::from(&[1][..]),
        join,
        after: Vec::new(),
    };
    let tasks = vec![sub(None), sub(None), sub(Some(vec![0, 1]))];
    let submit = |task: &crate::wire::Assignment, ending, tasks| Submission {
        task: task.task,
        attempt: task.attempt,
        ran_ns: 1,
        large: Vec::new(),
        ending,
        tasks,
    };
    report(durable, first, 1, vec![submit(&root, Ending::Of(2), tasks)]);
    first += 1;
    let one = given(store, durable);
    report(durable, first, 1, vec![submit(&one, fails(0), Vec::new())]);
    // That is the other one.
    given(store, durable);
}

#[test]
fn a_job_whose_own_tasks_are_over_can_be_cancelled_while_sub_tasks_run() {
    let (mut store, mut durable) = half_failed();
    let live = |durable: &super::super::Durable| durable.pool.live(crate::pool::JobId(0));
    assert_eq!(live(&durable), 1);
    ask(&mut durable, Request::Cancel { job: 0 });
    sync(&mut store, &mut durable);
    assert_eq!(live(&durable), 0);
    assert_eq!(store.load().steps, [], "the family is over");
    assert!(store.load().jobs[0].1.cancelled);
}

#[test]
fn a_task_runs_again_while_sub_tasks_of_the_run_that_failed_are_not_over() {
    let (mut store, mut durable) = half_failed();
    assert_eq!(retry(&mut store, &mut durable), 1);
    assert_eq!(store.load().steps, [], "the family of the run that has failed is over");
    add_two(&mut store, &mut durable, 2);
    // The pool can be rebuilt with the sub-tasks of the second run, and the task runs a third time.
    let mut durable = world::take_up(&mut store);
    assert!(store.ended(0, 0).unwrap().unwrap().result.is_err());
    assert_eq!(retry(&mut store, &mut durable), 1);
    let ran = work(&mut store, &mut durable, &mut 0, |_| Ending::Value(Bytes::from(&[2][..])));
    assert_eq!(ran.len(), 1);
    assert_eq!(store.ended(0, 0).unwrap().unwrap().result, Ok(Bytes::from(&[2][..])));
}

#[test]
fn a_retry_that_was_answered_is_not_lost_with_the_pool() {
    let (mut store, mut durable) = half_failed();
    assert_eq!(retry(&mut store, &mut durable), 1);
    let mut durable = world::take_up(&mut store);
    assert!(store.ended(0, 0).unwrap().is_none());
    let ran = work(&mut store, &mut durable, &mut 0, |_| Ending::Value(Bytes::from(&[2][..])));
    assert_eq!(ran.len(), 1, "it runs, and nothing else");
    assert_eq!(store.ended(0, 0).unwrap().unwrap().result, Ok(Bytes::from(&[2][..])));
}

const ROOT: Name = Name { job: 0, number: 0, sub: 0, run: 0 };
const OTHER: Processor = Processor { node: 3, number: 3 };

/// A processor that got no acknowledgement sends a result again.
fn comes_again(store: &mut Memory, durable: &mut super::super::Durable, name: Name) -> Vec<Down> {
    let result = Submission {
        task: crate::wire::TaskId { index: 0, generation: 0 },
        attempt: 1,
        ran_ns: 1,
        ending: Ending::Value(Bytes::from(&[9][..])),
        tasks: Vec::new(),
        large: Vec::new(),
    };
    let term = durable.term;
    durable.receive(NOW, OTHER, Up::Again { term, first: 0, results: vec![(name, result)] });
    sync(store, durable);
    said(durable)
}

fn given(store: &mut Memory, durable: &mut super::super::Durable) -> Assignment {
    let term = durable.term;
    durable.receive(NOW, WORKER, Up::Report { term, first: 0, room: 1, results: Vec::new() });
    sync(store, durable);
    let downs = said(durable);
    let tasks =
        downs.iter().find_map(|down| if let Down::Tasks(tasks) = down { tasks.first() } else { None });
    tasks.unwrap_or_else(|| panic!("{downs:?}")).clone()
}

#[test]
fn a_result_of_before_a_task_was_to_run_again_is_not_taken_for_it_by_any_pool() {
    let (mut store, mut durable) = half_failed();
    assert_eq!(retry(&mut store, &mut durable), 1);
    let mut next = world::take_up(&mut store);
    for durable in [&mut durable, &mut next] {
        let said = comes_again(&mut store, durable, ROOT);
        assert!(said.contains(&Down::Taken { up_to: 1 }), "nobody has to keep it: {said:?}");
        assert_eq!(durable.pool.counts().ignored, 1);
        assert!(store.ended(0, 0).unwrap().is_none(), "it is to run again, and has not");
    }
    // A processor that has been running the earlier run does not continue it.
    let (fingerprint, offer) = (world::FINGERPRINT, Resources::none().cpus(1));
    next.receive(NOW, OTHER, Up::Hello { fingerprint, offer, held: vec![ROOT], of: 0 });
    let welcome = Down::Welcome { term: 2, number: 2, is_known: true, held: Vec::new() };
    assert!(said(&mut next).contains(&welcome));
    let name = given(&mut store, &mut next).name.unwrap();
    assert_eq!(name, Name { run: 1, ..ROOT });
    // A result of this run counts, whichever pool receives it.
    let mut last = world::take_up(&mut store);
    comes_again(&mut store, &mut last, name);
    assert_eq!(store.ended(0, 0).unwrap().unwrap().result, Ok(Bytes::from(&[9][..])));
}

#[test]
fn a_retry_that_is_asked_again_runs_nothing_a_second_time() {
    let (mut store, mut durable) = begun();
    job_of(&mut durable, 3, Options::default());
    sync(&mut store, &mut durable);
    work(&mut store, &mut durable, &mut 0, fails);
    assert_eq!(retry_by(7, &mut store, &mut durable), 3);
    let mut durable = world::take_up(&mut store);
    assert_eq!(work(&mut store, &mut durable, &mut 0, fails).len(), 3);
    assert_eq!(retry_by(7, &mut store, &mut durable), 3, "the answer that was lost");
    assert!((0..3).all(|number| store.ended(0, number).unwrap().is_some()));
    let mut durable = world::take_up(&mut store);
    assert_eq!(retry_by(7, &mut store, &mut durable), 3);
    assert_eq!(work(&mut store, &mut durable, &mut 0, fails), [], "nothing runs");
    assert_eq!(retry_by(8, &mut store, &mut durable), 3);
    let mut durable = world::take_up(&mut store);
    assert_eq!(work(&mut store, &mut durable, &mut 0, fails).len(), 3);
}

#[test]
fn what_runs_again_is_written_as_ranges_and_known_to_the_next_pool() {
    let (mut store, mut durable) = begun();
    job_of(&mut durable, 20_000, Options::default());
    sync(&mut store, &mut durable);
    let fails = |number| if number == 10_000 { Ending::Value(Bytes::from(&[1][..])) } else { fails(number) };
    work(&mut store, &mut durable, &mut 0, fails);
    said(&mut durable);
    ask(&mut durable, Request::Retry { job: 0, nonce: 5 });
    let group = durable.take_group().unwrap();
    let again: Vec<_> =
        group.changes.iter().filter(|change| matches!(change, Change::Unended(..))).cloned().collect();
    assert_eq!(again, [Change::Unended(0, 0..10_000, 1), Change::Unended(0, 10_001..20_000, 1)]);
    store.commit(&group.changes).unwrap();
    let mut next = world::take_up(&mut store);
    let runs = [0, 9_999, 10_000, 19_999].map(|number| next.jobs[&0].run_of(number));
    assert_eq!(runs, [1, 1, 0, 1]);
    assert_eq!(work(&mut store, &mut next, &mut 0, fails).len(), 19_999);
    // A journal with impossible content counts as damaged.
    store.commit(&[Change::Unended(0, 19_999..20_001, 1)]).unwrap();
    let (saved, kinds) = (store.load(), (1, world::FINGERPRINT));
    let restored = super::super::Durable::restore(
        saved,
        9,
        kinds,
        Default::default(),
        |_| false,
        Box::new(store.clone()),
    );
    assert!(restored.err().unwrap().to_string().contains("ran again"));
}
