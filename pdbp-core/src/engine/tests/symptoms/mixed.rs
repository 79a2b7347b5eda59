//! Networks with both kinds of links: even-numbered nodes on one host, odd-numbered on another.

use std::vec::Vec;

use super::super::harness::{Cluster, Links, Policy, Setup, node, port};
use super::{delivered, rounds, setup, ship};
use crate::umb::{HeapMemory, stride};
use crate::{ConfigError, Engine, Event, Storage};

fn mixed(nodes: usize) -> Setup {
    Setup { nodes, ..setup(Links::Mixed) }
}

/// Receive space, as granted to the peer.
fn granted(c: &mut Cluster, at: usize, from: usize) -> u32 {
    c.host(at).engine.recv_row(node(from)).unwrap().space.real()
}

fn posted(c: &Cluster, at: usize, from: usize) -> u32 {
    c.net.borrow().posted(at, from)
}

/// Whether an engine with this many blocks can be set up.
fn start(setup: &Setup, at: usize, blocks: usize) -> Option<ConfigError> {
    let c = setup.start();
    let storage = Storage::allocate(&setup.config(at), blocks, 8);
    let memory = HeapMemory::new(stride(setup.body) * blocks).unwrap();
    Engine::new(setup.config(at), setup.policy, port(at, &c.net), memory, storage).err()
}

#[test]
fn a_node_needs_blocks_to_post_for_the_peers_on_other_hosts_only() {
    let setup = Setup { extra: 0, ..mixed(5) };
    // Five rows of two blocks to send, four for control, and per peer on the other host two to receive into and two spare ones.
    for (at, need) in [(0, 10 + 4 + 2 * 4), (1, 10 + 4 + 3 * 4)] {
        assert_eq!(start(&setup, at, need as usize), None);
        let error = start(&setup, at, need as usize - 1);
        assert_eq!(error, Some(ConfigError::Blocks { have: need - 1, need: u64::from(need) }));
    }
    let mut c = setup.start();
    for (at, near) in [(0, [2, 4].as_slice()), (1, &[3])] {
        assert_eq!(c.host(at).engine.free_blocks(), 0);
        for peer in (0..5).filter(|p| *p != at) {
            assert_eq!(granted(&mut c, at, peer), 2);
            assert_eq!(posted(&c, at, peer), if near.contains(&peer) { 0 } else { 4 });
        }
        // As many blocks of peers as it has itself, less those of the rows.
        let credit = c.setup.blocks(at) - 2 * near.len() as u32;
        assert_eq!(c.host(at).engine.space.credit, credit);
    }
}

#[test]
fn space_for_blocks_read_in_place_takes_no_blocks_from_those_that_are_posted() {
    let mut c = Setup { policy: Policy::Adaptive, extra: 24, row: 16, copies: 0, ..mixed(3) }.ready();
    let (free, credit) = (c.host(0).engine.free_blocks(), c.host(0).engine.space.credit);
    for _ in 0..10 {
        ship(&mut c, 2, 0);
        rounds(&mut c, 3);
    }
    let near = granted(&mut c, 0, 2);
    assert!(near >= 8, "{near}");
    assert_eq!((c.host(0).engine.free_blocks(), posted(&c, 0, 1)), (free, 4));
    assert_eq!(c.host(0).engine.space.credit, credit - (near - 2));
    // And in the other direction.
    for _ in 0..10 {
        ship(&mut c, 1, 0);
        rounds(&mut c, 3);
    }
    let far = granted(&mut c, 0, 1);
    assert!(far >= 8, "{far}");
    assert_eq!(c.host(0).engine.free_blocks(), free - (far - 2));
    assert_eq!(c.host(0).engine.space.credit, credit - (near - 2));
    assert_eq!(delivered(&c), 20);
    c.settle();
}

/// Space of posted rows consists of posted blocks, not credit: taking it would not help the row in need.
#[test]
fn idle_posted_rows_keep_their_space_when_a_row_in_place_needs_credit() {
    let setup = Setup { policy: Policy::Adaptive, initial: 4, row: 16, extra: 12, ..mixed(5) };
    let mut c = setup.ready();
    c.host(0).engine.space.credit = 0;
    let space = &mut c.host(0).engine.links.to_mut(node(4)).unwrap().recv.space;
    *space = space.with_equal_part(2);
    for _ in 0..12 {
        ship(&mut c, 2, 0);
        rounds(&mut c, 3);
    }
    let spaces = [1, 2, 3, 4].map(|peer| granted(&mut c, 0, peer));
    assert_eq!(spaces, [4, 5, 4, 2], "row 4 keeps two; of the others row 2 gets its share");
    assert_eq!((posted(&c, 0, 1), posted(&c, 0, 3)), (6, 6));
    assert_eq!(c.host(0).engine.space.credit, 1);
    assert!(c.host(0).engine.recv_row(node(2)).unwrap().exhausted > 0);
    c.settle();
}

/// Peers of both kinds fail while the node is reading blocks of both, and a third carries on.
#[test]
fn all_blocks_and_credit_come_back_when_peers_of_both_kinds_fail() {
    for order in [[1, 2], [2, 1]] {
        let mut c = Setup { pipe: 2, ..mixed(4) }.ready();
        for peer in [1, 2] {
            for _ in 0..2 {
                ship(&mut c, peer, 0);
                ship(&mut c, 0, peer);
            }
        }
        rounds(&mut c, 4);
        c.read(0, 0, 2, true);
        rounds(&mut c, 1);
        for peer in order {
            c.kill(peer);
            rounds(&mut c, 1);
        }
        c.read(0, 0, 9, true);
        assert_eq!(delivered(&c), 4 + 4, "what had arrived is read to its end");
        c.release(0);
        rounds(&mut c, 2);
        let failed = |e: &Event| match e {
            Event::PeerFailed { peer, .. } => Some(peer.index()),
            _ => None,
        };
        let events: Vec<_> = c.host(0).pipes.events.iter().filter_map(failed).collect();
        assert_eq!(events, order);
        assert_eq!([1, 2].map(|peer| granted(&mut c, 0, peer)), [0, 0]);
        let asked = [0, 3].map(|i| c.host(i).engine.request_quiescence());
        ship(&mut c, 3, 0);
        ship(&mut c, 0, 3);
        c.settle();
        assert!(c.host(0).engine.is_quiescent(asked[0]) && c.host(3).engine.is_quiescent(asked[1]));
        let engine = &c.hosts[0].as_ref().unwrap().engine;
        assert_eq!(engine.space.credit, c.setup.blocks(0), "no peer is left on this host");
        // Rows of two blocks to itself and to node 3; for node 3, two to receive into and two spare ones.
        assert_eq!(engine.free_blocks(), c.setup.blocks(0) - c.setup.control - 4 - 4);
    }
}

#[test]
fn quiet_waits_for_rows_of_both_kinds_and_barriers_for_neither() {
    let mut c = Setup { pipe: 1, ..mixed(3) }.ready();
    for from in [0, 0, 1] {
        ship(&mut c, from, 2);
        rounds(&mut c, 2);
    }
    let waiting = [0, 1].map(|peer| c.host(2).engine.recv_row(node(peer)).unwrap().waiting);
    assert_eq!(waiting, [1, 1], "behind the first message");
    let asked = [0, 1, 2].map(|i| c.host(i).engine.request_quiescence());
    let barrier = [0, 1, 2].map(|i| c.host(i).engine.arrive());
    for left in (1..3).rev() {
        rounds(&mut c, 20);
        assert!((0..3).all(|i| c.host(i).engine.barrier_passed(barrier[i])));
        assert!((0..3).all(|i| !c.host(i).engine.is_quiescent(asked[i])), "{left} messages wait");
        c.read(2, 0, 1, false);
    }
    rounds(&mut c, 20);
    assert!((0..3).all(|i| c.host(i).engine.is_quiescent(asked[i])));
    c.settle();
}
