//! Nodes of this process on a simulated fabric of switches, in virtual time.
//!
//! Time advances with polls: a node whose poll finds nothing processes the next event, and **no node sleeps while anything is in
//! flight**. So data sent arrives as soon as any node is idle; the order of events follows the order in which threads get there.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use pdbp_core::id::NodeId;
use pdbp_core::umb::HeapMemory;
use pdbp_core::{Arrival, Bell, Capabilities, Completion, Op, Refused, Transport};
use pdbp_local::Doorbell;
use pdbp_sim::network::{Cause, CrashSight, Ground, Network, Physics, PhysicsError, Port, s};
use pdbp_sim::rapidio::{Timing, Topology};

use crate::cluster::Cluster;
use crate::config::{Builder, ConfigError, Settings, TransportKind};
use crate::error::StartError;
use crate::node::{Backend, Memory, Sleeper};

/// Virtual time within which a live node has answered, however long its threads are descheduled.
const GIVE_UP: u64 = s(1 << 20);

/// A fabric, and the bells that its nodes sleep on.
#[derive(Debug)]
pub(crate) struct Fabric {
    network: Network,
    bells: Vec<Doorbell>,
    /// Parts of each node that wait for calls in switches to end.
    sleepers: Vec<Mutex<Vec<Weak<Sleeper>>>>,
}

/// A node's end of the fabric.
pub(crate) struct End {
    port: Port,
    fabric: Arc<Fabric>,
}

/// The bell that a node sleeps on.
struct NodeBell {
    node: usize,
    fabric: Arc<Fabric>,
}

/// Returns the ends of all nodes: as many as the settings request, or as there are endpoints.
pub(crate) fn ends(settings: &mut Settings) -> Result<Vec<End>, StartError> {
    let Some(text) = settings.fabric.clone() else { return Err(StartError::NoFabric) };
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| {
        let fabric = text.clone();
        StartError::Fabric { fabric, error }
    };
    let topology = text.parse::<Topology>().and_then(|topology| topology.check().map(|()| topology));
    let topology = topology.map_err(|error| failed(error.into()))?;
    settings.prepare_for_fabric(topology.endpoints());
    let physics = Physics {
        ground: Ground::Fabric { topology, timing: Timing::SRIO },
        arrival: Arrival::Posted,
        give_up: GIVE_UP,
        notice: 0,
        crash_sight: CrashSight::AtOnce,
        in_flight: settings.in_flight(),
        largest_block: settings.largest_block(),
        ..Physics::default()
    };
    let nodes = usize::from(settings.nodes);
    let made: Result<_, PhysicsError> = Network::new(nodes, physics, 0);
    let (network, ports) = made.map_err(|error| failed(error.into()))?;
    let bells = (0..nodes).map(|_| Doorbell::default()).collect();
    let sleepers = (0..nodes).map(|_| Mutex::default()).collect();
    let fabric = Arc::new(Fabric { network, bells, sleepers });
    Ok(ports.into_iter().map(|port| End { port, fabric: Arc::clone(&fabric) }).collect())
}

impl Builder {
    /// Starts all nodes of a cluster on a fabric.
    pub(crate) fn start_on_fabric(self) -> Result<Cluster, StartError> {
        let mut settings = self.settings;
        settings.transport = TransportKind::Rapidio;
        let ends = ends(&mut settings)?;
        let crowded = std::thread::available_parallelism().is_ok_and(|cores| ends.len() > cores.get());
        let nodes = ends.into_iter().zip((0..settings.nodes).filter_map(NodeId::new)).map(|(end, node)| {
            let bytes = settings.memory_of(node);
            let memory = HeapMemory::new(bytes).ok_or(ConfigError::Memory { bytes })?;
            let (bell, fabric) = (end.bell(), end.fabric());
            let mut backend = Backend::new(end, bell).crowded(crowded);
            backend.fabric = Some(fabric);
            Ok((backend, Box::new(memory) as Memory))
        });
        let nodes = nodes.collect::<Result<Vec<_>, ConfigError>>()?;
        Self::from(settings).start_on(nodes)
    }
}

impl Fabric {
    /// Processes the next event. Returns whether anything is in flight.
    pub(crate) fn advance(&self) -> bool {
        let mut rung = Vec::new();
        let is_moving = self.network.advance(&mut rung);
        self.ring(&rung);
        is_moving
    }

    pub(crate) fn network(&self) -> &Network {
        &self.network
    }

    /// Makes events at the node wake a sleeping part of it from now on.
    pub(crate) fn add_sleeper(&self, node: NodeId, sleeper: &Arc<Sleeper>) {
        if let Some(sleepers) = self.sleepers.get(node.index()) {
            sleepers.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(sleeper));
        }
    }

    fn ring(&self, nodes: &[u16]) {
        for node in nodes.iter().map(|node| usize::from(*node)) {
            self.bells.get(node).into_iter().for_each(Doorbell::ring);
            if let Some(sleepers) = self.sleepers.get(node) {
                let mut sleepers = sleepers.lock().unwrap_or_else(PoisonError::into_inner);
                sleepers.retain(|sleeper| sleeper.upgrade().inspect(|sleeper| sleeper.wake()).is_some());
            }
        }
    }
}

impl End {
    pub(crate) fn fabric(&self) -> Arc<Fabric> {
        Arc::clone(&self.fabric)
    }

    pub(crate) fn bell(&self) -> Arc<dyn Bell> {
        let node = self.port.capabilities().node.index();
        Arc::new(NodeBell { node, fabric: Arc::clone(&self.fabric) })
    }
}

impl Bell for NodeBell {
    fn ring(&self) {
        if let Some(bell) = self.fabric.bells.get(self.node) {
            bell.ring();
        }
    }

    fn sleep(&self, timeout: Duration, is_idle: &mut dyn FnMut() -> bool) {
        if let Some(bell) = self.fabric.bells.get(self.node) {
            bell.sleep(timeout, || is_idle() && !self.fabric.network.is_moving());
        }
    }
}

impl Transport for End {
    type Error = Cause;
    pdbp_core::forward_links!(port);

    fn capabilities(&self) -> Capabilities {
        Capabilities { trusted: true, ..self.port.capabilities() }
    }

    fn submit(&mut self, op: Op) -> Result<(), Refused<Cause>> {
        let to = match &op {
            Op::Send { peer, .. } => Some(peer.raw()),
            _ => None,
        };
        self.port.submit(op)?;
        // Wakes the peer, so that time advances even if this node does not poll.
        self.fabric.ring(to.as_slice());
        Ok(())
    }

    fn poll_completion(&mut self) -> Option<Completion<Cause>> {
        if let Some(done) = self.port.poll_completion() {
            return Some(done);
        }
        self.fabric.advance();
        self.port.poll_completion()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier};
    use std::time::Duration;

    use crate::collective::{Group, GroupError, Request, Sum};
    use crate::{Cluster, Interest, Progress, RecvError};

    const SOON: Duration = Duration::from_secs(200);

    /// One member polls, finds nothing, and announces that it will sleep; meanwhile the others end its call.
    #[test]
    fn who_sleeps_in_a_call_in_switches_is_woken_by_its_end() {
        let builder = Cluster::builder().set("transport", "rapidio").set("fabric", "boards=1").nodes(2);
        let cluster = builder.progress(Progress::Inline).block_bytes(1024).timeout(SOON).start().unwrap();
        let (sleeps, ended) = (Barrier::new(2), Barrier::new(2));
        cluster.run(|node| {
            let fabric = node.shared.fabric.clone().unwrap();
            let mut all = Group::of_nodes(&node, "all", SOON).unwrap();
            all.barrier().unwrap();
            if node.id().index() == 1 {
                sleeps.wait();
                all.barrier().unwrap();
                while fabric.advance() {}
                ended.wait();
                return;
            }
            let sleeper = Arc::new(all.part().sleeper().unwrap());
            fabric.add_sleeper(node.id(), &sleeper);
            let mut call = all.start(Request::barrier()).unwrap();
            assert!(!call.poll().unwrap() && !sleeper.will_sleep());
            sleeps.wait();
            ended.wait();
            assert!(call.poll().unwrap());
            drop(call);
            let pipe = all.part().pipe().unwrap();
            assert!(pipe.take_nudge(), "nobody has woken it");
            let at = node.shared.pipes.iter().position(|other| std::ptr::eq(other, pipe)).unwrap();
            let pipe = &node.shared.pipes[at];
            // The part does not look any more: who gets its pipe next is not woken by this.
            sleeper.wake();
            sleeper.is_awake();
            assert!(!pipe.is_empty());
            drop(all);
            assert!(pipe.is_empty(), "its next owner never sleeps");
        });
    }

    /// It spun until it next waited for switches.
    #[test]
    fn who_is_woken_late_by_a_call_in_switches_sleeps_in_the_next_wait() {
        let cluster = Cluster::local(1).unwrap();
        let part = cluster.node(0).unwrap().attach_shared().unwrap();
        let (pipe, sleeper) = (part.pipe().unwrap(), part.sleeper().unwrap());
        sleeper.will_sleep();
        sleeper.wake();
        assert!(!pipe.is_empty());
        let waited = part.wait(Interest::Recv, Duration::from_millis(1));
        assert!(matches!(waited, Err(RecvError::Timeout(_))), "{waited:?}");
        assert!(pipe.is_empty(), "it is kept awake");
    }

    /// The node's program dies silently, and never calls again.
    #[test]
    fn a_node_that_dies_ends_a_call_at_all_others_with_its_name() {
        [true, false].into_iter().for_each(a_node_dies);
    }

    fn a_node_dies(by_switches: bool) {
        const GONE: usize = 2;
        let builder = Cluster::builder()
            .group_switches(by_switches)
            .set("transport", "rapidio")
            .set("fabric", "boards=2,chain");
        let cluster = builder.progress(Progress::Inline).block_bytes(1024).timeout(SOON).start().unwrap();
        let (joined, ended) = (Barrier::new(8), Barrier::new(8));
        cluster.run(|node| {
            let mut all = Group::of_nodes(&node, "all", SOON).unwrap();
            all.barrier().unwrap();
            assert_eq!(all.has_switches(), by_switches);
            joined.wait();
            if node.id().index() == GONE {
                node.shared.fabric.as_ref().unwrap().network().crash(GONE as u16);
            } else {
                let error = all.all_reduce(&mut [1f32; 1000], Sum).unwrap_err();
                let lost = GroupError::Lost { rank: GONE, address: format!("all#{GONE}@node{GONE}") };
                assert_eq!(error, lost);
                assert_eq!(all.barrier(), Err(lost));
            }
            ended.wait();
        });
    }
}
