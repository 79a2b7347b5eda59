//! Impossible operations are refused and handed back whole.

use pdbp_core::cdu::BLOCK_HEADER;
use pdbp_core::id::NodeId;
use pdbp_core::{BlockMemory, Op, Reason, Transport};

use super::super::node::Node;
use super::super::{Failure, Verdict};

/// A block longer than the longest is refused as unsupported.
pub(crate) fn too_long_blocks_are_refused<T: Transport, M: BlockMemory>(
    node: &mut Node<T, M>,
) -> Result<Verdict, Failure> {
    let longest = node.capabilities().largest_block;
    if node.room() <= longest {
        return Ok(Verdict::Skipped(
            "the pool's blocks are not longer than the longest that the transport carries",
        ));
    }
    for peer in node.peers() {
        for length in [longest + 1, node.room()] {
            let block = node.vacant()?;
            let block = node.seal(block, length);
            expect(node, Op::Send { peer, block }, "a block that is too long", &[Why::Unsupported])?;
        }
    }
    node.exchange_all(3, &[longest])?;
    Ok(Verdict::Passed)
}

/// Operations of the other kind of arrival are refused as unsupported.
pub(crate) fn the_other_arrival_is_refused<T: Transport, M: BlockMemory>(
    node: &mut Node<T, M>,
) -> Result<Verdict, Failure> {
    for peer in node.peers() {
        let block = node.vacant()?;
        let op = match node.in_place(peer) {
            true => Op::Recv { peer, block },
            false => Op::Return { peer, block: block.into_arrived(BLOCK_HEADER) },
        };
        expect(node, op, "an operation of the other way of arrival", &[Why::Unsupported])?;
    }
    node.exchange_all(3, &[BLOCK_HEADER])?;
    Ok(Verdict::Passed)
}

/// Operations with the node itself, or with nodes that do not exist, are refused.
pub(crate) fn strangers_are_refused<T: Transport, M: BlockMemory>(
    node: &mut Node<T, M>,
) -> Result<Verdict, Failure> {
    let nodes = node.capabilities().nodes;
    let strangers = [Some(node.id()), NodeId::new(nodes), NodeId::new(u16::MAX - 1)];
    for peer in strangers.into_iter().flatten() {
        let block = node.vacant()?;
        let block = node.seal(block, BLOCK_HEADER);
        let either = [Why::PeerFailed, Why::Unsupported];
        expect(node, Op::Send { peer, block }, "a block to a stranger", &either)?;
        let block = node.vacant()?;
        let op = Op::Return { peer, block: block.into_arrived(BLOCK_HEADER) };
        expect(node, op, "a block given back to a stranger", &either)?;
        let op = Op::Recv { peer, block: node.vacant()? };
        expect(node, op, "a block posted for a stranger", &either)?;
    }
    node.exchange_all(3, &[BLOCK_HEADER])?;
    Ok(Verdict::Passed)
}

/// In place: a block can be returned to its owner only.
pub(crate) fn returns_to_others_are_refused<T: Transport, M: BlockMemory>(
    node: &mut Node<T, M>,
) -> Result<Verdict, Failure> {
    let mut verdict = Verdict::Passed;
    let peers: Vec<_> = node.peers().into_iter().filter(|p| node.in_place(*p)).collect();
    if peers.is_empty() {
        verdict = Verdict::Skipped("no peer's blocks arrive in place");
    }
    for peer in peers {
        let block = node.vacant()?.into_arrived(BLOCK_HEADER);
        expect(node, Op::Return { peer, block }, "a block that is not the peer's", &[Why::Unsupported])?;
    }
    node.exchange_all(3, &[BLOCK_HEADER])?;
    Ok(verdict)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    PeerFailed,
    Unsupported,
    Other,
}

/// Submits an operation that must be refused for one of the given reasons.
pub(super) fn expect<T: Transport, M: BlockMemory>(
    node: &mut Node<T, M>,
    mut op: Op,
    what: &str,
    reasons: &[Why],
) -> Result<(), Failure> {
    for _ in 0..1000 {
        let Some(refused) = node.submit(op)? else {
            return Err(node.failure(format!("{what} was accepted")));
        };
        let why = match &refused.reason {
            // Not decided yet.
            Reason::Busy => {
                op = refused.op;
                node.poll()?;
                continue;
            }
            Reason::PeerFailed => Why::PeerFailed,
            Reason::Unsupported => Why::Unsupported,
            _ => Why::Other,
        };
        node.ensure(reasons.contains(&why), || {
            format!("{what} was refused as {:?}; one of {reasons:?} was expected", refused.reason)
        })?;
        return node.take_back(refused.op);
    }
    Err(node.failure(format!("{what} was refused as Busy a thousand times")))
}
