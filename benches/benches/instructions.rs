//! Instruction counts per message, by callgrind through gungraun.
//!
//! Needs `valgrind` and `cargo install gungraun-runner --version =0.20.0`; then
//! `cargo bench -p pdbp-benches --bench instructions`. Every function handles 1000 messages of 64 bytes in steady
//! state, sender and receiver together, so the count of instructions divided by 1000 is the count per message.

#![expect(missing_docs, reason = "the items are made by the harness's macros")]

use std::hint::black_box;

use gungraun::prelude::*;
use pdbp_benches::fabric::Fabric;
use pdbp_benches::peers::{BbQueue, Boxed, Crossbeam, Rtrb, RtrbGathering};
use pdbp_benches::round_trip::RoundTrip;

/// Bytes of a message.
const MESSAGE: usize = 64;
/// Messages sent before they are received.
const BATCH: u64 = 100;

/// A pair of nodes that has carried messages already.
fn steady<F: Fabric>() -> RoundTrip<F> {
    let mut pair = RoundTrip::new(MESSAGE);
    for _ in 0..100 {
        black_box(pair.packets(BATCH));
    }
    pair
}

/// 1000 messages there and read. The pair comes back so that freeing it is not counted.
fn thousand<F: Fabric>(mut pair: RoundTrip<F>) -> RoundTrip<F> {
    for _ in 0..1000 / BATCH {
        black_box(pair.packets(BATCH));
    }
    pair
}

#[library_benchmark]
#[bench::push_pop_1000(steady::<Rtrb>())]
fn rtrb(pair: RoundTrip<Rtrb>) -> RoundTrip<Rtrb> {
    thousand(pair)
}

#[library_benchmark]
#[bench::push_pop_1000(steady::<RtrbGathering>())]
fn rtrb_gather(pair: RoundTrip<RtrbGathering>) -> RoundTrip<RtrbGathering> {
    thousand(pair)
}

#[library_benchmark]
#[bench::push_pop_1000(steady::<BbQueue>())]
fn bbqueue(pair: RoundTrip<BbQueue>) -> RoundTrip<BbQueue> {
    thousand(pair)
}

#[library_benchmark]
#[bench::push_pop_1000(steady::<Boxed<Crossbeam>>())]
fn crossbeam(pair: RoundTrip<Boxed<Crossbeam>>) -> RoundTrip<Boxed<Crossbeam>> {
    thousand(pair)
}

library_benchmark_group!(name = messages, benchmarks = [rtrb, rtrb_gather, bbqueue, crossbeam]);
main!(library_benchmark_groups = messages);
