//! The runtime as its users see it, in every progress mode.

mod backends;
mod blocking;
mod collective;
mod copies;
mod crowds;
#[cfg(feature = "cuda")]
mod device;
mod events;
mod failures;
mod interrupts;
mod lengths;
mod lone;
mod messages;
mod nameless;
mod names;
mod pinned;
mod relays;
mod sharing;
mod streams;
mod supersteps;
#[cfg(target_os = "linux")]
mod tasks;
mod together;

use std::time::Duration;

use pdbp::{Builder, Cluster, Node, Part, PartKind, Progress, Target};

/// Long enough for a loaded machine; a test that waits this long has failed.
pub(crate) const SOON: Duration = Duration::from_secs(60);
/// For waits that are expected to end without success.
pub(crate) const BRIEFLY: Duration = Duration::from_millis(30);

/// A cluster for each progress mode, with small blocks and little memory so that every limit is met.
pub(crate) fn clusters(nodes: u16) -> impl Iterator<Item = Cluster> {
    [Progress::Thread, Progress::Inline, Progress::Host]
        .into_iter()
        .map(move |progress| small(nodes, progress))
}

pub(crate) fn small(nodes: u16, progress: Progress) -> Cluster {
    small_builder(nodes, progress).start().unwrap()
}

pub(crate) fn small_builder(nodes: u16, progress: Progress) -> Builder {
    Cluster::builder()
        .nodes(nodes)
        .progress(progress)
        .block_bytes(1024)
        .set("pack_bytes", "512")
        .memory_bytes(128 << 10)
        .set("row_blocks", "8")
        .set("assembly_bytes", "1000000")
        .timeout(SOON)
}

pub(crate) fn part(node: &Node, name: &str) -> Part {
    node.register(name, PartKind::Cpu).unwrap()
}

pub(crate) fn find(part: &Part, address: &str) -> Target {
    part.find(address, SOON).unwrap()
}

/// Two parts on two nodes of one thread: `a` on node 0 and `b` on node 1.
pub(crate) fn pair(cluster: &Cluster) -> (Part, Part) {
    (part(&cluster.node(0).unwrap(), "a"), part(&cluster.node(1).unwrap(), "b"))
}

/// Polls both parts' nodes until `done` returns a value: for tests that run several nodes on one thread.
pub(crate) fn until<R>(parts: &[&Part], mut done: impl FnMut() -> Option<R>) -> R {
    let started = std::time::Instant::now();
    loop {
        for part in parts {
            part.node().poll();
        }
        if let Some(result) = done() {
            return result;
        }
        assert!(started.elapsed() < SOON, "waited too long");
        std::thread::yield_now();
    }
}
