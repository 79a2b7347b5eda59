//! Clusters that did not come to rest, and settings that are refused because they could stall.

use std::string::ToString;

use super::super::harness::{Links, Operation, Policy, Setup, node, port};
use super::{BOTH, delivered, rounds, setup, ship};
use crate::Routing;
use crate::engine::{Config, ConfigError, Engine, Storage};
use crate::umb::{HeapMemory, stride};

/// Control messages waited for the reader of the data that held all places of the link.
#[test]
fn a_barrier_is_passed_while_a_link_is_full_of_what_nobody_reads() {
    for links in BOTH {
        let mut c = Setup { initial: 8, capacity: 3, ..setup(links) }.ready();
        for _ in 0..5 {
            ship(&mut c, 0, 1);
        }
        rounds(&mut c, 5);
        for node in 0..2 {
            c.apply(Operation::Barrier { node });
        }
        rounds(&mut c, 20);
        assert!(
            c.hosts.iter().flatten().all(|host| host.barriers == 1 && host.barrier.is_none()),
            "{links:?}"
        );
        if links == Links::InPlace {
            assert_eq!(delivered(&c), 1, "two of the three places are for control messages");
        }
        c.settle();
    }
}

/// The only control block of node 2 waited for a place on its link to node 0, behind data that node 0 could not forward. For
/// that, node 3 had to announce credit, but its only control block waited behind data that was to go from node 5 to node 2, with
/// node 2's credit.
#[test]
fn relays_do_not_wait_for_control_blocks_that_wait_for_relays() {
    use Operation::*;
    let mut c = Setup {
        nodes: 6,
        routing: Routing::Grid,
        links: Links::Mixed,
        policy: Policy::Published,
        row: 3,
        initial: 1,
        extra: 2,
        control: 1,
        capacity: 3,
        pipe: 1,
        streams: 8,
        ..Setup::default()
    }
    .ready();
    let (source, dest, length) = (0, 0, 0);
    for (node, to) in [(3, 3), (0, 4), (4, 0)] {
        c.apply(Send { node, source, to, dest, length });
    }
    c.apply(PushSet { node: 5, source, length, mask: 65 });
    for (node, to) in [(0, 3), (1, 2)] {
        c.apply(Send { node, source, to, dest, length });
    }
    c.apply(Push { node: 1, source, to: 2, dest, length, urgent: true, segment: false });
    c.apply(PushSet { node: 2, source, length, mask: 69 });
    c.apply(Segment { node: 4, source, to: 2, dest, length, last: false });
    c.apply(Poll { node: 5 });
    c.apply(Segment { node: 3, source, to: 2, dest: 1, length, last: false });
    c.apply(Push { node: 3, source, to: 0, dest, length, urgent: false, segment: false });
    c.apply(Send { node: 0, source: 1, to: 2, dest: 1, length: 354 });
    c.apply(Quiet { node: 4 });
    c.apply(Segment { node: 2, source: 1, to: 3, dest: 1, length: 334, last: false });
    c.apply(PushSet { node: 5, source, length: 200, mask: 255 });
    c.settle();
}

/// Blocks that the transport was too busy to take went to other rows, one after another, until the link had none to receive into.
#[test]
fn a_link_whose_transport_is_busy_keeps_its_blocks_to_receive_into() {
    use Operation::*;
    let policy = Policy::Adaptive;
    let tight =
        Setup { nodes: 4, policy, row: 2, initial: 1, extra: 0, control: 1, pipe: 1, ..setup(Links::Posted) };
    let mut c = tight.ready();
    let busy = |times| Busy { from: 2, to: 0, times };
    for operation in [
        busy(2),
        Barrier { node: 2 },
        Poll { node: 0 },
        Poll { node: 2 },
        busy(2),
        Segment { node: 0, source: 1, to: 0, dest: 1, length: 10, last: false },
        Poll { node: 0 },
        PushSet { node: 1, source: 1, length: 0, mask: 117 },
        Submit { node: 1, to: 0, urgent: false },
        Send { node: 0, source: 1, to: 0, dest: 1, length: 47 },
        Quiet { node: 0 },
        Poll { node: 0 },
        Poll { node: 2 },
        PushSet { node: 3, source: 1, length: 200, mask: 95 },
        busy(3),
        Poll { node: 0 },
    ] {
        c.apply(operation);
    }
    c.settle();
}

#[test]
fn a_set_up_that_could_stall_is_refused_with_what_it_needs() {
    let make = |setup: &Setup, control_blocks: u32, capacity: usize| {
        let net = setup.start().net;
        net.borrow_mut().capacity = capacity;
        let (config, blocks) = (Config { control_blocks, ..setup.config(4) }, 100);
        let memory = HeapMemory::new(stride(setup.body) * blocks).unwrap();
        let storage = Storage::allocate(&config, blocks, 8);
        Engine::new(config, setup.policy, port(4, &net), memory, storage).err()
    };
    for (routing, links) in [(Routing::Direct, 8), (Routing::Grid, 5)] {
        let setup = Setup { nodes: 9, routing, ..setup(Links::Mixed) };
        assert_eq!(setup.config(4).min_control_blocks(), links);
        assert_eq!(make(&setup, links, 3), None);
        let error = make(&setup, links - 1, 3).unwrap();
        assert_eq!(error, ConfigError::Control { have: links - 1, need: links });
        assert!(error.to_string().contains("set aside one for each"), "{error}");
        for have in [0, 2] {
            let error = make(&setup, links, have).unwrap();
            assert_eq!(error, ConfigError::Capacity { peer: node(0), have, need: 3 });
            assert!(error.to_string().contains("give it room for 3"), "{error}");
        }
    }
    assert_eq!(Setup { nodes: 1, ..setup(Links::Mixed) }.config(0).min_control_blocks(), 1);
}
