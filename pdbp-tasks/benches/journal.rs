//! The cost of a journal: `cargo bench -p pdbp-tasks --features net --bench journal`.
//!
//! Runs the real pool with a journal in a file, and processors whose tasks take no time, on one thread. A million tasks are loaded, and half of
//! them ended, in groups of 1,000 and 4,000 results, each made durable by one commit. In turn with it runs a plain log: the same groups of as
//! many records of the same length, appended to a file and synced. Medians of three.

use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use pdbp_tasks::net::measure;

/// Job, number, position, and a result of 8 bytes, as in the journal.
const RECORD: usize = 32;

/// Bytes of memory that the process uses; 0 where the system does not report it.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

fn log(path: &Path, count: u64, group: usize) -> std::io::Result<Duration> {
    let mut file = File::create(path)?;
    let began = Instant::now();
    for first in (0..count).step_by(group) {
        let mut bytes = Vec::with_capacity(group * RECORD);
        for number in first..first + group as u64 {
            bytes.extend_from_slice(&number.to_le_bytes());
            bytes.extend_from_slice(&[7; RECORD - 8]);
        }
        file.write_all(&bytes)?;
        file.sync_data()?;
    }
    Ok(began.elapsed())
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    // `cargo test --bench` only checks that it runs.
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    let count = if is_bench { 1_000_000 } else { 10_000 };
    let folder = tempfile::tempdir_in(".")?;
    for group in [1000, 4000] {
        let (mut rates, mut logs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..3 {
            let path = folder.path().join(format!("{group}.{round}"));
            let before = resident();
            let mut queued = 0;
            let figures = measure::durable(&path, count, group, || queued = resident() - before)?;
            let log = log(&folder.path().join("log"), count / 2, group)?;
            let rate = |took: Duration| count as f64 / 2.0 / took.as_secs_f64();
            println!(
                "{count} tasks loaded in {:.2} s, {} bytes each; {} results in groups of {group}: {:.0} a second ({:.0} % of it in the store), a plain log {:.0}; pool again after {:.2} s",
                figures.loaded.as_secs_f64(),
                queued / count,
                count / 2,
                rate(figures.done),
                figures.stored.as_secs_f64() / figures.done.as_secs_f64() * 100.0,
                rate(log),
                figures.restored.as_secs_f64()
            );
            rates.push(rate(figures.done));
            logs.push(rate(log));
            ratios.push(log.as_secs_f64() / figures.done.as_secs_f64());
        }
        println!(
            "groups of {group}: {:.0} durable results a second, a plain log {:.0}, ratio {:.2}",
            median(rates),
            median(logs),
            median(ratios)
        );
    }
    Ok(())
}
