//! Barriers, quiescence, and the control messages that they use.

use std::vec::Vec;

use super::super::harness::{Host, Links, Operation, Setup, node};
use super::{ALL, push, rounds, setup, ship};
use crate::Event;
use crate::engine::LocalPart;
use crate::mesp::Control;
use crate::tables::PartKind;

#[test]
fn a_barrier_is_passed_when_all_have_arrived_also_by_those_ahead() {
    for links in ALL {
        let mut c = Setup { nodes: 3, ..setup(links) }.ready();
        let first = [0, 1].map(|i| c.host(i).engine.arrive());
        rounds(&mut c, 5);
        assert!((0..2).all(|i| !c.host(i).engine.barrier_passed(first[i])));
        assert_eq!(c.host(0).engine.barrier_missing(1).collect::<Vec<_>>(), [node(2)]);
        assert_eq!(
            c.host(1).engine.barrier_missing(1).collect::<Vec<_>>(),
            [node(0)],
            "only the master knows more"
        );
        // Node 1 goes on to the next barrier without checking.
        assert_eq!(c.host(1).engine.arrive(), 2);
        rounds(&mut c, 2);
        assert_eq!(c.host(2).engine.arrive(), 1);
        rounds(&mut c, 5);
        assert!((0..3).all(|i| c.host(i).engine.barrier_passed(1)));
        assert!((0..3).all(|i| !c.host(i).engine.barrier_passed(2)));
        c.host(0).engine.arrive();
        c.host(2).engine.arrive();
        rounds(&mut c, 5);
        assert!((0..3).all(|i| c.host(i).engine.barrier_passed(2)));
    }
}

#[test]
fn quiet_waits_for_what_a_full_pipe_holds_up_and_for_open_blocks() {
    for links in ALL {
        let mut c = Setup { nodes: 3, pipe: 1, ..setup(links) }.ready();
        ship(&mut c, 1, 2);
        ship(&mut c, 1, 2);
        let asked = [0, 1, 2].map(|i| c.host(i).engine.request_quiescence());
        rounds(&mut c, 20);
        assert!((0..3).all(|i| !c.host(i).engine.is_quiescent(asked[i])), "a message has not been delivered");
        push(&mut c, 2, 0, false);
        c.read(2, 0, 1, false);
        rounds(&mut c, 20);
        assert!((0..3).all(|i| !c.host(i).engine.is_quiescent(asked[i])), "a block is at its writer");
        assert!(c.host(2).pipes.events.iter().any(|e| matches!(e, Event::FlushWanted)));
        c.submit(2, 0, false);
        rounds(&mut c, 20);
        assert!((0..3).all(|i| c.host(i).engine.is_quiescent(asked[i])));
        c.settle();
    }
}

/// One wave can count as many blocks delivered as sent while a message is in flight: node 1 counts, then sends to node 2, which
/// counts that message as delivered, and the sum hides node 2's own message that is held up.
#[test]
fn quiet_is_not_told_by_counts_that_agree_by_chance() {
    for links in ALL {
        let mut c = Setup { nodes: 3, ..setup(links) }.ready();
        c.apply(Operation::Gate { from: 2, to: 1, closed: true });
        ship(&mut c, 2, 1);
        c.poll(2);
        let asked = c.host(0).engine.request_quiescence();
        rounds(&mut c, 6);
        // A wave in which nodes 0 and 1 have counted, and node 2 has not.
        c.apply(Operation::Gate { from: 0, to: 2, closed: true });
        rounds(&mut c, 6);
        ship(&mut c, 1, 2);
        c.poll(1);
        c.poll(2);
        c.apply(Operation::Gate { from: 0, to: 2, closed: false });
        c.poll(2);
        c.poll(0);
        assert!(!c.host(0).engine.is_quiescent(asked));
        rounds(&mut c, 20);
        assert!(!c.host(0).engine.is_quiescent(asked));
        c.apply(Operation::Gate { from: 2, to: 1, closed: false });
        rounds(&mut c, 20);
        assert!(c.host(0).engine.is_quiescent(asked));
        c.settle();
    }
}

/// A node whose lease had expired while the request was in flight did not answer it, and nobody asked again.
#[test]
fn quiet_comes_though_a_node_is_asked_for_its_counts_when_its_lease_has_run_out() {
    for links in ALL {
        let mut c = Setup { nodes: 3, lease: 40_000, ..setup(links) }.ready();
        // So that only the request is in flight, and the others follow in one block.
        rounds(&mut c, 6);
        c.apply(Operation::Gate { from: 0, to: 2, closed: true });
        let asked = c.host(1).engine.request_quiescence();
        c.run(1000, |c| c.hosts[2].as_ref().is_some_and(|host| host.engine.master().is_none()));
        assert!(!c.host(0).engine.has_failed(node(2)) && !c.host(1).engine.is_quiescent(asked));
        // A message that the node cannot use does not count as one from a wrong sender.
        let Host { engine, pipes, .. } = c.host(2);
        engine.handle_control(crate::routing::LinkId::from_index(0), Control::Quiet { number: 0 }, pipes);
        assert_eq!(engine.counters().misdirected, 0);
        c.apply(Operation::Gate { from: 0, to: 2, closed: false });
        rounds(&mut c, 20);
        assert!(c.host(1).engine.is_quiescent(asked));
        c.settle();
    }
}

#[test]
fn only_the_master_says_that_a_barrier_is_passed() {
    let mut c = Setup { nodes: 3, ..setup(Links::InPlace) }.ready();
    c.oracle.borrow_mut().lossy = true;
    let generation = c.host(1).engine.arrive();
    c.host(2).engine.queue_control(crate::routing::LinkId::from_index(1), Control::Released { generation });
    rounds(&mut c, 4);
    assert!(!c.host(1).engine.barrier_passed(generation));
    assert_eq!(c.host(1).engine.counters().misdirected, 1);
}

/// A peer that takes no control blocks must not hold all of them.
#[test]
fn one_deaf_peer_does_not_stop_the_others_barrier() {
    for control in [1, 3, 8] {
        let mut c = Setup { nodes: 4, control, ..setup(Links::InPlace) }.ready();
        c.apply(Operation::Busy { from: 0, to: 3, times: u32::MAX });
        let quiet = c.host(2).engine.request_quiescence();
        rounds(&mut c, 10);
        assert!(!c.host(2).engine.is_quiescent(quiet));
        c.host(2).engine.register("late", PartKind::Cpu).unwrap();
        rounds(&mut c, 40);
        if control > 1 {
            assert!(c.host(1).engine.lookup(node(2), "late").is_some());
        }
        c.apply(Operation::Busy { from: 0, to: 3, times: 0 });
        rounds(&mut c, 80);
        assert!(c.host(2).engine.is_quiescent(quiet));
        assert_eq!(c.host(2).engine.local_part(2), LocalPart::Registered);
        c.settle();
    }
}

/// Requests for leases may be held up behind a lot of data, which shows as well that the node lives.
#[test]
fn a_node_whose_data_arrives_is_not_declared_down_for_want_of_requests() {
    for links in ALL {
        let lease = 40_000;
        let mut c = Setup { nodes: 3, lease, ..setup(links) }.ready();
        c.net.borrow_mut().links[1][0].garbled = u32::MAX;
        c.oracle.borrow_mut().lossy = true;
        let began = c.now;
        while c.now.since(began) < 4 * lease {
            ship(&mut c, 1, 0);
            for _ in 0..20 {
                rounds(&mut c, 1);
                c.now = c.now.after(100);
            }
            c.read(0, 0, 1, false);
        }
        assert!(c.host(0).engine.agreement().is_member(node(1)), "{links:?}");
        // Without data it is down soon.
        c.run(1000, |c| c.hosts[0].as_ref().is_some_and(|host| !host.engine.agreement().is_member(node(1))));
    }
}
