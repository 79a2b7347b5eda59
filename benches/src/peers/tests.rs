//! Every peer delivers everything exactly once, in order, whatever the pattern.

use std::sync::Barrier;
use std::thread;

use super::*;
use crate::fabric::{Endpoint, Fabric};
use crate::scenario::{Pattern, Tuning};

/// A packet that carries its sender and its number; the last byte closes it.
fn packet(size: usize, from: usize, number: u32) -> Vec<u8> {
    let mut bytes = vec![0xA5; size];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    bytes[4] = from as u8;
    bytes[size - 1] ^= number as u8;
    bytes
}

/// One node's part: sends `count` numbered packets to each destination, checks each arrival's place and bytes.
fn converse<F: Fabric>(seat: F::Seat, id: usize, scenario: &Scenario, count: u32, done: &Barrier) {
    let mut endpoint: F::Endpoint = seat.into();
    let destinations: Vec<_> = scenario.destinations(id).map(|(to, _)| to).collect();
    let mut sent = vec![0; scenario.nodes];
    let mut next = vec![0; scenario.nodes];
    let origins: Vec<_> = scenario.origins(id).map(|(from, _)| from).collect();
    let complete = |next: &[u32]| origins.iter().all(|&from| next[from] == count);
    loop {
        for &to in &destinations {
            if sent[to] < count && endpoint.try_send(to, &packet(scenario.packet, id, sent[to])) {
                sent[to] += 1;
            }
        }
        let before: u32 = next.iter().sum();
        let got = endpoint.receive(|bytes| {
            let from = usize::from(bytes[4]);
            assert_eq!(bytes, packet(scenario.packet, from, next[from]), "at node {id}");
            next[from] += 1;
        });
        assert_eq!(next.iter().sum::<u32>() - before, got as u32, "what `receive` returns at node {id}");
        let sent_all = destinations.iter().all(|&to| sent[to] == count);
        if got == 0 || sent_all {
            endpoint.flush();
        }
        if got == 0 {
            thread::yield_now();
        }
        if sent_all && complete(&next) && endpoint.finished() {
            break;
        }
    }
    done.wait();
    assert_eq!(endpoint.receive(|_| {}), 0, "nothing comes twice");
    done.wait();
}

fn delivers_exactly_once_in_order<F: Fabric>() {
    for pattern in Pattern::ALL {
        for (nodes, size, count) in
            [(2, 8, 3000), (3, 64, 1000), (4, 291, 500), (2, 65536, 40), (2, 70000, 20)]
        {
            let scenario = Scenario::new(pattern, nodes, size);
            let done = Barrier::new(nodes);
            thread::scope(|scope| {
                for (id, seat) in F::connect(&scenario).into_iter().enumerate() {
                    let (scenario, done) = (&scenario, &done);
                    scope.spawn(move || converse::<F>(seat, id, scenario, count, done));
                }
            });
        }
    }
}

#[test]
fn crossbeam_delivers_exactly_once_in_order() {
    delivers_exactly_once_in_order::<Boxed<Crossbeam>>();
}

#[test]
fn flume_delivers_exactly_once_in_order() {
    delivers_exactly_once_in_order::<Boxed<Flume>>();
}

#[test]
fn kanal_delivers_exactly_once_in_order() {
    delivers_exactly_once_in_order::<Boxed<Kanal>>();
}

#[test]
fn std_delivers_exactly_once_in_order() {
    delivers_exactly_once_in_order::<Boxed<StdMpsc>>();
}

#[test]
fn rtrb_delivers_exactly_once_in_order() {
    delivers_exactly_once_in_order::<Rtrb>();
}

#[test]
fn rtrb_gathering_delivers_exactly_once_in_order() {
    delivers_exactly_once_in_order::<RtrbGathering>();
}

#[test]
fn bbqueue_delivers_exactly_once_in_order() {
    delivers_exactly_once_in_order::<BbQueue>();
}

#[test]
fn the_engine_of_pdbp_delivers_exactly_once_in_order() {
    delivers_exactly_once_in_order::<PdbpCore<Usual>>();
    delivers_exactly_once_in_order::<PdbpCore<Sparse>>();
    delivers_exactly_once_in_order::<PdbpCore<Divided<1>>>();
}

#[test]
fn the_runtime_of_pdbp_delivers_exactly_once_in_order() {
    delivers_exactly_once_in_order::<Pdbp<Inline>>();
    delivers_exactly_once_in_order::<Pdbp<Threaded>>();
    delivers_exactly_once_in_order::<Pdbp<Shared<1>>>();
}

#[test]
fn every_peer_passes_its_own_verification_with_tiny_buffers() {
    for peer in Peer::ALL {
        for (pattern, nodes) in [(Pattern::AllToAll, 2), (Pattern::AllToAll, 4), (Pattern::Skewed, 3)] {
            let mut scenario = Scenario::new(pattern, nodes, 24);
            scenario.tuning = Tuning {
                channel_packets: Some(1),
                ring_bytes: Some(96),
                commit_bytes: Some(48),
                block_bytes: Some(256),
                pack_bytes: Some(256),
                blocks_per_peer: Some(2),
            };
            peer.run(&scenario, 10, 500);
        }
    }
}

#[test]
fn peers_are_found_by_their_names() {
    for peer in Peer::ALL {
        assert_eq!(peer.name().parse(), Ok(peer));
    }
    assert!("carrier-pigeon".parse::<Peer>().unwrap_err().contains("crossbeam"));
}
