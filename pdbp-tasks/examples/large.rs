//! Results of any length, in little memory: `cargo run --release -p pdbp-tasks --example large [COUNT] [MIB] [FOLDER] [--plain]`, or under `mpirun`.
//!
//! Each of COUNT tasks writes MIB MiB, and the client adds up the bytes. With `--plain` the bytes are ordinary results, for comparison, which
//! pass through the memory of every process. The file for large values is created in FOLDER, by default the current one.

use std::io::{Read, Write};
use std::time::Instant;

use pdbp_tasks::{Error, Large, Program, Scope};

const BLOCK: usize = 64 << 10;

fn write(scope: &Scope<'_>, seed: u64, mib: u64) -> std::io::Result<Large> {
    let mut writer = scope.write_large()?;
    let mut block = [0; BLOCK];
    for i in 0..mib << 20 >> 16 {
        block.fill((seed + i) as u8);
        writer.write_all(&block)?;
    }
    writer.finish()
}

fn sum(reader: &mut dyn Read) -> std::io::Result<u64> {
    let (mut block, mut sum) = ([0; BLOCK], 0);
    loop {
        match reader.read(&mut block)? {
            0 => return Ok(sum),
            count => sum += block.iter().take(count).map(|byte| u64::from(*byte)).sum::<u64>(),
        }
    }
}

/// The most memory that this process has used, in MiB, if the system reports it.
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? >> 10)
}

fn main() -> Result<(), Error> {
    let (plain, words): (Vec<_>, Vec<_>) = std::env::args().skip(1).partition(|word| word == "--plain");
    let number = |at: usize, other| {
        words.get(at).map_or(Ok(other), |text| {
            text.parse::<u64>().map_err(|error| Error::other(format!("`{text}` is no number: {error}")))
        })
    };
    let (count, mib, began) = (number(0, 4)?, number(1, 64)?, Instant::now());
    let mut program = Program::new("large");
    program.large_in(words.get(2).map_or(".", |folder| folder));
    let written = program.declare::<u64, Large>("write");
    program.define(written, move |scope, seed| match write(scope, seed, mib) {
        Ok(large) => scope.done(large),
        Err(error) => scope.fail(error.to_string()),
    });
    let held = program.kind("hold", move |seed: u64| {
        (0..mib << 20).map(|at| (seed + (at >> 16)) as u8).collect::<Vec<u8>>()
    });
    program.run(|tasks| {
        let mut all = 0;
        if plain.is_empty() {
            let mut job = tasks.job("large");
            job.each(written, 0..count);
            for done in job.results() {
                let large = done?.value;
                all += sum(&mut tasks.read_large(&large)?)?;
                tasks.discard(large);
            }
        } else {
            let mut job = tasks.job("plain");
            job.each(held, 0..count);
            for done in job.results() {
                all += sum(&mut &*done?.value)?;
            }
        }
        println!("sum {all} of {count} results of {mib} MiB in {:.1?}", began.elapsed());
        Ok(())
    })?;
    if let Some(peak) = peak() {
        println!("this process has had {peak} MiB at most");
    }
    Ok(())
}
