//! The conformance suite; each case runs on a new domain.

use pdbp_core::Transport;
use pdbp_mpi::{Hosts, Mpi, MpiMemory, Options};
use pdbp_sim::conformance::{Node, run_all};

use crate::launch;

/// Longest block of the domain, in bytes, and body of the suite's blocks, which are longer.
const LARGEST: usize = 40_000;
pub(crate) const BODY: usize = 48 << 10;

pub(crate) fn one_host() -> Result<(), String> {
    on(|_| Hosts::Detected)
}

pub(crate) fn apart() -> Result<(), String> {
    on(|_| Hosts::Apart)
}

pub(crate) fn two_hosts() -> Result<(), String> {
    on(|rank| Hosts::Coloured(rank % 2))
}

fn on(hosts: fn(u16) -> Hosts) -> Result<(), String> {
    let (rank, ranks) = launch::place().ok_or("not started by a launcher")?;
    let options = options(ranks, hosts(rank as u16));
    run(|| {
        let (end, memory) = Mpi::start(&options).unwrap();
        Node::new(end, memory, BODY)
    })
}

pub(crate) fn options(ranks: usize, hosts: Hosts) -> Options {
    let mut options = Options::new(Node::<Mpi, MpiMemory>::memory(ranks, BODY), LARGEST);
    options.in_flight = 4;
    options.hosts = hosts;
    options
}

pub(crate) fn run<T: Transport>(node: impl FnMut() -> Node<T, MpiMemory>) -> Result<(), String> {
    let report = run_all(node, &mut std::io::stdout());
    let failed = report.lines.iter().filter(|line| line.outcome.is_err());
    let failures: String = failed.map(|line| format!("{line}\n")).collect();
    if failures.is_empty() && report.lines.len() > 10 { Ok(()) } else { Err(failures) }
}
