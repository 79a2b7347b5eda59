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
//! * **A gateway trusts another no further than that it knows the token.** What it says is bounded in memory and time ([`bounds`]): one that goes on without
//!   end, or sends more than was granted, is not listened to any more, and look-ups say why. It reaches parts that it was told of, and none of the runtime's.
//!   A message that is longer than what the other cluster takes (`assembly_bytes` there) comes back at once.
//! * Clusters share nothing: each has its own tables, master, settings and programs. A part `pdbp.gate.west` in the tables says that west is in
//!   reach; look-ups go there as commands, and are answered in the tables.
//! * A gateway hands on what comes over a trunk, and keeps for each pair of parts what finds no room: a part that does not read holds up others of
//!   its node, as it does inside a cluster, and neither the trunk nor other nodes; but for messages longer than a block, of which a sender far
//!   away has one on its way to a part at a time. How much a gateway may have to keep is bounded by a
//!   window, the lesser half of both ends' [`Settings::trunk_bytes`]; it is given back when a message has been handed on.
//! * **A gateway always takes** what its own cluster has for the other, so that a part far away that does not read, or a line that is cut, does not
//!   fill the links of this cluster: as much as the other half of `trunk_bytes`. Before that is full it tells all nodes for which part nothing is to be
//!   sent for a while (`flow`); those who send to it wait, and nobody else.
//! * Of either half a part has at most as much as all leave free: however many do not read, some is left for others. A gateway that holds all
//!   that it may has `trunk_bytes` for each trunk, and what was under way when it told the nodes, which is no more than links have room for.
//! * What cannot be handed on, since the part or the trunk has gone, or since the part has taken nothing for `timeout_ms`, comes back as commands
//!   with the number [`RETURNED`].
//! * **A gateway that ends loses nothing of others.** It says farewell ([`farewell`]): for a second it hands on what it has taken, and returns the
//!   rest to the other cluster, which gives it to those who have sent it. What it has sent is handed on after it has gone, as long as parts read it
//!   (`timeout_ms` after they have read last it is given up). Both may end at once. Lost is only what comes back to parts of the very cluster that
//!   ends, if they do not read it for [`Settings::farewell`]; what of messages longer than a block, and of streams, lay in rows inside the cluster; and, if the line is
//!   cut at that moment and for a second more, what the gateway had taken and not handed on.
//!   A gateway whose other end is connected and says nothing (a process that was stopped) waits for it for `timeout_ms` before it ends.
//! * What is sent to a part of another cluster in the moment in which that part goes has no receiver, as inside a cluster, and does not come back.
//! * **What may be lost otherwise is counted**: when a gateway has gone without a farewell, having been killed or out of reach for longer than
//!   `outage_ms`, [`Event::ClusterDown`](crate::Event::ClusterDown) says how many messages it had taken of which it has not said that they were handed
//!   on, which it says with what it has to send next, or after 5 to 15 ms. They do not come back; what it had not acknowledged does. Of that the last may have arrived, since a line that is cut takes
//!   acknowledgements with it.
//! * A gateway that is killed says nothing: it is taken for a line that is cut until `outage_ms` is over, and until then neither the one that is
//!   started in its place nor others are let in where it had dialled. One that ends is known at once.
//! * **Streams** are three in a row: to the proxy, over the trunk, and from the writer's proxy to the part that reads. Each waits for the next, so
//!   that a slow reader slows its writer. A writer whose trunk has gone is told the cluster's name
//!   ([`SendError::ClusterGone`](crate::SendError::ClusterGone)), a reader that the stream is broken.
//!
//! Measured by `cargo run --release -p pdbp --features net --example trunk` on two cores that had other work, medians of five: messages of 128 KiB
//! cross at 1,416 MB/s, 0.77 of what one link over sockets carries (1,846); a round trip of 64 bytes took 263 µs, 5.2 times that of a link (51),
//! where 4 times was the aim: each way two gateways handed it from one thread to another. Since whichever thread takes a message hands it
//! on, it takes 0.72 of that (debug builds in turn, `chrt -r 1`, two runs each: 1,076 and 1,053 µs before, 752 and 791 since). With 25 other threads to run
//! for the two cores, `chrt -r 1`, three runs of the build then: 0.59 to 0.65 of what a link carries, and 6.4 to 8.1 times its round trip (268 to 320 µs, 38 to 50).
//! What was taken is told with the next frame now (`taken`), and proxies wake nobody to flush: five runs of the builds before and since, in turn, medians:
//! round trips of 276 and 195 µs (link 39), 5.0 times that of a link; long messages 921 and 864 MB/s, within what runs differ by (800 to 1,524). With nothing else on the
//! machine, three runs each by turns, `chrt -r 1`: 257, 250 and 229 µs before, **84, 90 and 138 since, 2.7, 2.8 and 4.3 times that of a link**; long messages 934, 1,357, 1,392 and 1,075,
//! 1,100, 1,409 MB/s. Since a link carries more (3,448 to 3,553 MB/s, once 2,665), five runs with nothing else on the machine, `chrt -r 1`: trunks 1,063 to 1,469 MB/s, **0.31 to 0.55 of
//! a link, where 0.5 was the aim**, round trips of 82 to 121 µs, 2.6 to 3.8 times those of a link; with `PDBP_CODEC=none` 1,361 to 1,752 MB/s, 0.38 to 0.63, and 2.7 to 4.2 times. A profile
//! shows no copy or lock that stands out: the threads of two clusters and two gateways take turns on two cores, and what they do most is to give way to each other.
//!
//! How a trunk is called its URL says ([`Scheme`](crate::Scheme)): in frames or by SOAP. The gateway that listens takes either.
//!
//! Behind the trunk stands an [open cluster](crate::Settings::found) of gateways, founded by who listens, in which each gateway is a node. When
//! a node has gone, the session with that cluster is over. Clusters that dial the same one have nothing to do with each other, and need
//! not reach each other: each has a link to the gateway that listens and to no other ([`pdbp_net::Net::dial`]), and its open port is enough for all.
//! A try to dial has as long as `timeout_ms` says; a round trip may take seconds. Of two clusters that dial each other one has a trunk to the other first,
//! and as long as that is there the other does not dial.

mod bounds;
mod farewell;
mod flow;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzzing;
mod gate;
mod hold;
mod names;
mod proxy;
mod questions;
mod session;
mod streams;
mod taken;
mod told;
mod trunk;
mod wire;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;

use pdbp_core::tables::Name;

pub(crate) use flow::{Flow, NAME as FLOW};
#[cfg(feature = "fuzzing")]
pub(crate) use fuzzing::gateway;
use names::Notices;
pub(crate) use names::Remote;
pub use proxy::RETURNED;

use crate::config::Settings;
use crate::error::{LookupError, SendError, StartError};
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
    /// The node that carries it.
    node: Node,
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
    /// The clusters that there are sessions with, each as often.
    sessions: Mutex<Vec<String>>,
    /// What was answered in sessions that have ended.
    notices: Mutex<Notices>,
    /// Threads that hand on what has come of clusters that have gone.
    remains: Mutex<Vec<JoinHandle<()>>>,
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

    /// Does something on a thread of its own, for which the gateway waits when it ends.
    fn hand_on(&self, work: impl FnOnce() + Send + 'static) {
        let thread = std::thread::Builder::new().name("pdbp-remains".to_owned()).spawn(work);
        let mut remains = self.remains.lock().unwrap_or_else(PoisonError::into_inner);
        remains.retain(|thread| !thread.is_finished());
        // Without a thread it is given up.
        remains.extend(thread);
    }

    fn notices(&self) -> MutexGuard<'_, Notices> {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sessions(&self) -> MutexGuard<'_, Vec<String>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is a trunk to the cluster: what has kept it from being there is over.
    fn begin_session(&self, cluster: &str) {
        self.sessions().push(cluster.to_owned());
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).remove(cluster);
    }

    fn end_session(&self, cluster: &str) {
        let mut sessions = self.sessions();
        if let Some(at) = sessions.iter().position(|session| session == cluster) {
            sessions.swap_remove(at);
        }
    }

    /// Whether there is a trunk to the cluster, whoever has dialled.
    fn has_session(&self, cluster: &str) -> bool {
        self.sessions().iter().any(|session| session == cluster)
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
            sessions: Mutex::default(),
            notices: Mutex::default(),
            remains: Mutex::default(),
        });
        let first = node.shared.gateway.set(Arc::clone(&common)).is_ok();
        debug_assert!(first, "a node has one gateway");
        let mut gateway = Self { common, address: None, threads: Vec::new(), node: node.clone() };
        let listens = settings.listen.clone().filter(|_| settings.is_gateway_listening());
        if let Some(listen) = listens {
            let (domain, address) = trunk::Domain::listen(&listen, settings, &own)?;
            gateway.address = Some(address);
            let gate = gate::Gate::new(domain, gate::parts(node)?, node, settings);
            let mut first = Some(gate);
            gateway.spawn(move |_| first.take())?;
        }
        for trunk in settings.trunks.clone() {
            let (node, own, of) = (node.clone(), own.clone(), settings.clone());
            gateway.spawn(move |common| trunk::dial(&trunk, &node, &of, &own, common))?;
        }
        Ok(Some(gateway))
    }

    /// A thread for the trunks of one domain; `open` is called again when it has ended, and gives up by `None`.
    fn spawn(
        &mut self,
        open: impl FnMut(&Arc<Common>) -> Option<gate::Gate> + Send + 'static,
    ) -> Result<(), StartError> {
        let common = Arc::clone(&self.common);
        let thread = std::thread::Builder::new().name("pdbp-gate".to_owned());
        let thread = thread.spawn(move || gate::run(&common, open));
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
        let remains =
            || std::mem::take(&mut *self.common.remains.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in self.threads.drain(..) {
            // One that has panicked has said so.
            let _ = thread.join();
        }
        for thread in remains() {
            let _ = thread.join();
        }
        // What was given back to parts of other nodes leaves before the node does, if they read.
        let has_left = |engine: &mut NodeEngine| gate::has_left(engine).then_some(());
        let patience = self.node.settings().farewell;
        let _ = self.node.wait_for(patience, "taken what comes back", has_left, |_| Vec::new());
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

    /// Addresses of all parts of a cluster to which there is a trunk, as its gateway knows them, in no order: `"worker@node1.west"`, which
    /// [`find`](Self::find) takes. With the name of this cluster those of its own. Waits for the answer as long as the setting
    /// `timeout_ms` says. Needs the feature `net`.
    ///
    /// # Errors
    /// [`LookupError::NoTrunk`] names the clusters that are in reach; [`LookupError::NoAnswer`]: the cluster says nothing, its line being
    /// cut, say; [`LookupError::Remote`]: this node has no room for a part that asks; [`LookupError::Interrupted`].
    pub fn parts_of(&self, cluster: &str) -> Result<Vec<String>, LookupError> {
        if self.settings().grid.as_deref() == Some(cluster) {
            return Ok(self.parts().into_iter().map(|part| format!("{part}.{cluster}")).collect());
        }
        Remote::all(cluster).list(self)
    }

    /// The cluster that a part belongs to; `None` for one of this cluster. Needs the feature `net`.
    pub fn cluster_of(&self, part: Target) -> Option<String> {
        let engine = self.shared.engine();
        let entry = engine.parts().find(|entry| entry.id == part)?;
        let (cluster, _) = entry.name.as_str().strip_prefix(PROXY)?.rsplit_once('.')?;
        Some(cluster.to_owned())
    }
}
