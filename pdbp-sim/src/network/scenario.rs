//! A run that reads like its specification.

use std::fmt;

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

    pub(super) fn probability(&mut self, name: &'static str, share: f64) -> Probability {
        Probability::new(share).unwrap_or_else(|| {
            self.wrong = Some((name, share));
            Probability::NEVER
        })
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

/// Generates setters from what they say of themselves, their names and arguments, and the places in the [`Setup`].
macro_rules! setters {
    ($($(#[$doc:meta])* $method:ident($value:ident: $type:ty) => $($field:ident).+;)*) => {
        impl Scenario {
            $(
                $(#[$doc])*
                #[must_use]
                pub fn $method(mut self, $value: $type) -> Self {
                    self.setup.$($field).+ = $value;
                    self
                }
            )*
        }
    };
}

setters! {
    /// The seed that determines everything random.
    seed(seed: u64) => seed;
    /// See [`Physics::latency`](super::Physics::latency).
    latency(nanos: u64) => physics.latency;
    /// See [`Physics::jitter`](super::Physics::jitter).
    jitter(nanos: u64) => physics.jitter;
    /// See [`Physics::rate`](super::Physics::rate).
    rate(bits_per_second: u64) => physics.rate;
    /// See [`Physics::give_up`](super::Physics::give_up).
    give_up(nanos: u64) => physics.give_up;
    /// See [`Setup::routing`].
    routing(routing: Routing) => routing;
    /// See [`Physics::crash_sight`](super::Physics::crash_sight).
    crash_sight(sight: CrashSight) => physics.crash_sight;
    /// How blocks arrive, on all links.
    arrival(arrival: Arrival) => physics.arrival;
    /// Bytes of a block after its header.
    body(bytes: usize) => body;
    /// See [`Setup::copies`].
    copies(blocks: u16) => copies;
    /// Maximum number of deliveries that a host has not read.
    pipe(deliveries: usize) => pipe;
    /// The cost of a host's work.
    costs(costs: HostCosts) => costs;
    /// Nanoseconds of silence after which a node is declared down, or 0 for never: see
    /// [`Config::lease`](pdbp_core::engine::Config::lease).
    lease(nanos: u64) => lease;
    /// Which node sends what to which.
    traffic(traffic: Traffic) => traffic;
    /// See [`Mix::barriers`](super::Mix::barriers).
    barriers(every: u64) => mix.barriers;
    /// See [`Mix::quiescence`](super::Mix::quiescence).
    quiescence(every: u64) => mix.quiescence;
    /// See [`Mix::guests`](super::Mix::guests).
    guests(every: u64) => mix.guests;
    /// See [`Mix::supersteps`](super::Mix::supersteps).
    supersteps(every: u64) => mix.supersteps;
    /// Maximum number of parts that an [`Actor`] of a node has at a time, for [`run_actors`](Self::run_actors).
    actor_parts(parts: u16) => actor_parts;
}

/// As `setters`, for shares from 0 to 1.
macro_rules! shares {
    ($($(#[$doc:meta])* $method:ident => $($field:ident).+;)*) => {
        impl Scenario {
            $(
                $(#[$doc])*
                #[must_use]
                pub fn $method(mut self, share: f64) -> Self {
                    self.setup.$($field).+ = self.probability(stringify!($method), share);
                    self
                }
            )*
        }
    };
}

shares! {
    /// The share of frames that are lost, from 0 to 1.
    loss => physics.loss;
    /// The share of frames that later ones overtake, from 0 to 1.
    reorder => physics.reorder;
    /// The share of messages replaced by the beginning of a stream, from 0 to 1.
    streams => mix.streams;
    /// The share of messages that are commands, from 0 to 1.
    commands => mix.commands;
    /// The share of messages that are longer than a block, from 0 to 1.
    long => mix.long;
    /// The share of messages that go to all parts of several nodes, from 0 to 1. Nodes then have two parts.
    sets => mix.sets;
    /// The share of messages replaced by several adjacent ones of one length, from 0 to 1.
    trains => mix.trains;
    /// See [`Mix::pipes`](super::Mix::pipes): a share from 0 to 1.
    pipes => mix.pipes;
}
