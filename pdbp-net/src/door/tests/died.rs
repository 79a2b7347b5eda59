//! Processes that end without a goodbye.

use super::*;

fn options() -> Options {
    Options { outage: 10 * SOON, linger: Duration::ZERO, plain: true, ..super::options() }
}

/// An open cluster, and a process that has joined it and that its founder has called.
fn open_pair((listen, own): (&str, IpAddr)) -> (Net, Net) {
    let founder = Net::found(listen, 3, &options()).unwrap();
    let address = SocketAddr::new(own, founder.address().port()).to_string();
    let joined = Net::join(&address, None, &options()).unwrap();
    called(founder, joined)
}

/// The same as a cluster of fixed size.
fn closed_pair(at: (&str, IpAddr)) -> (Net, Net) {
    let (founder, joined) = two_nodes(at, options);
    called(founder, joined)
}

fn called(mut founder: Net, mut joined: Net) -> (Net, Net) {
    until("the link is up, and the founder has called it", || {
        for net in [&mut founder, &mut joined] {
            assert!(matches!(net.poll_completion(), None | Some(Completion::PeerRestored { .. })));
        }
        let is_up = |net: &Net, peer: usize| net.stats().links[peer].state == LinkState::Up;
        let is_called = founder.door.shared().members.get().unwrap().liveness().has_answered(1, 1);
        is_up(&founder, 1) && is_up(&joined, 0) && is_called
    });
    assert_eq!(joined.stats().door.refused, 0, "a founder that calls is no stranger");
    (founder, joined)
}

/// As if by SIGKILL: its connections end without a goodbye, and nobody listens any more.
fn die(mut net: Net) {
    net.cut(0);
}

#[test]
fn a_process_of_the_same_host_that_has_died_is_not_waited_for() {
    let founders = [Some(LOOPBACK), all_addresses()].into_iter().flatten();
    for (mut founder, joined) in founders.flat_map(|at| [open_pair(at), closed_pair(at)]) {
        die(joined);
        let mut failed = None;
        until("the link has failed", || {
            if let Some(Completion::PeerFailed { peer, cause }) = founder.poll_completion() {
                failed = Some((peer, cause));
            }
            failed.is_some()
        });
        let (peer, cause) = failed.unwrap();
        assert!(matches!(cause, Some(NetError::Died)), "{cause:?}");
        assert!(founder.has_ended(peer) && founder.is_absent(peer));
    }
}

/// The founder has not been polled since, and still considers it alive.
#[test]
fn who_joins_does_not_wait_for_a_connection_to_one_that_has_died() {
    let (founder, joined) = open_pair(LOOPBACK);
    die(joined);
    let net = Net::join(&founder.address().to_string(), None, &options()).unwrap();
    let peer = |index| pdbp_core::id::NodeId::new(index).unwrap();
    assert_eq!(net.capabilities().node, peer(2));
    // At once, unless the thread of its door has no processor.
    until("one is absent", || net.is_absent(peer(1)) && !net.is_absent(peer(0)));
}

/// A lost connection does not mean a dead process: the founder calls it, and it answers.
#[test]
fn a_process_that_has_lost_its_connection_only_is_not_taken_for_dead() {
    for (mut founder, mut joined) in [open_pair(LOOPBACK), closed_pair(LOOPBACK)] {
        for _ in 0..3 {
            let before = founder.stats().links[1].connections;
            founder.cut(1);
            until("there is another connection", || {
                assert!(!matches!(founder.poll_completion(), Some(Completion::PeerFailed { .. })));
                joined.poll_completion();
                founder.stats().links[1].connections > before
            });
        }
    }
}
