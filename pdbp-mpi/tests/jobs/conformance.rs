//! The conformance suite, each case on a new domain.

use pdbp_mpi::{Hosts, Mpi, MpiMemory, Options};
use pdbp_sim::conformance::{Node, run_all};

use crate::launch;

/// Longest block of the domain, and body of the blocks of the suite, which are longer.
const LARGEST: usize = 40_000;
const BODY: usize = 48 << 10;

pub(crate) fn one_host() -> Result<(), String> {
    run(|_| Hosts::Detected)
}

pub(crate) fn apart() -> Result<(), String> {
    run(|_| Hosts::Apart)
}

pub(crate) fn two_hosts() -> Result<(), String> {
    run(|rank| Hosts::Coloured(rank % 2))
}

fn run(hosts: fn(u16) -> Hosts) -> Result<(), String> {
    let (rank, ranks) = launch::place().ok_or("not started by a launcher")?;
    let mut options = Options::new(Node::<Mpi, MpiMemory>::memory(ranks, BODY), LARGEST);
    options.in_flight = 4;
    options.hosts = hosts(rank as u16);
    let node = || {
        let (end, memory) = Mpi::start(&options).unwrap();
        Node::new(end, memory, BODY)
    };
    let report = run_all(node, &mut std::io::stdout());
    let failed = report.lines.iter().filter(|line| line.outcome.is_err());
    let failures: String = failed.map(|line| format!("{line}\n")).collect();
    if failures.is_empty() && report.lines.len() > 10 { Ok(()) } else { Err(failures) }
}
