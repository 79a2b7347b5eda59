//! Parts that come and go: their slots in the tables are reused, their ids are not.

use super::super::harness::{Cluster, Links, Operation, PARTS, Setup, node, part};
use super::{BOTH, rounds, setup, ship};
use crate::agreement::Replica;
use crate::cdu::{CduClass, Route};
use crate::engine::{LocalPart, RegisterError};
use crate::id::{PartId, Time};
use crate::outbox::{Due, Outgoing};
use crate::tables::{Name, PartKind};
use crate::{Event, OpenError};

/// Number of slots for parts in the tables of a node.
const PLACES: u16 = (PARTS + 1).next_power_of_two();

/// Frees a part, and waits until all nodes have forgotten it.
fn forget(c: &mut Cluster, id: PartId) {
    let host = id.node().index();
    c.host(host).engine.free(id).unwrap();
    c.run(60, |c| c.hosts.iter().flatten().all(|h| h.engine.part(id).is_none()));
    c.run(60, |c| c.hosts[host].as_ref().unwrap().engine.local_part(id.local()) == LocalPart::Free);
}

/// Registers a part, with a private pipe, and waits until all nodes know it, or refuse it.
fn register(c: &mut Cluster, i: usize, name: &str) -> PartId {
    let host = c.host(i);
    let id = host.engine.register(name, PartKind::Cpu).unwrap();
    let pipe = host.engine.bind_pipe(id).unwrap();
    host.pipes.owner.insert(pipe.0, id.local());
    c.run(60, |c| c.hosts[i].as_ref().unwrap().engine.local_part(id.local()) != LocalPart::Pending);
    id
}

fn unroutable(c: &mut Cluster, i: usize, number: u16) -> u32 {
    let of = |e: &Event| match e {
        Event::Unroutable { part, messages, .. } if *part == number => *messages,
        _ => 0,
    };
    c.host(i).pipes.events.iter().map(of).sum()
}

/// Node 0 packs a message to node 1 and sends it.
fn pack(c: &mut Cluster, route: Route, data: &[u8]) {
    let host = c.host(0);
    let hop = host.engine.hop(node(1)).unwrap();
    host.outbox.send(&mut host.engine, Time(0), hop, &Outgoing::message(route, data)).unwrap();
    host.outbox.flush(&mut host.engine, Due::All);
}

/// One message is behind a part that does not read, one is in an open block, and one is sent long after the next part has
/// appeared.
#[test]
fn what_was_sent_to_a_part_that_is_gone_does_not_reach_the_next_in_its_place() {
    for links in BOTH {
        let mut c = Setup { pipe: 1, initial: 8, row: 8, ..setup(links) }.ready();
        c.oracle.borrow_mut().lossy = true;
        let gone = part(1, 1);
        let to_gone = |urgent| Operation::Push {
            node: 0,
            source: 0,
            to: 1,
            dest: 1,
            length: 7,
            urgent,
            segment: false,
        };
        ship(&mut c, 0, 1);
        ship(&mut c, 0, 1);
        c.apply(to_gone(false));
        c.submit(0, 1, false);
        c.apply(to_gone(true));
        rounds(&mut c, 4);
        forget(&mut c, gone);
        let other = register(&mut c, 1, "other");
        assert_eq!(other, part(1, PARTS));
        let next = register(&mut c, 1, "next");
        assert_eq!(next, part(1, PLACES + 1), "in the place of the one that is gone");
        assert_eq!(unroutable(&mut c, 1, 1), 0, "all are under way");
        c.submit(0, 1, true);
        let late = Route::new(CduClass::ShortMessage, 0, part(0, 0), gone);
        pack(&mut c, late, b"late");
        for _ in 0..10 {
            c.read(1, 0, 1, false);
            rounds(&mut c, 2);
        }
        assert_eq!(unroutable(&mut c, 1, 1), 3, "{links:?}");
        c.host(1).pipes.checked = false;
        let first = Route::new(CduClass::ShortMessage, 0, part(0, 0), next);
        pack(&mut c, first, b"first");
        rounds(&mut c, 4);
        let mine = c.host(1).engine.bind_pipe(next).unwrap_err();
        let crate::pipe::PipeError::AlreadyBound(pipe) = mine else { panic!("{mine:?}") };
        assert_eq!(c.host(1).pipes.queues[usize::from(pipe.0)].len(), 1, "what is for it alone");
        c.close();
    }
}

#[test]
fn a_part_that_is_gone_cannot_be_freed_or_given_a_pipe_in_the_name_of_the_next() {
    let mut c = setup(Links::Posted).ready();
    let gone = part(1, 1);
    forget(&mut c, gone);
    register(&mut c, 1, "other");
    let next = register(&mut c, 1, "next");
    let engine = &mut c.host(1).engine;
    assert_eq!(
        (engine.local_part(1), engine.local_part(next.local())),
        (LocalPart::Free, LocalPart::Registered)
    );
    engine.free(gone).unwrap();
    assert_eq!(engine.local_part(next.local()), LocalPart::Registered);
    assert!(engine.bind_pipe(gone).is_err() && engine.open_stream(gone, node(0)).is_err());
    assert!(engine.open_stream(next, node(0)).is_ok());
}

/// Its tables are empty when it is readmitted, until it has registered its parts anew.
#[test]
fn a_node_that_is_readmitted_refuses_a_second_part_of_a_name_that_it_has() {
    let mut c = setup(Links::Posted).ready();
    register(&mut c, 1, "one");
    let engine = &mut c.host(1).engine;
    engine.tables.clear();
    let again = engine.register("one", PartKind::Cpu);
    assert!(matches!(&again, Err(RegisterError::Taken(name)) if name.as_str() == "one"), "{again:?}");
}

#[test]
fn when_numbers_come_round_an_old_id_is_no_part_and_everybody_knows_that_before() {
    for links in BOTH {
        let mut c = setup(links).ready();
        let gone = part(1, 1);
        forget(&mut c, gone);
        // As if some ten thousand had come and gone.
        c.host(1).engine.parts.registered = 0xBFFE;
        let before = register(&mut c, 1, "before");
        assert_eq!(before, part(1, 0xBFFE));
        for host in c.hosts.iter().flatten() {
            assert_ne!(host.engine.recurrence(), 0, "a high number is known");
        }
        forget(&mut c, before);
        let seen = c.host(0).engine.recurrence();
        let again = register(&mut c, 1, "again");
        assert_eq!(
            again,
            gone.in_generation(1),
            "the last quarter is of parts without a name, and the place of 0 is in use"
        );
        let engine = &c.host(0).engine;
        assert_eq!(engine.lookup(node(1), "again").map(|entry| entry.id), Some(again));
        for host in c.hosts.iter().flatten() {
            assert_eq!(host.engine.resolve(gone.address()), Some(again));
            assert!(host.engine.has_part(again) && !host.engine.has_part(gone));
        }
        forget(&mut c, again);
        assert!(c.host(0).engine.recurrence() > seen);
        let told = |e: &Event| matches!(e, Event::PartsForgotten { .. });
        assert!(c.host(0).pipes.events.iter().filter(|e| told(e)).count() > 2);
    }
}

/// No node has a part with a high number in its tables, so none compares ids.
#[test]
fn numbers_do_not_come_round_while_parts_with_high_numbers_are_refused() {
    let mut c = Setup { parts: 4, ..setup(Links::InPlace) }.ready();
    c.host(1).engine.parts.registered = 0xBFFD;
    for count in [0xBFFE, 0x8002, 0x8006] {
        let id = register(&mut c, 1, "one too many");
        assert_eq!(id, part(1, count));
        assert_eq!(c.host(1).engine.local_part(count), LocalPart::Refused);
        assert!(c.host(1).engine.has_part(part(1, 0)) && !c.host(1).engine.has_part(id));
        c.host(1).engine.free(id).unwrap();
    }
    assert_eq!(c.host(0).engine.recurrence(), 0);
}

#[test]
fn a_node_that_was_started_anew_gives_its_parts_other_ids() {
    let mut c = setup(Links::Posted).ready();
    let engine = &mut c.host(1).engine;
    engine.begin_generation(7);
    engine.begin_generation(3);
    let late = register(&mut c, 1, "late");
    assert_eq!(late, part(1, PARTS).in_generation(7));
    assert_ne!(c.host(0).engine.recurrence(), 0, "the number may have been another's before");
    assert!(!c.host(0).engine.has_part(part(1, PARTS)));
}

/// It may be another process, which counts its parts from the beginning.
#[test]
fn ids_are_compared_once_a_node_has_come_back() {
    let mut c = Setup { nodes: 3, ..setup(Links::Posted) }.ready();
    c.oracle.borrow_mut().lossy = true;
    assert!((0..3).all(|i| c.host(i).engine.recurrence() == 0));
    c.cut(0, 2);
    c.run(2_000, |c| c.hosts[0].as_ref().unwrap().engine.nodes().any(|n| n.failed));
    assert_eq!(c.host(0).engine.recurrence(), 0, "its numbers lead nowhere");
    assert_eq!(c.host(0).engine.open(node(2)).map(|_| ()), Err(OpenError::PeerFailed(node(2))));
    c.mend(0, 2);
    c.run(20_000, |c| c.hosts[0].as_ref().unwrap().engine.nodes().all(|n| !n.failed));
    c.run(20_000, |c| c.hosts.iter().flatten().all(|h| h.engine.recurrence() > 0));
}

/// Declares node 2 down, and lets it back in.
fn expel(c: &mut Cluster) {
    c.cut(0, 2);
    c.run(2_000, |c| c.hosts[0].as_ref().unwrap().engine.nodes().any(|n| n.failed));
    c.mend(0, 2);
    c.run(20_000, |c| c.hosts[0].as_ref().unwrap().engine.nodes().all(|n| !n.failed));
}

fn finds(c: &Cluster, i: usize, name: &str) -> bool {
    c.hosts[i].as_ref().unwrap().engine.lookup(node(2), name).is_some()
}

/// The answer to a request made before counted as that of the first part, which no node found from then on.
#[test]
fn all_parts_of_a_node_are_found_though_it_was_expelled_again_while_it_registered_them() {
    for polls in 0..12 {
        let mut c = Setup { nodes: 3, ..setup(Links::Posted) }.ready();
        c.oracle.borrow_mut().lossy = true;
        expel(&mut c);
        c.run(2_000, |c| finds(c, 0, "p0"));
        rounds(&mut c, polls);
        expel(&mut c);
        c.run(2_000, |c| (0..3).all(|i| finds(c, i, "p0") && finds(c, i, "p1")));
        c.settle();
    }
}

/// It had two parts of that name when it had registered its parts anew.
#[test]
fn a_part_keeps_its_name_while_other_nodes_have_forgotten_it() {
    let mut c = Setup { nodes: 3, ..setup(Links::Posted) }.ready();
    c.oracle.borrow_mut().lossy = true;
    expel(&mut c);
    c.run(2_000, |c| !finds(c, 2, "p1"));
    let taken = RegisterError::Taken(Name::new("p1").unwrap());
    assert_eq!(c.host(2).engine.register("p1", PartKind::Cpu), Err(taken));
    c.run(2_000, |c| (0..3).all(|i| finds(c, i, "p1")));
    c.settle();
}
