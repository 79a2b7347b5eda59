//! Unread results stop the hand-out, or lie in a file, and do not fill memory.

mod common;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::place::{Place, text};
use common::until;
use pdbp::Builder;
use pdbp_tasks::{Limits, Program, Tasks};

const LENGTH: usize = 100 << 10;
/// How many results may be unread.
const MOST: usize = 10;
/// How many more may be under way: each of two processors runs one and has one in reserve, and one arrives that exceeds the bound.
const UNDER_WAY: usize = 5;

fn is_held_back(tasks: &Tasks<'_>) -> bool {
    tasks.troubles().iter().any(|line| line.contains("wait to be read") && line.contains("unread_bytes"))
}

#[test]
fn a_client_that_computes_for_long_finds_few_results_and_all_when_it_reads_them() {
    const TASKS: usize = 200;
    let cluster = Builder::new().nodes(3).start().unwrap();
    let mut program = Program::new("unread");
    let begun = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&begun);
    let long = program.kind("long", move |n: usize| {
        counted.fetch_add(1, Ordering::SeqCst);
        // Long enough that few are handed out at a time.
        std::thread::sleep(std::time::Duration::from_millis(3));
        format!("{n:0>8}{}", " ".repeat(LENGTH - 8))
    });
    let length =
        program.kind("length", |((), texts): ((), Vec<String>)| texts.iter().map(String::len).sum::<usize>());
    program.limits(Limits { unread_bytes: MOST * (LENGTH + 80), ..Limits::default() });
    let client = |tasks: &Tasks<'_>| {
        let mut job = tasks.job("unread");
        job.each(long, 0..TASKS);
        let first = job.results().next().expect("there are some")?;
        until("it is held back", || is_held_back(tasks));
        // Meanwhile tasks that others may need are computed, and so are those of a client that reads.
        let parts: Vec<_> = (0..20).map(|n| job.add(long, n)).collect::<Result<_, _>>()?;
        let total = job.join(length, (), &parts)?;
        assert_eq!(job.wait(&total)?, 20 * LENGTH);
        let mut other = tasks.job("read");
        other.each(long, 0..TASKS);
        assert_eq!(other.results().in_order().filter(Result::is_ok).count(), TASKS);
        assert!(is_held_back(tasks) && tasks.unread_bytes() > 0);
        let of_the_first = begun.load(Ordering::SeqCst) - 20 - TASKS;
        assert!(of_the_first <= 2 * MOST + UNDER_WAY + 32, "{of_the_first} have begun, and one was read");
        let mut seen = [false; TASKS];
        seen[first.number as usize] = true;
        for done in job.results() {
            let done = done?;
            assert_eq!(done.value.trim_end().parse::<u64>().unwrap(), done.number);
            assert!(!std::mem::replace(&mut seen[done.number as usize], true), "{} twice", done.number);
        }
        assert!(seen.iter().all(|seen| *seen) && !is_held_back(tasks));
        Ok(())
    };
    program.run_on(cluster.nodes(), 1, client).unwrap();
}

/// The most memory that a process has used, in KiB.
fn most_memory(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux says it");
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_pool_without_a_journal_has_results_that_nobody_reads_in_a_file_and_not_in_its_memory() {
    const TASKS: u64 = 300;
    const BYTES: usize = 1_000_000;
    let place = Place::new();
    let pool = place.start(&["serve", "--memory", "--token-file", "token", "--listen", &place.address]);
    let _work = place.work();
    let script = format!("head -c {BYTES} /dev/zero");
    let array = format!("1-{TASKS}");
    let waited = place.ask(&["submit", "--array", &array, "--wait", "--", "sh", "-c", &script]);
    assert!(waited.status.success(), "{waited:?}");
    let most = most_memory(pool.0.id());
    assert!(most < 150 << 10, "{most} KiB, with {TASKS} results of {BYTES} bytes");
    let output = place.ask(&["output", "0", "7"]);
    assert!(output.status.success() && output.stdout.len() == BYTES, "{}", text(&output.stderr));
    assert!(place.ask(&["forget", "0"]).status.success());
}
