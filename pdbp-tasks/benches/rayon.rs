//! What a task costs beside `rayon::spawn`, in the same run, in turns: `cargo bench -p pdbp-tasks --bench rayon`.
//!
//! Tasks of rayon are closures in the memory of the process; those here go by messages through a pool on another node, and may be lost
//! and run again. Both give their results back to one thread. Prints the median of the times of a task, and of the ratios of turns that
//! follow each other. On a machine with other work both wait for it, and the ratios are what is left to compare.

use std::hint::black_box;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use pdbp::Builder;
use pdbp_tasks::{Error, Kind, Program, Tasks};

/// Turns of each.
const TURNS: usize = 9;

/// Computes for about so many nanoseconds.
fn work(rounds: u64) -> u64 {
    (0..rounds).fold(rounds, |sum, i| black_box(sum.wrapping_mul(31).wrapping_add(i)))
}

fn ours(tasks: &Tasks<'_>, kind: Kind<u64, u64>, count: u64, rounds: u64) -> Result<Duration, Error> {
    let began = Instant::now();
    let mut job = tasks.job("bench");
    job.each(kind, (0..count).map(move |_| rounds));
    let mut sum = 0u64;
    for done in job.results() {
        sum = sum.wrapping_add(done?.value);
    }
    black_box(sum);
    Ok(began.elapsed())
}

fn rayons(threads: &rayon::ThreadPool, count: u64, rounds: u64) -> Duration {
    let began = Instant::now();
    let (give, take) = mpsc::channel();
    for _ in 0..count {
        let give = give.clone();
        threads.spawn(move || give.send(work(rounds)).expect("it is read below"));
    }
    drop(give);
    black_box(take.into_iter().fold(0u64, u64::wrapping_add));
    began.elapsed()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Error> {
    let slots = std::thread::available_parallelism().map_or(1, usize::from);
    let cluster = Builder::new().nodes(2).start()?;
    let threads = rayon::ThreadPoolBuilder::new().num_threads(slots).build().map_err(Error::other)?;
    let mut program = Program::new("bench");
    let kind = program.kind("work", work);
    program.run_on(cluster.nodes(), slots, |tasks| {
        println!("{slots} at a time, medians of {TURNS} turns each");
        println!("rounds   tasks   pdbp-tasks, µs each   rayon, µs each   ratio");
        for (rounds, count) in [(0, 100_000), (2_500, 20_000), (25_000, 4_000), (250_000, 400)] {
            let mut times = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..TURNS {
                let (own, other) = (ours(tasks, kind, count, rounds)?, rayons(&threads, count, rounds));
                let each = |time: Duration| time.as_secs_f64() * 1e6 / count as f64;
                times.0.push(each(own));
                times.1.push(each(other));
                times.2.push(own.as_secs_f64() / other.as_secs_f64());
            }
            let (own, other, ratio) = (median(times.0), median(times.1), median(times.2));
            println!("{rounds:>6} {count:>7} {own:>21.3} {other:>16.3} {ratio:>7.2}");
        }
        Ok(())
    })
}
