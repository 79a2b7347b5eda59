//! Criterion: what one packet costs a peer when both ends are on one thread, so without waiting and without cache lines to fetch from another core.
//! The instruction counts of the same loop are in `instructions.rs`.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use pdbp_benches::fabric::Fabric;
use pdbp_benches::peers::{
    BbQueue, Boxed, Crossbeam, Flume, Inline, Kanal, Pdbp, PdbpCore, Rtrb, RtrbGathering, StdMpsc, Usual,
};
use pdbp_benches::round_trip::RoundTrip;

/// Packets per iteration.
const BATCH: u64 = 16;

fn packets<F: Fabric>(criterion: &mut Criterion, name: &str) {
    let mut group = criterion.benchmark_group(name);
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1)).sample_size(20);
    for size in [8, 64, 1024] {
        let mut loopback = RoundTrip::<F>::new(size);
        group.throughput(Throughput::Elements(BATCH));
        group.bench_function(format!("push_pop/{size}"), |b| b.iter(|| black_box(loopback.packets(BATCH))));
    }
    group.finish();
}

fn all(criterion: &mut Criterion) {
    packets::<Pdbp<Inline>>(criterion, "pdbp");
    packets::<PdbpCore<Usual>>(criterion, "pdbp-core");
    packets::<Boxed<Crossbeam>>(criterion, "crossbeam");
    packets::<Boxed<Flume>>(criterion, "flume");
    packets::<Boxed<Kanal>>(criterion, "kanal");
    packets::<Boxed<StdMpsc>>(criterion, "std");
    packets::<Rtrb>(criterion, "rtrb");
    packets::<RtrbGathering>(criterion, "rtrb-gather");
    packets::<BbQueue>(criterion, "bbqueue");
}

criterion_group!(benches, all);
criterion_main!(benches);
