//! A hostile or broken processor next to honest ones: it can only affect what it was given, and it is named.

use std::time::Duration;

use crate::pool::{JobId, Limits, NewTask, Pool, Processor, TaskError};
use crate::resources::Resources;
use crate::wire::{Assignment, Bytes, Down, Ending, Failure, KindId, Options, SubTask, Submission, TaskId};

const NOW: Duration = Duration::from_secs(1);
const HONEST: Processor = Processor { node: 1, number: 1 };
const HOSTILE: Processor = Processor { node: 2, number: 2 };

fn pool() -> (Pool, JobId) {
    let mut pool = Pool::new(2, 7, Limits { sub_tasks: 4, ..Limits::default() });
    let job = pool.begin();
    for options in [Options::default(), Options { retries: 3, ..Options::default() }] {
        let (input, needs) = (Bytes::from(&b"input"[..]), &Resources::none());
        let new = NewTask { kind: KindId(0), options, needs, input, join: None, after: &[], keep: false };
        pool.add(job, &new).unwrap();
    }
    (pool, job)
}

fn given(pool: &mut Pool, to: Processor) -> Assignment {
    pool.ask(NOW, to, 1);
    match pool.poll(NOW) {
        Some((asked, Down::Tasks(mut tasks))) if asked == to => tasks.pop().unwrap(),
        other => panic!("{other:?}"),
    }
}

fn value() -> Ending {
    Ending::Value(Bytes::from(&b"result"[..]))
}

fn of(task: TaskId, attempt: u32, ending: Ending, tasks: Vec<SubTask>) -> Submission {
    Submission { task, attempt, ran_ns: 1, ending, tasks, large: Vec::new() }
}

fn sub(kind: u16, after: Vec<u16>) -> SubTask {
    let (input, needs) = (Bytes::from(&b"sub"[..]), Resources::none());
    SubTask { kind: KindId(kind), options: Options::default(), needs, input, join: None, after }
}

/// The visible state of a pool, except its counts.
fn seen(pool: &Pool, job: JobId) -> (usize, usize, usize) {
    (pool.len(), pool.live(job), pool.bytes())
}

#[test]
fn what_nobody_was_given_changes_nothing_and_who_sends_it_is_named() {
    let (mut pool, job) = pool();
    let honest = given(&mut pool, HONEST);
    let before = seen(&pool, job);
    let not_begun = TaskId { index: 1, generation: 0 };
    let strays = [
        // For tasks that do not exist, of far and near ids; for one that nobody was given; for an attempt that was never made.
        (TaskId { index: u32::MAX, generation: u32::MAX }, 1),
        (TaskId { index: 0, generation: 1 }, 1),
        (not_begun, 1),
        (honest.task, 0),
        (honest.task, 2),
        (honest.task, u32::MAX),
    ];
    for i in 0..99 {
        let (task, attempt) = strays[i % strays.len()];
        let ending = if i % 2 == 0 { value() } else { Ending::Failed(Failure::Said("no".into())) };
        pool.submit(NOW, HOSTILE, of(task, attempt, ending, vec![sub(0, Vec::new())]));
        assert!(pool.poll(NOW).is_none() && pool.take_outcome(job).is_none());
        assert_eq!(seen(&pool, job), before, "{task} {attempt}");
    }
    assert!(pool.refusals().is_empty());
    pool.malformed(HOSTILE);
    let counts = pool.counts();
    assert_eq!((counts.unknown, counts.ignored, counts.malformed, counts.taken), (34, 65, 1, 0));
    let named: Vec<_> = pool.refusals().iter().map(ToString::to_string).collect();
    assert!(matches!(&*named, [one] if one.contains("processor 2 of node2 is refused: 100")), "{named:?}");
    // Its requests and even its real attempts are ignored from now on.
    pool.ask(NOW, HOSTILE, 9);
    pool.submit(NOW, HOSTILE, of(honest.task, 1, value(), Vec::new()));
    assert!(pool.poll(NOW).is_none() && seen(&pool, job) == before);
    pool.submit(NOW, HONEST, of(honest.task, 1, value(), Vec::new()));
    assert_eq!(&*pool.take_outcome(job).unwrap().result.unwrap(), b"result");
}

#[test]
fn late_and_doubled_submissions_change_nothing() {
    let (mut pool, job) = pool();
    let lost = given(&mut pool, HOSTILE);
    pool.leave(HOSTILE);
    let again = given(&mut pool, HONEST);
    assert_eq!((again.task, again.attempt), (lost.task, 2));
    // A failure reported by a processor that was given up does not count against the task.
    pool.submit(NOW, HOSTILE, of(lost.task, 1, Ending::Failed(Failure::Said("no".into())), Vec::new()));
    pool.submit(NOW, HONEST, of(again.task, 2, value(), vec![sub(1, Vec::new())]));
    assert!(pool.take_outcome(job).is_some());
    let before = seen(&pool, job);
    for from in [HONEST, HOSTILE, HONEST] {
        for attempt in [1, 2] {
            let other = Ending::Value(Bytes::from(&b"another result"[..]));
            pool.submit(NOW, from, of(lost.task, attempt, other, vec![sub(0, Vec::new())]));
        }
    }
    assert!(pool.take_outcome(job).is_none() && seen(&pool, job) == before);
    assert_eq!((pool.counts().taken, pool.counts().ignored), (1, 7));
    assert!(pool.refusals().is_empty(), "that happens to honest ones");
}

#[test]
fn what_is_oversized_or_makes_no_sense_fails_by_name_without_a_retry() {
    let nonsense: [(Ending, Vec<SubTask>, &str); 6] = [
        (value(), (0..5).map(|_| sub(0, Vec::new())).collect(), "5 sub-tasks; a task may add 4"),
        (Ending::Of(0), Vec::new(), "sub-task 0 of 0"),
        (Ending::Of(7), vec![sub(0, Vec::new())], "sub-task 7 of 1"),
        (value(), vec![sub(2, Vec::new())], "kind 2, of 2"),
        (value(), vec![sub(0, vec![0])], "needs sub-task 0"),
        (value(), vec![sub(0, Vec::new()), sub(0, vec![9])], "needs sub-task 9"),
    ];
    for (ending, tasks, why) in nonsense {
        let (mut pool, job) = pool();
        let first = given(&mut pool, HONEST);
        pool.submit(NOW, HONEST, of(first.task, 1, value(), Vec::new()));
        assert!(pool.take_outcome(job).unwrap().result.is_ok());
        // With retries left.
        let task = given(&mut pool, HOSTILE);
        // No other processor can fail it that way.
        pool.submit(NOW, HONEST, of(task.task, 1, ending.clone(), tasks.clone()));
        assert!(pool.take_outcome(job).is_none());
        pool.submit(NOW, HOSTILE, of(task.task, 1, ending, tasks));
        let error = pool.take_outcome(job).unwrap().result.unwrap_err();
        assert!(matches!(&*error, TaskError::Failed { processor: HOSTILE, attempts: 1, .. }), "{error}");
        assert!(error.to_string().contains(why) && error.to_string().contains("node2"), "{error}");
        assert_eq!(seen(&pool, job), (0, 0, 0));
    }
}

#[test]
fn too_many_different_needs_are_refused_and_take_no_memory() {
    let (mut pool, job) = pool();
    let task = given(&mut pool, HOSTILE);
    for memory in 1..=5000 {
        let needs = Resources::none().memory(memory);
        let sub = SubTask { needs, ..sub(0, Vec::new()) };
        // For an attempt that was never made: its needs are not examined.
        pool.submit(NOW, HONEST, of(task.task, 9, value(), vec![sub.clone()]));
        if pool.refusals().is_empty() {
            continue;
        }
        let input = Bytes::from(&b"input"[..]);
        let new = NewTask {
            kind: KindId(0),
            options: Options::default(),
            needs: &sub.needs,
            input,
            join: None,
            after: &[],
            keep: false,
        };
        if pool.add(job, &new).is_err() {
            assert!(memory > 1024, "{memory}");
            return;
        }
    }
    panic!("there is no end");
}

#[test]
fn who_says_that_it_goes_is_not_forgiven_by_that() {
    let (mut pool, job) = pool();
    let stray = TaskId { index: 99, generation: 0 };
    for _ in 0..99 {
        pool.submit(NOW, HOSTILE, of(stray, 1, value(), Vec::new()));
    }
    pool.leave(HOSTILE);
    pool.submit(NOW, HOSTILE, of(stray, 1, value(), Vec::new()));
    assert_eq!(pool.refusals().len(), 1);
    let before = seen(&pool, job);
    for _ in 0..2 {
        pool.leave(HOSTILE);
        assert!(!pool.hello(HOSTILE, 7, Resources::none().cpus(1)), "it was welcome with these functions");
        pool.ask(NOW, HOSTILE, 9);
        assert!(pool.poll(NOW).is_none() && seen(&pool, job) == before);
    }
    // Nor does a processor that knows other functions.
    assert!(!pool.hello(HONEST, 8, Resources::none()));
    pool.leave(HONEST);
    pool.ask(NOW, HONEST, 9);
    assert!(pool.poll(NOW).is_none_or(|(_, down)| matches!(down, Down::Refused { .. })));
    // Its node is gone; the next one of that number is another.
    pool.lose_node(HONEST.node);
    assert_eq!(given(&mut pool, HONEST).attempt, 1);
}

/// A node can attach as many parts as it likes, and send nonsense through each.
#[test]
fn nonsense_of_ever_new_senders_takes_no_memory_and_that_of_a_refused_one_no_time() {
    let (mut pool, _) = pool();
    let from = |number| Processor { number, ..HOSTILE };
    // Who has sent more than others is not forgotten for their sake.
    (0..99).for_each(|_| pool.malformed(HONEST));
    for number in 0..200_000 {
        pool.malformed(from(number));
        assert!(pool.noted().0 <= 10_000, "{number}");
    }
    pool.malformed(HONEST);
    assert_eq!(pool.refusals().len(), 1);
    for number in 0..200_000 {
        assert!(!pool.hello(from(number), 8, Resources::none()));
        assert!(pool.noted().1 <= 100_000, "{number}");
    }
    let (mut pool, _) = self::pool();
    (0..1000).for_each(|_| pool.malformed(HOSTILE));
    assert_eq!((pool.noted(), pool.counts().malformed), ((0, 1), 1000), "it is given up once");
}
