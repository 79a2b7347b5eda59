//! Squares of numbers, on all processors: `cargo run --release -p pdbp-tasks --example squares [COUNT]`, or under `mpirun`.

use pdbp_tasks::{Error, Program};

fn main() -> Result<(), Error> {
    let count = std::env::args().nth(1).map_or(Ok(1_000_000), |text| text.parse()).map_err(Error::other)?;
    let mut program = Program::new("squares");
    let square = program.kind("square", |n: u64| n * n);
    program.run(|tasks| {
        let mut job = tasks.job("demo");
        job.each(square, 0..count);
        let mut sum = 0u128;
        for done in job.results().progress() {
            sum += u128::from(done?.value);
        }
        println!("{sum}");
        Ok(())
    })
}
