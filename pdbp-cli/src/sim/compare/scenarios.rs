//! The scenarios in which policies are compared.
//!
//! Eight nodes, each with a link of a gigabit and 50 µs of latency to each other, and blocks of 2 KiB: a link that is busy has some eight
//! blocks on their way, or as credit on the way back. Rows begin with [`UNIT`] blocks, and have [`ROW`] at most.

use pdbp_core::Arrival;
use pdbp_core::id::NodeId;
use pdbp_core::policy::Choice;
use pdbp_sim::network::{Fault, HostCosts, Report, Scenario, ScenarioError, Setup, Traffic, gbit, ms, us};

/// Blocks of a row at the start, and of the smallest static allocation.
pub(super) const UNIT: u32 = 2;
/// The most blocks of a row.
const ROW: u32 = 32;
const NODES: usize = 8;
/// How long there is traffic, unless something else is said.
const TIME: u64 = ms(60);
/// One part in so many of that is not measured.
const WARM_UP: u64 = 6;

/// A scenario by its name.
#[derive(Clone)]
pub(super) struct Named {
    pub(super) name: &'static str,
    /// What it is, in a few words.
    pub(super) what: &'static str,
    traffic: Traffic,
    faults: Vec<(u64, Fault)>,
    costs: HostCosts,
    arrival: Arrival,
    /// Rows that grow share the memory of a static allocation of so many times [`UNIT`].
    pool: u32,
}

/// All, each with blocks that are posted and with blocks that are read in place.
pub(super) fn all() -> Vec<Named> {
    let both = [Arrival::Posted, Arrival::InPlace];
    posted().into_iter().flat_map(|named| both.map(|arrival| Named { arrival, ..named.clone() })).collect()
}

fn named(name: &'static str, what: &'static str, traffic: Traffic) -> Named {
    let (faults, costs) = (Vec::new(), HostCosts::default());
    Named { name, what, traffic, faults, costs, arrival: Arrival::Posted, pool: 8 }
}

fn posted() -> Vec<Named> {
    let even = |rate| Traffic::uniform().size(450).rate(rate);
    let moving = || Traffic::moving_hot_spot(800, ms(5)).size(450).rate(250_000);
    let hot_spot = |permille, rate| Traffic::hot_spot(0, permille).size(450).rate(rate);
    let reader = HostCosts { message: 1_000, ..HostCosts::default() };
    let slow = vec![(ms(20), Fault::slow(1, 100)), (ms(35), Fault::slow(1, 1))];
    vec![
        named("uniform", "all to all alike", even(300_000)),
        named("hot-spot", "80 % to node 0", hot_spot(800, 250_000)),
        named("moving", "80 % to one node, every 5 ms to the next", moving()),
        named("zipf", "by rank of the node, exponent 1.2", Traffic::zipf(1.2).size(450).rate(300_000)),
        named("bursty", "2 ms of traffic, 8 ms of none", even(800_000).bursts(ms(2), ms(8))),
        Named {
            costs: reader,
            ..named("incast", "7 to 1, whose processor is busy for 85 % of the time", hot_spot(1000, 105_000))
        },
        Named {
            faults: slow,
            ..named("slow-reader", "node 1 takes 100 times as long, for 15 ms", even(150_000))
        },
        named("small", "64 bytes, Zipf 1", Traffic::zipf(1.0).size(64).rate(1_500_000)),
        named("large", "1900 bytes, Zipf 1", Traffic::zipf(1.0).size(1900).rate(90_000)),
        Named { pool: 4, ..named("scarce", "as moving, with half the memory for rows that grow", moving()) },
    ]
}

impl Named {
    /// How blocks arrive, as it is written.
    pub(super) fn arrival(&self) -> &'static str {
        match self.arrival {
            Arrival::Posted => "posted",
            Arrival::InPlace => "in-place",
        }
    }

    /// Runs it with rows of `initial` blocks at the start; `None`: of [`UNIT`], and memory to grow.
    ///
    /// # Errors
    /// As for [`Scenario::run`].
    pub(super) fn run(
        &self,
        seed: u64,
        time: Option<u64>,
        initial: Option<u32>,
        policy: Choice,
    ) -> Result<Report, ScenarioError> {
        let time = time.unwrap_or(TIME);
        let mut setup = Setup::new(NODES);
        setup.physics.arrival = self.arrival;
        setup.physics.latency = us(50);
        setup.physics.jitter = us(5);
        setup.physics.rate = gbit(1);
        (setup.seed, setup.row, setup.policy, setup.costs) = (seed, ROW, policy, self.costs);
        (setup.initial, setup.extra) = (initial.unwrap_or(self.pool * UNIT), 0);
        // All nodes have equally many.
        let blocks = |setup: &Setup| NodeId::new(0).map_or(0, |node| setup.blocks(node));
        let all = blocks(&setup);
        setup.initial = initial.unwrap_or(UNIT);
        setup.extra = all - blocks(&setup);
        setup.traffic = self.traffic.clone();
        setup.warm_up = time / WARM_UP;
        let scenario = Scenario::of(setup);
        self.faults.iter().cloned().fold(scenario, |scenario, (at, fault)| scenario.at(at, fault)).run(time)
    }
}
