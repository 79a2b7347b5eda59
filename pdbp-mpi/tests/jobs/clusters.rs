//! Clusters of the runtime.

use std::io::{Read, Write};
use std::time::Duration;

use pdbp::{Backend, Builder, Cluster, Node, Part, PartKind, Progress, Routing, Target};
use pdbp_core::umb::stride;
use pdbp_mpi::{Hosts, Mpi, Options};

use crate::launch;

/// Timeout for everything that is expected, long enough for a loaded machine.
pub(crate) const SOON: Duration = Duration::from_secs(200);
pub(crate) const BLOCK: usize = 2048;
const ROUNDS: u64 = 8;
const PER_ROUND: u64 = 20;
const MANY: u64 = 12;

pub(crate) fn builder() -> Builder {
    let builder = Builder::from_env().unwrap().set("transport", "mpi").block_bytes(BLOCK).timeout(SOON);
    builder.memory_bytes(1 << 20).set("assembly_bytes", "1000000")
}

pub(crate) fn builder_apart() -> Builder {
    builder().set("mpi_shared_memory", "off")
}

/// The node of this process.
pub(crate) fn node(cluster: &Cluster) -> Node {
    cluster.nodes()[0].clone()
}

pub(crate) fn part(node: &Node, name: &str) -> Part {
    node.register(name, PartKind::Cpu).unwrap()
}

pub(crate) fn find(part: &Part, name: &str, node: usize) -> Target {
    part.find(&format!("{name}@node{node}"), SOON).unwrap()
}

pub(crate) fn one_host() -> Result<(), String> {
    use_all(&builder().start().map_err(|e| e.to_string())?);
    Ok(())
}

pub(crate) fn apart() -> Result<(), String> {
    use_all(&builder_apart().start().map_err(|e| e.to_string())?);
    Ok(())
}

/// Six nodes in two rows of three: most pairs have no link.
pub(crate) fn grid() -> Result<(), String> {
    for builder in [builder(), builder_apart()] {
        let builder = builder.routing(Routing::Grid).set("masters", "1");
        let cluster = builder.start().map_err(|e| e.to_string())?;
        use_all(&cluster);
        let node = node(&cluster);
        // Node 3 could only relay for the master, which has links to all nodes.
        if node.stats().counters.relayed == 0 && node.id().index() != 3 {
            return Err("this node is the relay of two pairs, and has passed nothing on".to_owned());
        }
    }
    Ok(())
}

pub(crate) fn inline() -> Result<(), String> {
    let cluster = builder().progress(Progress::Inline).start().map_err(|e| e.to_string())?;
    use_all(&cluster);
    Ok(())
}

pub(crate) fn two_hosts() -> Result<(), String> {
    use_all(&cluster_of_two_hosts()?);
    Ok(())
}

/// A cluster in which every other rank is on another host.
pub(crate) fn cluster_of_two_hosts() -> Result<Cluster, String> {
    let (rank, _) = launch::place().ok_or("not started by a launcher")?;
    let mut options = Options::new(4 << 20, stride(BLOCK));
    options.hosts = Hosts::Coloured((rank % 2) as u16);
    let (end, memory) = Mpi::start(&options).map_err(|e| e.to_string())?;
    let bell = end.bell();
    let nodes = vec![(Backend::new(end, bell), Box::new(memory) as pdbp::Memory)];
    builder().start_on(nodes).map_err(|e| e.to_string())
}

/// Everything that a program does with a cluster.
pub(crate) fn use_all(cluster: &Cluster) {
    let (me, size) = (node(cluster).id().index(), cluster.size());
    if let Some((rank, ranks)) = launch::place() {
        assert_eq!((me, size), (rank, ranks));
    }
    launch::name_files();
    cluster.run(|node| {
        let here = part(&node, "all");
        exchange(&here, me, size);
        node.quiesce(SOON).unwrap();
        node.barrier(SOON).unwrap();
        stream(&here, me, size);
        long_messages(&here, me, size);
        node.barrier(SOON).unwrap();
    });
}

/// Messages of many lengths, from each node to all others.
pub(crate) fn exchange(here: &Part, me: usize, size: usize) {
    let others: Vec<_> = (0..size).filter(|n| *n != me).collect();
    let targets: Vec<_> = others.iter().map(|n| find(here, here.name(), *n)).collect();
    let mut expected = vec![0; size];
    for round in 0..ROUNDS {
        for number in PER_ROUND * round..PER_ROUND * (round + 1) {
            for target in &targets {
                let mut message = vec![number as u8; 16 + (number as usize * 37) % 300];
                message[..8].copy_from_slice(&(me as u64).to_le_bytes());
                message[8..16].copy_from_slice(&number.to_le_bytes());
                here.send(*target, &message).unwrap();
            }
        }
        here.flush();
        while others.iter().any(|n| expected[*n] < PER_ROUND * (round + 1)) {
            let message = here.recv().unwrap();
            let word = |at: usize| u64::from_le_bytes(message[at..at + 8].try_into().unwrap());
            let (from, number) = (word(0) as usize, word(8));
            assert_eq!(number, expected[from], "of node {from}");
            assert_eq!(message.source().node().index(), from);
            assert_eq!(message.len(), 16 + (number as usize * 37) % 300);
            assert!(message[16..].iter().all(|byte| *byte == number as u8));
            expected[from] += 1;
        }
    }
}

/// A stream around the ring.
fn stream(here: &Part, me: usize, size: usize) {
    let next = (me + 1) % size;
    let to = find(here, here.name(), next);
    let text: Vec<u8> = (0..60_000u32).map(|i| (i / 7) as u8).collect();
    let mut out = here.open_stream(to).unwrap();
    out.write_all(&text[..5_000]).unwrap();
    out.flush().unwrap();
    let mut incoming = here.accept_stream(SOON).unwrap();
    // All begin to read before they write the rest: otherwise all could be blocked writing to full pipes.
    let mut got = Vec::new();
    for piece in text[5_000..].chunks(5_000) {
        let mut part = vec![0; 5_000];
        incoming.read_exact(&mut part).unwrap();
        got.extend(part);
        out.write_all(piece).unwrap();
        out.flush().unwrap();
    }
    out.finish().unwrap();
    incoming.read_to_end(&mut got).unwrap();
    assert!(got == text, "the stream has other bytes");
}

/// Messages of several blocks each, to the next node.
fn long_messages(here: &Part, me: usize, size: usize) {
    let to = find(here, here.name(), (me + 1) % size);
    for length in [5_000, 9_000] {
        here.send(to, &vec![length as u8; length]).unwrap();
        here.flush();
        let message = here.recv().unwrap();
        assert_eq!(*message, *vec![length as u8; length]);
    }
}

/// A rank that has sent messages and goes on to start a second cluster must still deliver them: the others may wait for them before they
/// start theirs.
pub(crate) fn another_starts() -> Result<(), String> {
    // Longer than the messages that MPI sends eagerly.
    let large = || builder_apart().block_bytes(64 << 10).memory_bytes(16 << 20);
    let first = large().start().map_err(|e| e.to_string())?;
    let here = part(&node(&first), "all");
    let (me, _) = launch::place().ok_or("not started by a launcher")?;
    let to = find(&here, "all", 1 - me);
    if me == 0 {
        for number in 0..MANY {
            here.send(to, &number.to_le_bytes().repeat(3000)).unwrap();
        }
        here.flush();
        launch::give_sign("starts");
    } else {
        // Rank 0 starts the second cluster with most of its messages still unsent. If it has not got that far, the test checks less.
        launch::wait_for_sign("starts");
        for number in 0..MANY {
            assert_eq!(here.recv().unwrap()[..8], number.to_le_bytes());
        }
    }
    let second = builder_apart().start().map_err(|e| e.to_string())?;
    use_all(&second);
    node(&first).quiesce(SOON).unwrap();
    node(&first).barrier(SOON).unwrap();
    Ok(())
}
