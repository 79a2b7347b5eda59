//! Random programs on random clusters: parts that send and receive in every way there is, all at the same time. Whatever was sent has to
//! arrive, once, unaltered and in order, and at the end nothing may be left.
//!
//! A seed determines the settings and what each part does; with several threads, their timing does not follow from it. The test runs a few
//! seeds. To search for longer:
//!
//! ```text
//! PDBP_PROGRAM_SECONDS=600 PDBP_PROGRAM_SEED=1 cargo test --release -p pdbp --features net --test programs -- --nocapture
//! ```

mod actor;
#[cfg(feature = "net")]
#[path = "../net/address.rs"]
mod address;
mod flaws;
mod ledger;
mod streams;

use std::panic::{self, AssertUnwindSafe};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use pdbp::{
    Builder, Cluster, Local, Node, Part, PartKind, PolicyKind, Progress, RegisterError, Routing, Share,
    Shared, Target,
};

use actor::Actor;
use ledger::Ledger;

/// Long enough for a loaded machine.
const SOON: Duration = Duration::from_secs(60);
/// How long a program may take, which is over in a second on an idle machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// A sequence of numbers that a seed determines.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as usize % limit
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Mostly small.
    fn skewed(&mut self, limit: usize) -> usize {
        let limit = 1 + self.below(limit);
        let limit = 1 + self.below(limit);
        self.below(limit)
    }
}

/// What a seed stands for.
#[derive(Clone, Debug)]
struct Plan {
    seed: u64,
    nodes: u16,
    parts_per_node: usize,
    /// Whether each node has a cluster of its own, over sockets.
    is_apart: bool,
    is_grid: bool,
    progress: Progress,
    /// One thread for each part, or one for all.
    has_threads: bool,
    is_shared: bool,
    /// How many supersteps, if the program has any.
    supersteps: u8,
    /// What each part does before it only receives, in each superstep.
    actions: usize,
    /// Length of the longest message, in bytes.
    longest: usize,
    has_streams: bool,
}

impl Plan {
    fn new(random: &mut Random, seed: u64) -> Self {
        let is_large = random.one_in(8);
        let nodes = if is_large { 4 + random.below(6) } else { 1 + random.below(3) };
        let is_apart = cfg!(feature = "net") && (2..5).contains(&nodes) && random.one_in(6);
        let has_supersteps = random.one_in(4);
        let progress = random.of(&[Progress::Thread, Progress::Inline, Progress::Host]);
        Self {
            seed,
            nodes: nodes as u16,
            parts_per_node: if is_large || has_supersteps { 1 } else { 1 + random.below(3) },
            is_apart,
            is_grid: is_large && random.one_in(2),
            progress,
            // On one thread, a call that waits does not poll the nodes of other clusters.
            has_threads: random.one_in(2) || (is_apart && progress != Progress::Thread),
            is_shared: random.one_in(2),
            supersteps: if has_supersteps { 1 + random.below(20) as u8 } else { 0 },
            actions: if has_supersteps { 1 + random.below(100) } else { 100 + random.below(1500) },
            longest: random.of(&[64, 500, 3000, 60_000]),
            has_streams: random.one_in(2),
        }
    }

    fn builder(&self, random: &mut Random) -> Builder {
        let block = random.of(&[256, 512, 1000, 1024, 4096, 16_384, 131_136]);
        let row = 1 + random.below(8) as u32;
        let timeout = match self {
            _ if self.waits_long() => SOON,
            Self { has_threads: true, .. } => Duration::from_millis(50),
            _ => Duration::from_millis(5),
        };
        Builder::new()
            .nodes(self.nodes)
            .progress(self.progress)
            .routing(if self.is_grid { Routing::Grid } else { Routing::Direct })
            .block_bytes(block)
            .pack_bytes((256 << random.below(10)).min(block))
            .memory_bytes(1 << (17 + random.below(6)))
            .row_blocks(row)
            .initial_blocks(random.below(1 + row as usize) as u32)
            .policy(random.of(&[PolicyKind::Adaptive, PolicyKind::Threshold, PolicyKind::Fixed]))
            .pipe_depth(1 << random.below(7))
            .stream_pipes(1 << random.below(6))
            .assembly_bytes(65_536 << random.below(6))
            .flush_after(Duration::from_micros(1 << random.below(14)))
            .interval(Duration::from_micros(100 << random.below(8)))
            .timeout(timeout)
    }

    /// Whether calls wait until it is clear that something is wrong.
    fn waits_long(&self) -> bool {
        self.supersteps > 0 || self.is_apart
    }

    /// Starts the nodes. Not all settings go together with so little memory: then with more.
    fn start(&self, builder: &Builder) -> Vec<Cluster> {
        if self.is_apart {
            return self.start_apart(builder);
        }
        let memory = builder.settings().memory_bytes;
        let started = (0..8).find_map(|n| builder.clone().memory_bytes(memory << n).start().ok());
        vec![started.unwrap()]
    }

    #[cfg(feature = "net")]
    fn start_apart(&self, builder: &Builder) -> Vec<Cluster> {
        let (address, started) = (&address::address(), &AtomicUsize::new(0));
        let start = |index| {
            let builder = builder.clone().memory_bytes(0).lease(Duration::ZERO).outage(SOON);
            let builder =
                if index == 0 { builder.listen(address.clone()) } else { builder.join(address.clone()) };
            let cluster = builder.start().unwrap();
            poll_until(cluster.nodes(), started, usize::from(self.nodes));
            cluster
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..self.nodes).map(|index| scope.spawn(move || start(index))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[cfg(not(feature = "net"))]
    fn start_apart(&self, _: &Builder) -> Vec<Cluster> {
        Vec::new()
    }

    fn parts(&self) -> usize {
        usize::from(self.nodes) * self.parts_per_node
    }

    /// The index of the node of a part.
    fn node_of(&self, part: usize) -> usize {
        part / self.parts_per_node
    }
}

/// What all parts of a program have in common.
struct World {
    plan: Plan,
    targets: Vec<Target>,
    ledger: Ledger,
    /// When it should have been over for long.
    late: Instant,
}

impl World {
    fn new(plan: &Plan, targets: Vec<Target>, late: Instant) -> Self {
        Self { plan: plan.clone(), ledger: Ledger::new(targets.len()), targets, late }
    }

    /// The index of a part.
    fn index(&self, target: Target) -> usize {
        self.targets.iter().position(|one| *one == target).expect("only the parts of the program send")
    }

    fn is_late(&self) -> bool {
        Instant::now() > self.late
    }
}

fn name(part: usize) -> String {
    format!("part{part}")
}

/// Waits until as many have come here. Meanwhile it polls, which without a progress thread nobody else does.
fn poll_until(nodes: &[Node], come: &AtomicUsize, all: usize) {
    come.fetch_add(1, Relaxed);
    while come.load(Relaxed) < all {
        nodes.iter().for_each(|node| _ = node.poll());
        thread::yield_now();
    }
}

/// Registers again if the short time of these settings was not enough.
fn in_time<P>(register: impl FnMut() -> Result<P, RegisterError>) -> P {
    let mut results = std::iter::repeat_with(register);
    results.find(|result| !matches!(result, Err(RegisterError::Timeout(_)))).unwrap().unwrap()
}

/// All parts act in turns.
fn on_one_thread<S: Share>(
    plan: &Plan,
    nodes: &[Node],
    late: Instant,
    make: impl Fn(&Node, &str) -> Part<S>,
) {
    let parts: Vec<_> = (0..plan.parts()).map(|at| make(&nodes[plan.node_of(at)], &name(at))).collect();
    let world = World::new(plan, parts.iter().map(Part::id).collect(), late);
    let mut actors: Vec<_> =
        parts.iter().enumerate().map(|(at, part)| Actor::new(&world, at, part)).collect();
    let mut random = Random::new(plan.seed + 1);
    // All of them are asked each time.
    while actors.iter_mut().map(Actor::is_over).filter(|is_over| !is_over).count() > 0 {
        let at = random.below(actors.len());
        for _ in 0..1 + random.skewed(20) {
            actors[at].act();
        }
        let late: Vec<_> =
            if world.is_late() { actors.iter().map(Actor::state).collect() } else { Vec::new() };
        assert!(late.is_empty(), "not over: {late:#?}");
    }
    world.ledger.check();
}

/// Each part acts on a thread of its own.
fn on_threads<S: Share>(
    plan: &Plan,
    nodes: &[Node],
    late: Instant,
    make: impl Fn(&Node, &str) -> Part<S> + Sync,
) {
    let (registered, world, make) = (&AtomicUsize::new(0), &OnceLock::new(), &make);
    let find = |node: &Node| {
        let address = |at| format!("{}@node{}", name(at), plan.node_of(at));
        let targets = (0..plan.parts()).map(|at| node.find(&address(at), SOON).unwrap());
        World::new(plan, targets.collect(), late)
    };
    let act = |at| {
        let part = make(&nodes[plan.node_of(at)], &name(at));
        poll_until(&nodes[plan.node_of(at)..][..1], registered, plan.parts());
        let world: &World = world.get_or_init(|| find(part.node()));
        let mut actor = Actor::new(world, at, &part);
        while !actor.is_over() {
            actor.act();
            assert!(!world.is_late(), "not over: {}", actor.state());
            assert!(!world.ledger.has_failed(), "another part has failed");
        }
    };
    thread::scope(|scope| (0..plan.parts()).for_each(|at| _ = scope.spawn(move || act(at))));
    world.get().unwrap().ledger.check();
}

/// Runs the program of a seed, which fails if it takes longer than `patience`.
fn run(seed: u64, patience: Duration) {
    let mut random = Random::new(seed);
    let plan = Plan::new(&mut random, seed);
    let clusters = plan.start(&plan.builder(&mut random));
    let mut nodes: Vec<_> = clusters.iter().flat_map(Cluster::nodes).cloned().collect();
    // Those that join are numbered in the order in which they come.
    nodes.sort_by_key(Node::id);
    let local = |node: &Node, name: &str| -> Part<Local> { in_time(|| node.register(name, PartKind::Cpu)) };
    let shared =
        |node: &Node, name: &str| -> Part<Shared> { in_time(|| node.register_shared(name, PartKind::Cpu)) };
    let late = Instant::now() + patience;
    match (plan.has_threads, plan.is_shared) {
        (false, false) => on_one_thread(&plan, &nodes, late, local),
        (false, true) => on_one_thread(&plan, &nodes, late, shared),
        (true, false) => on_threads(&plan, &nodes, late, local),
        (true, true) => on_threads(&plan, &nodes, late, shared),
    }
    nodes.iter().for_each(check);
    drop(nodes);
    thread::scope(|scope| clusters.into_iter().for_each(|cluster| _ = scope.spawn(|| drop(cluster))));
}

/// What counters may count here: blocks and messages, and what comes of streams that are given up.
const USUAL: [&str; 7] =
    ["blocks_sent", "blocks_delivered", "copied", "unroutable", "stray_segments", "relayed", "relay_lost"];

/// Nothing went wrong underneath.
fn check(node: &Node) {
    let counted = node.stats().counters.named().filter(|(name, count)| *count > 0 && !USUAL.contains(name));
    assert_eq!(counted.collect::<Vec<_>>(), [], "{}", node.name());
}

#[test]
fn random_programs_lose_nothing() {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    let (first, seconds) = (number("PDBP_PROGRAM_SEED").unwrap_or(1), number("PDBP_PROGRAM_SECONDS"));
    let (began, mut seed) = (Instant::now(), first);
    let goes_on = |seed| match seconds {
        Some(seconds) => began.elapsed() < Duration::from_secs(seconds),
        None => seed < first + 40,
    };
    while goes_on(seed) {
        if let Err(failure) = panic::catch_unwind(AssertUnwindSafe(|| run(seed, PATIENCE))) {
            eprintln!("seed {seed}: {:?}", Plan::new(&mut Random::new(seed), seed));
            panic::resume_unwind(failure);
        }
        seed += 1;
    }
    println!("programs: {} without a finding, from seed {first}", seed - first);
}
