//! Instruction counts per message, by callgrind through gungraun.
//!
//! Needs `valgrind` and `cargo install gungraun-runner --version =0.20.0`; then
//! `cargo bench -p pdbp-benches --bench instructions`. Every function handles 1000 messages of 64 bytes in steady
//! state (`blocks`: 1000 blocks; `calls`: 1000 calls of a group), sender and receiver together, so the count of instructions divided by 1000 is the count per
//! message.

#![expect(missing_docs, reason = "the items are made by the harness's macros")]

use std::hint::black_box;

use gungraun::prelude::*;
use pdbp_benches::fabric::{Endpoint, Fabric};
use pdbp_benches::peers::{BbQueue, Boxed, CoreEndpoint, Crossbeam, PdbpCore, Rtrb, RtrbGathering, Usual};
use pdbp_benches::round_trip::RoundTrip;
use pdbp_benches::scenario::{Pattern, Scenario};
use pdbp_benches::slate::Pair;
use pdbp_benches::source::{Source, Tally, copy_packet};
use pdbp_core::collective::{Call, Element, Kind, Op};
use pdbp_core::policy::Adaptive;

/// Bytes of a message.
const MESSAGE: usize = 64;
/// Messages sent before they are received.
const BATCH: u64 = 100;

/// A pair of nodes that has carried messages already.
fn steady<F: Fabric>() -> Box<RoundTrip<F>> {
    let mut pair = Box::new(RoundTrip::new(MESSAGE));
    for _ in 0..100 {
        black_box(pair.packets(BATCH));
    }
    pair
}

/// 1000 messages there and read. The pair comes back so that freeing it is not counted.
fn thousand<F: Fabric>(mut pair: Box<RoundTrip<F>>) -> Box<RoundTrip<F>> {
    for _ in 0..1000 / BATCH {
        black_box(pair.packets(BATCH));
    }
    pair
}

#[library_benchmark]
#[bench::push_pop_1000(steady::<Rtrb>())]
fn rtrb(pair: Box<RoundTrip<Rtrb>>) -> Box<RoundTrip<Rtrb>> {
    thousand(pair)
}

#[library_benchmark]
#[bench::push_pop_1000(steady::<RtrbGathering>())]
fn rtrb_gather(pair: Box<RoundTrip<RtrbGathering>>) -> Box<RoundTrip<RtrbGathering>> {
    thousand(pair)
}

#[library_benchmark]
#[bench::push_pop_1000(steady::<BbQueue>())]
fn bbqueue(pair: Box<RoundTrip<BbQueue>>) -> Box<RoundTrip<BbQueue>> {
    thousand(pair)
}

#[library_benchmark]
#[bench::push_pop_1000(steady::<Boxed<Crossbeam>>())]
fn crossbeam(pair: Box<RoundTrip<Boxed<Crossbeam>>>) -> Box<RoundTrip<Boxed<Crossbeam>>> {
    thousand(pair)
}

#[library_benchmark]
#[bench::push_pop_1000(steady::<PdbpCore<Usual>>())]
fn engine(pair: Box<RoundTrip<PdbpCore<Usual>>>) -> Box<RoundTrip<PdbpCore<Usual>>> {
    thousand(pair)
}

// 1000 blocks there and back, each with so many messages: packed, submitted, carried, routed, delivered, released and taken back.
// Each node is polled once per block; the sender's poll takes the previous block back. A block without its messages costs twice the
// count with 9 less the count with 18.
#[library_benchmark]
#[bench::of_9_messages_1000(steady::<PdbpCore<Usual>>(), 9)]
#[bench::of_18_messages_1000(steady::<PdbpCore<Usual>>(), 18)]
fn blocks(mut pair: Box<RoundTrip<PdbpCore<Usual>>>, messages: u64) -> Box<RoundTrip<PdbpCore<Usual>>> {
    for _ in 0..1000 {
        black_box(pair.packets(messages));
    }
    pair
}

/// Two endpoints, and messages.
struct Nodes {
    sender: CoreEndpoint<Adaptive>,
    receiver: CoreEndpoint<Adaptive>,
    source: Source,
}

/// How the messages follow each other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// All with one route: one header for as many as fit a block.
    Train,
    /// The sending part changes from each to the next, so that every one has its own header.
    Mixed,
}

impl Nodes {
    /// Two nodes that have carried messages already, with another 1000 under way as far as `stage` says. In a box, since what a benchmark is
    /// handed is moved while it counts.
    fn new(order: Order, stage: Stage) -> (Box<Self>, Order) {
        let ends = PdbpCore::<Usual>::connect(&Scenario::new(Pattern::OneToMany, 2, MESSAGE));
        let Ok([sender, receiver]) = <[CoreEndpoint<Adaptive>; 2]>::try_from(ends) else {
            panic!("two nodes have two endpoints")
        };
        let mut nodes = Box::new(Self { sender, receiver, source: Source::new(0, MESSAGE) });
        for _ in 0..100 {
            nodes.pack(order);
            nodes.route();
            nodes.deliver();
            nodes.sender.poll();
        }
        if stage != Stage::Pack {
            nodes.pack(order);
        }
        if stage == Stage::Deliver {
            nodes.route();
        }
        (nodes, order)
    }

    /// 1000 messages into blocks: what a sending part does.
    #[inline(never)]
    fn pack(&mut self, order: Order) {
        let parts = if order == Order::Train { [0, 0] } else { [0, 1] };
        for (k, message) in self.source.bytes().chunks_exact(MESSAGE).take(1000).enumerate() {
            assert!(self.sender.pack(parts[k % 2], 1, message), "there are vacant blocks");
        }
    }

    /// The blocks to the receiver's private pipe: what both engines do.
    #[inline(never)]
    fn route(&mut self) {
        self.sender.flush();
        while self.receiver.poll() > 0 {}
    }

    /// 1000 messages read and their blocks released: what a receiving part does.
    #[inline(never)]
    fn deliver(&mut self) {
        let mut tally = Tally::default();
        self.receiver.read(|message| tally.add(message));
        assert_eq!(black_box(tally).packets, 1000);
    }
}

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Pack,
    Route,
    Deliver,
}

#[library_benchmark]
#[bench::train_1000(Nodes::new(Order::Train, Stage::Pack))]
#[bench::mixed_1000(Nodes::new(Order::Mixed, Stage::Pack))]
fn pack((mut nodes, order): (Box<Nodes>, Order)) -> Box<Nodes> {
    nodes.pack(order);
    nodes
}

#[library_benchmark]
#[bench::train_1000(Nodes::new(Order::Train, Stage::Route))]
#[bench::mixed_1000(Nodes::new(Order::Mixed, Stage::Route))]
fn route((mut nodes, _): (Box<Nodes>, Order)) -> Box<Nodes> {
    nodes.route();
    nodes
}

#[library_benchmark]
#[bench::train_1000(Nodes::new(Order::Train, Stage::Deliver))]
#[bench::mixed_1000(Nodes::new(Order::Mixed, Stage::Deliver))]
fn deliver((mut nodes, _): (Box<Nodes>, Order)) -> Box<Nodes> {
    nodes.deliver();
    nodes
}

fn group(call: Call) -> (Box<Pair>, Call) {
    let mut pair = Box::new(Pair::new());
    (0..100).for_each(|_| pair.call(&call));
    (pair, call)
}

/// A group that has made such calls by notes already, and the call.
fn noted(call: Call) -> (Box<Pair>, Call) {
    let mut pair = Box::new(Pair::new());
    (0..100).for_each(|_| pair.note(&call));
    (pair, call)
}

// 1000 calls of a group of two in shared memory by messages, of both members together. One of them looks once in vain whether a message has come.
#[library_benchmark]
#[bench::broadcast_1000(group(Call::moving(Kind::Broadcast, 0, 8)))]
#[bench::all_reduce_1000(group(Call::reducing(Kind::AllReduce, 0, Element::F32, Op::Sum, 8)))]
fn calls((mut pair, call): (Box<Pair>, Call)) -> Box<Pair> {
    (0..1000).for_each(|_| pair.call(black_box(&call)));
    pair
}

// The same by notes, as such short calls are made.
#[library_benchmark]
#[bench::broadcast_1000(noted(Call::moving(Kind::Broadcast, 0, 8)))]
#[bench::all_reduce_1000(noted(Call::reducing(Kind::AllReduce, 0, Element::F32, Op::Sum, 8)))]
fn notes((mut pair, call): (Box<Pair>, Call)) -> Box<Pair> {
    (0..1000).for_each(|_| pair.note(black_box(&call)));
    pair
}

// The same of barriers.
#[library_benchmark]
#[bench::barrier_1000(Box::new(Pair::new()))]
fn barriers(mut pair: Box<Pair>) -> Box<Pair> {
    (0..1000).for_each(|_| pair.barrier());
    pair
}

// 1000 messages copied to one place and read there: what is left when all else is taken away.
#[library_benchmark]
#[bench::copy_read_1000((Source::new(0, MESSAGE), vec![0; MESSAGE]))]
fn limit((source, mut room): (Source, Vec<u8>)) -> (Source, Vec<u8>) {
    let mut tally = Tally::default();
    for message in source.bytes().chunks_exact(MESSAGE).take(1000) {
        copy_packet(black_box(&mut room), message);
        tally.add(black_box(&room));
    }
    black_box(tally);
    (source, room)
}

library_benchmark_group!(
    name = messages,
    benchmarks = [
        engine,
        blocks,
        pack,
        route,
        deliver,
        calls,
        notes,
        barriers,
        rtrb,
        rtrb_gather,
        bbqueue,
        crossbeam,
        limit
    ]
);
main!(library_benchmark_groups = messages);
