//! The experiments of SPEC §2 over MPI, and PDBP against MPI itself; `pdbp_benches::mpi` defines what each of them measures.
//!
//! ```text
//! cargo build --release -p pdbp-benches --features mpi --bin mpi
//! target/release/mpi alltoall                                     # and latency, bandwidth: on two ranks of this machine
//! target/release/mpi collectives                                  # barrier, bcast, allreduce, … against MPI's own
//! target/release/mpi alltoall --launcher "mpirun -n 4"
//! target/release/mpi patterns --link-mbit 1000 --csv patterns.csv --plots plots --launcher "mpirun -n 9 --hostfile hosts"
//! ```
//!
//! The program starts jobs of itself with the launcher: for each repetition one that measures MPI's own peers, after a plain `MPI_Init`, and one
//! for PDBP. So neither is affected by what the other asks of MPI: with thread support enabled, Open MPI takes locks, which slow down its own peers
//! at small sizes. The jobs' results come back by the standard output of rank 0; the tables are printed when all jobs have ended.

mod arguments;
mod collectives;
mod jobs;
mod latency;
mod measured;
mod output;
mod table;
mod throughput;
mod worker;

use std::error::Error;
use std::process::ExitCode;

use arguments::{Arguments, Part, Task};
use jobs::Jobs;
use output::Output;
use pdbp_benches::arguments::exit;

fn main() -> ExitCode {
    let task = match arguments::read() {
        Ok(task) => task,
        Err(error) => {
            // Nothing to be done about a closed output.
            let _ = error.print();
            return ExitCode::from(error.exit_code() as u8);
        }
    };
    match task.part {
        Some(part) => match &task.arguments {
            // PDBP initialises MPI itself, as in a program of a user's.
            Arguments::Collectives(calls) if part != Part::Mpi => {
                collectives::run_pdbp(&task, calls.kinds(), part)
            }
            _ => worker::run(&task, part),
        },
        None => exit(drive(&task)),
    }
}

/// Runs all jobs, and prints the results.
fn drive(task: &Task) -> Result<(), Box<dyn Error>> {
    let mut output = Output::create(&task.common)?;
    if let Arguments::Collectives(calls) = &task.arguments {
        return collectives::drive(task, calls, &mut output);
    }
    let measured = Jobs::new(task)?.run()?;
    match &task.arguments {
        Arguments::Latency(_) => latency::show(&task.common, &measured, &mut output),
        _ => throughput::show(task, &measured, &mut output),
    }
}
