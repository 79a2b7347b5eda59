//! What else was aimed at, in one process: `cargo bench -p pdbp-tasks --bench goals`. One of eight processors ten times slower, and how long it takes
//! from joining to the first task.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pdbp::Builder;
use pdbp_tasks::{Error, Program};

const SLOTS: usize = 8;
const TASK: Duration = Duration::from_millis(5);

thread_local! {
    /// Which of the processors this thread is, in the order in which they began.
    static SLOT: Cell<Option<usize>> = const { Cell::new(None) };
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Seconds for 800 tasks of 5 ms by so many processors, the first of which may be slow.
fn with_slow(slots: usize, slow: u32) -> Result<f64, Error> {
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
        job.each(kind, 0..800);
        for done in job.results() {
            done?;
        }
        took = began.elapsed().as_secs_f64();
        Ok(())
    })?;
    Ok(took)
}

/// Milliseconds from the moment at which processors may join until each has begun a task, for each of them.
fn joining(slots: usize) -> Result<f64, Error> {
    let cluster = Builder::new().nodes(2).start()?;
    let mut program = Program::new("join");
    let (joins, begun) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (may, first) = (Arc::clone(&joins), Arc::clone(&begun));
    // It is asked every 20 ms; the first that is told so says when that was.
    let opened = Arc::new(std::sync::Mutex::new(None));
    let at = Arc::clone(&opened);
    program.join_when(move || {
        let is_open = may.load(Ordering::Relaxed);
        if is_open && let Ok(mut at) = at.lock() {
            at.get_or_insert_with(Instant::now);
        }
        is_open
    });
    let kind = program.kind("wait", move |number: u64| {
        first.fetch_add(1, Ordering::Release);
        while first.load(Ordering::Acquire) < slots {
            thread::yield_now();
        }
        number
    });
    let mut took = 0.0;
    program.run_on(cluster.nodes(), slots, |tasks| {
        let mut job = tasks.job("join");
        job.each(kind, 0..slots as u64);
        joins.store(true, Ordering::Relaxed);
        for done in job.results() {
            done?;
        }
        let began = opened.lock().ok().and_then(|at| *at);
        took = began.map_or(f64::NAN, |began| began.elapsed().as_secs_f64() * 1e3);
        Ok(())
    })?;
    Ok(took / slots as f64)
}

fn main() -> Result<(), Error> {
    let of = |slots, slow| (0..3).map(|_| with_slow(slots, slow)).collect::<Result<Vec<_>, _>>().map(median);
    let (even, slow, without) = (of(SLOTS, 1)?, of(SLOTS, 10)?, of(SLOTS - 1, 1)?);
    println!(
        "{SLOTS} processors, 800 tasks of 5 ms, s: all alike {even:.3}; one ten times slower {slow:.3}; without that one {without:.3}; ratio {:.2}",
        slow / without
    );
    for slots in [1, SLOTS] {
        let each = (0..9).map(|_| joining(slots)).collect::<Result<Vec<_>, _>>().map(median)?;
        println!(
            "{slots} processors join: {each:.2} ms each until all have had a first task, results included (up to 20 ms of that is how often it is looked)"
        );
    }
    Ok(())
}
