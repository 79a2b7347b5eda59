//! Joining a domain.

use std::sync::Arc;
use std::time::Duration;

use pdbp_core::id::NodeId;
use pdbp_core::umb::HeapMemory;

use crate::communicator::Communicator;
use crate::direct::Direct;
use crate::error::{MpiError, StartError, Threads};
use crate::library::{self, Library};
use crate::lifeline::{Lifelines, Offer};
use crate::machine;
use crate::mapping;
use crate::process::{self, Backing, Gate};
use crate::remote::RemoteLinks;
use crate::result::{self, Comm, Report, Window};
use crate::shared_memory::SharedMemoryLink;
use crate::transport::Mpi;
use crate::window::{Layout, MpiMemory, Region};

/// Pause between two checks whether all processes have arrived.
const MEETING_PAUSE: Duration = Duration::from_micros(100);

/// Which processes read each other's blocks in place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hosts {
    /// Those that MPI reports as sharing a host.
    #[default]
    Detected,
    /// None: all links work as between hosts. Also useful for measurements and tests.
    Apart,
    /// Those on one host that name the same colour, to form several groups on one host, as in tests.
    Coloured(u16),
}

impl Hosts {
    fn kind(self) -> u64 {
        match self {
            Self::Detected => 0,
            Self::Apart => 1,
            Self::Coloured(_) => 2,
        }
    }
}

/// Options for joining a domain. All processes must give the same values, except for `memory`, the colour, and the location of the library.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of block memory of this node.
    pub memory: usize,
    /// Bytes of the longest block, header included.
    pub largest_block: usize,
    /// The most blocks in flight on a link; engines need 3.
    pub in_flight: usize,
    /// Which processes share memory.
    pub hosts: Hosts,
    /// Which MPI to use.
    pub library: Library,
    /// The least thread support needed. When this library initialises MPI, it asks for at least `Serialised`.
    pub threads: Threads,
    /// How long a dropped transport waits for nodes on other hosts to take what was sent to them.
    pub linger: Duration,
}

impl Options {
    /// Blocks of up to `largest_block` bytes, header included, in `memory` bytes.
    pub fn new(memory: usize, largest_block: usize) -> Self {
        Self {
            memory,
            largest_block,
            in_flight: 24,
            hosts: Hosts::Detected,
            library: Library::Auto,
            threads: Threads::Serialised,
            linger: Duration::from_secs(1),
        }
    }
}

impl Mpi {
    /// Joins a domain of all processes of the job. Initialises MPI if the program has not, and then also finalises it when the process
    /// exits with status 0. Collective: returns when all processes have called it.
    ///
    /// # Errors
    /// See [`StartError`]. When one process fails, all do, except that the others wait for one that has no usable MPI: the launcher has to end
    /// the job.
    pub fn start(options: &Options) -> Result<(Self, MpiMemory), StartError> {
        let gate = process::begin(&options.library, options.threads)?;
        check_launcher(&gate)?;
        let world = result::world(&gate);
        join(gate, world, options)
    }

    /// Joins a domain of the processes of a communicator, on a duplicate of it. The program must have initialised MPI, unless this library
    /// has; whichever did also finalises it. Collective over the communicator.
    ///
    /// Processes that start several domains together must start them in the same order, one after the other. If two threads of each start
    /// one at the same time, the processes may wait for each other for ever: only one thread of a process is in MPI at a time.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start_on(comm: &impl Communicator, options: &Options) -> Result<(Self, MpiMemory), StartError> {
        let (gate, comm) = enter(comm, &options.library, options.threads)?;
        join(gate, comm, options)
    }

    /// Returns this process' rank in a communicator, and the communicator's size.
    ///
    /// # Errors
    /// MPI is not initialised, or an MPI call failed.
    pub fn place_in(comm: &impl Communicator, library: &Library) -> Result<(usize, usize), StartError> {
        let (gate, comm) = enter(comm, library, Threads::Serialised)?;
        let (rank, size) = (comm.rank(&gate)?, comm.size(&gate)?);
        usize::try_from(rank).ok().zip(usize::try_from(size).ok()).ok_or(StartError::Nodes(size))
    }
}

/// Refuses an MPI under which each process is a job of its own, as happens when the launcher belongs to another MPI.
fn check_launcher(gate: &Gate) -> Result<(), StartError> {
    let ranks = result::world(gate).size(gate)?;
    Ok(library::check_ranks(gate.mpi(), usize::try_from(ranks).unwrap_or(0))?)
}

/// Enters an MPI that is initialised already, with the program's communicator.
fn enter(comm: &impl Communicator, library: &Library, need: Threads) -> Result<(Gate, Comm), StartError> {
    let bits = comm.handle();
    let mpi = library::load(library)?;
    if !result::is_initialised(mpi) {
        return Err(StartError::NotInitialised);
    }
    if !mpi.may_be_communicator(bits) {
        return Err(StartError::Communicator { bits, library: mpi.to_string() });
    }
    let gate = process::begin(library, need)?;
    check_launcher(&gate)?;
    // SAFETY: the promise of `Communicator`.
    let comm = unsafe { Comm::from_bits(&gate, bits) };
    Ok((gate, comm))
}

/// Made while the gate is held; dropping it takes the gate.
type Made = Option<(Arc<Region>, Option<RemoteLinks>, Direct)>;

fn join(gate: Gate, parent: Comm, options: &Options) -> Result<(Mpi, MpiMemory), StartError> {
    let size = parent.size(&gate)?;
    let nodes = u16::try_from(size).ok().filter(|n| *n < u16::MAX).ok_or(StartError::Nodes(size))?;
    let mut made = None;
    // Declared after `made`, so that the gate is released before that is dropped.
    let mut gate = meet(gate, parent)?;
    let joined = join_together(&mut gate, parent, nodes, options, &mut made);
    drop(gate);
    let ((node, shared), (region, remote, direct)) =
        joined.and_then(|joined| Ok((joined, made.ok_or(StartError::Other)?)))?;
    let memory = MpiMemory::new(Arc::clone(&region)).ok_or(StartError::Other)?;
    Ok((Mpi::assemble((node, nodes), options.largest_block, shared, remote, direct, region), memory))
}

/// Waits for all processes with the gate open: before they arrive, they may need other domains of this process to make progress.
fn meet(mut gate: Gate, parent: Comm) -> Result<Gate, StartError> {
    let mut requests = [parent.begin_barrier(&gate)?];
    let mut report = Report::default();
    let mut rounds = 0;
    loop {
        let mut done = None;
        result::test_some(&gate, &mut requests, &mut report, |d| done = Some(d.outcome))?;
        if let Some(outcome) = done {
            return outcome.map(|_| gate).map_err(StartError::Mpi);
        }
        drop(gate);
        rounds += 1;
        if rounds > 100 {
            std::thread::sleep(MEETING_PAUSE)
        } else {
            std::thread::yield_now()
        }
        gate = process::enter().ok_or(StartError::Finalised)?;
    }
}

/// The part of joining that all processes do in step.
fn join_together(
    gate: &mut Gate,
    parent: Comm,
    nodes: u16,
    options: &Options,
    made: &mut Made,
) -> Result<(NodeId, Vec<SharedMemoryLink>), StartError> {
    let comm = parent.duplicate(gate)?;
    gate.reap(comm)?;
    let rank = comm.rank(gate)?;
    let node = u16::try_from(rank).ok().and_then(NodeId::new).ok_or(StartError::Nodes(rank))?;
    let rank = node.index() as u64;
    if let Err(e) = agree(gate, comm, options) {
        comm.free(gate);
        return Err(e);
    }
    let host = match options.hosts {
        Hosts::Detected | Hosts::Apart => comm.of_host(gate)?,
        Hosts::Coloured(colour) => {
            let host = comm.of_host(gate)?;
            let part = host.split(gate, colour)?;
            host.free(gate);
            part
        }
    };
    let mut members = host.gather(gate, rank)?;
    if options.hosts == Hosts::Apart || !mapping::IS_SUPPORTED {
        members.retain(|m| *m == rank);
    }
    let layout = Layout {
        nodes: usize::from(nodes),
        neighbours: members.len(),
        slots: options.in_flight.max(1),
        blocks: options.memory,
    };
    let me = members.iter().position(|m| *m == rank).unwrap_or(0);
    let remote = (0..nodes).filter(|n| !members.contains(&u64::from(*n))).filter_map(NodeId::new).collect();
    let serial = gate.open_domain(comm, Some(host));
    let region =
        match place(gate, (comm, host), layout, |backing| Region::new(backing, layout, me, serial, remote)) {
            Ok(region) => Arc::new(region),
            Err((e, backing)) => {
                gate.abandon(serial, backing);
                return Err(e);
            }
        };
    gate.attach(serial, Arc::downgrade(&region));
    let domain = (comm, serial);
    let direct = Direct::new(domain, Arc::clone(&region), usize::from(nodes), options.linger);
    let (region, remote, _) = made.insert((region, None, direct));
    // The window exists and the headers are written.
    host.barrier(gate)?;
    let shared = connect(region, &members, options);
    let listening = if region.remote.is_empty() {
        Ok(())
    } else {
        let sizes = (options.in_flight, options.largest_block);
        let (lifelines, offer) = Lifelines::open();
        let offers = exchange(gate, comm, offer);
        let machines = comm.gather(gate, machine::number());
        let nodes = usize::from(nodes);
        let links = RemoteLinks::new(domain, Arc::clone(region), nodes, sizes, options.linger, lifelines);
        let links = remote.insert(links);
        let own = node.index();
        machines
            .map(|machines| links.set_colocated(machine::colocated_count(own, &machines)))
            .and(offers)
            .map(|offers| links.watch(own, &offers))
            .and_then(|()| links.listen(gate))
    };
    // All processes have all their links, or none does.
    let mut fine = [u64::from(shared.is_ok() && listening.is_ok())];
    comm.least(gate, &mut fine)?;
    listening?;
    let shared = shared?;
    if fine == [0] { Err(StartError::Other) } else { Ok((node, shared)) }
}

/// Sends every process' offer to all others. Collective.
fn exchange(gate: &Gate, comm: Comm, offer: Offer) -> Result<Vec<Offer>, MpiError> {
    let mut offers = vec![Offer::default(); usize::try_from(comm.size(gate)?).unwrap_or(0)];
    for (at, word) in offer.into_iter().enumerate() {
        for (offer, word) in offers.iter_mut().zip(comm.gather(gate, word)?) {
            offer.iter_mut().skip(at).take(1).for_each(|place| *place = word);
        }
    }
    Ok(offers)
}

/// Checks that all processes have the same options.
fn agree(gate: &Gate, comm: Comm, options: &Options) -> Result<(), StartError> {
    let same = [
        ("the block size", options.largest_block as u64),
        ("the blocks in flight", options.in_flight as u64),
        ("how memory is shared (0: within a host, 1: not at all, 2: by colour)", options.hosts.kind()),
    ];
    let mut least: Vec<u64> = same.iter().flat_map(|(_, value)| [*value, !*value]).collect();
    comm.least(gate, &mut least)?;
    for ((what, _), pair) in same.into_iter().zip(least.chunks_exact(2)) {
        let (least, most) = (pair[0], !pair[1]);
        if least != most {
            return Err(StartError::Disagree { what, least, most });
        }
    }
    Ok(())
}

/// Why there is no memory, and what was allocated nevertheless, to be freed together with all processes.
type Displaced = (StartError, Backing);

/// Gets the memory of this process, with a view of its neighbours', and makes a region of it. Succeeds on all processes or on none.
fn place(
    gate: &Gate,
    (comm, host): (Comm, Comm),
    layout: Layout,
    make: impl FnOnce(Backing) -> Result<Region, Backing>,
) -> Result<Region, Displaced> {
    let shared = layout.neighbours > 1;
    let backing = if shared { in_window(gate, host, layout) } else { on_heap(layout) };
    let too_short = StartError::Memory { bytes: layout.blocks, shared, cause: None };
    let placed = backing.and_then(|backing| make(backing).map_err(|backing| (too_short, backing)));
    let mut fine = [u64::from(placed.is_ok())];
    let agreed = comm.least(gate, &mut fine).map_err(StartError::Mpi);
    match placed {
        Ok(region) if fine == [1] && agreed.is_ok() => Ok(region),
        Ok(region) => Err((agreed.err().unwrap_or(StartError::Other), region.into_backing())),
        Err(displaced) => Err(displaced),
    }
}

fn on_heap(layout: Layout) -> Result<Backing, Displaced> {
    let failed = StartError::Memory { bytes: layout.blocks, shared: false, cause: None };
    HeapMemory::new(layout.bytes()).map(Backing::Heap).ok_or((failed, Backing::Nothing))
}

fn in_window(gate: &Gate, host: Comm, layout: Layout) -> Result<Backing, Displaced> {
    let nothing = |e: MpiError| (StartError::Mpi(e), Backing::Nothing);
    let failed = |cause| StartError::Memory { bytes: layout.blocks, shared: true, cause };
    // Left to find out by itself, MPI may hang, or map pages that do not exist.
    let bytes = host.gather(gate, layout.bytes() as u64).map_err(nothing)?;
    let wanted = bytes.into_iter().fold(0u64, u64::saturating_add);
    // What is free changes in the meantime, and one that did not allocate would leave the others waiting in MPI.
    let mut free = [free_shared_memory().unwrap_or(u64::MAX)];
    host.least(gate, &mut free).map_err(nothing)?;
    if wanted > free[0] {
        return Err((failed(None), Backing::Nothing));
    }
    let window = Window::allocate(gate, host, layout.bytes());
    // A window that only some processes have can never be freed.
    let mut all = [u64::from(window.is_ok())];
    host.least(gate, &mut all).map_err(nothing)?;
    let window = window.map_err(|e| (failed(Some(e)), Backing::Nothing))?;
    if all == [0] {
        return Err((StartError::Other, Backing::Nothing));
    }
    let mut mappings = Vec::with_capacity(layout.neighbours);
    for rank in 0..layout.neighbours {
        match window.map(gate, rank) {
            Ok(mapping) => mappings.push(mapping),
            Err(e) => return Err((failed(Some(e)), Backing::Window(window, mappings))),
        }
    }
    Ok(Backing::Window(window, mappings))
}

/// Free bytes in the file system where both MPIs place their windows.
#[cfg(unix)]
fn free_shared_memory() -> Option<u64> {
    let space = rustix::fs::statvfs("/dev/shm").ok()?;
    space.f_bavail.checked_mul(space.f_frsize)
}

#[cfg(not(unix))]
fn free_shared_memory() -> Option<u64> {
    None
}

/// Makes the links within the host.
fn connect(
    region: &Arc<Region>,
    members: &[u64],
    options: &Options,
) -> Result<Vec<SharedMemoryLink>, StartError> {
    let sizes = (options.in_flight, options.largest_block);
    let mut shared = Vec::new();
    for (peer, member) in members.iter().enumerate().filter(|(peer, _)| *peer != region.number()) {
        if !region.part(peer).is_set_up() {
            return Err(StartError::Other);
        }
        let node = NodeId::new(*member as u16).ok_or(StartError::Other)?;
        shared.push(SharedMemoryLink::new(region, peer, node, sizes));
    }
    Ok(shared)
}
