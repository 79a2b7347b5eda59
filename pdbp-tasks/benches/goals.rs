//! Other goals, in one process: `cargo bench -p pdbp-tasks --bench goals`. Measures the cost of one processor in eight being ten times slower,
//! and the time that processors take from joining to their first task.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pdbp::Builder;
use pdbp_tasks::{Error, Program};

const SLOTS: usize = 8;
const TASK: Duration = Duration::from_millis(5);
/// How often threads that wait for each other poll.
const LOOK: Duration = Duration::from_micros(50);

thread_local! {
    /// The number of this thread's processor, in the order in which they began.
    static SLOT: Cell<Option<usize>> = const { Cell::new(None) };
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Seconds for `count` tasks of 5 ms on `slots` processors, the first of which is `slow` times slower.
fn with_slow(slots: usize, slow: u32, count: u64) -> Result<f64, Error> {
    let cluster = Builder::new().nodes(2).start()?;
    let mut program = Program::new("slow");
    let begun = AtomicUsize::new(0);
    let kind = program.kind("sleep", move |number: u64| {
        let slot = SLOT.get().unwrap_or_else(|| begun.fetch_add(1, Ordering::Relaxed));
        SLOT.set(Some(slot));
        thread::sleep(if slot == 0 { TASK * slow } else { TASK });
        number
    });
    let mut took = 0.0;
    program.run_on(cluster.nodes(), slots, |tasks| {
        let began = Instant::now();
        let mut job = tasks.job("slow");
        job.each(kind, 0..count);
        for done in job.results() {
            done?;
        }
        took = began.elapsed().as_secs_f64();
        Ok(())
    })?;
    Ok(took)
}

/// Milliseconds from when processors may join until each has begun a task, divided by their number.
fn joining(slots: usize) -> Result<f64, Error> {
    let cluster = Builder::new().nodes(2).start()?;
    let mut program = Program::new("join");
    let (joins, begun) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (may, all) = (Arc::clone(&joins), Arc::clone(&begun));
    program.join_when(move || {
        while !may.load(Ordering::Acquire) {
            thread::sleep(LOOK);
        }
        true
    });
    // No task ends before all have begun, so each processor gets one.
    let kind = program.kind("wait", move |_: u64| {
        all.fetch_add(1, Ordering::AcqRel);
        while all.load(Ordering::Acquire) < slots {
            thread::sleep(LOOK);
        }
    });
    let mut took = 0.0;
    program.run_on(cluster.nodes(), slots, |tasks| {
        let mut job = tasks.job("join");
        job.each(kind, 0..slots as u64);
        let mut results = job.results();
        joins.store(true, Ordering::Release);
        let began = Instant::now();
        results.try_for_each(|done| done.map(drop))?;
        took = began.elapsed().as_secs_f64() * 1e3;
        Ok(())
    })?;
    Ok(took / slots as f64)
}

fn main() -> Result<(), Error> {
    // `cargo test --bench` only checks that it runs.
    let (turns, count) =
        if std::env::args().any(|argument| argument == "--bench") { (5, 1600) } else { (1, 16) };
    let of =
        |slots, slow| (0..turns).map(|_| with_slow(slots, slow, count)).collect::<Result<_, _>>().map(median);
    let (even, slow, without) = (of(SLOTS, 1)?, of(SLOTS, 10)?, of(SLOTS - 1, 1)?);
    println!(
        "{SLOTS} processors, {count} tasks of {TASK:?}: {even:.3} s; one ten times slower: {slow:.3} s; without that one: {without:.3} s; \
         ratio {:.3}",
        slow / without
    );
    for slots in [1, SLOTS] {
        let each = (0..3 * turns).map(|_| joining(slots)).collect::<Result<_, _>>().map(median)?;
        println!(
            "{slots} processors join: {each:.2} ms each until all have had a first task, their results included"
        );
    }
    Ok(())
}
