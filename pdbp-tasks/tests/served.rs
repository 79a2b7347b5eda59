//! A pool served by one process, with other processes that work for it: `pdbp-tasks serve`, `work`, `submit` and so on.

mod common;

use std::fs::File;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::place::{Place, Running, command, text};
use common::{Held, finish, until};
use pdbp::{Builder, Part};
use pdbp_tasks::net::{Remote, Request, Serving, Working};
use pdbp_tasks::wire::{Answer, By, Up};
use pdbp_tasks::{Kind, Program};

#[test]
fn a_pool_that_is_killed_and_started_again_has_each_output_once() {
    let place = Place::new();
    let pool = place.serve();
    let _work = place.work();
    let runs = "echo {} >> ran; sleep 0.05; echo output {}";
    let submitted = place.ask(&["submit", "--array", "1-40", "--name", "a job", "--", "sh", "-c", runs]);
    assert_eq!((text(&submitted.stdout), submitted.status.code()), ("0\n", Some(0)), "{submitted:?}");
    let ran = place.folder.path().join("ran");
    until("eight have run", || std::fs::read_to_string(&ran).is_ok_and(|ran| ran.lines().count() >= 8));
    drop(pool);
    let _pool = place.serve();
    let waited = place.ask(&["wait", "0"]);
    assert!(waited.status.success(), "{waited:?}");
    let output = place.ask(&["output", "0", "--keep-order"]);
    let expected: Vec<_> = (1..=40).map(|i| format!("output {i}")).collect();
    assert_eq!(text(&output.stdout).lines().collect::<Vec<_>>(), expected, "{output:?}");
    // The processes that ran them survived, so each ran once.
    let ran = std::fs::read_to_string(place.folder.path().join("ran")).unwrap();
    let mut ran: Vec<u32> = ran.lines().map(|line| line.parse().unwrap()).collect();
    ran.sort_unstable();
    assert_eq!(ran, (1..=40).collect::<Vec<_>>());
    let one = place.ask(&["output", "0", "7"]);
    assert_eq!(text(&one.stdout), "output 8\n");
    let status = place.ask(&["status"]);
    assert!(text(&status.stdout).contains("term 2") && text(&status.stdout).contains("a job"), "{status:?}");
    let page = place.ask(&["report", "--to", "page.html"]);
    let page = (page, std::fs::read_to_string(place.folder.path().join("page.html")).unwrap());
    assert!(page.1.contains("<rect"), "{page:?}");
}

#[test]
fn a_command_that_runs_while_the_pool_is_killed_is_known_to_the_next_and_not_started_beside_itself() {
    let place = Place::new();
    let pool = place.serve();
    let _work = place.work();
    let runs = "echo {} >> ran; until [ -e go ]; do sleep 0.05; done; echo output {}";
    let submitted = place.ask(&["submit", "--array", "1-1", "--", "sh", "-c", runs]);
    assert_eq!(submitted.status.code(), Some(0), "{submitted:?}");
    let ran = place.folder.path().join("ran");
    until("it runs", || std::fs::read_to_string(&ran).is_ok_and(|ran| ran.ends_with('\n')));
    drop(pool);
    let _pool = place.serve();
    // The other slot of the process is idle, and would be given the task.
    until("the next pool knows who has it", || {
        let explained = place.ask(&["explain", "0", "0"]);
        text(&explained.stdout).contains("is with processor")
    });
    File::create(place.folder.path().join("go")).unwrap();
    let waited = place.ask(&["wait", "0"]);
    assert!(waited.status.success(), "{waited:?}");
    assert_eq!(text(&place.ask(&["output", "0"]).stdout), "output 1\n");
    assert_eq!(std::fs::read_to_string(&ran).unwrap(), "1\n", "it was started once");
    let status = place.ask(&["status", "0"]);
    assert!(text(&status.stdout).contains("term 2"), "{status:?}");
}

/// Stops the pool and its processors when dropped, even by a panic.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// For the processes of a pool that are threads of this one.
fn builder(place: &Place) -> Builder {
    Builder::new().token_file(place.folder.path().join("token")).set("lease_ms", place.lease_ms)
}

type One = Kind<u64, u64>;
type Sum = Kind<((), Vec<u64>), u64>;
type Fails = Kind<(), u64>;

/// A program that adds numbers, with its kinds.
fn adds() -> (Program, One, Sum, Fails) {
    let mut program = Program::new("adds");
    let one = program.kind("one", |n: u64| n + 1);
    let sum = program.kind("sum", |((), parts): ((), Vec<u64>)| parts.iter().sum());
    let fails = program.declare::<(), u64>("fails");
    program.define(fails, |scope, ()| scope.fail("it does not like to"));
    program.slots(2);
    (program, one, sum, fails)
}

#[test]
fn a_client_adds_tasks_that_need_others_and_finds_them_again() {
    let place = Place::new();
    let folder = place.folder.path();
    let builder = || builder(&place).outage(Duration::from_millis(200));
    let stop = AtomicBool::new(false);
    let (ready, is_ready) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let _stops = Stops(&stop);
        scope.spawn(|| {
            let mut serving = Serving::default();
            serving.journal = Some(folder.join("jobs"));
            let builder = builder().listen(place.address.clone()).nodes(4);
            adds().0.serve(builder, &serving, &stop, |_, _| ready.send(()).unwrap()).unwrap();
        });
        is_ready.recv().unwrap();
        scope.spawn(|| {
            let builder = builder().join(place.address.clone());
            adds().0.work(builder, &Working::default(), &stop, &|_| ()).unwrap();
        });
        let (program, one, sum, fails) = adds();
        let mut remote =
            Remote::new(&program, builder().join(place.address.clone()), Duration::from_secs(60));
        let foreign = remote.job_of::<u64>(1).handle::<u64>(0);
        let mut job = remote.job::<u64>("graph").unwrap();
        let parts: Vec<_> = (0..10).map(|n| job.add(one, n).unwrap()).collect();
        let total = job.join(sum, (), &parts).unwrap();
        job.task().after(&total).each(one, [70, 80]).unwrap();
        let bad = job.add(fails, ()).unwrap();
        let never = job.join(sum, (), &[parts[0], bad]).unwrap();
        let later = job.handle::<u64>(1000);
        let error = job.join(sum, (), &[later]).unwrap_err().to_string();
        assert!(error.contains("was not added before"), "{error}");
        let error = job.wait(&later).unwrap_err().to_string();
        assert!(
            error.contains("task 1000 of job 0 does not exist; the job has 15, numbered from 0"),
            "{error}"
        );
        for error in [job.wait(&foreign), job.join(sum, (), &[foreign]).map(|_| 0)] {
            assert!(error.unwrap_err().to_string().contains("task 0 belongs to another job"));
        }
        job.close().unwrap();
        let (number, total, never) = (job.number(), total.number(), never.number());
        let mut results = Vec::new();
        while let Some(done) = job.next_result().unwrap() {
            results.push((done.number, done.result.unwrap()));
        }
        results.sort_unstable();
        assert_eq!(results, [(11, 71), (12, 81)], "those of `each`");
        // Another client finds the tasks by their numbers.
        let (program, ..) = adds();
        let mut remote =
            Remote::new(&program, builder().join(place.address.clone()), Duration::from_secs(60));
        let mut job = remote.job_of::<u64>(number);
        let (total, never) = (job.handle::<u64>(total), job.handle::<u64>(never));
        assert_eq!(job.wait(&total).unwrap(), 55);
        let error = job.wait(&never).unwrap_err().to_string();
        assert!(error.contains("needs, has failed"), "{error}");
        let error = job.add(one, 1).and_then(|_| job.flush()).unwrap_err().to_string();
        assert!(error.contains("it was closed"), "{error}");
    });
}

/// It served on without them, and whoever wrote one joined again and again.
#[test]
fn a_pool_that_cannot_serve_large_values_ends_and_says_why() {
    let place = Place::new();
    let stop = AtomicBool::new(false);
    let (end, ended) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let _stops = Stops(&stop);
        scope.spawn(|| {
            // The pool's own part is all there may be.
            let builder = builder(&place).listen(place.address.clone()).nodes(2).parts(1);
            end.send(adds().0.serve(builder, &Serving::default(), &stop, |_, _| ())).unwrap();
        });
        let error = ended.recv_timeout(Duration::from_secs(300)).expect("it ends").unwrap_err();
        assert!(error.to_string().contains("parts"), "{error}");
    });
}

/// A pool with a task whose result has `length` bytes, one of its clients, the number of the task's job, and another client that sends requests to
/// read that result (`ask`, by a part that the second argument flushes) and never reads an answer.
fn with_a_deaf_client(length: u64, then: impl FnOnce(&mut Remote, u32, &Part, &dyn Fn(u64))) {
    let place = Place::new();
    let builder = || builder(&place);
    let join = || builder().join(place.address.clone());
    let long = || {
        let mut program = Program::new("long");
        let kind = program.kind("long", |length: u64| "x".repeat(length as usize));
        program.slots(1);
        (program, kind)
    };
    let stop = AtomicBool::new(false);
    let (ready, is_ready) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let _stops = Stops(&stop);
        scope.spawn(|| {
            let builder = builder().listen(place.address.clone()).nodes(4);
            long().0.serve(builder, &Serving::default(), &stop, |_, _| ready.send(()).unwrap()).unwrap();
        });
        is_ready.recv().unwrap();
        scope.spawn(|| long().0.work(join(), &Working::default(), &stop, &|_| ()).unwrap());
        let (program, kind) = long();
        let mut remote = Remote::new(&program, join(), Duration::from_secs(60));
        let mut job = remote.job::<String>("long").unwrap();
        let task = job.add(kind, length).unwrap();
        assert_eq!(job.wait(&task).unwrap().len() as u64, length);
        let job = job.number();
        let deaf = join().start().unwrap().into_nodes().pop().unwrap();
        let part = deaf.attach().unwrap();
        let pool = part.find("tasks@node0", Duration::from_secs(60)).unwrap();
        let ask = |id| {
            let request = Request::Read { job, by: By::Number, from: 0, most: 1 };
            // A single piece, the last of its message.
            let piece = [&[0], &*postcard::to_stdvec(&Up::Request { id, request }).unwrap()].concat();
            part.send(pool, &piece).unwrap();
        };
        then(&mut remote, job, &part, &ask);
    });
}

/// What the pool says of clients that it has refused.
fn refusals(remote: &mut Remote) -> Vec<String> {
    match remote.ask(&Request::Status { job: None }).unwrap() {
        Answer::Status(status) => status.refusals,
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_asks_and_does_not_read_what_it_is_answered_is_refused_and_named_and_others_are_served() {
    const LENGTH: u64 = 250 << 10;
    /// The pool keeps 64 MiB of answers for a client.
    const ANSWERS: u64 = (96 << 20) / LENGTH;
    with_a_deaf_client(LENGTH, |remote, job, part, ask| {
        for id in 0..ANSWERS {
            ask(id);
            part.flush();
            if id == ANSWERS / 8 {
                assert_eq!(refusals(remote), [""; 0], "what waits for it is not too much yet");
            }
        }
        until("it is refused", || refusals(remote).iter().any(|why| why.contains("bytes of answers")));
        let mut job = remote.job_of::<String>(job);
        assert_eq!(job.next_result().unwrap().unwrap().result.unwrap().len() as u64, LENGTH);
    });
}

/// All of its requests may be there before the first answer is.
#[test]
fn who_asks_for_much_at_once_makes_the_pool_hold_little_more_than_it_keeps_for_a_client() {
    const LENGTH: u64 = 8 << 20;
    const KEPT: u64 = 64 << 20;
    with_a_deaf_client(LENGTH, |remote, _, part, ask| {
        (0..64).for_each(ask);
        part.flush();
        until("it is refused", || {
            let why = refusals(remote).into_iter().find(|why| why.contains("bytes of answers"));
            let unread = why.and_then(|why| {
                why.split(' ').find_map(|word| word.parse::<u64>().ok().filter(|n| *n > KEPT))
            });
            unread.is_some_and(|unread| {
                assert!(unread < KEPT + 2 * LENGTH, "{unread}");
                true
            })
        });
    });
}

#[test]
fn commands_that_fail_are_named_run_again_are_cancelled_and_forgotten() {
    let place = Place::new();
    let _pool = place.serve();
    let _work = place.work();
    // They succeed once a file exists.
    let script = "echo tried {}; test -e good";
    let waited = place.ask(&["submit", "--array", "1-3", "--wait", "--", "sh", "-c", script]);
    assert_eq!(waited.status.code(), Some(1), "{waited:?}");
    assert!(text(&waited.stderr).contains("3 failed"), "{waited:?}");
    let output = place.ask(&["output", "0"]);
    assert!(text(&output.stderr).contains("ended with exit status: 1") && output.status.code() == Some(1));
    File::create(place.folder.path().join("good")).unwrap();
    assert_eq!(text(&place.ask(&["retry", "0"]).stdout), "3 tasks run again\n");
    assert!(place.ask(&["wait", "0"]).status.success());
    let output = place.ask(&["output", "0", "--keep-order"]);
    assert_eq!((text(&output.stdout), output.status.code()), ("tried 1\ntried 2\ntried 3\n", Some(0)));

    let needs = ["--cpus", "1000", "--needs", "license=1"];
    let submitted = place.ask(&[&["submit", "--array", "1-9"], &needs[..], &["--", "true"]].concat());
    assert_eq!(text(&submitted.stdout), "1\n");
    let why = place.ask(&["explain", "1", "0"]);
    assert!(text(&why.stdout).contains("no node offers cpus=1000,license=1"), "{why:?}");
    let cancelled = place.ask(&["cancel", "1"]);
    assert_eq!(text(&cancelled.stdout), "9 tasks cancelled\n");
    let waited = place.ask(&["wait", "1"]);
    assert!(waited.status.code() == Some(1) && text(&waited.stderr).contains("was cancelled"), "{waited:?}");
    assert!(place.ask(&["forget", "1"]).status.success());
    let gone = place.ask(&["output", "1"]);
    assert!(gone.status.code() == Some(1) && text(&gone.stderr).contains("job 1 does not exist"), "{gone:?}");
}

#[test]
fn a_command_above_its_limit_is_stopped_with_what_it_has_started() {
    let place = Place::new();
    let _pool = place.serve();
    let _work = place.work();
    let script = "sleep 1000 & echo begun; wait";
    // On a busy machine it may not come to its first word within the first of these.
    let printed = ["200ms", "2s", "20s"].into_iter().enumerate().find(|(job, limit)| {
        let submit = ["submit", "--array", "1-1", "--limit", limit, "--wait", "--", "sh", "-c", script];
        let waited = place.ask(&submit);
        assert_eq!(waited.status.code(), Some(1), "{waited:?}");
        let output = place.ask(&["output", &job.to_string()]);
        assert!(text(&output.stderr).contains(&format!("within its limit of {limit}")), "{output:?}");
        text(&output.stdout) == "begun\n"
    });
    assert!(printed.is_some(), "what it printed is lost");
}

#[test]
fn a_cancelled_command_that_ignores_sigterm_in_the_background_frees_its_processor() {
    let place = Place::new();
    let _pool = place.serve();
    place.await_token();
    let _work = place.start(&["work", &place.address, "--token-file", "token", "--slots", "1"]);
    let mut held = Held::new();
    let script = format!("(trap '' TERM; exec {}) & wait", held.command());
    assert!(place.ask(&["submit", "--array", "1-1", "--", "sh", "-c", &script]).status.success());
    held.await_begun(1);
    assert!(place.ask(&["cancel", "0"]).status.success());
    held.await_free();
    let reach = ["submit", &place.address, "--token-file", "token"];
    let other = place.command(&[&reach[..], &["--array", "1-1", "--wait", "--", "true"]].concat()).spawn();
    assert!(finish(other.unwrap()).status.success());
}

#[test]
fn commands_end_with_a_process_that_is_killed() {
    let place = Place::new();
    let _pool = place.serve();
    let work = place.work();
    let mut held = Held::new();
    let script = format!("(trap '' TERM; exec {}) & {} & wait", held.command(), held.command());
    assert!(place.ask(&["submit", "--array", "1-1", "--", "sh", "-c", &script]).status.success());
    held.await_begun(2);
    drop(work);
    held.await_free();
}

#[test]
fn processes_that_are_idle_or_at_their_time_go_and_outputs_are_followed_into_files() {
    let place = Place::new();
    let _pool = place.serve();
    place.await_token();
    let token = ["--token-file", "token", "--patience", "60s"];
    let script = "test {} != 2 || test -e begun || { touch begun; exec sleep 1000; }; echo output {}";
    let submitted = place.ask(&["submit", "--array", "1-3", "--", "sh", "-c", script]);
    assert_eq!(text(&submitted.stdout), "0\n", "{submitted:?}");
    let follow = ["output", &place.address, "0", "--follow", "--to", "out-{}.txt"];
    let mut follow = Running(place.command(&[&follow[..], &token].concat()).spawn().unwrap());
    // The processes leave in the middle of the second command, which then runs elsewhere.
    // On a slow machine, joining may take longer than the first times.
    let mut seconds = 1;
    until("a task has begun", || {
        let until = ["work", &place.address, "--slots", "1", "--until", &format!("{seconds}s")];
        seconds *= 2;
        let gone = place.command(&[&until[..], &token[..2]].concat()).output().unwrap();
        assert!(gone.status.success(), "{gone:?}");
        place.folder.path().join("begun").exists()
    });
    assert!(follow.0.try_wait().unwrap().is_none(), "it follows until all are over");
    until("all are over", || {
        let idle = ["work", &place.address, "--slots", "2", "--idle", "500ms"];
        let gone = place.command(&[&idle[..], &token[..2]].concat()).output().unwrap();
        assert!(gone.status.success(), "{gone:?}");
        follow.0.try_wait().unwrap().is_some()
    });
    let outputs = [0, 1, 2]
        .map(|task| std::fs::read_to_string(place.folder.path().join(format!("out-{task}.txt"))).unwrap());
    assert_eq!(outputs, [1, 2, 3].map(|item| format!("output {item}\n")));
}

#[test]
fn what_a_process_has_that_is_stopped_and_not_dead_runs_elsewhere() {
    let place = Place { lease_ms: "2000", ..Place::new() };
    let _pool = place.serve();
    place.await_token();
    let work = ["work", &place.address, "--token-file", "token", "--slots", "1"];
    let stopped = Running(place.command(&work).spawn().unwrap());
    let script = "test -e begun && echo elsewhere || { touch begun; exec sleep 10; }";
    let submitted = place.ask(&["submit", "--array", "1-1", "--", "sh", "-c", script]);
    assert!(submitted.status.success(), "{submitted:?}");
    until("a task has begun", || place.folder.path().join("begun").exists());
    // Its connections stay open, but it sends nothing.
    let stop = format!("kill -STOP {}", stopped.0.id());
    assert!(Command::new("sh").args(["-c", &stop]).status().unwrap().success(), "{stop}");
    let _other = place.start(&work);
    assert!(place.ask(&["wait", "0"]).status.success());
    assert_eq!(text(&place.ask(&["output", "0"]).stdout), "elsewhere\n");
}

#[cfg(feature = "tls")]
#[test]
fn a_pool_over_tls_serves_those_that_speak_it() {
    let place = Place { tls: "token", ..Place::new() };
    let _pool = place.serve();
    let _work = place.work();
    let waited = place.ask(&["submit", "--array", "1-3", "--wait", "--", "echo", "output"]);
    assert!(waited.status.success(), "{waited:?}");
    let output = place.ask(&["output", "0", "--keep-order"]);
    assert_eq!(text(&output.stdout), "output 1\noutput 2\noutput 3\n", "{output:?}");
    // A client without TLS is told at once, however patient it is.
    let in_the_clear = Place { tls: "off", ..place };
    let refused = in_the_clear.ask(&["status", "--patience", "100h"]);
    assert!(
        refused.status.code() == Some(1) && text(&refused.stderr).contains("encrypts its connections"),
        "{refused:?}"
    );
}

#[test]
fn a_command_line_that_cannot_be_used_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let run = |words: &[&str]| command(folder.path(), words).output().unwrap();
    for (words, why) in [
        (&["serve", "--journal", "x"] as &[&str], "--token-file"),
        (&["work", "127.0.0.1:1"], "--token-file"),
        (&["serve", "--token-file", "t"], "--journal"),
        (&["work", "--token-file", "t"], "where is the pool"),
        (&["submit", "127.0.0.1:1", "--token-file", "t", "--", "true"], "--each-line"),
        (&["submit", "127.0.0.1:1", "--token-file", "t", "--array", "1-2"], "after --"),
        (&["output", "127.0.0.1:1", "--token-file", "t"], "which job"),
        (&["wait", "127.0.0.1:1", "--token-file", "t", "x"], "\"x\" is no number"),
        (&["work", "127.0.0.1:1", "--token-file", "t", "--idle", "5"], "\"5\" is no time"),
        (&["work", "127.0.0.1:1", "--token-file", "t", "--when-lost", "cry"], "--when-lost cry"),
    ] {
        let ended = run(words);
        assert_eq!(ended.status.code(), Some(2), "{words:?}: {ended:?}");
        assert!(text(&ended.stderr).contains(why), "{words:?}: {}", text(&ended.stderr));
    }
    std::fs::write(folder.path().join("letter"), "to somebody").unwrap();
    let foreign = run(&["serve", "--journal", "letter", "--token-file", "t", "--listen", "127.0.0.1:0"]);
    assert!(foreign.status.code() == Some(1) && text(&foreign.stderr).contains("letter"), "{foreign:?}");
    std::fs::write(folder.path().join("t"), "a secret of more than thirty-two characters").unwrap();
    let nobody = run(&["status", "127.0.0.1:1", "--token-file", "t", "--patience", "100ms"]);
    assert!(nobody.status.code() == Some(1) && text(&nobody.stderr).contains("127.0.0.1:1"), "{nobody:?}");
    for help in ["serve", "work", "submit", "output"] {
        assert!(text(&run(&[help, "--help"]).stdout).contains("--token-file"), "{help}");
    }
}
