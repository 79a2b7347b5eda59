//! Hosts that panic, mix up deliveries, or give them to the wrong engine.

use std::slice;

use pdbp_core::Arrival;
use pdbp_core::cdu::{CduClass, Route};
use pdbp_core::engine::DeliveryKind;
use pdbp_core::id::PartId;

use super::rig::*;

/// One block with a message for each of the two parts of node 0.
fn send_to_both(hosts: &mut [Host<pdbp_local::Local>], from: usize) {
    let mut block = hosts[from].engine.open(node(0)).unwrap();
    for (dest, text) in [(0, b"to part zero"), (1, b"to part one.")] {
        let route = |to| Route::new(CduClass::ShortMessage, 0, part(from as u16), to);
        block.push(route(PartId::new(node(0), dest).unwrap()), text).unwrap();
    }
    hosts[from].engine.submit(block);
}

fn panics_at_the_second(arrival: Arrival, from: usize, mood: Mood) {
    let mut hosts = cluster(2, arrival);
    hosts[0].pipes.moods.extend([Mood::Takes, mood]);
    send_to_both(&mut hosts, from);
    hosts[1].poll();
    hosts[0].poll_and_panic();
    assert!(hosts[0].engine.leaks(), "a delivery is out, and another one may be");
    settle(&mut hosts);
    // Nothing is lost, and what was delivered does not come again; a host that panics after it has stored it gets it twice.
    let again = usize::from(mood == Mood::TakesAndPanics);
    let host = &mut hosts[0];
    assert_eq!(host.pipes.got.len(), 2 + again);
    assert_eq!(texts(&host.pipes.got)[0], b"to part zero");
    assert_eq!(texts(&host.pipes.got)[1], b"to part one.");
    host.release_but(1);
    assert_eq!(host.foreign(), 0);

    // All others are given back, so that the count alone keeps the block of the one that is left.
    let Host { pipes, .. } = hosts.remove(0);
    drop(hosts);
    reuse_freed_memory();
    assert_eq!(texts(&pipes.got), [b"to part zero"]);
}

#[test]
fn deliveries_that_live_when_a_host_panics_keep_their_bytes() {
    for mood in [Mood::Panics, Mood::TakesAndPanics] {
        panics_at_the_second(Arrival::InPlace, 0, mood);
        panics_at_the_second(Arrival::InPlace, 1, mood);
        panics_at_the_second(Arrival::Posted, 1, mood);
    }
}

#[test]
fn a_row_goes_on_after_its_host_has_panicked() {
    for arrival in [Arrival::InPlace, Arrival::Posted] {
        let mut hosts = cluster(2, arrival);
        let mut got = 0;
        for round in 0..20u8 {
            if round < 2 {
                hosts[0].pipes.moods.push_back(Mood::Panics);
            }
            assert!(hosts[1].send(0, 0, &[round; 20]), "round {round}: no block");
            if round < 2 {
                hosts[0].poll_and_panic();
            }
            settle(&mut hosts);
            assert_eq!(texts(&hosts[0].pipes.got), [[round; 20]]);
            got += hosts[0].pipes.got.len();
            hosts[0].release_but(0);
            settle(&mut hosts);
        }
        assert_eq!((got, hosts[0].foreign()), (20, 0));
    }
}

#[test]
fn messages_that_come_back_to_a_host_that_panics_keep_their_bytes() {
    let mut hosts = cluster(2, Arrival::InPlace);
    // Node 1 reads nothing.
    hosts[1].pipes.moods.extend([Mood::Refuses; 50]);
    for text in [b"first.", b"second"] {
        assert!(hosts[0].send(1, 0, text));
    }
    hosts[1].poll();
    hosts.remove(1);
    hosts[0].pipes.moods.extend([Mood::Takes, Mood::TakesAndPanics]);
    hosts[0].poll_and_panic();
    settle(&mut hosts);
    let host = &mut hosts[0];
    let returned = |d: &&pdbp_core::Delivery| matches!(d.kind(), DeliveryKind::Returned { .. });
    assert!(host.pipes.got.iter().all(|d| returned(&d)));
    assert_eq!(texts(&host.pipes.got), [b"first.", b"second", b"second"]);
    assert_eq!(host.engine.counters().undelivered, 2);
    host.release_but(1);
    assert_eq!(host.foreign(), 0);
    let Host { pipes, .. } = hosts.remove(0);
    reuse_freed_memory();
    assert_eq!(texts(&pipes.got), [b"first."]);
}

#[test]
fn a_host_that_panics_at_an_event_does_not_lose_the_bytes_of_others() {
    for arrival in [Arrival::InPlace, Arrival::Posted] {
        let mut hosts = cluster(2, arrival);
        assert!(hosts[1].send(0, 0, b"before"));
        settle(&mut hosts);
        hosts[0].pipes.panics_at_events = true;
        assert!(hosts[1].send(0, 3, b"to no part"));
        hosts[0].poll_and_panic();
        settle(&mut hosts);
        assert!(hosts[1].send(0, 1, b"behind"));
        settle(&mut hosts);
        let Host { pipes, .. } = hosts.remove(0);
        drop(hosts);
        reuse_freed_memory();
        assert_eq!(texts(&pipes.got), [b"before", b"behind"]);
    }
}

#[test]
fn a_host_that_hands_back_another_delivery_has_kept_the_one_that_it_got() {
    for arrival in [Arrival::InPlace, Arrival::Posted] {
        let mut hosts = cluster(2, arrival);
        hosts[0].pipes.moods.extend([Mood::Takes, Mood::Swaps, Mood::Refuses]);
        for text in [b"first.", b"second", b"third."] {
            assert!(hosts[1].send(0, 0, text));
        }
        settle(&mut hosts);
        assert_eq!(texts(&hosts[0].pipes.got), [b"second", b"third."]);
        assert!(hosts[0].engine.leaks());
        hosts[0].release_but(0);
        assert!(!hosts[0].engine.leaks(), "all are given back");
        assert_eq!(hosts[0].foreign(), 0);
        settle(&mut hosts);
        assert_eq!(hosts[0].engine.recv_row(node(1)).unwrap().space.used(), 0);
    }
}

#[test]
fn deliveries_given_to_another_engine_are_left_alone() {
    let (mut ours, mut theirs) = (cluster(2, Arrival::InPlace), cluster(2, Arrival::InPlace));
    for hosts in [&mut ours, &mut theirs] {
        assert!(hosts[1].send(0, 0, b"a message"));
        settle(hosts);
    }
    let delivery = ours[0].pipes.got.pop().unwrap();
    assert!(theirs[0].engine.share(&delivery).is_none());
    theirs[0].engine.release(delivery);
    assert_eq!(theirs[0].foreign(), 1);
    assert!(theirs[0].engine.leaks() && ours[0].engine.leaks(), "each has a delivery out");
    assert_eq!(theirs[0].engine.recv_row(node(1)).unwrap().space.used(), 1);
    let Host { pipes, .. } = theirs.remove(0);
    drop((ours, theirs));
    reuse_freed_memory();
    assert_eq!(texts(&pipes.got), [b"a message"]);
}

#[test]
fn a_message_of_another_engine_is_not_sent_by_this_one() {
    let (mut ours, mut theirs) = (cluster(2, Arrival::Posted), cluster(2, Arrival::Posted));
    let block = ours[0].engine.open(node(1)).unwrap();
    let own = theirs[0].engine.open(node(1)).unwrap();
    assert_eq!(block.dest(), own.dest());
    theirs[0].engine.submit(block);
    assert_eq!(theirs[0].foreign(), 1);
    assert!(theirs[0].engine.leaks(), "its own block is still open");
    theirs[0].engine.submit(own);
    assert!(!theirs[0].engine.leaks());
    settle(&mut theirs);
    drop(ours);
    settle(slice::from_mut(&mut theirs[0]));
}

#[test]
fn a_delivery_shared_and_dropped_keeps_its_bytes() {
    let mut hosts = cluster(1, Arrival::InPlace);
    assert!(hosts[0].send(0, 0, b"for two readers"));
    settle(&mut hosts);
    let mut host = hosts.remove(0);
    let first = host.pipes.got.pop().unwrap();
    let second = host.engine.share(&first).unwrap();
    drop(first);
    drop(host);
    reuse_freed_memory();
    assert_eq!(texts(&[second]), [b"for two readers"]);
}
