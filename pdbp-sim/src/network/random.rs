//! Scenarios drawn from a seed.

use pdbp_core::engine::Checksum;
use pdbp_core::{Arrival, Config, Routing};

use super::{CrashSight, Fault, HostCosts, Mix, Probability, Scenario, Traffic, gbit, mbit, ms, us};
use crate::random::Random;
use crate::rapidio::{BOARD, Link, Timing, Topology};

impl Scenario {
    /// Returns a scenario determined by `seed`, and how long its traffic lasts: sizes, physics, traffic and faults are drawn. Links
    /// are given up after a few milliseconds, so that some outages end before that and some after.
    ///
    /// ```
    /// use pdbp_sim::network::Scenario;
    ///
    /// let (scenario, until) = Scenario::random(42);
    /// let report = scenario.run(until)?;
    /// assert_eq!(report.seed, 42);
    /// # Ok::<(), pdbp_sim::network::ScenarioError>(())
    /// ```
    pub fn random(seed: u64) -> (Self, u64) {
        Self::drawn(seed, Routing::Direct)
    }

    /// As [`random`](Self::random), in a grid of 4 to 12 nodes.
    pub fn random_grid(seed: u64) -> (Self, u64) {
        Self::drawn(seed, Routing::Grid)
    }

    /// As [`random`](Self::random), with leases, and with nodes that stand still for up to a few leases: one, some, or all at a
    /// time.
    pub fn random_pauses(seed: u64) -> (Self, u64) {
        let (mut scenario, until) = Self::drawn(seed, Routing::Direct);
        let mut random = Random::new(seed ^ 0x7061_7573);
        let random = &mut random;
        let nodes = scenario.setup.nodes as u16;
        scenario.setup.lease = ms(2 + random.below(3));
        for _ in 0..=random.below(2) {
            let (at, all) = (random.below(until / 2), one_in(2, random));
            let end = at + random.below((until - at) / 2);
            for node in 0..nodes {
                if all || one_in(3, random) {
                    let pause = at + random.below(us(100));
                    let resume = pause.max(end) + random.below(us(500));
                    scenario.faults.push((pause, Fault::Pause(node)));
                    scenario.faults.push((resume.min(until), Fault::Resume(node)));
                }
            }
        }
        (scenario, until)
    }

    /// As [`random`](Self::random), with supersteps instead of barriers, and parts that come and go and return their pipes. Some
    /// scenarios have short links, and some of these a node that is slow to read.
    pub fn random_supersteps(seed: u64) -> (Self, u64) {
        let (mut scenario, until) = Self::drawn(seed, Routing::Direct);
        let mut random = Random::new(seed ^ 0x7375_7065);
        let random = &mut random;
        let mix = &mut scenario.setup.mix;
        (mix.barriers, mix.supersteps) = (0, us(200 + random.below(2_000)));
        mix.guests = us(10 + random.below(200));
        mix.pipes = Probability::new(random.below(500) as f64 / 1000.0).unwrap_or_default();
        if one_in(2, random) {
            // After a crash, most supersteps never end.
            scenario.faults.retain(|(_, fault)| !matches!(fault, Fault::Crash(_) | Fault::Restart(_)));
        }
        if one_in(2, random) {
            let physics = &mut scenario.setup.physics;
            (physics.latency, physics.jitter) = (us(1 + random.below(3)), us(random.below(20)));
            if one_in(2, random) {
                let node = random.below(scenario.setup.nodes as u64) as u16;
                scenario.setup.costs.reads = 1;
                scenario.faults.push((0, Fault::slow(node, 20 + random.below(200) as u32)));
            }
        }
        (scenario, until)
    }

    /// As [`random`](Self::random), one in three in a grid, with short rows and a busy node that reads late. Pieces that arrive for
    /// it alone are copied, so that it stops nobody. Some scenarios have supersteps.
    pub fn random_late(seed: u64) -> (Self, u64) {
        let mut random = Random::new(seed ^ 0x6C61_7465);
        let random = &mut random;
        let routing = if one_in(3, random) { Routing::Grid } else { Routing::Direct };
        let (mut scenario, until) = Self::drawn(seed, routing);
        let setup = &mut scenario.setup;
        setup.copies = 1 + random.below(4) as u16;
        setup.extra += u32::from(setup.copies);
        setup.row = setup.initial + random.below(4) as u32;
        setup.costs.reads = 1;
        (setup.flush_after, setup.pipe) = (us(1 + random.below(10)), 8 + random.below(64) as usize);
        if routing == Routing::Direct && one_in(2, random) {
            (setup.mix.barriers, setup.mix.supersteps) = (0, us(200 + random.below(2_000)));
        }
        let node = random.below(setup.nodes as u64) as u16;
        let size = 24 + random.below(200) as usize;
        setup.traffic = Traffic::hot_spot(node, 300 + random.below(500) as u32)
            .size(size)
            .rate(5_000 + random.below(40_000));
        scenario.faults.push((0, Fault::slow(node, 20 + random.below(200) as u32)));
        (scenario, until)
    }

    /// As [`random`](Self::random), with an open cluster: node 0 founds it alone and stays; of the other nodes, some are present
    /// early and some come later, crash, and come again.
    pub fn random_open(seed: u64) -> (Self, u64) {
        let (mut scenario, until) = Self::drawn(seed, Routing::Direct);
        let mut random = Random::new(seed ^ 0x6F70_656E);
        let random = &mut random;
        (scenario.setup.open, scenario.setup.masters) = (true, 1);
        come_and_go(&mut scenario, until, random);
        (scenario, until)
    }

    /// As [`random_open`](Self::random_open), with three masters, or as many as leave one other place: the founder and the other
    /// masters crash as well, one at a time, and come again.
    pub fn random_masters(seed: u64) -> (Self, u64) {
        let (mut scenario, until) = Self::drawn(seed, Routing::Direct);
        let mut random = Random::new(seed ^ 0x6D61_7374);
        let random = &mut random;
        let masters = 3.min(scenario.setup.nodes as u16 - 1);
        (scenario.setup.open, scenario.setup.masters) = (true, masters);
        come_and_go(&mut scenario, until, random);
        let crashes = if masters < 3 { 0 } else { random.below(4) };
        for _ in 0..crashes {
            let (node, at) = (random.below(masters.into()) as u16, random.below(until));
            let back = at + random.below(until - at);
            scenario.faults.push((at, Fault::crash(node)));
            scenario.faults.push((back, Fault::restart(node)));
        }
        (scenario, until)
    }

    /// As [`random`](Self::random), on a fabric: boards in a chain, a ring or a tree, or single switches with one or two endpoints
    /// each. In some scenarios links and switches fail, and come back.
    pub fn random_fabric(seed: u64) -> (Self, u64) {
        let (scenario, until) = Self::drawn(seed, Routing::Direct);
        let mut random = Random::new(seed ^ 0x6661_6272);
        let random = &mut random;
        let nodes = scenario.setup.nodes;
        let topology = if one_in(2, random) {
            Topology::boards(nodes.div_ceil(BOARD) + random.below(3) as usize)
        } else {
            let switches = nodes.div_ceil(2) + random.below(2) as usize;
            (0..nodes)
                .fold(Topology::boards(0).bare(switches), |topology, node| topology.endpoint(node % switches))
        };
        let topology = match random.below(3) {
            0 => topology.chain(),
            1 => topology.ring(),
            _ => topology.tree(2 + random.below(3) as usize),
        };
        let (links, switches) = (topology.links().to_vec(), topology.switches());
        let mut scenario = scenario.fabric(topology, Timing::SRIO);
        let outages = if one_in(2, random) { random.below(4) } else { 0 };
        for _ in 0..outages {
            let at = random.below(until * 3 / 4);
            // Some outages end before links are given up.
            let most = if one_in(2, random) { ms(2) } else { until - at };
            let back = at + random.below(most);
            let link = (!links.is_empty() && !one_in(4, random))
                .then(|| links[random.below(links.len() as u64) as usize]);
            let switch = random.below(switches as u64) as usize;
            let fault = |is_up| match link {
                Some(Link { a, b, .. }) => Fault::Link { a, b, is_up },
                None => Fault::Switch { switch, is_up },
            };
            scenario.faults.extend([(at, fault(false)), (back.min(until), fault(true))]);
        }
        (scenario, until)
    }

    /// Plans up to `most` faults, each with its repair before `until`.
    pub(super) fn draw_faults(&mut self, most: u32, until: u64) {
        let mut random = Random::new(self.setup.seed ^ 0x6661_756C_7473);
        let random = &mut random;
        let nodes = self.setup.nodes as u64;
        // Of two nodes, the first is the majority.
        let mut may_crash = if nodes > 2 { 0..nodes as u16 } else { 1..nodes as u16 };
        for _ in 0..random.below(u64::from(most) + 1) {
            let at = random.below(until * 3 / 4);
            let back = at + 1 + random.below((until - at).saturating_sub(1));
            let (node, other) = (random.below(nodes) as u16, random.below(nodes) as u16);
            let (fault, repair) = match random.below(5) {
                0 => {
                    let members = (0..nodes as u16).filter(|_| one_in(2, random)).collect();
                    (Fault::Partition(vec![members]), Fault::Heal)
                }
                1 => (Fault::cut(node, other), Fault::Heal),
                2 => (Fault::slow(node, 2 + random.below(200) as u32), Fault::slow(node, 1)),
                3 => (Fault::pause(node), Fault::resume(node)),
                _ if !may_crash.contains(&node) => continue,
                _ => {
                    // Another could leave less than a majority that remembers the tables.
                    may_crash = 0..0;
                    (Fault::crash(node), Fault::restart(node))
                }
            };
            self.faults.extend([(at, fault), (back, repair)]);
        }
    }

    fn drawn(seed: u64, routing: Routing) -> (Self, u64) {
        let mut random = Random::new(seed ^ 0x5CE9_A210);
        let random = &mut random;
        let (least, more) = if routing == Routing::Grid { (4, 9) } else { (2, 6) };
        let nodes = least + random.below(more) as u16;
        let until = ms(6 + random.below(20));
        let new = Self::new(usize::from(nodes)).routing(routing);
        let mut scenario = new.seed(seed).traffic(traffic(nodes, random));
        draw_physics(&mut scenario, random);
        draw_sizes(&mut scenario, random);
        for _ in 0..random.below(4) {
            let at = random.below(until * 3 / 4);
            draw_fault(&mut scenario, nodes, at, until, random);
        }
        scenario.setup.mix = mix(seed);
        (scenario.at(until, Fault::heal()), until)
    }
}

/// Plans the nodes of an open cluster except its founder: some are present early, some come later, and those that are not masters
/// crash and come again.
fn come_and_go(scenario: &mut Scenario, until: u64, random: &mut Random) {
    let masters = scenario.setup.masters;
    scenario
        .faults
        .retain(|(_, fault)| !matches!(fault, Fault::Crash(node) | Fault::Restart(node) if *node < masters));
    for node in 1..scenario.setup.nodes as u16 {
        let mut at = 0;
        if one_in(2, random) {
            at = random.below(until / 2);
            scenario.setup.late.push(node);
            scenario.faults.push((at, Fault::restart(node)));
        }
        let crashes = if node < masters { 0 } else { random.below(3) };
        for _ in 0..crashes {
            at += random.below((until - at).max(1));
            scenario.faults.push((at, Fault::crash(node)));
            at += random.below((until - at).max(1));
            if !one_in(4, random) {
                scenario.faults.push((at, Fault::restart(node)));
            }
        }
    }
}

fn one_in(many: u64, random: &mut Random) -> bool {
    random.below(many) == 0
}

/// Draws a share of up to `permille` of 1000, or 0.
fn share(permille: u64, random: &mut Random) -> f64 {
    if one_in(2, random) { 0.0 } else { random.below(permille + 1) as f64 / 1000.0 }
}

fn draw_physics(scenario: &mut Scenario, random: &mut Random) {
    let loss = scenario.probability("loss", share(50, random));
    let reorder = scenario.probability("reorder", share(100, random));
    let physics = &mut scenario.setup.physics;
    physics.arrival = if one_in(2, random) { Arrival::InPlace } else { Arrival::Posted };
    physics.latency = us(1 + random.below(50));
    physics.jitter = us(random.below(30));
    physics.rate = [0, mbit(100), gbit(1), gbit(10)][random.below(4) as usize];
    physics.host_rate = [0, 0, gbit(1)][random.below(3) as usize];
    physics.loss = loss;
    physics.reorder = reorder;
    physics.give_up = ms(2 + random.below(6));
    physics.crash_sight = if one_in(2, random) { CrashSight::AtOnce } else { CrashSight::BySilence };
    physics.in_flight = (1 + random.below(32) as usize).max(Config::MIN_CAPACITY);
}

fn draw_sizes(scenario: &mut Scenario, random: &mut Random) {
    let setup = &mut scenario.setup;
    setup.body = 448 + random.below(3) as usize * 1024;
    setup.initial = 1 + random.below(3) as u32;
    setup.row = setup.initial + random.below(12) as u32;
    setup.control = 1 + random.below(8) as u32;
    setup.extra = random.below(40) as u32;
    setup.pipe = 1 + random.below(64) as usize;
    setup.checksum = if one_in(3, random) { Checksum::On } else { Checksum::Off };
    setup.flush_after = us(1 + random.below(100));
    setup.masters = 1 + random.below(3) as u16;
    setup.lease = if one_in(2, random) { 0 } else { ms(2 + random.below(4)) };
    setup.costs = HostCosts { reads: 1 + random.below(64) as usize, ..HostCosts::default() };
}

fn traffic(nodes: u16, random: &mut Random) -> Traffic {
    let traffic = match random.below(3) {
        0 => Traffic::uniform(),
        1 => Traffic::hot_spot(random.below(u64::from(nodes)) as u16, 200 + random.below(800) as u32),
        _ => Traffic::zipf(random.below(20) as f64 / 10.0),
    };
    let traffic = traffic.size(24 + random.below(200) as usize).rate(1_000 + random.below(60_000));
    if one_in(3, random) {
        traffic.bursts(us(50 + random.below(500)), us(random.below(3_000)))
    } else {
        traffic
    }
}

/// Drawn from separate random numbers, so that a seed's scenario is otherwise the same without it.
fn mix(seed: u64) -> Mix {
    let mut random = Random::new(seed ^ 0x6D69_7874);
    let random = &mut random;
    let mut share = || match random.below(3) {
        0 => Probability::new(random.below(150) as f64 / 1000.0).unwrap_or_default(),
        _ => Probability::NEVER,
    };
    let (streams, commands, long, sets) = (share(), share(), share(), share());
    let mut every = || if one_in(3, random) { us(100 + random.below(2_000)) } else { 0 };
    let (barriers, quiescence) = (every(), every());
    let trains = match random.below(3) {
        0 => Probability::new(random.below(150) as f64 / 1000.0).unwrap_or_default(),
        _ => Probability::NEVER,
    };
    let guests = if one_in(3, random) { us(10 + random.below(200)) } else { 0 };
    Mix { streams, commands, long, sets, trains, barriers, quiescence, guests, ..Mix::default() }
}

fn draw_fault(scenario: &mut Scenario, nodes: u16, at: u64, until: u64, random: &mut Random) {
    let node = random.below(nodes.into()) as u16;
    let later = at + random.below(until - at);
    let mut plan = |at, fault| scenario.faults.push((at, fault));
    match random.below(6) {
        0 => {
            let members = (0..nodes).filter(|_| one_in(2, random)).collect();
            plan(at, Fault::Partition(vec![members]));
            plan(later, Fault::heal());
        }
        1 => {
            plan(at, Fault::cut(node, (node + 1) % nodes));
            plan(later, Fault::heal());
        }
        2 => {
            plan(at, Fault::slow(node, 2 + random.below(200) as u32));
            plan(later, Fault::slow(node, 1));
        }
        3 => {
            let offset = random.below(ms(10)) as i64 - ms(5) as i64;
            plan(at, Fault::skew(node, offset, random.below(400) as i32 - 200));
        }
        4 => plan(at, Fault::crash(node)),
        _ => {
            plan(at, Fault::crash(node));
            plan(later, Fault::restart(node));
        }
    }
}
