//! Instruction counts per message of PDBP as users get it, by callgrind through gungraun; see `instructions.rs`.
//!
//! Every function handles 1000 messages of 64 bytes (on average, where lengths differ) in steady state, sender and receiver on one thread with
//! progress by the parts. With `touch` the receiver reads length and first byte of every message, with `read` every byte. `stages` are the thirds
//! of `messages`: the work of the sending part (including packing, sealing and submission of blocks), of a poll of the receiving node, and of the
//! receiving part.

#![expect(missing_docs, reason = "the items are made by the harness's macros")]

use std::hint::black_box;

use bytemuck::{Pod, Zeroable};
use gungraun::prelude::*;
use pdbp::{Part, PartKind, Shared};
use pdbp_benches::fabric::Fabric;
use pdbp_benches::peers::{Pdbp, PdbpEndpoint, Settings};
use pdbp_benches::scenario::{Pattern, Scenario};
use pdbp_benches::source::{Source, read_every_byte};

/// Bytes of a message, on average.
const MESSAGE: usize = 64;
/// Messages of a measurement.
const COUNT: usize = 1000;
/// Where lengths differ they take turns; none is the one before, so that every message has a header.
const LENGTHS: [usize; 8] = [64, 24, 104, 8, 120, 40, 96, 56];

/// A value as a simulation would send it.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Sample([u64; 8]);

/// What the receiver does with a message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Touch,
    Read,
}

#[inline(always)]
fn consume(bytes: &[u8], how: Use) {
    match how {
        Use::Touch => {
            black_box((bytes.len(), bytes.first().copied()));
        }
        Use::Read => {
            black_box(read_every_byte(bytes));
        }
    }
}

/// The mode of progress; nothing happens by the clock, which runs fast under callgrind.
fn settings(progress: &str) -> Vec<(&'static str, String)> {
    [("progress", progress), ("flush_after_us", "10000000"), ("interval_us", "60000000")]
        .map(|(key, value)| (key, value.to_owned()))
        .into()
}

/// Progress by the parts.
struct Inline;

impl Settings for Inline {
    fn of(_: &Scenario) -> Vec<(&'static str, String)> {
        settings("inline")
    }
}

/// Open blocks that others may flush too, as with a progress thread, but without one.
struct Host;

impl Settings for Host {
    fn of(_: &Scenario) -> Vec<(&'static str, String)> {
        settings("host")
    }
}

/// Node 0, which sends, and the others, which receive.
struct Parts {
    sender: PdbpEndpoint,
    receivers: Vec<PdbpEndpoint>,
    source: Source,
    values: Vec<Sample>,
}

impl Parts {
    fn new<S: Settings>(nodes: usize) -> Self {
        let seats = Pdbp::<S>::connect(&Scenario::new(Pattern::OneToMany, nodes, MESSAGE));
        let mut ends: Vec<PdbpEndpoint> = seats.into_iter().map(Into::into).collect();
        let receivers = ends.split_off(1);
        let sender = ends.pop().expect("node 0");
        let values = (0..COUNT as u64).map(|k| Sample([k; 8])).collect();
        Self { sender, receivers, source: Source::new(0, MESSAGE), values }
    }

    /// Messages of 64 bytes to node 1.
    #[inline(never)]
    fn send(&mut self) {
        let to = self.sender.target(1);
        let part = self.sender.part();
        for message in self.source.bytes().as_chunks::<MESSAGE>().0.iter().take(COUNT) {
            part.send(to, message).expect("there is room");
        }
        part.flush();
    }

    /// Messages of several lengths to the other nodes in turn.
    #[inline(never)]
    fn send_mixed(&mut self) {
        let to: Vec<_> = (0..self.receivers.len()).map(|i| self.sender.target(i + 1)).collect();
        let (part, bytes) = (self.sender.part(), self.source.bytes());
        for k in 0..COUNT {
            // Every node gets all lengths.
            let length = LENGTHS[k / to.len() % LENGTHS.len()];
            part.send(to[k % to.len()], &bytes[8 * k..8 * k + length]).expect("there is room");
        }
        part.flush();
    }

    /// Plain values to node 1.
    #[inline(never)]
    fn send_values(&mut self) {
        let to = self.sender.target(1);
        let part = self.sender.part();
        for value in &self.values {
            part.send_value(to, value).expect("there is room");
        }
        part.flush();
    }

    /// Plain values to the other nodes in turn.
    #[inline(never)]
    fn send_in_turn(&mut self) {
        let to = [self.sender.target(1), self.sender.target(2)];
        let part = self.sender.part();
        for (value, to) in self.values.iter().zip(to.iter().cycle()) {
            part.send_value(*to, value).expect("there is room");
        }
        part.flush();
    }

    /// As many plain values, in slices.
    #[inline(never)]
    fn send_each(&mut self) {
        let to = self.sender.target(1);
        let part = self.sender.part();
        for values in self.values.chunks(100) {
            part.sender(to).send_each(values).expect("there is room");
        }
        part.flush();
    }

    /// The receiving nodes take their blocks.
    #[inline(never)]
    fn route(&mut self) {
        for receiver in &self.receivers {
            while receiver.part().node().poll().worked {}
        }
    }

    /// Messages one at a time.
    #[inline(never)]
    fn receive(&mut self, how: Use) {
        let mut got = 0;
        loop {
            for receiver in &self.receivers {
                while let Some(message) = receiver.part().try_recv() {
                    consume(&message, how);
                    got += 1;
                }
            }
            if got == COUNT {
                return;
            }
            self.wait_for_credit();
        }
    }

    /// Values, a train at a time.
    #[inline(never)]
    fn receive_values(&mut self, how: Use) {
        let mut got = 0;
        loop {
            for receiver in &self.receivers {
                while let Some(batch) = receiver.part().try_recv_batch() {
                    for value in batch.values::<Sample>().expect("values that lie as they should") {
                        consume(bytemuck::bytes_of(value), how);
                        got += 1;
                    }
                }
            }
            if got == COUNT {
                return;
            }
            self.wait_for_credit();
        }
    }

    /// The first rounds find rows that have to grow yet; later on everything is sent at once.
    #[cold]
    fn wait_for_credit(&self) {
        self.sender.part().node().poll();
    }

    /// All of it, once.
    fn go(&mut self, what: What, how: Use) {
        match what {
            What::Equal => self.send(),
            What::Mixed => self.send_mixed(),
            What::Values => self.send_values(),
            What::InTurn => self.send_in_turn(),
            What::Each => self.send_each(),
        }
        match what {
            What::Values | What::InTurn | What::Each => self.receive_values(how),
            What::Equal | What::Mixed => self.receive(how),
        }
    }
}

/// Parts that may go to another thread, on the nodes of others.
struct Moving {
    parts: Parts,
    sender: Part<Shared>,
    receiver: Part<Shared>,
}

impl Moving {
    /// Parts that have exchanged messages already.
    fn steady() -> Self {
        let parts = Parts::new::<Inline>(2);
        let register = |end: &PdbpEndpoint| {
            end.part().node().register_shared("moving", PartKind::Cpu).expect("there is room for a part")
        };
        let (sender, receiver) = (register(&parts.sender), register(&parts.receivers[0]));
        let mut moving = Self { parts, sender, receiver };
        for _ in 0..50 {
            moving.go();
        }
        moving
    }

    /// As [`Parts::go`] with [`What::Equal`] and [`Use::Touch`].
    fn go(&mut self) {
        let to = self.receiver.id();
        for message in self.parts.source.bytes().as_chunks::<MESSAGE>().0.iter().take(COUNT) {
            self.sender.send(to, message).expect("there is room");
        }
        self.sender.flush();
        let mut got = 0;
        loop {
            while let Some(message) = self.receiver.try_recv() {
                consume(&message, Use::Touch);
                got += 1;
            }
            if got == COUNT {
                return;
            }
            self.parts.wait_for_credit();
        }
    }
}

/// What is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// Messages of 64 bytes to one part.
    Equal,
    /// Messages of several lengths to two parts.
    Mixed,
    /// Values, each by itself.
    Values,
    /// The same to two parts in turn.
    InTurn,
    /// Values, 100 at a time.
    Each,
}

/// Parts that have exchanged messages already.
fn steady<S: Settings>(what: What, how: Use) -> (Parts, What, Use) {
    let nodes = if matches!(what, What::Mixed | What::InTurn) { 3 } else { 2 };
    let mut parts = Parts::new::<S>(nodes);
    for _ in 0..50 {
        parts.go(what, how);
    }
    (parts, what, how)
}

#[library_benchmark]
#[bench::touch_1000(steady::<Inline>(What::Equal, Use::Touch))]
#[bench::read_1000(steady::<Inline>(What::Equal, Use::Read))]
#[bench::host_touch_1000(steady::<Host>(What::Equal, Use::Touch))]
fn messages((mut parts, what, how): (Parts, What, Use)) -> Parts {
    parts.go(what, how);
    parts
}

#[library_benchmark]
#[bench::touch_1000(Moving::steady())]
fn shared(mut moving: Moving) -> Moving {
    moving.go();
    moving
}

#[library_benchmark]
#[bench::touch_1000(steady::<Inline>(What::Values, Use::Touch))]
#[bench::read_1000(steady::<Inline>(What::Values, Use::Read))]
#[bench::host_touch_1000(steady::<Host>(What::Values, Use::Touch))]
#[bench::each_touch_1000(steady::<Inline>(What::Each, Use::Touch))]
#[bench::in_turn_touch_1000(steady::<Inline>(What::InTurn, Use::Touch))]
fn typed((mut parts, what, how): (Parts, What, Use)) -> Parts {
    parts.go(what, how);
    parts
}

/// A single message there and back, each flushed.
#[inline(never)]
fn trip(parts: &mut Parts) {
    let there = parts.sender.target(1);
    let (sender, receiver) = (parts.sender.part(), parts.receivers[0].part());
    let message = &parts.source.bytes()[..MESSAGE];
    sender.send(there, message).expect("there is room");
    sender.flush();
    let got = receiver.recv().expect("it was sent");
    consume(&got, Use::Touch);
    receiver.send(got.source(), &got).expect("there is room");
    drop(got);
    receiver.flush();
    consume(&sender.recv().expect("it was sent"), Use::Touch);
}

/// Parts that have exchanged single messages already.
fn settled() -> Parts {
    let mut parts = Parts::new::<Inline>(2);
    (0..1000).for_each(|_| trip(&mut parts));
    parts
}

#[library_benchmark]
#[bench::there_and_back_1000(settled())]
fn trips(mut parts: Parts) -> Parts {
    (0..COUNT).for_each(|_| trip(&mut parts));
    parts
}

// A look for a message, with a poll of the node, that finds none.
#[library_benchmark]
#[bench::try_recv_1000(settled())]
fn idle(parts: Parts) -> Parts {
    for _ in 0..COUNT {
        assert!(black_box(parts.receivers[0].part().try_recv()).is_none());
    }
    parts
}

#[library_benchmark]
#[bench::touch_1000(steady::<Inline>(What::Mixed, Use::Touch))]
#[bench::read_1000(steady::<Inline>(What::Mixed, Use::Read))]
#[bench::host_touch_1000(steady::<Host>(What::Mixed, Use::Touch))]
fn mixed((mut parts, what, how): (Parts, What, Use)) -> Parts {
    parts.go(what, how);
    parts
}

/// What of a round is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Send,
    Route,
    Receive,
}

/// Parts with a round behind them as far as `stage`.
fn before(stage: Stage) -> (Parts, Stage) {
    let (mut parts, ..) = steady::<Inline>(What::Equal, Use::Touch);
    if stage != Stage::Send {
        parts.send();
    }
    if stage == Stage::Receive {
        parts.route();
    }
    (parts, stage)
}

#[library_benchmark]
#[bench::send_1000(before(Stage::Send))]
#[bench::route_1000(before(Stage::Route))]
#[bench::receive_1000(before(Stage::Receive))]
fn stages((mut parts, stage): (Parts, Stage)) -> Parts {
    match stage {
        Stage::Send => parts.send(),
        Stage::Route => parts.route(),
        Stage::Receive => parts.receive(Use::Touch),
    }
    parts
}

// What the user's own code takes of it: 1000 messages copied to one place and used there.
#[library_benchmark]
#[bench::copy_touch_1000((Source::new(0, MESSAGE), Use::Touch))]
#[bench::copy_read_1000((Source::new(0, MESSAGE), Use::Read))]
fn limit((source, how): (Source, Use)) -> Source {
    let mut room = [0; MESSAGE];
    for message in source.bytes().as_chunks::<MESSAGE>().0.iter().take(COUNT) {
        black_box(&mut room).copy_from_slice(message);
        consume(black_box(&room), how);
    }
    source
}

library_benchmark_group!(
    name = runtime,
    benchmarks = [messages, shared, typed, mixed, stages, trips, idle, limit]
);
main!(library_benchmark_groups = runtime);
