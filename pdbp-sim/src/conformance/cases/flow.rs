//! Backpressure: a node that does not read stops the nodes that send to it, and no others.

use pdbp_core::cdu::BLOCK_HEADER;
use pdbp_core::{BlockMemory, Transport};

use super::super::contents::Kind;
use super::super::node::{Node, Sending, Traffic, WINDOW};
use super::super::{Failure, Verdict};

/// Polls of an idle endpoint return, and return nothing.
pub(crate) fn idle_polls_bring_nothing<T: Transport, M: BlockMemory>(
    node: &mut Node<T, M>,
) -> Result<Verdict, Failure> {
    node.exchange_all(5, &[BLOCK_HEADER])?;
    node.meet()?;
    node.settle()?;
    let peers = node.peers();
    let sent: u64 = peers.iter().map(|p| node.sent(*p)).sum();
    let met: usize = peers.iter().map(|p| node.arrived(*p)).sum();
    let mut happened = 0;
    for _ in 0..500 {
        happened += usize::from(node.poll()?);
    }
    // Peers that have finished polling are already in the next meeting.
    let met = peers.iter().map(|p| node.arrived(*p)).sum::<usize>() - met;
    let sent = peers.iter().map(|p| node.sent(*p)).sum::<u64>() - sent;
    node.ensure(happened == met && sent == 0, || {
        format!("polls brought {happened} completions though nothing was under way")
    })?;
    Ok(Verdict::Passed)
}

/// All links at once take as many blocks as they state, while no node returns or posts a block.
pub(crate) fn stated_capacity_is_there<T: Transport, M: BlockMemory>(
    node: &mut Node<T, M>,
) -> Result<Verdict, Failure> {
    for peer in node.peers() {
        let capacity = node.capacity(peer);
        node.ensure(capacity > 0, || format!("the link to {peer} has a capacity of 0"))?;
        for _ in 0..capacity.min(WINDOW) {
            // Polls make room only for completed blocks, and the peers hold what has arrived until they have sent all of theirs.
            node.send(peer, Kind::Data, BLOCK_HEADER)?;
        }
    }
    for peer in node.peers() {
        // The capacity is the same at both ends.
        for _ in 0..node.capacity(peer).min(WINDOW) {
            let held = node.receive(peer, Kind::Data, BLOCK_HEADER)?;
            node.release(held)?;
        }
    }
    Ok(Verdict::Passed)
}

/// A full link hands the block back whole, and takes it later.
pub(crate) fn busy_links_take_the_block_later<T: Transport, M: BlockMemory>(
    node: &mut Node<T, M>,
) -> Result<Verdict, Failure> {
    let (sender, reader) = (node.node(0), node.node(1));
    let total = 2 * WINDOW;
    let length = node.longest();
    let mut verdict = Verdict::Passed;
    if node.id() == sender {
        // The reader begins to read once it has this block back (or believes so, when arrival is posted).
        let canary =
            if node.in_place(reader) { Some(node.receive(reader, Kind::Data, length)?) } else { None };
        let mut sent = 0;
        while sent < WINDOW && node.try_send(reader, Kind::Data, length)? == Sending::Sent {
            sent += 1;
        }
        if node.busy(reader) == 0 {
            verdict = Verdict::Skipped("the link took all blocks without a refusal");
        }
        let canary = match canary {
            Some(canary) => canary,
            None => node.receive(reader, Kind::Data, length)?,
        };
        node.release(canary)?;
        for _ in sent..total {
            node.send(reader, Kind::Data, length)?;
        }
    } else if node.id() == reader {
        node.send(sender, Kind::Data, length)?;
        node.wait("the sender to read", |node| node.away(sender) == 0)?;
        for _ in 0..total {
            let held = node.receive(sender, Kind::Data, length)?;
            node.release(held)?;
        }
    }
    Ok(verdict)
}

/// Node 1 does not read the blocks from node 0; all other links continue, including those of these two nodes.
pub(crate) fn slow_readers_stop_their_sender_only<T: Transport, M: BlockMemory>(
    node: &mut Node<T, M>,
) -> Result<Verdict, Failure> {
    let (sender, reader) = (node.node(0), node.node(1));
    let me = node.id();
    let mut sent = 0;
    if me == sender {
        while sent < WINDOW && node.try_send(reader, Kind::Data, BLOCK_HEADER)? == Sending::Sent {
            sent += 1;
        }
    }
    let plan: Vec<_> = node
        .peers()
        .into_iter()
        .map(|peer| Traffic {
            peer,
            send: if me == sender && peer == reader { 0 } else { 30 },
            receive: if me == reader && peer == sender { 0 } else { 30 },
        })
        .collect();
    node.exchange(&plan, Kind::Data, &[BLOCK_HEADER + 40])?;
    // The reader starts reading once all other nodes have finished.
    let others: Vec<_> = node.peers().into_iter().filter(|p| *p != sender).collect();
    if me == reader {
        for peer in others {
            let held = node.receive(peer, Kind::Meet, BLOCK_HEADER)?;
            node.release(held)?;
        }
        for _ in 0..WINDOW {
            let held = node.receive(sender, Kind::Data, BLOCK_HEADER)?;
            node.release(held)?;
        }
    } else if me == sender {
        for _ in sent..WINDOW {
            node.send(reader, Kind::Data, BLOCK_HEADER)?;
        }
    } else {
        node.send(reader, Kind::Meet, BLOCK_HEADER)?;
    }
    Ok(Verdict::Passed)
}

/// All nodes send to node 0 as much as they can, and it polls without reading: its polls return no more than was sent, then
/// nothing.
pub(crate) fn polls_end_under_a_flood<T: Transport, M: BlockMemory>(
    node: &mut Node<T, M>,
) -> Result<Verdict, Failure> {
    let target = node.node(0);
    if node.id() != target {
        for _ in 0..2 * WINDOW {
            node.send(target, Kind::Data, BLOCK_HEADER)?;
        }
        return Ok(Verdict::Passed);
    }
    let most = node.peers().len() * 2 * WINDOW;
    let mut happened = 0;
    for _ in 0..1000 {
        for peer in node.peers() {
            node.keep_posted(peer, WINDOW)?;
        }
        happened += usize::from(node.poll()?);
        node.ensure(happened <= most, || format!("{happened} completions; {most} blocks were sent"))?;
    }
    for _ in 0..2 * WINDOW {
        for peer in node.peers() {
            let held = node.receive(peer, Kind::Data, BLOCK_HEADER)?;
            node.release(held)?;
        }
    }
    Ok(Verdict::Passed)
}
