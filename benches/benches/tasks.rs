//! Criterion: round trips of 64 bytes between tasks, compared with those of blocking threads, and of tasks over tokio's channels: back to back, and
//! with a pause before each, in which both ends fall asleep. Then calls of many tasks of one node to one of another node.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use pdbp::{Cluster, Part, PartKind, Shared, Target};
use tokio::runtime::{Builder, Runtime};

const MESSAGE: [u8; 64] = [0x5A; 64];
/// Ends whoever sends everything back.
const END: u16 = 1;

struct Pair {
    pings: Part<Shared>,
    echo: Target,
    /// Gives the part of the thread that echoes back, or its task.
    end: Box<dyn FnOnce()>,
}

impl Pair {
    /// Two nodes with default settings; what runs the one that sends back is up to the caller.
    fn new(run: impl FnOnce(Part<Shared>) -> Box<dyn FnOnce()>) -> Self {
        let cluster = Cluster::builder().nodes(2).start().unwrap();
        let [pings, echoes] =
            [0, 1].map(|n| cluster.node(n).unwrap().register_shared("part", PartKind::Cpu).unwrap());
        let echo = echoes.id();
        Self { pings, echo, end: run(echoes) }
    }

    fn end(self) {
        self.pings.sender(self.echo).command(END).send(&[]).unwrap();
        (self.end)();
    }
}

fn runtime(threads: usize) -> Runtime {
    match threads {
        1 => Builder::new_current_thread().build().unwrap(),
        _ => Builder::new_multi_thread().worker_threads(threads).build().unwrap(),
    }
}

async fn echo(mut part: Part<Shared>) {
    loop {
        let message = part.recv_async().await.unwrap();
        if message.is_command() {
            return;
        }
        part.send_async(message.source(), &message).await.unwrap();
    }
}

/// Sleeps, if at all: 0 would be a system call.
fn rest(pause: Duration) {
    if !pause.is_zero() {
        thread::sleep(pause);
    }
}

async fn ping(part: &mut Part<Shared>, to: Target, times: u64, pause: Duration) -> Duration {
    let mut took = Duration::ZERO;
    for _ in 0..times {
        rest(pause);
        let began = Instant::now();
        part.send_async(to, &MESSAGE).await.unwrap();
        part.recv_async().await.unwrap();
        took += began.elapsed();
    }
    took
}

fn threads(times: u64, pause: Duration) -> Duration {
    let pair = Pair::new(|part| {
        let thread = thread::spawn(move || {
            loop {
                let message = part.recv().unwrap();
                if message.is_command() {
                    return;
                }
                part.send(message.source(), &message).unwrap();
            }
        });
        Box::new(|| thread.join().unwrap())
    });
    let mut took = Duration::ZERO;
    for _ in 0..times {
        rest(pause);
        let began = Instant::now();
        pair.pings.send(pair.echo, &MESSAGE).unwrap();
        pair.pings.recv().unwrap();
        took += began.elapsed();
    }
    pair.end();
    took
}

/// A runtime of one thread for each.
fn tasks_of_two_threads(times: u64, pause: Duration) -> Duration {
    let mut pair = Pair::new(|part| {
        let thread = thread::spawn(move || runtime(1).block_on(echo(part)));
        Box::new(|| thread.join().unwrap())
    });
    let took = runtime(1).block_on(ping(&mut pair.pings, pair.echo, times, pause));
    pair.end();
    took
}

/// One runtime, with as many threads.
fn tasks_of_one_runtime(threads: usize, times: u64) -> Duration {
    let runtime = runtime(threads);
    let (task, tasks) = mpsc::channel();
    let pair = Pair::new(move |part| {
        task.send(part).unwrap();
        Box::new(|| {})
    });
    let echoes = runtime.spawn(echo(tasks.recv().unwrap()));
    let Pair { mut pings, echo, .. } = pair;
    runtime.block_on(async move {
        let pinging = tokio::spawn(async move {
            let took = ping(&mut pings, echo, times, Duration::ZERO).await;
            pings.sender(echo).command(END).send(&[]).unwrap();
            took
        });
        let took = pinging.await.unwrap();
        echoes.await.unwrap();
        took
    })
}

/// What tokio's own channels take, with a runtime of one thread for each.
fn channels_of_two_threads(times: u64, pause: Duration) -> Duration {
    let (there, mut arrivals) = tokio::sync::mpsc::unbounded_channel::<[u8; 64]>();
    let (back, mut answers) = tokio::sync::mpsc::unbounded_channel();
    let echoes = thread::spawn(move || {
        runtime(1).block_on(async move {
            while let Some(message) = arrivals.recv().await {
                back.send(message).unwrap();
            }
        });
    });
    let took = runtime(1).block_on(async {
        let mut took = Duration::ZERO;
        for _ in 0..times {
            rest(pause);
            let began = Instant::now();
            there.send(MESSAGE).unwrap();
            answers.recv().await.unwrap();
            took += began.elapsed();
        }
        took
    });
    drop(there);
    echoes.join().unwrap();
    took
}

/// Calls of each task in an iteration, since starting takes long.
const CALLS: u64 = 1000;

/// Where the tasks of the two nodes run.
#[derive(Clone, Copy)]
enum Runtimes {
    /// On a runtime of one thread for each node.
    Two,
    /// On one for both, with so many threads.
    One(usize),
}

/// Lets many tasks call at the same time, and another one answer.
fn run_calls<E: Send + 'static>(
    runtimes: Runtimes,
    answering: impl Future<Output = ()> + Send + 'static,
    callers: impl IntoIterator<Item: Future<Output = E> + Send + 'static>,
) -> Duration {
    let (calls, thread, task) = match runtimes {
        Runtimes::Two => {
            let thread = thread::spawn(|| runtime(1).block_on(answering));
            (runtime(1), Some(thread), None)
        }
        Runtimes::One(threads) => {
            let calls = runtime(threads);
            let task = calls.spawn(answering);
            (calls, None, Some(task))
        }
    };
    let began = Instant::now();
    let callers: Vec<_> = callers.into_iter().map(|caller| calls.spawn(caller)).collect();
    // What they have called with: to drop a part takes longer than a call.
    let mut ends = Vec::new();
    calls.block_on(async {
        for caller in callers {
            ends.push(caller.await.unwrap());
        }
    });
    let took = began.elapsed();
    task.into_iter().for_each(|task| calls.block_on(task).unwrap());
    thread.into_iter().for_each(|thread| thread.join().unwrap());
    took
}

fn calls(callers: u64, runtimes: Runtimes, times: u64) -> Duration {
    let each = times * CALLS;
    let parts = callers as u16 + 16;
    let builder = Cluster::builder().nodes(2).local_parts(parts).parts(2 * usize::from(parts));
    let cluster = builder.private_pipes(parts).start().unwrap();
    let mut answers = cluster.node(1).unwrap().register_shared("answers", PartKind::Cpu).unwrap();
    let (to, node) = (answers.id(), cluster.node(0).unwrap());
    let parts = (0..callers).map(|n| node.register_shared(&format!("caller{n}"), PartKind::Cpu).unwrap());
    let waiting = parts.collect::<Vec<_>>().into_iter().map(move |mut part| async move {
        for call in 0..each {
            part.send_async(to, &[call; 8].map(u64::to_ne_bytes).concat()).await.unwrap();
            assert_eq!(part.recv_async().await.unwrap()[..8], call.to_ne_bytes());
        }
        part
    });
    let answering = async move {
        for _ in 0..each * callers {
            let call = answers.recv_async().await.unwrap();
            answers.send_async(call.source(), &call).await.unwrap();
        }
        answers.flush();
    };
    run_calls(runtimes, answering, waiting)
}

/// The same over channels that hold 1024 calls, and 16 answers each.
fn calls_over_channels(callers: u64, runtimes: Runtimes, times: u64) -> Duration {
    let each = times * CALLS;
    let (to, mut calls) = tokio::sync::mpsc::channel::<(usize, [u64; 8])>(1024);
    let (answers, ends): (Vec<_>, Vec<_>) = (0..callers).map(|_| tokio::sync::mpsc::channel(16)).unzip();
    let callers = ends.into_iter().enumerate().map(|(place, mut answers)| {
        let to = to.clone();
        async move {
            for call in 0..each {
                to.send((place, [call; 8])).await.unwrap();
                assert_eq!(answers.recv().await.unwrap(), [call; 8]);
            }
        }
    });
    let callers: Vec<_> = callers.collect();
    let answering = async move {
        for _ in 0..each * answers.len() as u64 {
            let (place, call) = calls.recv().await.unwrap();
            answers[place].send(call).await.unwrap();
        }
    };
    run_calls(runtimes, answering, callers)
}

fn many(criterion: &mut Criterion) {
    let runtimes = [
        ("a runtime each", Runtimes::Two),
        ("one runtime of 2", Runtimes::One(2)),
        ("one runtime of 1", Runtimes::One(1)),
    ];
    for callers in [8, 64, 256] {
        let mut group = criterion.benchmark_group(format!("calls of {callers} tasks"));
        group
            .warm_up_time(Duration::from_millis(100))
            .measurement_time(Duration::from_millis(500))
            .sample_size(10)
            .throughput(Throughput::Elements(CALLS * callers));
        for (name, runtimes) in runtimes {
            group
                .bench_function(format!("parts, {name}"), |b| b.iter_custom(|n| calls(callers, runtimes, n)));
            group.bench_function(format!("tokio's channels, {name}"), |b| {
                b.iter_custom(|n| calls_over_channels(callers, runtimes, n));
            });
        }
        group.finish();
    }
}

fn all(criterion: &mut Criterion) {
    for (name, pause) in [("round trip", Duration::ZERO), ("round trip after 1 ms", Duration::from_millis(1))]
    {
        let mut group = criterion.benchmark_group(name);
        group
            .warm_up_time(Duration::from_millis(300))
            .measurement_time(Duration::from_secs(2))
            .sample_size(20);
        group.bench_function("threads that block", |b| b.iter_custom(|n| threads(n, pause)));
        group.bench_function("tasks, a runtime each", |b| b.iter_custom(|n| tasks_of_two_threads(n, pause)));
        if pause.is_zero() {
            group
                .bench_function("tasks, one runtime of 2", |b| b.iter_custom(|n| tasks_of_one_runtime(2, n)));
            group
                .bench_function("tasks, one runtime of 1", |b| b.iter_custom(|n| tasks_of_one_runtime(1, n)));
        }
        group.bench_function("tokio's channels, a runtime each", |b| {
            b.iter_custom(|n| channels_of_two_threads(n, pause));
        });
        group.finish();
    }
}

criterion_group!(benches, all, many);
criterion_main!(benches);
