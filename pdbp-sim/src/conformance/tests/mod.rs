//! The suite passes on sound transports and fails on broken ones.

#[allow(unsafe_code)]
mod broken;

use pdbp_core::Arrival;
use pdbp_core::umb::HeapMemory;

use super::Node;
use crate::local::Local;

fn local(arrival: Arrival, nodes: usize) -> Vec<Node<Local, HeapMemory>> {
    let bytes = Node::<Local, HeapMemory>::memory(nodes, 1024);
    let memories: Vec<_> = (0..nodes).map(|_| HeapMemory::new(bytes).unwrap()).collect();
    let ends = Local::network(memories.clone(), arrival, 1000, 4);
    ends.into_iter().zip(memories).map(|(end, memory)| Node::new(end, memory, 1024)).collect()
}

crate::conformance!(local_in_place_2, local(Arrival::InPlace, 2));
crate::conformance!(local_in_place_3, local(Arrival::InPlace, 3));
crate::conformance!(local_in_place_8, local(Arrival::InPlace, 8));
crate::conformance!(local_posted_2, local(Arrival::Posted, 2));
crate::conformance!(local_posted_3, local(Arrival::Posted, 3));
crate::conformance!(local_posted_8, local(Arrival::Posted, 8));
