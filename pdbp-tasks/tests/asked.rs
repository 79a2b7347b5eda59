//! Requests to a pool: `pdbp-tasks submit`, `output` and so on.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::Duration;

use common::place::{Place, Running, command, text};
use common::{finish, send, until};
use pdbp::{Builder, PartKind};
use pdbp_tasks::wire::{Answer, Down, Request, Up};

#[test]
fn the_output_of_a_task_that_has_none_is_not_that_of_another() {
    let place = Place::new();
    let _pool = place.serve();
    place.await_token();
    let _work = place.start(&["work", &place.address, "--token-file", "token", "--slots", "4"]);
    let script = "test {} = 3 && exec echo three; exec sleep 1000";
    assert!(place.ask(&["submit", "--array", "0-9", "--", "sh", "-c", script]).status.success());
    let three = place.ask(&["output", "0", "3", "--follow"]);
    assert_eq!((text(&three.stdout), three.status.code()), ("three\n", Some(0)), "{three:?}");
    let early = place.ask(&["output", "0", "1"]);
    assert!(early.status.code() == Some(1) && text(&early.stderr).contains("has not ended"), "{early:?}");
    assert!(place.ask(&["cancel", "0"]).status.success());
    for words in [&["output", "0", "1"] as &[&str], &["output", "0", "1", "--follow"]] {
        let none = place.ask(&[words, &["--to", "out-{}.txt"]].concat());
        assert!(none.stdout.is_empty() && none.status.code() == Some(1), "{words:?}: {none:?}");
        let why = "task 1 had not ended when job 0 was cancelled";
        assert!(text(&none.stderr).contains(why), "{words:?}: {none:?}");
    }
    assert!(!place.folder.path().join("out-3.txt").exists());
    assert_eq!(text(&place.ask(&["output", "0", "3"]).stdout), "three\n");
    for words in [&["output", "0"] as &[&str], &["output", "0", "--follow"]] {
        let part = place.ask(words);
        assert_eq!((text(&part.stdout), part.status.code()), ("three\n", Some(1)), "{words:?}: {part:?}");
        let why = "job 0 was cancelled: 1 of 10 tasks had ended";
        assert!(text(&part.stderr).contains(why), "{words:?}: {part:?}");
    }
    // Who reads only the first line of an answer leaves the rest unwritten.
    let mut explain = place.command(&["explain", &place.address, "--token-file", "token", "0"]);
    let (unread, stdout) = std::io::pipe().unwrap();
    drop(unread);
    let unread = explain.stdout(stdout).stderr(Stdio::piped()).output().unwrap();
    assert!(unread.status.code() == Some(1) && text(&unread.stderr).contains("Broken pipe"), "{unread:?}");
    let unknown = place.ask(&["output", "0", "10", "--follow"]);
    let why = text(&unknown.stderr);
    assert!(
        unknown.status.code() == Some(1) && why.contains("task 10 does not exist in job 0, which has 10"),
        "{why}"
    );
    let nowhere = place.ask(&["output", "0", "--to", "no/such/out-{}.txt"]);
    let why = text(&nowhere.stderr);
    assert!(nowhere.status.code() == Some(1) && why.contains("cannot write no/such/out-3.txt"), "{why}");
}

/// Its answer may be on its way, and nobody would know of the job.
#[test]
fn who_is_interrupted_before_the_pool_has_answered_hears_that_a_job_may_be_open() {
    let place = Place::new();
    let token = place.folder.path().join("token");
    let builder = Builder::new().token_file(token).nodes(3).listen(place.address.clone()).found(true);
    let cluster = builder.lease(Duration::from_secs(60)).start().unwrap();
    let part = cluster.nodes()[0].register("tasks", PartKind::Cpu).unwrap();
    let submit = ["submit", &place.address, "--token-file", "token", "--array", "1-9", "--name", "nine"];
    let mut submit = place.command(&[&submit[..], &["--", "true"]].concat());
    let submit = submit.stderr(Stdio::piped()).spawn().unwrap();
    loop {
        // A message is a byte 0 and the encoded content.
        let message = part.recv().unwrap();
        match postcard::from_bytes(&message[1..]).unwrap() {
            Up::Request { id, request: Request::Journal } => {
                let answer = Down::Answer { id, answer: Answer::Journal(1) };
                let answer = [&[0], &*postcard::to_stdvec(&answer).unwrap()].concat();
                part.send(message.source(), &answer).unwrap();
                part.flush();
            }
            Up::Request { request: Request::Begin { .. }, .. } => break,
            other => panic!("{other:?}"),
        }
    }
    send("INT", &submit);
    let ended = finish(submit);
    assert_eq!(ended.status.signal(), Some(2), "{ended:?}");
    assert!(text(&ended.stderr).contains("may have begun job \"nine\""), "{ended:?}");
}

#[test]
fn a_job_whose_submission_was_interrupted_can_be_closed() {
    let place = Place::new();
    let _pool = place.serve();
    place.await_token();
    let submit = [
        "submit",
        &place.address,
        "--token-file",
        "token",
        "--patience",
        "60s",
        "--each-line",
        "-",
        "--",
        "true",
    ];
    let submit = place.command(&submit).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("the job is begun", || text(&place.ask(&["status"]).stdout).contains("open"));
    send("INT", &submit);
    let ended = finish(submit);
    assert_eq!(ended.status.signal(), Some(2), "{ended:?}");
    // The pool's answer, with the number, may be on its way.
    assert!(text(&ended.stderr).contains("open"), "{ended:?}");
    assert_eq!(text(&place.ask(&["close", "0"]).stdout), "0 tasks in all\n");
    assert!(place.ask(&["wait", "0"]).status.success());
}

#[test]
fn each_try_of_a_command_has_its_limit_and_the_time_until_it_is_killed() {
    let place = Place::new();
    let _pool = place.serve();
    let _work = place.work();
    let script = "trap '' TERM; echo begun; sleep 1000";
    let limited =
        ["--array", "1-1", "--limit", "100ms", "--retries", "1", "--wait", "--", "sh", "-c", script];
    let ended = place.ask(&[&["submit"], &limited[..]].concat());
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    let output = place.ask(&["output", "0"]);
    assert!(text(&output.stderr).contains("within its limit of 100ms"), "{output:?}");
}

#[test]
fn a_process_that_cannot_join_says_why() {
    let place = Place::new();
    let _pool = place.serve();
    place.await_token();
    let work = |token: &str, lost: &str| {
        let words = ["work", &place.address, "--token-file", token, "--when-lost", lost];
        place.command(&words).stderr(Stdio::piped()).spawn().unwrap()
    };
    fs::write(place.folder.path().join("other"), "a secret of more than thirty-two characters").unwrap();
    // It reports the reason at once, however long it would wait.
    let mut waits = Running(work("other", "wait=100h"));
    let mut said = BufReader::new(waits.0.stderr.take().unwrap()).lines().map_while(Result::ok);
    let why = said.find(|line| line.contains("does not know the token"));
    assert!(why.is_some() && waits.0.try_wait().unwrap().is_none());
    // And again at the end. (A missing token file may appear; one that holds no secret will not start to.)
    let ended = finish(work("nowhere", "wait=1s"));
    let why = text(&ended.stderr);
    assert!(why.matches("cannot use the token in nowhere").count() == 2, "{why}");
    assert!(ended.status.code() == Some(1) && why.contains("no pool could be reached for"), "{why}");
    fs::write(place.folder.path().join("short"), "12345").unwrap();
    let ended = finish(work("short", "wait=100h"));
    assert!(text(&ended.stderr).contains("the token of 5 characters in short"), "{ended:?}");
}

#[test]
fn a_command_that_has_no_result_does_not_end_the_others() {
    // Three processes die of it; then it is given up.
    let place = Place::new();
    let run = ["run", "--array", "0-19", "--slots", "1", "--", "sh", "-c"];
    let script = "test {} != 3 || kill -KILL $PPID; echo {}";
    let start = |reach: &str| {
        let mut command = place.command(&[&run[..], &[script]].concat());
        command
            .env(reach, &place.address)
            .env("PDBP_NODES", "6")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let others: Vec<_> = (0..5).map(|_| start("PDBP_JOIN")).collect();
    let ended = finish(start("PDBP_LISTEN"));
    others.into_iter().for_each(|other| drop(finish(other)));
    let mut lines: Vec<u32> = text(&ended.stdout).lines().map(|line| line.parse().unwrap()).collect();
    lines.sort_unstable();
    assert_eq!(lines, (0..20).filter(|number| *number != 3).collect::<Vec<_>>(), "{ended:?}");
    let why = text(&ended.stderr);
    assert!(ended.status.code() == Some(1), "{ended:?}");
    assert!(why.contains("task 3: ") && why.contains("1 failed"), "{why}");
}

#[test]
fn a_question_that_cannot_be_asked_says_why() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("t"), "a secret of more than thirty-two characters").unwrap();
    let ask = |words: &[&str]| {
        let reach = [words[0], "127.0.0.1:1", "--token-file", "t"];
        command(folder.path(), &[&reach, &words[1..]].concat()).output().unwrap()
    };
    for (words, why) in [
        (&["cancel", "1", "2"] as &[&str], "\"2\""),
        (&["retry", "1", "2"], "\"2\""),
        (&["status", "1", "2"], "\"2\""),
        (&["report", "1"], "\"1\""),
        (&["wait", "5000000000"], "job 5000000000 does not exist"),
        (&["output", "1", "--to", "out.txt"], "--to out.txt: put {}"),
    ] {
        let ended = ask(words);
        assert_eq!(ended.status.code(), Some(2), "{words:?}: {ended:?}");
        assert!(text(&ended.stderr).contains(why), "{words:?}: {}", text(&ended.stderr));
    }
    // Without a pool the timeout holds, too.
    let waited = ask(&["wait", "1", "--timeout", "200ms"]);
    assert!(waited.status.code() == Some(1) && text(&waited.stderr).contains("127.0.0.1:1"), "{waited:?}");
}

/// Jobs are named after their commands unless the client says otherwise, and a script has lines.
#[test]
fn a_job_is_a_line_of_the_status_whatever_its_name() {
    let place = Place::new();
    let _pool = place.serve();
    place.await_token();
    let names = ["echo one\necho two", "\u{1b}[2J\u{9b}2J"];
    for name in names {
        let submitted = place.ask(&["submit", "--array", "1-1", "--name", name, "--", "true"]);
        assert!(submitted.status.success(), "{submitted:?}");
    }
    let status = place.ask(&["status"]);
    let said = text(&status.stdout);
    assert_eq!(said.lines().count(), 2 + names.len(), "{said}");
    assert!(said.contains("  echo one\\necho two\n") && said.contains("  \\u{1b}[2J\\u{9b}2J\n"), "{said}");
}
