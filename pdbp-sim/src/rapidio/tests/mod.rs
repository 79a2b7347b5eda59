//! Tests the fabric on randomly drawn topologies, against the rules it promises and a fold along the tree.

mod bad;
mod bounds;
mod calls;
mod paper;
mod ports;
mod raw;
mod routing;
mod rows;

use super::{PORTS, Topology};
use crate::random::Random;

/// Draws a connected topology of up to `most` switches, some of them without endpoints, with links that the tree does not need.
pub(super) fn draw(random: &mut Random, most: u64) -> Topology {
    let switches = 1 + random.below(most) as usize;
    let mut ports = vec![0; switches];
    let mut topology = Topology::boards(0).bare(switches);
    let mut link = |topology: Topology, a: usize, b: usize, weight: u64| {
        ports[a] += 1;
        ports[b] += 1;
        topology.link_of_weight(a, b, 1 + weight as u32)
    };
    for switch in 1..switches {
        // To one of the last few switches, so that none has too many ports.
        let back = 1 + random.below(4.min(switch as u64)) as usize;
        topology = link(topology, switch, switch - back, random.below(3));
    }
    for _ in 0..random.below(1 + switches as u64 / 2) {
        let (a, b) = (random.below(switches as u64) as usize, random.below(switches as u64) as usize);
        let is_there = |l: &super::Link| (l.a, l.b) == (a, b) || (l.a, l.b) == (b, a);
        if a != b && !topology.links().iter().any(is_there) {
            topology = link(topology, a, b, random.below(3));
        }
    }
    for _ in 0..2 + random.below(2 * switches as u64) {
        let switch = random.below(switches as u64) as usize;
        if ports[switch] < PORTS {
            ports[switch] += 1;
            topology = topology.endpoint(switch);
        }
    }
    topology
}
