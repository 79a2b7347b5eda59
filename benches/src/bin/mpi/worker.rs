//! A rank of a job: measures one part of the peers once, and prints a line for each result.

use std::error::Error;
use std::io::Write;
use std::panic;
use std::process::ExitCode;
use std::time::Duration;

use mpi::environment::Universe;
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use mpi::{Threading, ffi};
use pdbp_benches::mpi::{Bench, Peer, Setup};

use crate::arguments::{Arguments, Part, Series, Task};
use crate::measured::Row;
use crate::{collectives, latency, throughput};

/// MPI, from its initialisation to its end.
enum Mpi {
    /// As a program without threads initialises it.
    Plain,
    /// As PDBP needs it.
    Threaded(Universe),
}

impl Mpi {
    fn start(task: &Task, part: Part) -> Option<Self> {
        match part {
            Part::Mpi => {
                // SAFETY: the first call of MPI in this process, which has one thread; null stands for its arguments.
                let code = unsafe { ffi::MPI_Init(std::ptr::null_mut(), std::ptr::null_mut()) };
                (code == ffi::MPI_SUCCESS as i32).then_some(Self::Plain)
            }
            Part::Pdbp | Part::Messages => {
                // Progress is the rank's own thread's, unless the command line says otherwise.
                let progress = task.common.settings.iter().rev().find(|(key, _)| key == "progress");
                let threads = match progress {
                    Some((_, value)) if value != "inline" => Threading::Multiple,
                    _ => Threading::Serialized,
                };
                mpi::initialize_with_threading(threads).map(|(mpi, _)| Self::Threaded(mpi))
            }
        }
    }

    /// Only when everything that uses it is gone.
    fn end(self) {
        match self {
            Self::Plain => {
                // SAFETY: initialised in `start`, and nothing uses it any more. A failure changes nothing for anybody.
                let _ = unsafe { ffi::MPI_Finalize() };
            }
            Self::Threaded(universe) => drop(universe),
        }
    }
}

/// All of a rank.
pub(crate) fn run(task: &Task, part: Part) -> ExitCode {
    let Some(mpi) = Mpi::start(task, part) else {
        eprintln!("MPI cannot be initialised");
        return ExitCode::FAILURE;
    };
    end_all_on_panic();
    let code = run_with_mpi(task, part, &SimpleCommunicator::world());
    mpi.end();
    code
}

/// Makes a rank that panics end the job, instead of leaving the others waiting.
fn end_all_on_panic() {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |what| {
        print(what);
        SimpleCommunicator::world().abort(1);
    }));
}

fn run_with_mpi(task: &Task, part: Part, world: &SimpleCommunicator) -> ExitCode {
    // The same mistake shows at all ranks; the first one prints it.
    let first = world.rank() == 0;
    let series = match task.series(world.size() as usize) {
        Ok(series) => series,
        Err(error) if first => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
        Err(_) => return ExitCode::from(2),
    };
    let calls = if let Arguments::Collectives(calls) = &task.arguments { Some(calls.kinds()) } else { None };
    let tell = &mut |row| {
        if first {
            print(&row)
        }
    };
    let measured = match calls {
        Some(kinds) => collectives::run_mpi(task, kinds, SimpleCommunicator::world()),
        None => measure(task, part, &series, tell),
    };
    if let Err(error) = measured {
        // In one piece, since all ranks may have something to say.
        let text = format!("rank {}: {error}\n", world.rank());
        let _ = std::io::stderr().write_all(text.as_bytes());
        world.abort(1);
    }
    ExitCode::SUCCESS
}

/// For the program that has started the job.
fn print(row: &Row) {
    let mut out = std::io::stdout().lock();
    // Nobody is there to read it any more.
    let _ = writeln!(out, "{row}").and_then(|()| out.flush());
}

fn measure(
    task: &Task,
    part: Part,
    series: &[Series],
    tell: &mut dyn FnMut(Row),
) -> Result<(), Box<dyn Error>> {
    let common = &task.common;
    let peers: Vec<Peer> = common.peers.iter().copied().filter(|peer| part.measures(*peer)).collect();
    let setup = Setup {
        peers: peers.clone(),
        groups: series.iter().map(|&(_, _, ranks)| ranks).collect(),
        settings: common.settings.clone(),
        limit: Duration::from_secs(60) + common.length * 20,
    };
    let mut bench = Bench::start(&setup)?;
    for &series in series {
        if bench.takes_part(series.2) {
            match &task.arguments {
                Arguments::Latency(_) => latency::measure(&mut bench, common, &peers, series, tell),
                _ => throughput::measure(&mut bench, common, &peers, series, tell),
            }
        }
        // A node must not stop while another still says goodbye.
        bench.rest();
    }
    Ok(())
}
