//! The cost of the pool itself, without threads, parts or a network: `cargo bench -p pdbp-tasks --bench pool`.
//!
//! Runs the real pool and real processors in virtual time, so that 10,000 processors fit into one thread. Measures the processor time of a task,
//! both in all (pool, processors and the queue of events) and within the pool alone, and the memory of queued tasks.

#[path = "../tests/virtual_time/cluster.rs"]
#[expect(dead_code, reason = "the tests look at more of it")]
mod cluster;

use std::time::{Duration, Instant};

use cluster::{Behaviour, Cluster};
use pdbp_tasks::Resources;
use pdbp_tasks::pool::{Limits, NewTask, Pool};
use pdbp_tasks::wire::{Bytes, KindId, Options};
use rustix::time::{ClockId, clock_gettime};

/// Processor time of this process so far.
fn computed() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Bytes of memory that the process uses; 0 where the system does not report it.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

fn queued(count: u64) {
    let before = resident();
    let mut pool = Pool::new(1, 1, Limits::default());
    let job = pool.begin();
    let began = Instant::now();
    for input in 0..count {
        let input = Bytes::from(&input.to_le_bytes()[..]);
        let (options, needs) = (Options::default(), &Resources::none());
        let new = NewTask { kind: KindId(0), options, needs, input, join: None, after: &[], keep: false };
        pool.add(job, &new).expect("there is room");
    }
    let each = began.elapsed().as_nanos() as f64 / count as f64;
    let bytes = (resident() - before) / count;
    println!("{count} queued tasks with inputs of 8 bytes: {bytes} bytes each, added in {each:.0} ns each");
}

fn virtual_time(processors: usize, count: u64, runs: Duration) {
    let mut cluster = Cluster::new(Limits::default(), move |_| Behaviour { runs, kills: false });
    (0..count).for_each(|input| {
        cluster.add(input, &Resources::none());
    });
    for first in (0..processors).step_by(8) {
        cluster.join((processors - first).min(8), &Resources::none().cpus(8));
    }
    let began = computed();
    let outcomes = cluster.run(8);
    let took = computed() - began;
    assert!(outcomes.len() as u64 == count && outcomes.iter().all(|outcome| outcome.result.is_ok()));
    let busy = runs.as_secs_f64() * count as f64 / (cluster.now.as_secs_f64() * processors as f64);
    println!(
        "{processors:>6} processors, {count} tasks of {runs:?}: {:.1} s computed, {:.2} µs a task, of these {:.2} in the pool; processors busy {:.0} %",
        took.as_secs_f64(),
        took.as_secs_f64() * 1e6 / count as f64,
        cluster.in_pool.as_secs_f64() * 1e6 / count as f64,
        busy * 100.0
    );
}

fn main() {
    // `cargo test --bench` only checks that it runs.
    let scale = if std::env::args().any(|argument| argument == "--bench") { 1 } else { 1000 };
    queued(1_000_000 / scale);
    for processors in [10, 1000, 10_000] {
        virtual_time(processors, 1_000_000 / scale, Duration::from_millis(1));
        virtual_time(processors, 1_000_000 / scale, Duration::from_millis(50));
    }
}
