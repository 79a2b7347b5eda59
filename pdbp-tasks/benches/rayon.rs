//! The cost of a task compared with `rayon::spawn`, alternating in the same run: `cargo bench -p pdbp-tasks --bench rayon`.
//!
//! Rayon's tasks are closures in the memory of the process. Those here travel as messages through a pool on another node, and may be lost and run
//! again. Both return their results to one thread. Prints medians: of the time per task, of the processor time of all threads per task, and of
//! the ratios of consecutive turns. On a machine with other work only the processor times can be compared.

use std::hint::black_box;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use pdbp::Builder;
use pdbp_tasks::{Error, Kind, Program, Tasks};
use rustix::time::{ClockId, clock_gettime};

/// Turns of each.
const TURNS: usize = 9;

/// Computes for about this many nanoseconds.
fn work(rounds: u64) -> u64 {
    (0..rounds).fold(rounds, |sum, i| black_box(sum.wrapping_mul(31).wrapping_add(i)))
}

/// Elapsed time, and processor time of all threads of the process, in seconds.
#[derive(Clone, Copy)]
struct Times([f64; 2]);

/// The clocks at the start of a measurement.
struct Clocks(Instant, Duration);

impl Clocks {
    fn start() -> Self {
        Self(Instant::now(), Self::computed())
    }

    fn computed() -> Duration {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    fn times(&self) -> Times {
        Times([self.0.elapsed().as_secs_f64(), (Self::computed() - self.1).as_secs_f64()])
    }
}

fn ours(tasks: &Tasks<'_>, kind: Kind<u64, u64>, count: u64, rounds: u64) -> Result<Times, Error> {
    let began = Clocks::start();
    let mut job = tasks.job("bench");
    job.each(kind, (0..count).map(move |_| rounds));
    let mut sum = 0u64;
    for done in job.results() {
        sum = sum.wrapping_add(done?.value);
    }
    black_box(sum);
    Ok(began.times())
}

fn rayons(threads: &rayon::ThreadPool, count: u64, rounds: u64) -> Times {
    let began = Clocks::start();
    let (give, take) = mpsc::channel();
    for _ in 0..count {
        let give = give.clone();
        threads.spawn(move || give.send(work(rounds)).expect("it is read below"));
    }
    drop(give);
    black_box(take.into_iter().fold(0u64, u64::wrapping_add));
    began.times()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Error> {
    // `-- 8` sets the number of slots, by default one for each processor of the machine.
    let asked = std::env::args().skip(1).find_map(|word| word.parse().ok());
    let slots = asked.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let cluster = Builder::new().nodes(2).start()?;
    let threads = rayon::ThreadPoolBuilder::new().num_threads(slots).build().map_err(Error::other)?;
    let mut program = Program::new("bench");
    let kind = program.kind("work", work);
    program.run_on(cluster.nodes(), slots, |tasks| {
        println!("{slots} at a time, medians of {TURNS} turns each");
        println!(
            "rounds   tasks   µs each: pdbp-tasks   rayon   ratio   computed: pdbp-tasks   rayon   ratio"
        );
        for (rounds, count) in
            [(0, 100_000), (2_500, 20_000), (7_500, 10_000), (25_000, 4_000), (75_000, 1_500), (250_000, 400)]
        {
            let mut turns = Vec::new();
            for _ in 0..TURNS {
                turns.push((ours(tasks, kind, count, rounds)?, rayons(&threads, count, rounds)));
            }
            print!("{rounds:>6} {count:>7}");
            for (clock, width) in [(0, 21), (1, 23)] {
                let each = |times: Times| times.0[clock] * 1e6 / count as f64;
                let own = median(turns.iter().map(|(own, _)| each(*own)).collect());
                let other = median(turns.iter().map(|(_, other)| each(*other)).collect());
                let ratio = median(turns.iter().map(|(own, other)| each(*own) / each(*other)).collect());
                print!(" {own:>width$.3} {other:>7.3} {ratio:>7.2}");
            }
            println!();
        }
        let mut job = tasks.job::<()>("there and back");
        let mut each = Vec::new();
        for _ in 0..2000 {
            let began = Instant::now();
            let task = job.add(kind, 0)?;
            job.wait(&task)?;
            each.push(began.elapsed().as_secs_f64() * 1e6);
        }
        println!("one task there and back: {:.1} µs, the median of {}", median(each.clone()), each.len());
        Ok(())
    })
}
