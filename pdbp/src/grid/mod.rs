//! Clusters joined by trunks: parts of other clusters, by names such as `"worker@node1.west"`.
//!
//! ```text
//!  cluster east                                                                    cluster west
//!  part ──▶ proxy of the far part ─┐                                        ┌─ proxy of the sender ──▶ part
//!           (a part of node 0)     ├─ gateway ══ trunk, a link of pdbp-net ══ gateway ─┤  (a part of node 0)
//!  part ──▶ pdbp.gate.west ────────┘   frames                               └─ pdbp.gate.east
//! ```
//! * The process with node 0 of a cluster is its *gateway*. A *trunk* is a link of [`pdbp_net`] to another gateway: it outlives its connections,
//!   and nothing on it is lost or doubled as long as an outage is shorter than `outage_ms` (60 s here, unless it is set).
//! * **A part of another cluster is a part of this one**: its *proxy*, which the gateway registers when the part is looked up, or sends its
//!   first message. So a message to it, and one from it, is like any other: there is nothing new in headers, and messages inside the cluster
//!   cost what they did. The proxy goes when the part has gone.
//! * Clusters share nothing: each has its own tables, master, settings and programs. A part `pdbp.gate.west` in the tables says that west is in
//!   reach; look-ups go there as commands, and are answered in the tables.
//! * A gateway hands on what comes over a trunk, and keeps for each pair of parts what finds no room: a part that does not read holds up others of
//!   its node, as it does inside a cluster, and neither the trunk nor other nodes. How much a gateway may have to keep is bounded by a
//!   window, the lesser half of both ends' [`Settings::trunk_bytes`]; it is given back when a message has been handed on.
//! * **A gateway always takes** what its own cluster has for the other, so that a part far away that does not read, or a line that is cut, does not
//!   fill the links of this cluster: as much as the other half of `trunk_bytes`. Before that is full it tells all nodes for which part nothing is to be
//!   sent for a while (`flow`); those who send to it wait, and nobody else.
//! * Of either half a part has at most as much as all leave free: however many do not read, some is left for others. A gateway that holds all
//!   that it may has `trunk_bytes` for each trunk, and what was under way when it told the nodes, which is no more than links have room for.
//! * What cannot be handed on, since the part or the trunk has gone, comes back as commands with the number [`RETURNED`], as far as this end still
//!   has it; what the other gateway had taken and not handed on when it ended is lost.
//! * A gateway that is killed says nothing: it is taken for a line that is cut until `outage_ms` is over, and until then neither the one that is
//!   started in its place nor others are let in where it had dialled. One that ends is known at once.
//! * **Streams** are three in a row: to the proxy, over the trunk, and from the writer's proxy to the part that reads. Each waits for the next, so
//!   that a slow reader slows its writer. A writer whose trunk has gone is told the cluster's name
//!   ([`SendError::ClusterGone`](crate::SendError::ClusterGone)), a reader that the stream is broken.
//!
//! Measured by `cargo run --release -p pdbp --features net --example trunk` on two cores that had other work, medians of five: messages of 128 KiB
//! cross at 1,416 MB/s, 0.77 of what one link over sockets carries (1,846); a round trip of 64 bytes takes 263 µs, 5.2 times that of a link (51),
//! where 4 times was the aim: each way two gateways hand it from one thread to another.
//!
//! How a trunk is called its URL says ([`Scheme`](crate::Scheme)): in frames or by SOAP. The gateway that listens takes either.
//!
//! Behind the trunk stands an [open cluster](crate::Settings::found) of gateways, founded by who listens, in which each gateway is a node. When
//! a node has gone, the session with that cluster is over.

mod flow;
mod gate;
mod hold;
mod names;
mod proxy;
mod session;
mod streams;
mod trunk;
mod wire;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;

use pdbp_core::tables::Name;

pub(crate) use flow::{Flow, NAME as FLOW};
pub(crate) use names::Remote;
pub use proxy::RETURNED;

use crate::cluster::StartError;
use crate::config::Settings;
use crate::error::SendError;
use crate::node::{Node, NodeEngine, Shared};
use crate::part::Target;

/// What the name of the part begins with that says that a cluster is in reach.
const GATE: &str = "pdbp.gate.";
/// What names of proxies begin with, before that of their cluster.
const PROXY: &str = "pdbp.far.";

/// The name of the part that says that a cluster is in reach.
fn gate_of(cluster: &str) -> String {
    format!("{GATE}{cluster}")
}

/// Whether a part of another cluster is still in reach.
///
/// # Errors
/// [`SendError::NoSuchPart`] when it has gone, [`SendError::ClusterGone`] when its whole cluster has.
pub(crate) fn check_far(engine: &NodeEngine, part: Target, cluster: &str) -> Result<(), SendError> {
    if engine.has_part(part) {
        return Ok(());
    }
    let gate = gate_of(cluster);
    let is_there = engine.parts().any(|part| part.name.as_str() == gate);
    let cluster = cluster.to_owned();
    Err(if is_there { SendError::NoSuchPart(part) } else { SendError::ClusterGone { cluster } })
}

/// The gateway of a cluster, until it is dropped.
pub(crate) struct Gateway {
    common: Arc<Common>,
    address: Option<SocketAddr>,
    threads: Vec<JoinHandle<()>>,
}

/// What the threads of a gateway have in common.
pub(crate) struct Common {
    stop: AtomicBool,
    /// The clusters that this gateway dials.
    #[cfg_attr(not(feature = "metrics"), allow(dead_code))]
    dialled: Vec<String>,
    /// The domains there are, each by the node of this gateway in it.
    domains: Mutex<Vec<Weak<Shared>>>,
    /// What keeps a cluster's trunk from being there.
    errors: Mutex<HashMap<String, String>>,
}

impl Common {
    /// Whether the gateway is to end.
    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn domains(&self) -> MutexGuard<'_, Vec<Weak<Shared>>> {
        self.domains.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For each domain the figures of its links, and of which node which cluster's name is known.
    #[cfg_attr(not(feature = "metrics"), allow(dead_code))]
    pub(crate) fn each_domain(&self, mut each: impl FnMut(&pdbp_net::Stats, &[(u16, String)])) {
        // Not under the lock: an engine may be busy.
        let domains: Vec<_> = self.domains().iter().filter_map(Weak::upgrade).collect();
        for domain in domains {
            let (stats, names) = {
                let engine = domain.engine();
                let others = engine.parts().filter(|part| part.id.node() != domain.id);
                let name = |name: &Name| name.as_str().strip_prefix(trunk::NAME).map(str::to_owned);
                let names = others.filter_map(|part| Some((part.id.node().raw(), name(&part.name)?)));
                (engine.transport().links(), names.collect::<Vec<_>>())
            };
            if let Some(stats) = stats {
                each(&stats, &names);
            }
        }
    }

    /// The clusters that this gateway dials.
    #[cfg_attr(not(feature = "metrics"), allow(dead_code))]
    pub(crate) fn dialled(&self) -> &[String] {
        &self.dialled
    }

    /// What keeps a cluster's trunk from being there.
    pub(crate) fn error_of(&self, cluster: &str) -> Option<String> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).get(cluster).cloned()
    }

    fn note(&self, cluster: &str, error: String) {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).insert(cluster.to_owned(), error);
    }
}

impl Gateway {
    /// Opens the trunks that the settings name, on the node that carries them; listens before it returns, and dials afterwards.
    pub(crate) fn start(node: &Node, settings: &Settings) -> Result<Option<Self>, StartError> {
        let Some(own) = settings.grid.clone() else { return Ok(None) };
        let common = Arc::new(Common {
            stop: AtomicBool::new(false),
            dialled: settings.trunks.iter().map(|trunk| trunk.cluster.clone()).collect(),
            domains: Mutex::default(),
            errors: Mutex::default(),
        });
        let first = node.shared.gateway.set(Arc::clone(&common)).is_ok();
        debug_assert!(first, "a node has one gateway");
        let mut gateway = Self { common, address: None, threads: Vec::new() };
        let listens = settings.listen.clone().filter(|_| settings.is_gateway_listening());
        if let Some(listen) = listens {
            let (domain, address) = trunk::Domain::listen(&listen, settings, &own)?;
            gateway.address = Some(address);
            let mut domain = Some(domain);
            gateway.spawn(node, settings, move |_| domain.take())?;
        }
        for trunk in settings.trunks.clone() {
            let (own, of) = (own.clone(), settings.clone());
            gateway.spawn(node, settings, move |common| trunk::Domain::dial(&trunk, &of, &own, common))?;
        }
        Ok(Some(gateway))
    }

    /// A thread for the trunks of one domain; `open` is called again when it has ended, and gives up by `None`.
    fn spawn(
        &mut self,
        node: &Node,
        settings: &Settings,
        open: impl FnMut(&Common) -> Option<trunk::Domain> + Send + 'static,
    ) -> Result<(), StartError> {
        let (common, node, settings) = (Arc::clone(&self.common), node.clone(), settings.clone());
        let thread = std::thread::Builder::new().name("pdbp-gate".to_owned());
        let thread = thread.spawn(move || gate::run(&common, &node, &settings, open));
        self.threads.push(thread.map_err(StartError::Thread)?);
        Ok(())
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// What keeps a cluster's trunk from being there.
    pub(crate) fn last_error(&self, cluster: &str) -> Option<String> {
        self.common.error_of(cluster)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.common.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // One that has panicked has said so.
            let _ = thread.join();
        }
    }
}

impl Node {
    /// The clusters to which there are trunks, by their names. Needs the feature `net`.
    pub fn clusters(&self) -> Vec<String> {
        let engine = self.shared.engine();
        let names = engine.parts().filter_map(|part| part.name.as_str().strip_prefix(GATE));
        let mut names: Vec<_> = names.map(str::to_owned).collect();
        names.sort_unstable();
        names
    }

    /// The cluster that a part belongs to; `None` for one of this cluster. Needs the feature `net`.
    pub fn cluster_of(&self, part: Target) -> Option<String> {
        let engine = self.shared.engine();
        let entry = engine.parts().find(|entry| entry.id == part)?;
        let (cluster, _) = entry.name.as_str().strip_prefix(PROXY)?.rsplit_once('.')?;
        Some(cluster.to_owned())
    }
}
