//! Starts ranks of this program.

use std::io::Read;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The variable that names the job to a rank.
pub(crate) const JOB: &str = "PDBP_MPI_JOB";
const LIMIT: Duration = Duration::from_secs(120);

/// The launcher of the MPI library that this program is linked with.
fn launcher() -> Command {
    let open = mpi::environment::library_version().is_ok_and(|v| v.contains("Open MPI"));
    let known: &[&str] =
        if open { &["mpirun.openmpi", "mpirun"] } else { &["mpiexec.mpich", "mpiexec.hydra", "mpirun"] };
    let found = known.iter().find(|name| Command::new(name).arg("--version").output().is_ok());
    let named = std::env::var("MPIEXEC").ok();
    let mut command = Command::new(named.as_deref().or(found.copied()).unwrap_or("mpirun"));
    if open {
        command.args(["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]);
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    }
    command
}

/// Number of this rank, and of all ranks.
pub(crate) fn place() -> Option<(usize, usize)> {
    let number = |name| std::env::var(name).ok()?.parse().ok();
    let open = number("OMPI_COMM_WORLD_RANK").zip(number("OMPI_COMM_WORLD_SIZE"));
    open.or_else(|| number("PMI_RANK").zip(number("PMI_SIZE")))
}

/// Runs a job, and returns what it printed if it failed.
pub(crate) fn run(job: &str, ranks: usize) -> Result<(), String> {
    let own = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut command = launcher();
    command.args(["-n", &ranks.to_string()]).arg(own).env(JOB, job);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| format!("cannot start {command:?}: {e}"))?;
    let outputs = [child.stdout.take().map(reader), child.stderr.take().map(reader)];
    let since = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Ok(status),
            Ok(None) if since.elapsed() > LIMIT => {
                let _ = child.kill();
                break Err(format!("still running after {LIMIT:?}"));
            }
            Ok(None) => thread::sleep(Duration::from_millis(5)),
            Err(e) => break Err(e.to_string()),
        }
    };
    let text: String = outputs.into_iter().flatten().filter_map(|t| t.join().ok()).collect();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?} ended with {status}:\n{text}")),
        Err(what) => Err(format!("{command:?} {what}:\n{text}")),
    }
}

fn reader(mut from: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
