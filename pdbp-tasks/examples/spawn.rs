//! The least that commands cost: two threads that start them and wait for their ends, with what they say read, and nothing else. Arguments: how many,
//! and the command. A baseline of `benches/tasks-peers`.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let count: usize = words.next().ok_or("how many? Arguments: COUNT COMMAND")?.parse()?;
    let command = words.next().ok_or("which command? Arguments: COUNT COMMAND")?;
    let left = AtomicUsize::new(count);
    let take = || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while take() {
                    if let Err(error) = Command::new(&command).stdin(Stdio::null()).output() {
                        eprintln!("spawn: {command}: {error}");
                    }
                }
            });
        }
    });
    Ok(())
}
