//! Members whose links fail without notice, as when a process is killed or a cable is pulled.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use pdbp::collective::{Group, GroupError, JoinError, Request, Sum};
use pdbp::{Backend, Cluster, Doorbell, HeapMemory, Interest, Memory, Node, NodeId};
use pdbp_core::Arrival;
use pdbp_core::umb::stride;
use pdbp_local::Local;
use pdbp_sim::fault::{FaultInjector, Faults, LinkFailure};

use super::meet;
use crate::{SOON, part};

/// One of four.
const GONE: usize = 2;

/// Runs `act` on each of four nodes, with a function by which the others lose the link to the node that goes.
/// With [`Arrival::InPlace`] members have a slate.
fn four(arrival: Arrival, act: impl Fn(&Node, &dyn Fn()) + Sync) {
    let memories: Vec<_> = (0..4).map(|_| HeapMemory::new(256 << 10).unwrap()).collect();
    let ends = Local::network(&memories, arrival, stride(2048), 24);
    let fail = Some(LinkFailure::when_tripped(NodeId::new(GONE as u16).unwrap()));
    let ends = ends.into_iter().enumerate().map(|(i, end)| {
        let fail = fail.filter(|_| i != GONE);
        let end = FaultInjector::new(end, Faults { fail, ..Faults::default() });
        (end.breaker(), Backend::new(end, Arc::new(Doorbell::default())))
    });
    let (breakers, backends): (Vec<_>, Vec<_>) = ends.unzip();
    let memories = memories.into_iter().map(|memory| Box::new(memory) as Memory);
    let builder = Cluster::builder().block_bytes(2048).timeout(SOON);
    let cluster = builder.start_on(backends.into_iter().zip(memories).collect()).unwrap();
    let ended = AtomicUsize::new(0);
    cluster.run(|node| {
        act(&node, &|| breakers.iter().enumerate().filter(|(i, _)| *i != GONE).for_each(|(_, b)| b.trip()));
        meet(&ended, 4);
    });
}

fn lost(name: &str) -> GroupError {
    GroupError::Lost { rank: GONE, address: format!("{name}#{GONE}@node{GONE}") }
}

type Act = fn(&mut Group) -> Result<(), GroupError>;

/// Calls. Those that others may finish without the member that is gone are followed by a barrier.
const CALLS: [Act; 7] = [
    |all| all.barrier(),
    |all| all.all_reduce(&mut vec![1f32; 50_000], Sum),
    |all| all.scatter(GONE, None, &mut [0u8; 100]),
    |all| {
        let mut got = [0u8; 400];
        let is_root = all.rank() == 1;
        all.gather(1, &[1u8; 100], is_root.then_some(&mut got[..])).and_then(|()| all.barrier())
    },
    |all| all.broadcast(0, &mut vec![0u8; 50_000]).and_then(|()| all.barrier()),
    |all| all.all_to_all(&[0u8; 400], &mut [0u8; 400]),
    |all| {
        let give = vec![0u8; 400_000];
        let is_root = all.rank() == 1;
        all.scatter(1, is_root.then_some(&give[..]), &mut vec![0; 100_000]).and_then(|()| all.barrier())
    },
];

#[test]
fn a_member_whose_links_fail_ends_the_call_at_all_others_with_its_name() {
    for arrival in [Arrival::Posted, Arrival::InPlace] {
        for call in CALLS {
            let joined = AtomicUsize::new(0);
            four(arrival, |node, cut| {
                let mut all = Group::of_nodes(node, "all", SOON).unwrap();
                assert_eq!(all.shares_memory(), arrival == Arrival::InPlace);
                all.barrier().unwrap();
                meet(&joined, 4);
                if node.id().index() != GONE {
                    cut();
                    assert_eq!(call(&mut all), Err(lost("all")));
                    assert_eq!(all.barrier(), Err(lost("all")));
                    let error = Group::of_nodes(node, "again", SOON).unwrap_err();
                    let address = format!("again#{GONE}@node{GONE}");
                    assert_eq!(error, JoinError::Lost { rank: GONE, address });
                }
            });
        }
    }
}

/// All others have greeted the member, and wait for its greeting.
#[test]
fn a_member_whose_links_fail_while_it_joins_is_lost() {
    for arrival in [Arrival::Posted, Arrival::InPlace] {
        four(arrival, |node, cut| {
            if node.id().index() == GONE {
                let silent = part(node, &format!("all#{GONE}"));
                let mut greeted = 0;
                while greeted < 3 {
                    silent.wait(Interest::Recv, SOON).unwrap();
                    greeted += u32::from(silent.try_recv().is_some());
                }
                return cut();
            }
            let error = Group::of_nodes(node, "all", SOON).unwrap_err();
            assert_eq!(error, JoinError::Lost { rank: GONE, address: format!("all#{GONE}@node{GONE}") });
        });
    }
}

#[test]
fn a_member_whose_links_fail_ends_a_call_that_is_only_polled() {
    for arrival in [Arrival::Posted, Arrival::InPlace] {
        let (joined, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
        four(arrival, |node, cut| {
            let mut all = Group::of_nodes(node, "all", SOON).unwrap();
            all.barrier().unwrap();
            meet(&joined, 4);
            if node.id().index() != GONE {
                cut();
                let began = Instant::now();
                let mut data = [0u8; 1000];
                let done = all.start(Request::broadcast(GONE, &mut data)).and_then(|mut call| {
                    while !call.poll()? {
                        assert!(began.elapsed() < SOON, "it is polled for ever");
                        std::thread::yield_now();
                    }
                    Ok(())
                });
                assert_eq!(done, Err(lost("all")));
            }
            // The one that is gone does not say so.
            meet(&ended, 4);
        });
    }
}
