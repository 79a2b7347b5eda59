//! Runs a program as a job of several ranks, for the tests of programs over MPI.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(300);

const SIGPIPE: i32 = 13;

/// How a job ended, and what its ranks and the launcher printed.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// The launcher that `MPIEXEC` names, or a known one: of the MPI library that the program is linked with, else of the one that
/// `PDBP_MPI` names, else of any. The program has to find its MPI by itself.
fn name_of_launcher(program: &str) -> Result<String, String> {
    const OPEN_MPI: [&str; 2] = ["mpirun.openmpi", "mpirun"];
    const MPICH: [&str; 2] = ["mpiexec.mpich", "mpiexec.hydra"];
    let libraries = Command::new("ldd").arg(program).output().map(|o| o.stdout).unwrap_or_default();
    let libraries = String::from_utf8_lossy(&libraries);
    let named = std::env::var("PDBP_MPI").unwrap_or_default();
    let known = match () {
        () if libraries.contains("libmpich") || !libraries.contains("libmpi") && named == "mpich" => {
            MPICH.to_vec()
        }
        () if libraries.contains("libmpi") || named == "openmpi" => OPEN_MPI.to_vec(),
        () => [OPEN_MPI, MPICH].concat(),
    };
    let found = known.iter().find(|name| Command::new(name).arg("--version").output().is_ok());
    std::env::var("MPIEXEC").ok().or(found.map(|name| (*name).to_owned())).ok_or_else(|| {
        format!("skipped: none of {known:?} is on this machine; MPIEXEC may name another launcher")
    })
}

/// Whether jobs are started by the launcher of MPICH.
#[allow(dead_code, reason = "not every test needs it")]
pub(crate) fn is_mpich(program: &str) -> bool {
    name_of_launcher(program).is_ok_and(|name| name.contains("mpich") || name.contains("hydra"))
}

/// The command that starts a job. `None`, with the reason printed, if there is no launcher.
fn launcher(program: &str) -> Option<Command> {
    let name = name_of_launcher(program).map_err(|why| println!("{why}")).ok()?;
    let mpich = name.contains("mpich") || name.contains("hydra");
    let mut command = Command::new(name);
    if !mpich {
        command.args(["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]);
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    }
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PDBP_")) {
        command.env_remove(name);
    }
    Some(command)
}

/// Runs a job of groups of ranks, each with arguments of its own. `None` if there is no launcher.
pub(crate) fn run(program: &str, groups: &[(usize, &[&str])]) -> Option<Ended> {
    // The launcher of MPICH is itself killed now and then, and the output lost, if the ranks end while it still writes to them: 3 of
    // 1,374 times with `sh -c 'echo error >&2; exit 2'` as the program and six busy processes on two processors.
    for _ in 0..3 {
        let ended = run_once(program, groups)?;
        if ended.status.signal() != Some(SIGPIPE) {
            return Some(ended);
        }
        println!("a launcher was killed by SIGPIPE: {ended:?}");
    }
    panic!("launchers of {program} with {groups:?} are killed by SIGPIPE");
}

fn run_once(program: &str, groups: &[(usize, &[&str])]) -> Option<Ended> {
    let mut command = launcher(program)?;
    for (i, (ranks, arguments)) in groups.iter().enumerate() {
        command.args((i > 0).then_some(":")).args(["-n", &ranks.to_string()]).arg(program).args(*arguments);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (stdout, stderr) = (reader(child.stdout.take().unwrap()), reader(child.stderr.take().unwrap()));
    let since = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if since.elapsed() > LIMIT => {
                child.kill().unwrap();
                panic!("{command:?} still runs after {LIMIT:?}");
            }
            None => thread::sleep(Duration::from_millis(5)),
        }
    };
    Some(Ended { status, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() })
}

fn reader(mut from: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
