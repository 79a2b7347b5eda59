use pdbp::{Backend, Builder, Cluster, Doorbell, HeapMemory, Memory};
use pdbp_core::Arrival;
use pdbp_core::umb::stride;
use pdbp_sim::fault::{Chance, FaultInjector, Faults};
use pdbp_sim::local::Local;
use std::sync::Arc;

use crate::{SOON, find, pair, until};

/// A backend of the program's own: blocks copied into posted ones, through a wrapper that is often busy, and that nobody rings
/// for.
#[test]
fn a_cluster_runs_on_a_transport_that_the_program_brings() {
    let builder: Builder = Cluster::builder().unwrap().block_bytes(2048).timeout(SOON);
    let memories: Vec<_> = (0..2).map(|_| HeapMemory::new(256 << 10).unwrap()).collect();
    let ends = Local::network(&memories, Arrival::Posted, stride(2048), 24);
    let nodes = ends.into_iter().zip(memories).map(|(end, memory)| {
        let busy =
            FaultInjector::new(end, Faults { busy: Chance::in_thousand(300).unwrap(), ..Faults::default() });
        (Backend::new(busy, Arc::new(Doorbell::default())), Box::new(memory) as Memory)
    });
    let cluster = builder.start_on(nodes.collect()).unwrap();
    assert_eq!(cluster.size(), 2);
    let (a, b) = pair(&cluster);
    let to = find(&a, "b@node1");
    for i in 0..500u32 {
        a.send(to, &i.to_le_bytes().repeat(20)).unwrap();
        if i % 50 == 49 {
            a.flush();
            for expected in i - 49..=i {
                let got = until(&[&a, &b], || b.try_recv().unwrap());
                assert_eq!(got[..4], expected.to_le_bytes());
            }
        }
    }
}
