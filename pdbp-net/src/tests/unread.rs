//! A node that computes for a while without polling: its process lives, and so does its link.
//!
//! More than the system buffers for a connection is on its way to the node, so the system ends the connection after a while (see
//! [`watch_host`](crate::socket::watch_host)).
#![cfg(any(target_os = "linux", target_os = "android"))]

use pdbp_core::Transport;
use pdbp_core::umb::{BlockPool, stride};

use super::*;

const BODY: usize = 128 << 10;
const IN_FLIGHT: usize = 64;

/// The other node, at that end of the link, sends to one that does not poll until there is a second connection.
fn node_without_polls_keeps_its_link(silent: usize) {
    let options = Options { in_flight: IN_FLIGHT, linger: Duration::ZERO, ..Options::new(stride(BODY)) };
    let mut ends = ends_of(2, options);
    let node = |index: usize| NodeId::new(index as u16).unwrap();
    let pool = |index| {
        let memory = HeapMemory::new(stride(BODY) * IN_FLIGHT).unwrap();
        BlockPool::new(memory, node(index), BODY)
    };
    let busy = 1 - silent;
    let (mut sending, mut receiving) = (pool(busy), pool(silent));
    while let Some(block) = receiving.take() {
        assert!(ends[silent].submit(Op::Recv { peer: node(busy), block }).is_ok());
    }
    let is_connected = |net: &Net| net.stats().links.iter().any(|link| link.connections == 1);
    until("the nodes are connected", || {
        assert!(ends.iter_mut().all(|net| net.poll_completion().is_none()));
        ends.iter().all(is_connected)
    });
    // With this it has said what it has posted, if it had not before.
    assert!(ends[silent].poll_completion().is_none());
    for number in 0..IN_FLIGHT {
        let mut block = sending.take().unwrap();
        block.bytes_mut().fill(number as u8);
        let block = sending.seal(block, BODY);
        assert!(ends[busy].submit(Op::Send { peer: node(silent), block }).is_ok());
    }
    until("there is another connection", || {
        let done = ends[busy].poll_completion();
        assert!(done.is_none(), "{done:?}");
        ends[busy].stats().links[silent].connections > 1
    });
    let (mut sent, mut received) = (0, 0);
    until("all has arrived", || {
        match ends[busy].poll_completion() {
            Some(Completion::Sent { block, .. }) => {
                assert!(sending.give_sealed(block).is_ok());
                sent += 1;
            }
            None => {}
            Some(other) => panic!("{other:?}"),
        }
        match ends[silent].poll_completion() {
            Some(Completion::Received { block, .. }) => {
                assert!(block.bytes().iter().take(BODY).all(|byte| *byte == received as u8));
                assert!(receiving.give_arrived(block).is_ok());
                received += 1;
            }
            None => {}
            Some(other) => panic!("{other:?}"),
        }
        (sent, received) == (IN_FLIGHT, IN_FLIGHT)
    });
}

#[test]
fn a_node_that_computes_without_polls_keeps_the_link_that_it_is_to_connect() {
    node_without_polls_keeps_its_link(1);
}

#[test]
fn a_node_that_computes_without_polls_keeps_the_link_that_others_connect() {
    node_without_polls_keeps_its_link(0);
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < 5 * SOON, "{what}");
    }
}
