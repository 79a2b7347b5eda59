//! A pool with a journal and processors, which are killed again and again: `ci/kill N`.
//!
//! The pool and four processors are processes. Every 20 to 200 ms a random one of them is killed by SIGKILL and restarted. This process adds
//! tasks that add others, tasks that receive the results of others, and one that waits for those. It checks that each task has the right result,
//! exactly once. One task inverts a large value piece by piece: the value must come back whole, and none of it may stay on disk when its job is
//! forgotten.
//!
//! Arguments: the number of kills, and a folder for the journal and the logs of the processes.

use std::collections::HashSet;
use std::error::Error;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pdbp::Builder;
use pdbp_tasks::net::{Remote, RemoteDone, Request, Serving, WhenLost, Working};
use pdbp_tasks::{Handle, Kind, Large, Limits, Program};

type Failed = Box<dyn Error + Send + Sync>;

const WORKERS: usize = 4;
/// Tasks of a job, and how many numbers each adds up.
const TASKS: u64 = 200;
const NUMBERS: u64 = 64;
/// Tasks of a job whose results are added up by others, two at a time.
const JOINED: u64 = 16;
/// The most numbers that a task adds up by itself.
const FEW: u64 = 16;
/// After this many kills, at least one result must arrive before the next kill.
const PAUSE: u64 = 8;
const PATIENCE: Duration = Duration::from_secs(600);

/// Bytes of a large value, which take several pieces.
const LARGE: u64 = 600 << 10;

type Turn = Kind<Large, Large>;
type Sum = Kind<(u64, u64), u64>;
type Add = Kind<((), Vec<u64>), u64>;

/// Tasks that add up a range of numbers, halving it until few are left; tasks that add up the results of others; and a task that inverts a large
/// value.
fn program() -> (Program, Sum, Add, Turn) {
    let mut program = Program::new("kill");
    let add = program.kind("add", |((), two): ((), Vec<u64>)| two.iter().sum::<u64>());
    let sum = program.declare::<(u64, u64), u64>("sum");
    program.define(sum, move |scope, (first, end)| {
        if end - first > FEW {
            let middle = first.midpoint(end);
            let halves = [scope.add(sum, (first, middle)), scope.add(sum, (middle, end))];
            return scope.join(add, (), &halves);
        }
        thread::sleep(Duration::from_micros(200));
        scope.done((first..end).sum())
    });
    let turn = program.declare::<Large, Large>("turn");
    program.define(turn, move |scope, value| {
        let turned = scope.read_large(&value).and_then(|mut from| {
            let (mut to, mut piece) = (scope.write_large()?, [0; 10_000]);
            loop {
                match from.read(&mut piece)? {
                    0 => return to.finish(),
                    count => to.write_all(&piece[..count].iter().map(|byte| !byte).collect::<Vec<_>>())?,
                }
            }
        });
        match turned {
            Ok(value) => scope.done(value),
            Err(error) => scope.fail(error.to_string()),
        }
    });
    // Processes are killed on purpose, so no task is given up for it.
    program.limits(Limits { crashes: usize::MAX, ..Limits::default() });
    program.slots(1);
    (program, sum, add, turn)
}

fn builder(folder: &Path) -> Builder {
    Builder::new().token_file(folder.join("token")).outage(Duration::from_millis(200))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let stop = AtomicBool::new(false);
    let ended: Result<(), Failed> = match words[..] {
        ["pool", folder, address] => serve(folder.as_ref(), address, &stop),
        ["work", folder, address] => work(folder.as_ref(), address, &stop),
        [kills, folder] => match kills.parse() {
            Ok(kills) => test(kills, folder.as_ref()),
            Err(_) => Err(format!("\"{kills}\" is no number of kills").into()),
        },
        _ => Err("which arguments? KILLS FOLDER".into()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kill: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(folder: &Path, address: &str, stop: &AtomicBool) -> Result<(), Failed> {
    let (program, ..) = program();
    let mut serving = Serving::default();
    serving.journal = Some(folder.join("jobs.redb"));
    let builder = builder(folder).listen(address.to_owned()).nodes(32);
    Ok(program.serve(builder, &serving, stop, |node, term| println!("{} serves, term {term}", node.id()))?)
}

fn work(folder: &Path, address: &str, stop: &AtomicBool) -> Result<(), Failed> {
    let mut working = Working::default();
    working.when_lost = WhenLost::Wait(PATIENCE);
    let builder = builder(folder).join(address.to_owned());
    Ok(program().0.work(builder, &working, stop, &|what| println!("{what}"))?)
}

/// One of the processes, and the arguments that restart it.
struct Process {
    what: &'static str,
    number: usize,
    child: Child,
}

struct Processes {
    folder: PathBuf,
    address: String,
    list: Vec<Process>,
}

impl Processes {
    fn start(&self, what: &'static str, number: usize) -> Result<Process, Failed> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.folder.join(format!("{what}{number}.log")))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(what).arg(&self.folder).arg(&self.address).stdin(Stdio::null());
        let child = command.stdout(log.try_clone()?).stderr(log).spawn()?;
        Ok(Process { what, number, child })
    }

    /// Kills one process and restarts it.
    fn replace(&mut self, at: usize) -> Result<(), Failed> {
        let Some(process) = self.list.get_mut(at) else { return Ok(()) };
        if let Some(status) = process.child.try_wait()? {
            return Err(
                format!("{}{} has ended by itself, with {status}", process.what, process.number).into()
            );
        }
        process.child.kill()?;
        process.child.wait()?;
        let (what, number) = (process.what, process.number);
        let next = self.start(what, number)?;
        if let Some(place) = self.list.get_mut(at) {
            *place = next;
        }
        Ok(())
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for process in &mut self.list {
            // It may have ended already.
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
    }
}

/// A random number generator that is good enough here (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % end
    }
}

fn test(kills: u64, folder: &Path) -> Result<(), Failed> {
    // Of a host that no other program uses: a port of the usual one may go to another while the pool is restarted.
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let host = Ipv4Addr::new(127, 64 | high & 63, low, 1);
    let address = TcpListener::bind((host, 0))?.local_addr()?.to_string();
    let mut processes = Processes { folder: folder.to_owned(), address, list: Vec::new() };
    let mut pool = processes.start("pool", 0)?;
    // The pool creates the token file that the others read.
    while !folder.join("token").exists() {
        if let Some(status) = pool.child.try_wait()? {
            return Err(format!("the pool has ended with {status}").into());
        }
        thread::sleep(Duration::from_millis(5));
    }
    processes.list.push(pool);
    for number in 1..=WORKERS {
        let worker = processes.start("work", number)?;
        processes.list.push(worker);
    }
    let (results, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let (killed_all, began) = (AtomicBool::new(false), Instant::now());
    let address = processes.address.clone();
    thread::scope(|scope| {
        let client = scope.spawn(|| {
            let checked = check(folder, &address, &results, &killed_all);
            over.store(true, Ordering::Release);
            checked
        });
        let killed = kill(&mut processes, kills, &results, &over);
        killed_all.store(true, Ordering::Release);
        let checked = client.join().map_err(|_| "the client has panicked")?;
        // What the client says first: if it ended early, that is why not all were killed.
        let jobs = checked?;
        killed?;
        println!(
            "kill: {kills} killed in {:.0?}; {} results of {jobs} jobs, each right and each once",
            began.elapsed(),
            results.load(Ordering::Relaxed)
        );
        Ok(())
    })
}

fn kill(processes: &mut Processes, kills: u64, results: &AtomicU64, over: &AtomicBool) -> Result<(), Failed> {
    let mut random = Random(u64::from(std::process::id()));
    let mut pools = 0;
    for count in 1..=kills {
        thread::sleep(Duration::from_millis(20 + random.below(181)));
        let at = random.below(WORKERS as u64 + 1) as usize;
        pools += u64::from(at == 0);
        processes.replace(at)?;
        let before = results.load(Ordering::Relaxed);
        // On a slow machine, not only starting processes are to be killed.
        while count % PAUSE == 0 && results.load(Ordering::Relaxed) == before && !over.load(Ordering::Acquire)
        {
            thread::sleep(Duration::from_millis(10));
        }
        if over.load(Ordering::Acquire) {
            return Err("the client has ended before all were killed".into());
        }
    }
    println!("kill: {pools} of them were the pool");
    Ok(())
}

/// Runs job after job until all kills are done. Returns how many.
fn check(folder: &Path, address: &str, results: &AtomicU64, killed_all: &AtomicBool) -> Result<u64, Failed> {
    let (program, sum, add, turn) = program();
    let mut remote = Remote::new(&program, builder(folder).join(address.to_owned()), PATIENCE);
    let mut jobs = 0;
    while jobs == 0 || !killed_all.load(Ordering::Acquire) {
        let mut job = remote.job::<u64>(&format!("number {jobs}"))?;
        job.each(sum, (0..TASKS).map(|task| (task, task + NUMBERS)))?;
        // A tree of sums, each of two others.
        let mut level =
            (0..JOINED).map(|first| job.add(sum, (first, first + FEW))).collect::<Result<Vec<_>, _>>()?;
        while level.len() > 1 {
            level = level.chunks(2).map(|two| job.join(add, (), two)).collect::<Result<_, _>>()?;
        }
        let last: Handle<u64> =
            level.iter().fold(job.task(), |task, top| task.after(top)).add(sum, (0, FEW))?;
        let bytes: Vec<u8> = (0..LARGE).map(|at| ((at * (jobs + 1)) >> 3) as u8).collect();
        let mut large = job.write_large();
        large.write_all(&bytes)?;
        let large = large.finish()?;
        let turned = job.task().retries(2).add(turn, large)?;
        job.close()?;
        let mut seen = HashSet::new();
        while let Some(RemoteDone { number: task, result: value }) = job.next_result()? {
            let expected: u64 = (task..task + NUMBERS).sum();
            let value = value.map_err(|why| format!("task {task} of job {jobs}: {why}"))?;
            if value != expected {
                return Err(format!("task {task} of job {jobs} is {value}, not {expected}").into());
            }
            if !seen.insert(task) {
                return Err(format!("the result of task {task} of job {jobs} has come twice").into());
            }
            results.fetch_add(1, Ordering::Relaxed);
        }
        let sum_of = |first: u64| (first..first + FEW).sum::<u64>();
        let (tree, expected) = (job.wait(&level[0])?, (0..JOINED).map(sum_of).sum::<u64>());
        if tree != expected || job.wait(&last)? != sum_of(0) {
            return Err(format!("the sums of job {jobs} are {tree}, not {expected}, and then another").into());
        }
        if seen.len() as u64 != TASKS {
            return Err(format!("job {jobs} has {} results of {TASKS}", seen.len()).into());
        }
        let (turned, mut read) = (job.wait(&turned)?, Vec::new());
        job.read_large(&turned).read_to_end(&mut read)?;
        if read.len() != bytes.len() || read.iter().zip(&bytes).any(|(read, byte)| *read != !byte) {
            return Err(
                format!("the large value of job {jobs} has come back with {} bytes", read.len()).into()
            );
        }
        let number = job.number();
        match remote.ask(&Request::Forget { job: number }) {
            // A pool that was killed before answering had done it.
            Err(error) if !error.to_string().contains("does not exist") => return Err(error.into()),
            _ => {}
        }
        let of_job = format!("{number}.");
        for file in std::fs::read_dir(folder.join("jobs.redb.large"))? {
            let name = file?.file_name();
            if name.to_string_lossy().starts_with(&of_job) {
                return Err(format!("{name:?} is left of job {number}, which was forgotten").into());
            }
        }
        jobs += 1;
    }
    Ok(jobs)
}
