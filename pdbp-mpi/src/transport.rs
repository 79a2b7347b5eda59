//! The transport over both kinds of links: within a host and between hosts.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pdbp_core::id::NodeId;
use pdbp_core::{
    Arrival, ArrivedBlock, Bell, Capabilities, Completion, Op, Reason, Refused, SealedBlock, Transport,
    VacantBlock,
};

use crate::bell::WindowBell;
use crate::direct::Direct;
use crate::error::MpiError;
use crate::process;
use crate::remote::{RemoteLinks, Takes};
use crate::shared_memory::{Event, SharedMemoryLink};
use crate::window::Region;

/// Polls without a result between two checks whether a peer on this host has died, and the least time between two checks.
const PROBE_POLLS: u32 = 64;
const PROBE_INTERVAL: Duration = Duration::from_millis(20);
/// Blocks between hosts do best a little shorter than the longest message that MPI sends eagerly. Open MPI's limit over TCP is 64 KiB, its own
/// header included; longer messages need a rendezvous, and two hosts that send to each other then get half of the link each way (47 instead of
/// 91 of 100 Mb/s).
const REMOTE_BLOCK: usize = 60 << 10;
/// Completions of shared-memory links between two polls of the remote ones.
const SHARED_RUN: u32 = 16;

/// One node's end of a domain over MPI. See the [crate's documentation](crate).
pub struct Mpi {
    node: NodeId,
    nodes: u16,
    largest: usize,
    links: Vec<Link>,
    shared: Vec<SharedMemoryLink>,
    direct: Direct,
    /// Dropped before the region, which it needs while it lingers.
    remote: Option<RemoteLinks>,
    region: Arc<Region>,
    ready: VecDeque<Completion<MpiError>>,
    /// The shared-memory link to poll next.
    turn: usize,
    run: u32,
    /// The last poll of the remote links found something, which has been handed out.
    has_probed: bool,
    idle: u32,
    last_probe: Instant,
}

/// What connects this node to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    /// It is this node.
    Own,
    /// On this host: the index in `shared`.
    Shared(usize),
    /// On another host.
    Remote,
}

impl Mpi {
    pub(crate) fn assemble(
        (node, nodes): (NodeId, u16),
        largest: usize,
        shared: Vec<SharedMemoryLink>,
        remote: Option<RemoteLinks>,
        direct: Direct,
        region: Arc<Region>,
    ) -> Self {
        let link = |n: usize| match shared.iter().position(|l| l.node().index() == n) {
            _ if n == node.index() => Link::Own,
            Some(at) => Link::Shared(at),
            None => Link::Remote,
        };
        Self {
            node,
            nodes,
            largest,
            links: (0..usize::from(nodes)).map(link).collect(),
            shared,
            direct,
            remote,
            region,
            ready: VecDeque::new(),
            turn: 0,
            run: 0,
            has_probed: false,
            idle: 0,
            last_probe: Instant::now(),
        }
    }

    /// The bell that peers on this host ring when they have sent something. Nodes on other hosts cannot ring it: if there are any, a thread that
    /// sleeps on it also wakes at short intervals.
    pub fn bell(&self) -> Arc<dyn Bell> {
        Arc::new(WindowBell::new(Arc::clone(&self.region), self.remote.is_some()))
    }

    /// Transfers between memory outside the blocks.
    pub fn direct(&self) -> Direct {
        self.direct.clone()
    }

    /// The other nodes on this node's host, whose blocks are read in place.
    pub fn neighbours(&self) -> Vec<NodeId> {
        self.shared.iter().map(SharedMemoryLink::node).collect()
    }

    /// Whether this machine has more nodes of the domain than processors. Containers are separate hosts but share the processors. (The
    /// processors that this process may use do not matter: launchers bind each process to its own.)
    pub fn is_crowded(&self) -> bool {
        #[cfg(unix)]
        // SAFETY: asks for a number.
        let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        #[cfg(not(unix))]
        let processors = 0;
        let colocated = self.remote.as_ref().map_or(0, RemoteLinks::colocated).max(self.shared.len());
        usize::try_from(processors).is_ok_and(|processors| processors > 0 && colocated >= processors)
    }

    fn link(&self, peer: NodeId) -> Link {
        self.links.get(peer.index()).copied().unwrap_or(Link::Own)
    }

    fn send(&mut self, peer: NodeId, block: SealedBlock) -> Result<(), Refused<MpiError>> {
        let refuse = |block, reason| Err(Refused { op: Op::Send { peer, block }, reason });
        let offset = self.region.own().offset_of(block.bytes());
        let Some(offset) = offset.filter(|_| block.bytes().len() <= self.largest) else {
            return refuse(block, Reason::Unsupported);
        };
        match self.link(peer) {
            Link::Own => refuse(block, Reason::PeerFailed),
            Link::Shared(at) => match self.shared.get_mut(at).filter(|l| !l.failed) {
                None => refuse(block, Reason::PeerFailed),
                Some(link) if link.is_full() || link.is_away(&block) => refuse(block, Reason::Busy),
                Some(link) => {
                    link.send(block, offset);
                    Ok(())
                }
            },
            Link::Remote => {
                let Some(remote) = &mut self.remote else { return refuse(block, Reason::PeerFailed) };
                match remote.takes(peer.index()) {
                    Takes::Never => return refuse(block, Reason::PeerFailed),
                    Takes::Later => return refuse(block, Reason::Busy),
                    Takes::Now => {}
                }
                let Some(gate) = process::enter() else { return refuse(block, Reason::PeerFailed) };
                remote
                    .send(&gate, peer.index(), block)
                    .or_else(|(block, error)| refuse(block, Reason::Transport(error)))
            }
        }
    }

    fn post(&mut self, peer: NodeId, mut block: VacantBlock) -> Result<(), Refused<MpiError>> {
        let refuse = |block, reason| Err(Refused { op: Op::Recv { peer, block }, reason });
        if self.link(peer) != Link::Remote || self.region.own().offset_of(block.bytes_mut()).is_none() {
            return refuse(block, Reason::Unsupported);
        }
        let remote = self.remote.as_mut().filter(|remote| remote.takes(peer.index()) != Takes::Never);
        let (Some(remote), Some(gate)) = (remote, process::enter()) else {
            return refuse(block, Reason::PeerFailed);
        };
        remote
            .post(&gate, peer.index(), block)
            .or_else(|(block, error)| refuse(block, Reason::Transport(error)))
    }

    fn return_block(&mut self, peer: NodeId, block: ArrivedBlock) -> Result<(), Refused<MpiError>> {
        let refuse = |block, reason| Err(Refused { op: Op::Return { peer, block }, reason });
        let Link::Shared(at) = self.link(peer) else { return refuse(block, Reason::Unsupported) };
        match self.shared.get_mut(at) {
            Some(link) if block.id().segment != peer => {
                debug_assert_eq!(link.node(), peer);
                refuse(block, Reason::Unsupported)
            }
            Some(link) if !link.failed => {
                link.return_block(block).or_else(|block| refuse(block, Reason::Unsupported))
            }
            _ => refuse(block, Reason::PeerFailed),
        }
    }

    fn poll_shared(&mut self, at: usize, probe: bool) -> Option<Completion<MpiError>> {
        let link = self.shared.get_mut(at)?;
        let peer = link.node();
        if link.failed {
            return self.poll_ended(at, probe);
        }
        let invalid = match link.poll() {
            Some(Event::Sent(block)) => return Some(Completion::Sent { peer, block }),
            Some(Event::Received(block)) => return Some(Completion::Received { peer, block }),
            Some(Event::Invalid) => true,
            None => false,
        };
        if !invalid && !link.has_ended(probe) {
            return None;
        }
        (link.failed, link.ended) = (true, !invalid);
        let cause = invalid.then(|| MpiError {
            call: "ring in the shared window",
            code: 0,
            text: "the peer wrote an invalid block reference".to_owned(),
        });
        // A peer that wrote invalid data may still read the blocks it has: those stay out.
        let back = if invalid { Vec::new() } else { link.take_back(probe) };
        self.ready.extend(back.into_iter().map(|block| Completion::Failed { peer, block }));
        self.ready.push_back(Completion::PeerFailed { peer, cause });
        self.ready.pop_front()
    }

    /// Blocks that come back after the end of their link.
    fn poll_ended(&mut self, at: usize, probe: bool) -> Option<Completion<MpiError>> {
        let link = self.shared.get_mut(at).filter(|l| l.ended && l.has_blocks_away())?;
        let (peer, back) = (link.node(), link.take_back(probe));
        self.ready.extend(back.into_iter().map(|block| Completion::Failed { peer, block }));
        self.ready.pop_front()
    }

    fn poll_remote(&mut self) -> Option<Completion<MpiError>> {
        self.run = 0;
        if let Some(remote) = &mut self.remote {
            match process::enter() {
                Some(gate) => remote.poll(&gate, &mut self.ready),
                None if process::is_over() => remote.abandon(&mut self.ready),
                // MPI is being finalised, and may still touch blocks.
                None => {}
            }
        }
        self.ready.pop_front()
    }

    /// Whether a check for dead peers is due.
    fn is_probe_due(&mut self) -> bool {
        self.idle += 1;
        if self.idle < PROBE_POLLS {
            return false;
        }
        self.idle = 0;
        let due = self.last_probe.elapsed() >= PROBE_INTERVAL;
        if due {
            self.last_probe = Instant::now();
        }
        due
    }
}

impl Transport for Mpi {
    type Error = MpiError;

    fn capabilities(&self) -> Capabilities {
        Capabilities { nodes: self.nodes, node: self.node, largest_block: self.largest, trusted: true }
    }

    fn arrival(&self, peer: NodeId) -> Arrival {
        match self.link(peer) {
            Link::Shared(_) => Arrival::InPlace,
            Link::Own | Link::Remote => Arrival::Posted,
        }
    }

    fn best_block(&self, peer: NodeId) -> usize {
        match self.link(peer) {
            Link::Remote => self.largest.min(REMOTE_BLOCK),
            Link::Own | Link::Shared(_) => self.largest,
        }
    }

    fn capacity(&self, peer: NodeId) -> usize {
        match self.link(peer) {
            Link::Own => 0,
            Link::Shared(at) => self.shared.get(at).map_or(0, SharedMemoryLink::capacity),
            Link::Remote => self.remote.as_ref().map_or(0, RemoteLinks::capacity),
        }
    }

    fn has_ended(&self, peer: NodeId) -> bool {
        match self.link(peer) {
            Link::Own => false,
            Link::Shared(at) => self.shared.get(at).is_some_and(|link| link.ended),
            Link::Remote => self.remote.as_ref().is_some_and(|remote| remote.has_left(peer)),
        }
    }

    fn disconnect(&mut self, peer: NodeId) {
        if self.link(peer) == Link::Remote
            && let Some(remote) = &mut self.remote
        {
            remote.disconnect(peer.index());
        }
    }

    fn submit(&mut self, op: Op) -> Result<(), Refused<MpiError>> {
        match op {
            Op::Send { peer, block } => self.send(peer, block),
            Op::Recv { peer, block } => self.post(peer, block),
            Op::Return { peer, block } => self.return_block(peer, block),
        }
    }

    fn poll_completion(&mut self) -> Option<Completion<MpiError>> {
        if let Some(ready) = self.ready.pop_front() {
            return Some(ready);
        }
        self.run = self.run.saturating_add(1);
        if self.run > SHARED_RUN
            && self.remote.is_some()
            && let Some(ready) = self.poll_remote()
        {
            return Some(ready);
        }
        let count = self.shared.len();
        for _ in 0..count {
            let at = self.turn;
            self.turn = if at + 1 == count { 0 } else { at + 1 };
            let completion = self.poll_shared(at, false);
            if completion.is_some() {
                return completion;
            }
        }
        if count > 0
            && self.is_probe_due()
            && let Some(completion) = (0..count).find_map(|at| self.poll_shared(at, true))
        {
            return Some(completion);
        }
        self.direct.poll();
        if std::mem::take(&mut self.has_probed) {
            // A remote poll that finds nothing costs a system call: hand out first what the last one found.
            return None;
        }
        let found = self.remote.is_some().then(|| self.poll_remote())?;
        self.has_probed = found.is_some();
        found
    }
}

impl Drop for Mpi {
    /// Leaves the domain: peers take what was sent to them and get their blocks back, except for those that are still read in this process,
    /// which they get back when it ends. Waits for nodes on other hosts, at most for [`Options::linger`](crate::Options::linger).
    fn drop(&mut self) {
        // Others may have reported a death before this node has checked for itself.
        self.shared.iter().for_each(SharedMemoryLink::probe);
        let with_readers = self.shared.iter().filter(|link| link.close()).count();
        if with_readers > 0 {
            // What they read stays mapped.
            std::mem::forget(Arc::clone(&self.region));
        }
        self.region.leave();
        self.shared.iter().for_each(SharedMemoryLink::ring);
    }
}
