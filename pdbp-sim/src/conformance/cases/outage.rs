//! Links that are cut and restore themselves.

use pdbp_core::cdu::BLOCK_HEADER;
use pdbp_core::{BlockMemory, Transport};

use super::super::contents::Kind;
use super::super::node::Node;
use super::super::{Failure, Verdict};

const UNSUPPORTED: Verdict = Verdict::Skipped("links are not cut and restored in this set-up");

/// All links are cut while blocks are in flight on them: nothing is lost, nothing arrives twice, and no node is notified.
pub(crate) fn a_short_outage_is_only_late<T: Transport, M: BlockMemory>(
    node: &mut Node<T, M>,
) -> Result<Verdict, Failure> {
    if !node.restores() {
        return Ok(UNSUPPORTED);
    }
    let length = node.longest();
    for round in 0..6 {
        for peer in node.peers() {
            // Some blocks are already written when the line is cut and some are not; the reader may or may not have posted room for
            // them.
            for _ in 0..2 {
                node.send(peer, Kind::Data, length)?;
            }
            if round % 2 == 0 {
                node.keep_posted(peer, 1)?;
            }
            if !(round + node.id().index()).is_multiple_of(3) {
                node.poll()?;
            }
            node.cut(peer)?;
        }
        for peer in node.peers() {
            for _ in 0..2 {
                let held = node.receive(peer, Kind::Data, length)?;
                node.release(held)?;
            }
        }
    }
    Ok(Verdict::Passed)
}

/// The first two nodes give up the link between them while blocks are in flight on it both ways. Waits until it is up again.
fn give_up<T: Transport, M: BlockMemory>(node: &mut Node<T, M>) -> Result<(), Failure> {
    let (one, other) = (node.node(0), node.node(1));
    let peer = if node.id() == one { other } else { one };
    let length = node.longest();
    node.let_fail(peer);
    let before = node.restored(peer);
    node.keep_posted(peer, 2)?;
    node.send(peer, Kind::Data, length)?;
    for _ in 0..3 {
        node.try_send(peer, Kind::Data, length)?;
    }
    if node.id() == one {
        // The other node has sent this, so it knows that the link may fail.
        let held = node.receive(peer, Kind::Data, length)?;
        node.release(held)?;
        node.linger(20)?;
        node.endpoint()?.disconnect(peer);
    }
    // The books check, when the failure is reported, that everything had come back before.
    node.wait("the link that was given up to be restored", |node| {
        node.restored(peer) > before && !node.is_down(peer)
    })
}

/// Both ends get all their blocks back and are notified once, and the link is up again; other nodes notice nothing.
pub(crate) fn an_outage_that_was_given_up_brings_all_back<T: Transport, M: BlockMemory>(
    node: &mut Node<T, M>,
) -> Result<Verdict, Failure> {
    if !node.restores() {
        return Ok(UNSUPPORTED);
    }
    node.exchange_all(3, &[BLOCK_HEADER])?;
    if node.id().index() < 2 {
        give_up(node)?;
        let peer = node.node(1 - node.id().index());
        node.ensure(node.restored(peer) == 1, || format!("{peer} was restored more than once"))?;
    }
    Ok(Verdict::Passed)
}

/// Blocks in flight on the former link never arrive on the new one, which begins with its own first block, under a later number that both
/// ends have.
pub(crate) fn a_restored_link_is_a_new_one<T: Transport, M: BlockMemory>(
    node: &mut Node<T, M>,
) -> Result<Verdict, Failure> {
    if !node.restores() {
        return Ok(UNSUPPORTED);
    }
    for _ in 0..3 {
        if node.id().index() < 2 {
            give_up(node)?;
        }
        node.exchange_all(10, &[BLOCK_HEADER, node.longest()])?;
    }
    Ok(Verdict::Passed)
}
