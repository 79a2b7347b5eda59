//! Bounds, and requests that never wait: inputs that are too long, groups of tasks that cannot run, and a full disk.

use super::*;
use crate::pool::{Limits, Step, TaskError};
use crate::store::Change;
use crate::wire::{Name, Status};

fn value(length: usize) -> Ending {
    Ending::Value(Bytes::from(vec![1; length]))
}

fn limited(store: &mut Memory) -> super::super::Durable {
    limited_to(Limits { input_bytes: 100, ..Limits::default() }, store)
}

fn limited_to(limits: Limits, store: &mut Memory) -> super::super::Durable {
    let saved = store.load();
    let term = saved.term + 1;
    store.commit(&[Change::Term(term, 1)]).unwrap();
    let kinds = (1, world::FINGERPRINT);
    super::super::Durable::restore(saved, term, kinds, limits, |_| false, Box::new(store.clone())).unwrap()
}

fn add(durable: &mut super::super::Durable, first: u64, chunks: Vec<Chunk>) {
    ask(durable, Request::Add { fingerprint: world::FINGERPRINT, job: 0, first, chunks });
}

#[test]
fn inputs_that_are_too_long_are_refused_or_end_their_task_and_the_text_names_the_size() {
    let mut store = Memory::default();
    let mut durable = limited(&mut store);
    ask(&mut durable, Request::Begin { fingerprint: world::FINGERPRINT, nonce: 7, name: "job".into() });
    let plain = |length| Chunk::new(KindId(0), Inputs::List(vec![Bytes::from(vec![1; length])]));
    add(&mut durable, 0, vec![Chunk { prefix: Bytes::from(vec![1; 50]), ..plain(51) }]);
    sync(&mut store, &mut durable);
    let text = format!("{:?}", said(&mut durable));
    assert!(text.contains("101 bytes exceeds the limit of 100; write it as a `Large`"), "{text}");
    let joined = Chunk { join: Some(vec![0, 1, 1]), ..plain(1) };
    add(&mut durable, 0, vec![plain(1), plain(1), joined, Chunk { after: vec![2], ..plain(1) }]);
    ask(&mut durable, Request::Close { job: 0 });
    sync(&mut store, &mut durable);
    let ran = work(&mut store, &mut durable, &mut 0, |_| value(40));
    assert_eq!(ran.len(), 2, "neither the join nor what needs it");
    let error = store.ended(0, 2).unwrap().unwrap().result.unwrap_err();
    assert_eq!(error, TaskError::TooLong { bytes: 121, most: 100 });
    assert!(matches!(store.ended(0, 3).unwrap().unwrap().result, Err(TaskError::Needed { number: 2, .. })));
}

#[test]
fn a_sub_task_whose_input_is_too_long_is_no_damage_for_the_next_pool_whenever_this_one_is_killed() {
    for synced in 0..4 {
        let mut store = Memory::default();
        let mut durable = limited(&mut store);
        job_of(&mut durable, 1, Options::default());
        sync(&mut store, &mut durable);
        let report = |durable: &mut super::super::Durable, first, results| {
            let term = durable.term;
            durable.receive(NOW, WORKER, Up::Report { term, first, room: 1, results });
            said(durable).into_iter().find_map(|down| match down {
                Down::Tasks(mut tasks) => tasks.pop(),
                _ => None,
            })
        };
        let sub = |join| SubTask { join, ..sub_task(&[1; 70]) };
        let submit = |task: &crate::wire::Assignment, ending, tasks| {
            let (task, attempt, large) = (task.task, task.attempt, Vec::new());
            vec![Submission { task, attempt, ran_ns: 1, ending, tasks, large }]
        };
        said(&mut durable);
        let root = report(&mut durable, 0, Vec::new()).unwrap();
        let tasks = vec![sub(None), sub(Some(vec![0]))];
        assert!(report(&mut durable, 0, submit(&root, Ending::Of(1), tasks)).is_none());
        sync(&mut store, &mut durable);
        let one = report(&mut durable, 1, Vec::new()).unwrap();
        report(&mut durable, 1, submit(&one, value(40), Vec::new()));
        // This many groups are durable when the pool is killed.
        for _ in 0..synced {
            let Some(group) = durable.take_group() else { break };
            store.commit(&group.changes).unwrap();
            durable.durable(group.number);
        }
        for _ in 0..2 {
            let mut durable = limited(&mut store);
            work(&mut store, &mut durable, &mut 0, |_| value(40));
            sync(&mut store, &mut durable);
            let error = store.ended(0, 0).unwrap().unwrap().result.unwrap_err();
            assert_eq!(error, TaskError::TooLong { bytes: 110, most: 100 }, "{synced}");
            assert!(durable.pool.is_empty() && store.load().steps.is_empty());
        }
    }
}

/// The journal counted as damaged, and a task that had added more sub-tasks than the next pool accepts ran a second time.
#[test]
fn what_one_pool_has_accepted_the_next_one_runs_with_lower_limits() {
    let mut store = Memory::default();
    let mut durable = limited(&mut store);
    ask(&mut durable, Request::Begin { fingerprint: world::FINGERPRINT, nonce: 7, name: "job".into() });
    let plain = |length| Chunk::new(KindId(0), Inputs::List(vec![Bytes::from(vec![1; length])]));
    let once = Options { once: true, ..Options::default() };
    let join = Chunk { join: Some(vec![1]), options: once, ..plain(1) };
    add(&mut durable, 0, vec![plain(1), plain(2), join, plain(80)]);
    ask(&mut durable, Request::Close { job: 0 });
    sync(&mut store, &mut durable);
    // The first two tasks end, the very first with three sub-tasks, until the join is handed out.
    let (mut first, mut results, mut has_join) = (0, Vec::new(), false);
    while !has_join {
        let sent: Vec<Submission> = std::mem::take(&mut results);
        let count = sent.len() as u64;
        durable.receive(NOW, WORKER, Up::Report { term: 1, first, room: 1, results: sent });
        first += count;
        let mut given = said(&mut durable);
        sync(&mut store, &mut durable);
        given.extend(said(&mut durable));
        for task in given.into_iter().filter_map(|down| match down {
            Down::Tasks(mut tasks) => tasks.pop(),
            _ => None,
        }) {
            let name = task.name.unwrap();
            has_join |= name.number == 2;
            let adds = if name.number == 0 { 3 } else { 0 };
            if name.number < 2 && name.sub == 0 {
                let (attempt, ending, tasks) = (task.attempt, value(40), vec![sub_task(&[1; 3]); adds]);
                results.push(Submission {
                    task: task.task,
                    attempt,
                    ran_ns: 1,
                    ending,
                    tasks,
                    large: Vec::new(),
                });
            }
        }
    }
    let mut durable = limited_to(Limits { input_bytes: 10, sub_tasks: 1, ..Limits::default() }, &mut store);
    let name = Name { job: 0, number: 2, sub: 0, run: 0 };
    let held = vec![name];
    let (fingerprint, offer) = (world::FINGERPRINT, Resources::none().cpus(1));
    durable.receive(NOW, CLIENT, Up::Hello { fingerprint, offer, held, of: 0 });
    assert!(format!("{:?}", said(&mut durable)).contains(&format!("{name:?}")), "it goes on with the join");
    let ran = work(&mut store, &mut durable, &mut 0, |_| value(1));
    let mut ran: Vec<_> = ran.into_iter().map(|(number, input)| (number, input.len())).collect();
    ran.sort_unstable();
    assert_eq!(ran, [(0, 3), (0, 3), (0, 3), (3, 80)]);
    ask(&mut durable, Request::Begin { fingerprint: world::FINGERPRINT, nonce: 8, name: "job".into() });
    let chunks = vec![plain(11)];
    ask(&mut durable, Request::Add { fingerprint: world::FINGERPRINT, job: 1, first: 0, chunks });
    sync(&mut store, &mut durable);
    let text = format!("{:?}", said(&mut durable));
    assert!(text.contains("11 bytes exceeds the limit of 10"), "{text}");
}

#[test]
fn tasks_that_cannot_run_end_by_some_thousands_in_a_group() {
    const TASKS: u64 = 20_000;
    let (mut store, mut durable) = begun();
    ask(&mut durable, Request::Begin { fingerprint: world::FINGERPRINT, nonce: 7, name: "job".into() });
    let after = |needed| Chunk { after: vec![needed], ..numbers(1, TASKS / 2, Options::default()) };
    add(&mut durable, 0, vec![numbers(1, 1, Options::default()), after(0), after(0)]);
    add(&mut durable, TASKS + 1, vec![numbers(1, 1, Options::default())]);
    ask(&mut durable, Request::Close { job: 0 });
    sync(&mut store, &mut durable);
    let fails = |number| if number == 0 { Ending::Failed(Failure::Said("no".into())) } else { value(1) };
    let (mut ended, mut first) = (0, 0);
    let mut results = Vec::new();
    while ended < TASKS + 2 {
        let sent: Vec<Submission> = std::mem::take(&mut results);
        let count = sent.len() as u64;
        durable.receive(NOW, WORKER, Up::Report { term: 1, first, room: 9, results: sent });
        first += count;
        for down in said(&mut durable) {
            let Down::Tasks(tasks) = down else { continue };
            results.extend(tasks.iter().map(|task| Submission {
                task: task.task,
                attempt: task.attempt,
                ran_ns: 1,
                ending: fails(task.name.unwrap().number),
                tasks: Vec::new(),
                large: Vec::new(),
            }));
        }
        let Some(group) = durable.take_group() else { continue };
        let over = group.changes.iter().filter(|change| matches!(change, Change::Ended(..))).count();
        assert!(over <= 4096 + 2, "{over} in a group");
        ended += over as u64;
        store.commit(&group.changes).unwrap();
        durable.durable(group.number);
    }
    assert!(store.ended(0, TASKS + 1).unwrap().unwrap().result.is_ok());
    assert!(store.ended(0, TASKS).unwrap().unwrap().result.is_err());
    assert!(durable.pool.is_empty());
}

#[test]
fn a_task_behind_one_that_has_added_more_sub_tasks_than_the_window_runs_when_they_are_over() {
    const SUB_TASKS: usize = 17_000;
    let (mut store, mut durable) = begun();
    ask(&mut durable, Request::Begin { fingerprint: world::FINGERPRINT, nonce: 7, name: "job".into() });
    let behind = Chunk { after: vec![0], ..numbers(1, 1, Options::default()) };
    add(&mut durable, 0, vec![numbers(1, 1, Options::default()), behind]);
    ask(&mut durable, Request::Close { job: 0 });
    sync(&mut store, &mut durable);
    let (mut first, mut results) = (0, Vec::new());
    loop {
        let sent: Vec<Submission> = std::mem::take(&mut results);
        let count = sent.len() as u64;
        durable.receive(NOW, WORKER, Up::Report { term: 1, first, room: 256, results: sent });
        first += count;
        let mut given = said(&mut durable);
        sync(&mut store, &mut durable);
        given.extend(said(&mut durable));
        let tasks = given.into_iter().filter_map(|down| match down {
            Down::Tasks(tasks) => Some(tasks),
            _ => None,
        });
        for task in tasks.flatten() {
            let name = task.name.unwrap();
            let adds = if (name.number, name.sub) == (0, 0) { SUB_TASKS } else { 0 };
            let sub = sub_task(&[1]);
            let (attempt, tasks, large) = (task.attempt, vec![sub; adds], Vec::new());
            results.push(Submission { task: task.task, attempt, ran_ns: 1, ending: value(1), tasks, large });
        }
        if results.is_empty() {
            break;
        }
    }
    assert!(durable.pool.is_empty() && store.ended(0, 1).unwrap().is_some(), "it has run");
}

fn status(durable: &mut super::super::Durable, job: Option<u32>) -> Option<Status> {
    said(durable);
    durable.receive(NOW, CLIENT, Up::Request { id: 99, request: Request::Status { job } });
    said(durable).into_iter().find_map(|down| match down {
        Down::Answer { id: 99, answer: Answer::Status(status) } => Some(status),
        _ => None,
    })
}

#[test]
fn status_is_answered_at_once_and_says_what_is_durable_however_full_the_disk_is() {
    let (mut store, mut durable) = begun();
    job_of(&mut durable, 3, Options::default());
    // None of this is on disk, which is full.
    durable.set_stalled(Some("no space left".into()));
    let all = status(&mut durable, None).expect("an answer");
    assert_eq!((all.stalled.as_deref(), all.jobs.len()), (Some("no space left"), 0));
    assert_eq!(status(&mut durable, Some(0)), None, "there is no such job yet");
    durable.set_stalled(None);
    sync(&mut store, &mut durable);
    let known = status(&mut durable, Some(0)).unwrap().jobs.remove(0);
    assert_eq!((known.tasks, known.ended, known.open), (3, 0, false));
    // A result, one that counts as failed, and a cancellation, all waiting for the disk.
    durable.receive(NOW, WORKER, Up::Report { term: 1, first: 0, room: 9, results: Vec::new() });
    let task = said(&mut durable).into_iter().find_map(|down| match down {
        Down::Tasks(mut tasks) => tasks.pop(),
        _ => None,
    });
    let (task, attempt) = task.map(|task| (task.task, task.attempt)).unwrap();
    let (ending, tasks, large) = (Ending::Failed(Failure::Unusable("no".into())), Vec::new(), Vec::new());
    let result = Submission { task, attempt, ran_ns: 1, ending, tasks, large };
    durable.receive(NOW, WORKER, Up::Report { term: 1, first: 0, room: 0, results: vec![result] });
    ask(&mut durable, Request::Cancel { job: 0 });
    durable.set_stalled(Some("no space left".into()));
    let early = status(&mut durable, Some(0)).unwrap().jobs.remove(0);
    assert_eq!((early.ended, early.failed, early.cancelled), (0, 0, false));
    ask(&mut durable, Request::Explain { job: 0, number: Some(0) });
    assert!(format!("{:?}", said(&mut durable)).contains("cannot be written: no space left"));
    durable.set_stalled(None);
    sync(&mut store, &mut durable);
    let late = status(&mut durable, Some(0)).unwrap().jobs.remove(0);
    assert_eq!((late.ended, late.failed, late.cancelled), (1, 1, true));
}

#[test]
fn who_begins_more_jobs_than_are_kept_is_told_to_forget_some_and_can_then() {
    let mut store = Memory::default();
    let kinds = (1, world::FINGERPRINT);
    let limits = Limits { jobs: 2, ..Limits::default() };
    let reader = Box::new(store.clone());
    let saved = store.load();
    let mut durable = crate::durable::Durable::restore(saved, 1, kinds, limits, |_| false, reader).unwrap();
    let mut begin = |durable: &mut crate::durable::Durable, nonce| {
        ask(durable, Request::Begin { fingerprint: world::FINGERPRINT, nonce, name: "job".into() });
        sync(&mut store, durable);
        match said(durable).pop() {
            Some(Down::Answer { answer, .. }) => answer,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((begin(&mut durable, 1), begin(&mut durable, 2)), (Answer::Job(0), Answer::Job(1)));
    match begin(&mut durable, 3) {
        Answer::No(why) => assert!(why.contains("has 2 jobs") && why.contains("forget"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(begin(&mut durable, 2), Answer::Job(1), "it was begun before");
    ask(&mut durable, Request::Forget { job: 0 });
    assert!(matches!(begin(&mut durable, 3), Answer::Job(2)));
}

/// As a client that has just started must be answered by a pool whose disk is full.
#[test]
fn who_asks_how_it_goes_is_answered_before_anything_more_is_durable() {
    let (mut store, mut durable) = begun();
    sync(&mut store, &mut durable);
    said(&mut durable);
    // The disk has no room for this.
    ask(&mut durable, Request::Begin { fingerprint: world::FINGERPRINT, nonce: 7, name: "job".into() });
    ask(&mut durable, Request::Journal);
    ask(&mut durable, Request::Status { job: None });
    let answers = said(&mut durable);
    let [Down::Answer { answer: first, .. }, Down::Answer { answer: second, .. }] = &answers[..] else {
        panic!("{answers:?}")
    };
    assert!(matches!((first, second), (Answer::Journal(1), Answer::Status(_))), "{answers:?}");
}

/// It did not, with more memory than there is: a client could end the pool by three requests, and each next one of that journal with it.
#[test]
fn a_task_with_a_great_number_ends_before_those_in_front_of_it() {
    const MANY: u64 = 1 << 60;
    let (mut store, mut durable) = begun();
    ask(&mut durable, Request::Begin { fingerprint: world::FINGERPRINT, nonce: 7, name: "job".into() });
    let many = Chunk { after: vec![0], ..numbers(1, MANY, Options::default()) };
    add(&mut durable, 0, vec![numbers(1, 1, Options::default()), many, numbers(1, 1, Options::default())]);
    sync(&mut store, &mut durable);
    durable.receive(NOW, WORKER, Up::Report { term: 1, first: 0, room: 9, results: Vec::new() });
    durable.receive(NOW, CLIENT, Up::Report { term: 1, first: 0, room: 9, results: Vec::new() });
    let tasks = said(&mut durable).into_iter().filter_map(|down| match down {
        Down::Tasks(tasks) => Some(tasks),
        _ => None,
    });
    let last = tasks.flatten().find(|task| task.name.unwrap().number == MANY + 1).unwrap();
    let (ending, tasks, large) = (value(1), Vec::new(), Vec::new());
    let result = Submission { task: last.task, attempt: last.attempt, ran_ns: 1, ending, tasks, large };
    durable.receive(NOW, WORKER, Up::Report { term: 1, first: 0, room: 0, results: vec![result] });
    sync(&mut store, &mut durable);
    let mut next = world::take_up(&mut store);
    for durable in [&mut durable, &mut next] {
        let batch = &durable.jobs[&0];
        assert_eq!((batch.ended(), batch.is_ended(MANY + 1), batch.is_ended(MANY)), (1, true, false));
        assert_eq!(batch.by_completion(0, 9), [(MANY + 1, 1)]);
        ask(durable, Request::Cancel { job: 0 });
        assert_eq!(durable.jobs[&0].by_number(0, 9), [(MANY + 1, MANY + 2)]);
    }
}

#[cfg(feature = "metrics")]
#[test]
fn jobs_with_more_tasks_than_can_be_counted_are_shown() {
    let (mut store, mut durable) = begun();
    for job in 0..3 {
        let name = "job".to_owned();
        ask(&mut durable, Request::Begin { fingerprint: world::FINGERPRINT, nonce: job.into(), name });
        let chunks = vec![numbers(1, 1 << 63, Options::default())];
        ask(&mut durable, Request::Add { fingerprint: world::FINGERPRINT, job, first: 0, chunks });
    }
    sync(&mut store, &mut durable);
    let seen = durable.seen();
    assert_eq!((seen.jobs.len(), seen.queued), (3, u64::MAX));
}

/// All open jobs were searched for results, for each message and for each turn.
#[test]
fn a_message_costs_the_same_with_one_open_job_and_with_many() {
    let searched = [1, 50_000].map(|jobs| {
        let (mut store, mut durable) = begun();
        job_of(&mut durable, 100, Options::default());
        for nonce in 1..jobs {
            let name = "job".to_owned();
            let begin = Request::Begin { fingerprint: world::FINGERPRINT, nonce: 100 + nonce, name };
            ask(&mut durable, begin);
            assert_eq!(durable.searched, 0, "nothing has ended");
        }
        sync(&mut store, &mut durable);
        let ran = work(&mut store, &mut durable, &mut 0, |_| value(1));
        assert_eq!((ran.len(), durable.jobs[&0].ended()), (100, 100));
        durable.searched
    });
    assert_eq!(searched[0], searched[1]);
    assert!((1..=100).contains(&searched[0]), "{searched:?}");
}

/// Each answer to a client that asks for the progress has the names of all jobs.
#[test]
fn of_a_long_name_the_beginning_is_kept() {
    let (mut store, mut durable) = begun();
    let names = ["short".to_owned(), "\u{e4}".repeat(1 << 20)];
    for (nonce, name) in names.into_iter().enumerate() {
        ask(&mut durable, Request::Begin { fingerprint: world::FINGERPRINT, nonce: nonce as u128, name });
    }
    sync(&mut store, &mut durable);
    let kept = store.load().jobs.into_iter().map(|(_, job)| job.name).collect::<Vec<_>>();
    assert_eq!(kept[0], "short");
    assert!(kept[1].len() < 5000 && kept[1].ends_with("\u{e4}\u{2026}"), "{}", kept[1].len());
}

/// The second answer, to a client that had not received the first, was that nothing had been cancelled.
#[test]
fn a_job_that_is_cancelled_again_has_the_same_answer() {
    let (mut store, mut durable) = begun();
    job_of(&mut durable, 3, Options::default());
    sync(&mut store, &mut durable);
    let answers = [1, 2].map(|_| {
        said(&mut durable);
        ask(&mut durable, Request::Cancel { job: 0 });
        sync(&mut store, &mut durable);
        said(&mut durable).pop()
    });
    assert_eq!(answers[0], Some(Down::Answer { id: 1, answer: Answer::Done(3) }));
    assert_eq!(answers[1], answers[0]);
}

/// Each repetition took back the death of another node, too.
#[test]
fn a_processor_that_repeats_its_hello_takes_back_one_death() {
    let mut store = Memory::default();
    let mut durable = limited_to(Limits { crashes: 3, ..Limits::default() }, &mut store);
    job_of(&mut durable, 1, Options::default());
    sync(&mut store, &mut durable);
    let at = |node| Processor { node, number: node.into() };
    let die = |durable: &mut super::super::Durable, node| {
        durable.receive(NOW, at(node), Up::Report { term: 1, first: 0, room: 1, results: Vec::new() });
        assert!(said(durable).iter().any(|down| matches!(down, Down::Tasks(_))), "node {node} has it");
        durable.lose_node(node);
    };
    die(&mut durable, 2);
    die(&mut durable, 3);
    let held = vec![Name { job: 0, number: 0, sub: 0, run: 0 }];
    let hello = Up::Hello { fingerprint: world::FINGERPRINT, offer: Resources::none().cpus(1), held, of: 0 };
    for _ in 0..3 {
        durable.receive(NOW, at(4), hello.clone());
    }
    durable.lose_node(4);
    assert!(store.ended(0, 0).unwrap().is_none());
    die(&mut durable, 5);
    sync(&mut store, &mut durable);
    let error = store.ended(0, 0).unwrap().expect("three have died of it").result.unwrap_err();
    assert_eq!(error, TaskError::Crashed { nodes: vec![2, 4, 5] });
}

/// The journal counted as damaged, where the pool that wrote it had fewer lanes when it accepted these needs.
#[test]
fn accepted_tasks_keep_their_needs_however_many_different_ones_there_are() {
    const NEEDS: u64 = 3100;
    let (mut store, mut durable) = begun();
    job_of(&mut durable, 2, Options::default());
    sync(&mut store, &mut durable);
    let needs = |bytes| Resources::none().memory(bytes);
    let tasks = (1..=NEEDS).map(|bytes| SubTask { needs: needs(bytes), ..sub_task(&[1]) }).collect();
    let (name, serial) = (Name { job: 0, number: 0, sub: 0, run: 0 }, 1 << 40);
    let took = Step::Took { name, serial, ending: Ending::Of(0), tasks };
    let chunk = Chunk { needs: needs(NEEDS + 1), ..numbers(1, 1, Options::default()) };
    let added = Change::Added(0, 2, postcard::to_stdvec(&chunk).unwrap().into());
    store.commit(&[Change::Step(took), added]).unwrap();
    let mut durable = world::take_up(&mut store);
    assert_eq!(durable.pool.len() as u64, NEEDS + 2);
    let ran = work(&mut store, &mut durable, &mut 0, |_| value(1));
    assert_eq!(ran.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1], "the others need memory");
    ask(&mut durable, Request::Begin { fingerprint: world::FINGERPRINT, nonce: 8, name: "job".into() });
    let chunks = vec![Chunk { needs: needs(NEEDS + 2), ..numbers(1, 1, Options::default()) }];
    ask(&mut durable, Request::Add { fingerprint: world::FINGERPRINT, job: 1, first: 0, chunks });
    sync(&mut store, &mut durable);
    let text = format!("{:?}", said(&mut durable));
    assert!(text.contains("more than a thousand different needs"), "{text}");
}
