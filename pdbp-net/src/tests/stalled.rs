//! A node that receives nothing delays only its own link, and costs its peer no more than what that has set aside.

use std::time::Instant;

use pdbp_core::Transport;
use pdbp_core::umb::{BlockPool, HeapMemory, stride};

use super::*;
use crate::LinkState;
use crate::ring::codec::room_for;

const NODES: usize = 8;
const IN_FLIGHT: usize = 6;
/// Blocks for each node that receives.
const MESSAGES: u64 = 400;
const BODY: usize = 900;
/// Buffers for packed blocks, beyond the one that each link has.
const BUFFERS: usize = 4;

/// A node, and its blocks.
struct End {
    // Before the pool.
    net: Net,
    pool: BlockPool<HeapMemory>,
    /// By peer: submitted, and taken there.
    sent: [(u64, u64); NODES],
    received: u64,
    posted: usize,
}

impl End {
    fn new(net: Net, blocks: usize) -> Self {
        let node = net.capabilities().node;
        let memory = HeapMemory::new(stride(BODY) * blocks).unwrap();
        let pool = BlockPool::new(memory, node, BODY);
        Self { net, pool, sent: [(0, 0); NODES], received: 0, posted: 0 }
    }

    /// Submits as many blocks as the transport takes.
    fn submit(&mut self, peer: usize, most: u64) {
        let to = NodeId::new(peer as u16).unwrap();
        while self.sent[peer].0 < most {
            let Some(mut block) = self.pool.take() else { return };
            let number = self.sent[peer].0;
            block.bytes_mut()[..8].copy_from_slice(&number.to_le_bytes());
            block.bytes_mut()[8..].fill(number as u8);
            let block = self.pool.seal(block, 800);
            if let Err(Refused { op: Op::Send { block, .. }, .. }) =
                self.net.submit(Op::Send { peer: to, block })
            {
                assert!(self.pool.give_sealed(block).is_ok());
                return;
            }
            self.sent[peer].0 += 1;
        }
    }

    fn post(&mut self) {
        let peer = NodeId::new(0).unwrap();
        while self.posted < IN_FLIGHT
            && let Some(block) = self.pool.take()
        {
            assert!(self.net.submit(Op::Recv { peer, block }).is_ok());
            self.posted += 1;
        }
    }

    fn poll(&mut self) {
        while let Some(completion) = self.net.poll_completion() {
            match completion {
                Completion::Sent { peer, block } => {
                    self.sent[peer.index()].1 += 1;
                    assert!(self.pool.give_sealed(block).is_ok());
                }
                Completion::Received { block, .. } => {
                    let expected = self.received;
                    assert_eq!(block.bytes()[..8], expected.to_le_bytes(), "once, and in order");
                    assert!(block.bytes()[8..].iter().all(|byte| *byte == expected as u8));
                    (self.received, self.posted) = (expected + 1, self.posted - 1);
                    assert!(self.pool.give_arrived(block).is_ok());
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Node 1 is never polled, and posts nothing. Node 0 has just as many blocks as all links may have in flight.
fn six_of_seven_get_all(codec: Codec, framing: crate::Framing) {
    let ring_bytes = (NODES + BUFFERS) * room_for(1000);
    let options = Options { in_flight: IN_FLIGHT, codec, framing, ring_bytes, ..Options::new(1000) };
    let options = Options { workers: Some(0), linger: Duration::ZERO, ..options };
    let mut ends = ends_of(NODES, options).into_iter();
    let mut first = End::new(ends.next().unwrap(), (NODES - 1) * IN_FLIGHT);
    let stalled = ends.next().unwrap();
    let mut others: Vec<_> = ends.map(|net| End::new(net, IN_FLIGHT)).collect();
    let began = Instant::now();
    while others.iter().any(|other| other.received < MESSAGES)
        || first.sent[2..].iter().any(|s| s.1 < MESSAGES)
    {
        assert!(began.elapsed() < SOON, "{:?}", first.sent);
        first.submit(1, u64::MAX);
        (2..NODES).for_each(|peer| first.submit(peer, MESSAGES));
        first.poll();
        others.iter_mut().for_each(|other| {
            other.post();
            other.poll();
        });
    }
    assert_eq!(first.sent[1], (IN_FLIGHT as u64, 0), "what may be under way to it waits, and no more");
    let stats = first.net.stats();
    let links = &stats.links[2..];
    // A busy host may have connected a link twice, and sent blocks again.
    assert!(links.iter().all(|link| (link.sent, link.failures) == (MESSAGES, 0)), "{links:?}");
    let malformed = |net: &Net| net.stats().links.iter().map(|link| link.malformed).sum::<u64>();
    assert_eq!(others.iter().map(|other| malformed(&other.net)).sum::<u64>() + malformed(&first.net), 0);
    assert_eq!((stats.links[1].sent, stats.links[1].state), (0, LinkState::Up));
    let buffers = first.net.ring.send.buffers.total();
    assert!(buffers <= NODES + BUFFERS, "{buffers} buffers for packed blocks");
    drop((first, stalled));
}

#[test]
fn a_stalled_peer_of_eight_keeps_nobody_else_waiting() {
    six_of_seven_get_all(Codec::None, crate::Framing::Tcp);
}

#[test]
fn a_stalled_peer_of_eight_keeps_nobody_else_waiting_for_a_buffer() {
    six_of_seven_get_all(Codec::Lz4, crate::Framing::Tcp);
}

#[test]
fn a_stalled_peer_of_eight_keeps_nobody_else_waiting_by_soap() {
    six_of_seven_get_all(Codec::Lz4, crate::Framing::Soap);
}
