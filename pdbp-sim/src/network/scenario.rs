//! A run that reads like its specification.

use std::fmt;

use pdbp_core::engine::Checksum;
use pdbp_core::{Arrival, Routing, Transport};

use super::cluster::Cluster;
use super::setup::{ClusterError, Setup};
use super::{Actor, Broken, CrashSight, Fault, Ground, HostCosts, Port, Probability, Report, Traffic};
use crate::rapidio::{Timing, Topology};

/// The specification of a run of a cluster. See the [module](super) for an example; times are nanoseconds of virtual time.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub(super) setup: Setup,
    pub(super) faults: Vec<(u64, Fault)>,
    /// Maximum number of random faults besides these.
    random_faults: u32,
    /// A share that is not a valid probability.
    wrong: Option<(&'static str, f64)>,
}

/// Why a scenario produced no report.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ScenarioError {
    /// The scenario cannot be run.
    Unfit(ClusterError),
    /// A share is not between 0 and 1.
    Share(&'static str, f64),
    /// An invariant does not hold.
    Broken(Box<Broken>),
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unfit(e) => e.fmt(f),
            Self::Share(name, share) => write!(f, "{name} is {share}; choose a share from 0 to 1"),
            Self::Broken(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for ScenarioError {}

impl From<ClusterError> for ScenarioError {
    fn from(error: ClusterError) -> Self {
        match error {
            ClusterError::Broken(broken) => Self::Broken(broken),
            other => Self::Unfit(other),
        }
    }
}

impl Scenario {
    /// Creates a scenario of `nodes` nodes, set up as in [`Setup::new`], without traffic or faults.
    pub fn new(nodes: usize) -> Self {
        Self::of(Setup::new(nodes))
    }

    /// Creates a scenario with this set-up.
    pub fn of(setup: Setup) -> Self {
        Self { setup, faults: Vec::new(), random_faults: 0, wrong: None }
    }

    /// The seed that determines everything random.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.setup.seed = seed;
        self
    }

    /// Runs on a fabric of switches instead of wires: see [`Ground::Fabric`].
    ///
    /// ```
    /// use pdbp_sim::network::{Scenario, Traffic, ms};
    /// use pdbp_sim::rapidio::{Timing, Topology};
    ///
    /// let scenario = Scenario::new(16).fabric(Topology::boards(4).ring(), Timing::SRIO);
    /// let report = scenario.traffic(Traffic::uniform().size(64).rate(20_000)).run(ms(2))?;
    /// assert!(report.lost == 0 && report.links.packets > report.links.frames);
    /// # Ok::<(), pdbp_sim::network::ScenarioError>(())
    /// ```
    #[must_use]
    pub fn fabric(mut self, topology: Topology, timing: Timing) -> Self {
        self.setup.physics.ground = Ground::Fabric { topology, timing };
        self
    }

    /// See [`Physics::latency`](super::Physics::latency).
    #[must_use]
    pub fn latency(mut self, nanos: u64) -> Self {
        self.setup.physics.latency = nanos;
        self
    }

    /// See [`Physics::jitter`](super::Physics::jitter).
    #[must_use]
    pub fn jitter(mut self, nanos: u64) -> Self {
        self.setup.physics.jitter = nanos;
        self
    }

    /// See [`Physics::rate`](super::Physics::rate).
    #[must_use]
    pub fn rate(mut self, bits_per_second: u64) -> Self {
        self.setup.physics.rate = bits_per_second;
        self
    }

    /// See [`Physics::host_rate`](super::Physics::host_rate).
    #[must_use]
    pub fn host_rate(mut self, bits_per_second: u64) -> Self {
        self.setup.physics.host_rate = bits_per_second;
        self
    }

    pub(super) fn probability(&mut self, name: &'static str, share: f64) -> Probability {
        Probability::new(share).unwrap_or_else(|| {
            self.wrong = Some((name, share));
            Probability::NEVER
        })
    }

    /// The share of frames that are lost, from 0 to 1.
    #[must_use]
    pub fn loss(mut self, share: f64) -> Self {
        self.setup.physics.loss = self.probability("loss", share);
        self
    }

    /// The share of frames that later ones overtake, from 0 to 1.
    #[must_use]
    pub fn reorder(mut self, share: f64) -> Self {
        self.setup.physics.reorder = self.probability("reorder", share);
        self
    }

    /// See [`Physics::give_up`](super::Physics::give_up).
    #[must_use]
    pub fn give_up(mut self, nanos: u64) -> Self {
        self.setup.physics.give_up = nanos;
        self
    }

    /// See [`Setup::routing`].
    #[must_use]
    pub fn routing(mut self, routing: Routing) -> Self {
        self.setup.routing = routing;
        self
    }

    /// See [`Physics::crash_sight`](super::Physics::crash_sight).
    #[must_use]
    pub fn crash_sight(mut self, sight: CrashSight) -> Self {
        self.setup.physics.crash_sight = sight;
        self
    }

    /// How blocks arrive, on all links.
    #[must_use]
    pub fn arrival(mut self, arrival: Arrival) -> Self {
        self.setup.physics.arrival = arrival;
        self
    }

    /// Bytes of a block after its header.
    #[must_use]
    pub fn body(mut self, bytes: usize) -> Self {
        self.setup.body = bytes;
        self
    }

    /// Number of blocks of each node beyond those it needs.
    #[must_use]
    pub fn extra_blocks(mut self, blocks: u32) -> Self {
        self.setup.extra = blocks;
        self
    }

    /// See [`Setup::copies`].
    #[must_use]
    pub fn copies(mut self, blocks: u16) -> Self {
        self.setup.copies = blocks;
        self
    }

    /// Maximum number of deliveries that a host has not read.
    #[must_use]
    pub fn pipe(mut self, deliveries: usize) -> Self {
        self.setup.pipe = deliveries;
        self
    }

    /// The cost of a host's work.
    #[must_use]
    pub fn costs(mut self, costs: HostCosts) -> Self {
        self.setup.costs = costs;
        self
    }

    /// Whether blocks carry a checksum.
    #[must_use]
    pub fn checksum(mut self, checksum: Checksum) -> Self {
        self.setup.checksum = checksum;
        self
    }

    /// Nanoseconds of silence after which a node is declared down, or 0 for never: see
    /// [`Config::lease`](pdbp_core::engine::Config::lease).
    #[must_use]
    pub fn lease(mut self, nanos: u64) -> Self {
        self.setup.lease = nanos;
        self
    }

    /// Which node sends what to which.
    #[must_use]
    pub fn traffic(mut self, traffic: Traffic) -> Self {
        self.setup.traffic = traffic;
        self
    }

    /// The share of messages replaced by the beginning of a stream, from 0 to 1.
    #[must_use]
    pub fn streams(mut self, share: f64) -> Self {
        self.setup.mix.streams = self.probability("streams", share);
        self
    }

    /// The share of messages that are commands, from 0 to 1.
    #[must_use]
    pub fn commands(mut self, share: f64) -> Self {
        self.setup.mix.commands = self.probability("commands", share);
        self
    }

    /// The share of messages that are longer than a block, from 0 to 1.
    #[must_use]
    pub fn long(mut self, share: f64) -> Self {
        self.setup.mix.long = self.probability("long", share);
        self
    }

    /// The share of messages that go to all parts of several nodes, from 0 to 1. Nodes then have two parts.
    #[must_use]
    pub fn sets(mut self, share: f64) -> Self {
        self.setup.mix.sets = self.probability("sets", share);
        self
    }

    /// The share of messages replaced by several adjacent ones of one length, from 0 to 1.
    #[must_use]
    pub fn trains(mut self, share: f64) -> Self {
        self.setup.mix.trains = self.probability("trains", share);
        self
    }

    /// See [`Mix::barriers`](super::Mix::barriers).
    #[must_use]
    pub fn barriers(mut self, every: u64) -> Self {
        self.setup.mix.barriers = every;
        self
    }

    /// See [`Mix::quiescence`](super::Mix::quiescence).
    #[must_use]
    pub fn quiescence(mut self, every: u64) -> Self {
        self.setup.mix.quiescence = every;
        self
    }

    /// See [`Mix::guests`](super::Mix::guests).
    #[must_use]
    pub fn guests(mut self, every: u64) -> Self {
        self.setup.mix.guests = every;
        self
    }

    /// See [`Mix::pipes`](super::Mix::pipes): a share from 0 to 1.
    #[must_use]
    pub fn pipes(mut self, share: f64) -> Self {
        self.setup.mix.pipes = self.probability("pipes", share);
        self
    }

    /// See [`Mix::supersteps`](super::Mix::supersteps).
    #[must_use]
    pub fn supersteps(mut self, every: u64) -> Self {
        self.setup.mix.supersteps = every;
        self
    }

    /// Maximum number of parts that an [`Actor`] of a node has at a time, for [`run_actors`](Self::run_actors).
    #[must_use]
    pub fn actor_parts(mut self, parts: u16) -> Self {
        self.setup.actor_parts = parts;
        self
    }

    /// Adds a fault, or its repair, at this time.
    #[must_use]
    pub fn at(mut self, nanos: u64, fault: Fault) -> Self {
        self.faults.push((nanos, fault));
        self
    }

    /// Adds up to `most` faults drawn from the seed, each repaired before the run's `until`: nodes that crash and start again, that
    /// stand still or are slow, and nodes that do not reach each other. Clocks stay right. Faults may overlap, but only
    /// one node crashes, and not the first of two: a cluster stops when less than a majority remembers its tables. Plan others
    /// with [`at`](Self::at).
    #[must_use]
    pub fn random_faults(mut self, most: u32) -> Self {
        self.random_faults = most;
        self
    }

    /// Runs with traffic until then, lets everything come to rest, and checks the invariants at each step and at the end.
    ///
    /// # Errors
    /// Anything impossible in the scenario, or the first invariant that does not hold.
    pub fn run(self, until: u64) -> Result<Report, ScenarioError> {
        self.run_wrapped(until, |port| port)
    }

    /// As [`run`](Self::run), with each port wrapped by `wrap`.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub fn run_wrapped<T: Transport + 'static>(
        self,
        until: u64,
        wrap: impl FnMut(Port) -> T + 'static,
    ) -> Result<Report, ScenarioError> {
        Ok(self.run_in(until, |setup| Cluster::wrapped(setup, wrap))?.report())
    }

    /// As [`run`](Self::run), with actors: see [`Cluster::with_actors`]. Returns the cluster at rest, so that the actors can be
    /// inspected.
    ///
    /// # Errors
    /// As for [`run`](Self::run), and errors that actors report.
    pub fn run_actors(
        self,
        until: u64,
        make: impl FnMut(u16, u32) -> Option<Box<dyn Actor>> + 'static,
    ) -> Result<Cluster, ScenarioError> {
        self.run_in(until, |setup| Cluster::with_actors(setup, make))
    }

    fn run_in<T: Transport + 'static>(
        mut self,
        until: u64,
        make: impl FnOnce(Setup) -> Result<Cluster<T>, ClusterError>,
    ) -> Result<Cluster<T>, ScenarioError> {
        if let Some((name, share)) = self.wrong {
            return Err(ScenarioError::Share(name, share));
        }
        self.setup.traffic_until = until;
        self.draw_faults(self.random_faults, until);
        let mut cluster = make(self.setup)?;
        for (at, fault) in self.faults {
            cluster.plan(at, fault)?;
        }
        cluster.run_until(until)?;
        cluster.settle()?;
        Ok(cluster)
    }
}
