//! Blocks that were changed in flight, or that nobody sent.

use std::vec::Vec;

use super::super::harness::{Operation, Setup, node};
use super::{BOTH, Links, delivered, rounds, setup, ship};
use crate::Event;
use crate::cdu::{BlockHeader, Malformed};
use crate::engine::Checksum;

/// The last block of a link is changed in flight: no later block shows the gap, and nothing else would make the sender send.
#[test]
fn credit_of_an_unreadable_last_block_comes_back() {
    for links in BOTH {
        let mut c = Setup { checksum: Checksum::On, ..setup(links) }.ready();
        c.oracle.borrow_mut().lossy = true;
        for _ in 0..10 {
            c.apply(Operation::Flip { from: 0, to: 1, at: 3, bits: 1 });
            ship(&mut c, 0, 1);
            rounds(&mut c, 6);
        }
        let counters = c.host(1).engine.counters();
        assert_eq!((counters.malformed, counters.blocks_delivered, counters.out_of_sequence), (10, 10, 0));
        assert_eq!(delivered(&c), 0);
        let reasons = c.host(1).pipes.events.iter().filter(|e| {
            matches!(e, Event::Malformed { peer, reason: Malformed::Checksum | Malformed::Field } if *peer == node(0))
        });
        assert_eq!(reasons.count(), 10);
        let asked = c.host(0).engine.request_quiescence();
        rounds(&mut c, 20);
        assert!(c.host(0).engine.is_quiescent(asked), "the refused blocks are counted as dealt with");
        ship(&mut c, 0, 1);
        rounds(&mut c, 3);
        assert_eq!(delivered(&c), 1);
        c.settle();
    }
}

/// A valid data block from node 0 to node 1, in wire format.
fn forged(sequence: u64, data: u32) -> Vec<u8> {
    let mut bytes = std::vec![0u8; 64];
    bytes[..4].copy_from_slice(&[b'P', b'D', 1, 0]);
    bytes[6] = 1;
    bytes[16..24].copy_from_slice(&sequence.to_le_bytes());
    bytes[32] = 2;
    bytes[58..62].copy_from_slice(&data.to_le_bytes());
    assert!(BlockHeader::read(&bytes).is_ok());
    bytes
}

/// A block that was on a link when it failed arrives over the next link, on which the peer has sent as many blocks as before.
#[test]
fn a_block_of_an_old_session_is_not_taken_for_one_of_the_new() {
    let mut c = setup(Links::Posted).ready();
    ship(&mut c, 0, 1);
    rounds(&mut c, 4);
    c.cut(0, 1);
    rounds(&mut c, 4);
    c.mend(0, 1);
    rounds(&mut c, 20);
    assert!(c.net.borrow().session(0, 1) > 0);
    let (before, old) = (c.host(1).engine.counters(), c.net.borrow().on_send_complete(0, 1));
    c.net.borrow_mut().inject(0, 1, forged(old, 0));
    rounds(&mut c, 4);
    assert_eq!(c.host(1).engine.counters().stale, before.stale + 1);
    ship(&mut c, 0, 1);
    rounds(&mut c, 4);
    assert_eq!(delivered(&c), 2, "the number was still that of the next block");
    c.settle();
}

#[test]
fn forged_sequence_numbers_neither_panic_nor_silence_the_link() {
    for links in BOTH {
        let mut c = setup(links).ready();
        c.oracle.borrow_mut().lossy = true;
        for sequence in [u64::MAX, u64::MAX - 1, 1 << 40, 0, 0] {
            c.net.borrow_mut().inject(0, 1, forged(sequence, 0));
        }
        c.net.borrow_mut().inject(0, 1, b"garbage".to_vec());
        rounds(&mut c, 4);
        let counters = c.host(1).engine.counters();
        assert_eq!((counters.malformed, counters.stale), (4, 2));
        ship(&mut c, 0, 1);
        rounds(&mut c, 4);
        assert_eq!(delivered(&c), 1);
        c.settle();
    }
}
