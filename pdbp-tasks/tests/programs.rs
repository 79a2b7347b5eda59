//! Whole programs on clusters of threads, as their users write them.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use pdbp::{Builder, Cluster, Node, PartKind};
use pdbp_tasks::wire::{self, Down, LargeAnswer, LargeBy, LargeRequest, Up};
use pdbp_tasks::{Error, Large, Limits, Program, Refused, TaskError, Tasks};

fn cluster(nodes: u16) -> Cluster {
    Builder::new().nodes(nodes).start().unwrap()
}

/// Small blocks, so that inputs and results travel in pieces.
fn small() -> Cluster {
    let builder = Builder::new().nodes(3).block_bytes(1024).set("pack_bytes", "512").memory_bytes(256 << 10);
    builder.row_blocks(8).start().unwrap()
}

fn run(program: Program, cluster: &Cluster, client: impl FnOnce(&Tasks<'_>) -> Result<(), Error>) {
    program.run_on(cluster.nodes(), 2, client).unwrap();
}

#[test]
fn squares_come_each_once_and_in_order_if_asked_for() {
    let mut program = Program::new("test");
    let square = program.kind("square", |n: u64| n * n);
    run(program, &cluster(3), |tasks| {
        let mut job = tasks.job("as they come");
        job.each(square, 0..20_000);
        let mut seen = vec![false; 20_000];
        for done in job.results().progress() {
            let done = done?;
            assert_eq!(done.value, done.number * done.number);
            assert!(!std::mem::replace(&mut seen[done.number as usize], true), "{} twice", done.number);
        }
        assert!(seen.into_iter().all(|seen| seen));
        let mut job = tasks.job("in order");
        // Results that one iterator leaves are there for the next.
        job.each(square, 0..100);
        let first = job.results().take(3).count();
        assert_eq!(first + job.results().count(), 100);
        job.each(square, (0..3000).rev());
        job.each(square, 0..5);
        let values: Result<Vec<_>, _> =
            job.results().in_order().map(|done| done.map(|done| done.value)).collect();
        let expected: Vec<u64> = (0..3000).rev().chain(0..5).map(|n| n * n).collect();
        assert_eq!(values?, expected);
        Ok(())
    });
}

#[test]
fn a_join_is_given_all_results_and_an_order_is_kept() {
    let mut program = Program::new("test");
    let began = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&began);
    let length = program.kind("length", move |text: String| {
        counted.fetch_add(1, Ordering::SeqCst);
        text.len()
    });
    let sum = program.kind("sum", |(first, all): (usize, Vec<usize>)| first + all.iter().sum::<usize>());
    let look = program.kind("look", move |()| began.load(Ordering::SeqCst));
    run(program, &cluster(2), |tasks| {
        let mut job = tasks.job::<()>("graph");
        let words = ["a", "bc", "def"].map(|word| job.add(length, word.to_owned()));
        let words = words.into_iter().collect::<Result<Vec<_>, _>>()?;
        let total = job.join(sum, 10, &words)?;
        let after = job.task().after(&total).add(look, ())?;
        let mut order = tasks.job("order");
        let first = order.add(length, "four".to_owned())?;
        order.task().after(&first).each(look, [()]);
        assert!(order.results().all(|done| done.is_ok_and(|done| done.value > 0)));
        assert!(job.wait(&after)? >= 3 && job.wait(&total)? == 16);
        // A task that is over can still be depended on.
        let again = job.join(sum, 1, &[words[2], words[2]])?;
        assert_eq!(job.wait(&again)?, 7);
        Ok(())
    });
}

#[test]
fn results_and_inputs_of_many_blocks_arrive() {
    let mut program = Program::new("test");
    let grow = program.kind("grow", |(byte, count): (u8, usize)| vec![byte; count]);
    let total = program
        .kind("total", |((), all): ((), Vec<Vec<u8>>)| all.into_iter().flatten().map(u64::from).sum::<u64>());
    run(program, &small(), |tasks| {
        let mut job = tasks.job("long");
        let long: Result<Vec<_>, _> = (0..8).map(|byte| job.add(grow, (byte, 50_000))).collect();
        let all = job.join(total, (), &long?)?;
        assert_eq!(job.wait(&all)?, 28 * 50_000);
        job.each(grow, (0..100).map(|i| (i as u8, i * 37)));
        for done in job.results().in_order() {
            let done = done?;
            let i = done.number - 9;
            assert_eq!(done.value, vec![i as u8; i as usize * 37]);
        }
        Ok(())
    });
}

#[test]
fn sub_tasks_give_the_result_of_their_parent() {
    let mut program = Program::new("test");
    let add = program.kind("add", |((), two): ((), Vec<u64>)| two.iter().sum::<u64>());
    let fib = program.declare::<u64, u64>("fib");
    program.define(fib, move |scope, n| {
        if n < 2 {
            return scope.done(n);
        }
        let parts = [scope.add(fib, n - 1), scope.add(fib, n - 2)];
        scope.join(add, (), &parts)
    });
    // Each step passes its result on to the next.
    let down = program.declare::<u32, String>("down");
    program.define(down, move |scope, left| match left {
        0 => scope.done("there".to_owned()),
        _ => {
            let next = scope.add(down, left - 1);
            scope.result_of(next)
        }
    });
    run(program, &cluster(3), |tasks| {
        let mut job = tasks.job("fibonacci");
        job.each(fib, 0..=15);
        let values: Result<Vec<_>, _> =
            job.results().in_order().map(|done| done.map(|done| done.value)).collect();
        assert_eq!(values?, [0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610]);
        let mut job = tasks.job::<()>("steps");
        let last = job.add(down, 200)?;
        assert_eq!(job.wait(&last)?, "there");
        Ok(())
    });
}

#[test]
fn a_failure_is_tried_again_as_often_as_asked_for_and_then_told() {
    let mut program = Program::new("test");
    let third = program.declare::<u32, u32>("third");
    program.define(third, |scope, n| match scope.attempt() {
        3 => scope.done(n),
        1 => scope.fail("not yet"),
        attempt => panic!("attempt {attempt}"),
    });
    let half = program.kind("half", |n: u32| {
        assert!(n.is_multiple_of(2), "{n} is odd");
        n / 2
    });
    run(program, &cluster(2), |tasks| {
        let mut job = tasks.job::<u32>("failures");
        let good = job.task().retries(2).add(third, 5)?;
        let bad = job.task().retries(1).add(third, 6)?;
        let after = job.task().after(&bad).add(half, 4)?;
        assert_eq!(job.wait(&good)?, 5);
        let text = job.wait(&bad).unwrap_err().to_string();
        assert!(text.contains("attempt 2") && text.contains("of 2 times"), "{text}");
        let Err(Error::Task { error, .. }) = job.wait(&after) else { panic!("it has a result") };
        assert!(
            matches!(&*error, TaskError::NotRun(because) if matches!(**because, TaskError::Failed { .. }))
        );
        job.each(half, 0..10);
        let (good, bad): (Vec<_>, Vec<_>) = job.results().partition(Result::is_ok);
        assert_eq!((good.len(), bad.len()), (5, 5));
        assert!(bad.into_iter().any(|done| done.unwrap_err().to_string().contains("7 is odd")));
        Ok(())
    });
}

#[test]
fn a_cancelled_job_tells_what_runs_and_ends() {
    let mut program = Program::new("test");
    let (tell, told) = mpsc::channel();
    let tell = std::sync::Mutex::new(tell);
    let wait = program.declare::<(), ()>("wait");
    program.define(wait, move |scope, ()| {
        tell.lock().unwrap().send(()).unwrap();
        while !scope.is_unwanted() {
            std::thread::yield_now();
        }
        scope.done(())
    });
    run(program, &cluster(2), |tasks| {
        let mut job = tasks.job::<()>("endless");
        let handles: Result<Vec<_>, _> = (0..5).map(|_| job.add(wait, ())).collect();
        told.recv().unwrap();
        job.cancel();
        for handle in handles? {
            let Err(Error::Task { error, .. }) = job.wait(&handle) else { panic!("it has a result") };
            assert_eq!(*error, TaskError::Cancelled);
        }
        assert!(matches!(job.add(wait, ()).map(|_| ()).unwrap_err().error, Error::Add(Refused::Cancelled)));
        assert!(job.results().next().is_none());
        Ok(())
    });
}

#[test]
fn a_task_sees_that_its_limit_is_over() {
    let mut program = Program::new("test");
    // Without a processor for longer than the usual time it would be another error.
    program.limits(Limits { grace: Duration::from_secs(300), ..Limits::default() });
    let long = program.declare::<(), u32>("long");
    program.define(long, |scope, ()| {
        while !scope.is_unwanted() {
            std::thread::yield_now();
        }
        scope.fail("stopped at its limit")
    });
    run(program, &cluster(2), |tasks| {
        let mut job = tasks.job::<()>("limit");
        let task = job.task().limit(std::time::Duration::from_millis(20)).add(long, ())?;
        assert!(job.wait(&task).unwrap_err().to_string().contains("stopped at its limit"));
        Ok(())
    });
}

#[test]
fn a_task_runs_while_its_iterator_waits_for_the_next_input() {
    let mut program = Program::new("test");
    let (ran, has_run) = mpsc::channel();
    let ran = std::sync::Mutex::new(ran);
    let tell = program.kind("tell", move |n: u32| ran.lock().unwrap().send(n).unwrap());
    run(program, &cluster(2), |tasks| {
        let mut job = tasks.job("lines");
        // Each input except the first becomes available when the task of the previous one has run.
        let inputs = (0..4).take_while(|n| *n == 0 || has_run.recv_timeout(Duration::from_secs(300)).is_ok());
        job.each(tell, inputs);
        assert_eq!(job.results().filter(|done| done.is_ok()).count(), 4);
        Ok(())
    });
}

/// Sets the value when dropped, even by a panic.
struct Sets<'a>(&'a AtomicU32);

impl Drop for Sets<'_> {
    fn drop(&mut self) {
        self.0.store(1, Ordering::SeqCst);
    }
}

#[test]
fn another_processor_takes_the_place_of_one_whose_function_hangs() {
    let mut program = Program::new("test");
    let goes_on = Arc::new(AtomicU32::new(0));
    let waits = Arc::clone(&goes_on);
    let hang = program.kind("hang", move |()| {
        while waits.load(Ordering::SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let double = program.kind("double", |n: u32| 2 * n);
    program.limits(Limits { grace: Duration::from_millis(100), ..Limits::default() });
    let cluster = cluster(2);
    program
        .run_on(cluster.nodes(), 1, |tasks| {
            let _sets = Sets(&goes_on);
            let mut job = tasks.job::<()>("hangs");
            let hangs = job.task().limit(Duration::from_millis(50)).add(hang, ())?;
            // There is only one processor, and its function does not end.
            let next = job.add(double, 4)?;
            assert_eq!(job.wait(&next)?, 8);
            let Err(Error::Task { error, .. }) = job.wait(&hangs) else { panic!("it has a result") };
            assert!(matches!(*error, TaskError::TimedOut { .. }), "{error}");
            assert!(tasks.troubles().iter().any(|line| line.contains("has not ended a task long after")));
            Ok(())
        })
        .unwrap();
}

#[test]
fn what_the_client_returns_and_its_panic_end_the_program() {
    let program = || {
        let mut program = Program::new("test");
        let same = program.kind("same", |n: u8| n);
        (program, same)
    };
    let (own, same) = program();
    let ended = own.run_on(cluster(2).nodes(), 1, |tasks| {
        tasks.job("left").each(same, 0..9);
        Err(Error::other("enough"))
    });
    assert_eq!(ended.unwrap_err().to_string(), "enough");
    let panic = std::panic::catch_unwind(|| program().0.run_on(cluster(2).nodes(), 1, |_| panic!("oh")));
    assert_eq!(*panic.unwrap_err().downcast::<&str>().unwrap(), "oh");
    let mut undefined = Program::new("test");
    let _ = undefined.declare::<(), ()>("nothing");
    let ended = undefined.run_on(cluster(2).nodes(), 1, |_| Ok(()));
    assert!(ended.unwrap_err().to_string().contains("`nothing"));
}

/// Asks for tasks and, once it has some, leaves with its node. A message is a byte 0 and the encoded content.
fn take_and_go(node: Node, taken: &mpsc::Sender<usize>) {
    let part = node.register("tasks.thief", PartKind::Cpu).unwrap();
    let pool = part.find("tasks@node0", std::time::Duration::from_secs(60)).unwrap();
    let ask = postcard::to_stdvec(&Up::Report { term: 0, first: 0, room: 100, results: Vec::new() }).unwrap();
    part.send(pool, &[&[0], &*ask].concat()).unwrap();
    loop {
        let message = part.recv().unwrap();
        match postcard::from_bytes(&message[1..]).unwrap() {
            Down::Tasks(tasks) => return taken.send(tasks.len()).unwrap(),
            Down::Standby => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn tasks_of_a_node_that_is_lost_run_elsewhere() {
    let mut nodes = cluster(3).into_nodes();
    let lost = nodes.pop().unwrap();
    let (tell, told) = mpsc::channel();
    let thief = std::thread::spawn(move || take_and_go(lost, &tell));
    let mut program = Program::new("test");
    let same = program.kind("same", |n: u32| n);
    let ended = program.run_on(&nodes, 1, |tasks| {
        let mut job = tasks.job("all");
        // A copy of a stolen task, given to a processor that waits, would end it before the loss of the thief is noticed.
        job.task().exclusive().each(same, 0..);
        let mut results = job.results();
        let mut seen = std::collections::BTreeSet::new();
        let mut next = || {
            let value = results.next().unwrap()?.value;
            assert!(seen.insert(value), "{value} twice");
            // Whether the results so far have no gap.
            Ok::<_, Error>(seen.last().is_some_and(|last| *last as usize + 1 == seen.len()))
        };
        let stolen = loop {
            next()?;
            if let Ok(stolen) = told.try_recv() {
                break stolen as u64;
            }
        };
        while tasks.counts().lost < stolen {
            next()?;
        }
        // The stolen tasks' results come after some that were handed out before.
        while !next()? {}
        assert_eq!(tasks.counts().lost, stolen);
        Ok(())
    });
    thief.join().unwrap();
    ended.unwrap();
}

/// `count` bytes, which differ between places.
fn pattern(seed: u8, count: usize) -> impl Iterator<Item = u8> {
    (0..count).map(move |at| (at / 251) as u8 ^ at as u8 ^ seed)
}

fn text_of(tasks: &Tasks<'_>, large: &Large) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    tasks.read_large(large)?.read_to_end(&mut bytes)?;
    assert_eq!(bytes.len() as u64, large.len());
    Ok(bytes)
}

#[test]
fn values_of_any_length_go_to_tasks_and_back_by_pieces() {
    let mut program = Program::new("test");
    program.large_in(std::env::temp_dir());
    let write = program.declare::<(u8, usize), Large>("write");
    program.define(write, |scope, (seed, count)| {
        let mut writer = scope.write_large().unwrap();
        // Reads and writes alternate, in lengths that match no other size.
        let bytes: Vec<_> = pattern(seed, count).collect();
        bytes.chunks(70_001).for_each(|bytes| writer.write_all(bytes).unwrap());
        scope.done(writer.finish().unwrap())
    });
    let join = program.declare::<(Large, Vec<Large>), Large>("join");
    program.define(join, |scope, (first, parts)| {
        let mut writer = scope.write_large().unwrap();
        for part in [first].iter().chain(&parts) {
            std::io::copy(&mut scope.read_large(part).unwrap(), &mut writer).unwrap();
        }
        scope.done(writer.finish().unwrap())
    });
    run(program, &small(), |tasks| {
        let lengths = [0, 1, (256 << 10) - 1, 256 << 10, (1 << 20) + 1];
        let mut job = tasks.job::<()>("large");
        let mut first = job.write_large()?;
        first.write_all(b"first")?;
        let first = first.finish()?;
        let parts = lengths.into_iter().map(|length| job.add(write, (length as u8, length)));
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        let all = job.join(join, first, &parts)?;
        let all = job.wait(&all)?;
        let expected = lengths.into_iter().flat_map(|length| pattern(length as u8, length));
        let expected: Vec<_> = b"first".iter().copied().chain(expected).collect();
        assert!(text_of(tasks, &all)? == expected && text_of(tasks, &all)? == expected);
        assert_eq!(tasks.large_bytes(), 2 * expected.len() as u64);
        tasks.discard(all);
        let error = text_of(tasks, &all).unwrap_err().to_string();
        assert!(error.contains("no large value"), "{error}");
        assert_eq!(tasks.large_bytes(), expected.len() as u64);
        drop(job);
        // They are deleted with their job.
        assert_eq!(tasks.large_bytes(), 0);
        Ok(())
    });
}

#[test]
fn what_a_run_that_failed_has_written_is_gone_and_a_pool_that_keeps_none_says_so() {
    let mut program = Program::new("test");
    program.large_in(std::env::temp_dir());
    let third = program.declare::<(), Large>("third");
    program.define(third, |scope, ()| {
        let mut writer = scope.write_large().unwrap();
        writer.write_all(&vec![scope.attempt() as u8; 300_000]).unwrap();
        match scope.attempt() {
            // Unfinished values are deleted, too.
            1 => panic!("in the middle"),
            2 => scope.fail(format!("{:?}", writer.finish().unwrap())),
            _ => scope.done(writer.finish().unwrap()),
        }
    });
    run(program, &cluster(2), |tasks| {
        let mut job = tasks.job::<()>("failures");
        let task = job.task().retries(2).add(third, ())?;
        assert_eq!(text_of(tasks, &job.wait(&task)?)?, vec![3; 300_000]);
        assert_eq!(tasks.large_bytes(), 300_000);
        Ok(())
    });
    let mut program = Program::new("test");
    let none = program.declare::<(), String>("none");
    program.define(none, |scope, ()| {
        let error = scope.write_large().map(|_| ()).unwrap_err();
        scope.done(error.to_string())
    });
    run(program, &cluster(2), |tasks| {
        let mut job = tasks.job::<()>("none");
        let task = job.add(none, ())?;
        for error in [job.wait(&task)?, job.write_large().map(|_| ()).unwrap_err().to_string()] {
            assert!(error.contains("Program::large_in"), "{error}");
        }
        Ok(())
    });
}

/// Acts as a processor lost in the middle of a large value: takes a task, writes a piece, and leaves with its node once that is stored.
fn write_and_go(node: Node) {
    let part = node.register("tasks.thief", PartKind::Cpu).unwrap();
    let find = |name| part.find(name, std::time::Duration::from_secs(60)).unwrap();
    let (pool, store) = (find("tasks@node0"), find("tasks.store@node0"));
    let say = |to, up: &Up| part.send(to, &[&[0], &*postcard::to_stdvec(up).unwrap()].concat()).unwrap();
    say(pool, &Up::Report { term: 0, first: 0, room: 1, results: Vec::new() });
    loop {
        match postcard::from_bytes(&part.recv().unwrap()[1..]).unwrap() {
            Down::Tasks(tasks) => {
                let bytes = wire::Bytes::from(&[9; 1000][..]);
                let by = LargeBy::Attempt(tasks[0].task, tasks[0].attempt);
                let request = LargeRequest::Write { by, number: 0, from: 0, bytes };
                say(store, &Up::Large { id: 1, request });
            }
            Down::Large { id, answer } => return assert_eq!((id, answer), (1, LargeAnswer::Wrote(1))),
            Down::Standby => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_large_result_of_a_processor_that_is_lost_is_written_anew_and_counts_once() {
    let mut nodes = cluster(3).into_nodes();
    let thief = std::thread::spawn({
        let lost = nodes.pop().unwrap();
        move || write_and_go(lost)
    });
    let mut program = Program::new("test");
    program.large_in(std::env::temp_dir());
    // The first task is for the thief.
    let thief = std::sync::Mutex::new(Some(thief));
    let (tell, told) = mpsc::channel();
    let told = std::sync::Mutex::new(told);
    program.join_when(move || told.lock().unwrap().recv().is_ok());
    let write = program.declare::<u8, Large>("write");
    program.define(write, |scope, byte| {
        let mut writer = scope.write_large().unwrap();
        writer.write_all(&vec![byte; 500_000]).unwrap();
        scope.done(writer.finish().unwrap())
    });
    let ended = program.run_on(&nodes, 1, |tasks| {
        let mut job = tasks.job("large");
        let result = job.add(write, 7)?;
        thief.lock().unwrap().take().unwrap().join().unwrap();
        assert_eq!(tasks.large_bytes(), 1000);
        tell.send(()).map_err(Error::other)?;
        assert!(text_of(tasks, &job.wait(&result)?)? == vec![7; 500_000]);
        assert_eq!((tasks.counts().lost, tasks.large_bytes()), (1, 500_000));
        job.each(write, 0..3);
        assert_eq!(job.results().filter(Result::is_ok).count(), 3);
        assert_eq!(tasks.large_bytes(), 2_000_000);
        Ok(())
    });
    ended.unwrap();
}
