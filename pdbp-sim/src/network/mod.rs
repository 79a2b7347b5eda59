//! A network in virtual time: any number of nodes on one thread, and the same run for the same seed, byte for byte.
//!
//! ```text
//!  Scenario ── says what shall happen, checks that what must hold does, and reports
//!     │
//!  Cluster ─── endpoints and their hosts: polls, traffic, books on every message
//!     │
//!  Port ────── a node's Transport                    ┐
//!  link layer  frames: numbered, acknowledged,       │ Network
//!              sent again when lost, released in order │
//!  queue ───── what happens next                     ┘
//! ```
//!
//! Below the contract of [`pdbp_core::transport`], frames are late, lost and overtaken as [`Physics`] prescribes; engines see only
//! the contract, and the passing of time. There is no clock, no thread and no order that depends on addresses: all randomness comes
//! from the seed, and [`Network::digest`] depends on everything that has happened.
//!
//! * [`Physics`]: latency, jitter, rates, loss, and when links are given up. Its [`Ground`] is either a wire between each two
//!   nodes, or a [fabric](crate::rapidio) of switches, on which a frame is a message of one or more packets.
//! * [`Network`] and [`Port`]: the transport, for any driver.
//! * [`Cluster`]: an [`Endpoint`](pdbp_core::Endpoint) over each port, embedded as in a program, with [`Traffic`] between them, and
//!   a [`Mix`] of streams, commands, long messages, trains, sets of destinations, barriers, supersteps and requests for quiescence.
//! * [`Actor`]: a program with parts of its own on the nodes of a cluster.
//! * [`Scenario`]: a run that reads like its specification; [`Scenario::random`] draws one from a seed.
//!
//! # A session of a link
//! Two nodes have a link in each direction; both are up or down together. When two nodes do not reach each other for
//! [`Physics::give_up`], or one has crashed, their session ends: each end gets its blocks back, followed by
//! [`PeerFailed`](pdbp_core::Completion::PeerFailed). Frames still in flight are dropped on arrival, since they carry the number of
//! their session. Links that were never used are not watched; they fail when they are used.
//!
//! When both ends know, and reach each other again, a new session begins, and ends at which the link had failed are notified
//! ([`PeerRestored`](pdbp_core::Completion::PeerRestored)). A node that starts again has no session at first: the frames it sends
//! wait until its peers have noticed the end of its previous life, of which they learn from this one.
//!
//! Blocks that arrive *in place* are read in a copy that the network keeps until they are given back, so that the end of a session
//! cannot make their owner write bytes that are still being read. They still complete at their sender only when they are given
//! back.
//!
//! ```
//! use pdbp_sim::network::{Fault, Scenario, Traffic, gbit, ms, us};
//!
//! let report = Scenario::new(5)
//!     .seed(7)
//!     .latency(us(20))
//!     .jitter(us(5))
//!     .rate(gbit(1))
//!     .loss(0.001)
//!     .reorder(0.01)
//!     .traffic(Traffic::uniform().size(64).rate(20_000))
//!     .at(ms(2), Fault::partition([&[0, 1], &[2, 3, 4]]))
//!     .at(ms(4), Fault::heal())
//!     .run(ms(8))?;
//! assert_eq!(report.lost, 0);
//! println!("{report}");
//! # Ok::<(), pdbp_sim::network::ScenarioError>(())
//! ```

mod accounts;
mod actor;
mod arrivals;
mod beside;
mod check;
mod clock;
mod cluster;
pub(crate) mod events;
mod failure;
mod faults;
mod ground;
mod guests;
mod host;
mod meetings;
mod mix;
mod pair;
mod payload;
mod physics;
mod port;
mod random;
mod reading;
mod report;
#[cfg(test)]
mod sabotage;
mod scenario;
mod setup;
mod streams;
mod supersteps;
mod switches;
#[cfg(test)]
mod tests;
mod trace_file;
mod traffic;
mod wire;
mod writing;

use std::sync::{Arc, Mutex};

pub use actor::{Actor, Context};
pub use beside::{EverySecond, HostEndpoint};
pub use check::{Broken, Invariant};
pub use cluster::Cluster;
pub use events::{Event, Kind};
pub use faults::Fault;
pub use ground::Ground;
pub use host::HostCosts;
pub use mix::Mix;
pub use payload::PAYLOAD;
pub use physics::{CrashSight, Physics, PhysicsError, Probability};
pub use port::{Cause, Port};
pub use report::{Latencies, Report};
pub use scenario::{Scenario, ScenarioError};
pub use setup::{ClusterError, Setup};
pub use switches::{CallFault, GroupKey, SwitchEnd};
pub use trace_file::{TraceEntry, TraceError};
pub use traffic::Traffic;
pub use wire::{LinkCounts, Pace};

use port::lock;
use wire::Net;

/// Converts microseconds to nanoseconds.
pub const fn us(microseconds: u64) -> u64 {
    microseconds * 1_000
}

/// Converts milliseconds to nanoseconds.
pub const fn ms(milliseconds: u64) -> u64 {
    milliseconds * 1_000_000
}

/// Converts seconds to nanoseconds.
pub const fn s(seconds: u64) -> u64 {
    seconds * 1_000_000_000
}

/// Converts gigabits per second to bits per second.
pub const fn gbit(gigabits: u64) -> u64 {
    gigabits * 1_000_000_000
}

/// Converts megabits per second to bits per second.
pub const fn mbit(megabits: u64) -> u64 {
    megabits * 1_000_000
}

/// A network and its time. All clones are the same network.
#[derive(Clone, Debug)]
pub struct Network(Arc<Mutex<Net>>);

impl Network {
    /// Creates a network of `nodes` nodes, all started, and returns it with their ports. `seed` determines everything random.
    ///
    /// A port is a transport, also for [`Host::with_transport`](pdbp_core::embed::Host::with_transport).
    ///
    /// # Errors
    /// See [`PhysicsError`].
    pub fn new(nodes: usize, physics: Physics, seed: u64) -> Result<(Self, Vec<Port>), PhysicsError> {
        let (physics, ground) = physics.checked(nodes)?;
        let network = Self(Arc::new(Mutex::new(Net::new(nodes, physics, ground, seed))));
        let ports = (0..nodes as u16).filter_map(|node| network.attach(node)).collect();
        Ok((network, ports))
    }

    /// Starts a node again, after crashing it if it is still running. `None` if there is no such node.
    pub fn attach(&self, node: u16) -> Option<Port> {
        let mut net = lock(&self.0);
        if usize::from(node) >= net.nodes.len() {
            return None;
        }
        let life = net.attach(node);
        Some(Port::new(&self.0, node, life))
    }

    /// Sets what advances the time. A new network waits for its [`Driver`](Pace::Driver).
    pub fn set_pace(&self, pace: Pace) {
        lock(&self.0).pace = pace;
    }

    /// Nanoseconds since the start.
    pub fn now(&self) -> u64 {
        lock(&self.0).now
    }

    /// Makes the next event happen, if one is due at `until` (nanoseconds since the start) or before; otherwise time stands still.
    pub fn step(&self, until: u64) -> Option<Event> {
        lock(&self.0).step(until)
    }

    /// Makes the next event happen if anything is in progress: anything other than frames that may have to be sent again. Also
    /// returns the nodes for which a completion has become ready, as [`take_rung`](Self::take_rung) does.
    ///
    /// For nodes that run in threads of their own: a thread that has nothing to do advances the time, and no thread sleeps while
    /// this returns `true`.
    pub fn advance(&self, rung: &mut Vec<u16>) -> bool {
        let mut net = lock(&self.0);
        let is_moving = net.is_moving();
        if is_moving {
            net.step(u64::MAX);
        }
        net.take_rung(rung);
        is_moving
    }

    /// Whether [`advance`](Self::advance) would make anything happen.
    pub fn is_moving(&self) -> bool {
        lock(&self.0).is_moving()
    }

    /// Plans a [`Kind::Act`] with this number, which [`step`](Self::step) returns when it is due.
    pub fn plan(&self, at: u64, number: u32) {
        self.plan_kind(at, Kind::Act(number));
    }

    /// Marks the run as over: ports dropped from now on do not crash their nodes, which would visit all pairs of nodes. The
    /// network's own blocks are dropped first: an engine leaves its memory in place forever while anybody has its blocks.
    fn end(&self) {
        let mut net = lock(&self.0);
        net.over = true;
        net.pairs.clear();
        net.nodes.iter_mut().for_each(|node| node.ready.clear());
    }

    fn plan_kind(&self, at: u64, kind: Kind) {
        let mut net = lock(&self.0);
        let at = at.max(net.now);
        net.queue.plan(at, kind);
    }

    /// Takes the nodes for which a completion has become ready since the last call, in the order in which that happened.
    pub fn take_rung(&self, into: &mut Vec<u16>) {
        lock(&self.0).take_rung(into);
    }

    /// Partitions the nodes into groups; those in no group form another one. Replaces any earlier partition.
    pub fn partition(&self, groups: &[Vec<u16>]) {
        let mut net = lock(&self.0);
        net.nodes.iter_mut().for_each(|node| node.group = 0);
        for (group, members) in groups.iter().enumerate() {
            for member in members {
                if let Some(state) = net.nodes.get_mut(usize::from(*member)) {
                    state.group = group as u16 + 1;
                }
            }
        }
        net.check_all_links();
    }

    /// Cuts the link from one node to another, in this direction only.
    pub fn cut(&self, from: u16, to: u16) {
        let mut net = lock(&self.0);
        net.cuts.insert((from, to));
        net.check_all_links();
    }

    /// Mends all cuts and partitions.
    pub fn heal(&self) {
        let mut net = lock(&self.0);
        net.cuts.clear();
        net.nodes.iter_mut().for_each(|node| node.group = 0);
        net.check_all_links();
    }

    /// Crashes a node; its port is useless from now on.
    pub fn crash(&self, node: u16) {
        lock(&self.0).crash(node);
    }

    /// From now on, a node that starts again is another process, which takes over the place.
    pub(crate) fn publish_lives(&self) {
        lock(&self.0).tells_lives = true;
    }

    /// Whether the primary has given up the place of a node, so that another process may take it.
    pub fn is_vacated(&self, node: u16) -> bool {
        lock(&self.0).nodes.get(usize::from(node)).is_some_and(|state| state.vacated)
    }

    /// Number of blocks that `node` has posted for `peer` and not got back, filled or unused.
    pub fn posted(&self, node: u16, peer: u16) -> u32 {
        let mut net = lock(&self.0);
        if node == peer || !net.pairs.contains_key(&wire::key(node, peer)) {
            return 0;
        }
        net.end(node, peer).posts_away
    }

    /// Number of completions that a node has not polled, except those of control blocks, of which masters of many nodes always have
    /// some.
    pub fn unpolled(&self, node: u16) -> usize {
        let net = lock(&self.0);
        let state = net.nodes.get(usize::from(node));
        state.map_or(0, |state| state.ready.iter().filter(|ready| !ready.is_control()).count())
    }

    /// Returns a node that has yet to notice the end of a link: until then it believes that frames it sent will arrive.
    fn unnoticed(&self) -> Option<u16> {
        let net = lock(&self.0);
        let ends = net.pairs.iter().flat_map(|((low, high), pair)| [*low, *high].into_iter().zip(&pair.ends));
        let mut mistaken = ends.filter(|(_, end)| end.belief == pair::Belief::Mistaken);
        mistaken.next().map(|(node, _)| node)
    }

    /// A number that depends on everything that has happened, in order.
    pub fn digest(&self) -> u64 {
        let net = lock(&self.0);
        let mut digest = net.digest;
        if let Some(ground) = &net.ground {
            digest.add(ground.frames.digest());
        }
        digest.value()
    }

    /// Adds a word to the digest.
    pub fn digest_also(&self, word: u64) {
        lock(&self.0).digest.add(word);
    }

    /// The counters of the links.
    pub fn counts(&self) -> LinkCounts {
        let net = lock(&self.0);
        LinkCounts { packets: net.ground.as_ref().map_or(0, |ground| ground.frames.packets()), ..net.counts }
    }

    /// Number of planned events.
    pub fn planned(&self) -> usize {
        lock(&self.0).queue.len()
    }

    #[cfg(test)]
    fn sabotage(&self, kind: sabotage::Sabotage, after: u32) {
        lock(&self.0).saboteur = Some(sabotage::Saboteur::new(kind, after));
    }

    /// The latest events, one line each.
    pub fn trace(&self) -> Vec<String> {
        lock(&self.0).trace.lines()
    }
}
