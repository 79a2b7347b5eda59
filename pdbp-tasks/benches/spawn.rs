//! The least that commands can cost, as a baseline for `benches/tasks-peers`: two threads that only start commands, wait for their ends and read
//! their outputs: `cargo bench -p pdbp-tasks --bench spawn -- 1000 /bin/true`. As in the other measurements each command has a number as its
//! argument: with an argument, `true` reads its locale before it ends, which doubles its time.
//! `true` reads its locale before it ends, which takes it as long again.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

/// Runs a command this often, and returns the mean time of one in microseconds.
fn each(count: usize, command: &str) -> f64 {
    let left = AtomicUsize::new(count);
    let take = || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
    let began = Instant::now();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Ok(number) = take() {
                    let output = Command::new(command).arg(number.to_string()).stdin(Stdio::null()).output();
                    assert!(output.is_ok_and(|output| output.status.success()), "`{command}` has failed");
                }
            });
        }
    });
    began.elapsed().as_secs_f64() * 1e6 / count as f64
}

fn main() {
    let mut words = std::env::args().skip(1).filter(|word| !word.starts_with("--"));
    let count = words.next().and_then(|word| word.parse().ok()).unwrap_or(10);
    let command = words.next().unwrap_or_else(|| "/bin/true".to_owned());
    let mut times = [0; 3].map(|_| each(count, &command));
    times.sort_by(f64::total_cmp);
    println!("{:<40} {:>8.0} µs each", "two threads that spawn, bare", times[1]);
}
