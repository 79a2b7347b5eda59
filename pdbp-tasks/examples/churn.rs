//! What is lost when processes come and go: `cargo run --release -p pdbp-tasks --no-default-features --features net --example churn FOLDER`.
//!
//! A pool with a journal and four processes with a processor each, all of them on this machine; tasks sleep 10 ms. Three things are measured: how much of
//! its life a process computes that lives for a second; what becomes of the rate, and of the tasks of those that are gone, when half of the processes are
//! killed at once; and how long after its start a pool that was killed has given a client a result again.

use std::error::Error;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pdbp::Builder;
use pdbp_tasks::net::{Remote, Request, Serving, WhenLost, Working};
use pdbp_tasks::{Kind, Limits, Program};

type Failed = Box<dyn Error + Send + Sync>;

const WORKERS: usize = 4;
const TASK: Duration = Duration::from_millis(10);
/// Lives that are measured, one after the other at each place.
const LIVES: usize = 8;
const PATIENCE: Duration = Duration::from_secs(60);

/// Microseconds that this process has computed.
static USED: AtomicU64 = AtomicU64::new(0);

fn program() -> (Program, Kind<u64, u64>) {
    let mut program = Program::new("churn");
    let sleep = program.kind("sleep", |number: u64| {
        let began = Instant::now();
        thread::sleep(TASK);
        USED.fetch_add(began.elapsed().as_micros() as u64, Ordering::Relaxed);
        number
    });
    program.limits(Limits { crashes: usize::MAX, ..Limits::default() });
    program.slots(1);
    (program, sleep)
}

fn builder(folder: &Path) -> Builder {
    Builder::new().token_file(folder.join("token"))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ended = match words[..] {
        ["pool", folder, address] => serve(folder.as_ref(), address),
        ["work", folder, address, millis] => work(folder.as_ref(), address, millis.parse().ok()),
        [folder] => measure(folder.as_ref()),
        _ => Err("which folder? It is for the journal and a token".into()),
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

/// For so many milliseconds, if that is said. Prints how long it was at the pool, and how much of that it has computed, in microseconds.
fn work(folder: &Path, address: &str, millis: Option<u64>) -> Result<(), Failed> {
    let mut working = Working::default();
    working.when_lost = WhenLost::Wait(PATIENCE);
    working.until = millis.map(Duration::from_millis);
    let builder = builder(folder).join(address.to_owned());
    let came = Mutex::new(None);
    let say = |_: &str| drop(came.lock().map(|mut came| came.get_or_insert_with(Instant::now).elapsed()));
    program().0.work(builder, &working, &AtomicBool::new(false), &say)?;
    let lived = came.lock().ok().and_then(|came| *came).map_or(0, |came| came.elapsed().as_micros());
    println!("{lived} {}", USED.load(Ordering::Relaxed));
    Ok(())
}

/// A process, which is killed when it is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may be gone.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(arguments: &[&str]) -> Result<Process, Failed> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
    Ok(Process(command.spawn()?))
}

fn measure(folder: &Path) -> Result<(), Failed> {
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let (place, address) = (folder.display().to_string(), format!("127.0.0.1:{port}"));
    let mut pool = start(&["pool", &place, &address])?;
    while !folder.join("token").exists() {
        thread::sleep(Duration::from_millis(5));
    }
    let (program, sleep) = program();
    let mut remote = Remote::new(&program, builder(folder).join(address.clone()), PATIENCE);
    let mut job = remote.job::<u64>("sleep")?;
    job.each(sleep, 0..1_000_000)?;
    lives(&place, &address)?;

    let worker = || start(&["work", &place, &address, "forever"]);
    let mut workers = (0..WORKERS).map(|_| worker()).collect::<Result<Vec<_>, _>>()?;
    // Of the job some have ended before: what is measured comes behind.
    let mut take = |until: Instant, seen: &mut Vec<(Instant, u64)>| -> Result<(), Failed> {
        while Instant::now() < until {
            let done = job.next_result()?.ok_or("the job is over")?;
            seen.push((Instant::now(), done.number));
        }
        Ok(())
    };
    let mut seen = Vec::new();
    take(Instant::now() + Duration::from_secs(4), &mut seen)?;
    half(&mut workers, &mut take)?;
    drop(pool);
    let began = Instant::now();
    pool = start(&["pool", &place, &address])?;
    let mut after = Vec::new();
    while after.is_empty() {
        take(Instant::now() + Duration::from_millis(1), &mut after)?;
    }
    let first = after[0].0.duration_since(began).as_secs_f64();
    println!("a pool that was killed: a client has a result again {first:.2} s after its start");
    let number = job.number();
    remote.ask(&Request::Cancel { job: number })?;
    drop(pool);
    Ok(())
}

/// Each place has one process after the other, of a second each.
fn lives(place: &str, address: &str) -> Result<(), Failed> {
    let of_place = || -> Result<(u64, u64), Failed> {
        let (mut lived, mut used) = (0, 0);
        for _ in 0..LIVES {
            let mut process = start(&["work", place, address, "1000"])?;
            let said = std::io::read_to_string(process.0.stdout.take().ok_or("it says nothing")?)?;
            let mut numbers = said.split_whitespace().map(str::parse::<u64>);
            lived += numbers.next().ok_or("it has said nothing")??;
            used += numbers.next().ok_or("it has not said all")??;
        }
        Ok((lived, used))
    };
    let sums = thread::scope(|scope| {
        let places: Vec<_> = (0..WORKERS).map(|_| scope.spawn(of_place)).collect();
        places
            .into_iter()
            .map(|of| of.join().map_err(|_| "a thread has panicked")?)
            .collect::<Result<Vec<_>, _>>()
    })?;
    let (lived, used) = sums.iter().fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
    println!(
        "{} lives of 1 s, at the pool for {:.2} s each: {:.3} of that is of use",
        WORKERS * LIVES,
        lived as f64 / 1e6 / (WORKERS * LIVES) as f64,
        used as f64 / lived as f64
    );
    Ok(())
}

type Take<'t> = &'t mut dyn FnMut(Instant, &mut Vec<(Instant, u64)>) -> Result<(), Failed>;

/// Half of the processes are killed at once.
fn half(workers: &mut Vec<Process>, take: Take<'_>) -> Result<(), Failed> {
    const WINDOW: Duration = Duration::from_millis(500);
    let mut seen = Vec::new();
    let began = Instant::now();
    take(began + Duration::from_secs(4), &mut seen)?;
    let rate = seen.len() as f64 / began.elapsed().as_secs_f64();
    let before: std::collections::HashSet<u64> = seen.iter().map(|(_, number)| *number).collect();
    let newest = before.iter().max().copied().unwrap_or(0);
    let oldest = before.iter().min().copied().unwrap_or(0);
    workers.truncate(WORKERS / 2);
    let killed = Instant::now();
    let mut after = Vec::new();
    take(killed + Duration::from_secs(6), &mut after)?;
    let windows = (0..12).map(|i| {
        let (from, to) = (killed + WINDOW * i, killed + WINDOW * (i + 1));
        after.iter().filter(|(at, _)| *at >= from && *at < to).count() as f64 / WINDOW.as_secs_f64()
    });
    let least = windows.fold(f64::INFINITY, f64::min);
    let late = after.iter().filter(|(_, number)| (oldest..newest).contains(number));
    let last = late.map(|(at, _)| at.duration_since(killed).as_secs_f64()).fold(0.0, f64::max);
    println!(
        "half of {WORKERS} killed at once: {rate:.0} results a second before, and of the rest in the worst half second {:.2} of their share; the last of the lost tasks has ended {last:.2} s later",
        least / (rate / 2.0)
    );
    Ok(())
}
