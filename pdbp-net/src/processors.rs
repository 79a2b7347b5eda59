//! How many threads may pack and expand: each node of this host keeps a processor, and if none remain, the pollers do the work in line.
//!
//! Which nodes share this host is known only as they connect. A founder is alone at first, so the number is adjusted all the time.

use mio::net::TcpStream;

use crate::door::roster::Roster;
use crate::options::Options;
use crate::ring::codec::Codec;
use crate::socket::local_peer;

/// Maximum threads that pack and expand, unless the number is configured.
const MOST: usize = 4;

/// The processors of this host, and the nodes that share them.
pub(crate) struct Processors {
    all: usize,
    /// The number of threads, if it is fixed.
    fixed: Option<usize>,
    /// By node: whether it runs on this host, as this one does.
    here: Box<[bool]>,
}

impl Processors {
    pub(crate) fn new(options: &Options, roster: &Roster) -> Self {
        let own = roster.own().map(|member| member.address.ip());
        let here = roster.members.iter().map(|member| member.is_some_and(|it| Some(it.address.ip()) == own));
        Self {
            all: std::thread::available_parallelism().map_or(1, usize::from),
            fixed: options.workers.or((options.codec == Codec::None).then_some(0)),
            here: here.collect(),
        }
    }

    /// Notes that a node has connected.
    pub(crate) fn connected(&mut self, node: usize, stream: &TcpStream) {
        self.set(node, local_peer(stream).is_some());
    }

    /// Notes that a node has failed or left.
    pub(crate) fn left(&mut self, node: usize) {
        self.set(node, false);
    }

    fn set(&mut self, node: usize, is_here: bool) {
        if let Some(here) = self.here.get_mut(node) {
            *here = is_here;
        }
    }

    /// Whether this host has more nodes than processors.
    pub(crate) fn are_crowded(&self) -> bool {
        self.nodes() > self.all
    }

    /// Number of nodes on this host.
    fn nodes(&self) -> usize {
        self.here.iter().filter(|here| **here).count().max(1)
    }

    /// Number of threads that pay off.
    pub(crate) fn threads(&self) -> usize {
        self.fixed.unwrap_or_else(|| {
            let here = self.nodes();
            (self.all.saturating_sub(here) / here).min(MOST)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_is_left_for_each_node_of_the_host() {
        let threads = |all, nodes| {
            let here = (0..8).map(|node| node < nodes).collect();
            Processors { all, fixed: None, here }.threads()
        };
        assert_eq!([1, 2, 4, 16].map(|all| threads(all, 1)), [0, 1, 3, 4]);
        assert_eq!([2, 4, 5, 16].map(|all| threads(all, 4)), [0, 0, 0, 3]);
    }

    #[test]
    fn those_that_leave_make_room() {
        let mut processors = Processors { all: 2, fixed: None, here: [true, true, false].into() };
        assert_eq!(processors.threads(), 0);
        processors.left(1);
        assert_eq!(processors.threads(), 1);
        processors.fixed = Some(3);
        assert_eq!(processors.threads(), 3);
    }
}
