//! One test per behaviour that a user can see, and one per bug that was found, named for its symptom.

use std::format;
use std::string::ToString;
use std::vec::Vec;

use super::harness::{Cluster, Operation, PARTS, Policy, Setup, node, part};
use crate::cdu::{BlockHeader, CduClass, Malformed, Route, SegmentHeader, flag};
use crate::engine::{Checksum, DeliveryKind, LocalPart, RegisterError, SendError, StreamTag};
use crate::id::{NodeId, PipeId};
use crate::mesp::Control;
use crate::pipe::{PipeError, PipeKind};
use crate::tables::{NodeKind, PartKind};
use crate::umb::HeapMemory;
use crate::{Arrival, Config, ConfigError, Engine, Event, OpenError, Storage};

const BOTH: [Arrival; 2] = [Arrival::InPlace, Arrival::Posted];

fn setup(arrival: Arrival) -> Setup {
    Setup { nodes: 2, arrival, policy: Policy::Fixed, ..Setup::default() }
}

fn push(c: &mut Cluster, from: usize, to: usize, urgent: bool) {
    c.apply(Operation::Push { node: from, source: 0, to, dest: 0, length: 9, urgent, segment: false });
}

/// One block with one message.
fn ship(c: &mut Cluster, from: usize, to: usize) {
    push(c, from, to, false);
    c.submit(from, to, false);
}

fn rounds(c: &mut Cluster, n: usize) {
    for _ in 0..n {
        for i in c.live() {
            c.poll(i);
        }
    }
}

fn delivered(c: &Cluster) -> u64 {
    c.oracle.borrow().delivered
}

#[test]
fn every_node_knows_every_part_by_name() {
    for arrival in BOTH {
        let mut c = Setup { nodes: 4, arrival, ..Setup::default() }.ready();
        for i in 0..4 {
            let engine = &c.host(i).engine;
            assert_eq!(engine.nodes().count(), 4);
            assert_eq!(engine.node_named("n2"), Some(node(2)));
            assert_eq!(engine.lookup(node(3), "p1").map(|p| p.id), Some(part(3, 1)));
            assert!(engine.lookup(node(3), "p2").is_none());
            assert_eq!(engine.part(part(1, 0)).unwrap().name.as_str(), "p0");
        }
    }
}

#[test]
fn names_are_refused_with_a_reason() {
    let mut c = setup(Arrival::InPlace).ready();
    let engine = &mut c.host(1).engine;
    for (name, says) in [("", "empty"), ("a@b", "'@'"), (&"x".repeat(41), "41 bytes"), ("p1", "already")] {
        let error = engine.register(name, PartKind::Cpu).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
    engine.register("third", PartKind::Gpu).unwrap();
    assert!(
        matches!(engine.register("third", PartKind::Cpu), Err(RegisterError::Taken(_))),
        "while it is asked"
    );
    assert_eq!(engine.register("fourth", PartKind::Cpu), Err(RegisterError::Full(PARTS + 1)));
    assert_eq!(engine.free(part(1, 2)), Err(RegisterError::Busy), "not while it is announced");
}

#[test]
fn a_freed_part_is_forgotten_everywhere_and_its_index_is_used_again() {
    let mut c = setup(Arrival::Posted).ready();
    c.host(1).engine.free(part(1, 1)).unwrap();
    assert_eq!(c.host(1).engine.local_part(1), LocalPart::Leaving);
    assert_eq!(c.host(1).engine.bind_pipe(part(1, 1)), Err(PipeError::NoSuchPart(1)), "a leaving part");
    assert_eq!(c.host(1).engine.open_stream(part(1, 1)), Err(PipeError::NoSuchPart(1)));
    rounds(&mut c, 10);
    assert!(c.host(0).engine.lookup(node(1), "p1").is_none());
    assert_eq!(c.host(1).engine.local_part(1), LocalPart::Free);
    c.host(1).engine.free(part(1, 1)).unwrap();
    // First the index that has been free for longest, so that old ids do not lead to new parts at once.
    let other = c.host(1).engine.register("other", PartKind::Cpu).unwrap();
    assert_ne!(other, part(1, 1));
    assert_eq!(c.host(1).engine.register("p1", PartKind::Cpu), Ok(part(1, 1)));
    rounds(&mut c, 10);
    assert_eq!(c.host(0).engine.lookup(node(1), "p1").map(|p| p.id), Some(part(1, 1)));
    c.host(1).engine.bind_pipe(part(1, 1)).unwrap();
}

#[test]
fn a_full_table_of_parts_refuses_the_part_and_says_so() {
    let setup = setup(Arrival::InPlace);
    let mut c = setup.start();
    let config = setup.config(0);
    let memory = HeapMemory::new(crate::umb::stride(setup.body) * setup.blocks() as usize).unwrap();
    let old = c.hosts[0].take().unwrap();
    // The master again, with room for one part in the cluster. (Nothing has been sent yet.)
    let storage = Storage::allocate(&config, setup.blocks() as usize, 1);
    let port = super::harness::port(0, &c.net);
    let engine = Engine::new(config, setup.policy, port, memory, storage).unwrap();
    c.hosts[0] = Some(super::harness::Host { engine, ..old });
    c.run(20, |c| c.hosts.iter().flatten().all(|h| h.engine.is_ready()));
    c.host(1).engine.register("a", PartKind::Cpu).unwrap();
    c.host(1).engine.register("b", PartKind::Cpu).unwrap();
    rounds(&mut c, 20);
    assert_eq!(c.host(1).engine.local_part(0), LocalPart::Known);
    assert_eq!(c.host(1).engine.local_part(1), LocalPart::Refused);
    let events = &c.host(1).pipes.events;
    assert!(
        events.iter().any(|e| matches!(e, Event::Changed { part: p, accepted: false } if *p == part(1, 1)))
    );
    c.host(1).engine.free(part(1, 1)).unwrap();
    assert_eq!(c.host(1).engine.local_part(1), LocalPart::Free);
}

#[test]
fn pipes_are_bound_once_and_released_once() {
    let mut c = setup(Arrival::InPlace).ready();
    let engine = &mut c.host(0).engine;
    assert_eq!(engine.bind_pipe(part(0, 0)), Err(PipeError::AlreadyBound(PipeId(0))));
    assert_eq!(engine.bind_pipe(part(1, 0)), Err(PipeError::NoSuchPart(0)), "a part of another node");
    assert_eq!(engine.release_pipe(PipeId(0)), Ok(()));
    assert_eq!(engine.release_pipe(PipeId(0)), Err(PipeError::NotBound(PipeId(0))));
    assert_eq!(engine.release_pipe(PipeId(99)), Err(PipeError::NotBound(PipeId(99))));
    assert_eq!(engine.bind_pipe(part(0, 0)), Ok(PipeId(0)));
    let (first, _) = engine.open_stream(part(0, 0)).unwrap();
    let (second, _) = engine.open_stream(part(0, 1)).unwrap();
    assert_ne!(first, second);
    let none = engine.open_stream(part(0, 0)).unwrap_err();
    assert_eq!(none, PipeError::NoneIdle(PipeKind::Stream, 2));
    assert!(none.to_string().contains("all 2 stream pipes"), "{none}");
    engine.close_stream(first).unwrap();
    assert!(engine.close_stream(first).is_err());
    assert!(engine.close_stream(77).is_err());
    assert_eq!(engine.pipes(PipeKind::Stream).busy, 1);
}

/// A table longer than the configuration asks for must not add pipes or nodes that the peers do not know.
#[test]
fn storage_with_room_to_spare_changes_nothing() {
    let setup = setup(Arrival::InPlace);
    let mut larger = setup.config(1);
    (larger.stream_pipes, larger.nodes, larger.local_parts) = (9, 7, 9);
    let mut c = setup.start();
    let storage = Storage::allocate(&larger, setup.blocks() as usize, 64);
    let memory = HeapMemory::new(crate::umb::stride(setup.body) * setup.blocks() as usize).unwrap();
    let port = super::harness::port(1, &c.net);
    let mut engine = Engine::new(setup.config(1), setup.policy, port, memory, storage).unwrap();
    assert_eq!(engine.open(node(2)).unwrap_err(), OpenError::NoSuchNode(node(2)));
    assert_eq!(engine.pipes(PipeKind::Stream).total, 2);
    engine.register("a", PartKind::Cpu).unwrap();
    engine.open_stream(part(1, 0)).unwrap();
    engine.open_stream(part(1, 0)).unwrap();
    assert!(engine.open_stream(part(1, 0)).is_err());
    c.kill(1);
}

#[test]
fn what_cannot_work_is_refused_with_its_value() {
    let setup = setup(Arrival::Posted);
    let make = |change: &dyn Fn(&mut Config), blocks: usize| {
        let c = setup.start();
        let mut config = setup.config(0);
        change(&mut config);
        let storage = Storage::allocate(&setup.config(0), blocks, 8);
        let memory = HeapMemory::new(crate::umb::stride(setup.body) * blocks).unwrap();
        Engine::new(config, setup.policy, super::harness::port(0, &c.net), memory, storage).err()
    };
    let enough = setup.blocks() as usize - setup.extra as usize;
    assert_eq!(make(&|_| {}, enough), None);
    #[expect(clippy::type_complexity, reason = "used once")]
    let change: [(&dyn Fn(&mut Config), &str); 9] = [
        (&|c| c.nodes = 0, "node index 0 does not fit 0 nodes"),
        (&|c| c.node = node(5), "node index 5"),
        (&|c| c.body = 255, "255 bytes"),
        (&|c| c.body = 2 << 30, "1 GiB"),
        (&|c| c.row = 0, "rows of 0"),
        (&|c| c.initial = 9, "with 9 at the start"),
        (&|c| c.control_blocks = 0, "0 control blocks"),
        (&|c| c.row = 99, "send_matrix"),
        (&|c| c.body = 4096, "the transport does not fit"),
    ];
    for (change, says) in change {
        let error = make(change, enough).expect(says).to_string();
        assert!(error.contains(says), "{error:?} does not say {says:?}");
    }
    let error = make(&|_| {}, enough - 1).unwrap();
    let (have, need) = (enough as u32 - 1, enough as u64);
    assert_eq!(error, ConfigError::Blocks { have, need });
    assert!(error.to_string().contains("give more memory"));
}

#[test]
fn an_exhausted_row_would_block_and_recovers_when_the_peer_reads() {
    for arrival in BOTH {
        let mut c = setup(arrival).ready();
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
    for arrival in BOTH {
        let mut c = Setup { nodes: 3, ..setup(arrival) }.ready();
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

#[test]
fn a_full_private_pipe_blocks_only_its_row() {
    for arrival in BOTH {
        let mut c = Setup { nodes: 3, pipe: 1, ..setup(arrival) }.ready();
        for _ in 0..2 {
            ship(&mut c, 0, 1);
        }
        rounds(&mut c, 4);
        assert_eq!(c.host(1).engine.recv_row(node(0)).unwrap().waiting, 1);
        // A message for the other part, from another node: another row.
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

/// A reader that keeps half of its credit while it waits for the rest of a long message must get the rest.
#[test]
fn a_reader_that_keeps_blocks_is_told_of_and_gets_all_its_credit() {
    let mut c = Setup { initial: 8, row: 8, ..setup(Arrival::Posted) }.ready();
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

#[test]
fn commands_overtake_messages_that_wait() {
    for arrival in BOTH {
        let mut c = Setup { initial: 4, row: 4, ..setup(arrival) }.ready();
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
        let mut c = Setup { initial: 4, row: 4, ..setup(arrival) }.ready();
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
    for arrival in BOTH {
        let mut c = setup(arrival).ready();
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
    for arrival in BOTH {
        let mut c = setup(arrival).ready();
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
    let mut c = setup(Arrival::InPlace).ready();
    c.host(1).pipes.checked = false;
    for number in 0..2 {
        let engine = &mut c.host(0).engine;
        let (group, stream) = engine.open_stream(part(0, 0)).unwrap();
        let mut block = engine.open(node(1)).unwrap();
        let tag = StreamTag { group, number: stream, segment: 0, dest: part(1, 0), flags: flag::FIRST };
        block.set_stream(tag);
        block.push(Route::new(CduClass::Stream, 0, part(0, 0), part(1, 0)), b"x").unwrap();
        engine.submit(block);
        engine.close_stream(group).unwrap();
        rounds(&mut c, 2);
        let broken =
            c.host(1).pipes.events.iter().filter(|e| matches!(e, Event::StreamBroken { .. })).count();
        assert_eq!(broken, number);
    }
    c.settle_unchecked();
}

#[test]
fn messages_for_nobody_are_counted_and_their_blocks_come_back() {
    for arrival in BOTH {
        let mut c = setup(arrival).ready();
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
fn a_released_pipe_makes_its_part_unroutable_and_ends_its_streams() {
    let mut c = setup(Arrival::InPlace).ready();
    c.oracle.borrow_mut().lossy = true;
    c.apply(Operation::Segment { node: 0, source: 0, to: 1, dest: 0, length: 1, last: false });
    rounds(&mut c, 3);
    c.host(1).engine.release_pipe(PipeId(0)).unwrap();
    assert_eq!(c.host(1).engine.stream_mappings().count(), 0);
    c.read(1, 0, 1, false);
    rounds(&mut c, 2);
    c.apply(Operation::Segment { node: 0, source: 0, to: 1, dest: 0, length: 1, last: true });
    ship(&mut c, 0, 1);
    rounds(&mut c, 3);
    assert_eq!(c.host(1).engine.counters().stray_segments, 1);
    assert_eq!(c.host(1).engine.counters().unroutable, 1);
    c.settle();
}

#[test]
fn zero_size_messages_and_empty_blocks() {
    for arrival in BOTH {
        let mut c = setup(arrival).ready();
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
    let mut c = setup(Arrival::InPlace).ready();
    let most = c.host(0).engine.config().longest_unsegmented();
    let route = Route::new(CduClass::ShortMessage, 0, part(0, 0), part(1, 0));
    let now = c.now;
    let bytes = std::vec![0; most + 1];
    let refused = c.host(0).engine.send(now, route, part(1, 0), &bytes);
    assert_eq!(refused, Err(SendError::TooLong(most)));
    assert_eq!(
        c.host(0).engine.send(now, route, part(9, 0), b""),
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

#[test]
fn a_barrier_is_passed_when_all_have_arrived_also_by_those_ahead() {
    for arrival in BOTH {
        let mut c = Setup { nodes: 3, ..setup(arrival) }.ready();
        let first = [0, 1].map(|i| c.host(i).engine.arrive());
        rounds(&mut c, 5);
        assert!((0..2).all(|i| !c.host(i).engine.barrier_passed(first[i])));
        assert_eq!(c.host(0).engine.barrier_missing(1).collect::<Vec<_>>(), [node(2)]);
        assert_eq!(
            c.host(1).engine.barrier_missing(1).collect::<Vec<_>>(),
            [node(0)],
            "only the master knows more"
        );
        // Node 1 goes on to the next barrier without looking.
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
    for arrival in BOTH {
        let mut c = Setup { nodes: 3, pipe: 1, ..setup(arrival) }.ready();
        ship(&mut c, 1, 2);
        ship(&mut c, 1, 2);
        let asked = [0, 1, 2].map(|i| c.host(i).engine.ask_quiet());
        rounds(&mut c, 20);
        assert!((0..3).all(|i| !c.host(i).engine.is_quiet(asked[i])), "a message has not been delivered");
        push(&mut c, 2, 0, false);
        c.read(2, 0, 1, false);
        rounds(&mut c, 20);
        assert!((0..3).all(|i| !c.host(i).engine.is_quiet(asked[i])), "a block is at its writer");
        assert!(c.host(2).pipes.events.iter().any(|e| matches!(e, Event::FlushWanted)));
        c.submit(2, 0, false);
        rounds(&mut c, 20);
        assert!((0..3).all(|i| c.host(i).engine.is_quiet(asked[i])));
        c.settle();
    }
}

/// One wave can find as many delivered as sent while a message is on its way: node 1 counts, then sends to node 2, which
/// counts it as delivered, and the sum hides node 2's own message that is held up.
#[test]
fn quiet_is_not_told_by_counts_that_agree_by_chance() {
    for arrival in BOTH {
        let mut c = Setup { nodes: 3, ..setup(arrival) }.ready();
        c.apply(Operation::Gate { from: 2, to: 1, closed: true });
        ship(&mut c, 2, 1);
        c.poll(2);
        let asked = c.host(0).engine.ask_quiet();
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
        assert!(!c.host(0).engine.is_quiet(asked));
        rounds(&mut c, 20);
        assert!(!c.host(0).engine.is_quiet(asked));
        c.apply(Operation::Gate { from: 2, to: 1, closed: false });
        rounds(&mut c, 20);
        assert!(c.host(0).engine.is_quiet(asked));
        c.settle();
    }
}

/// A row that was shrunk while blocks were on their way has more in use than real. Blocks for control messages must be posted
/// all the same.
#[test]
fn control_gets_through_to_a_reader_that_keeps_more_blocks_than_its_row_has() {
    let base = setup(Arrival::Posted);
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

/// The counts of links that failed must not be waited for.
#[test]
fn quiet_comes_also_after_a_node_has_failed_with_messages_on_the_way() {
    for arrival in BOTH {
        let mut c = Setup { nodes: 3, ..setup(arrival) }.ready();
        ship(&mut c, 0, 2);
        ship(&mut c, 2, 1);
        c.poll(0);
        c.poll(2);
        c.kill(2);
        let asked = [0, 1].map(|i| c.host(i).engine.ask_quiet());
        rounds(&mut c, 20);
        assert!((0..2).all(|i| c.host(i).engine.is_quiet(asked[i])));
        c.settle();
    }
}

#[test]
fn a_failed_peer_is_reported_with_what_it_did_not_get() {
    for arrival in BOTH {
        let mut c = setup(arrival).ready();
        c.apply(Operation::Gate { from: 0, to: 1, closed: true });
        ship(&mut c, 0, 1);
        c.poll(0);
        ship(&mut c, 0, 1);
        let open = c.host(0).engine.open(node(1));
        assert_eq!(open.unwrap_err(), OpenError::WouldBlock);
        c.kill(1);
        rounds(&mut c, 3);
        let failed = |e: &Event| match e {
            Event::PeerFailed { peer, undelivered } => Some((*peer, *undelivered)),
            _ => None,
        };
        let events: Vec<_> = c.host(0).pipes.events.iter().filter_map(failed).collect();
        // Of a posted send nobody knows what became of it.
        let lost = if arrival == Arrival::Posted { 1..=2 } else { 2..=2 };
        assert_eq!(events.len(), 1);
        assert!(events[0].0 == node(1) && lost.contains(&events[0].1), "{events:?}");
        assert_eq!(c.host(0).engine.open(node(1)).unwrap_err(), OpenError::PeerFailed(node(1)));
        assert!(c.host(0).engine.nodes().any(|n| n.id == node(1) && n.failed));
        let engine = &c.host(0).engine;
        let own = engine.send_row(node(0)).unwrap().space.real();
        assert_eq!(engine.free_blocks() + own + c.setup.control, c.setup.blocks(), "all its blocks are free");
        c.settle();
    }
}

/// Segments that had arrived and waited for a private pipe made the mapping tuple anew after it had been removed.
#[test]
fn a_stream_of_a_failed_node_ends_after_its_segments_that_had_arrived() {
    for arrival in BOTH {
        let mut c = Setup { pipe: 1, ..setup(arrival) }.ready();
        ship(&mut c, 0, 0);
        c.poll(0);
        for _ in 0..2 {
            c.apply(Operation::Segment { node: 1, source: 0, to: 0, dest: 0, length: 5, last: false });
        }
        rounds(&mut c, 3);
        c.kill(1);
        let broken = |c: &Cluster| {
            let events = &c.hosts[0].as_ref().unwrap().pipes.events;
            events.iter().filter(|e| matches!(e, Event::StreamBroken { .. })).count()
        };
        for _ in 0..3 {
            rounds(&mut c, 3);
            assert_eq!((delivered(&c), broken(&c)), (delivered(&c), usize::from(delivered(&c) == 3)));
            c.read(0, 0, 1, false);
        }
        assert_eq!((delivered(&c), broken(&c)), (3, 1));
        c.settle();
    }
}

#[test]
fn a_writer_that_fills_a_block_for_a_failed_peer_can_submit_it() {
    let mut c = setup(Arrival::InPlace).ready();
    push(&mut c, 0, 1, false);
    c.apply(Operation::Send { node: 0, source: 0, to: 1, dest: 0, length: 3 });
    c.kill(1);
    rounds(&mut c, 3);
    c.submit(0, 1, false);
    assert_eq!(c.host(0).engine.counters().undelivered, 2);
    c.settle();
}

/// The last block of a link is changed on the way: no later block shows the gap, and nothing else would make the sender
/// speak.
#[test]
fn credit_of_an_unreadable_last_block_comes_back() {
    for arrival in BOTH {
        let mut c = Setup { checksum: Checksum::On, ..setup(arrival) }.ready();
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
        let asked = c.host(0).engine.ask_quiet();
        rounds(&mut c, 20);
        assert!(c.host(0).engine.is_quiet(asked), "the refused blocks are counted as dealt with");
        ship(&mut c, 0, 1);
        rounds(&mut c, 3);
        assert_eq!(delivered(&c), 1);
        c.settle();
    }
}

/// A good data block of node 0 for node 1, as the wire has it.
fn forged(sequence: u64, data: u32, epoch: u8) -> Vec<u8> {
    let mut bytes = std::vec![0u8; 64];
    bytes[..4].copy_from_slice(&[b'P', b'D', 1, 0]);
    bytes[6] = 1;
    bytes[8] = epoch;
    bytes[16..24].copy_from_slice(&sequence.to_le_bytes());
    bytes[32] = 2;
    bytes[58..62].copy_from_slice(&data.to_le_bytes());
    assert!(BlockHeader::read(&bytes).is_ok());
    bytes
}

#[test]
fn forged_sequence_numbers_neither_panic_nor_silence_the_link() {
    for arrival in BOTH {
        let mut c = setup(arrival).ready();
        c.oracle.borrow_mut().lossy = true;
        for sequence in [u64::MAX, u64::MAX - 1, 1 << 40, 0, 0] {
            c.net.borrow_mut().inject(0, 1, forged(sequence, 0, 1));
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

#[test]
fn blocks_of_another_epoch_are_refused_and_give_no_credit_that_was_not_taken() {
    let mut c = setup(Arrival::Posted).ready();
    let sent = c.host(1).engine.recv_row(node(0)).unwrap().blocks;
    assert_eq!(sent, 0);
    // The next block of the link, in every way but its epoch.
    let mut control = forged(0, 0, 9);
    let sequence = (0..50).find(|s| {
        let mut c = setup(Arrival::Posted).ready();
        c.oracle.borrow_mut().lossy = true;
        c.net.borrow_mut().inject(0, 1, forged(*s, 0, 9));
        rounds(&mut c, 2);
        c.host(1).engine.counters().blocks_delivered == 1
    });
    control[16] = sequence.unwrap() as u8;
    control[3] = 2;
    c.oracle.borrow_mut().lossy = true;
    c.net.borrow_mut().inject(0, 1, control);
    rounds(&mut c, 2);
    let counters = c.host(1).engine.counters();
    assert_eq!((counters.stale, counters.blocks_delivered), (1, 0), "a control block takes no credit");
}

#[test]
fn only_the_master_tells_of_other_nodes() {
    let mut c = Setup { nodes: 3, ..setup(Arrival::InPlace) }.ready();
    c.oracle.borrow_mut().lossy = true;
    let name = crate::tables::Name::new("evil").unwrap();
    let forged = Control::HostInfo { node: node(1), kind: NodeKind::Master, name };
    c.host(2).engine.tell(node(1), forged.clone());
    c.host(2).engine.tell(node(0), forged);
    rounds(&mut c, 4);
    for i in 0..2 {
        assert_eq!(c.host(i).engine.node_named("evil"), None);
        assert_eq!(c.host(i).engine.counters().misdirected, 1);
    }
}

#[test]
fn a_flood_of_control_messages_is_dropped_and_counted() {
    let mut c = setup(Arrival::InPlace).ready();
    c.apply(Operation::Gate { from: 1, to: 0, closed: true });
    for index in 0..40 {
        c.host(1).engine.tell(node(0), Control::Applied { index });
    }
    assert!(c.host(1).engine.counters().dropped_control > 0);
}

/// A peer that takes no control blocks must not hold all that there are.
#[test]
fn one_deaf_peer_does_not_stop_the_others_barrier() {
    for control in [1, 3, 8] {
        let mut c = Setup { nodes: 4, control, ..setup(Arrival::InPlace) }.ready();
        c.apply(Operation::Busy { from: 0, to: 1, times: u32::MAX });
        let quiet = c.host(2).engine.ask_quiet();
        rounds(&mut c, 10);
        assert!(!c.host(2).engine.is_quiet(quiet));
        c.host(2).engine.register("late", PartKind::Cpu).unwrap();
        rounds(&mut c, 20);
        if control > 1 {
            assert!(c.host(3).engine.lookup(node(2), "late").is_some());
        }
        c.apply(Operation::Busy { from: 0, to: 1, times: 0 });
        rounds(&mut c, 40);
        assert!(c.host(2).engine.is_quiet(quiet));
        assert_eq!(c.host(2).engine.local_part(2), LocalPart::Known);
        c.settle();
    }
}

/// Tokens of one cluster handed to an engine of another, which has a block of the same number.
#[test]
fn tokens_of_another_engine_are_left_alone() {
    let (mut a, mut b) = (setup(Arrival::InPlace).ready(), setup(Arrival::InPlace).ready());
    ship(&mut a, 0, 0);
    ship(&mut b, 0, 0);
    a.poll(0);
    b.poll(0);
    let mut block = a.host(0).engine.open(node(0)).unwrap();
    block.push(Route::new(CduClass::ShortMessage, 0, part(0, 0), part(0, 0)), b"a").unwrap();
    b.host(0).engine.submit(block);
    assert_eq!(b.host(0).engine.counters().foreign_tokens, 1);
    assert_eq!(b.host(0).engine.send_row(node(0)).unwrap().waiting, 0);
    let (delivery, _) = a.host(0).pipes.queues[0].pop_front().unwrap();
    b.host(0).engine.release(delivery);
    assert_eq!(b.host(0).engine.counters().foreign_tokens, 2);
    assert_eq!(b.host(0).engine.recv_row(node(0)).unwrap().space.used(), 1, "its own delivery is still out");
}

#[test]
fn an_engine_dropped_with_a_message_not_yet_sent_frees_its_memory() {
    let mut c = setup(Arrival::InPlace).ready();
    c.apply(Operation::Send { node: 0, source: 0, to: 1, dest: 0, length: 3 });
    assert!(!c.host(0).engine.leaks());
    push(&mut c, 0, 1, false);
    assert!(c.host(0).engine.leaks(), "an open block is out");
    c.submit(0, 1, false);
    assert!(!c.host(0).engine.leaks());
    ship(&mut c, 0, 0);
    c.poll(0);
    assert!(c.host(0).engine.leaks(), "a delivery is out");
    c.read(0, 0, 1, false);
    assert!(!c.host(0).engine.leaks());
}

#[test]
fn bytes_of_a_delivery_outlive_its_engine() {
    let mut c = setup(Arrival::InPlace).ready();
    ship(&mut c, 0, 0);
    c.poll(0);
    let (delivery, _) = c.host(0).pipes.queues[0].pop_front().unwrap();
    let before = delivery.bytes().to_vec();
    drop(c);
    assert_eq!(delivery.bytes(), before);
    assert_eq!(delivery.cdus().count(), 1);
}

#[test]
fn the_next_call_is_the_earliest_deadline() {
    let mut c = setup(Arrival::InPlace).ready();
    let now = c.now;
    ship(&mut c, 0, 0);
    c.apply(Operation::Send { node: 0, source: 0, to: 1, dest: 0, length: 3 });
    let host = c.host(0);
    let progress = host.engine.poll(now, &mut host.pipes);
    assert!(progress.worked > 0);
    assert_eq!(progress.next, Some(now.after(1000)), "flush_after, while there was other work");
    let progress = host.engine.poll(now, &mut host.pipes);
    assert_eq!((progress.worked > 0, progress.next), (true, None), "nothing else to do: it leaves at once");
    c.settle();
}

/// A row that was shrunk to nothing could never hear of a block again.
#[test]
fn no_row_is_shrunk_to_nothing() {
    for arrival in BOTH {
        let mut c = Setup { policy: Policy::Miser, ..setup(arrival) }.ready();
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

/// A policy may say what it likes; rows and pool keep their bounds.
#[test]
fn a_policy_that_asks_for_everything_gets_what_there_is() {
    for arrival in BOTH {
        let mut c = Setup { policy: Policy::Glutton, extra: 100, ..setup(arrival) }.ready();
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
    let mut c = Setup {
        nodes: 3,
        policy: Policy::Adaptive,
        initial: 4,
        row: 16,
        extra: 0,
        ..setup(Arrival::InPlace)
    }
    .ready();
    for peer in [0, 2] {
        assert_eq!(c.host(0).engine.send_row(node(peer)).unwrap().space.real(), 4);
    }
    for _ in 0..8 {
        ship(&mut c, 0, 1);
    }
    assert_eq!(c.host(0).engine.send_row(node(1)).unwrap().space.real(), 8);
    for peer in [0, 2] {
        assert_eq!(c.host(0).engine.send_row(node(peer)).unwrap().space.real(), 2, "the least it keeps");
    }
    ship(&mut c, 0, 1);
    assert!(c.host(0).engine.send_row(node(1)).unwrap().exhausted > 0, "the notice of Algorithm 1");
    c.settle();
}

#[test]
fn errors_say_what_to_do() {
    let texts = [
        OpenError::WouldBlock.to_string(),
        OpenError::PeerFailed(node(3)).to_string(),
        OpenError::NoSuchNode(NodeId::new(9).unwrap()).to_string(),
        PipeError::NoSuchPart(4).to_string(),
        PipeError::NotBound(PipeId(7)).to_string(),
        RegisterError::Busy.to_string(),
        RegisterError::Full(3).to_string(),
    ];
    for (text, part) in
        texts.iter().zip(["poll", "node3", "node9", "part 4", "pipe 7", "try again", "configure more"])
    {
        assert!(text.contains(part), "{text}");
    }
    assert!(format!("{:?}", SendError::TooLong(5)).contains('5'));
}
