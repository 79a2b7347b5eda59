//! What arrives where: sets, streams, commands, messages without a destination.

use std::boxed::Box;
use std::panic::{self, AssertUnwindSafe};
use std::vec::Vec;

use super::super::harness::{Host, Links, Operation, Setup, node, part};
use super::{ALL, BOTH, delivered, push, rounds, setup, ship};
use crate::cdu::{CduClass, Route, SegmentHeader, flag};
use crate::engine::{Delivery, DeliveryKind, PrivatePipes, StreamTag};
use crate::id::{PipeId, StreamNo};
use crate::outbox::{Hop, Outgoing, SendError};
use crate::pipe::{PipeError, PipeKind};
use crate::{Event, OpenError};

#[test]
fn a_full_private_pipe_blocks_only_its_row() {
    for links in ALL {
        let mut c = Setup { nodes: 3, pipe: 1, ..setup(links) }.ready();
        for _ in 0..2 {
            ship(&mut c, 0, 1);
        }
        rounds(&mut c, 4);
        assert_eq!(c.host(1).engine.recv_row(node(0)).unwrap().waiting, 1);
        // A message for the other part from another node, so in another row.
        c.apply(Operation::Push {
            node: 2,
            source: 0,
            to: 1,
            dest: 1,
            length: 5,
            urgent: false,
            segment: false,
        });
        c.submit(2, 1, false);
        rounds(&mut c, 4);
        assert_eq!(delivered(&c), 2);
        assert_eq!(
            c.host(1).engine.recv_row(node(0)).unwrap().messages,
            2,
            "counted once, however often tried"
        );
        c.settle();
        assert_eq!(delivered(&c), 3);
    }
}

#[test]
fn commands_overtake_messages_that_wait() {
    for links in BOTH {
        let mut c = Setup { initial: 4, row: 4, ..setup(links) }.ready();
        for _ in 0..3 {
            ship(&mut c, 0, 1);
        }
        rounds(&mut c, 3);
        push(&mut c, 0, 1, true);
        c.submit(0, 1, true);
        rounds(&mut c, 3);
        let kinds: Vec<_> = c.host(1).pipes.queues[0].iter().map(|(d, _)| d.kind()).collect();
        let message = DeliveryKind::Messages { urgent: false };
        assert_eq!(
            kinds,
            [message, message, message, DeliveryKind::Messages { urgent: true }],
            "the kept element"
        );
        // And in the queue.
        let mut c = Setup { initial: 4, row: 4, ..setup(links) }.ready();
        c.apply(Operation::Busy { from: 0, to: 1, times: 2 });
        for _ in 0..2 {
            ship(&mut c, 0, 1);
        }
        push(&mut c, 0, 1, true);
        c.submit(0, 1, true);
        rounds(&mut c, 3);
        let first = c.host(1).pipes.queues[0].front().map(|(d, _)| d.kind());
        assert_eq!(first, Some(DeliveryKind::Messages { urgent: true }));
        c.settle();
    }
}

#[test]
fn a_set_travels_once_per_node_and_reaches_each_part_once() {
    for links in BOTH {
        let mut c = setup(links).ready();
        c.apply(Operation::PushSet { node: 0, source: 0, length: 50, mask: 0xFF });
        c.submit(0, 0, false);
        c.submit(0, 1, false);
        rounds(&mut c, 4);
        assert_eq!(delivered(&c), 4);
        assert_eq!(c.host(0).engine.send_row(node(1)).unwrap().messages, 1);
        assert_eq!(c.host(1).engine.recv_row(node(0)).unwrap().space.used(), 1, "one block, two readers");
        c.read(1, 0, 1, false);
        assert_eq!(c.host(1).engine.recv_row(node(0)).unwrap().space.used(), 1, "one reader is left");
        c.read(1, 1, 1, false);
        assert_eq!(c.host(1).engine.recv_row(node(0)).unwrap().space.used(), 0);
        c.settle();
    }
}

#[test]
fn a_stream_creates_its_mapping_and_removes_it() {
    for links in BOTH {
        let mut c = setup(links).ready();
        for last in [false, false, true] {
            let segment = Operation::Segment { node: 0, source: 0, to: 1, dest: 1, length: 100, last };
            c.apply(segment);
            rounds(&mut c, 3);
            let mappings: Vec<_> = c.host(1).engine.stream_mappings().map(|m| (m.source, m.part)).collect();
            assert_eq!(mappings, if last { Vec::new() } else { [(node(0), 1)].to_vec() });
            c.read(1, 1, 1, false);
            rounds(&mut c, 3);
        }
        assert_eq!(delivered(&c), 3);
        assert_eq!(c.host(0).engine.pipes(PipeKind::Stream).busy, 0);
        c.settle();
    }
}

#[test]
fn a_stream_pipe_used_again_before_the_last_segment_breaks_the_first_stream_aloud() {
    let mut c = setup(Links::InPlace).ready();
    c.host(1).pipes.checked = false;
    let (group, first) = c.host(0).engine.open_stream(part(0, 0), node(1)).unwrap();
    // No engine gives a pipe to another stream before that; this writer ignores the rule.
    for number in 0..2 {
        let engine = &mut c.host(0).engine;
        let mut block = engine.open(node(1)).unwrap();
        let stream = StreamNo(first.0 + number as u32);
        let tag = StreamTag { group, number: stream, segment: 0, dest: part(1, 0), flags: flag::FIRST };
        block.set_stream(tag);
        block.push(Route::new(CduClass::Stream, 0, part(0, 0), part(1, 0)), b"x").unwrap();
        engine.submit(block);
        rounds(&mut c, 2);
        let broken =
            c.host(1).pipes.events.iter().filter(|e| matches!(e, Event::StreamBroken { .. })).count();
        assert_eq!(broken, number);
    }
    c.settle_unchecked();
}

/// No engine sends this, but a peer that is not trusted may.
#[test]
fn a_stream_whose_first_segment_comes_again_ends_for_its_reader() {
    // The part and flags of the second segment with number 0.
    for (dest, flags) in [(0, flag::FIRST), (0, 0), (1, flag::FIRST)] {
        let mut c = setup(Links::InPlace).ready();
        c.host(1).pipes.checked = false;
        let (group, number) = c.host(0).engine.open_stream(part(0, 0), node(1)).unwrap();
        for (dest, flags) in [(0, flag::FIRST), (dest, flags)] {
            let engine = &mut c.host(0).engine;
            let mut block = engine.open(node(1)).unwrap();
            block.set_stream(StreamTag { group, number, segment: 0, dest: part(1, dest), flags });
            block.push(Route::new(CduClass::Stream, 0, part(0, 0), part(1, dest)), b"x").unwrap();
            engine.submit(block);
            rounds(&mut c, 2);
        }
        let host = c.host(1);
        let kinds =
            [0, 1].map(|part| host.pipes.queues[part].iter().map(|(d, _)| d.kind()).collect::<Vec<_>>());
        let first = DeliveryKind::Stream { number, segment: 0, last: false, aborted: false };
        let broken = host.pipes.events.iter().filter_map(|event| match event {
            Event::StreamBroken { mapping } => Some((mapping.part, mapping.segment)),
            _ => None,
        });
        let broken: Vec<_> = broken.collect();
        if dest == 0 {
            let end = DeliveryKind::Stream { number, segment: 1, last: true, aborted: true };
            assert_eq!((kinds, broken), ([[first, end].to_vec(), Vec::new()], Vec::new()), "{flags}");
            assert_eq!(host.engine.stream_mappings().count(), 0);
        } else {
            assert_eq!((kinds, broken), ([[first].to_vec(), [first].to_vec()], [(0, 1)].to_vec()));
        }
        c.host(0).engine.close_stream((group, number)).unwrap();
        c.settle_unchecked();
    }
}

/// The writer had no block with which to report it, and the reader waited for the next stream of the same pipe.
#[test]
fn the_reader_of_a_stream_that_is_given_up_is_told_also_where_there_was_no_block_for_it() {
    for (links, to) in [(Links::InPlace, 1), (Links::Posted, 1), (Links::Posted, 0)] {
        let mut c = Setup { pipe: 1, ..setup(links) }.ready();
        let (group, number) = c.host(0).engine.open_stream(part(0, 0), node(to)).unwrap();
        let mut segments = 0;
        while let Ok(mut block) = c.host(0).engine.open(node(to)) {
            let flags = if segments == 0 { flag::FIRST } else { 0 };
            block.set_stream(StreamTag { group, number, segment: segments, dest: part(to, 0), flags });
            block.push(Route::new(CduClass::Stream, 0, part(0, 0), part(to, 0)), b"x").unwrap();
            c.host(0).engine.submit(block);
            segments += 1;
            c.host(to).pipes.checked = false;
            rounds(&mut c, 2);
        }
        let engine = &mut c.host(0).engine;
        engine.close_stream((group, number)).unwrap();
        assert_eq!(
            engine.close_stream((group, number)),
            Err(PipeError::NotBound(engine.pipes.stream_pipe(group)))
        );
        assert_eq!(engine.pipes(PipeKind::Stream).busy, 1, "until its reader is told");
        let mut ended = None;
        for _ in 0..8 * segments {
            if let Some((delivery, _)) = c.host(to).pipes.queues[0].front() {
                ended = Some(delivery.kind());
            }
            c.read(to, 0, 1, false);
            rounds(&mut c, 2);
        }
        let last = DeliveryKind::Stream { number, segment: segments, last: true, aborted: true };
        assert_eq!(ended, Some(last));
        assert_eq!(c.host(0).engine.pipes(PipeKind::Stream).busy, 0);
        c.settle_unchecked();
    }
}

#[test]
fn the_reader_of_a_stream_learns_that_the_part_which_sends_it_is_freed() {
    let mut c = setup(Links::InPlace).ready();
    c.host(1).pipes.checked = false;
    let (group, number) = c.host(0).engine.open_stream(part(0, 0), node(1)).unwrap();
    let engine = &mut c.host(0).engine;
    let mut block = engine.open(node(1)).unwrap();
    block.set_stream(StreamTag { group, number, segment: 0, dest: part(1, 0), flags: flag::FIRST });
    block.push(Route::new(CduClass::Stream, 0, part(0, 0), part(1, 0)), b"x").unwrap();
    engine.submit(block);
    engine.free(part(0, 0)).unwrap();
    rounds(&mut c, 4);
    let last = c.host(1).pipes.queues[0].back().map(|(delivery, _)| delivery.kind());
    assert_eq!(last, Some(DeliveryKind::Stream { number, segment: 1, last: true, aborted: true }));
    assert_eq!(c.host(0).engine.pipes(PipeKind::Stream).busy, 0);
    c.settle_unchecked();
}

#[test]
fn messages_for_nobody_are_counted_and_their_blocks_come_back() {
    for links in BOTH {
        let mut c = setup(links).ready();
        c.oracle.borrow_mut().lossy = true;
        for to in [0, 1] {
            let route = |dest| Route::new(CduClass::ShortMessage, 0, part(0, 0), part(to, dest));
            let engine = &mut c.host(0).engine;
            let mut mixed = engine.open(node(to)).unwrap();
            for dest in [2, 2, 77] {
                mixed.push(route(dest), b"?").unwrap();
            }
            engine.submit(mixed);
            let mut uniform = engine.open(node(to)).unwrap();
            uniform.push(route(2), b"?").unwrap();
            engine.submit(uniform);
        }
        rounds(&mut c, 4);
        for to in [0, 1] {
            assert_eq!(c.host(to).engine.counters().unroutable, 4);
            let lost = |e: &Event| match e {
                Event::Unroutable { part, messages, .. } => Some((*part, *messages)),
                _ => None,
            };
            let events: Vec<_> = c.host(to).pipes.events.iter().filter_map(lost).collect();
            assert_eq!(events, [(2, 2), (77, 1), (2, 1)]);
        }
        c.settle();
    }
}

#[test]
fn a_pipe_or_part_that_is_given_up_is_unroutable_and_its_streams_end() {
    for frees in [false, true] {
        let mut c = setup(Links::InPlace).ready();
        c.oracle.borrow_mut().lossy = true;
        c.apply(Operation::Segment { node: 0, source: 0, to: 1, dest: 0, length: 1, last: false });
        rounds(&mut c, 3);
        let engine = &mut c.host(1).engine;
        if frees {
            engine.free(part(1, 0)).unwrap();
        } else {
            engine.release_pipe(PipeId(0)).unwrap();
        }
        assert_eq!(engine.stream_mappings().count(), 0, "frees: {frees}");
        c.read(1, 0, 1, false);
        rounds(&mut c, 2);
        c.apply(Operation::Segment { node: 0, source: 0, to: 1, dest: 0, length: 1, last: true });
        ship(&mut c, 0, 1);
        rounds(&mut c, 3);
        assert_eq!(c.host(1).engine.counters().stray_segments, 1);
        assert_eq!(c.host(1).engine.counters().unroutable, 1);
        c.settle();
    }
}

#[test]
fn zero_size_messages_and_empty_blocks() {
    for links in BOTH {
        let mut c = setup(links).ready();
        for to in [0, 1] {
            for _ in 0..3 {
                c.apply(Operation::Send { node: 0, source: 0, to, dest: 1, length: 0 });
            }
            let before = c.host(0).engine.send_row(node(to)).unwrap().space.used();
            let empty = c.host(0).engine.open(node(to)).unwrap();
            c.host(0).engine.submit(empty);
            assert_eq!(
                c.host(0).engine.send_row(node(to)).unwrap().space.used(),
                before,
                "just vacant again"
            );
        }
        rounds(&mut c, 4);
        assert_eq!(delivered(&c), 6);
        c.settle();
    }
}

#[test]
fn a_message_longer_than_a_block_is_refused_by_send_and_fits_in_segments() {
    let mut c = setup(Links::InPlace).ready();
    let most = c.host(0).engine.config().longest_unsegmented();
    let route = Route::new(CduClass::ShortMessage, 0, part(0, 0), part(1, 0));
    let now = c.now;
    let bytes = std::vec![0; most + 1];
    let host = c.host(0);
    let hop = host.engine.hop(node(1)).unwrap();
    let refused = host.outbox.send(&mut host.engine, now, hop, &Outgoing::message(route, &bytes));
    assert_eq!(refused, Err(SendError::TooLong));
    assert!(!host.engine.leaks(), "the block is given back");
    let nowhere = Hop::to_node(node(9));
    assert_eq!(
        host.outbox.send(&mut host.engine, now, nowhere, &Outgoing::message(route, b"")),
        Err(SendError::Open(OpenError::NoSuchNode(node(9))))
    );
    let mut block = c.host(0).engine.open(node(1)).unwrap();
    assert!(block.reserve_segment(route, SegmentHeader::new(0, 0, bytes.len() as u64), most - 16).is_ok());
    let mut other = block;
    let mark = other.mark();
    assert!(other.push(route, b"x").is_err());
    other.rewind(mark);
    c.host(0).engine.submit(other);
    c.host(1).pipes.checked = false;
    c.settle_unchecked();
}

/// A block returns when both have released their piece, in either order.
#[test]
fn a_delivery_can_be_read_by_two() {
    for links in BOTH {
        for first in 0..2 {
            let mut c = setup(links).ready();
            ship(&mut c, 0, 1);
            rounds(&mut c, 3);
            let host = c.host(1);
            let (delivery, _) = host.pipes.queues[0].pop_front().unwrap();
            let second = host.engine.share(&delivery).unwrap();
            assert_eq!(second.bytes(), delivery.bytes());
            let mut both = [delivery, second];
            both.rotate_left(first);
            let [one, other] = both;
            host.engine.release(one);
            assert_eq!(host.engine.recv_row(node(0)).unwrap().space.used(), 1);
            host.engine.release(other);
            assert_eq!(host.engine.recv_row(node(0)).unwrap().space.used(), 0);
            assert_eq!(host.engine.counters().foreign_tokens, 0);
            c.settle();
        }
    }
}

/// A host that panics at its first delivery, and loses it.
struct Panics;

impl PrivatePipes for Panics {
    fn deliver(&mut self, _: PipeId, _: Delivery) -> Result<(), Delivery> {
        panic::resume_unwind(Box::new(()));
    }
}

/// They waited until something else was sent.
#[test]
fn blocks_that_wait_leave_also_after_a_host_has_panicked() {
    let mut c = setup(Links::InPlace).ready();
    c.oracle.borrow_mut().lossy = true;
    c.apply(Operation::Busy { from: 0, to: 1, times: u32::MAX });
    ship(&mut c, 0, 0);
    ship(&mut c, 0, 1);
    ship(&mut c, 0, 0);
    c.apply(Operation::Busy { from: 0, to: 1, times: 0 });
    let now = c.now;
    let Host { engine, .. } = c.host(0);
    assert!(panic::catch_unwind(AssertUnwindSafe(|| engine.poll(now, &mut Panics))).is_err());
    rounds(&mut c, 4);
    assert_eq!(delivered(&c), 3);
}
