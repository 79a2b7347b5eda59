//! Nodes of this process on a fabric of switches, in virtual time.
//!
//! Time goes on with polls: a node that finds nothing lets the next event happen, and **nobody sleeps while something is under way**. So what
//! was sent arrives whoever has nothing else to do, and in the order in which threads come to it.

use std::sync::Arc;
use std::time::Duration;

use pdbp_core::id::NodeId;
use pdbp_core::umb::HeapMemory;
use pdbp_core::{Arrival, Bell, Capabilities, Completion, Op, Refused, Transport};
use pdbp_local::Doorbell;
use pdbp_sim::network::{Cause, CrashSight, Ground, Network, Physics, PhysicsError, Port, s};
use pdbp_sim::rapidio::{Timing, Topology};

use crate::cluster::{Cluster, StartError};
use crate::config::{Builder, ConfigError, Settings, TransportKind};
use crate::node::{Backend, Memory};

/// Virtual time in which a node that lives has answered, however long its threads are away.
const GIVE_UP: u64 = s(1 << 20);

/// A fabric, and what its nodes sleep on.
#[derive(Debug)]
pub(crate) struct Fabric {
    network: Network,
    bells: Vec<Doorbell>,
}

/// A node's end.
pub(crate) struct End {
    port: Port,
    fabric: Arc<Fabric>,
}

/// What a node sleeps on.
struct NodeBell {
    node: usize,
    fabric: Arc<Fabric>,
}

/// The ends of all nodes, as many as the settings say or as there are endpoints.
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
    let fabric = Arc::new(Fabric { network, bells });
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
    /// Lets the next event happen. Returns whether something is under way.
    pub(crate) fn advance(&self) -> bool {
        let mut rung = Vec::new();
        let is_moving = self.network.advance(&mut rung);
        self.ring(&rung);
        is_moving
    }

    pub(crate) fn network(&self) -> &Network {
        &self.network
    }

    fn ring(&self, nodes: &[u16]) {
        let bells = nodes.iter().filter_map(|node| self.bells.get(usize::from(*node)));
        bells.for_each(Doorbell::ring);
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

    fn capabilities(&self) -> Capabilities {
        Capabilities { trusted: true, ..self.port.capabilities() }
    }

    fn arrival(&self, peer: NodeId) -> Arrival {
        self.port.arrival(peer)
    }

    fn capacity(&self, peer: NodeId) -> usize {
        self.port.capacity(peer)
    }

    fn has_ended(&self, peer: NodeId) -> bool {
        self.port.has_ended(peer)
    }

    fn disconnect(&mut self, peer: NodeId) {
        self.port.disconnect(peer);
    }

    fn session(&self, peer: NodeId) -> u32 {
        self.port.session(peer)
    }

    fn restores_links(&self) -> bool {
        self.port.restores_links()
    }

    fn submit(&mut self, op: Op) -> Result<(), Refused<Cause>> {
        let to = match &op {
            Op::Send { peer, .. } => Some(peer.raw()),
            _ => None,
        };
        self.port.submit(op)?;
        // So that somebody lets time go on if this node does not.
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
    use std::sync::Barrier;
    use std::time::Duration;

    use crate::collective::{Group, GroupError, Sum};
    use crate::{Cluster, Progress};

    const SOON: Duration = Duration::from_secs(200);

    /// Without a word of its program, which never calls again.
    #[test]
    fn a_node_that_dies_ends_a_call_in_switches_at_all_others_with_its_name() {
        const GONE: usize = 2;
        let builder = Cluster::builder().set("transport", "rapidio").set("fabric", "boards=2,chain");
        let cluster = builder.progress(Progress::Inline).block_bytes(1024).timeout(SOON).start().unwrap();
        let (joined, ended) = (Barrier::new(8), Barrier::new(8));
        cluster.run(|node| {
            let mut all = Group::of_nodes(&node, "all", SOON).unwrap();
            all.barrier().unwrap();
            assert!(all.has_switches());
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
