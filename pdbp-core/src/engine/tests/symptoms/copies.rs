//! Short messages that each have a block of their own, to parts that read late.

use super::super::harness::{Links, Operation, Policy, Setup, node};
use super::{ALL, BOTH, delivered, push, rounds, setup, ship};
use crate::OpenError;

/// Room for some forty copies, five of which fit a block.
fn roomy(links: Links) -> Setup {
    Setup { copies: 8, extra: 40, ..setup(links) }
}

#[test]
fn parts_that_read_late_stop_nobody_else_whom_the_same_node_sends_to() {
    for links in ALL {
        let mut c = Setup { nodes: 3, ..roomy(links) }.ready();
        for sent in 1..=20 {
            for to in [1, 2] {
                ship(&mut c, 0, to);
            }
            rounds(&mut c, 6);
            assert_eq!(delivered(&c), 2 * sent, "{links:?}");
        }
        for to in [1, 2] {
            let initial = c.setup.initial;
            let engine = &c.host(to).engine;
            assert!(engine.recv_row(node(0)).unwrap().space.used() <= initial);
            assert!(engine.counters().copied >= 18 && (4..=8).contains(&engine.copy_blocks()));
        }
        c.settle();
        assert_eq!((c.host(1).engine.copy_blocks(), c.host(2).engine.copy_blocks()), (0, 0));
        c.close();
    }
}

#[test]
fn parts_of_one_node_do_not_stop_each_other() {
    let mut c = Setup { nodes: 1, ..roomy(Links::InPlace) }.ready();
    for sent in 1..=20 {
        ship(&mut c, 0, 0);
        rounds(&mut c, 3);
        assert_eq!(delivered(&c), sent);
    }
    c.settle();
    c.close();
}

/// Memory is bounded: once it is used up, a reader stops its sender.
#[test]
fn without_room_for_copies_a_reader_stops_its_sender() {
    for links in BOTH {
        let mut c = roomy(links).ready();
        let mut sent = 0;
        while let Ok(block) = c.host(0).engine.open(node(1)) {
            c.host(0).engine.submit(block);
            ship(&mut c, 0, 1);
            rounds(&mut c, 6);
            sent += 1;
            assert!(sent < 200, "there is no end of copies");
        }
        assert_eq!(c.host(0).engine.open(node(1)).unwrap_err(), OpenError::WouldBlock);
        let copied = c.host(1).engine.counters().copied;
        assert!((30..100).contains(&copied) && c.host(1).engine.copy_blocks() == 8, "{copied}");
        c.settle();
        c.close();
    }
}

#[test]
fn blocks_that_rows_need_are_not_taken_for_copies() {
    let mut c = Setup { extra: 1, ..roomy(Links::Posted) }.ready();
    for _ in 0..60 {
        ship(&mut c, 0, 1);
        rounds(&mut c, 6);
    }
    assert!(c.host(1).engine.copy_blocks() <= 1);
    c.settle();
    c.close();
}

#[test]
fn long_messages_and_those_of_a_row_that_grows_are_read_in_place() {
    let setup = Setup { policy: Policy::Adaptive, ..roomy(Links::InPlace) };
    let mut c = setup.ready();
    // The row grows from 2 to 8.
    for _ in 0..4 {
        ship(&mut c, 0, 1);
        rounds(&mut c, 6);
    }
    assert_eq!((delivered(&c), c.host(1).engine.counters().copied), (4, 0));
    c.settle();
    let mut c = roomy(Links::InPlace).ready();
    for _ in 0..5 {
        for length in [220, 220] {
            c.apply(Operation::Push {
                node: 0,
                source: 0,
                to: 1,
                dest: 0,
                length,
                urgent: false,
                segment: false,
            });
        }
        c.submit(0, 1, false);
        rounds(&mut c, 6);
    }
    assert_eq!(c.host(1).engine.counters().copied, 0);
    c.settle();
    c.close();
}

/// Commands overtake messages, regardless of what was copied.
#[test]
fn commands_are_copied_like_messages() {
    for links in BOTH {
        let mut c = roomy(links).ready();
        for _ in 0..8 {
            ship(&mut c, 0, 1);
            rounds(&mut c, 6);
            push(&mut c, 0, 1, true);
            c.submit(0, 1, true);
            rounds(&mut c, 6);
        }
        assert_eq!(delivered(&c), 16);
        c.settle();
        c.close();
    }
}
