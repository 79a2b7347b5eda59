//! Random worlds of the real pool with a journal, real processors and a client, in which the pool is killed: a disk that loses what was not synced,
//! processors that crash or lose their link, requests and results that come again. What is said is held against what is on the disk at that moment.

mod damage;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::pool::{Flaw, Processor};
use crate::resources::Resources;
use crate::store::{Memory, Reader, Store};
use crate::wire::{Answer, By, Bytes, Chunk, Down, Ending, Inputs, KindId, Options, Request, Submission, Up};
use world::World;

const WORLDS: u64 = 3000;

fn run(seed: u64, flaw: Option<Flaw>) -> bool {
    catch_unwind(AssertUnwindSafe(|| World::new(seed, flaw).run())).is_ok()
}

#[test]
fn whoever_is_killed_what_was_acknowledged_ends_once() {
    let count = std::env::var("PDBP_TASKS_WORLDS").ok().and_then(|count| count.parse().ok()).unwrap_or(300);
    for seed in 0..count {
        println!("world {seed}");
        World::new(seed, None).run();
    }
    println!("{count} worlds of journals were clean");
}

#[test]
fn each_planted_flaw_of_a_journal_is_found() {
    let flaws = [
        Flaw::AcknowledgesEarly,
        Flaw::HandsOutEarly,
        Flaw::ForgetsTable,
        Flaw::AppliesTwice,
        Flaw::NoTerms,
        Flaw::RestartsOnce,
    ];
    let found = flaws.map(|flaw| (flaw, (0..WORLDS).find(|seed| !run(*seed, Some(flaw)))));
    let missed: Vec<_> = found.iter().filter(|(_, at)| at.is_none()).collect();
    assert!(missed.is_empty(), "not found in {WORLDS} worlds: {missed:?}; the others: {found:?}");
    println!("found by world: {found:?}");
}

const NOW: Duration = Duration::from_secs(1);
const CLIENT: Processor = Processor { node: 1, number: 1 };
const WORKER: Processor = Processor { node: 2, number: 2 };

fn begun() -> (Memory, super::Durable) {
    let mut store = Memory::default();
    let durable = world::take_up(&mut store);
    (store, durable)
}

fn sync(store: &mut Memory, durable: &mut super::Durable) {
    while let Some(group) = durable.take_group() {
        store.commit(&group.changes).unwrap();
        durable.durable(group.number);
    }
}

fn ask(durable: &mut super::Durable, request: Request) {
    durable.receive(NOW, CLIENT, Up::Request { id: 1, request });
}

fn said(durable: &mut super::Durable) -> Vec<Down> {
    std::iter::from_fn(|| durable.poll(NOW))
        .filter_map(|out| if let super::Out::Down(_, down) = out { Some(down) } else { None })
        .collect()
}

fn numbers(first: u64, count: u64, options: Options) -> Chunk {
    let (needs, prefix) = (Resources::none(), Bytes::from(&[][..]));
    Chunk { kind: KindId(0), options, needs, prefix, inputs: Inputs::Numbers { first, count } }
}

fn job_of(durable: &mut super::Durable, count: u64, options: Options) {
    ask(durable, Request::Begin { fingerprint: world::FINGERPRINT, nonce: 7, name: "job".into() });
    ask(durable, Request::Add { job: 0, first: 0, chunk: numbers(1, count, options) });
    ask(durable, Request::Close { job: 0 });
}

#[test]
fn nothing_is_answered_or_handed_out_before_it_is_durable() {
    let (mut store, mut durable) = begun();
    job_of(&mut durable, 3, Options::default());
    let hello =
        Up::Hello { fingerprint: world::FINGERPRINT, offer: Resources::none().cpus(1), held: Vec::new() };
    durable.receive(NOW, WORKER, hello);
    durable.receive(NOW, WORKER, Up::Report { term: 1, first: 0, room: 9, results: Vec::new() });
    let early = said(&mut durable);
    assert!(matches!(&*early, [Down::Welcome { term: 1, .. }, Down::Standby]), "{early:?}");
    sync(&mut store, &mut durable);
    let late = said(&mut durable);
    assert_eq!(late.iter().filter(|down| matches!(down, Down::Answer { .. })).count(), 3, "{late:?}");
    let Some(Down::Tasks(tasks)) = late.iter().find(|down| matches!(down, Down::Tasks(_))) else {
        panic!("{late:?}")
    };
    // A result is acknowledged when it is there.
    let task = &tasks[0];
    let ending = Ending::Value(Bytes::from(&[5][..]));
    let result = Submission { task: task.task, attempt: 1, ran_ns: 1, ending, tasks: Vec::new() };
    durable.receive(NOW, WORKER, Up::Report { term: 1, first: 0, room: 0, results: vec![result] });
    assert!(!said(&mut durable).iter().any(|down| matches!(down, Down::Taken { .. })));
    assert!(store.ended(0, task.name.unwrap().number).unwrap().is_none());
    sync(&mut store, &mut durable);
    assert!(said(&mut durable).contains(&Down::Taken { up_to: 1 }));
    assert!(store.ended(0, task.name.unwrap().number).unwrap().is_some());
}

#[test]
fn a_request_that_is_asked_again_is_done_once_and_one_that_cannot_be_is_refused() {
    let (mut store, mut durable) = begun();
    for _ in 0..2 {
        job_of(&mut durable, 3, Options::default());
        sync(&mut store, &mut durable);
    }
    for (request, why) in [
        (Request::Add { job: 0, first: 3, chunk: numbers(1, 1, Options::default()) }, "was closed"),
        (Request::Add { job: 9, first: 0, chunk: numbers(1, 1, Options::default()) }, "no job 9"),
        (Request::Begin { fingerprint: 1, nonce: 8, name: String::new() }, "other functions"),
        (Request::Read { job: 4, by: By::Number, from: 0, most: 1 }, "no job 4"),
        (Request::Cancel { job: 4 }, "no job 4"),
    ] {
        said(&mut durable);
        ask(&mut durable, request);
        sync(&mut store, &mut durable);
        let answers = said(&mut durable);
        let [Down::Answer { answer: Answer::No(text), .. }] = &*answers else { panic!("{answers:?}") };
        assert!(text.contains(why), "{text}");
    }
    let saved = store.load();
    assert_eq!((saved.jobs.len(), saved.added.len(), saved.next_job), (1, 1, 1));
}

#[test]
fn what_is_forgotten_leaves_nothing_and_its_number_is_not_used_again() {
    let (mut store, mut durable) = begun();
    job_of(&mut durable, 3, Options::default());
    ask(&mut durable, Request::Forget { job: 0 });
    sync(&mut store, &mut durable);
    let saved = store.load();
    assert!(saved.jobs.is_empty() && saved.added.is_empty() && saved.ended.is_empty());
    let mut durable = world::take_up(&mut store);
    job_of(&mut durable, 1, Options::default());
    sync(&mut store, &mut durable);
    assert_eq!(store.load().jobs[0].0, 1);
}

#[test]
fn a_journal_that_cannot_be_written_is_standby_for_all() {
    let (mut store, mut durable) = begun();
    job_of(&mut durable, 3, Options::default());
    sync(&mut store, &mut durable);
    durable.set_stalled(Some("no space left".into()));
    durable.receive(NOW, WORKER, Up::Report { term: 1, first: 0, room: 9, results: Vec::new() });
    assert!(!said(&mut durable).iter().any(|down| matches!(down, Down::Tasks(_))));
    ask(&mut durable, Request::Explain { job: 0, number: None });
    let text = format!("{:?}", said(&mut durable));
    assert!(text.contains("no space left"), "{text}");
    durable.set_stalled(None);
    assert!(said(&mut durable).iter().any(|down| matches!(down, Down::Tasks(_))));
}

#[test]
fn what_must_not_run_twice_is_recorded_before_it_leaves_and_held_back_after_a_start() {
    for options in
        [Options { once: true, ..Options::default() }, Options { exclusive: true, ..Options::default() }]
    {
        let (mut store, mut durable) = begun();
        job_of(&mut durable, 1, options);
        sync(&mut store, &mut durable);
        durable.receive(NOW, WORKER, Up::Report { term: 1, first: 0, room: 9, results: Vec::new() });
        assert!(
            !said(&mut durable).iter().any(|down| matches!(down, Down::Tasks(_))),
            "its hand-out is not durable"
        );
        sync(&mut store, &mut durable);
        let tasks = said(&mut durable);
        let name = tasks
            .iter()
            .find_map(|down| if let Down::Tasks(tasks) = down { tasks[0].name } else { None })
            .unwrap();
        // The pool is killed; the next one waits for who has it.
        let mut durable = world::take_up(&mut store);
        let other = Processor { node: 3, number: 3 };
        durable.receive(NOW, other, Up::Report { term: 2, first: 0, room: 9, results: Vec::new() });
        assert!(!said(&mut durable).iter().any(|down| matches!(down, Down::Tasks(_))), "it is held back");
        let hello =
            Up::Hello { fingerprint: world::FINGERPRINT, offer: Resources::none().cpus(1), held: vec![name] };
        durable.receive(NOW, WORKER, hello);
        let welcome = said(&mut durable);
        assert!(matches!(&*welcome, [Down::Welcome { held, .. }] if held[0].name == name), "{welcome:?}");
        // Or gives it up: then it may have run, or runs again.
        let mut durable = world::take_up(&mut store);
        said(&mut durable);
        durable.receive(NOW, other, Up::Report { term: 3, first: 0, room: 9, results: Vec::new() });
        let late = NOW + super::ORPHANED;
        let out: Vec<_> = std::iter::from_fn(|| durable.poll(late)).collect();
        sync(&mut store, &mut durable);
        let again = std::iter::from_fn(|| durable.poll(late)).chain(out);
        let again = again.filter(|out| matches!(out, super::Out::Down(_, Down::Tasks(_)))).count();
        assert_eq!(again, usize::from(options.exclusive));
        assert_eq!(store.ended(0, 0).unwrap().is_some(), options.once);
    }
}
