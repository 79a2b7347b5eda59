//! Nodes with different settings.

use std::vec::Vec;

use super::super::harness::{Links, Setup, node, part};
use super::{BOTH, Cluster, Operation, delivered, rounds, setup, ship};
use crate::cdu::{CduClass, Route};
use crate::engine::{Disagreement, Setting};
use crate::{Event, OpenError};

/// What a node has reported about settings that differ.
fn told(c: &mut Cluster, i: usize) -> Vec<Disagreement> {
    let differ = |event: &Event| match event {
        Event::SettingsDiffer(disagreement) => Some(*disagreement),
        _ => None,
    };
    c.host(i).pipes.events.iter().filter_map(differ).collect()
}

fn run(c: &mut Cluster) {
    for _ in 0..100 {
        rounds(c, 1);
        c.now = c.now.after(1000);
    }
}

/// All but the number of nodes, which the transport enforces.
fn settings() -> impl Iterator<Item = Setting> {
    Setting::ALL.into_iter().filter(|setting| *setting != Setting::Nodes)
}

#[test]
fn two_nodes_that_differ_in_a_setting_are_both_told_which_and_its_values() {
    for links in BOTH {
        // If both nodes are masters, both vote.
        let settings = || settings().filter(|setting| *setting != Setting::Voters);
        for (odd, setting) in (0..2).flat_map(|odd| settings().map(move |setting| (odd, setting))) {
            let mut c = Setup { odd: Some((odd, setting)), ..setup(links) }.start();
            run(&mut c);
            let (at_0, at_1) = (told(&mut c, 0), told(&mut c, 1));
            // Where links come up again, the settings are reported in each session.
            let ([first, ..], [second, ..]) = (&at_0[..], &at_1[..]) else {
                panic!("{setting}: {at_0:?} {at_1:?}")
            };
            assert!(at_0.iter().all(|again| again == first) && at_1.iter().all(|again| again == second));
            assert!(at_0.len() <= 2 && at_1.len() <= 2);
            assert_eq!((first.peer, first.setting), (node(1), setting));
            assert_eq!(
                *second,
                Disagreement { peer: node(0), setting, own: first.theirs, theirs: first.own }
            );
            assert_ne!(first.own, first.theirs);
            assert_eq!(c.host(1).engine.disagreement(), Some(*second));
            for (here, there) in [(0, 1), (1, 0)] {
                let refused = c.host(here).engine.open(node(there)).err();
                assert_eq!(refused, Some(OpenError::PeerFailed(node(there))));
            }
            assert_eq!(c.host(0).engine.counters().malformed + c.host(1).engine.counters().malformed, 0);
            c.close();
        }
    }
}

#[test]
fn nodes_of_equal_settings_are_told_nothing() {
    for links in BOTH {
        let mut c = setup(links).ready();
        ship(&mut c, 0, 1);
        run(&mut c);
        assert_eq!((told(&mut c, 0), told(&mut c, 1), delivered(&c)), (Vec::new(), Vec::new(), 1));
        assert_eq!(c.host(0).engine.disagreement(), None);
        c.settle();
    }
}

/// Segments for a stream pipe that the receiver does not have were dropped, and only a counter showed it.
#[test]
fn what_is_sent_to_a_node_of_other_settings_is_not_lost_without_a_word() {
    for links in BOTH {
        let mut c = Setup { odd: Some((1, Setting::StreamPipes)), ..setup(links) }.start();
        let mut block = c.host(0).engine.open(node(1)).unwrap();
        block.push(Route::new(CduClass::ShortMessage, 0, part(0, 0), part(1, 0)), b"hello").unwrap();
        c.host(0).engine.submit(block);
        run(&mut c);
        let lost = |event: &&Event| matches!(event, Event::PeerFailed { undelivered: 1, .. });
        assert_eq!(c.host(0).pipes.events.iter().filter(lost).count(), 1);
        assert_eq!(c.host(0).engine.counters().undelivered, 1);
        let counters = c.host(1).engine.counters();
        assert_eq!((counters.stray_segments, counters.blocks_delivered, counters.malformed), (0, 0, 0));
        c.close();
    }
}

#[test]
fn the_cluster_goes_on_without_a_node_that_joins_with_other_settings() {
    for setting in settings() {
        let mut c =
            Setup { nodes: 3, joining: Some(2), odd: Some((2, setting)), ..setup(Links::Posted) }.start();
        run(&mut c);
        assert!(c.host(0).engine.is_ready() && c.host(1).engine.is_ready(), "{setting}");
        assert!(!c.host(0).engine.agreement().is_member(node(2)) && !c.host(2).engine.is_ready());
        for i in 0..3 {
            let other = if i == 2 { node(0) } else { node(2) };
            let said = told(&mut c, i);
            let named = said.iter().any(|d| d.peer == other && d.setting == setting);
            // With a different number of masters, it need not ask every node that is a master here.
            assert!(named || (i == 1 && setting == Setting::Masters), "{setting} at node{i}: {said:?}");
        }
        c.close();
    }
}

#[test]
fn settings_that_were_unreadable_on_their_way_are_said_again() {
    for (first, second) in [(1, 0), (0, 1), (1, 1), (2, 1), (1, 2), (3, 3)] {
        // Neither of the two talks with the other about the tables.
        let mut c = Setup { nodes: 3, ..setup(Links::Posted) }.ready();
        for (from, to, times) in [(1, 2, first), (2, 1, second)] {
            c.apply(Operation::Garble { from, to, times });
            c.apply(Operation::Send { node: from, source: 0, to, dest: 0, length: 3 });
            c.apply(Operation::Flush { node: from });
        }
        run(&mut c);
        assert_eq!(delivered(&c), 2, "{first} and {second} blocks were unreadable");
        assert_eq!(c.net.borrow().links[1][2].garbled + c.net.borrow().links[2][1].garbled, 0);
        c.settle();
    }
}

#[test]
fn settings_that_differ_are_told_though_they_were_unreadable_at_first() {
    for (first, second) in [(1, 0), (0, 1), (1, 1), (2, 3)] {
        for links in BOTH {
            let mut c = Setup { odd: Some((1, Setting::StreamPipes)), ..setup(links) }.start();
            c.apply(Operation::Garble { from: 0, to: 1, times: first });
            c.apply(Operation::Garble { from: 1, to: 0, times: second });
            run(&mut c);
            for i in 0..2 {
                assert!(!told(&mut c, i).is_empty(), "node {i}, {first} and {second} blocks were unreadable");
            }
            c.close();
        }
    }
}
