//! One test per behaviour visible to users, and one per bug found, named for its symptom.

mod agreement;
mod copies;
mod damage;
mod delivery;
mod failure;
mod flow;
mod mixed;
mod nameless;
mod open;
mod parts;
mod rejoin;
mod relays;
mod room;
mod set_up;
mod settings;
mod stalls;
mod unreadable;

use super::harness::{Cluster, Links, Operation, Policy, Setup};

/// For clusters of three nodes and more.
const ALL: [Links; 3] = [Links::InPlace, Links::Posted, Links::Mixed];
/// For clusters of two nodes, whose links are all of one kind.
const BOTH: [Links; 2] = [Links::InPlace, Links::Posted];

fn setup(links: Links) -> Setup {
    Setup { nodes: 2, links, policy: Policy::Fixed, ..Setup::default() }
}

fn push(c: &mut Cluster, from: usize, to: usize, urgent: bool) {
    c.apply(Operation::Push { node: from, source: 0, to, dest: 0, length: 9, urgent, segment: false });
}

/// One block with one message.
fn ship(c: &mut Cluster, from: usize, to: usize) {
    push(c, from, to, false);
    c.submit(from, to, false);
}

fn rounds(c: &mut Cluster, n: usize) {
    for _ in 0..n {
        for i in c.live() {
            c.poll(i);
        }
    }
}

fn delivered(c: &Cluster) -> u64 {
    c.oracle.borrow().delivered
}
