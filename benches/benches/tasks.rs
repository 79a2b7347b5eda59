//! Criterion: round trips of 64 bytes between tasks, compared with those of blocking threads, and of tasks over tokio's channels: back to back, and
//! with a pause before each, in which both ends fall asleep.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
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

criterion_group!(benches, all);
criterion_main!(benches);
