//! Nodes, names, parts and pipes; what a set-up lacks; tokens that are out when an engine ends.

use std::string::ToString;

use super::super::harness::{Links, PARTS, Setup, node, part};
use super::{ALL, push, rounds, setup, ship};
use crate::cdu::{CduClass, Route};
use crate::engine::{LocalPart, RegisterError};
use crate::id::{NodeId, PipeId};
use crate::outbox::SendError;
use crate::pipe::{PipeError, PipeKind};
use crate::tables::PartKind;
use crate::umb::HeapMemory;
use crate::{Config, ConfigError, Engine, Event, OpenError, Storage};

/// Number of slots for parts in the tables of a node.
const PLACES: u16 = (PARTS + 1).next_power_of_two();

#[test]
fn every_node_knows_every_part_by_name() {
    for links in ALL {
        let mut c = Setup { nodes: 4, links, ..Setup::default() }.ready();
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
    let mut c = setup(Links::InPlace).ready();
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
    let mut c = setup(Links::Posted).ready();
    c.host(1).engine.free(part(1, 1)).unwrap();
    assert_eq!(c.host(1).engine.local_part(1), LocalPart::Leaving);
    assert_eq!(c.host(1).engine.bind_pipe(part(1, 1)), Err(PipeError::NoSuchPart(1)), "a leaving part");
    assert_eq!(c.host(1).engine.open_stream(part(1, 1), node(0)), Err(PipeError::NoSuchPart(1)));
    rounds(&mut c, 10);
    assert!(c.host(0).engine.lookup(node(1), "p1").is_none());
    assert_eq!(c.host(1).engine.local_part(1), LocalPart::Free);
    c.host(1).engine.free(part(1, 1)).unwrap();
    // One slot is left that no part has used; after it, this slot's turn comes again, under another number.
    assert_eq!(c.host(1).engine.register("other", PartKind::Cpu), Ok(part(1, 2)));
    let again = part(1, 1 + PLACES);
    assert_eq!(c.host(1).engine.register("p1", PartKind::Cpu), Ok(again));
    rounds(&mut c, 10);
    assert_eq!(c.host(0).engine.lookup(node(1), "p1").map(|p| p.id), Some(again));
    assert!(!c.host(0).engine.has_part(part(1, 1)) && c.host(0).engine.has_part(again));
    assert_eq!(
        c.host(1).engine.bind_pipe(part(1, 1)),
        Err(PipeError::NoSuchPart(1)),
        "the place is another's"
    );
    c.host(1).engine.bind_pipe(again).unwrap();
}

#[test]
fn a_full_table_of_parts_refuses_the_part_and_says_so() {
    let mut c = Setup { parts: 1, ..setup(Links::InPlace) }.start();
    c.run(20, |c| c.hosts.iter().flatten().all(|h| h.engine.is_ready()));
    c.host(1).engine.register("a", PartKind::Cpu).unwrap();
    c.host(1).engine.register("b", PartKind::Cpu).unwrap();
    rounds(&mut c, 20);
    assert_eq!(c.host(1).engine.local_part(0), LocalPart::Registered);
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
    let mut c = setup(Links::InPlace).ready();
    let engine = &mut c.host(0).engine;
    assert_eq!(engine.bind_pipe(part(0, 0)), Err(PipeError::AlreadyBound(PipeId(0))));
    assert_eq!(engine.bind_pipe(part(1, 0)), Err(PipeError::NoSuchPart(0)), "a part of another node");
    assert_eq!(engine.release_pipe(PipeId(0)), Ok(()));
    assert_eq!(engine.release_pipe(PipeId(0)), Err(PipeError::NotBound(PipeId(0))));
    assert_eq!(engine.release_pipe(PipeId(99)), Err(PipeError::NotBound(PipeId(99))));
    assert_eq!(engine.bind_pipe(part(0, 0)), Ok(PipeId(0)));
    let first = engine.open_stream(part(0, 0), node(0)).unwrap();
    let second = engine.open_stream(part(0, 1), node(0)).unwrap();
    assert_ne!(first, second);
    let none = engine.open_stream(part(0, 0), node(0)).unwrap_err();
    assert_eq!(none, PipeError::NoneIdle(PipeKind::Stream, 2));
    assert!(none.to_string().contains("all 2 stream pipes"), "{none}");
    engine.close_stream(first).unwrap();
    assert!(engine.close_stream(first).is_err());
    assert!(engine.close_stream((77, first.1)).is_err());
    assert_eq!(engine.pipes(PipeKind::Stream).busy, 1);
}

/// A table longer than the configuration requires must not add pipes or nodes that the peers do not know.
#[test]
fn storage_with_room_to_spare_changes_nothing() {
    let setup = setup(Links::InPlace);
    let mut larger = setup.config(1);
    (larger.stream_pipes, larger.nodes, larger.local_parts) = (9, 7, 9);
    let mut c = setup.start();
    let storage = Storage::allocate(&larger, setup.blocks(1) as usize, 64);
    let memory = HeapMemory::new(crate::umb::stride(setup.body) * setup.blocks(1) as usize).unwrap();
    let port = super::super::harness::port(1, &c.net);
    let mut engine = Engine::new(setup.config(1), setup.policy, port, memory, storage).unwrap();
    assert_eq!(engine.open(node(2)).unwrap_err(), OpenError::NoSuchNode(node(2)));
    assert_eq!(engine.pipes(PipeKind::Stream).total, 2);
    engine.register("a", PartKind::Cpu).unwrap();
    engine.open_stream(part(1, 0), node(0)).unwrap();
    engine.open_stream(part(1, 0), node(0)).unwrap();
    assert!(engine.open_stream(part(1, 0), node(0)).is_err());
    c.kill(1);
}

#[test]
fn what_cannot_work_is_refused_with_its_value() {
    let setup = setup(Links::Posted);
    let make = |change: &dyn Fn(&mut Config), blocks: usize| {
        let c = setup.start();
        let mut config = setup.config(0);
        change(&mut config);
        let storage = Storage::allocate(&setup.config(0), blocks, 8);
        let memory = HeapMemory::new(crate::umb::stride(setup.body) * blocks).unwrap();
        Engine::new(config, setup.policy, super::super::harness::port(0, &c.net), memory, storage).err()
    };
    let enough = setup.blocks(0) as usize - setup.extra as usize;
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
        (&|c| c.body = 4096, "unsuitable transport"),
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

/// Tokens of one cluster are handed to an engine of another, which has a block with the same number.
#[test]
fn tokens_of_another_engine_are_left_alone() {
    let (mut a, mut b) = (setup(Links::InPlace).ready(), setup(Links::InPlace).ready());
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
    assert!(b.host(0).engine.share(&delivery).is_none());
    b.host(0).engine.release(delivery);
    assert_eq!(b.host(0).engine.counters().foreign_tokens, 2);
    assert_eq!(b.host(0).engine.recv_row(node(0)).unwrap().space.used(), 1, "its own delivery is still out");
}

#[test]
fn an_engine_leaks_while_a_block_or_a_delivery_is_out() {
    let mut c = setup(Links::InPlace).ready();
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
    let mut c = setup(Links::InPlace).ready();
    ship(&mut c, 0, 0);
    c.poll(0);
    let (delivery, _) = c.host(0).pipes.queues[0].pop_front().unwrap();
    let before = delivery.bytes().to_vec();
    drop(c);
    assert_eq!(delivery.bytes(), before);
    assert_eq!(delivery.cdus().count(), 1);
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
    assert!(SendError::TooLong.to_string().contains("segments"));
}
