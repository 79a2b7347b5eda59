//! A node of the cluster: its handle ([`Node`]), what its threads share (`shared`), which thread polls it (`progress`),
//! and how threads wait (`waiting`).

mod backend;
mod clock;
mod common_lanes;
mod devices;
mod full_rows;
mod lanes;
pub(crate) mod names;
mod pipes;
mod progress;
mod released;
mod shared;
mod tasks;
mod waiting;
mod watch;

use std::sync::Arc;
use std::time::{Duration, Instant};

use pdbp_core::engine::{Counters, PipeUse, RowStats};
use pdbp_core::id::NodeId;
use pdbp_core::pipe::PipeKind;
use pdbp_core::tables::PartKind;
use pdbp_core::umb::{BlockMemory, Space};

pub(crate) use backend::Carrier;
#[cfg(feature = "mpi")]
pub(crate) use backend::Direct;
pub use backend::{Backend, BackendError};
#[cfg(feature = "mpi")]
pub(crate) use devices::knows_devices;
pub(crate) use devices::pin;
pub(crate) use pipes::Pipe;
#[cfg(feature = "rapidio")]
pub(crate) use pipes::Sleeper;
pub(crate) use progress::Driver;
pub(crate) use shared::{NodeEngine, OWN_ROWS, Own, Shared, Turn};
pub(crate) use tasks::{Awaited, Room};
pub use waiting::interruptible;
#[cfg(feature = "net")]
pub(crate) use waiting::with_interrupts;
pub(crate) use waiting::{SeenInterrupts, WaitFailure, Waiter};
pub use watch::Watch;

use crate::config::Settings;
use crate::desk::Desk;
use crate::error::{LookupError, RegisterError, Timeout, WaitError};
use crate::monitor::Endpoint;
use crate::part::{self, Part, Target};

/// Looks up a part of this cluster for another cluster, to which the runtime's own parts are invisible. The error is reported to that
/// cluster.
#[cfg(feature = "net")]
pub(crate) fn find_for_others(node: &Node, address: &str) -> Result<Target, String> {
    let engine = node.shared.engine();
    let found = match names::is_own(address) {
        true => Err(names::unknown(&engine, address)),
        false => names::check(address).and_then(|()| names::lookup(&engine, address)),
    };
    found.map_err(|error| error.to_string())
}

/// Block memory of any kind.
pub type Memory = Box<dyn BlockMemory + Send>;

/// A node hosted by this process. Clones are handles to the same node; any thread may use them.
pub struct Node {
    pub(crate) shared: Arc<Shared>,
    pub(crate) seen: SeenInterrupts,
    /// Keeps the progress thread alive.
    pub(crate) driver: Option<Arc<Driver>>,
    /// Set on the node that serves the figures.
    pub(crate) endpoint: Option<Arc<Endpoint>>,
    /// Set on the node that serves clients.
    pub(crate) desk: Option<Arc<Desk>>,
    /// Set on the node that carries trunks to other clusters.
    #[cfg(feature = "net")]
    pub(crate) gateway: Option<Arc<crate::grid::Gateway>>,
}

impl Clone for Node {
    fn clone(&self) -> Self {
        Self {
            seen: self.seen.renewed(&self.shared),
            shared: Arc::clone(&self.shared),
            driver: self.driver.clone(),
            endpoint: self.endpoint.clone(),
            desk: self.desk.clone(),
            #[cfg(feature = "net")]
            gateway: self.gateway.clone(),
        }
    }
}

/// Result of [`Node::poll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Polled {
    /// Whether the poll did anything. If so, there may be more to do.
    pub worked: bool,
    /// How long the loop may wait before it polls again if nothing happens; `None` means until something happens.
    pub next: Option<Duration>,
}

/// Statistics of a running node.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeStats {
    /// The node.
    pub node: NodeId,
    /// SCBP rows in peer order, including this node's own row (messages between its parts). A node without a link has no row: what is sent
    /// there is in the row of its relay.
    pub send: Vec<RowStats>,
    /// RCBP rows, in the same order.
    pub recv: Vec<RowStats>,
    /// Counters since the start.
    pub counters: Counters,
    /// Blocks of the UMB that belong to no row.
    pub free_blocks: u32,
    /// Private, message and stream pipes.
    pub pipes: [PipeUse; 3],
}

impl Node {
    /// The node's index in the cluster.
    pub fn id(&self) -> NodeId {
        self.shared.id
    }

    /// The node's name, as it follows the `@` in addresses: "node0", "node1", …
    pub fn name(&self) -> String {
        self.shared.id.to_string()
    }

    /// The settings that the node runs with.
    pub fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// The desk at which programs without PDBP reach parts, if this is the node that serves them (the settings `desk` and `desk_node`).
    #[cfg(feature = "desk")]
    pub fn desk(&self) -> Option<&Desk> {
        self.desk.as_deref()
    }

    /// The kind of memory that holds the node's blocks: [`Space::Pinned`] if CUDA devices copy from and to them at full speed (the setting
    /// `pin_memory`).
    pub fn memory_space(&self) -> Space {
        self.shared.space
    }

    /// Whether this process's MPI supports device memory: it claims to, and a test transfer has succeeded. Tested only if the setting
    /// `mpi_device_bytes` is not 0.
    #[cfg(feature = "mpi")]
    pub fn mpi_knows_devices(&self) -> bool {
        self.shared.direct.as_ref().is_some_and(|direct| direct.knows_devices)
    }

    /// Registers a part and binds a private pipe to it (`prcsReg`, `prcsApplyPipe`). Returns when every node knows the name, which has at
    /// most 40 bytes and no `@`. The part stays on the calling thread; dropping it frees its name and pipe.
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub fn register(&self, name: &str, kind: PartKind) -> Result<Part, RegisterError> {
        Part::register(self, name, kind)
    }

    /// As [`register`](Self::register), for a part that may move to another thread, and whose messages any thread may read and
    /// drop. This costs one atomic operation per message: see [`Shared`](part::Shared).
    ///
    /// ```
    /// use pdbp::{Cluster, PartKind};
    ///
    /// let cluster = Cluster::local(1)?;
    /// let part = cluster.node(0).unwrap().register_shared("part", PartKind::Cpu).unwrap();
    /// let reader = std::thread::spawn(move || {
    ///     part.send(part.id(), b"to myself").unwrap();
    ///     part.recv().unwrap()
    /// });
    /// assert_eq!(*reader.join().unwrap(), *b"to myself");
    /// # Ok::<(), pdbp::StartError>(())
    /// ```
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub fn register_shared(&self, name: &str, kind: PartKind) -> Result<Part<part::Shared>, RegisterError> {
        Part::register(self, name, kind)
    }

    /// Adds a part without a name, for short-lived parts such as clients that ask one question. Others reach it by its [`id`](Part::id),
    /// which receivers of its messages get from [`Message::source`](crate::Message::source). It cannot be looked up and is in no table.
    /// While registering a part takes a round trip through all nodes, attaching therefore takes one only for the first of every 16,382
    /// parts of a node (or for every part while one of the previous 16,382 still exists). It counts towards the setting `local_parts`, not
    /// `parts`. Otherwise it is like any other part. Dropping it frees its place at once.
    ///
    /// ```
    /// use pdbp::{Cluster, PartKind};
    ///
    /// let cluster = Cluster::local(2)?;
    /// let server = cluster.node(0).unwrap().register_shared("square", PartKind::Cpu).unwrap();
    /// let answers = std::thread::spawn(move || {
    ///     for _ in 0..1000 {
    ///         let question = server.recv().unwrap();
    ///         server.send(question.source(), &[question[0] * question[0]]).unwrap();
    ///         server.flush();
    ///     }
    /// });
    /// let node = cluster.node(1).unwrap();
    /// for n in 0..1000 {
    ///     let client = node.attach().unwrap();
    ///     client.send(client.find("square@node0", node.settings().timeout).unwrap(), &[(n % 10) as u8]).unwrap();
    ///     assert_eq!(*client.recv().unwrap(), [(n % 10 * (n % 10)) as u8]);
    /// }
    /// answers.join().unwrap();
    /// # Ok::<(), pdbp::StartError>(())
    /// ```
    ///
    /// # Errors
    /// See [`RegisterError`]: this node already has `local_parts` parts, or no private pipe is left.
    pub fn attach(&self) -> Result<Part, RegisterError> {
        Part::attach(self)
    }

    /// As [`attach`](Self::attach), for a part that may move to another thread: see [`register_shared`](Self::register_shared).
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub fn attach_shared(&self) -> Result<Part<part::Shared>, RegisterError> {
        Part::attach(self)
    }

    /// Looks up a part by an address such as `"analyser@node2"`, or by its name alone if only one node has such a part.
    /// `"analyser@node2.east"` is a part of another cluster that a trunk leads to (the settings `grid` and `trunks`): this asks
    /// that cluster, and waits for the answer up to the setting `timeout_ms`.
    ///
    /// # Errors
    /// See [`LookupError`], which lists what exists.
    pub fn lookup(&self, address: &str) -> Result<Target, LookupError> {
        self.lookup_within(address, self.settings().timeout)
    }

    /// As [`lookup`](Self::lookup), with a timeout for the answer of another cluster.
    pub(crate) fn lookup_within(&self, address: &str, timeout: Duration) -> Result<Target, LookupError> {
        names::check(address)?;
        #[cfg(feature = "net")]
        if let Some(remote) = crate::grid::Remote::of(self, address) {
            return remote.lookup_within(self, timeout);
        }
        #[cfg(not(feature = "net"))]
        let _ = timeout;
        names::lookup(&self.shared.engine(), names::here(address, self.settings()))
    }

    /// As [`lookup`](Self::lookup), but waits up to `timeout` until the part is registered.
    ///
    /// # Errors
    /// The last error of `lookup`, once the timeout has run out; [`LookupError::BadAddress`] at once.
    pub fn find(&self, address: &str, timeout: Duration) -> Result<Target, LookupError> {
        names::check(address)?;
        #[cfg(feature = "net")]
        if let Some(remote) = crate::grid::Remote::of(self, address) {
            return remote.find(self, timeout);
        }
        let address = names::here(address, self.settings());
        let found = self.wait_for(
            timeout,
            "registered the part",
            // A node that has just joined may be known before its link is up.
            |engine| names::lookup(engine, address).ok().filter(|part| !engine.has_failed(part.node())),
            |_| Vec::new(),
        );
        match found {
            Ok(target) => Ok(target),
            Err(WaitFailure::Interrupted) => Err(LookupError::Interrupted),
            Err(WaitFailure::Timeout(_)) => self.lookup(address),
        }
    }

    /// Whether this node's tables are up to date, so that lookups see every part whose registration has returned on any node.
    /// `false` for a moment while a change is in progress, and on a node cut off from the master. A lookup is reliable if this is
    /// `true` *afterwards*, since the process may be suspended between the two calls.
    pub fn is_current(&self) -> bool {
        let engine = self.shared.engine();
        // The clock is read after taking the lock, which a thread may wait long for.
        engine.is_current(self.shared.now())
    }

    /// Waits until every node of the cluster has called this as often as this node. One thread of each node calls it. In an open
    /// cluster (the setting `found`) it waits for members only: a new node's first call joins the barrier in progress, and nodes
    /// that leave or are declared down are not waited for.
    ///
    /// A call that failed still counts as this node's arrival: the next call is for the next barrier. Unless the cluster is open, no
    /// barrier completes once a node has left, or failed for good.
    ///
    /// # Errors
    /// [`WaitError::PeerFailed`], without waiting any longer, if a node has ended before it arrived and there is a primary master to say so.
    /// [`WaitError::Timeout`] names the nodes that, to this node's knowledge, have not arrived; [`WaitError::Interrupted`].
    pub fn barrier(&self, timeout: Duration) -> Result<(), WaitError> {
        let began = Instant::now();
        let generation = self.arrive(timeout)?;
        let missing = |engine: &NodeEngine| engine.barrier_missing(generation).collect();
        let done = |engine: &mut NodeEngine| match engine.barrier_passed(generation) {
            true => Some(Ok(())),
            false => engine.barrier_lost(generation).map(|node| Err(WaitError::PeerFailed(node))),
        };
        let left = timeout.saturating_sub(began.elapsed());
        self.wait_for(left, "arrived at the barrier", done, missing).map_err(|late| late.after(timeout))?
    }

    /// Arrives at the next barrier; in an open cluster, once this node knows which one that is.
    fn arrive(&self, timeout: Duration) -> Result<u32, WaitError> {
        let mut engine = self.shared.engine();
        if engine.is_ready() || !engine.config().is_open() {
            return Ok(engine.arrive());
        }
        drop(engine);
        let arrived = self.wait_for(
            timeout,
            "admitted this node to the cluster",
            |engine| engine.is_ready().then(|| engine.arrive()),
            |_| Vec::new(),
        );
        Ok(arrived?)
    }

    /// Waits until everything that any part of any node has sent so far is in its receiver's private pipe, where a receive finds it without
    /// waiting. Any number of nodes may call it at the same time. It is not a barrier: a slower node may send more a moment later. To make
    /// sure that all nodes have sent everything, call [`barrier`](Self::barrier) first, or use [`Part::advance`](crate::Part::advance).
    ///
    /// Call it when senders pause: while any part keeps sending, there may be no moment at which everything has arrived. With
    /// [`Progress::Inline`](crate::Progress::Inline) every part must [flush](crate::Part::flush) first, including those of the calling
    /// thread; the other modes do that for them. A [`StreamWriter`](crate::StreamWriter) in the middle of a segment, and a
    /// [`Loan`](crate::Loan), count as not yet sent.
    ///
    /// # Errors
    /// [`WaitError::Timeout`]: some part does not read, does not flush, or does not stop sending; or the primary master, which it names, is
    /// gone, and no other has taken its place. If all masters have ended, so that none can, it does not wait.
    pub fn quiesce(&self, timeout: Duration) -> Result<(), WaitError> {
        let (began, number) = (Instant::now(), self.shared.engine().request_quiescence());
        let answered = |engine: &mut NodeEngine| match engine.is_quiescent(number) {
            true => Some(true),
            false => has_lost_all_masters(engine).then_some(false),
        };
        match self.wait_for(timeout, "", answered, |_| Vec::new()) {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.never_quiescent(began).into()),
            Err(late) => Err(self.not_quiescent(late).into()),
        }
    }

    /// A wait for quiescence that is in vain, since no node can become primary any more.
    pub(crate) fn never_quiescent(&self, began: Instant) -> WaitFailure {
        let (waited, peers) = (began.elapsed(), Vec::new());
        self.not_quiescent(WaitFailure::Timeout(Timeout { waited, peers, missing: "" }))
    }

    /// A wait for quiescence that has ended early, with what was missing.
    pub(crate) fn not_quiescent(&self, late: WaitFailure) -> WaitFailure {
        let WaitFailure::Timeout(timeout) = late else { return late };
        let engine = self.shared.engine();
        let gone = |node: &NodeId| engine.has_failed(*node);
        let masters: Vec<_> = (0..engine.config().masters).filter_map(NodeId::new).filter(gone).collect();
        let (peers, missing) = if engine.master().is_none_or(|master| gone(&master)) && !masters.is_empty() {
            (
                masters,
                "confirmed that everything sent has arrived, which only the primary master can: it has failed or left, and no other \
                 node has become primary",
            )
        } else {
            (
                Vec::new(),
                "confirmed that everything sent has arrived: some part is not reading its pipe, has not flushed, or keeps sending",
            )
        };
        WaitFailure::Timeout(Timeout { peers, missing, ..timeout })
    }

    /// Waits until `done` returns a value, while all nodes of this process make progress.
    pub(crate) fn wait_for<R>(
        &self,
        timeout: Duration,
        missing: &'static str,
        done: impl FnMut(&mut NodeEngine) -> Option<R>,
        peers: impl FnOnce(&NodeEngine) -> Vec<NodeId>,
    ) -> Result<R, WaitFailure> {
        self.wait_by(timeout, missing, done, peers, |waiter| waiter.pause(self, &[]))
    }

    /// As [`wait_for`](Self::wait_for), by pauses of its own.
    fn wait_by<R>(
        &self,
        timeout: Duration,
        missing: &'static str,
        mut done: impl FnMut(&mut NodeEngine) -> Option<R>,
        peers: impl FnOnce(&NodeEngine) -> Vec<NodeId>,
        mut pause: impl FnMut(&mut Waiter) -> Result<(), WaitFailure>,
    ) -> Result<R, WaitFailure> {
        let shared = &self.shared;
        let mut waiter = Waiter::new(timeout, shared);
        loop {
            let mut engine = shared.engine();
            let worked = shared.poll_with(&mut engine).worked;
            if let Some(result) = done(&mut engine) {
                return Ok(result);
            }
            // Not before `done` is asked: an interrupt that is taken ends this call.
            if worked > 0 {
                waiter.check_node_interrupts(shared, &self.seen)?;
            }
            if waiter.is_over() {
                return Err(waiter.failure(peers(&engine), missing));
            }
            drop(engine);
            shared.help_siblings();
            if worked == 0 {
                pause(&mut waiter)?;
            }
        }
    }

    /// Lets the node make progress. With [`Progress::Host`](crate::Progress::Host) the program calls this from its event loop.
    pub fn poll(&self) -> Polled {
        let mut engine = self.shared.engine();
        let turn = self.shared.poll_with(&mut engine);
        drop(engine);
        Polled { worked: turn.worked > 0, next: self.shared.due(&turn) }
    }

    /// Statistics of the node and of every row.
    pub fn stats(&self) -> NodeStats {
        let engine = self.shared.engine();
        let peers = || (0..engine.config().nodes).filter_map(NodeId::new);
        NodeStats {
            node: self.shared.id,
            send: peers().filter_map(|p| engine.send_row(p)).collect(),
            recv: peers().filter_map(|p| engine.recv_row(p)).collect(),
            counters: engine.counters(),
            free_blocks: engine.free_blocks(),
            pipes: [PipeKind::Private, PipeKind::Message, PipeKind::Stream].map(|kind| engine.pipes(kind)),
        }
    }

    /// Addresses of all parts that this node knows.
    pub fn parts(&self) -> Vec<String> {
        names::parts(&self.shared.engine())
    }

    /// The members of the cluster that this node knows of, itself included, in index order. A node that ends or fails is declared down by
    /// the others and is no longer a member ([`Event::NodeDown`](crate::Event::NodeDown)); one that was only silent is readmitted when it
    /// returns ([`Event::NodeUp`](crate::Event::NodeUp)). A node that is not a member itself ([`Event::Expelled`](crate::Event::Expelled))
    /// lists the members it last knew.
    ///
    /// ```
    /// use pdbp::{Cluster, Event};
    ///
    /// let mut nodes = Cluster::local(3)?.into_nodes();
    /// assert_eq!(nodes[0].members().len(), 3);
    /// let gone = nodes.remove(2).id();
    /// let is_it = |event: &Event| matches!(event, Event::NodeDown { node } if *node == gone);
    /// while !nodes[0].take_events().iter().any(is_it) {
    ///     std::thread::yield_now();
    /// }
    /// assert_eq!(nodes[0].members(), [nodes[0].id(), nodes[1].id()]);
    /// # Ok::<(), pdbp::StartError>(())
    /// ```
    pub fn members(&self) -> Vec<NodeId> {
        self.shared.engine().members().collect()
    }
}

/// Whether no node can become primary any more.
pub(crate) fn has_lost_all_masters(engine: &NodeEngine) -> bool {
    let mut masters = (0..engine.config().masters).filter_map(NodeId::new);
    masters.all(|master| engine.has_ended(master))
}
