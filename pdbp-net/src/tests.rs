//! The conformance suite over loopback, on stable connections and on connections that are cut all the time.

mod stalled;
mod unread;

use std::time::{Duration, Instant};

use pdbp_core::id::NodeId;
use pdbp_core::umb::HeapMemory;
use pdbp_core::{Arrival, Capabilities, Completion, Op, Refused, Transport};
use pdbp_sim::conformance::Node;
use pdbp_sim::fault::{Chance, FaultInjector, Faults};
use pdbp_sim::tracer::Tracer;

use crate::{Codec, Founder, LinkState, Net, NetError, Options, StartError};

/// Long enough for a loaded machine.
const SOON: Duration = Duration::from_secs(60);

/// All nodes of a cluster, each as if in its own process.
fn ends(nodes: usize, in_flight: usize) -> Vec<Net> {
    ends_with(nodes, in_flight, Codec::None, 0)
}

/// As [`ends`], with a codec and buffers for two packed blocks more than the cluster has nodes.
fn ends_with(nodes: usize, in_flight: usize, codec: Codec, workers: usize) -> Vec<Net> {
    let (ring_bytes, workers) = (1200 * (nodes + 2), Some(workers));
    ends_of(nodes, Options { in_flight, codec, workers, ring_bytes, ..Options::new(1000) })
}

fn ends_of(nodes: usize, options: Options) -> Vec<Net> {
    let options = Options { timeout: SOON, outage: SOON, ..options };
    let founder = Founder::new("127.0.0.1:0", nodes as u16, options.clone()).unwrap();
    let address = founder.address().to_string();
    let join = || {
        let (address, options) = (address.clone(), options.clone());
        std::thread::spawn(move || Net::join(&address, None, &options).unwrap())
    };
    let others: Vec<_> = (1..nodes).map(|_| join()).collect();
    let mut ends = vec![founder.wait().unwrap()];
    ends.extend(others.into_iter().map(|other| other.join().unwrap()));
    ends.sort_by_key(|end| end.capabilities().node.index());
    ends
}

/// The nodes of a domain, whose links can be cut.
fn domain<T: Cut>(ends: Vec<T>) -> Vec<Node<T, HeapMemory>> {
    let memory = |nodes| HeapMemory::new(Node::<T, HeapMemory>::memory(nodes, 1024)).unwrap();
    let nodes = ends.len();
    let node = |end| Node::new(end, memory(nodes), 1024).cut_by(|end: &mut T, peer| end.cut_link(peer));
    ends.into_iter().map(node).collect()
}

trait Cut: Transport {
    fn cut_link(&mut self, peer: NodeId);
}

impl Cut for Net {
    fn cut_link(&mut self, peer: NodeId) {
        self.cut(peer.index());
    }
}

impl Cut for Cutting {
    fn cut_link(&mut self, peer: NodeId) {
        self.net.cut(peer.index());
    }
}

/// The net inside is inaccessible, so nothing is cut; the link is only given up.
impl Cut for Tracer<FaultInjector<Net>> {
    fn cut_link(&mut self, _: NodeId) {}
}

/// Cuts a connection after every so many completions.
struct Cutting {
    net: Net,
    every: u32,
    left: u32,
    turn: usize,
}

impl Cutting {
    fn ends(nodes: usize, every: u32) -> Vec<Self> {
        Self::of(ends(nodes, 5), every)
    }

    fn ends_with(nodes: usize, every: u32, codec: Codec, workers: usize) -> Vec<Self> {
        Self::of(ends_with(nodes, 5, codec, workers), every)
    }

    fn of(ends: Vec<Net>, every: u32) -> Vec<Self> {
        ends.into_iter().map(|net| Self { net, every, left: every, turn: 0 }).collect()
    }
}

impl Transport for Cutting {
    type Error = NetError;

    fn capabilities(&self) -> Capabilities {
        self.net.capabilities()
    }

    fn arrival(&self, peer: NodeId) -> Arrival {
        self.net.arrival(peer)
    }

    fn capacity(&self, peer: NodeId) -> usize {
        self.net.capacity(peer)
    }

    fn restores_links(&self) -> bool {
        self.net.restores_links()
    }

    fn disconnect(&mut self, peer: NodeId) {
        self.net.disconnect(peer);
    }

    fn submit(&mut self, op: Op) -> Result<(), Refused<NetError>> {
        self.net.submit(op)
    }

    fn poll_completion(&mut self) -> Option<Completion<NetError>> {
        let completion = self.net.poll_completion();
        if completion.is_some() {
            self.left -= 1;
            if self.left == 0 {
                self.left = self.every;
                self.turn += 1;
                self.net.cut(self.turn % usize::from(self.net.capabilities().nodes));
            }
        }
        completion
    }
}

pdbp_sim::conformance!(two_nodes, domain(ends(2, 10)));
pdbp_sim::conformance!(three_nodes, domain(ends(3, 10)));
pdbp_sim::conformance!(least_room, domain(ends(3, 3)));
pdbp_sim::conformance!(three_nodes_that_are_cut_all_the_time, domain(Cutting::ends(3, 40)));
pdbp_sim::conformance!(lz4, domain(ends_with(3, 10, Codec::Lz4, 0)));
pdbp_sim::conformance!(zstd, domain(ends_with(3, 10, Codec::Zstd, 0)));
pdbp_sim::conformance!(auto, domain(ends_with(2, 10, Codec::Auto, 0)));
pdbp_sim::conformance!(lz4_with_workers, domain(ends_with(2, 10, Codec::Lz4, 2)));
pdbp_sim::conformance!(lz4_that_is_cut_all_the_time, domain(Cutting::ends_with(3, 40, Codec::Lz4, 0)));
pdbp_sim::conformance!(
    zstd_with_workers_that_is_cut_all_the_time,
    domain(Cutting::ends_with(2, 40, Codec::Zstd, 2))
);

/// Polls both until the second has had this many connections to the first.
fn until_connected(founder: &mut Net, other: &mut Net, connections: u64) {
    let began = std::time::Instant::now();
    while other.stats().links[0].connections < connections || other.stats().links[0].state != LinkState::Up {
        assert!(began.elapsed() < SOON, "{:?}", other.stats().links[0]);
        founder.poll_completion();
        other.poll_completion();
        std::thread::sleep(Duration::from_micros(100));
    }
}

#[test]
fn waits_of_any_length_are_taken() {
    let options = Options { timeout: Duration::MAX, outage: Duration::MAX, ..Options::new(1000) };
    let mut founder = Net::found("127.0.0.1:0", 2, &options).unwrap();
    let mut other = Net::join(&founder.address().to_string(), None, &options).unwrap();
    until_connected(&mut founder, &mut other, 1);
    other.cut(0);
    until_connected(&mut founder, &mut other, 2);
}

#[test]
fn who_dials_has_a_link_to_the_founder_alone() {
    let options = Options { timeout: SOON, ..Options::new(1000) };
    let mut founder = Net::found("127.0.0.1:0", 4, &options).unwrap();
    let address = founder.address().to_string();
    let mut others = [(); 2].map(|()| Net::dial(&address, &options).unwrap());
    for other in &mut others {
        until_connected(&mut founder, other, 1);
    }
    let connections = |net: &Net| net.stats().links.iter().map(|link| link.connections).collect::<Vec<_>>();
    assert_eq!(others.each_ref().map(connections), [[1, 0, 0, 0], [1, 0, 0, 0]]);
    // Nobody is there any more, and dialling does not wait.
    drop((others, founder));
    assert!(matches!(Net::dial(&address, &options), Err(StartError::NoFounder { .. })));
    let fixed = Founder::new("127.0.0.1:0", 2, options.clone()).unwrap();
    let dialled = Net::dial(&fixed.address().to_string(), &options).err().unwrap();
    assert!(matches!(dialled, StartError::NotOpen { .. }), "{dialled}");
}

#[test]
fn a_listener_that_does_not_answer_is_no_resource_that_is_temporarily_unavailable() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let options = Options { timeout: Duration::from_secs(1), ..Options::new(1000) };
    let error = Net::dial(&address, &options).err().unwrap().to_string();
    assert!(error.contains(&address) && error.contains("does not answer"), "{error}");
}

/// The founder of an open cluster is alone at first. Processes that join on its host need processors as well, until they leave.
#[test]
fn a_founder_packs_in_line_while_others_of_its_host_need_the_processors() {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let options = Options { timeout: SOON, linger: Duration::ZERO, ..Options::new(1000) };
    let packing = Options { codec: Codec::Lz4, ..options.clone() };
    let mut founder = Net::found("127.0.0.1:0", 1 + processors as u16, &packing).unwrap();
    assert_eq!(founder.ring.has_workers(), processors > 1);
    let address = founder.address().to_string();
    let mut others: Vec<_> =
        (0..processors.div_ceil(2)).map(|_| Net::dial(&address, &options).unwrap()).collect();
    let mut until = |others: &mut [Net], is_so: &dyn Fn(&Net) -> bool| {
        let began = Instant::now();
        while !is_so(&founder) {
            assert!(began.elapsed() < SOON, "{:?}", founder.stats().links);
            founder.poll_completion();
            others.iter_mut().for_each(|other| _ = other.poll_completion());
            std::thread::sleep(Duration::from_micros(100));
        }
    };
    let count = others.len();
    let up = |net: &Net| net.stats().links.iter().filter(|link| link.state == LinkState::Up).count();
    until(&mut others, &|founder| up(founder) == count);
    until(&mut others, &|founder| !founder.ring.has_workers());
    drop(others);
    until(&mut [], &|founder| founder.ring.has_workers() == (processors > 1));
}

/// Refuses and delays what it could do at once, and records what it did.
fn troubled(ends: Vec<Net>) -> Vec<Tracer<FaultInjector<Net>>> {
    let (busy, random) = (Chance::in_thousand(300).unwrap(), 1);
    let faults = Faults { busy, delay: 20, seed: random, ..Faults::default() };
    ends.into_iter().map(|end| Tracer::new(FaultInjector::new(end, faults), 64)).collect()
}

pdbp_sim::conformance!(inside_tracer_and_fault_injector, domain(troubled(ends(3, 10))));

mod soap {
    use super::*;
    use crate::Framing;

    fn ends(nodes: usize, in_flight: usize, codec: Codec) -> Vec<Net> {
        let (ring_bytes, workers, framing) = (1200 * (nodes + 2), Some(0), Framing::Soap);
        ends_of(nodes, Options { in_flight, codec, workers, ring_bytes, framing, ..Options::new(1000) })
    }

    pdbp_sim::conformance!(three_nodes, domain(ends(3, 10, Codec::None)));
    pdbp_sim::conformance!(least_room, domain(ends(3, 3, Codec::None)));
    pdbp_sim::conformance!(auto, domain(ends(3, 10, Codec::Auto)));
    pdbp_sim::conformance!(inside_tracer_and_fault_injector, domain(troubled(ends(3, 10, Codec::None))));
    pdbp_sim::conformance!(that_are_cut_all_the_time, domain(Cutting::of(ends(3, 5, Codec::None), 40)));
    pdbp_sim::conformance!(lz4_that_is_cut_all_the_time, domain(Cutting::of(ends(3, 5, Codec::Lz4), 40)));
}

#[cfg(feature = "tls")]
mod encrypted {
    use super::*;
    use crate::{Framing, Tls, Token};

    fn ends(nodes: usize, in_flight: usize, codec: Codec) -> Vec<Net> {
        ends_by(nodes, in_flight, codec, Framing::Tcp)
    }

    fn ends_by(nodes: usize, in_flight: usize, codec: Codec, framing: Framing) -> Vec<Net> {
        let (token, tls) = (Token::from_text(&"secret".repeat(6)).ok(), Tls::Token);
        ends_of(nodes, Options { token, in_flight, codec, framing, tls, ..Options::new(1000) })
    }

    pdbp_sim::conformance!(three_nodes, domain(ends(3, 10, Codec::None)));
    pdbp_sim::conformance!(least_room, domain(ends(3, 3, Codec::None)));
    pdbp_sim::conformance!(auto, domain(ends(2, 10, Codec::Auto)));
    pdbp_sim::conformance!(that_are_cut_all_the_time, domain(Cutting::of(ends(3, 5, Codec::None), 40)));
    pdbp_sim::conformance!(inside_tracer_and_fault_injector, domain(troubled(ends(3, 10, Codec::None))));
    pdbp_sim::conformance!(soap, domain(ends_by(3, 10, Codec::None, Framing::Soap)));
    pdbp_sim::conformance!(soap_auto, domain(ends_by(3, 10, Codec::Auto, Framing::Soap)));
    pdbp_sim::conformance!(
        soap_that_is_cut_all_the_time,
        domain(Cutting::of(ends_by(3, 5, Codec::None, Framing::Soap), 40))
    );
}
