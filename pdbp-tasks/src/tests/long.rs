//! Inputs and results that no message can hold: refused with the size and what to do instead, and never an endless wait.

use std::time::Duration;

use crate::pool::{JobId, Limits, NewTask, Pool, Processor, Refused, TaskError};
use crate::resources::Resources;
use crate::wire::{
    Assignment, Bytes, Down, Ending, Failure, KindId, Name, Options, SubTask, Submission, TaskId, Up, pieces,
};
use crate::worker::{Step, Worker};

const NOW: Duration = Duration::from_secs(1);
const PROCESSOR: Processor = Processor { node: 1, number: 1 };

fn add(pool: &mut Pool, job: JobId, length: usize, join: Option<&[u64]>) -> Result<u64, Refused> {
    let (input, needs) = (Bytes::from(vec![1; length]), &Resources::none());
    let (kind, options) = (KindId(0), Options::default());
    pool.add(job, &NewTask { kind, options, needs, input, join, after: &[], keep: true })
}

fn given(pool: &mut Pool) -> Vec<Assignment> {
    pool.ask(NOW, PROCESSOR, 9);
    match pool.poll(NOW) {
        Some((_, Down::Tasks(tasks))) => tasks,
        _ => Vec::new(),
    }
}

fn submit(pool: &mut Pool, task: &Assignment, ending: Ending, tasks: Vec<SubTask>) {
    let (task, attempt, large) = (task.task, task.attempt, Vec::new());
    pool.submit(NOW, PROCESSOR, Submission { task, attempt, ran_ns: 1, ending, tasks, large });
}

fn sub(length: usize, join: Option<Vec<u16>>) -> SubTask {
    let (input, needs, after) = (Bytes::from(vec![1; length]), Resources::none(), Vec::new());
    SubTask { kind: KindId(0), options: Options::default(), needs, input, join, after }
}

#[test]
fn a_task_whose_input_is_too_long_with_what_it_needs_ends_and_says_so() {
    let mut pool = Pool::new(1, 7, Limits { input_bytes: 100, ..Limits::default() });
    let job = pool.begin();
    assert_eq!(add(&mut pool, job, 101, None), Err(Refused::TooLong { bytes: 101, most: 100 }));
    let parts = [(); 3].map(|()| add(&mut pool, job, 10, None).unwrap());
    let (whole, long) =
        (add(&mut pool, job, 20, Some(&parts[..2])), add(&mut pool, job, 21, Some(&parts[..2])));
    let (whole, long) = (whole.unwrap(), long.unwrap());
    let behind = add(&mut pool, job, 1, Some(&[long])).unwrap();
    for _ in 0..4 {
        for task in given(&mut pool) {
            submit(&mut pool, &task, Ending::Value(Bytes::from(vec![2; 40])), Vec::new());
        }
    }
    assert!(pool.result(job, whole).unwrap().is_ok(), "as long as it may be");
    let error = pool.result(job, long).unwrap().unwrap_err();
    assert_eq!(*error, TaskError::TooLong { bytes: 101, most: 100 });
    let text = error.to_string();
    assert!(text.contains("101 bytes") && text.contains("give long results as `Large`"), "{text}");
    assert!(matches!(&*pool.result(job, behind).unwrap().unwrap_err(), TaskError::NotRun(_)));
    // Added later, when its parts are available already.
    let later = add(&mut pool, job, 90, Some(&parts[..1])).unwrap();
    assert!(matches!(&*pool.result(job, later).unwrap().unwrap_err(), TaskError::TooLong { bytes: 130, .. }));
    assert_eq!((pool.live(job), pool.bytes()), (0, 0));
}

#[test]
fn a_sub_task_whose_input_is_too_long_fails_the_task_that_has_added_it() {
    let mut pool = Pool::new(1, 7, Limits { input_bytes: 100, ..Limits::default() });
    let job = pool.begin();
    let (one, two) = (add(&mut pool, job, 10, None).unwrap(), add(&mut pool, job, 10, None).unwrap());
    let task = given(&mut pool).remove(0);
    submit(&mut pool, &task, Ending::Of(0), vec![sub(101, None)]);
    assert!(matches!(&*pool.result(job, one).unwrap().unwrap_err(), TaskError::TooLong { bytes: 101, .. }));
    let task = given(&mut pool).remove(0);
    submit(&mut pool, &task, Ending::Of(1), vec![sub(10, None), sub(70, Some(vec![0]))]);
    let task = given(&mut pool).remove(0);
    submit(&mut pool, &task, Ending::Value(Bytes::from(vec![2; 31])), Vec::new());
    assert!(matches!(&*pool.result(job, two).unwrap().unwrap_err(), TaskError::TooLong { bytes: 101, .. }));
    assert_eq!((pool.live(job), pool.bytes()), (0, 0));
}

#[test]
fn what_comes_of_a_task_and_cannot_be_sent_is_a_failure_that_says_so() {
    let value = |length| Ending::Value(Bytes::from(vec![1; length]));
    assert_eq!(crate::slot::too_long(&value(1000), &[], 1000), None);
    let why = crate::slot::too_long(&value(1001), &[], 1000).unwrap();
    assert!(why.contains("1001 bytes") && why.contains("write what is long as a `Large`"), "{why}");
    let tasks = [sub(400, None), sub(400, Some(vec![0; 100]))];
    let why = crate::slot::too_long(&Ending::Of(1), &tasks, 1000).unwrap();
    assert!(why.contains("the 2 sub-tasks that it adds 1212;"), "{why}");
    assert_eq!(crate::slot::too_long(&Ending::Of(0), &tasks[..1], 1000), None);
    // The counted length is never less than what is sent, whatever it is made of.
    let needs = Resources::none().cpus(9).memory(u64::MAX).named("a licence", u32::MAX);
    let task = SubTask { needs, after: vec![u16::MAX; 50], ..tasks[1].clone() };
    let ending = Ending::Failed(Failure::Said("no".repeat(50)));
    let large = vec![u64::MAX >> 8; 5];
    let task_id = TaskId { index: u32::MAX, generation: u32::MAX };
    let result = Submission {
        task: task_id,
        attempt: u32::MAX,
        ran_ns: u64::MAX,
        ending,
        tasks: vec![task; 3],
        large,
    };
    assert!(postcard::to_stdvec(&result).unwrap().len() <= result.weight());
}

#[test]
fn what_a_processor_keeps_while_there_is_no_pool_fits_one_message() {
    let mut worker = Worker::keeping(7, Resources::none().cpus(1));
    assert!(matches!(worker.step(NOW), Step::Send(Up::Hello { .. })));
    worker.receive(Down::Welcome { term: 1, number: 1, is_known: true, held: Vec::new() });
    let task = |number| Assignment {
        task: TaskId { index: number, generation: 0 },
        attempt: 1,
        kind: KindId(0),
        limit_ms: 0,
        gpus: 0,
        input: Bytes::from(&[1][..]),
        name: Some(Name { job: 0, number: number.into(), sub: 0, run: 0 }),
    };
    worker.receive(Down::Tasks((0..9).map(task).collect()));
    worker.lost();
    let mut ran = 0;
    while let Step::Run(_) = worker.step_alone(NOW) {
        ran += 1;
        worker.ended(NOW, Ending::Value(Bytes::from(vec![1; 6 << 20])), Vec::new());
    }
    assert_eq!(ran, 3, "with 16 MiB it waits");
    worker.lost();
    assert!(matches!(worker.step_alone(NOW), Step::Wait(_)), "it still has them");
    assert!(matches!(worker.step(NOW), Step::Send(Up::Hello { .. })));
    worker.receive(Down::Welcome { term: 2, number: 2, is_known: true, held: Vec::new() });
    let Step::Send(again @ Up::Again { .. }) = worker.step(NOW) else { panic!("it has results") };
    assert!(postcard::to_stdvec(&again).unwrap().len() < pieces::MOST / 2);
    worker.receive(Down::Taken { up_to: 3 });
    worker.receive(Down::Tasks(vec![task(20)]));
    assert!(matches!(worker.step_alone(NOW), Step::Run(_)), "they are acknowledged");
}

#[test]
fn the_next_pool_is_told_what_runs_while_it_runs() {
    let mut worker = Worker::keeping(7, Resources::none().cpus(1));
    assert!(matches!(worker.step(NOW), Step::Send(Up::Hello { .. })));
    worker.receive(Down::Welcome { term: 1, number: 1, is_known: true, held: Vec::new() });
    let names = [0, 1, 2].map(|number| Name { job: 0, number, sub: 0, run: 0 });
    let task = |name: Name, generation, attempt| Assignment {
        task: TaskId { index: name.number as u32, generation },
        attempt,
        kind: KindId(0),
        limit_ms: 0,
        gpus: 0,
        input: Bytes::from(&[1][..]),
        name: Some(name),
    };
    worker.receive(Down::Tasks(names.map(|name| task(name, 0, 1)).into()));
    assert!(matches!(worker.step(NOW), Step::Run(_)));
    assert_eq!(worker.speak(NOW), None, "the pool knows");
    worker.ended(NOW, Ending::Value(Bytes::from(&[7][..])), Vec::new());
    assert!(matches!(worker.step_alone(NOW), Step::Run(_)));
    worker.lost();
    let Some(Up::Hello { held, of: 1, .. }) = worker.speak(NOW) else { panic!("it says what it holds") };
    assert_eq!(held, names[1..]);
    assert_eq!(worker.speak(NOW), None);
    assert!(matches!(worker.speak(9 * NOW), Some(Up::Hello { .. })), "the answer may have been lost");
    // The pool lets it continue under another id, and wants neither of the others.
    let held =
        vec![crate::wire::Held { name: names[1], task: TaskId { index: 8, generation: 3 }, attempt: 5 }];
    worker.receive(Down::Welcome { term: 2, number: 2, is_known: true, held });
    let Some(Up::Again { term: 2, results, .. }) = worker.speak(9 * NOW) else { panic!("it has a result") };
    assert_eq!(results[0].0, names[0]);
    assert_eq!(worker.speak(9 * NOW), None);
    assert!(!worker.is_dropped());
    worker.ended(9 * NOW, Ending::Failed(Failure::Said("no".into())), Vec::new());
    // The failure is reported for an attempt that this pool knows.
    let Step::Send(Up::Report { term: 2, results, .. }) = worker.step(9 * NOW) else { panic!("a report") };
    assert_eq!((results[0].task.generation, results[0].attempt), (3, 5));
}
