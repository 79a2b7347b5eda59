//! The figures of a pool at the endpoint of its node.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::sync::mpsc;
use std::time::Duration;

use common::place::{Place, own_address, text};
use common::{finish, until};
use openmetrics_parser::openmetrics::parse_openmetrics;
use pdbp::Builder;
use pdbp_tasks::{Error, Program, Resources};
use serde_json::Value;

const SECRET: &str = "0123456789abcdef0123456789abcdef";
const SOON: Duration = Duration::from_secs(60);

/// Requests a page. Returns the whole answer, and its body.
fn get(address: SocketAddr, path: &str, more: &str) -> (String, String) {
    let mut answer = None;
    // The server refuses a request that does not come in time.
    until("there is an answer", || {
        answer = ask(address, path, more);
        answer.is_some()
    });
    answer.unwrap()
}

fn ask(address: SocketAddr, path: &str, more: &str) -> Option<(String, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok().filter(|_| !answer.starts_with("HTTP/1.1 408 "))?;
    let body = answer.split_once("\r\n\r\n")?.1.to_owned();
    Some((answer, body))
}

fn json(address: SocketAddr, more: &str) -> Value {
    let (answer, body) = get(address, "/tasks.json", more);
    serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

/// Checks that `/metrics` has these lines, and is well-formed.
fn has_lines(address: SocketAddr, more: &str, lines: &[&str]) {
    let body = get(address, "/metrics", more).1;
    parse_openmetrics(&body).unwrap_or_else(|error| panic!("{error}:\n{body}"));
    for line in lines {
        assert!(body.lines().any(|l| l == *line), "{line} is not in\n{body}");
    }
}

#[test]
fn a_program_shows_what_its_pool_does() {
    let cluster = Builder::new().nodes(2).metrics("127.0.0.1:0".into()).start().unwrap();
    let address = cluster.nodes()[0].endpoint().unwrap().address();
    assert!(get(address, "/tasks.json", "").0.contains("404 Not Found"));
    let (go, gone) = mpsc::channel::<()>();
    let gone = std::sync::Mutex::new(gone);
    let mut program = Program::new("shown");
    program.offer(Resources::none().memory(1 << 30).named("license", 3));
    let wait = program.declare::<bool, u64>("wait");
    program.define(wait, move |scope, fails| {
        let _ = gone.lock().unwrap().recv_timeout(SOON);
        if fails { scope.fail("on purpose") } else { scope.done(1) }
    });
    let ran = program.run_on(cluster.nodes(), 2, |tasks| {
        let mut job = tasks.job::<()>("a \"job\"");
        let needs = Resources::none().memory(1 << 20).named("license", 2);
        let first = job.task().needs(needs).add(wait, false)?;
        // The first processor may get the task before the second has announced itself.
        let all = |page: Value| page["running"] == 1 && page["processors"] == 2;
        until("it runs, and all are there", || all(json(address, "")));
        let page = json(address, "");
        assert_eq!((&page["busy"], &page["queued"]), (&1.into(), &0.into()));
        assert_eq!(page["jobs"][0]["name"], "a \"job\"");
        assert_eq!((&page["jobs"][0]["tasks"], &page["jobs"][0]["open"]), (&1.into(), &true.into()));
        let node = &page["nodes"][0];
        assert_eq!(
            (&node["node"], &node["processors"], &node["offers"]["cpus"]),
            (&1.into(), &2.into(), &2.into())
        );
        assert_eq!(page["journal"], Value::Null);
        let lines = [
            "# TYPE pdbp_tasks_handed_out counter",
            "# UNIT pdbp_tasks_unread_bytes bytes",
            "pdbp_section_up{section=\"tasks\"} 1.0",
            "pdbp_tasks_running 1.0",
            "pdbp_tasks_handed_out_total 1.0",
            "pdbp_tasks_offered{resource=\"cpus\"} 2.0",
            "pdbp_tasks_offered{resource=\"license\"} 3.0",
            "pdbp_tasks_used{resource=\"license\"} 2.0",
            "pdbp_tasks_offered_memory_bytes 1073741824.0",
            "pdbp_tasks_used_memory_bytes 1048576.0",
            "pdbp_tasks_jobs 1.0",
        ];
        has_lines(address, "", &lines);
        let second = job.add(wait, true)?;
        go.send(()).and_then(|()| go.send(())).map_err(Error::other)?;
        assert_eq!(job.wait(&first)?, 1);
        assert!(matches!(job.wait(&second), Err(Error::Task { .. })));
        has_lines(address, "", &["pdbp_tasks_ended_total 2.0", "pdbp_tasks_failed_total 1.0"]);
        let page = json(address, "");
        assert_eq!((&page["jobs"][0]["ended"], &page["jobs"][0]["failed"]), (&2.into(), &1.into()));
        drop(job);
        assert_eq!(json(address, "")["jobs"], Value::Array(Vec::new()));
        Ok(())
    });
    ran.unwrap();
    assert!(get(address, "/tasks.json", "").0.contains("404 Not Found"));
}

#[test]
fn a_pool_that_is_served_shows_its_journal_to_those_who_know_the_secret() {
    let place = Place::new();
    let metrics = own_address();
    let serve = ["serve", "--journal", "jobs", "--token-file", "token", "--listen", &place.address];
    let serve = [&serve[..], &["--metrics", &metrics]].concat();
    let refused = finish(place.command(&serve).stderr(Stdio::piped()).spawn().unwrap());
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(text(&refused.stderr).contains("--client-token-file"), "{refused:?}");
    fs::write(place.folder.path().join("secret"), SECRET).unwrap();
    let serve = [&serve[..], &["--client-token-file", "secret"]].concat();
    let pool = place.command(&serve).stderr(Stdio::piped()).spawn().unwrap();
    let mut pool = common::place::Running(pool);
    let mut said = BufReader::new(pool.0.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(said.any(|line| line.contains("serving")));
    let (address, bearer) = (metrics.parse().unwrap(), format!("Authorization: Bearer {SECRET}\r\n"));
    assert!(get(address, "/tasks.json", "").0.contains("401 Unauthorized"));
    assert!(
        place
            .ask(&["submit", "--array", "1-20000", "--name", "many", "--", "sh", "-c", "exit 1"])
            .status
            .success()
    );
    let page = json(address, &bearer);
    // More than the pool holds in memory.
    assert_eq!((&page["queued"], &page["running"], &page["ended"]), (&20_000.into(), &0.into(), &0.into()));
    let job = &page["jobs"][0];
    assert_eq!((&job["name"], &job["tasks"], &job["open"]), (&"many".into(), &20_000.into(), &false.into()));
    assert_eq!(page["journal"]["term"], 1);
    let work = place.work();
    until("some have failed", || json(address, &bearer)["failed"].as_u64().is_some_and(|failed| failed > 3));
    drop(work);
    assert!(place.ask(&["cancel", "0"]).status.success());
    let page = json(address, &bearer);
    assert_eq!((&page["queued"], &page["ended"]), (&0.into(), &page["failed"]), "{page}");
    has_lines(
        address,
        &bearer,
        &["pdbp_tasks_journal_up 1.0", "pdbp_tasks_journal_term 1.0", "pdbp_tasks_jobs 0.0"],
    );
    let body = get(address, "/metrics", &bearer).1;
    let bytes = body.lines().find_map(|line| line.strip_prefix("pdbp_tasks_journal_bytes "));
    assert!(bytes.and_then(|bytes| bytes.parse::<f64>().ok()).is_some_and(|bytes| bytes > 0.0), "{body}");
}
