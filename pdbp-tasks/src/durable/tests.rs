//! Random worlds of the real pool with a journal, real processors and a client, in which the pool is killed, the disk loses what was not synced,
//! processors crash or lose their link, and requests and results are repeated. Each message of the pool is checked against what is on disk at
//! that moment.

mod awaited;
mod bounds;
mod damage;
mod exhaustive;
mod hostile;
mod retry;
mod world;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::pool::{Flaw, Processor};
use crate::resources::Resources;
use crate::store::{Change, Memory, Reader, Store};
use crate::wire::{
    Answer, By, Bytes, Chunk, Down, Ending, Failure, Inputs, KindId, Options, Request, SubTask, Submission,
    Up,
};
use crate::worker::{Step, Worker};
use world::World;

const WORLDS: u64 = 3000;

fn run(seed: u64, flaw: Option<Flaw>) -> bool {
    catch_unwind(AssertUnwindSafe(|| World::new(seed, flaw).run())).is_ok()
}

#[test]
fn whoever_is_killed_what_was_acknowledged_ends_once() {
    let variable = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let first = variable("PDBP_TASKS_FIRST").unwrap_or(0);
    let count = variable("PDBP_TASKS_WORLDS").unwrap_or(300);
    for seed in first..first + count {
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
        Flaw::RunsTooEarly,
        Flaw::ReusesId,
        Flaw::ForgetsRuns,
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
        .filter_map(|out| if let super::Output::Down(_, down) = out { Some(down) } else { None })
        .collect()
}

fn numbers(first: u64, count: u64, options: Options) -> Chunk {
    Chunk { options, ..Chunk::new(KindId(0), Inputs::Numbers { first, count }) }
}

fn sub_task(input: &[u8]) -> SubTask {
    let (kind, options, needs) = (KindId(0), Options::default(), Resources::none());
    SubTask { kind, options, needs, input: input.into(), join: None, after: Vec::new() }
}

fn job_of(durable: &mut super::Durable, count: u64, options: Options) {
    ask(durable, Request::Begin { fingerprint: world::FINGERPRINT, nonce: 7, name: "job".into() });
    ask(
        durable,
        Request::Add {
            fingerprint: world::FINGERPRINT,
            job: 0,
            first: 0,
            chunks: vec![numbers(1, count, options)],
        },
    );
    ask(durable, Request::Close { job: 0 });
}

#[test]
fn nothing_is_answered_or_handed_out_before_it_is_durable() {
    let (mut store, mut durable) = begun();
    job_of(&mut durable, 3, Options::default());
    let hello = Up::Hello {
        fingerprint: world::FINGERPRINT,
        offer: Resources::none().cpus(1),
        held: Vec::new(),
        of: 0,
    };
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
    // The result is acknowledged once it is on disk.
    let task = &tasks[0];
    let ending = Ending::Value(Bytes::from(&[5][..]));
    let result =
        Submission { task: task.task, attempt: 1, ran_ns: 1, ending, tasks: Vec::new(), large: Vec::new() };
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
        (
            Request::Add {
                fingerprint: world::FINGERPRINT,
                job: 0,
                first: 3,
                chunks: vec![numbers(1, 1, Options::default())],
            },
            "was closed",
        ),
        (
            Request::Add {
                fingerprint: world::FINGERPRINT,
                job: 9,
                first: 0,
                chunks: vec![numbers(1, 1, Options::default())],
            },
            "job 9 does not exist",
        ),
        (
            Request::Add {
                fingerprint: 1,
                job: 0,
                first: 0,
                chunks: vec![numbers(1, 3, Options::default())],
            },
            "functions of the pool",
        ),
        (
            Request::Add {
                fingerprint: world::FINGERPRINT,
                job: 0,
                first: 0,
                chunks: vec![numbers(2, 3, Options::default())],
            },
            "task 0 of job 0 is another one",
        ),
        (Request::Begin { fingerprint: 1, nonce: 8, name: String::new() }, "functions of the pool"),
        (Request::Read { job: 4, by: By::Number, from: 0, most: 1 }, "job 4 does not exist"),
        (Request::Cancel { job: 4 }, "job 4 does not exist"),
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

/// Has a processor run all available tasks, which end by `ending`, until none are left. Returns their numbers and inputs.
fn work(
    store: &mut Memory,
    durable: &mut super::Durable,
    first: &mut u64,
    ending: impl Fn(u64) -> Ending,
) -> Vec<(u64, Vec<u8>)> {
    let (mut ran, mut results) = (Vec::new(), Vec::new());
    loop {
        let sent = std::mem::take(&mut results);
        let behind = *first + sent.len() as u64;
        let term = durable.term;
        durable.receive(NOW, WORKER, Up::Report { term, first: *first, room: 9, results: sent });
        *first = behind;
        let mut given = said(durable);
        sync(store, durable);
        given.extend(said(durable));
        let tasks =
            given.into_iter().filter_map(|down| if let Down::Tasks(all) = down { Some(all) } else { None });
        for task in tasks.flatten() {
            let number = task.name.unwrap().number;
            ran.push((number, task.input.to_vec()));
            let (ending, attempt) = (ending(number), task.attempt);
            results.push(Submission {
                task: task.task,
                attempt,
                ran_ns: 1,
                ending,
                tasks: Vec::new(),
                large: Vec::new(),
            });
        }
        if results.is_empty() {
            return ran;
        }
    }
}

#[test]
fn what_needs_a_task_that_fails_is_not_run_and_all_of_it_runs_again() {
    let (mut store, mut durable) = begun();
    let plain = |count| Chunk::new(KindId(0), Inputs::List(vec![Bytes::from(&[1][..]); count]));
    let chunks = vec![
        plain(2),
        Chunk { join: Some(vec![1, 0]), ..plain(1) },
        Chunk { after: vec![2], ..plain(3) },
        Chunk { after: vec![0], ..plain(1) },
    ];
    ask(&mut durable, Request::Begin { fingerprint: world::FINGERPRINT, nonce: 7, name: "job".into() });
    let early = vec![plain(1), Chunk { after: vec![1], ..plain(1) }];
    ask(&mut durable, Request::Add { fingerprint: world::FINGERPRINT, job: 0, first: 0, chunks: early });
    ask(&mut durable, Request::Add { fingerprint: world::FINGERPRINT, job: 0, first: 0, chunks });
    ask(&mut durable, Request::Close { job: 0 });
    sync(&mut store, &mut durable);
    let text = format!("{:?}", said(&mut durable));
    assert!(text.contains("task 1 of the job needs task 1, which was not added before it"), "{text}");
    ask(&mut durable, Request::Explain { job: 0, number: Some(4) });
    let text = format!("{:?}", said(&mut durable));
    assert!(text.contains("task 4 of job 0 waits for task 2 of its job"), "{text}");

    let value = |number: u64| Ending::Value(Bytes::from(&[number as u8][..]));
    let fails = |number| if number == 1 { Ending::Failed(Failure::Said("no".into())) } else { value(number) };
    let mut first = 0;
    let ran = work(&mut store, &mut durable, &mut first, fails);
    assert_eq!(ran.iter().map(|(number, _)| *number).collect::<BTreeSet<_>>(), BTreeSet::from([0, 1, 6]));
    let error = |number| store.ended(0, number).unwrap().unwrap().result.unwrap_err().to_string();
    assert!(error(2).contains("task 1 of the job, which it needs, has failed"), "{}", error(2));
    assert!(error(5).contains("task 2 of the job, which it needs, has failed"), "{}", error(5));

    // All failed tasks run again, and a restarted pool knows which tasks wait for which.
    ask(&mut durable, Request::Retry { job: 0, nonce: 1 });
    sync(&mut store, &mut durable);
    assert!(said(&mut durable).contains(&Down::Answer { id: 1, answer: Answer::Done(5) }));
    let mut durable = world::take_up(&mut store);
    let ran = work(&mut store, &mut durable, &mut 0, value);
    assert_eq!(ran[..2], [(1, vec![1]), (2, vec![1, 2, 1, 0])], "its own, and two results in their order");
    assert_eq!(
        ran[2..].iter().map(|(number, _)| *number).collect::<BTreeSet<_>>(),
        BTreeSet::from([3, 4, 5])
    );
    assert!((0..7).all(|number| store.ended(0, number).unwrap().unwrap().result.is_ok()));
}

#[test]
fn what_was_cancelled_is_read_at_once_however_much_it_was() {
    let (mut store, mut durable) = begun();
    ask(&mut durable, Request::Begin { fingerprint: world::FINGERPRINT, nonce: 7, name: "job".into() });
    for (first, why) in [(1 << 63, "exceed 64 bits"), (1, "Done(9223372036854775808)")] {
        let chunks = vec![numbers(first, 1 << 63, Options::default())];
        ask(&mut durable, Request::Add { fingerprint: world::FINGERPRINT, job: 0, first: 0, chunks });
        sync(&mut store, &mut durable);
        let text = format!("{:?}", said(&mut durable));
        assert!(text.contains(why), "{text}");
    }
    durable.receive(NOW, WORKER, Up::Report { term: 1, first: 0, room: 1, results: Vec::new() });
    let given = said(&mut durable);
    let task =
        given.iter().find_map(|down| if let Down::Tasks(tasks) = down { Some(&tasks[0]) } else { None });
    let (task, ending) = (task.unwrap(), Ending::Value(Bytes::from(&[1][..])));
    let result =
        Submission { task: task.task, attempt: 1, ran_ns: 1, ending, tasks: Vec::new(), large: Vec::new() };
    durable.receive(NOW, WORKER, Up::Report { term: 1, first: 0, room: 0, results: vec![result] });
    ask(&mut durable, Request::Cancel { job: 0 });
    sync(&mut store, &mut durable);
    said(&mut durable);
    for (from, items) in [(0, vec![(0, 1)]), (1, vec![]), (u64::MAX, vec![])] {
        ask(&mut durable, Request::Read { job: 0, by: By::Number, from, most: 10 });
        let Some(super::Output::Read(_, reading)) = durable.poll(NOW) else { panic!("no answer") };
        assert_eq!((reading.items, reading.over), (items, true));
    }
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
        // The pool is killed; the next one waits for the task's holder.
        let mut durable = world::take_up(&mut store);
        let other = Processor { node: 3, number: 3 };
        durable.receive(NOW, other, Up::Report { term: 2, first: 0, room: 9, results: Vec::new() });
        assert!(!said(&mut durable).iter().any(|down| matches!(down, Down::Tasks(_))), "it is held back");
        let hello = Up::Hello {
            fingerprint: world::FINGERPRINT,
            offer: Resources::none().cpus(1),
            held: vec![name],
            of: 0,
        };
        durable.receive(NOW, WORKER, hello);
        let welcome = said(&mut durable);
        assert!(matches!(&*welcome, [Down::Welcome { held, .. }] if held[0].name == name), "{welcome:?}");
        // Or it gives the holder up: then the task may have run, or runs again.
        let mut durable = world::take_up(&mut store);
        said(&mut durable);
        durable.receive(NOW, other, Up::Report { term: 3, first: 0, room: 9, results: Vec::new() });
        let late = NOW + super::ORPHANED;
        let out: Vec<_> = std::iter::from_fn(|| durable.poll(late)).collect();
        sync(&mut store, &mut durable);
        let again = std::iter::from_fn(|| durable.poll(late)).chain(out);
        let again = again.filter(|out| matches!(out, super::Output::Down(_, Down::Tasks(_)))).count();
        assert_eq!(again, usize::from(options.exclusive));
        assert_eq!(store.ended(0, 0).unwrap().is_some(), options.once);
    }
}

/// A pool of this number that opens a journal.
fn numbered(store: &mut Memory, number: u64) -> super::Durable {
    let mut saved = store.load();
    let term = saved.term + 1;
    store.commit(&[Change::Term(term, number)]).unwrap();
    saved.pools.push(number);
    let kinds = (1, world::FINGERPRINT);
    super::Durable::restore(saved, term, kinds, Default::default(), |_| false, Box::new(store.clone()))
        .unwrap()
}

/// Passes messages between pool and processor until neither has more to say; every task that runs ends.
fn talk(store: &mut Memory, durable: &mut super::Durable, worker: &mut Worker) {
    for _ in 0..20 {
        said(durable).into_iter().for_each(|down| worker.receive(down));
        match worker.step(NOW) {
            Step::Send(up) => durable.receive(NOW, WORKER, up),
            Step::Run(_) => worker.ended(NOW, Ending::Value(Bytes::from(&[9][..])), Vec::new()),
            Step::Wait(_) | Step::Over(_) => {}
        }
        sync(store, durable);
    }
}

#[test]
fn what_a_processor_has_of_another_journal_is_no_result_of_this_one() {
    let (mut first, mut other) = (Memory::default(), Memory::default());
    let mut durable = numbered(&mut first, 1);
    job_of(&mut durable, 2, Options { exclusive: true, ..Options::default() });
    sync(&mut first, &mut durable);
    let copy = first.copy();
    let mut worker = Worker::keeping(world::FINGERPRINT, Resources::none().cpus(1));
    // The processor runs one task, and its pool is lost.
    let began = |store: &mut Memory, durable: &mut super::Durable, worker: &mut Worker| loop {
        said(durable).into_iter().for_each(|down| worker.receive(down));
        match worker.step(NOW) {
            Step::Send(up) => durable.receive(NOW, WORKER, up),
            Step::Run(_) => break,
            _ => {}
        }
        sync(store, durable);
    };
    let mut durable = numbered(&mut first, 2);
    began(&mut first, &mut durable, &mut worker);
    worker.lost();
    worker.ended(NOW, Ending::Value(Bytes::from(&[7][..])), Vec::new());
    assert_eq!(worker.has().0, 1);
    // The next pool at that address has another journal, with a job and tasks of the same numbers, or an older copy of the journal.
    let mut pool = numbered(&mut other, 3);
    job_of(&mut pool, 2, Options::default());
    sync(&mut other, &mut pool);
    let mut older = copy;
    let old_pool = numbered(&mut older, 4);
    for (store, mut pool) in [(&mut other, pool), (&mut older, old_pool)] {
        let mut worker = worker.clone();
        talk(store, &mut pool, &mut worker);
        let results = [0, 1].map(|number| store.ended(0, number).unwrap().unwrap().result.unwrap().to_vec());
        assert_eq!(results, [[9], [9]], "both were run for this pool");
        // Nor is there confusion while the processor runs a task for this pool.
        assert!(worker.is_idle());
    }
    // The pool that continues the journal has the result.
    let mut next = numbered(&mut first, 5);
    talk(&mut first, &mut next, &mut worker);
    let results = [0, 1].map(|number| first.ended(0, number).unwrap().unwrap().result.unwrap().to_vec());
    assert!(results.contains(&vec![7]), "{results:?}");
}

#[test]
fn a_processor_that_comes_back_with_what_it_runs_has_not_died_of_it() {
    let mut store = Memory::default();
    let mut durable = numbered(&mut store, 1);
    job_of(&mut durable, 1, Options::default());
    sync(&mut store, &mut durable);
    durable.receive(NOW, WORKER, Up::Report { term: 1, first: 0, room: 1, results: Vec::new() });
    let given = said(&mut durable);
    let name = given.iter().find_map(|down| if let Down::Tasks(tasks) = down { tasks[0].name } else { None });
    let (name, mut node) = (name.unwrap(), WORKER.node);
    for _ in 0..5 {
        durable.lose_node(node);
        node += 1;
        let (fingerprint, offer) = (world::FINGERPRINT, Resources::none().cpus(1));
        let hello = Up::Hello { fingerprint, offer, held: vec![name], of: 1 };
        durable.receive(NOW, Processor { node, number: node.into() }, hello);
        let welcome = said(&mut durable);
        assert!(matches!(&*welcome, [Down::Welcome { held, .. }] if held.len() == 1), "{welcome:?}");
    }
    // Tasks of processors that do not return may have run.
    for _ in 0..3 {
        durable.lose_node(node);
        node += 1;
        let asker = Processor { node, number: node.into() };
        durable.receive(NOW, asker, Up::Report { term: 1, first: 0, room: 1, results: Vec::new() });
        said(&mut durable);
    }
    sync(&mut store, &mut durable);
    let error = store.ended(0, 0).unwrap().expect("it is given up").result.unwrap_err();
    assert!(matches!(error, crate::pool::TaskError::Crashed { .. }), "{error}");
}
