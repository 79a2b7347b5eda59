//! Tests that need several processes. Run without more arguments (`cargo test -p pdbp-mpi`), this program starts `mpirun` for each of its
//! jobs, with itself as the program. A job fails if a rank finds something wrong.
//!
//! `cargo test -p pdbp-mpi -- NAME` runs the jobs whose names contain NAME, such as `conformance_of_one_host_3_ranks`. `MPIEXEC` names
//! another launcher.

mod clusters;
mod collectives;
mod conformance;
mod devices;
mod endings;
mod faults;
mod launch;
mod lifecycle;
mod program;
mod starting;

use std::process::ExitCode;
use std::time::Instant;

/// A program that runs on several ranks.
struct Job {
    name: &'static str,
    ranks: &'static [usize],
    /// What each rank runs.
    program: fn() -> Result<(), String>,
    ends: Ends,
}

/// How a job is expected to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    /// All ranks end well.
    Well,
    /// One rank fails; all others end well, whatever status the launcher returns.
    WithoutOne,
    /// The same when the rank is killed. The launcher of MPICH then kills all ranks, even with `-disable-auto-cleanup`.
    WithoutOneKilled,
    /// The launcher ends all ranks, since one fails.
    Badly,
}

const JOBS: &[Job] = &[
    well("conformance_of_one_host", &[2, 3, 8], conformance::one_host),
    well("conformance_of_hosts_of_their_own", &[2, 3, 8], conformance::apart),
    well("conformance_of_two_hosts", &[3, 8], conformance::two_hosts),
    well("clusters_of_one_host", &[1, 2, 3, 8], clusters::one_host),
    well("clusters_of_hosts_of_their_own", &[2, 3, 8], clusters::apart),
    well("clusters_of_two_hosts", &[3, 8], clusters::two_hosts),
    well("clusters_with_a_grid_of_links", &[6], clusters::grid),
    well("clusters_without_a_progress_thread", &[3], clusters::inline),
    well("groups_of_one_host", &[2, 3, 8], collectives::one_host),
    well("groups_by_messages_of_one_host", &[2, 3, 8], collectives::one_host_by_messages),
    well("groups_of_hosts_of_their_own", &[2, 3, 8], collectives::apart),
    well("groups_of_two_hosts", &[3, 8], collectives::two_hosts),
    without_one_killed("a_member_is_killed_in_a_call", &[2, 3, 8], collectives::killed),
    without_one_killed("a_member_is_killed_while_it_is_read", &[8], collectives::killed_while_it_is_read),
    without_one_killed("a_member_is_killed_before_a_barrier", &[3], collectives::killed_before_a_barrier),
    without_one_killed("a_member_without_a_slate_is_killed_in_a_call", &[3], collectives::killed_by_messages),
    without_one_killed("a_member_between_hosts_is_killed_in_a_call", &[3], collectives::killed_apart),
    without_one_killed("a_member_of_two_hosts_is_killed_in_a_call", &[4], collectives::killed_of_two_hosts),
    without_one_killed(
        "a_member_is_killed_beside_one_that_does_not_wait_for_it",
        &[4],
        collectives::killed_beside_one_that_does_not_wait,
    ),
    without_one("a_member_ends_without_a_word_in_a_call", &[2, 3, 8], collectives::ended),
    without_one("a_member_ends_without_a_word_before_a_barrier", &[3], collectives::ended_before_a_barrier),
    without_one(
        "a_member_without_a_slate_ends_without_a_word_in_a_call",
        &[3],
        collectives::ended_by_messages,
    ),
    without_one("a_member_between_hosts_ends_without_a_word_in_a_call", &[3], collectives::ended_apart),
    without_one("a_member_of_two_hosts_ends_without_a_word_in_a_call", &[4], collectives::ended_of_two_hosts),
    well("conformance_of_one_host_with_faults", &[3], faults::conformance_of_one_host),
    well("conformance_of_hosts_of_their_own_with_faults", &[3], faults::conformance_apart),
    well("clusters_of_one_host_with_faults", &[3], faults::clusters_of_one_host),
    well("clusters_of_hosts_of_their_own_with_faults", &[3], faults::clusters_apart),
    well("conformance_of_hosts_of_their_own_by_copies", &[3], faults::conformance_by_copies),
    well("changed_blocks_between_hosts_are_the_receivers_alone", &[2], faults::corruption_apart),
    well("a_lost_link_is_agreed_on", &[3], faults::lost_link),
    well("a_lost_link_between_hosts_is_agreed_on", &[3], faults::lost_link_apart),
    well("device_messages_of_one_host_that_mpi_carries", &[2, 3], devices::one_host),
    well("device_messages_between_hosts_that_mpi_carries", &[2, 3], devices::apart),
    well("device_messages_behind_others", &[2], devices::behind_others),
    well("device_messages_that_nobody_takes_from_mpi", &[2], devices::refused),
    well("device_messages_that_come_to_nothing", &[2], devices::failures),
    well("device_messages_of_a_cuda_device", &[2], devices::on_cuda),
    well("messages_arrive_while_another_cluster_starts", &[2], clusters::another_starts),
    well("a_cluster_on_a_communicator_of_the_program", &[3], lifecycle::on_a_communicator),
    well("ended_domains_are_freed", &[2], lifecycle::again_and_again),
    well("ended_domains_between_hosts_are_freed", &[2], lifecycle::again_and_again_apart),
    well("a_domain_that_is_left_while_another_sends_is_freed", &[2], lifecycle::left_while_another_sends),
    well("clusters_dropped_in_the_middle_of_traffic", &[3], lifecycle::dropped_in_traffic),
    well(
        "clusters_between_hosts_dropped_in_the_middle_of_traffic",
        &[3],
        lifecycle::dropped_in_traffic_apart,
    ),
    well("a_message_that_is_kept_stays_as_it_is", &[2], lifecycle::kept_message),
    well("memory_that_mpi_lets_go_of_is_the_last_of_a_domain", &[2], lifecycle::last_of_a_domain),
    well("a_child_process_that_exits_changes_nothing", &[2], lifecycle::forked_child),
    well("exit_with_a_cluster_alive", &[3], endings::exit),
    well("exit_with_a_cluster_between_hosts_alive", &[3], endings::exit_apart),
    well("the_program_finalises_mpi_with_a_cluster_alive", &[2], endings::finalise),
    well("the_program_finalises_mpi_with_a_cluster_between_hosts_alive", &[2], endings::finalise_apart),
    without_one("a_rank_panics_with_a_cluster_alive", &[3], endings::panic),
    badly("a_rank_that_exits_with_a_failure_ends_the_job", &[3], endings::exit_with_failure),
    badly("a_rank_that_panics_ends_the_job_while_others_start", &[3], endings::panic_before_a_start),
    without_one_killed("a_rank_is_killed", &[3], endings::killed),
    without_one_killed("a_rank_is_killed_that_nobody_sends_to", &[3], endings::killed_in_silence),
    without_one_killed("a_rank_is_killed_and_another_hears_of_it", &[3], endings::killed_by_hearsay),
    well("more_arrives_from_a_node_that_leaves_than_was_posted", &[2], endings::more_than_was_posted),
    well("a_node_that_leaves_unheard_is_not_taken_for_dead", &[2], endings::left_unheard),
    well("a_block_that_is_read_outlives_its_transport", &[2], endings::kept_block),
    without_one_killed("a_block_comes_back_when_its_reader_has_died", &[2], endings::kept_block_killed),
    well("too_little_thread_support_is_an_error", &[2], starting::threads),
    well("single_thread_support_is_an_error", &[2], starting::single),
    well("ranks_that_disagree_are_told", &[3], starting::disagree),
    well("memory_that_cannot_be_had_is_an_error_everywhere", &[3], starting::memory),
    well("memory_that_one_rank_lacks_is_an_error_everywhere", &[3], starting::little_memory_on_one),
    well("a_window_that_cannot_be_mapped_twice_is_an_error", &[2], starting::mappings),
    well("a_finalised_mpi_is_an_error", &[2], starting::finalised),
    well("the_mpi_of_another_launcher_is_an_error", &[2], starting::other_launcher),
    well("a_library_of_another_launcher_is_an_error", &[2], starting::other_library),
    well("a_communicator_of_another_mpi_is_an_error", &[2], starting::other_communicator),
];

const fn well(name: &'static str, ranks: &'static [usize], program: fn() -> Result<(), String>) -> Job {
    Job { name, ranks, program, ends: Ends::Well }
}

const fn without_one_killed(
    name: &'static str,
    ranks: &'static [usize],
    program: fn() -> Result<(), String>,
) -> Job {
    Job { name, ranks, program, ends: Ends::WithoutOneKilled }
}

const fn without_one(
    name: &'static str,
    ranks: &'static [usize],
    program: fn() -> Result<(), String>,
) -> Job {
    Job { name, ranks, program, ends: Ends::WithoutOne }
}

const fn badly(name: &'static str, ranks: &'static [usize], program: fn() -> Result<(), String>) -> Job {
    Job { name, ranks, program, ends: Ends::Badly }
}

/// Whether the suite runs with more than two ranks per processor on an MPI that polls without yielding.
fn takes_a_minute(job: &Job, ranks: usize) -> bool {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    job.name.starts_with("conformance") && ranks > 2 * processors && !launch::is_open_mpi()
}

fn main() -> ExitCode {
    let first = std::env::args().skip(1).find(|a| !a.starts_with("--")).unwrap_or_default();
    if let Some(name) = std::env::var_os(launch::JOB) {
        let job = JOBS.iter().find(|job| *job.name == *name);
        return match job.map(|job| (job.program)()) {
            Some(Ok(())) => {
                println!("{}", launch::PASSED);
                ExitCode::SUCCESS
            }
            Some(Err(what)) => {
                eprintln!("{what}");
                ExitCode::FAILURE
            }
            None => ExitCode::FAILURE,
        };
    }
    let (mut passed, mut failed, mut filtered) = (0, 0, 0);
    for (job, ranks) in JOBS.iter().flat_map(|job| job.ranks.iter().map(move |ranks| (job, *ranks))) {
        let name = format!("{}_{ranks}_ranks", job.name);
        if !name.contains(&first) {
            filtered += 1;
        } else if job.ends == Ends::WithoutOneKilled && !launch::is_open_mpi() {
            println!("test {name} ... skipped: the launcher of MPICH kills all ranks when one is killed");
            filtered += 1;
        } else if first.is_empty() && takes_a_minute(job, ranks) {
            println!("test {name} ... skipped: MPICH does not give processors away; by its name it runs");
            filtered += 1;
        } else if run(&name, job, ranks) {
            passed += 1;
        } else {
            failed += 1;
        }
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {verdict}. {passed} passed; {failed} failed; 0 ignored; 0 measured; {filtered} filtered out\n"
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a job and prints the outcome.
fn run(name: &str, job: &Job, ranks: usize) -> bool {
    let since = Instant::now();
    let outcome = launch::run(job, ranks);
    let verdict = if outcome.is_ok() { "ok" } else { "FAILED" };
    println!("test {name} ... {verdict} ({:.1} s)", since.elapsed().as_secs_f64());
    outcome.map_err(|what| println!("{what}")).is_ok()
}
