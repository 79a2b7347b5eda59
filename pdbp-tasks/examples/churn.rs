//! Measures what is lost when processes come and go: `cargo run --release -p pdbp-tasks --features net --example churn`.
//!
//! A pool with a journal and four single-processor processes run on this machine; tasks sleep 10 ms. It measures three things. For processes
//! killed a second after they reached the pool: how much of that second was spent on tasks whose results count, and how long each took from its
//! start to its first task. When half of the processes are killed at once: what becomes of the rate, and of the tasks of those killed. For a pool
//! that was killed: how long after its restart it answers a client, and has a new result for it.

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::sync::Once;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use pdbp::Builder;
use pdbp_tasks::net::{Remote, RemoteJob, Request, Serving, Working};
use pdbp_tasks::wire::Answer;
use pdbp_tasks::{Kind, Limits, Program};

type Failed = Box<dyn Error + Send + Sync>;

const WORKERS: usize = 4;
const TASK: Duration = Duration::from_millis(10);
/// How long each process lives, and how many of them succeed one another at each place.
const LIFE: Duration = Duration::from_secs(1);
const LIVES: usize = 10;
const PATIENCE: Duration = Duration::from_secs(60);

fn program() -> (Program, Kind<u64, u64>) {
    let mut program = Program::new("churn");
    let first = Once::new();
    // Returns how long it took, in nanoseconds.
    let sleep = program.kind("sleep", move |_: u64| {
        let began = Instant::now();
        first.call_once(|| println!("the first task"));
        thread::sleep(TASK);
        began.elapsed().as_nanos() as u64
    });
    // Processes are killed on purpose, so no task is given up for it.
    program.limits(Limits { crashes: usize::MAX, ..Limits::default() });
    program.slots(1);
    (program, sleep)
}

fn builder(folder: &Path) -> Builder {
    Builder::new().token_file(folder.join("token"))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ended = match words[..] {
        ["pool", folder, address] => serve(folder.as_ref(), address),
        ["work", folder, address] => work(folder.as_ref(), address),
        [] => measure(),
        _ => Err("it takes no arguments".into()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("churn: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(folder: &Path, address: &str) -> Result<(), Failed> {
    let mut serving = Serving::default();
    serving.journal = Some(folder.join("jobs.redb"));
    let builder = builder(folder).listen(address.to_owned()).nodes(32);
    Ok(program().0.serve(builder, &serving, &AtomicBool::new(false), |_, _| ())?)
}

fn work(folder: &Path, address: &str) -> Result<(), Failed> {
    let builder = builder(folder).join(address.to_owned());
    Ok(program().0.work(builder, &Working::default(), &AtomicBool::new(false), &|what| println!("{what}"))?)
}

/// How to reach the pool.
struct Place<'p> {
    folder: &'p Path,
    address: String,
}

impl Place<'_> {
    fn start(&self, what: &str) -> Result<Process, Failed> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(what).arg(self.folder).arg(&self.address).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let says = child.stdout.take().ok_or("its output is not piped")?;
        Ok(Process { child, says: BufReader::new(says) })
    }
}

/// A process, killed when dropped.
struct Process {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Process {
    /// Waits for a line that begins with `what`, and returns when it came.
    fn says(&mut self, what: &str) -> Result<Instant, Failed> {
        loop {
            let mut line = String::new();
            if self.says.read_line(&mut line)? == 0 {
                return Err(format!("a process has ended before it said \"{what}\"").into());
            }
            if line.starts_with(what) {
                return Ok(Instant::now());
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn measure() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let place = Place { folder: folder.path(), address: format!("127.0.0.1:{port}") };
    let pool = place.start("pool")?;
    while !folder.path().join("token").exists() {
        thread::sleep(Duration::from_millis(5));
    }
    let (program, sleep) = program();
    let mut remote = Remote::new(&program, builder(folder.path()).join(place.address.clone()), PATIENCE);
    let mut job = remote.job("sleep")?;
    job.each(sleep, 0..1_000_000)?;
    let number = job.number();
    lives(&place, &mut remote, number)?;

    let mut workers = (0..WORKERS).map(|_| place.start("work")).collect::<Result<Vec<_>, _>>()?;
    half(&mut workers, &mut remote.job_of(number))?;

    drop(pool);
    let began = Instant::now();
    let _pool = place.start("pool")?;
    let before = ended(&mut remote, number)?;
    let answered = began.elapsed().as_secs_f64();
    while ended(&mut remote, number)? == before {
        thread::sleep(Duration::from_millis(1));
    }
    let new = began.elapsed().as_secs_f64();
    println!(
        "a pool that was killed answers {answered:.3} s after its start, and has a new result {new:.3} s after it"
    );
    Ok(())
}

/// How many tasks of a job are over.
fn ended(remote: &mut Remote, job: u32) -> Result<u64, Failed> {
    match remote.ask(&Request::Status { job: Some(job) })? {
        Answer::Status(status) => Ok(status.jobs.first().ok_or("there is no such job")?.ended),
        other => Err(format!("{other:?}").into()),
    }
}

/// Runs a process that is then killed. Returns its time to the first task from its start, and from reaching the pool, and how long it was at the
/// pool.
fn life(place: &Place<'_>) -> Result<[Duration; 3], Failed> {
    let began = Instant::now();
    let mut process = place.start("work")?;
    let came = process.says("at the pool")?;
    let first = process.says("the first task")?;
    thread::sleep((came + LIFE).saturating_duration_since(Instant::now()));
    drop(process);
    Ok([first - began, first - came, came.elapsed()])
}

/// Runs one process after the other at each place, for a second each. No others compute, then or before.
fn lives(place: &Place<'_>, remote: &mut Remote, job: u32) -> Result<(), Failed> {
    let lives = thread::scope(|scope| {
        let of_place = || (0..LIVES).map(|_| life(place)).collect::<Result<Vec<_>, _>>();
        let places: Vec<_> = (0..WORKERS).map(|_| scope.spawn(of_place)).collect();
        let of =
            |lives: thread::ScopedJoinHandle<'_, _>| lives.join().map_err(|_| "a thread has panicked")?;
        places.into_iter().map(of).collect::<Result<Vec<Vec<_>>, Failed>>()
    })?
    .concat();
    // By then the latest results are on disk.
    thread::sleep(LIFE);
    let (count, mut job) = (ended(remote, job)?, remote.job_of::<u64>(job));
    let mut used = 0;
    for _ in 0..count {
        used += job.next_result()?.ok_or("the job is over")?.result?;
    }
    let lived: f64 = lives.iter().map(|[.., lived]| lived.as_secs_f64()).sum();
    let of = |which: usize| {
        let mut times: Vec<_> = lives.iter().map(|life| life[which].as_secs_f64() * 1e3).collect();
        times.sort_by(f64::total_cmp);
        format!(
            "{:.1} ms, the median, {:.1} to {:.1}",
            times[times.len() / 2],
            times[0],
            times[times.len() - 1]
        )
    };
    println!(
        "{} lives of {LIFE:?}, {WORKERS} at a time: {:.3} of them is of use, in {count} results\n\
         from their start to the first task {}; from when they came to the pool {}",
        lives.len(),
        used as f64 / 1e9 / lived,
        of(0),
        of(1)
    );
    Ok(())
}

/// Reads results until then: the numbers of their tasks, and when they came.
fn take(job: &mut RemoteJob<'_, u64>, until: Instant) -> Result<Vec<(u64, Instant)>, Failed> {
    let mut came = Vec::new();
    while Instant::now() < until {
        came.push((job.next_result()?.ok_or("the job is over")?.number, Instant::now()));
    }
    Ok(came)
}

/// Kills half of the processes at once.
fn half(workers: &mut Vec<Process>, job: &mut RemoteJob<'_, u64>) -> Result<(), Failed> {
    const WINDOW: Duration = Duration::from_millis(500);
    for worker in workers.iter_mut() {
        worker.says("the first task")?;
    }
    let begins = Instant::now() + LIFE;
    take(job, begins)?;
    let before = take(job, begins + 4 * LIFE)?;
    let rate = before.len() as f64 / 4.0;
    workers.truncate(WORKERS / 2);
    let killed = Instant::now();
    let after = take(job, killed + 6 * LIFE)?;
    let in_window = |i| {
        let (from, to) = (killed + WINDOW * i, killed + WINDOW * (i + 1));
        after.iter().filter(|(_, at)| (from..to).contains(at)).count() as f64 / WINDOW.as_secs_f64()
    };
    let least = (0..12).map(in_window).fold(f64::INFINITY, f64::min);
    // Tasks are handed out in order of their numbers, and each processor holds one besides the one that it runs: the killed processes may have
    // held tasks up to this number.
    let newest = before.iter().map(|(number, _)| *number).max().unwrap_or(0) + 2 * WORKERS as u64;
    let lost = after.iter().filter(|(number, _)| *number <= newest);
    let last = lost.map(|(_, at)| at.duration_since(killed).as_secs_f64()).fold(0.0, f64::max);
    println!(
        "half of {WORKERS} killed at once: {rate:.0} results a second before; in the worst half second {:.2} of what is half of that; what \
         they may have held has ended, elsewhere, {last:.3} s later",
        least / (rate / 2.0)
    );
    Ok(())
}
