//! Tests that need several processes. Run as it is (`cargo test -p pdbp-mpi`), this program starts `mpirun` for each of its jobs with
//! itself as the program; what a rank finds wrong fails the job.
//!
//! `cargo test -p pdbp-mpi -- NAME` runs the jobs whose names contain NAME. `MPIEXEC` names another launcher.

mod conformance;
mod launch;

use std::process::ExitCode;

/// A program for several ranks.
struct Job {
    name: &'static str,
    ranks: &'static [usize],
    /// What each rank runs.
    program: fn() -> Result<(), String>,
}

const JOBS: &[Job] = &[
    Job { name: "conformance_of_one_host", ranks: &[2, 3, 8], program: conformance::one_host },
    Job { name: "conformance_of_hosts_of_their_own", ranks: &[2, 3, 8], program: conformance::apart },
    Job { name: "conformance_of_two_hosts", ranks: &[3, 8], program: conformance::two_hosts },
];

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).filter(|a| !a.starts_with("--"));
    let first = arguments.next();
    if let Some(name) = std::env::var_os(launch::JOB) {
        let job = JOBS.iter().find(|job| *job.name == *name);
        return match job.map(|job| (job.program)()) {
            Some(Ok(())) => ExitCode::SUCCESS,
            Some(Err(what)) => {
                eprintln!("{what}");
                ExitCode::FAILURE
            }
            None => ExitCode::FAILURE,
        };
    }
    let (mut passed, mut failed) = (0, 0);
    for job in JOBS.iter().filter(|job| first.as_ref().is_none_or(|part| job.name.contains(part.as_str()))) {
        for ranks in job.ranks {
            let outcome = launch::run(job.name, *ranks);
            let verdict = if outcome.is_ok() { "ok" } else { "FAILED" };
            println!("test {}_{ranks}_ranks ... {verdict}", job.name);
            match outcome {
                Ok(()) => passed += 1,
                Err(what) => {
                    println!("{what}");
                    failed += 1;
                }
            }
        }
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {verdict}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out\n"
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
