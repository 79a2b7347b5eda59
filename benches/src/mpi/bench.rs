//! One timed run of one peer, on the ranks that take part.

use std::fmt;
use std::time::{Duration, Instant};

use mpi::topology::SimpleCommunicator;
use mpi::traits::*;

use super::alltoall::Alltoall;
use super::group::{Group, rest};
use super::load::Load;
use super::pdbp::{By, Loans, Member, Messages, Stream};
use super::peer::Peer;
use super::watch::Watch;
use super::window::{Depth, Sending, Window};
use super::{Traffic, latency};
use crate::scenario::Scenario;

/// What a program over MPI needs to know before it starts.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// Who will be measured.
    pub peers: Vec<Peer>,
    /// Sizes of the groups of ranks that will take part.
    pub groups: Vec<usize>,
    /// Settings of PDBP.
    pub settings: Vec<(String, String)>,
    /// How long a run may take before it counts as hung.
    pub limit: Duration,
}

/// What prevents a program from measuring.
#[derive(Debug)]
pub enum StartError {
    /// The cluster of PDBP did not start.
    Cluster(String),
    /// No watching thread.
    Watch(std::io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cluster(why) => write!(f, "PDBP does not start: {why}"),
            Self::Watch(why) => write!(f, "cannot start the watching thread: {why}"),
        }
    }
}

impl std::error::Error for StartError {}

/// This rank's share of the measurements.
pub struct Bench {
    // Before the communicators: a node that stops may have something to say.
    member: Option<Member>,
    groups: Vec<(usize, Option<Group>)>,
    world: SimpleCommunicator,
    watch: Watch,
    load: Load,
}

impl Bench {
    /// All ranks of the job call it, with the same set-up.
    ///
    /// # Errors
    ///
    /// See [`StartError`]; not all ranks need to see one.
    pub fn start(setup: &Setup) -> Result<Self, StartError> {
        let world = SimpleCommunicator::world();
        let watch = Watch::start(setup.limit).map_err(StartError::Watch)?;
        let mut sizes = setup.groups.clone();
        sizes.sort_unstable();
        sizes.dedup();
        let groups = sizes.into_iter().map(|size| (size, Group::first(&world, size))).collect();
        let mut member = None;
        if setup.peers.iter().any(|&peer| peer.is_pdbp()) {
            let (rank, ranks) = (world.rank() as usize, world.size() as usize);
            watch.begin("the start of PDBP's cluster");
            let started = Member::start(rank, ranks, &setup.settings).map_err(StartError::Cluster)?;
            // The others may still need this node's progress to start theirs.
            rest(&world, || started.help());
            member = Some(started);
            watch.end();
        }
        Ok(Self { member, groups, world, watch, load: Load::default() })
    }

    /// All ranks.
    pub fn world(&self) -> &SimpleCommunicator {
        &self.world
    }

    /// Whether this rank is one of the first `size`, which must be a size of the set-up.
    pub fn takes_part(&self, size: usize) -> bool {
        self.group(size).is_some()
    }

    /// Waits for all other ranks of the job, sleeping.
    pub fn rest(&self) {
        rest(&self.world, || {
            if let Some(member) = &self.member {
                member.help();
            }
        });
    }

    /// The longest message that fits into a block of PDBP; 0 without a cluster.
    pub fn longest(&self) -> usize {
        self.member.as_ref().map_or(0, Member::longest)
    }

    /// The machine's load during the runs of [`Peer::Pdbp`] since the last call.
    pub fn take_load(&mut self) -> Load {
        std::mem::take(&mut self.load)
    }

    /// Exchanges `warm_up` and then `count` packets over every pair of the scenario. Returns how long the latter took at the
    /// slowest rank; every rank that takes part gets the same.
    ///
    /// # Panics
    ///
    /// When anything else arrived than what was sent, nothing moves for long, or this rank takes no part.
    pub fn run(&mut self, peer: Peer, scenario: &Scenario, warm_up: u64, count: u64) -> Duration {
        let Scenario { pattern, nodes, packet, .. } = *scenario;
        let what = format!("{peer}, {pattern}, {nodes} ranks, {packet} bytes");
        self.watch.begin(&what);
        let before = Load::now();
        let (group, member) = Self::parts(&self.groups, &mut self.member, nodes, &what);
        let length = (warm_up, count);
        let window = |depth, sending| Window::new(&what, group, scenario, depth, sending);
        let endpoint = || member.map(Member::endpoint).unwrap_or_else(|| panic!("{what}: no cluster"));
        let time = match peer {
            Peer::Pdbp => timed(&what, group, Messages::new(&what, group, scenario, endpoint()), length),
            Peer::Loan => {
                timed(&what, group, Messages::new(&what, group, scenario, Loans(endpoint())), length)
            }
            Peer::Stream | Peer::Write => {
                let by = if peer == Peer::Write { By::Copies } else { By::Loans };
                timed(&what, group, Stream::new(&what, group.rank(), (packet, by), endpoint()), length)
            }
            Peer::Alltoall => timed(&what, group, Alltoall::new(&what, group, scenario), length),
            Peer::Window => timed(&what, group, window(Depth::Full, Sending::InPlace), length),
            Peer::WindowHot => timed(&what, group, window(Depth::Hot, Sending::InPlace), length),
            Peer::WindowWrite => timed(&what, group, window(Depth::Hot, Sending::Written), length),
            Peer::SendRecv | Peer::SendRecvWrite => panic!("{what}: measured as latency only"),
        };
        if peer == Peer::Pdbp {
            self.load = self.load.and(Load::now().since(before));
        }
        self.watch.end();
        time
    }

    /// Sends `rounds` messages of `bytes` bytes back and forth between the first two ranks. Returns rank 0's round trips, in order; nothing at rank
    /// 1.
    ///
    /// # Panics
    ///
    /// As [`run`](Self::run).
    pub fn ping_pong(&mut self, peer: Peer, bytes: usize, rounds: usize) -> Vec<Duration> {
        let what = format!("{peer}, ping-pong, {bytes} bytes");
        self.watch.begin(&what);
        let (group, member) = Self::parts(&self.groups, &mut self.member, 2, &what);
        let trips = match peer {
            Peer::SendRecv => latency::over_mpi(&what, group, (bytes, rounds), Sending::InPlace),
            Peer::SendRecvWrite => latency::over_mpi(&what, group, (bytes, rounds), Sending::Written),
            Peer::Pdbp => {
                let member = member.unwrap_or_else(|| panic!("{what}: no cluster"));
                latency::over_pdbp(&what, group, member.endpoint(), bytes, rounds)
            }
            _ => panic!("{what}: not measured as latency"),
        };
        self.watch.end();
        trips
    }

    /// The longest of a duration over the first two ranks.
    pub fn longest_of_two(&self, time: Duration) -> Duration {
        self.group(2).map_or(time, |group| group.longest(time))
    }

    fn group(&self, size: usize) -> Option<&Group> {
        self.groups.iter().find(|(s, _)| *s == size).and_then(|(_, group)| group.as_ref())
    }

    /// The group of a size, and the cluster.
    fn parts<'b>(
        groups: &'b [(usize, Option<Group>)],
        member: &'b mut Option<Member>,
        size: usize,
        what: &str,
    ) -> (&'b Group, Option<&'b mut Member>) {
        let group = groups.iter().find(|(s, _)| *s == size).and_then(|(_, group)| group.as_ref());
        (group.unwrap_or_else(|| panic!("{what}: this rank takes no part")), member.as_mut())
    }
}

/// One run: warm-up, the exchange that counts, and the check of all that arrived.
fn timed(what: &str, group: &Group, mut traffic: impl Traffic, (warm_up, count): (u64, u64)) -> Duration {
    group.line(what, || traffic.help());
    traffic.exchange(warm_up);
    group.line(what, || traffic.help());
    let start = Instant::now();
    traffic.exchange(count);
    let time = start.elapsed();
    group.line(what, || traffic.help());
    traffic.verify(warm_up + count);
    group.longest(time)
}
