//! Byte rings of `bbqueue` (bip buffers), one per ordered pair of nodes, without framing.
//!
//! The sender asks for a grant of exactly one packet, copies it in and commits; the receiver takes the available contiguous bytes in one grant and
//! reads the packets in place. Every grant and commit changes shared atomics, two of them by read-modify-write, so small packets cost more than
//! over [`super::rtrb`].
//!
//! **Ring size**: see [`ring_bytes`].

use std::sync::Arc;

use bbqueue::nicknames::YakiNiku;
use bbqueue::traits::storage::BoxedSlice;

use super::{Publishing, ring_bytes};
use crate::fabric::{Endpoint, Fabric};
use crate::scenario::Scenario;
use crate::source::copy_packet;

/// Nodes connected by one bip buffer per ordered pair.
#[derive(Debug)]
pub struct BbQueue;

/// A node's ends of its buffers. Producers and consumers are created on the spot: they are only references, while those of the crate that own the
/// buffer would count references at each grant.
pub struct BbEndpoint {
    /// By destination; `None` where nothing is sent to.
    outgoing: Vec<Option<Arc<YakiNiku>>>,
    incoming: Vec<Arc<YakiNiku>>,
    packet: usize,
}

impl Fabric for BbQueue {
    type Endpoint = BbEndpoint;
    type Seat = Self::Endpoint;

    fn connect(scenario: &Scenario) -> Vec<Self::Seat> {
        let mut nodes: Vec<_> = (0..scenario.nodes)
            .map(|_| BbEndpoint {
                outgoing: vec![None; scenario.nodes],
                incoming: Vec::new(),
                packet: scenario.packet,
            })
            .collect();
        for from in 0..scenario.nodes {
            for (to, _) in scenario.destinations(from) {
                let queue = Arc::new(YakiNiku::new_with_storage(BoxedSlice::new(ring_bytes(
                    scenario,
                    Publishing::Each,
                ))));
                nodes[from].outgoing[to] = Some(Arc::clone(&queue));
                nodes[to].incoming.push(queue);
            }
        }
        nodes
    }
}

impl Endpoint for BbEndpoint {
    #[inline]
    fn try_send(&mut self, to: usize, packet: &[u8]) -> bool {
        let Some(queue) = &self.outgoing[to] else { return false };
        let Ok(mut grant) = queue.stream_producer().grant_exact(packet.len()) else { return false };
        copy_packet(&mut grant, packet);
        grant.commit(packet.len());
        true
    }

    #[inline]
    fn receive(&mut self, mut f: impl FnMut(&[u8])) -> usize {
        let mut count = 0;
        for queue in &self.incoming {
            let Ok(grant) = queue.stream_consumer().read() else { continue };
            grant.chunks_exact(self.packet).for_each(&mut f);
            count += grant.len() / self.packet;
            let whole = grant.len();
            grant.release(whole);
        }
        count
    }
}
