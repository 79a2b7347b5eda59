//! Individual rules of the pool that random worlds do not cover: limits, how many tasks go out at a time, and refusals.

use std::time::Duration;

use crate::pool::{JobId, Limits, NewTask, Pool, Processor, TaskError};
use crate::resources::Resources;
use crate::timeline::{Fate, Span};
use crate::wire::{Assignment, Bytes, Down, Ending, Failure, KindId, Options, Submission, TaskId};

const SECOND: Duration = Duration::from_secs(1);

fn processor(number: u64) -> Processor {
    Processor { node: number as u16, number }
}

fn pool() -> (Pool, JobId) {
    let mut pool = Pool::new(1, 7, Limits::default());
    let job = pool.begin();
    (pool, job)
}

fn add(pool: &mut Pool, job: JobId, options: Options) {
    let input = Bytes::from(&b"x"[..]);
    pool.add(
        job,
        &NewTask {
            kind: KindId(0),
            options,
            needs: &Resources::none(),
            input,
            join: None,
            after: &[],
            keep: false,
        },
    )
    .unwrap();
}

#[test]
fn a_task_may_take_any_time_beyond_its_limit_where_the_grace_is_without_end() {
    let mut pool = Pool::new(1, 7, Limits { grace: Duration::MAX, ..Limits::default() });
    let job = pool.begin();
    add(&mut pool, job, Options { limit_ms: 10, ..Options::default() });
    let task = given(&mut pool, SECOND, processor(1)).remove(0);
    assert_eq!(answers(&mut pool, 1000 * SECOND), []);
    done(&mut pool, 1000 * SECOND, processor(1), &task, SECOND);
    assert!(pool.take_outcome(job).unwrap().result.is_ok());
}

/// All current messages of the pool.
fn answers(pool: &mut Pool, now: Duration) -> Vec<(Processor, Down)> {
    std::iter::from_fn(|| pool.poll(now)).collect()
}

fn given(pool: &mut Pool, now: Duration, to: Processor) -> Vec<Assignment> {
    pool.ask(now, to, 256);
    match answers(pool, now).pop() {
        Some((asked, Down::Tasks(tasks))) if asked == to => tasks,
        Some((_, Down::Standby)) | None => Vec::new(),
        other => panic!("{other:?}"),
    }
}

fn done(pool: &mut Pool, now: Duration, by: Processor, task: &Assignment, ran: Duration) {
    let ending = Ending::Value(Bytes::from(&b"y"[..]));
    let ran_ns = ran.as_nanos() as u64;
    pool.submit(
        now,
        by,
        Submission {
            task: task.task,
            attempt: task.attempt,
            ran_ns,
            ending,
            tasks: Vec::new(),
            large: Vec::new(),
        },
    );
}

#[test]
fn short_tasks_go_out_by_the_hundred_and_long_ones_one_by_one() {
    for (ran, most) in [
        (Duration::from_micros(100), 160),
        (Duration::from_micros(500), 32),
        (Duration::from_millis(5), 2),
        (Duration::from_millis(200), 1),
    ] {
        let (mut pool, job) = pool();
        (0..1000).for_each(|_| add(&mut pool, job, Options::default()));
        let first = given(&mut pool, SECOND, processor(1));
        assert_eq!(first.len(), 1, "nobody knows how long they take");
        done(&mut pool, SECOND, processor(1), &first[0], ran);
        assert_eq!(given(&mut pool, SECOND, processor(1)).len(), most, "{ran:?}");
        assert_eq!(given(&mut pool, SECOND, processor(1)).len(), 0, "it holds as many as it may");
    }
}

#[test]
fn nobody_is_given_more_than_a_share_of_what_is_left() {
    let (mut pool, job) = pool();
    (0..21).for_each(|_| add(&mut pool, job, Options::default()));
    let first = given(&mut pool, SECOND, processor(1));
    done(&mut pool, SECOND, processor(1), &first[0], Duration::from_micros(1));
    let _ = given(&mut pool, SECOND, processor(2));
    // ⌈left / 2 · 2⌉ of what the two before have left.
    let left = 20 - 5;
    assert_eq!(given(&mut pool, SECOND, processor(1)).len(), usize::div_ceil(left, 4));
}

fn failed(pool: &mut Pool, now: Duration, by: Processor, task: &Assignment) {
    let ending = Ending::Failed(Failure::Said("no disk".into()));
    let (task, attempt) = (task.task, task.attempt);
    pool.submit(
        now,
        by,
        Submission { task, attempt, ran_ns: 1, ending, tasks: Vec::new(), large: Vec::new() },
    );
}

/// A pool with many tasks. A processor fails this many of them, next to one on another node that ends its tasks by `other`.
fn fails_in_a_row(failures: u32, other: impl Fn(&mut Pool, &Assignment)) -> Pool {
    let (mut pool, job) = pool();
    (0..1000).for_each(|_| add(&mut pool, job, Options::default()));
    for _ in 0..failures {
        for (number, tasks) in [1, 2].map(|number| (number, given(&mut pool, SECOND, processor(number)))) {
            for task in tasks {
                if number == 1 {
                    failed(&mut pool, SECOND, processor(1), &task)
                } else {
                    other(&mut pool, &task)
                }
            }
        }
    }
    pool
}

#[test]
fn a_node_on_which_all_fails_is_given_one_task_at_a_time_until_one_goes_well() {
    let slow = Duration::from_secs(1);
    let well = |pool: &mut Pool, task: &Assignment| done(pool, SECOND, processor(2), task, slow);
    let mut pool = fails_in_a_row(10, well);
    let named = pool.troubles();
    assert!(named.len() == 1 && named[0].contains("node1") && named[0].contains("last 10"), "{named:?}");
    assert!(given(&mut pool, SECOND, processor(1)).is_empty(), "it waits");
    assert_eq!(given(&mut pool, SECOND, processor(2)).len(), 1, "others do not");
    // Without asking again, it is considered once when the pause is over.
    let later = pool.next_time().expect("there is something to wait for").max(2 * SECOND);
    let Some((to, Down::Tasks(tasks))) = pool.poll(later) else { panic!("the pause is over") };
    assert_eq!((to, tasks.len()), (processor(1), 1));
    assert!(
        given(&mut pool, later, Processor { node: 1, number: 9 }).is_empty(),
        "one at a time, on all of the node"
    );
    // Pauses grow.
    failed(&mut pool, later, to, &tasks[0]);
    assert!(given(&mut pool, later + SECOND, to).is_empty());
    let tasks = given(&mut pool, later + 2 * SECOND, to);
    done(&mut pool, later + 2 * SECOND, to, &tasks[0], slow);
    assert!(pool.troubles().is_empty());
    pool.ask(later + 2 * SECOND, to, 256);
    let given = answers(&mut pool, later + 2 * SECOND);
    let tasks = given.iter().filter(|(to, down)| to.node == 1 && matches!(down, Down::Tasks(_))).count();
    assert_eq!(tasks, 2, "both of its processors have one again: {given:?}");
}

#[test]
fn a_node_is_not_to_blame_where_tasks_fail_on_others_too_or_nobody_else_computes() {
    let fails = |pool: &mut Pool, task: &Assignment| failed(pool, SECOND, processor(2), task);
    assert!(fails_in_a_row(20, fails).troubles().is_empty());
    assert!(fails_in_a_row(20, |_, _| ()).troubles().is_empty());
    let well = |pool: &mut Pool, task: &Assignment| done(pool, SECOND, processor(2), task, SECOND);
    let mut pool = fails_in_a_row(9, well);
    assert!(pool.troubles().is_empty());
    // The number of a lost processor passes to another process.
    let mut troubled = fails_in_a_row(10, well);
    for pool in [&mut pool, &mut troubled] {
        pool.lose_node(1);
        assert!(pool.troubles().is_empty());
        assert_eq!(given(pool, SECOND, processor(1)).len(), 1);
    }
}

#[test]
fn standby_is_answered_when_there_is_something() {
    let (mut pool, job) = pool();
    for processor in [processor(1), processor(2)] {
        pool.ask(SECOND, processor, 1);
        assert_eq!(answers(&mut pool, SECOND), [(processor, Down::Standby)]);
    }
    add(&mut pool, job, Options::default());
    let said = answers(&mut pool, SECOND);
    assert!(
        matches!(&*said, [(to, Down::Tasks(tasks))] if *to == processor(1) && tasks.len() == 1),
        "{said:?}"
    );
    // If it asks again it is answered again, since the first answer may have been lost; but it is given a task only once.
    (0..100).for_each(|_| assert!(given(&mut pool, SECOND, processor(2)).is_empty()));
    add(&mut pool, job, Options::default());
    assert_eq!(answers(&mut pool, SECOND).len(), 1);
}

#[test]
fn a_task_that_does_not_end_is_taken_from_its_processor_long_after_its_limit() {
    let (mut pool, job) = pool();
    let options = Options { limit_ms: 1000, retries: 1, ..Options::default() };
    add(&mut pool, job, options);
    for attempt in 1..=2 {
        let (now, by) = (SECOND * 100 * attempt, processor(attempt.into()));
        assert_eq!(given(&mut pool, now, by)[0].attempt, attempt);
        assert!(pool.next_time().is_some());
        assert!(answers(&mut pool, now + 6 * SECOND).is_empty() && pool.take_outcome(job).is_none());
        assert!(answers(&mut pool, now + 7 * SECOND).is_empty());
        assert_eq!(pool.processors(), 0, "it is given nothing more until it says something");
        let troubles = pool.troubles();
        assert_eq!(troubles.len() as u32, attempt, "{troubles:?}");
        let line =
            format!("processor {attempt} of node{attempt} has not ended a task long after its limit of 1s");
        assert!(troubles.iter().any(|trouble| trouble.starts_with(&line)), "{troubles:?}");
    }
    // One has ended its task after all, and the other's node is gone.
    pool.ask(SECOND * 300, processor(1), 1);
    assert_eq!(pool.troubles().len(), 1);
    pool.lose_node(2);
    assert!(pool.troubles().is_empty());
    let limit = SECOND;
    let outcome = pool.take_outcome(job).unwrap();
    assert_eq!(*outcome.result.unwrap_err(), TaskError::TimedOut { limit, processor: processor(2) });
}

#[test]
fn a_submission_of_any_holder_present_or_past_is_taken_and_the_first_counts() {
    for is_held in [false, true] {
        let (mut pool, job) = pool();
        add(&mut pool, job, Options::default());
        let first = given(&mut pool, SECOND, processor(1)).remove(0);
        pool.lose_node(1);
        let again = given(&mut pool, SECOND, processor(2)).remove(0);
        assert_eq!((again.task, again.attempt), (first.task, 2));
        if !is_held {
            pool.lose_node(2);
        }
        let ending = Ending::Value(Bytes::from(&b"of the first"[..]));
        let (task, tasks, large) = (first.task, Vec::new(), Vec::new());
        pool.submit(SECOND, processor(1), Submission { task, attempt: 1, ran_ns: 1, ending, tasks, large });
        assert_eq!(&*pool.take_outcome(job).unwrap().result.unwrap(), b"of the first");
        // The current holder is told; its result, and a repeated one, are ignored.
        let told = answers(&mut pool, SECOND);
        assert_eq!(told, if is_held { vec![(processor(2), Down::Drop(task))] } else { Vec::new() });
        done(&mut pool, SECOND, processor(2), &again, SECOND);
        done(&mut pool, SECOND, processor(1), &first, SECOND);
        assert_eq!((pool.counts().taken, pool.counts().ignored), (1, 2));
        assert!(pool.take_outcome(job).is_none() && pool.is_empty());
    }
}

#[test]
fn what_takes_twice_as_long_as_most_is_copied_once_to_another_node() {
    let (mut pool, job) = pool();
    let own = |number| Processor { node: 1, number };
    for i in 0..12 {
        add(&mut pool, job, Options::default());
        let task = given(&mut pool, SECOND, own(1));
        if i < 11 {
            done(&mut pool, SECOND, own(1), &task[0], SECOND);
        }
    }
    let exclusive = Options { exclusive: true, ..Options::default() };
    add(&mut pool, job, exclusive);
    assert_eq!(given(&mut pool, SECOND, processor(5)).len(), 1);
    // A neighbour of its holder does not get it either.
    assert!(given(&mut pool, SECOND, own(2)).is_empty());
    assert!(answers(&mut pool, 5 * SECOND).is_empty());
    assert!(given(&mut pool, 5 * SECOND, processor(3)).is_empty(), "it is told to stand by first");
    let said = answers(&mut pool, 6 * SECOND);
    assert!(
        matches!(&*said, [(to, Down::Tasks(tasks))] if *to == processor(3) && tasks[0].attempt == 2),
        "{said:?}"
    );
    let Down::Tasks(copy) = &said[0].1 else { panic!() };
    assert!(given(&mut pool, 6 * SECOND, processor(4)).is_empty());
    assert!(answers(&mut pool, 99 * SECOND).is_empty(), "neither a copy of a copy, nor of what is exclusive");
    done(&mut pool, 99 * SECOND, processor(3), &copy[0], SECOND);
    assert_eq!(answers(&mut pool, 99 * SECOND), [(own(1), Down::Drop(copy[0].task))]);
    assert_eq!(pool.counts().copies, 1);
}

#[test]
fn who_has_other_functions_or_submits_what_never_existed_is_refused() {
    let (mut pool, job) = pool();
    add(&mut pool, job, Options::default());
    pool.hello(processor(1), 8, Resources::none());
    assert_eq!(answers(&mut pool, SECOND), [(processor(1), Down::Refused { fingerprint: 7 })]);
    assert!(given(&mut pool, SECOND, processor(1)).is_empty());
    pool.hello(processor(2), 7, Resources::none().cpus(1));
    let task = given(&mut pool, SECOND, processor(2));
    let stray = Assignment { task: TaskId { index: 5, generation: 0 }, ..task[0].clone() };
    (0..100).for_each(|_| done(&mut pool, SECOND, processor(2), &stray, SECOND));
    assert_eq!((pool.counts().unknown, pool.processors()), (100, 0));
    // What it held goes to others, and its messages are ignored.
    done(&mut pool, SECOND, processor(2), &task[0], SECOND);
    assert_eq!(given(&mut pool, SECOND, processor(3))[0].attempt, 2);
}

#[test]
fn who_held_what_is_recorded_if_asked_for() {
    let (mut pool, job) = pool();
    add(&mut pool, job, Options { retries: 1, ..Options::default() });
    pool.record();
    let first = given(&mut pool, SECOND, processor(1));
    let _ = pool.poll(2 * SECOND);
    pool.lose_node(1);
    let again = given(&mut pool, 3 * SECOND, processor(2));
    let ending = Ending::Failed(Failure::Said("no".into()));
    let failed = Submission {
        task: again[0].task,
        attempt: 2,
        ran_ns: 1,
        ending,
        tasks: Vec::new(),
        large: Vec::new(),
    };
    pool.submit(4 * SECOND, processor(2), failed);
    let last = given(&mut pool, 5 * SECOND, processor(3));
    done(&mut pool, 7 * SECOND, processor(3), &last[0], SECOND);
    let span = |number, since, until, fate| Span {
        processor: processor(number),
        task: first[0].task,
        since: since * SECOND,
        until: until * SECOND,
        fate,
    };
    let all = [span(1, 1, 2, Fate::Lost), span(2, 3, 4, Fate::Failed), span(3, 5, 7, Fate::Taken)];
    assert_eq!(pool.spans(), all);
}
