//! Credit and space: who waits for whom, and which rows grow and shrink.

use super::super::harness::{Cluster, Links, Operation, Policy, Setup, node};
use super::{ALL, BOTH, delivered, rounds, setup, ship};
use crate::OpenError;

#[test]
fn an_exhausted_row_would_block_and_recovers_when_the_peer_reads() {
    for links in BOTH {
        let mut c = setup(links).ready();
        let mut taken = 0;
        loop {
            ship(&mut c, 0, 1);
            if delivered(&c) + c.host(0).engine.send_row(node(1)).unwrap().blocks == taken {
                break;
            }
            taken = delivered(&c) + c.host(0).engine.send_row(node(1)).unwrap().blocks;
            assert!(taken < 100);
        }
        assert_eq!(c.host(0).engine.open(node(1)).unwrap_err(), OpenError::WouldBlock);
        assert!(c.host(0).engine.send_row(node(1)).unwrap().stalls > 0);
        assert!(
            c.host(0).engine.open(node(0)).is_ok_and(|b| {
                c.host(0).engine.submit(b);
                true
            }),
            "another row"
        );
        c.settle();
        let block = c.host(0).engine.open(node(1)).unwrap();
        c.host(0).engine.submit(block);
    }
}

#[test]
fn a_reader_that_does_not_read_stops_its_sender_and_nobody_else() {
    for links in ALL {
        let mut c = Setup { nodes: 3, ..setup(links) }.ready();
        let mut stuck = 0;
        for _ in 0..40 {
            ship(&mut c, 0, 1);
            ship(&mut c, 0, 2);
            rounds(&mut c, 3);
            c.read(2, 0, 99, false);
            stuck = c.host(1).engine.recv_row(node(0)).unwrap().space.used();
        }
        assert_eq!(stuck, 2, "the credit of the start");
        assert_eq!(c.host(2).engine.recv_row(node(0)).unwrap().blocks, 40);
        c.settle();
    }
}

/// A reader that keeps half of its credit while it waits for the rest of a long message must get the rest.
#[test]
fn a_reader_that_keeps_blocks_is_told_of_and_gets_all_its_credit() {
    let mut c = Setup { initial: 8, row: 8, copies: 0, ..setup(Links::Posted) }.ready();
    for _ in 0..8 {
        ship(&mut c, 0, 1);
    }
    rounds(&mut c, 4);
    assert_eq!(delivered(&c), 7, "one element is kept for commands");
    c.read(1, 0, 5, true);
    c.read(1, 0, 2, false);
    rounds(&mut c, 6);
    assert_eq!(delivered(&c), 8, "two blocks were given back, but the sender does not hear of it");
    for _ in 0..2 {
        ship(&mut c, 0, 1);
    }
    rounds(&mut c, 6);
    assert!(delivered(&c) >= 9);
    c.settle();
}

/// A row that was shrunk while blocks were in flight has more elements in use than real ones. Blocks for control messages must
/// still be posted.
#[test]
fn control_gets_through_to_a_reader_that_keeps_more_blocks_than_its_row_has() {
    let base = setup(Links::Posted);
    let mut c = Setup { policy: Policy::Miser, initial: 4, row: 4, ..base }.ready();
    c.apply(Operation::Gate { from: 0, to: 1, closed: true });
    for _ in 0..3 {
        ship(&mut c, 0, 1);
    }
    c.poll(0);
    c.now = c.now.after(100_000);
    c.poll(1);
    assert_eq!(c.host(1).engine.recv_row(node(0)).unwrap().space.real(), 1);
    c.apply(Operation::Gate { from: 0, to: 1, closed: false });
    rounds(&mut c, 3);
    for generation in 1..20 {
        for i in 0..2 {
            assert_eq!(c.host(i).engine.arrive(), generation);
        }
        rounds(&mut c, 4);
        assert!((0..2).all(|i| c.host(i).engine.barrier_passed(generation)), "barrier {generation}");
    }
    c.settle();
}

/// A row that was shrunk to nothing could never learn of a block again.
#[test]
fn no_row_is_shrunk_to_nothing() {
    for links in BOTH {
        let mut c = Setup { policy: Policy::Miser, ..setup(links) }.ready();
        for _ in 0..20 {
            c.now = c.now.after(20_000);
            rounds(&mut c, 1);
        }
        for peer in 0..2 {
            assert_eq!(c.host(0).engine.send_row(node(peer)).unwrap().space.real(), 1);
        }
        assert_eq!(c.host(0).engine.recv_row(node(1)).unwrap().space.real(), 1);
        for _ in 0..5 {
            ship(&mut c, 0, 1);
            c.settle();
        }
    }
}

/// A policy may return anything; rows and pool keep their bounds.
#[test]
fn a_policy_that_asks_for_everything_gets_what_there_is() {
    for links in BOTH {
        let mut c = Setup { policy: Policy::Glutton, extra: 100, ..setup(links) }.ready();
        for _ in 0..30 {
            ship(&mut c, 0, 1);
            c.poll(0);
            c.poll(1);
        }
        assert_eq!(c.host(0).engine.send_row(node(1)).unwrap().space.real(), c.setup.row);
        assert_eq!(c.host(1).engine.recv_row(node(0)).unwrap().space.real(), c.setup.row);
        c.settle();
    }
}

#[test]
fn idle_rows_help_one_that_starves() {
    let mut c =
        Setup { nodes: 3, policy: Policy::Adaptive, initial: 4, row: 16, extra: 0, ..setup(Links::InPlace) }
            .ready();
    for peer in [0, 2] {
        assert_eq!(c.host(0).engine.send_row(node(peer)).unwrap().space.real(), 4);
    }
    for _ in 0..8 {
        ship(&mut c, 0, 1);
    }
    let space = |c: &mut Cluster, peer| c.host(0).engine.send_row(node(peer)).unwrap().space.real();
    assert_eq!(space(&mut c, 0), 2, "the least it keeps");
    assert_eq!(space(&mut c, 2), 4, "its share of the two that are free then");
    assert_eq!(space(&mut c, 1), 5, "its share: one stays free for others");
    ship(&mut c, 0, 1);
    assert!(c.host(0).engine.send_row(node(1)).unwrap().exhausted > 0, "the notice of Algorithm 1");
    c.settle();
}

/// Node 0 of four, with a credit of 17 and 4 in each row. Also returns a function for the credit that its rows have.
fn short_of_credit() -> (Cluster, impl Fn(&mut Cluster) -> [u32; 3]) {
    let setup = Setup {
        policy: Policy::Adaptive,
        initial: 4,
        row: 16,
        extra: 0,
        control: 1,
        ..setup(Links::InPlace)
    };
    let mut c = Setup { nodes: 4, ..setup }.ready();
    let granted =
        |c: &mut Cluster| [1, 2, 3].map(|peer| c.host(0).engine.recv_row(node(peer)).unwrap().space.real());
    assert_eq!((c.host(0).engine.space.credit, granted(&mut c)), (7, [4, 4, 4]));
    // As if the node had 17 blocks.
    let engine = &mut c.host(0).engine;
    engine.space.credit = 5;
    for link in engine.links.iter_mut() {
        link.recv.space = link.recv.space.with_equal_part(17 / 3);
    }
    (c, granted)
}

fn two_peers_want_credit(c: &mut Cluster) {
    for _ in 0..9 {
        for peer in [1, 2] {
            ship(c, peer, 0);
            rounds(c, 3);
        }
    }
}

#[test]
fn a_row_keeps_its_equal_part_of_the_credit_when_others_want_it() {
    let (mut c, granted) = short_of_credit();
    two_peers_want_credit(&mut c);
    assert_eq!(granted(&mut c)[2], 4, "17 / 3 is more");
    c.settle();
}

#[test]
fn credit_is_collected_from_an_idle_row_when_none_is_left() {
    let (mut c, granted) = short_of_credit();
    let space = &mut c.host(0).engine.links.to_mut(node(3)).unwrap().recv.space;
    *space = space.with_equal_part(2);
    two_peers_want_credit(&mut c);
    let [one, two, idle] = granted(&mut c);
    assert_eq!(idle, 3, "no more is taken than helps");
    assert_eq!((c.host(0).engine.space.credit, one + two), (2, 12), "of 17, their shares");
    assert_eq!(delivered(&c), 12 - 3, "but the elements kept for commands, and one that came last");
    let told = c.host(3).engine.links.to(node(0)).unwrap().numbers.window;
    assert_eq!(told, 3, "its peer knows");
    // It regains what it gave up when it needs that, provided that the others have not needed it for an interval.
    c.settle();
    for _ in 0..2 {
        c.now = c.now.after(20_000);
        rounds(&mut c, 1);
    }
    for _ in 0..6 {
        ship(&mut c, 3, 0);
        rounds(&mut c, 3);
    }
    assert!(granted(&mut c)[2] > 3);
    c.settle();
}

/// After a poll that found a block from the peer, the next one may check for such blocks only.
#[test]
fn a_poll_that_ended_with_an_arrival_is_followed_by_one_that_sees_what_has_come_back() {
    let base = setup(Links::InPlace);
    let mut c = Setup { initial: 80, row: 80, capacity: 100, pipe: 100, ..base }.ready();
    (0..2).for_each(|_| ship(&mut c, 0, 1));
    rounds(&mut c, 1);
    c.read(1, 0, 1, false);
    // Together with the block that comes back, as many as one poll takes.
    (0..63).for_each(|_| ship(&mut c, 1, 0));
    assert_eq!(c.poll(0), 64);
    c.read(1, 0, 1, false);
    assert_eq!(c.host(0).engine.send_row(node(1)).unwrap().space.used(), 1);
    c.poll(0);
    assert_eq!(c.host(0).engine.send_row(node(1)).unwrap().space.used(), 0);
    c.settle();
}
