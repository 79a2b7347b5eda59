//! Clusters whose connections carry HTTP and SOAP: their own links, and trunks.

use pdbp::{Codec, Framing, Node, PartKind, Settings};

use super::grid;
use super::{SOON, builder, everybody_to_everybody, run};

/// The other processes need no setting: a process accepts either framing.
#[test]
fn nodes_talk_soap_and_some_do_not() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let all = run(|| builder().framing(Framing::Soap), |node| everybody_to_everybody(&node));
    let of_one = AtomicBool::new(false);
    let mixed = || {
        let framing = if of_one.swap(true, Ordering::Relaxed) { Framing::Tcp } else { Framing::Soap };
        builder().framing(framing).codec(Codec::Auto)
    };
    assert_eq!(run(mixed, |node| everybody_to_everybody(&node)), all);
}

#[test]
fn cuts_of_a_trunk_of_soap_lose_and_double_nothing() {
    grid::cuts_lose_and_double_nothing("http");
}

fn asks_and_is_answered(clusters: &(pdbp::Cluster, pdbp::Cluster)) {
    let in_west = |node: Node| {
        let part = node.register("worker", PartKind::Cpu).unwrap();
        let message = part.recv_timeout(SOON).unwrap();
        part.send(message.source(), &message.iter().rev().copied().collect::<Vec<_>>()).unwrap();
        part.flush();
    };
    let in_east = |node: Node| {
        let part = node.register("asker", PartKind::Cpu).unwrap();
        let worker = part.find("worker@node1.west", SOON).unwrap();
        let long: Vec<u8> = (0..1_000_000).map(|i| i as u8).collect();
        part.send(worker, &long).unwrap();
        assert!(part.recv_timeout(SOON).unwrap().iter().eq(long.iter().rev()));
    };
    grid::run(clusters, in_west, in_east);
}

#[test]
fn a_trunk_is_called_by_http() {
    let west = grid::builder("west").listen("127.0.0.1:0".to_owned()).start().unwrap();
    let at = format!("http://{}", west.address().unwrap());
    let east = grid::builder("east").trunk("west", &at).start().unwrap();
    assert_eq!(shown(east.settings()), format!("west={at}"));
    asks_and_is_answered(&(west, east));
}

fn shown(settings: &Settings) -> String {
    settings.entries().find(|entry| entry.key == "trunks").unwrap().value
}

/// The cluster `west` is not found, for a reason that is known once somebody has tried to dial it.
#[cfg(feature = "tls")]
fn fails_with(east: &pdbp::Cluster, why: &str) {
    let node = east.node(0).unwrap();
    let find = || node.find("worker@node1.west", std::time::Duration::from_millis(300)).unwrap_err();
    grid::until(|| find().to_string().contains(why).then_some(()));
}

/// `https` encrypts where `tls` is not set, and finds out whether the other end does.
#[cfg(feature = "tls")]
#[test]
fn a_trunk_is_called_by_https_and_nothing_falls_back() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    let west = |tls| {
        let west = grid::builder("west").listen("127.0.0.1:0".to_owned()).token_file(token.clone()).tls(tls);
        west.start().unwrap()
    };
    let east = |west: &pdbp::Cluster, scheme: &str| {
        let at = format!("{scheme}://{}", west.address().unwrap());
        grid::builder("east").trunk("west", at).token_file(token.clone()).start().unwrap()
    };
    let encrypted = west(pdbp::Tls::Token);
    let plain = east(&encrypted, "http");
    fails_with(&plain, "encrypts its connections");
    drop(plain);
    let east_of_it = east(&encrypted, "https");
    asks_and_is_answered(&(encrypted, east_of_it));
    let plain = west(pdbp::Tls::Off);
    for scheme in ["https", "tls"] {
        let east = east(&plain, scheme);
        fails_with(&east, "no TLS with the process at");
    }
}
