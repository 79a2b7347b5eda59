//! The experiments of SPEC §2 over MPI, and PDBP against MPI itself; `pdbp_benches::mpi` defines what each of them measures.
//!
//! ```text
//! cargo build --release -p pdbp-benches --features mpi --bin mpi
//! mpirun -n 9 --hostfile hosts target/release/mpi patterns --link-mbit 1000 --csv patterns.csv --plots plots
//! mpirun -n 4 target/release/mpi alltoall
//! mpirun -n 2 target/release/mpi latency
//! mpirun -n 2 target/release/mpi bandwidth
//! ```
//!
//! Every rank runs all of it; rank 0 prints the tables and writes the files.

mod arguments;
mod latency;
mod output;
mod table;
mod throughput;

use std::error::Error;
use std::io::Write;
use std::panic;
use std::process::ExitCode;
use std::time::Duration;

use mpi::Threading;
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use pdbp_benches::mpi::{Bench, Setup};

use arguments::{Arguments, Experiment};
use output::Output;

fn main() -> ExitCode {
    let Some((universe, _)) = mpi::initialize_with_threading(Threading::Serialized) else {
        eprintln!("MPI was initialised before the program began");
        return ExitCode::FAILURE;
    };
    end_all_on_panic();
    let code = run(&universe.world());
    // Only now: everything that uses MPI is gone.
    drop(universe);
    ExitCode::from(code)
}

/// A rank that panics ends the job, instead of leaving the others waiting.
fn end_all_on_panic() {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |what| {
        print(what);
        SimpleCommunicator::world().abort(1);
    }));
}

/// The program, with MPI at hand. The same mistakes show at all ranks; the first one prints them.
fn run(world: &SimpleCommunicator) -> u8 {
    let (first, ranks) = (world.rank() == 0, world.size() as usize);
    let experiment = match arguments::read(ranks) {
        Ok(experiment) => experiment,
        Err(error) => {
            if first {
                // Nothing to be done about a closed output.
                let _ = error.print();
            }
            return error.exit_code() as u8;
        }
    };
    let output = if first { Output::create(&experiment.common).map(Some) } else { Ok(None) };
    let mut opened = i32::from(output.is_ok());
    world.process_at_rank(0).broadcast_into(&mut opened);
    let mut output = match output {
        Ok(output) if opened == 1 => output,
        Ok(_) => return 1,
        Err(error) => {
            eprintln!("error: {error}");
            return 1;
        }
    };
    if let Err(error) = measure(&experiment, output.as_mut()) {
        // In one piece, since all ranks may have something to say.
        let text = format!("rank {}: {error}\n", world.rank());
        let _ = std::io::stderr().write_all(text.as_bytes());
        world.abort(1);
    }
    0
}

fn measure(experiment: &Experiment, output: Option<&mut Output>) -> Result<(), Box<dyn Error>> {
    let common = &experiment.common;
    let setup = Setup {
        peers: common.peers.clone(),
        groups: experiment.groups.clone(),
        settings: common.settings.clone(),
        limit: Duration::from_secs(60) + common.length * 20,
    };
    let mut bench = Bench::start(&setup)?;
    match &experiment.arguments {
        Arguments::Latency(_) => latency::measure(&mut bench, experiment, output)?,
        _ => throughput::measure(&mut bench, experiment, output)?,
    }
    // A node must not stop while another still says goodbye.
    bench.rest();
    Ok(())
}
