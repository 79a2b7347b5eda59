//! A trunk's domain: an open cluster over sockets, in which each gateway is a node with two parts.
//!
//! **A trunk concerns two**: the gateway that listens, which founds the domain, and one that has dialled. Those that have dialled have nothing to do with
//! each other, and need not reach each other: one open port, that of the founder, is enough for all.
//!
//! `gate.NAME` receives, on a thread of its own, which is the one that polls; by the other part the gateway sends.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use pdbp_core::id::NodeId;
use pdbp_core::tables::PartKind;

use super::Common;
use super::gate::{self, Gate};
use crate::cluster::{Cluster, StartError};
use crate::config::{Builder, Framing, Progress, Scheme, Settings, Tls, TransportKind, Trunk};
use crate::node::{Late, Node, NodeEngine, interruptible};
use crate::part::{Message, Part, Shared, Target};

/// Bytes of a block on a trunk, the same everywhere: a block of a cluster with the defaults, and a frame's head.
const BLOCK: usize = 132 << 10;
/// Gateways that may dial one that listens.
const PLACES: u16 = 16;
/// What the names of gateways' parts begin with.
pub(super) const NAME: &str = "gate.";
/// How long who has dialled waits to be let in before it asks again: lines may be slow, and links lose nothing. The founder alone votes, so that
/// no election waits for it.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two tries to dial.
const PAUSE: Duration = Duration::from_millis(100);
/// How long the receiver sleeps at most before it looks whether it is to end.
const NAP: Duration = Duration::from_millis(50);

/// Dials until the gateway there is reached, or this one is to end.
pub(super) fn dial(
    trunk: &Trunk,
    node: &Node,
    settings: &Settings,
    own: &str,
    common: &Arc<Common>,
) -> Option<Gate> {
    while !common.is_over() {
        if common.has_session(&trunk.cluster) {
            // It has dialled this one.
            std::thread::sleep(PAUSE);
            continue;
        }
        let builder = by_scheme(builder(settings), trunk, settings).join(trunk.address.clone());
        let here = Arc::clone(common);
        let reach = || Domain::enter(builder.start_net_at()?.0, own, Some((trunk, &**common)));
        let error = match interruptible(move || here.is_over(), reach) {
            Ok(domain) => match begin(domain, trunk, node, settings, common) {
                Ok(gate) => return Some(gate),
                Err(error) => error,
            },
            Err(error) => error,
        };
        if !matches!(error, StartError::Interrupted) {
            common.note(&trunk.cluster, error.to_string());
        }
        std::thread::sleep(PAUSE);
    }
    None
}

/// Begins with who has been reached. As long as there is no place for its own parts a gateway keeps the other, and says so.
fn begin(
    domain: Domain,
    trunk: &Trunk,
    node: &Node,
    settings: &Settings,
    common: &Common,
) -> Result<Gate, StartError> {
    loop {
        match gate::parts(node) {
            Ok(parts) => return Gate::new(domain, parts, node, settings).map_err(StartError::Thread),
            Err(error) if common.is_over() || domain.is_over() => return Err(error),
            Err(error) => common.note(&trunk.cluster, error.to_string()),
        }
        // Nobody else does so far.
        domain.node.poll();
        std::thread::sleep(PAUSE);
    }
}

/// One end of a domain of trunks.
pub(super) struct Domain {
    pub(super) node: Node,
    /// What frames are sent by.
    pub(super) out: Part<Shared>,
    /// What receives them, until the receiver has it.
    receiver: Option<Part<Shared>>,
    pub(super) own: String,
    /// If this end has dialled.
    founder: Option<NodeId>,
}

impl Domain {
    /// Listens for gateways of other clusters.
    pub(super) fn listen(at: &str, settings: &Settings, own: &str) -> Result<(Self, SocketAddr), StartError> {
        let (cluster, address) = builder(settings).listen(at.to_owned()).found(true).start_net_at()?;
        Ok((Self::enter(cluster, own, None)?, address))
    }

    /// `dialled` is what this end has called, which has to be the cluster that it was taken for.
    fn enter(cluster: Cluster, own: &str, dialled: Option<(&Trunk, &Common)>) -> Result<Self, StartError> {
        let failed = |error| StartError::Sockets(Box::new(error));
        let node = cluster.into_nodes().pop().ok_or(StartError::NoAddress)?;
        let founder = NodeId::new(0).filter(|_| dialled.is_some());
        // Before the other knows of this one.
        if let Some(((trunk, common), founder)) = dialled.zip(founder) {
            let name = name_of(&node, founder)?;
            if name != trunk.cluster {
                let says = format!(
                    "the gateway at {} is that of the cluster \"{name}\" and not of \"{}\"; set `trunks` and the other's `grid` alike",
                    trunk.address, trunk.cluster
                );
                return Err(StartError::Sockets(says.into()));
            }
            if common.has_session(&name) {
                // It has dialled this one meanwhile.
                return Err(StartError::Interrupted);
            }
        }
        let out = node.register_shared("out", PartKind::Communication).map_err(failed)?;
        let receiver = node.register_shared(&format!("{NAME}{own}"), PartKind::Communication);
        let receiver = Some(receiver.map_err(failed)?);
        Ok(Self { node, out, receiver, own: own.to_owned(), founder })
    }

    /// Gateways in reach: their clusters' names, and the parts that take frames. Of who has dialled that is the one that listens.
    pub(super) fn peers(&self) -> Vec<(String, Target)> {
        let engine = self.node.shared.engine();
        let me = engine.config().node;
        let is_peer = |node| node != me && self.founder.is_none_or(|founder| founder == node);
        let others =
            engine.parts().filter(|part| is_peer(part.id.node()) && !engine.has_failed(part.id.node()));
        let named =
            others.filter_map(|part| Some((part.name.as_str().strip_prefix(NAME)?.to_owned(), part.id)));
        named.collect()
    }

    /// Whether the link to a gateway has a connection.
    pub(super) fn is_connected(&self, peer: NodeId) -> bool {
        let stats = self.node.shared.engine().transport().links();
        let links = stats.map(|stats| stats.links).unwrap_or_default();
        links.get(peer.index()).is_some_and(|link| link.state == pdbp_net::LinkState::Up)
    }

    /// Whether who listens has gone; who has dialled begins anew then.
    pub(super) fn is_over(&self) -> bool {
        let engine = self.node.shared.engine();
        self.founder.is_some_and(|founder| engine.has_failed(founder))
    }

    /// Starts the thread that receives, and wakes the gateway by messages to its part.
    pub(super) fn receive(&mut self, waker: Part<Shared>, gate: Target) -> std::io::Result<Receiver> {
        let frames = Arc::new(Frames::default());
        let (here, part) = (Arc::clone(&frames), self.receiver.take());
        let thread = std::thread::Builder::new().name("pdbp-trunk".to_owned()).spawn(move || {
            if let Some(part) = part {
                here.fill(&part, &waker, gate);
            }
        })?;
        Ok(Receiver { frames, thread: Some(thread) })
    }
}

/// The cluster of a gateway; waits until that has said so.
fn name_of(node: &Node, gateway: NodeId) -> Result<String, StartError> {
    let name = |engine: &mut NodeEngine| {
        let mut its = engine.parts().filter(|part| part.id.node() == gateway);
        its.find_map(|part| part.name.as_str().strip_prefix(NAME).map(str::to_owned))
    };
    let patience = node.settings().timeout;
    node.wait_for(patience, "said which cluster it is of", name, |_| vec![gateway]).map_err(|late| match late
    {
        Late::Timeout(late) => StartError::Timeout(late),
        Late::Interrupted => StartError::Interrupted,
    })
}

fn builder(settings: &Settings) -> Builder {
    let mut of = Settings::default();
    of.token_file.clone_from(&settings.token_file);
    of.tls.clone_from(&settings.tls);
    (of.plain, of.codec) = (settings.plain, settings.codec);
    (of.timeout, of.outage) = (settings.timeout, settings.trunk_outage());
    of.patience = PATIENCE;
    (of.local_parts, of.private_pipes, of.parts) = (8, 8, 8 * usize::from(PLACES));
    (of.block_bytes, of.progress, of.lease) = (BLOCK, Progress::Inline, Duration::ZERO);
    of.needs_founder_only = true;
    // The founder is not asked which it takes.
    Builder::from(of).nodes(PLACES).transport(TransportKind::Net).row_blocks(16)
}

/// As the URL of the trunk says.
fn by_scheme(builder: Builder, trunk: &Trunk, settings: &Settings) -> Builder {
    let is_soap = matches!(trunk.scheme, Scheme::Http | Scheme::Https);
    let builder = builder.framing(if is_soap { Framing::Soap } else { Framing::Tcp });
    let needs_tls = matches!(trunk.scheme, Scheme::Tls | Scheme::Https);
    if needs_tls && settings.tls == Tls::Off { builder.tls(Tls::Token) } else { builder }
}

/// Frames that have come and that the gateway has not taken yet. They keep their blocks, so there are no more than the link has room for.
#[derive(Default)]
struct Frames {
    queue: Mutex<VecDeque<Message<Shared>>>,
    /// Whether the gateway sleeps.
    sleeps: AtomicBool,
    /// How often all that had come was put into the queue.
    rounds: AtomicU64,
    stop: AtomicBool,
}

impl Frames {
    fn fill(&self, part: &Part<Shared>, waker: &Part<Shared>, gate: Target) {
        while !self.stop.load(Ordering::Relaxed) {
            let first = part.recv_timeout(NAP);
            let has_come = first.is_ok();
            if let Ok(first) = first {
                let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
                queue.push_back(first);
                queue.extend(std::iter::from_fn(|| part.try_recv()));
            }
            // Pairs with the load in `rounds`.
            self.rounds.fetch_add(1, Ordering::Release);
            if !has_come {
                continue;
            }
            // Pairs with the store in `sleep`.
            if self.sleeps.swap(false, Ordering::SeqCst) && waker.try_send(gate, &[]).is_ok() {
                waker.flush();
            }
        }
    }
}

/// The receiving end of a domain; it ends when this is dropped.
pub(super) struct Receiver {
    frames: Arc<Frames>,
    thread: Option<JoinHandle<()>>,
}

impl Receiver {
    /// All frames that have come.
    pub(super) fn take(&self) -> VecDeque<Message<Shared>> {
        self.frames.sleeps.store(false, Ordering::Relaxed);
        std::mem::take(&mut *self.frames.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// How often all that had come was put into the queue.
    pub(super) fn rounds(&self) -> u64 {
        // Pairs with the addition in `fill`.
        self.frames.rounds.load(Ordering::Acquire)
    }

    /// From now on frames that come are announced. Whether there is none yet.
    pub(super) fn sleep(&self) -> bool {
        // Pairs with the swap in `fill`: a frame that was put in place before it is seen below.
        self.frames.sleeps.store(true, Ordering::SeqCst);
        self.frames.queue.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.frames.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // One that has panicked has said so.
            let _ = thread.join();
        }
    }
}
