//! A trunk's domain: an open cluster over sockets in which each gateway is a node with two parts.
//!
//! **A trunk concerns two gateways**: the one that listens, which founds the domain, and one that has dialled it. Gateways that
//! have dialled are independent and need not reach each other: the founder's open port is enough for all.
//!
//! `gate.NAME` receives, on its own thread, which also polls; the gateway sends through the other part.

use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use pdbp_core::id::NodeId;
use pdbp_core::tables::PartKind;

use super::Common;
use super::gate::{self, Gate};
use crate::cluster::Cluster;
use crate::config::{self, Builder, Framing, Progress, Scheme, Settings, Tls, TransportKind, Trunk};
use crate::error::{RecvError, StartError};
use crate::node::{Node, NodeEngine, WaitFailure, interruptible};
use crate::part::{Message, Part, Shared, Target};

/// Bytes of a block on a trunk, the same everywhere: a block of a cluster with default settings, plus a frame's head.
const BLOCK: usize = 132 << 10;
/// Number of gateways that may dial one that listens.
const PLACES: u16 = 16;
/// Prefix of the names of gateways' parts.
pub(super) const NAME: &str = "gate.";
/// How long a gateway that has dialled waits for admission before it asks again: lines may be slow, and links lose nothing. Only
/// the founder votes, so no election waits for this.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause between attempts to dial.
const PAUSE: Duration = Duration::from_millis(100);
/// Frames that the receiver takes before the other direction gets its turn.
const FRAMES: usize = 32;
/// Longest sleep of the receiver before it checks whether it must end.
const NAP: Duration = Duration::from_millis(50);

/// Dials until the gateway is reached, or this one must end.
pub(super) fn dial(
    trunk: &Trunk,
    node: &Node,
    settings: &Settings,
    own: &str,
    common: &Arc<Common>,
) -> Option<Gate> {
    while !common.is_over() {
        if common.has_session(&trunk.cluster) {
            // The other gateway has dialled this one.
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
            common.record_error(&trunk.cluster, error.to_string());
        }
        std::thread::sleep(PAUSE);
    }
    None
}

/// Begins with the gateway reached. While there is no room for this gateway's own parts, keeps the connection and reports that.
fn begin(
    domain: Domain,
    trunk: &Trunk,
    node: &Node,
    settings: &Settings,
    common: &Common,
) -> Result<Gate, StartError> {
    loop {
        match gate::parts(node) {
            Ok(parts) => return Ok(Gate::new(domain, parts, node, settings)),
            Err(error) if common.is_over() || domain.is_over() => return Err(error),
            Err(error) => common.record_error(&trunk.cluster, error.to_string()),
        }
        // No other thread polls it yet.
        domain.node.poll();
        std::thread::sleep(PAUSE);
    }
}

/// One end of a domain of trunks.
pub(super) struct Domain {
    pub(super) node: Node,
    /// Sends frames.
    pub(super) out: Part<Shared>,
    /// Receives frames, until the receiver takes it over.
    receiver: Option<Part<Shared>>,
    pub(super) own: String,
    /// Set if this end has dialled.
    founder: Option<NodeId>,
    /// The cluster that this end meant to reach.
    pub(super) expected: Option<String>,
}

impl Domain {
    /// Listens for gateways of other clusters.
    pub(super) fn listen(at: &str, settings: &Settings, own: &str) -> Result<(Self, SocketAddr), StartError> {
        let (cluster, address) = builder(settings).listen(at.to_owned()).found(true).start_net_at()?;
        Ok((Self::enter(cluster, own, None)?, address))
    }

    /// `dialled` is the trunk that this end has dialled, whose cluster must be the expected one.
    fn enter(cluster: Cluster, own: &str, dialled: Option<(&Trunk, &Common)>) -> Result<Self, StartError> {
        let failed = |error| StartError::Sockets(Box::new(error));
        let node = cluster.into_nodes().pop().ok_or(StartError::NoAddress)?;
        let founder = NodeId::new(0).filter(|_| dialled.is_some());
        let expected = dialled.map(|(trunk, _)| trunk.cluster.clone());
        // Before the other gateway knows of this one.
        if let Some(((trunk, common), founder)) = dialled.zip(founder) {
            let name = name_of(&node, founder)?;
            if name != trunk.cluster {
                let says = format!(
                    "the gateway at {} belongs to the cluster \"{name}\", not \"{}\"; make `trunks` match the other's `grid`",
                    trunk.address, trunk.cluster
                );
                return Err(StartError::Sockets(says.into()));
            }
            if common.has_session(&name) {
                // The other gateway has dialled this one in the meantime.
                return Err(StartError::Interrupted);
            }
        }
        let out = node.register_shared("out", PartKind::Communication).map_err(failed)?;
        let receiver = node.register_shared(&format!("{NAME}{own}"), PartKind::Communication);
        let receiver = Some(receiver.map_err(failed)?);
        Ok(Self { node, out, receiver, own: own.to_owned(), founder, expected })
    }

    /// The reachable gateways: their clusters' names, and the parts that take frames. A gateway that has dialled reaches only the
    /// one that listens.
    pub(super) fn peers(&self) -> Vec<(String, Target)> {
        let engine = self.node.shared.engine();
        let me = engine.config().node;
        let is_peer = |node| node != me && self.founder.is_none_or(|founder| founder == node);
        let others =
            engine.parts().filter(|part| is_peer(part.id.node()) && !engine.has_failed(part.id.node()));
        let named =
            others.filter_map(|part| Some((part.name.as_str().strip_prefix(NAME)?.to_owned(), part.id)));
        let mut peers: Vec<(String, Target)> = named.filter(|(name, _)| config::is_cluster(name)).collect();
        // Each has one name.
        peers.sort_by_key(|(_, part)| part.to_bits());
        peers.dedup_by_key(|(_, part)| (part.node(), part.generation()));
        peers
    }

    /// Whether the link to a gateway has a connection.
    pub(super) fn is_connected(&self, peer: NodeId) -> bool {
        let stats = self.node.shared.engine().transport().links();
        let links = stats.map(|stats| stats.links).unwrap_or_default();
        links.get(peer.index()).is_some_and(|link| link.state == pdbp_net::LinkState::Up)
    }

    /// Whether the gateway that listens has gone; this one, if it has dialled, then starts over.
    pub(super) fn is_over(&self) -> bool {
        let engine = self.node.shared.engine();
        self.founder.is_some_and(|founder| engine.has_failed(founder))
    }

    /// Starts the receiving thread: it calls `take` with received frames, and adds one to `rounds` when none is left.
    pub(super) fn receive(
        &mut self,
        common: &Arc<Common>,
        rounds: Arc<AtomicU64>,
        mut take: impl FnMut(&mut dyn Iterator<Item = Message<Shared>>) + Send + 'static,
    ) -> std::io::Result<Receiver> {
        let (stop, part, common) =
            (Arc::new(AtomicBool::new(false)), self.receiver.take(), Arc::clone(common));
        let stops = Arc::clone(&stop);
        let receive = move || {
            let Some(part) = part else { return };
            while !stops.load(Ordering::Relaxed) {
                let is_empty = Cell::new(true);
                match part.recv_timeout(NAP) {
                    Ok(first) => {
                        is_empty.set(false);
                        let next = || part.try_recv().or_else(|| (is_empty.set(true), None).1);
                        take(&mut std::iter::once(first).chain(std::iter::from_fn(next)).take(FRAMES));
                    }
                    Err(RecvError::Timeout(_) | RecvError::Interrupted) => {}
                    // The other gateway is gone; wait until this one is told to stop.
                    Err(_) => std::thread::sleep(NAP),
                }
                if is_empty.get() {
                    // Pairs with the load in `Gate::rounds`.
                    rounds.fetch_add(1, Ordering::Release);
                }
            }
        };
        let thread = std::thread::Builder::new().name("pdbp-trunk".to_owned());
        let thread = thread.spawn(move || gate::unless_late(&common, receive))?;
        Ok(Receiver { stop, thread: Some(thread) })
    }
}

/// Returns the cluster of a gateway, once the gateway has named it.
fn name_of(node: &Node, gateway: NodeId) -> Result<String, StartError> {
    let name = |engine: &mut NodeEngine| {
        let mut its = engine.parts().filter(|part| part.id.node() == gateway);
        its.find_map(|part| part.name.as_str().strip_prefix(NAME).map(str::to_owned))
    };
    let patience = node.settings().timeout;
    node.wait_for(patience, "named its cluster", name, |_| vec![gateway]).map_err(|late| match late {
        WaitFailure::Timeout(late) => StartError::Timeout(late),
        WaitFailure::Interrupted => StartError::Interrupted,
    })
}

fn builder(settings: &Settings) -> Builder {
    let mut of = Settings::default();
    of.token_file.clone_from(&settings.token_file);
    of.tls.clone_from(&settings.tls);
    (of.plain, of.codec) = (settings.plain, settings.trunk_codec());
    (of.timeout, of.outage) = (settings.timeout, settings.trunk_outage());
    of.patience = PATIENCE;
    (of.local_parts, of.private_pipes, of.parts) = (8, 8, 8 * usize::from(PLACES));
    (of.block_bytes, of.progress, of.lease) = (BLOCK, Progress::Inline, Duration::ZERO);
    of.needs_founder_only = true;
    // The founder need not be asked which framing it accepts.
    Builder::from(of).nodes(PLACES).transport(TransportKind::Net).row_blocks(16)
}

/// Applies the scheme of the trunk's URL.
fn by_scheme(builder: Builder, trunk: &Trunk, settings: &Settings) -> Builder {
    let is_soap = matches!(trunk.scheme, Scheme::Http | Scheme::Https);
    let builder = builder.framing(if is_soap { Framing::Soap } else { Framing::Tcp });
    let needs_tls = matches!(trunk.scheme, Scheme::Tls | Scheme::Https);
    if needs_tls && settings.tls == Tls::Off { builder.tls(Tls::Token) } else { builder }
}

/// The receiving thread of a domain. Dropping this ends the thread.
pub(super) struct Receiver {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has reported it already.
            let _ = thread.join();
        }
    }
}
