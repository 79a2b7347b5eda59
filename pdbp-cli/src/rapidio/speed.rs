//! `pdbp rapidio speed`: what the simulator does in a second of a processor, compared with a bare heap.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hint::black_box;
use std::time::Instant;

use pdbp_plots::Shape;
use pdbp_sim::rapidio::mpirio::{self, Report};
use pdbp_sim::rapidio::{BOARD, Timing, Topology};

use super::paper::{log, plot, series};
use super::{Failed, Page, Section, aims};

const ENDPOINTS: [usize; 3] = [64, 1024, 4096];
/// Messages that all send together, of 64 packets each.
const MESSAGES: usize = 4096;
const BYTES: usize = 64 * 250;
/// Runs of each; the fastest counts, for the heap, too. A single one without optimisation, where speed means nothing.
const RUNS: usize = if cfg!(debug_assertions) { 1 } else { 3 };
const AIM: f64 = 3e6;
const SHARE: f64 = 0.3;

const INTRODUCTION: &str = "\
Messages of 64 packets from each endpoint to another one, drawn anew each round, on trees of degree 4. A packet-link is a packet that has
crossed a link, answers included. The heap holds as many events as the simulator did at most, and takes one out and puts one in.
";

pub(super) fn page() -> Result<Page, Failed> {
    let mut rows = Vec::new();
    let mut lines = ["simulator", "bare heap"].map(|name| series(name, Vec::new()));
    let (mut at_1024, mut share_at_1024) = (0.0, 0.0);
    for endpoints in ENDPOINTS {
        let (mut speed, mut heap) = (0.0f64, 0.0f64);
        let mut events = 0.0;
        for _ in 0..RUNS {
            let began = Clock::now();
            let report = traffic(endpoints)?;
            let seconds = began.seconds();
            let crossed: u64 =
                report.links.iter().flat_map(|link| link.requests.into_iter().chain(link.answers)).sum();
            speed = speed.max(crossed as f64 / seconds);
            events = report.events as f64 / crossed as f64;
            heap = heap.max(bare_heap(report.most_planned, report.events.min(4_000_000)));
        }
        if endpoints == 1024 {
            (at_1024, share_at_1024) = (speed, speed / heap);
        }
        let millions = |value: f64| format!("{:.2}", value / 1e6);
        let share = format!("{:.2}", speed / heap);
        rows.push(vec![
            endpoints.to_string(),
            millions(speed),
            format!("{events:.2}"),
            millions(heap),
            share,
        ]);
        lines
            .iter_mut()
            .zip([speed, heap])
            .for_each(|(line, value)| line.points.push((endpoints as f64, value / 1e6)));
    }
    let svg = plot(
        "Speed of the simulator",
        "one processor",
        log("endpoints"),
        log("millions a second"),
        Shape::Lines,
        lines.to_vec(),
    );
    let mut notes = vec![
        "Millions a second of the processor, without the time that others had it where the system says so (Linux). What else runs \
         meanwhile takes caches, so that a busy machine shows less."
            .to_owned(),
    ];
    if cfg!(debug_assertions) {
        notes.push("Built without optimisation: a release build gives different figures.".to_owned());
    }
    let claims = vec![
        (
            format!("3 million packet-links a second with 1024 endpoints: {:.2}", at_1024 / 1e6),
            at_1024 >= AIM,
        ),
        (format!("0.3 of what a bare heap does: {share_at_1024:.2}"), share_at_1024 >= SHARE),
    ];
    let section = Section {
        title: "Speed of the simulator".to_owned(),
        notes,
        head: vec!["endpoints", "packet-links", "events each", "heap", "ratio"],
        rows,
        claims,
        plots: vec![("speed.svg", svg)],
    };
    Ok(aims("speed", INTRODUCTION, vec![section]))
}

/// In each round all endpoints send to each other by a permutation: rank r to a·r + b, with drawn odd a and b.
fn traffic(endpoints: usize) -> Result<Report<()>, Failed> {
    let topology = Topology::boards(endpoints / BOARD).tree(4);
    let data = vec![1u8; BYTES];
    let report = mpirio::run(&topology, Timing::SRIO, async |mut world| {
        let (own, mut into) = (world.rank(), vec![0; BYTES]);
        let mut drawn = 0x9E37_79B9_7F4A_7C15u64;
        for _ in 0..(MESSAGES / endpoints).max(1) {
            drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let shift = (drawn >> 33) as usize;
            let factor = (drawn >> 20) as usize | 1;
            // The number of endpoints is a power of two, so an odd factor has an inverse.
            let to = (own.wrapping_mul(factor).wrapping_add(shift)) % endpoints;
            let from = own.wrapping_sub(shift).wrapping_mul(inverse(factor)) % endpoints;
            // An endpoint whose target is itself sends nothing.
            if to != own && world.send_recv(to, &data, from, &mut into).await.is_err() {
                return;
            }
        }
    })?;
    Ok(report)
}

/// The inverse of an odd number, modulo the size of a word.
fn inverse(odd: usize) -> usize {
    // Each step doubles the number of correct bits; the start has three.
    (0..5).fold(odd, |inverse, _| inverse.wrapping_mul(2usize.wrapping_sub(odd.wrapping_mul(inverse))))
}

/// Repeatedly takes the first of this many events out and puts another one in. Returns how often per second.
fn bare_heap(size: usize, times: u64) -> f64 {
    let mut drawn = 1u64;
    let mut draw = || {
        drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        drawn >> 54
    };
    // Time, serial number and action: 24 bytes, as the events of `fabric.rs`.
    const { assert!(size_of::<Reverse<(u64, u64, u64)>>() == 24) };
    let mut heap: BinaryHeap<Reverse<(u64, u64, u64)>> = BinaryHeap::new();
    for serial in 0..size as u64 {
        heap.push(Reverse((draw(), serial, serial)));
    }
    let began = Clock::now();
    for serial in 0..times {
        let Some(Reverse((at, _, what))) = heap.pop() else { return 0.0 };
        heap.push(Reverse((at + draw(), size as u64 + serial, black_box(what))));
    }
    black_box(&heap);
    times as f64 / began.seconds()
}

/// Processor time of this thread; where the system does not report it, elapsed time.
struct Clock {
    began: Instant,
    on_processor: Option<u64>,
}

impl Clock {
    fn now() -> Self {
        Self { began: Instant::now(), on_processor: on_processor() }
    }

    fn seconds(&self) -> f64 {
        match self.on_processor.zip(on_processor()) {
            Some((began, now)) if now > began => (now - began) as f64 * 1e-9,
            _ => self.began.elapsed().as_secs_f64(),
        }
    }
}

/// Nanoseconds.
fn on_processor() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split(' ').next()?.parse().ok()
}
