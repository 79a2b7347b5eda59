//! PDBP as a peer: the rank's node, its part, and the three ways of sending that are measured.
//!
//! Settings are PDBP's defaults, those from its environment variables, and those from the command line; but progress is made by the rank's own
//! thread (`progress = "inline"`), which is then the only one that calls MPI.

use std::time::Duration;

use pdbp::{Builder, Cluster, Node, SendError, Target};

use super::{Group, Traffic};
use crate::exchange::{self, Idle, PATIENCE};
use crate::fabric::Endpoint;
use crate::peers::PdbpEndpoint;
use crate::scenario::Scenario;
use crate::source::{Source, Tally, copy_packet, read_every_byte};

/// This rank's node of a cluster of all ranks.
pub(super) struct Member {
    // Before the cluster, so that its part is dropped first.
    endpoint: PdbpEndpoint,
    node: Node,
    _cluster: Cluster,
}

impl Member {
    /// Starts the node. All `ranks` of the job call it.
    pub(super) fn start(rank: usize, ranks: usize, settings: &[(String, String)]) -> Result<Self, String> {
        let builder = Builder::from_env().map_err(|error| error.to_string())?.set("progress", "inline");
        let builder = settings.iter().fold(builder, |builder, (key, value)| builder.set(key, value));
        let cluster = builder.start().map_err(|error| error.to_string())?;
        let node = match cluster.nodes() {
            [node] if cluster.size() == ranks && node.id().index() == rank => node.clone(),
            nodes => {
                return Err(format!(
                    "rank {rank} hosts {} of the cluster's {} nodes instead of node {rank} of {ranks}: this is no cluster over MPI",
                    nodes.len(),
                    cluster.size()
                ));
            }
        };
        Ok(Self { endpoint: PdbpEndpoint::new(&node, ranks), node, _cluster: cluster })
    }

    /// The longest message that fits into a block.
    pub(super) fn longest(&self) -> usize {
        self.endpoint.part().longest()
    }

    /// Its part, with where it sends to.
    pub(super) fn endpoint(&mut self) -> &mut PdbpEndpoint {
        &mut self.endpoint
    }

    /// Does what others wait for.
    pub(super) fn help(&self) {
        self.node.poll();
    }
}

/// Single messages, in the loop that all endpoints share.
pub(super) struct Messages<E> {
    node: exchange::Node<E>,
    scenario: Scenario,
}

impl<E: Endpoint> Messages<E> {
    pub(super) fn new(what: &str, group: &Group, scenario: &Scenario, endpoint: E) -> Self {
        let node = exchange::Node::new(what.to_owned(), group.rank(), scenario, endpoint);
        Self { node, scenario: *scenario }
    }
}

impl<E: Endpoint> Traffic for Messages<E> {
    fn exchange(&mut self, count: u64) {
        self.node.exchange(count);
    }

    fn help(&mut self) {
        self.node.help();
    }

    fn verify(&self, count: u64) {
        self.node.verify(&self.scenario, count);
    }
}

/// Sends by writing into loaned blocks; receives as usual.
pub(super) struct Loans<'e>(pub(super) &'e mut PdbpEndpoint);

impl Endpoint for Loans<'_> {
    #[inline]
    fn try_send(&mut self, to: usize, packet: &[u8]) -> bool {
        let target = self.0.target(to);
        match self.0.part().sender(target).no_wait().loan(packet.len()) {
            Ok(mut loan) => {
                copy_packet(&mut loan, packet);
                loan.send();
                true
            }
            Err(SendError::WouldBlock) => false,
            Err(error) => panic!("pdbp: {error}"),
        }
    }

    #[inline]
    fn receive(&mut self, f: impl FnMut(&[u8])) -> usize {
        self.0.receive(f)
    }

    fn flush(&mut self) {
        self.0.flush();
    }

    fn finished(&mut self) -> bool {
        self.0.finished()
    }
}

/// How a stream is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Loans,
    Copies,
}

/// Node 0 writes a stream, node 1 reads it.
pub(super) struct Stream<'e> {
    what: String,
    rank: usize,
    packet: usize,
    by: By,
    endpoint: &'e mut PdbpEndpoint,
    source: Source,
    /// Where in the source the next packet starts.
    at: usize,
    received: Tally,
}

impl<'e> Stream<'e> {
    pub(super) fn new(
        what: &str,
        rank: usize,
        (packet, by): (usize, By),
        endpoint: &'e mut PdbpEndpoint,
    ) -> Self {
        let source = Source::new(rank, packet);
        Self { what: what.to_owned(), rank, packet, by, endpoint, source, at: 0, received: Tally::default() }
    }

    fn write(&mut self, count: u64) -> Result<(), SendError> {
        let target = self.endpoint.target(1);
        let part = self.endpoint.part();
        let mut stream = part.open_stream(target).unwrap_or_else(|error| panic!("{}: {error}", self.what));
        for _ in 0..count {
            let mut rest = &self.source.bytes()[self.at..self.at + self.packet];
            while !rest.is_empty() {
                if self.by == By::Copies {
                    rest = &rest[stream.write_some(rest)?..];
                    continue;
                }
                let room = stream.loan(rest.len())?;
                let (now, later) = rest.split_at(room.len());
                copy_packet(room, now);
                stream.advance(now.len());
                rest = later;
            }
            let next = self.at + self.packet;
            self.at = if next + self.packet <= self.source.bytes().len() { next } else { 0 };
        }
        stream.finish()
    }

    fn read(&mut self, count: u64) -> Result<(), pdbp::RecvError> {
        let mut stream = self.endpoint.part().accept_stream(PATIENCE)?;
        let mut bytes = 0;
        // Segments, like packets, are multiples of 8 bytes long, so that their words are the packets' words.
        while let Some(segment) = stream.next_segment(PATIENCE)? {
            bytes += segment.len() as u64;
            self.received.sum = self.received.sum.wrapping_add(read_every_byte(&segment));
        }
        assert_eq!(bytes, count * self.packet as u64, "{}: the stream's length", self.what);
        self.received.packets += count;
        Ok(())
    }

    /// Until all blocks are back.
    fn settle(&mut self) {
        let mut idle = Idle::new(2);
        while !self.endpoint.finished() {
            assert!(!idle.wait(), "{}: blocks do not come back to rank {}", self.what, self.rank);
        }
    }
}

impl Traffic for Stream<'_> {
    fn exchange(&mut self, count: u64) {
        if self.rank == 0 {
            self.write(count).unwrap_or_else(|error| panic!("{}: {error}", self.what));
        } else {
            self.read(count).unwrap_or_else(|error| panic!("{}: {error}", self.what));
        }
        self.settle();
    }

    fn help(&mut self) {
        self.endpoint.finished();
    }

    fn verify(&self, count: u64) {
        let origins = (self.rank == 1).then_some((0, count));
        let expected = Tally::expected(origins.into_iter(), self.packet);
        if let Err(difference) = self.received.verify(&expected) {
            panic!("{}: rank {}: {difference}", self.what, self.rank);
        }
    }
}

/// One end of a ping-pong.
pub(super) struct Pong<'e> {
    endpoint: &'e mut PdbpEndpoint,
    target: Target,
}

impl<'e> Pong<'e> {
    pub(super) fn new(group: &Group, endpoint: &'e mut PdbpEndpoint) -> Self {
        let target = endpoint.target(1 - group.rank());
        Self { endpoint, target }
    }

    /// `recv` flushes what was sent before.
    pub(super) fn send(&self, message: &[u8]) -> Result<(), SendError> {
        self.endpoint.part().send(self.target, message)
    }

    /// Reads the next message.
    pub(super) fn receive(&self, patience: Duration) -> Result<(usize, u64), pdbp::RecvError> {
        let message = self.endpoint.part().recv_timeout(patience)?;
        Ok((message.len(), read_every_byte(&message)))
    }

    /// Sends the last message off.
    pub(super) fn help(&mut self) {
        self.endpoint.finished();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loaned_and_long_messages_arrive_whole() {
        let cluster = Cluster::builder().nodes(2).set("progress", "inline").start().unwrap();
        let mut ends: Vec<_> = cluster.nodes().iter().map(|node| PdbpEndpoint::new(node, 2)).collect();
        let [one, other] = &mut ends[..] else { panic!("two nodes") };
        let long = Source::new(1, 300_000);
        for packet in [&b"loan"[..], &[7; 4096]] {
            assert!(Loans(one).try_send(1, packet));
            one.flush();
            assert_eq!(Loans(other).receive(|got| assert_eq!(got, packet)), 1);
        }
        assert!(one.try_send(1, long.bytes()));
        one.flush();
        let mut arrived = 0;
        while arrived == 0 {
            arrived = other.receive(|got| assert_eq!(got, long.bytes()));
        }
        while !(one.finished() && other.finished()) {}
    }

    #[test]
    fn streams_carry_whole_packets() {
        let cluster = Cluster::builder().nodes(2).set("progress", "inline").start().unwrap();
        for (packet, by) in [8, 65536, 300_000].into_iter().flat_map(|p| [(p, By::Loans), (p, By::Copies)]) {
            cluster.run(|node| {
                let mut endpoint = PdbpEndpoint::new(&node, 2);
                let mut stream = Stream::new("stream", node.id().index(), (packet, by), &mut endpoint);
                stream.exchange(10);
                stream.exchange(20);
                node.barrier(PATIENCE).unwrap();
                stream.verify(30);
            });
        }
    }
}
