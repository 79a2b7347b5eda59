//! Parts without a name.

use super::super::harness::{Cluster, Links, PARTS, Setup, node, part};
use super::{rounds, setup};
use crate::engine::{LocalPart, RegisterError};
use crate::id::PartId;
use crate::tables::PartKind;

/// Returns a part without a name, once the node may have one.
fn attach(c: &mut Cluster, i: usize) -> PartId {
    tried(c, i).unwrap()
}

fn tried(c: &mut Cluster, i: usize) -> Result<PartId, RegisterError> {
    for _ in 0..200 {
        match c.host(i).engine.attach() {
            Err(RegisterError::Busy) => rounds(c, 1),
            other => return other,
        }
    }
    Err(RegisterError::Busy)
}

/// The first number of such parts whose slot is free.
const FIRST: u16 = PartId::NAMELESS + PARTS;

#[test]
fn parts_without_a_name_need_one_row_of_a_node_and_no_agreement_for_each() {
    let mut c = setup(Links::Posted).ready();
    let first = attach(&mut c, 1);
    assert_eq!(first, part(1, FIRST));
    let rows =
        |c: &Cluster| c.hosts.iter().flatten().map(|h| h.engine.tables.parts.iter().flatten().count()).max();
    let (parts, all) = (c.host(0).engine.parts().count(), rows(&c));
    c.host(1).engine.free(first).unwrap();
    assert_eq!(c.host(1).engine.local_part(first.local()), LocalPart::Free, "at once");
    // Without a poll in between, so no other node can have heard of it.
    for _ in 0..100 {
        let engine = &mut c.host(1).engine;
        let id = engine.attach().unwrap();
        assert!(id.is_nameless() && id != first && engine.has_part(id) && engine.nameless() == 1);
        assert_eq!(engine.resolve(id.address()), Some(id));
        assert_eq!(engine.attach(), Err(RegisterError::Full(PARTS + 1)), "there is no place");
        engine.free(id).unwrap();
        engine.free(id).unwrap();
        assert_eq!(engine.nameless(), 0);
    }
    assert_eq!((c.host(0).engine.parts().count(), rows(&c)), (parts, all));
    let engine = &c.host(0).engine;
    assert_eq!(engine.recurrence(), 0, "no number has been another's");
    assert!(engine.lookup(node(1), "pdbp.nameless").is_none(), "it is no part");
}

#[test]
fn when_numbers_of_parts_without_a_name_are_used_up_old_ids_are_refused_before_they_begin_anew() {
    let mut c = setup(Links::Posted).ready();
    let old = attach(&mut c, 1);
    assert!(c.host(0).engine.has_part(old));
    c.host(1).engine.parts.nameless.next = PartId::NODE;
    c.host(1).engine.free(old).unwrap();
    let id = attach(&mut c, 1);
    assert_eq!(id, part(1, FIRST).in_generation(1));
    for host in c.hosts.iter().flatten() {
        assert!(host.engine.has_part(id) && !host.engine.has_part(old), "whose number it has");
        assert_eq!(host.engine.resolve(old.address()), Some(id));
        assert_ne!(host.engine.recurrence(), 0);
    }
}

#[test]
fn beyond_its_numbers_a_node_registers_parts_while_one_without_a_name_stays() {
    let mut c = setup(Links::Posted).ready();
    let gone = part(1, 1);
    c.host(1).engine.free(gone).unwrap();
    c.run(60, |c| c.hosts[1].as_ref().unwrap().engine.local_part(gone.local()) == LocalPart::Free);
    let stays = attach(&mut c, 1);
    c.host(1).engine.parts.nameless.next = PartId::NODE;
    let next = attach(&mut c, 1);
    assert!(!next.is_nameless());
    c.run(60, |c| c.hosts[1].as_ref().unwrap().engine.local_part(next.local()) == LocalPart::Registered);
    for host in c.hosts.iter().flatten() {
        assert!(host.engine.has_part(next) && host.engine.has_part(stays));
    }
    let engine = &mut c.host(1).engine;
    assert!(matches!(engine.register("named", PartKind::Cpu), Err(RegisterError::Full(_))));
}

/// Otherwise nobody would know whether an id of such a part is an old one.
#[test]
fn without_room_for_its_row_a_node_has_no_parts_without_a_name() {
    let mut c = Setup { parts: 4, ..setup(Links::InPlace) }.ready();
    assert_eq!(tried(&mut c, 1), Err(RegisterError::NoRow));
    // It may have been freed since.
    c.host(0).engine.free(part(0, 1)).unwrap();
    c.run(60, |c| c.hosts[1].as_ref().unwrap().engine.part(part(0, 1)).is_none());
    assert_eq!(attach(&mut c, 1), part(1, FIRST));
}

#[test]
fn a_node_that_is_let_in_again_still_has_its_parts_without_a_name_and_one_that_was_started_anew_has_others() {
    let mut c = Setup { nodes: 3, ..setup(Links::Posted) }.ready();
    c.oracle.borrow_mut().lossy = true;
    let id = attach(&mut c, 2);
    c.cut(0, 2);
    c.run(2_000, |c| c.hosts[0].as_ref().unwrap().engine.nodes().any(|n| n.failed));
    assert!(!c.host(0).engine.has_part(id));
    c.mend(0, 2);
    c.run(20_000, |c| {
        c.hosts.iter().flatten().all(|h| h.engine.nodes().all(|n| !n.failed) && h.engine.has_part(id))
    });
    let mut anew = setup(Links::Posted).ready();
    anew.host(1).engine.begin_generation(7);
    assert_eq!(attach(&mut anew, 1), part(1, FIRST).in_generation(7));
    assert!(!anew.host(0).engine.has_part(part(1, FIRST)));
}
