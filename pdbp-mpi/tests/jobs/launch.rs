//! Starts ranks of this program.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use crate::clusters::SOON;
use crate::{Ends, Job};

/// The variable that tells a rank its job.
pub(crate) const JOB: &str = "TEST_OF_PDBP_MPI";
/// The setting that names an MPI.
const LIBRARY: &str = "PDBP_MPI";
/// The variable that names a library with the ABI of MPI 5, for programs that use MPI themselves.
pub(crate) const PROGRAMS_LIBRARY: &str = "TEST_OF_PDBP_MPI_LIBRARY";
/// Printed by a rank that found nothing wrong.
pub(crate) const PASSED: &str = "this rank has passed";
/// Starts a line in which a rank names a file that must be gone after the job.
pub(crate) const FILE: &str = "this rank has mapped ";
/// The variable that names the folder in which ranks leave [signs](give_sign) for each other.
const SIGNS: &str = "TEST_OF_PDBP_MPI_SIGNS";
/// Time limit of a job. Longer than its ranks' own timeouts, so that a rank that hangs says where.
const LIMIT: Duration = Duration::from_secs(600);

/// Whether the jobs run on Open MPI. `PDBP_MPI` names the MPI; by default it is the one that a program uses without a launcher. Ranks
/// have to find theirs themselves.
pub(crate) fn is_open_mpi() -> bool {
    static IS_OPEN: OnceLock<bool> = OnceLock::new();
    *IS_OPEN.get_or_init(|| {
        let named = std::env::var(LIBRARY).unwrap_or_else(|_| "auto".to_owned());
        let library = named.parse().unwrap_or_else(|e| panic!("{LIBRARY}={named}: {e}"));
        match pdbp_mpi::load_library(&library) {
            Ok(version) => version.contains("Open MPI"),
            Err(why) if named == "auto" => {
                println!("jobs: skipped: {why}");
                std::process::exit(0);
            }
            Err(why) => panic!("{why}"),
        }
    })
}

/// The launcher of that MPI.
fn launcher(ends: Ends) -> Command {
    let open = is_open_mpi();
    let known: &[&str] =
        if open { &["mpirun.openmpi", "mpirun"] } else { &["mpiexec.mpich", "mpiexec.hydra", "mpirun"] };
    let found = known.iter().find(|name| Command::new(name).arg("--version").output().is_ok());
    let named = std::env::var("MPIEXEC").ok();
    let mut command = Command::new(named.as_deref().or(found.copied()).unwrap_or("mpirun"));
    if open {
        command.args(["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]);
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    }
    // Options that keep a launcher from ending all ranks when one has died.
    match (ends, open) {
        (Ends::Well | Ends::Badly, _) => {}
        (Ends::WithoutOne | Ends::WithoutOneKilled, true) => {
            command.args(["--enable-recovery", "--mca", "orte_abort_on_non_zero_status", "0"]);
        }
        (Ends::WithoutOne | Ends::WithoutOneKilled, false) => {
            command.arg("-disable-auto-cleanup");
        }
    }
    command
}

/// The rank of this process, and the number of ranks.
pub(crate) fn place() -> Option<(usize, usize)> {
    let number = |name| std::env::var(name).ok()?.parse().ok();
    let open = number("OMPI_COMM_WORLD_RANK").zip(number("OMPI_COMM_WORLD_SIZE"));
    open.or_else(|| number("PMI_RANK").zip(number("PMI_SIZE")))
}

/// Runs a job. If it failed, returns what it printed. Again, at most twice, if the launcher itself was killed by SIGPIPE: that of MPICH
/// is, once in several hundred runs on busy processors, if the ranks end at once.
pub(crate) fn run(job: &Job, ranks: usize) -> Result<(), String> {
    let mut outcome = run_once(job, ranks);
    for _ in 0..2 {
        match &outcome {
            Err(what) if what.contains("ended with signal: 13") => outcome = run_once(job, ranks),
            _ => break,
        }
    }
    outcome
}

fn run_once(job: &Job, ranks: usize) -> Result<(), String> {
    let own = std::env::current_exe().map_err(|e| e.to_string())?;
    let [folder, signs] =
        [tempfile::tempdir(), tempfile::tempdir()].map(|made| made.map_err(|e| e.to_string()));
    let (folder, signs) = (folder?, signs?);
    let mut command = launcher(job.ends);
    command.args(["-n", &ranks.to_string()]).arg(own);
    if let Some(file) = std::env::var(LIBRARY).ok().filter(|named| named.contains("libmpi_abi")) {
        command.env(PROGRAMS_LIBRARY, file);
    }
    command.env_remove(LIBRARY).env(JOB, job.name).env("TMPDIR", folder.path()).env(SIGNS, signs.path());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| format!("cannot start {command:?}: {e}"))?;
    let outputs = [child.stdout.take().map(reader), child.stderr.take().map(reader)];
    let status = wait(&mut child);
    let text: String = outputs.into_iter().flatten().filter_map(|t| t.join().ok()).collect();
    let failed = |what: String| Err(format!("{command:?} {what}:\n{text}"));
    let status = match status {
        Ok(status) => status,
        Err(what) => return failed(what),
    };
    let passed = text.matches(PASSED).count();
    let wanted = match job.ends {
        Ends::Well => ranks,
        Ends::WithoutOne | Ends::WithoutOneKilled => ranks - 1,
        Ends::Badly => 0,
    };
    let is_right = match job.ends {
        Ends::Well => status.success(),
        Ends::WithoutOne | Ends::WithoutOneKilled => true,
        Ends::Badly => !status.success(),
    };
    if passed != wanted || !is_right {
        return failed(format!("ended with {status}, and {passed} of {wanted} ranks have passed"));
    }
    let left = files_left(&text, folder.path());
    if left.is_empty() { Ok(()) } else { failed(format!("has left {left:?}")) }
}

fn wait(child: &mut Child) -> Result<ExitStatus, String> {
    let since = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if since.elapsed() > LIMIT => {
                end(child);
                return Err(format!("is still running after {LIMIT:?}"));
            }
            Ok(None) => thread::sleep(Duration::from_millis(5)),
            Err(e) => return Err(e.to_string()),
        }
    }
}

/// Asks a launcher to end, so that it ends its ranks; kills it if it has not ended after 10 s.
fn end(child: &mut Child) {
    let process = i32::try_from(child.id()).unwrap_or(0);
    // SAFETY: the child has not been waited for, so the process number is still its own.
    unsafe { libc::kill(process, libc::SIGTERM) };
    let since = Instant::now();
    while matches!(child.try_wait(), Ok(None)) && since.elapsed() < Duration::from_secs(10) {
        thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
}

fn sign(name: &str) -> std::path::PathBuf {
    Path::new(&std::env::var_os(SIGNS).unwrap_or_default()).join(name)
}

/// Tells other ranks how far this one is, independently of their links.
pub(crate) fn give_sign(name: &str) {
    std::fs::write(sign(name), []).unwrap();
}

/// Waits until a rank has given this sign.
pub(crate) fn wait_for_sign(name: &str) {
    let since = Instant::now();
    while !sign(name).exists() {
        assert!(since.elapsed() < SOON, "nobody says: {name}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The files that still exist, of those that ranks named and those in the folder for temporary files.
fn files_left(text: &str, folder: &Path) -> Vec<String> {
    let named = text.lines().filter_map(|line| line.split_once(FILE)).map(|(_, path)| path.trim().to_owned());
    let mut left: Vec<_> = named.filter(|path| Path::new(path).exists()).collect();
    find_files(folder, &mut left);
    left
}

fn find_files(folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => find_files(&entry.path(), found),
            _ => found.push(entry.path().display().to_string()),
        }
    }
}

/// Prints the names of the files that this process has mapped, in shared memory or the folder for temporary files.
pub(crate) fn name_files() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let path = |line: &str| Some(line.get(line.find('/')?..)?.trim_end_matches(" (deleted)").to_owned());
    let mut paths: Vec<_> = maps.lines().filter_map(path).collect();
    paths.retain(|path| path.starts_with("/dev/shm/") || Path::new(path).starts_with(std::env::temp_dir()));
    paths.dedup();
    paths.iter().for_each(|path| println!("{FILE}{path}"));
}

fn reader(mut from: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
