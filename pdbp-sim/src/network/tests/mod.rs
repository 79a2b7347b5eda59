//! Tests the network below the contract, clusters over it, and that every check detects what it is for.

mod actors;
mod caught;
mod fabric;
mod flaws;
mod found;
mod guests;
mod links;
mod nameless;
mod runs;
mod sessions;

use pdbp_core::umb::HeapMemory;
use pdbp_core::{Arrival, Transport};

use super::{CrashSight, Network, Pace, Physics, Port, Probability, us};
use crate::conformance::Node;

/// The suite's nodes over a network whose time advances with their polls.
fn domain(nodes: usize, physics: Physics) -> Vec<Node<Port, HeapMemory>> {
    wrapped(nodes, physics, |port| port)
}

/// The same, with each port wrapped.
fn wrapped<T: Transport>(
    nodes: usize,
    physics: Physics,
    wrap: impl Fn(Port) -> T,
) -> Vec<Node<T, HeapMemory>> {
    let physics = Physics {
        largest_block: 1000,
        in_flight: 4,
        crash_sight: CrashSight::AtOnce,
        notice: 0,
        // Polls advance the time, including the polls of threads that wait for one which the system does not schedule.
        give_up: 1_000_000_000_000,
        ..physics
    };
    let (network, ports) = Network::new(nodes, physics, 5).unwrap();
    network.set_pace(Pace::Polls);
    let bytes = Node::<T, HeapMemory>::memory(nodes, 1024);
    let node = |port| Node::new(wrap(port), HeapMemory::new(bytes).unwrap(), 1024);
    ports.into_iter().map(node).collect()
}

fn good(arrival: Arrival) -> Physics {
    Physics { arrival, ..Physics::default() }
}

/// Every frame takes its time; one in ten is lost, and one in five overtaken.
fn bad(arrival: Arrival) -> Physics {
    let chance = |share| Probability::new(share).unwrap();
    Physics { jitter: us(20), loss: chance(0.1), reorder: chance(0.2), ..good(arrival) }
}

use Arrival::{InPlace, Posted};

crate::conformance!(good_in_place_2, domain(2, good(InPlace)));
crate::conformance!(good_in_place_5, domain(5, good(InPlace)));
crate::conformance!(good_posted_2, domain(2, good(Posted)));
crate::conformance!(good_posted_5, domain(5, good(Posted)));
crate::conformance!(bad_in_place, domain(3, bad(InPlace)));
crate::conformance!(bad_posted, domain(3, bad(Posted)));

#[test]
fn a_port_can_move_to_another_thread() {
    fn is_send<T: Transport + Send>(_: &T) {}
    let (_, ports) = Network::new(2, Physics::default(), 1).unwrap();
    ports.iter().for_each(is_send);
}
