//! Clusters joined by trunks: parts of other clusters, by names such as `"worker@node1.west"`.
//!
//! ```text
//!  cluster east                                                                    cluster west
//!  part ──▶ proxy of the far part ─┐                                        ┌─ proxy of the sender ──▶ part
//!           (a part of node 0)     ├─ gateway ══ trunk, a link of pdbp-net ══ gateway ─┤  (a part of node 0)
//!  part ──▶ pdbp.gate.west ────────┘   frames                               └─ pdbp.gate.east
//! ```
//! * The process with node 0 of a cluster is its *gateway*. A *trunk* is a link of [`pdbp_net`] to another gateway: it survives its
//!   connections, and nothing on it is lost or duplicated as long as an outage is shorter than `outage_ms` (60 s here, unless set).
//! * **A part of another cluster is represented by a part of this one**, its *proxy*, which the gateway registers when the part is
//!   looked up or sends its first message. So messages to and from it are ordinary ones: headers are unchanged, and messages within
//!   the cluster cost the same as without a gateway. The proxy is freed when the part has gone.
//! * **A gateway trusts another no further than its knowledge of the token.** Memory and time spent on it are bounded ([`bounds`]):
//!   a gateway that sends without end, or more than it was granted, is ignored from then on, and look-ups report why. It can reach
//!   only parts that it was told of, and none of the runtime's. A message longer than the other cluster takes (`assembly_bytes`
//!   there) comes back at once.
//! * Clusters share nothing: each has its own tables, master, settings and programs. A part `pdbp.gate.west` in the tables shows
//!   that the cluster west is reachable; look-ups go there as commands, and are answered through the tables.
//! * A gateway hands on what arrives over a trunk, and queues messages without room per pair of parts. So a part that does not read
//!   holds up others of its node, as it does within a cluster, but neither the trunk nor other nodes. The one exception: a remote
//!   sender has only one message longer than a block in flight at a time. A window bounds what a gateway may have to queue: the
//!   smaller half of both ends' [`Settings::trunk_bytes`]. It opens again when messages have been handed on.
//! * **A gateway always takes** what its own cluster sends to the other, up to the other half of `trunk_bytes`, so a remote part
//!   that does not read, or a line that is cut, does not fill the links of this cluster. Before that half is full, the gateway
//!   tells all nodes which parts nothing may be sent to for now (`flow`); only senders to those parts wait. The same goes for parts
//!   whose senders do not read what comes back to them. A node whose own parts leave no room for such a message goes on sending, until
//!   the gateway reads no more of what is for those parts; then that node waits, and no other.
//! * One part may use at most as much of either half as is still free in it: however many do not read, some is left for others. A
//!   full gateway holds `trunk_bytes` for each trunk, and what was in flight when it told the nodes, which is no more than links
//!   have room for.
//! * What cannot be handed on, because the part or the trunk has gone, or the part has taken nothing for `timeout_ms`, comes back
//!   in commands with the number [`RETURNED`].
//! * **A gateway that shuts down loses nothing of others.** It says farewell ([`farewell`]): for a second it hands on what it has
//!   received, and returns the rest to the other cluster, which gives it back to the senders. What it has sent is handed on after
//!   it has gone, as long as parts read it (it is given up `timeout_ms` after they last read). Both may shut down at once. Three
//!   things are lost: what comes back to parts of the very cluster that shuts down, if they do not read it for
//!   [`Settings::farewell`]; pieces of messages longer than a block, and of streams, that were in rows within the cluster; and, if
//!   the line is cut at that moment and for a second more, what the gateway had received and not handed on. If its peer is
//!   connected but silent (a suspended process), a gateway waits for it for `timeout_ms` before it ends.
//! * A message sent to a part of another cluster at the moment that part goes has no receiver, as within a cluster, and does not
//!   come back.
//! * **Other losses are counted.** When a gateway has gone without a farewell, killed or unreachable for longer than `outage_ms`,
//!   [`Event::ClusterDown`](crate::Event::ClusterDown) tells how many messages it had received without reporting that they were
//!   handed on; it reports that with the next frame, or after 5 to 15 ms. These do not come back; those that it had not
//!   acknowledged do. The last of those may have arrived nevertheless, since a line that is cut takes acknowledgements with it.
//!   A message longer than a block on the trunk, of which only the beginning was acknowledged, is counted and does not come back.
//! * A gateway that is killed gives no sign: until `outage_ms` is over it looks like a line that is cut, and a gateway that it had
//!   dialled lets in neither its replacement nor others. One that shuts down is noticed at once.
//! * **Streams** are three in a row: to the proxy, over the trunk, and from the writer's proxy to the part that reads. Each waits
//!   for the next, so a slow reader slows its writer. If the trunk goes down, the writer gets an error with the cluster's name
//!   ([`SendError::ClusterGone`](crate::SendError::ClusterGone)), and the reader learns that the stream is broken.
//!
//! Measured by `cargo run --release -p pdbp --features net --example trunk` on two cores with nothing else on the machine, `chrt -r
//! 1`, five runs: messages of 128 KiB cross at 1,063 to 1,469 MB/s, **0.31 to 0.55 of what one link over sockets carries, where 0.5
//! was the aim** (with `PDBP_CODEC=none` 1,361 to 1,752 MB/s, 0.38 to 0.63); round trips of 64 bytes take 82 to 121 µs, 2.6 to 3.8
//! times those of a link. In a profile no copy or lock stands out: the threads of two clusters and two gateways take turns on two
//! cores, and mostly yield to each other.
//!
//! The URL of a trunk selects its framing ([`Scheme`](crate::Scheme)): PDBP's own or SOAP. A gateway that listens accepts either.
//!
//! Behind the trunks is an [open cluster](crate::Settings::found) of gateways, founded by the one that listens, in which each
//! gateway is a node. When a node has gone, the session with its cluster is over. Clusters that dial the same gateway are
//! independent, and need not reach each other: each has a link only to the gateway that listens ([`pdbp_net::Net::dial`]), so that
//! gateway's open port is enough for all. An attempt to dial takes up to `timeout_ms`; a round trip may take seconds. If two
//! clusters dial each other, the gateway of the one with the lesser name uses the first connection, and the other one is closed.

mod acknowledgements;
mod announced;
mod bounds;
mod farewell;
mod flow;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzzing;
mod gate;
mod hold;
mod line;
mod names;
mod proxy;
mod questions;
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
#[cfg(feature = "fuzzing")]
pub(crate) use fuzzing::gateway;
use names::Notices;
pub(crate) use names::Remote;
pub use proxy::RETURNED;

use crate::config::Settings;
use crate::error::{LookupError, SendError, StartError};
use crate::node::{Node, NodeEngine, Shared};
use crate::part::Target;

/// Prefix of the name of the part that marks a cluster as reachable.
const GATE: &str = "pdbp.gate.";
/// Prefix of the names of proxies, before that of their cluster.
const PROXY: &str = "pdbp.far.";

/// Maximum clusters whose errors are kept, those that this gateway dials aside.
const ERRORS: usize = 256;

/// The name of the part that marks a cluster as reachable.
fn gate_of(cluster: &str) -> String {
    format!("{GATE}{cluster}")
}

/// Checks that a part of another cluster is still reachable.
///
/// # Errors
/// [`SendError::NoSuchPart`] if it has gone, [`SendError::ClusterGone`] if its whole cluster has.
pub(crate) fn check_remote(engine: &NodeEngine, part: Target, cluster: &str) -> Result<(), SendError> {
    if engine.has_part(part) {
        return Ok(());
    }
    let gate = gate_of(cluster);
    let is_there = engine.parts().any(|part| part.name.as_str() == gate);
    let cluster = cluster.to_owned();
    Err(if is_there { SendError::NoSuchPart(part) } else { SendError::ClusterGone { cluster } })
}

/// The gateway of a cluster. Dropping it shuts it down.
pub(crate) struct Gateway {
    common: Arc<Common>,
    address: Option<SocketAddr>,
    threads: Vec<JoinHandle<()>>,
    /// The node that carries it.
    node: Node,
}

/// State shared by the threads of a gateway.
pub(crate) struct Common {
    stop: AtomicBool,
    /// The clusters that this gateway dials.
    #[cfg_attr(not(feature = "metrics"), allow(dead_code))]
    dialled: Vec<String>,
    /// The domains, each by the node of this gateway in it.
    domains: Mutex<Vec<Weak<Shared>>>,
    /// Why a cluster's trunk is down.
    errors: Mutex<HashMap<String, String>>,
    /// The clusters with which sessions exist, one entry per session.
    sessions: Mutex<Vec<String>>,
    /// Answers given in sessions that have ended.
    notices: Mutex<Notices>,
    /// Threads that hand on messages received from clusters that have gone.
    remains: Mutex<Vec<JoinHandle<()>>>,
}

impl Common {
    fn new(dialled: Vec<String>) -> Self {
        Self {
            stop: AtomicBool::new(false),
            dialled,
            domains: Mutex::default(),
            errors: Mutex::default(),
            sessions: Mutex::default(),
            notices: Mutex::default(),
            remains: Mutex::default(),
        }
    }

    /// Whether the gateway must end.
    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn domains(&self) -> MutexGuard<'_, Vec<Weak<Shared>>> {
        self.domains.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `each` for each domain with the statistics of its links, and the cluster names of its nodes where known.
    #[cfg_attr(not(feature = "metrics"), allow(dead_code))]
    pub(crate) fn each_domain(&self, mut each: impl FnMut(&pdbp_net::Stats, &[(u16, String)])) {
        // Without holding the lock: an engine may be busy.
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

    /// Why a cluster's trunk is down.
    pub(crate) fn error_of(&self, cluster: &str) -> Option<String> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).get(cluster).cloned()
    }

    /// Runs `work` on a thread of its own, which the gateway waits for when it ends.
    fn run_in_background(&self, work: impl FnOnce() + Send + 'static) {
        let thread = std::thread::Builder::new().name("pdbp-remains".to_owned()).spawn(work);
        let mut remains = self.remains.lock().unwrap_or_else(PoisonError::into_inner);
        remains.retain(|thread| !thread.is_finished());
        // If no thread can be started, the work is dropped.
        remains.extend(thread);
    }

    fn notices(&self) -> MutexGuard<'_, Notices> {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sessions(&self) -> MutexGuard<'_, Vec<String>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a trunk to the cluster, unless there are more than `own` already, and clears the reason why there was none. Returns
    /// whether it did.
    fn begin_session(&self, cluster: &str, own: usize) -> bool {
        let mut sessions = self.sessions();
        if sessions.iter().filter(|session| *session == cluster).count() > own {
            return false;
        }
        sessions.push(cluster.to_owned());
        drop(sessions);
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).remove(cluster);
        true
    }

    fn end_session(&self, cluster: &str) {
        let mut sessions = self.sessions();
        if let Some(at) = sessions.iter().position(|session| session == cluster) {
            sessions.swap_remove(at);
        }
    }

    /// Whether a trunk to the cluster exists, whichever end dialled.
    fn has_session(&self, cluster: &str) -> bool {
        self.sessions().iter().any(|session| session == cluster)
    }

    fn record_error(&self, cluster: &str, error: String) {
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        if errors.len() >= ERRORS {
            // The others have named themselves, and may do so differently each time.
            errors.retain(|cluster, _| self.dialled.contains(cluster));
        }
        errors.insert(cluster.to_owned(), error);
    }
}

impl Gateway {
    /// Opens the trunks named in the settings, on the node that carries them: listens before it returns, and dials afterwards.
    pub(crate) fn start(node: &Node, settings: &Settings) -> Result<Option<Self>, StartError> {
        let Some(own) = settings.grid.clone() else { return Ok(None) };
        let node = &node.uninterrupted();
        let dialled = settings.trunks.iter().map(|trunk| trunk.cluster.clone());
        let common = Arc::new(Common::new(dialled.collect()));
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

    /// Starts a thread for the trunks of one domain; `open` is called again when the domain has ended, and returns `None` to end
    /// the thread.
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

    /// The address at which the gateway listens.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Why a cluster's trunk is down.
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
            // A thread that panicked has reported it already.
            let _ = thread.join();
        }
        for thread in remains() {
            let _ = thread.join();
        }
        // Messages given back to parts of other nodes leave before the node does, if those parts read.
        let has_left = |engine: &mut NodeEngine| gate::has_left(engine).then_some(());
        self.node.wait_uninterrupted(self.node.settings().farewell, has_left);
    }
}

impl Node {
    /// The names of the clusters that trunks lead to. Needs the feature `net`.
    pub fn clusters(&self) -> Vec<String> {
        let engine = self.shared.engine();
        let names = engine.parts().filter_map(|part| part.name.as_str().strip_prefix(GATE));
        let mut names: Vec<_> = names.map(str::to_owned).collect();
        names.sort_unstable();
        names
    }

    /// Returns the addresses of all parts of a cluster that a trunk leads to, as its gateway knows them, in no particular order:
    /// `"worker@node1.west"`, which [`find`](Self::find) takes. For the name of this cluster, returns those of its own parts. Waits
    /// for the answer up to the setting `timeout_ms`. Needs the feature `net`.
    ///
    /// # Errors
    /// [`LookupError::NoTrunk`] names the clusters that are reachable; [`LookupError::NoAnswer`] if the cluster is silent, for
    /// example because its line is cut; [`LookupError::NoRoom`] if this node has no room for a part that asks, or the list is too
    /// long; [`LookupError::Interrupted`].
    pub fn parts_of(&self, cluster: &str) -> Result<Vec<String>, LookupError> {
        if self.settings().grid.as_deref() == Some(cluster) {
            return Ok(self.parts().into_iter().map(|part| format!("{part}.{cluster}")).collect());
        }
        crate::node::names::check(cluster)?;
        Remote::all(cluster).list(self)
    }

    /// Returns the cluster that a part belongs to; `None` for a part of this cluster. Needs the feature `net`.
    pub fn cluster_of(&self, part: Target) -> Option<String> {
        let engine = self.shared.engine();
        let entry = engine.parts().find(|entry| entry.id == part)?;
        let (cluster, _) = entry.name.as_str().strip_prefix(PROXY)?.rsplit_once('.')?;
        Some(cluster.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A gateway that dials gives itself a name, and can give itself another each time that it is ignored.
    #[test]
    fn errors_of_gateways_with_ever_new_names_take_no_memory() {
        let common = Common::new(vec!["west".to_owned()]);
        common.record_error("west", "refused".to_owned());
        for number in 0..100_000 {
            common.record_error(&format!("cluster{number}"), "it sent a malformed frame".to_owned());
        }
        assert!(common.error_of("cluster99999").is_some() && common.error_of("west").is_some());
        assert!(common.errors.lock().unwrap().len() < 1000);
    }
}
