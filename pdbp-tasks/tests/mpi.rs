//! Jobs over MPI: the first process runs the pool and the client, the others compute.

#[path = "../../pdbp-cli/tests/launcher/mod.rs"]
mod launcher;

use launcher::{Ended, run};

#[test]
fn the_processes_of_a_job_run_commands_and_the_first_prints() {
    let program = env!("CARGO_BIN_EXE_pdbp-tasks");
    let arguments = ["run", "--array", "1-30", "--keep-order", "--", "echo", "line {}"];
    let Some(Ended { status, stdout, stderr }) = run(program, &[(3, &arguments)]) else { return };
    assert!(status.success(), "{stdout}{stderr}");
    let expected: Vec<_> = (1..=30).map(|i| format!("line {i}")).collect();
    assert_eq!(stdout.lines().collect::<Vec<_>>(), expected, "{stderr}");
}

#[test]
fn what_runs_is_what_the_first_process_says() {
    // The others only provide the functions.
    let program = env!("CARGO_BIN_EXE_pdbp-tasks");
    let first = ["run", "--array", "0-3", "--", "true"];
    let other = ["run", "--array", "7-9", "--slots", "3", "--", "false"];
    let Some(Ended { status, stdout, stderr }) = run(program, &[(1, &first), (2, &other)]) else { return };
    assert!(status.success() && stdout.is_empty(), "{stdout}{stderr}");
}
