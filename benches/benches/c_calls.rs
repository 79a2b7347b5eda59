//! Criterion: what a message of 64 bytes takes with the functions of the C library, compared with the same calls in Rust. The messages are those of
//! `instructions_c.rs`.

mod c_parts;

use c_parts::{C, COUNT, How, Rust};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

fn all(criterion: &mut Criterion) {
    for (name, how) in [("one by one", How::Messages), ("trains", How::Trains)] {
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Elements(COUNT as u64));
        group.bench_function("Rust", |bencher| {
            let mut parts = Rust::new();
            bencher.iter(|| parts.go(how));
        });
        group.bench_function("C", |bencher| {
            let mut parts = C::new();
            bencher.iter(|| parts.go(how));
        });
        if how == How::Messages {
            group.bench_function("C, received by 32", |bencher| {
                let mut parts = C::new();
                bencher.iter(|| parts.go(How::By32));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, all);
criterion_main!(benches);
