//! Checks that the suite passes on sound transports and fails on broken ones.

#[allow(unsafe_code)]
mod broken;

use pdbp_core::umb::HeapMemory;
use pdbp_core::{Arrival, Transport};
use pdbp_local::Local;

use super::Node;
use crate::fault::{Chance, FaultInjector, Faults};
use crate::tracer::Tracer;

/// A domain of `nodes` nodes over `Local`, wrapped.
fn domain<T: Transport>(
    arrival: Arrival,
    nodes: usize,
    wrap: impl FnMut(Local) -> T,
) -> Vec<Node<T, HeapMemory>> {
    let memories = memories(nodes);
    let ends = Local::network(&memories, arrival, 1000, 4);
    wrapped(ends, memories, wrap)
}

/// As `domain`, of nodes on these hosts.
fn mixed<T: Transport>(hosts: &[usize], wrap: impl FnMut(Local) -> T) -> Vec<Node<T, HeapMemory>> {
    let memories = memories(hosts.len());
    let ends = Local::network_of_hosts(&memories, hosts, 1000, 4);
    wrapped(ends, memories, wrap)
}

fn memories(nodes: usize) -> Vec<HeapMemory> {
    let bytes = Node::<Local, HeapMemory>::memory(nodes, 1024);
    (0..nodes).map(|_| HeapMemory::new(bytes).unwrap()).collect()
}

fn wrapped<T: Transport>(
    ends: Vec<Local>,
    memories: Vec<HeapMemory>,
    wrap: impl FnMut(Local) -> T,
) -> Vec<Node<T, HeapMemory>> {
    ends.into_iter().map(wrap).zip(memories).map(|(end, memory)| Node::new(end, memory, 1024)).collect()
}

fn with(faults: Faults) -> impl FnMut(Local) -> FaultInjector<Local> {
    move |end| FaultInjector::new(end, faults)
}

fn none() -> Faults {
    Faults { seed: 1, ..Faults::default() }
}

fn busy() -> Faults {
    Faults { busy: Chance::in_thousand(300).unwrap(), ..none() }
}

fn delay() -> Faults {
    Faults { delay: 20, ..none() }
}

/// Corrupts nothing, but makes copies wherever it could.
fn armed() -> Faults {
    Faults { corrupt: Some(Chance::NEVER), ..none() }
}

fn traced(
    mut faulty: impl FnMut(Local) -> FaultInjector<Local>,
) -> impl FnMut(Local) -> Tracer<FaultInjector<Local>> {
    move |end| Tracer::new(faulty(end), 64)
}

use Arrival::{InPlace, Posted};

/// The last node, which leaves, has a peer of either kind; node 0, the subject of many cases, has posted ones only.
const ONE_AND_TWO: &[usize] = &[0, 1, 1];
/// Nodes 0 and 1, the subjects of most cases, are on one host; each has peers of either kind.
const TWO_AND_TWO: &[usize] = &[0, 0, 1, 1];

crate::conformance!(local_in_place_2, domain(InPlace, 2, |end| end));
crate::conformance!(local_in_place_3, domain(InPlace, 3, |end| end));
crate::conformance!(local_in_place_8, domain(InPlace, 8, |end| end));
crate::conformance!(local_posted_2, domain(Posted, 2, |end| end));
crate::conformance!(local_posted_3, domain(Posted, 3, |end| end));
crate::conformance!(local_posted_8, domain(Posted, 8, |end| end));
crate::conformance!(tracer_in_place, domain(InPlace, 3, |end| Tracer::new(end, 64)));
crate::conformance!(tracer_posted, domain(Posted, 3, |end| Tracer::new(end, 64)));
crate::conformance!(no_faults_in_place, domain(InPlace, 3, with(none())));
crate::conformance!(no_faults_posted, domain(Posted, 3, with(none())));
crate::conformance!(busy_in_place, domain(InPlace, 3, with(busy())));
crate::conformance!(busy_posted, domain(Posted, 3, with(busy())));
crate::conformance!(delay_in_place, domain(InPlace, 3, with(delay())));
crate::conformance!(delay_posted, domain(Posted, 3, with(delay())));
crate::conformance!(armed_in_place, domain(InPlace, 3, with(armed())));
crate::conformance!(armed_posted, domain(Posted, 3, with(armed())));
crate::conformance!(
    traced_busy_and_delay_in_place,
    domain(InPlace, 3, traced(with(Faults { delay: 20, ..busy() })))
);
crate::conformance!(
    traced_busy_and_delay_posted,
    domain(Posted, 3, traced(with(Faults { delay: 20, ..busy() })))
);
crate::conformance!(mixed_3, mixed(ONE_AND_TWO, |end| end));
crate::conformance!(mixed_4, mixed(TWO_AND_TWO, |end| end));
crate::conformance!(tracer_mixed, mixed(TWO_AND_TWO, |end| Tracer::new(end, 64)));
crate::conformance!(no_faults_mixed, mixed(ONE_AND_TWO, with(none())));
crate::conformance!(busy_mixed, mixed(TWO_AND_TWO, with(busy())));
crate::conformance!(delay_mixed, mixed(ONE_AND_TWO, with(delay())));
crate::conformance!(armed_mixed_3, mixed(ONE_AND_TWO, with(armed())));
crate::conformance!(armed_mixed_4, mixed(TWO_AND_TWO, with(armed())));
crate::conformance!(
    traced_busy_and_delay_mixed,
    mixed(TWO_AND_TWO, traced(with(Faults { delay: 20, ..busy() })))
);

/// Runs the cases as separate processes would.
#[test]
fn run_all_reports_every_case_once_per_node() {
    let domains: Vec<Vec<_>> =
        super::cases::<Local, HeapMemory>().iter().map(|_| domain(InPlace, 2, |end| end)).collect();
    let (mut zero, mut one) = (Vec::new(), Vec::new());
    for mut domain in domains {
        one.push(domain.remove(1));
        zero.push(domain.remove(0));
    }
    let run = |nodes: Vec<Node<Local, HeapMemory>>| {
        let mut nodes = nodes.into_iter();
        let mut out = Vec::new();
        let report = super::run_all(|| nodes.next().unwrap(), &mut out);
        (report, String::from_utf8(out).unwrap())
    };
    let reports = std::thread::scope(|scope| {
        let threads = [scope.spawn(|| run(zero)), scope.spawn(|| run(one))];
        threads.map(|t| t.join().unwrap())
    });
    for (report, text) in reports {
        assert!(report.is_passed(), "{report}");
        assert_eq!(report.to_string(), text);
        assert_eq!(text.lines().count(), super::cases::<Local, HeapMemory>().len());
    }
}
