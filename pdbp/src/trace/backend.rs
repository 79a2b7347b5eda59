//! A transport whose blocks are traced.

use std::sync::Arc;

use pdbp_core::cdu::{BLOCK_HEADER, BlockHeader};
use pdbp_core::id::{BlockId, NodeId};
use pdbp_core::{Capabilities, Completion, Op, Refused, Transport};

use super::Ring;
use super::record::{Block, TraceEvent};
use crate::node::{BackendError, Carrier};

/// Records the blocks that a transport takes and returns.
pub(crate) struct Traced {
    inner: Box<dyn Carrier>,
    ring: Arc<Ring>,
}

impl Traced {
    pub(crate) fn new(inner: Box<dyn Carrier>, ring: Arc<Ring>) -> Self {
        Self { inner, ring }
    }

    #[cfg(feature = "net")]
    pub(crate) fn inner(&self) -> &dyn Carrier {
        &*self.inner
    }
}

/// Describes a block. `None` for a malformed one, which the engine reports in more detail.
fn describe(id: BlockId, bytes: &[u8]) -> Option<Block> {
    let header = BlockHeader::read(bytes).ok()?;
    Some(Block {
        id,
        class: header.class(),
        sequence: header.sequence(),
        messages: header.messages(),
        bytes: BLOCK_HEADER + header.length(),
    })
}

enum Taken {
    Sent(NodeId, Option<Block>),
    Returned(BlockId),
    Posted,
}

impl Transport for Traced {
    type Error = BackendError;
    pdbp_core::forward_links!(inner);

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn submit(&mut self, op: Op) -> Result<(), Refused<BackendError>> {
        let taken = match &op {
            Op::Send { peer, block } => Taken::Sent(*peer, describe(block.id(), block.bytes())),
            Op::Return { block, .. } => Taken::Returned(block.id()),
            Op::Recv { .. } => Taken::Posted,
        };
        let began = self.ring.now();
        self.inner.submit(op)?;
        match taken {
            Taken::Sent(peer, Some(block)) => {
                let nanos = self.ring.now() - began;
                self.ring.push(began, TraceEvent::Out { peer, nanos, block });
            }
            Taken::Returned(id) => self.ring.push(began, TraceEvent::Released { id }),
            Taken::Sent(..) | Taken::Posted => {}
        }
        Ok(())
    }

    fn poll_completion(&mut self) -> Option<Completion<BackendError>> {
        let began = self.ring.now();
        let completion = self.inner.poll_completion()?;
        match &completion {
            Completion::Sent { block, .. } | Completion::Failed { block, .. } => {
                self.ring.push(began, TraceEvent::Returned { id: block.id() });
            }
            Completion::Received { peer, block } => {
                if let Some(block) = describe(block.id(), block.bytes()) {
                    let nanos = self.ring.now() - began;
                    self.ring.push(began, TraceEvent::In { peer: *peer, nanos, block });
                }
            }
            Completion::Unused { .. } | Completion::PeerFailed { .. } | Completion::PeerRestored { .. } => {}
        }
        Some(completion)
    }
}
