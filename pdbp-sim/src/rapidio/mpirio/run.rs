//! Runs the processes of a program in virtual time: an executor of futures.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::Comm;
use crate::rapidio::fabric::{Event, Fabric, LinkTraffic};
use crate::rapidio::timing::Timing;
use crate::rapidio::topology::{Topology, TopologyError};

/// The state shared by all processes.
#[derive(Debug)]
pub(super) struct World {
    pub(super) fabric: Fabric,
    /// The group of the endpoints of each switch.
    pub(super) locals: Vec<u16>,
    /// The number of calls made, by process and group.
    pub(super) calls: BTreeMap<(u16, u16), u32>,
    /// Groups created by processes, by their members.
    groups: BTreeMap<Vec<u16>, u16>,
}

impl World {
    /// The group of these endpoints, created on first use.
    pub(super) fn group(&mut self, ids: Vec<u16>) -> Option<u16> {
        if let Some(group) = self.groups.get(&ids) {
            return Some(*group);
        }
        let group = self.fabric.add_group(ids.clone())?;
        self.groups.insert(ids, group);
        Some(group)
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Report<T> {
    /// What each process returned, by rank.
    pub results: Vec<T>,
    /// Cycles until each process had ended.
    pub times: Vec<u64>,
    /// Packets sent by all processes, without acknowledgements.
    pub traffic: u64,
    /// Packets sent and received by each process, without acknowledgements.
    pub packets: Vec<(u64, u64)>,
    /// Traffic of the links.
    pub links: Vec<LinkTraffic>,
    /// Packets and buffers still held at the end: 0, unless a call has failed.
    pub held: usize,
    /// Packets dropped by switches and endpoints.
    pub dropped: u64,
    /// Groups whose calls were performed by messages, because a switch had no mask left for them.
    pub without_masks: usize,
    /// The maximum number of packets of one group that a switch held until others arrived: at most 64 to be combined, and at most
    /// 64 to be merged.
    pub most_slots: usize,
    /// The maximum number of packets at an endpoint for calls that its process had not started.
    pub most_early: usize,
    /// The maximum length of the queues of one output, together.
    pub longest_queue: usize,
    /// The number of events.
    pub events: u64,
    /// The maximum number of events scheduled at a time.
    pub most_planned: usize,
    /// Ports read by Init to discover the topology.
    pub reads: usize,
    /// A hash of all events, in order.
    pub digest: u64,
}

impl<T> Report<T> {
    /// Cycles until the last process had ended.
    pub fn time(&self) -> u64 {
        self.times.iter().copied().max().unwrap_or(0)
    }

    /// Packets per cycle: packets sent, over the mean of the processes' times (equation 4 of the paper).
    pub fn flow(&self) -> f64 {
        let sum: u64 = self.times.iter().sum();
        if sum == 0 { 0.0 } else { self.traffic as f64 * self.times.len() as f64 / sum as f64 }
    }

    /// Packets carried by all links, without acknowledgements.
    pub fn crossings(&self) -> u64 {
        self.links.iter().flat_map(|link| link.requests).sum()
    }
}

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunError {
    /// The topology is invalid.
    Topology(TopologyError),
    /// Deadlock: processes wait, but no events are left.
    Stuck {
        /// Cycles since the start.
        at: u64,
        /// The ranks that wait, and their operations in progress.
        waiting: Vec<(usize, Vec<String>)>,
    },
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Topology(error) => error.fmt(f),
            Self::Stuck { at, waiting } => {
                write!(f, "deadlock after {at} cycles; still waiting:")?;
                waiting.iter().try_for_each(|(rank, what)| write!(f, " rank {rank} in [{}]", what.join("; ")))
            }
        }
    }
}

impl std::error::Error for RunError {}

impl From<TopologyError> for RunError {
    fn from(error: TopologyError) -> Self {
        Self::Topology(error)
    }
}

type Process<'p, T> = Option<Pin<Box<dyn Future<Output = T> + 'p>>>;

/// Runs a program with one process on each endpoint until all have ended.
///
/// # Errors
/// An invalid topology, or a deadlock.
///
/// # Panics
/// Panics if the program panics.
pub fn run<T>(
    topology: &Topology,
    timing: Timing,
    program: impl AsyncFn(Comm) -> T,
) -> Result<Report<T>, RunError> {
    let fabric = Fabric::new(topology, timing)?;
    let processes = fabric.endpoints.len();
    let world = Rc::new(RefCell::new(init(fabric, topology.switches())));
    let program = &program;
    let mut running: Vec<Process<'_, T>> = (0..processes as u16)
        .map(|id| Some(Box::pin(program(Comm::new(&world, id, 0))) as Pin<Box<dyn Future<Output = T>>>))
        .collect();
    let mut results: Vec<Option<T>> = (0..processes).map(|_| None).collect();
    let mut times = vec![0; processes];
    let mut woken = Vec::new();
    let mut left = processes;
    while left > 0 {
        let goes_on = world.borrow_mut().fabric.step();
        if !goes_on {
            return Err(stuck(&world.borrow().fabric, &results));
        }
        std::mem::swap(&mut woken, &mut world.borrow_mut().fabric.woken);
        for id in woken.drain(..).map(usize::from) {
            let Some(process) = &mut running[id] else { continue };
            // No waker: a process is polled again whenever its endpoint is woken.
            if let Poll::Ready(result) = process.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                (running[id], results[id], times[id]) = (None, Some(result), world.borrow().fabric.now);
                left -= 1;
            }
        }
    }
    // Deliver what is still in flight: acknowledgements, and messages that nobody received.
    while world.borrow_mut().fabric.step() {}
    Ok(report(&world.borrow().fabric, results, times))
}

fn init(mut fabric: Fabric, switches: usize) -> World {
    let mut ids = vec![Vec::new(); switches];
    for id in 0..fabric.endpoints.len() as u16 {
        ids[fabric.tree.home(id).0].push(id);
        fabric.plan(fabric.timing.start, Event::Wakes(id));
    }
    // Cannot fail: there are half as many switches as group numbers.
    let locals = ids.into_iter().map(|ids| fabric.add_group(ids).unwrap_or_default()).collect();
    World { fabric, locals, calls: BTreeMap::new(), groups: BTreeMap::new() }
}

fn stuck<T>(fabric: &Fabric, results: &[Option<T>]) -> RunError {
    let unfinished = results.iter().enumerate().filter(|(_, result)| result.is_none());
    let waiting = unfinished.map(|(rank, _)| (rank, fabric.endpoints[rank].waiting())).collect();
    RunError::Stuck { at: fabric.now, waiting }
}

fn report<T>(fabric: &Fabric, results: Vec<Option<T>>, times: Vec<u64>) -> Report<T> {
    Report {
        results: results.into_iter().flatten().collect(),
        times,
        traffic: fabric.endpoints.iter().map(|endpoint| endpoint.sent).sum(),
        packets: fabric.endpoints.iter().map(|endpoint| (endpoint.sent, endpoint.received)).collect(),
        links: fabric.traffic(),
        held: fabric.held(),
        dropped: fabric.dropped(),
        without_masks: fabric.groups.iter().filter(|group| !group.in_switches).count(),
        most_slots: fabric.switches.iter().map(|switch| switch.most_slots).max().unwrap_or(0),
        most_early: fabric.endpoints.iter().map(|endpoint| endpoint.most_early).max().unwrap_or(0),
        longest_queue: fabric.outputs.iter().map(|output| output.longest).max().unwrap_or(0),
        events: fabric.queue.planned(),
        most_planned: fabric.most_planned,
        reads: fabric.tree.reads(),
        digest: fabric.digest.value(),
    }
}
