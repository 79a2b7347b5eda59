//! Nodes that leave.

use pdbp_core::cdu::BLOCK_HEADER;
use pdbp_core::id::NodeId;
use pdbp_core::{BlockMemory, Op, Transport};

use super::super::contents::Kind;
use super::super::node::{Held, Node};
use super::super::{Failure, Verdict};
use super::refusal::{Why, expect};

/// The last node leaves while blocks are in flight to it and while others hold its blocks. Its peers hear of it once, get all their
/// blocks back, and continue.
pub(crate) fn peers_that_leave_fail_once<T: Transport, M: BlockMemory>(
    node: &mut Node<T, M>,
) -> Result<Verdict, Failure> {
    if !node.leaves() {
        return Ok(Verdict::Skipped("nodes cannot leave in this set-up"));
    }
    let leaver = node.node(usize::from(node.capabilities().nodes) - 1);
    node.exchange_all(4, &[BLOCK_HEADER])?;
    if node.id() == leaver {
        return leave(node);
    }
    let length = node.longest();
    let keepsake = node.receive(leaver, Kind::Data, length)?;
    node.let_fail(leaver);
    node.keep_posted(leaver, 2)?;
    node.send(leaver, Kind::Meet, BLOCK_HEADER)?;
    // The first send waits as long as needed, because the leaving node waits for that block.
    node.send(leaver, Kind::Data, length)?;
    for _ in 0..2 {
        node.try_send(leaver, Kind::Data, length)?;
    }
    node.wait("the link of the node that left to be reported failed, and all blocks to come back", |node| {
        node.is_down(leaver) && node.away(leaver) == 0 && node.posted(leaver) == 0
    })?;
    after(node, leaver, keepsake)
}

/// Checks the nodes that stay.
fn after<T: Transport, M: BlockMemory>(
    node: &mut Node<T, M>,
    leaver: NodeId,
    keepsake: Held,
) -> Result<Verdict, Failure> {
    if node.in_place(leaver) {
        // The first meeting, 4 blocks of the exchange, and the request. Blocks that the leaver never returned cannot have been
        // reported as sent.
        let sent = node.sent(leaver);
        node.ensure(sent <= 6, || {
            format!("{sent} blocks to {leaver} were reported as sent; it gave back 6")
        })?;
    }
    let block = node.vacant()?;
    let block = node.seal(block, BLOCK_HEADER);
    expect(node, Op::Send { peer: leaver, block }, "a block to a failed peer", &[Why::PeerFailed])?;
    if !node.in_place(leaver) {
        let block = node.vacant()?;
        expect(
            node,
            Op::Recv { peer: leaver, block },
            "a block posted for a failed peer",
            &[Why::PeerFailed],
        )?;
    }
    // The bytes of the block it left here are unchanged.
    node.release(keepsake)?;
    node.exchange_all(10, &[BLOCK_HEADER, node.longest()])?;
    // A second report would fail here.
    node.linger(200)?;
    Ok(Verdict::Passed)
}

fn leave<T: Transport, M: BlockMemory>(node: &mut Node<T, M>) -> Result<Verdict, Failure> {
    let peers = node.peers();
    let length = node.longest();
    for peer in &peers {
        node.send(*peer, Kind::Data, length)?;
    }
    for peer in &peers {
        let held = node.receive(*peer, Kind::Meet, BLOCK_HEADER)?;
        node.release(held)?;
    }
    let here = |node: &Node<T, M>| peers.iter().all(|p| !node.in_place(*p) || node.arrived(*p) > 0);
    node.wait("blocks to leave with", here)?;
    if peers.iter().any(|p| !node.in_place(*p)) {
        node.linger(100)?;
    }
    node.leave();
    Ok(Verdict::Left)
}

/// All nodes leave, one after the other, while blocks are in flight on all links.
pub(crate) fn everybody_may_leave_at_any_time<T: Transport, M: BlockMemory>(
    node: &mut Node<T, M>,
) -> Result<Verdict, Failure> {
    if !node.leaves() {
        return Ok(Verdict::Skipped("nodes cannot leave in this set-up"));
    }
    node.exchange_all(3, &[BLOCK_HEADER])?;
    let peers = node.peers();
    peers.iter().for_each(|peer| node.let_fail(*peer));
    node.meet()?;
    for peer in &peers {
        node.keep_posted(*peer, 2)?;
    }
    let length = node.longest();
    for round in 0..20 * (node.id().index() as u32 + 1) {
        for peer in &peers {
            node.try_send(*peer, Kind::Data, length)?;
            // Some blocks are returned, others held to the end.
            if round % 2 == 0
                && let Some(held) = node.next_arrived(*peer, Kind::Data, length)?
            {
                node.release(held)?;
            }
        }
        node.poll()?;
    }
    node.leave();
    Ok(Verdict::Left)
}
