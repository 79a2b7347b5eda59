//! Sent blocks arrive, and come back.

use pdbp_core::cdu::BLOCK_HEADER;
use pdbp_core::{Arrival, BlockMemory, Transport};

use super::super::contents::Kind;
use super::super::node::{Node, Traffic};
use super::super::{Failure, Verdict};
use super::lengths;

/// The capabilities fit the domain. They, the way each peer's blocks arrive, their best length and the capacity of its link are
/// the same at every call.
pub(crate) fn capabilities_are_constant<T: Transport, M: BlockMemory>(
    node: &mut Node<T, M>,
) -> Result<Verdict, Failure> {
    let before = node.capabilities();
    node.ensure(before.nodes >= 2, || format!("a domain of {} nodes; the suite needs 2", before.nodes))?;
    node.ensure(before.node.index() < usize::from(before.nodes), || format!("{before:?}: no such node"))?;
    node.ensure(before.largest_block > BLOCK_HEADER, || format!("{before:?}: no room for a body"))?;
    for _ in 0..3 {
        node.exchange_all(2, &[BLOCK_HEADER])?;
        let after = node.endpoint()?.capabilities();
        node.ensure(format!("{before:?}") == format!("{after:?}"), || {
            format!("capabilities were {before:?} and became {after:?}")
        })?;
        for peer in node.peers() {
            let in_place = node.endpoint()?.arrival(peer) == Arrival::InPlace;
            node.ensure(in_place == node.in_place(peer), || {
                format!("blocks of {peer} arrived in another way before than they do now")
            })?;
            let (before, after) = (node.best_block(peer), node.endpoint()?.best_block(peer));
            node.ensure(before == after, || {
                format!("blocks to {peer} travelled best with up to {before} bytes, and now with {after}")
            })?;
            let (before, after) = (node.capacity(peer), node.endpoint()?.capacity(peer));
            node.ensure(before == after, || {
                format!("the capacity of the link to {peer} was {before} and became {after}")
            })?;
        }
    }
    Ok(Verdict::Passed)
}

/// On all links at once, blocks of all lengths arrive once, in order and unchanged.
pub(crate) fn blocks_arrive_once_in_order_intact<T: Transport, M: BlockMemory>(
    node: &mut Node<T, M>,
) -> Result<Verdict, Failure> {
    let lengths = lengths(node);
    node.exchange_all(60, &lengths)?;
    Ok(Verdict::Passed)
}

/// More blocks than the pool has go out and come back, every one of them, round after round.
pub(crate) fn every_block_comes_back<T: Transport, M: BlockMemory>(
    node: &mut Node<T, M>,
) -> Result<Verdict, Failure> {
    for _ in 0..8 {
        node.exchange_all(12, &[BLOCK_HEADER + 8])?;
        node.settle()?;
    }
    Ok(Verdict::Passed)
}

/// One node sends to all, then all send to it: nobody starves, and idle links deliver nothing.
pub(crate) fn one_to_many_and_many_to_one<T: Transport, M: BlockMemory>(
    node: &mut Node<T, M>,
) -> Result<Verdict, Failure> {
    let lengths = lengths(node);
    let hub = node.node(0);
    let at_hub = node.id() == hub;
    for from_hub in [true, false] {
        let sends = at_hub == from_hub;
        let peers = if at_hub { node.peers() } else { vec![hub] };
        let plan: Vec<_> = peers
            .into_iter()
            .map(|peer| Traffic { peer, send: 40 * u64::from(sends), receive: 40 * u64::from(!sends) })
            .collect();
        node.exchange(&plan, Kind::Data, &lengths)?;
    }
    Ok(Verdict::Passed)
}

/// In place: a submitted block reaches a polling peer even if its sender does nothing at all.
pub(crate) fn in_place_blocks_leave_without_polls<T: Transport, M: BlockMemory>(
    node: &mut Node<T, M>,
) -> Result<Verdict, Failure> {
    let me = node.id();
    let peers: Vec<_> = node.peers().into_iter().filter(|p| node.in_place(*p)).collect();
    if !node.has_shared_counts() {
        return Ok(Verdict::Skipped("nodes in other processes see each other by polls alone"));
    }
    // One sender at a time, because receivers poll.
    for sender in 0..usize::from(node.capabilities().nodes) {
        let sender = node.node(sender);
        if me == sender {
            for peer in &peers {
                node.send(*peer, Kind::Data, BLOCK_HEADER)?;
                node.watch_arrival(*peer)?;
                node.wait("the block to come back", |node| node.away(*peer) == 0)?;
            }
        } else if peers.contains(&sender) {
            let held = node.receive(sender, Kind::Data, BLOCK_HEADER)?;
            node.release(held)?;
        }
    }
    Ok(if peers.is_empty() { Verdict::Skipped("no peer's blocks arrive in place") } else { Verdict::Passed })
}

/// In place: a block stays with its reader, unchanged and not complete at its sender, until the reader returns it.
pub(crate) fn in_place_blocks_stay_until_returned<T: Transport, M: BlockMemory>(
    node: &mut Node<T, M>,
) -> Result<Verdict, Failure> {
    let peers: Vec<_> = node.peers().into_iter().filter(|p| node.in_place(*p)).collect();
    let length = node.longest();
    for peer in &peers {
        node.send(*peer, Kind::Data, length)?;
    }
    let mut held = Vec::new();
    for peer in &peers {
        held.push(node.receive(*peer, Kind::Data, length)?);
    }
    // Now every node holds a block of every other, until the next meeting.
    node.meet()?;
    node.linger(200)?;
    for peer in &peers {
        let stays = node.has_data_away(*peer);
        node.ensure(stays, || format!("a block that {peer} still reads was reported as sent"))?;
    }
    node.meet()?;
    held.into_iter().try_for_each(|held| node.release(held))?;
    Ok(if peers.is_empty() { Verdict::Skipped("no peer's blocks arrive in place") } else { Verdict::Passed })
}

/// Posted: blocks sent while nothing is posted wait and are delivered once there is room; nothing is lost.
pub(crate) fn posted_blocks_wait_for_room<T: Transport, M: BlockMemory>(
    node: &mut Node<T, M>,
) -> Result<Verdict, Failure> {
    let peers: Vec<_> = node.peers().into_iter().filter(|p| !node.in_place(*p)).collect();
    if peers.is_empty() {
        return Ok(Verdict::Skipped("no peer's blocks arrive posted"));
    }
    let lengths = lengths(node);
    let mut sent = Vec::new();
    for peer in &peers {
        let mut count = 0;
        while count < 3
            && node.try_send(*peer, Kind::Data, lengths[count])? == super::super::node::Sending::Sent
        {
            count += 1;
        }
        sent.push((*peer, count));
    }
    // The books fail any block that arrives now, since no block was posted for it.
    node.linger(300)?;
    // Blocks that found no room go out now, while the peers' blocks come in.
    for _ in 0..3 {
        for (peer, count) in &mut sent {
            node.keep_posted(*peer, 3)?;
            while *count < 3 {
                node.send(*peer, Kind::Data, lengths[*count])?;
                *count += 1;
            }
        }
    }
    for length in lengths.iter().take(3) {
        for peer in &peers {
            let held = node.receive(*peer, Kind::Data, *length)?;
            node.release(held)?;
        }
    }
    Ok(Verdict::Passed)
}
