//! Faults injected between the engine and MPI.

use std::time::Instant;

use pdbp::{Backend, Cluster, Event, Memory, Part, SendError};
use pdbp_core::id::NodeId;
use pdbp_core::umb::{BlockMemory, BlockPool, stride};
use pdbp_core::{Completion, Op, Transport};
use pdbp_mpi::{Hosts, Mpi, MpiMemory, Options};
use pdbp_sim::conformance::Node;
use pdbp_sim::fault::{Breaker, Chance, FaultInjector, Faults, LinkFailure};

use crate::clusters::{BLOCK, SOON, builder, exchange, find, node, part, use_all};
use crate::{conformance, launch};

/// The node to which node 0 loses its link. It is not a master.
const LOST: usize = 2;
/// Memory for the blocks that an injector posts, in bytes.
const SHADOWS: usize = 4 << 20;

fn busy_and_late() -> Faults {
    Faults { busy: Chance::in_thousand(200).unwrap_or_default(), delay: 3, seed: 7, ..Faults::default() }
}

/// An injector must post blocks in memory that MPI knows.
fn injector(end: Mpi, memory: &mut MpiMemory, faults: Faults) -> FaultInjector<Mpi, MpiMemory> {
    FaultInjector::with_memory(end, faults, memory.split_off(SHADOWS).unwrap())
}

pub(crate) fn conformance_of_one_host() -> Result<(), String> {
    conformance_on(|_| Hosts::Detected, busy_and_late())
}

pub(crate) fn conformance_apart() -> Result<(), String> {
    conformance_on(|_| Hosts::Apart, busy_and_late())
}

/// All data arrives in blocks of the injector, which could change it.
pub(crate) fn conformance_by_copies() -> Result<(), String> {
    conformance_on(|_| Hosts::Apart, Faults { corrupt: Some(Chance::NEVER), ..Faults::default() })
}

fn conformance_on(hosts: fn(u16) -> Hosts, faults: Faults) -> Result<(), String> {
    let (rank, ranks) = launch::place().ok_or("not started by a launcher")?;
    let mut options = conformance::options(ranks, hosts(rank as u16));
    options.memory += SHADOWS;
    conformance::run(|| {
        let (end, mut memory) = Mpi::start(&options).unwrap();
        Node::new(injector(end, &mut memory, faults), memory, conformance::BODY)
    })
}

/// Every block that arrives is changed: the receiver sees the change, and the sender's block stays as it is.
pub(crate) fn corruption_apart() -> Result<(), String> {
    const BLOCKS: u64 = 20;
    let (me, _) = launch::place().ok_or("not started by a launcher")?;
    let mut options = Options::new(64 * stride(BLOCK) + SHADOWS, stride(BLOCK));
    options.hosts = Hosts::Apart;
    let (end, mut memory) = Mpi::start(&options).map_err(|e| e.to_string())?;
    let all = memory.len();
    assert!(memory.split_off(all + 1).is_none() && memory.split_off(usize::MAX).is_none());
    assert_eq!(memory.len(), all, "what there is not cannot be split off");
    let corrupt = Some(Chance::in_thousand(1000).ok_or("a share")?);
    let mut end = injector(end, &mut memory, Faults { corrupt, ..Faults::default() });
    let mut pool = BlockPool::new(memory, end.capabilities().node, BLOCK);
    let peer = NodeId::new(1 - me as u16).ok_or("a node")?;
    // The second rank sends a block when it has received all of its own; the first has posted a receive for that block before.
    let (mut sends, mut gets) = if me == 0 { (BLOCKS, 1) } else { (1, BLOCKS) };
    let (mut sent, mut posted) = (0, 0);
    let since = Instant::now();
    while sends + sent + gets > 0 {
        assert!(since.elapsed() < SOON, "{sends} blocks not sent, {gets} not received");
        let op = if posted < gets.min(4) {
            posted += 1;
            pool.take().map(|block| Op::Recv { peer, block })
        } else if sends > 0 && sent < 4 && (me == 0 || gets == 0) {
            (sends, sent) = (sends - 1, sent + 1);
            pool.take().map(|mut block| {
                block.bytes_mut().fill(7);
                Op::Send { peer, block: pool.seal(block, BLOCK) }
            })
        } else {
            None
        };
        if let Some(op) = op {
            end.submit(op).map_err(|refused| format!("{:?}", refused.reason))?;
        }
        match end.poll_completion() {
            Some(Completion::Sent { block, .. }) => {
                assert!(block.bytes().iter().all(|byte| *byte == 7));
                pool.give_sealed(block).map_err(|_| "a block that is not ours")?;
                sent -= 1;
            }
            Some(Completion::Received { block, .. }) => {
                let changed = block.bytes().iter().filter(|byte| **byte != 7).count();
                assert!(block.bytes().len() == BLOCK && (1..=4).contains(&changed), "{changed} bytes");
                pool.give_arrived(block).map_err(|_| "a block that is not ours")?;
                (gets, posted) = (gets - 1, posted - 1);
            }
            // The first rank leaves when it has the last block; the second may not know yet that this was delivered.
            Some(Completion::Failed { block, .. }) if sends + gets == 0 => {
                pool.give_sealed(block).map_err(|_| "a block that is not ours")?;
                sent -= 1;
            }
            None => std::thread::yield_now(),
            other => return Err(format!("{other:?}")),
        }
    }
    assert_eq!(end.injected().corrupted, if me == 0 { 1 } else { BLOCKS });
    Ok(())
}

pub(crate) fn clusters_of_one_host() -> Result<(), String> {
    use_all(&cluster(Hosts::Detected, busy_and_late())?.0);
    Ok(())
}

pub(crate) fn clusters_apart() -> Result<(), String> {
    use_all(&cluster(Hosts::Apart, busy_and_late())?.0);
    Ok(())
}

fn cluster(hosts: Hosts, faults: Faults) -> Result<(Cluster, Breaker), String> {
    let mut options = Options::new((4 << 20) + SHADOWS, stride(BLOCK));
    options.hosts = hosts;
    let (end, mut memory) = Mpi::start(&options).map_err(|e| e.to_string())?;
    let bell = end.bell();
    let end = injector(end, &mut memory, faults);
    let breaker = end.breaker();
    let nodes = vec![(Backend::new(end, bell), Box::new(memory) as Memory)];
    Ok((builder().start_on(nodes).map_err(|e| e.to_string())?, breaker))
}

pub(crate) fn lost_link() -> Result<(), String> {
    lose_a_link(Hosts::Detected)
}

pub(crate) fn lost_link_apart() -> Result<(), String> {
    lose_a_link(Hosts::Apart)
}

/// Node 0 loses its link to a node in the middle of traffic: undelivered messages come back, and the others agree to go on without that
/// node, which waits until node 1 has gone.
fn lose_a_link(hosts: Hosts) -> Result<(), String> {
    let (me, size) = launch::place().ok_or("not started by a launcher")?;
    let peer = NodeId::new(LOST as u16).ok_or("a node")?;
    let fail = (me == 0).then_some(LinkFailure::when_tripped(peer));
    let (cluster, breaker) = cluster(hosts, Faults { fail, ..Faults::default() })?;
    let (here, after) = (part(&node(&cluster), "all"), part(&node(&cluster), "after"));
    exchange(&here, me, size);
    let to = find(&here, "all", LOST);
    let other = find(&after, "after", 1 - me.min(1));
    // Parts of a node that is no longer a member cannot be found.
    launch::give_sign(&format!("{me} is ready"));
    match me {
        0 => {
            (1..size).for_each(|rank| launch::wait_for_sign(&format!("{rank} is ready")));
            lose(&here, to, &breaker);
        }
        LOST => {
            // It reads nothing until then, so that node 0 has undelivered messages for it.
            launch::wait_for_sign("the link is lost");
            return wait_for_the_end_of(1, &cluster, &here);
        }
        _ => {
            wait_for_the_end_of(LOST, &cluster, &here)?;
            assert!(matches!(here.try_send(to, b"x"), Err(SendError::PeerFailed(_))));
        }
    }
    for number in 0..100u64 {
        after.send(other, &number.to_le_bytes()).unwrap();
        after.flush();
        assert_eq!(after.recv_timeout(SOON).unwrap()[..], number.to_le_bytes());
    }
    Ok(())
}

/// Sends until there is no room, then loses the link. All undelivered messages come back.
fn lose(here: &Part, to: pdbp::Target, breaker: &Breaker) {
    let since = Instant::now();
    let mut sent = 0u64;
    loop {
        assert!(since.elapsed() < SOON, "the link does not fail");
        match here.try_send(to, &sent.to_le_bytes()) {
            Ok(()) => sent += 1,
            Err(SendError::PeerFailed(_)) => break,
            Err(SendError::WouldBlock) => {
                breaker.trip();
                std::thread::yield_now();
            }
            Err(error) => panic!("{error}"),
        }
        here.flush();
    }
    launch::give_sign("the link is lost");
    let mut numbers = Vec::new();
    // The other node keeps reading, so blocks that it has come back last.
    while !(numbers.last() == Some(&(sent - 1)) && numbers.is_sorted_by(|a, b| a + 1 == *b)) {
        assert!(since.elapsed() < SOON, "these of {sent} came back: {numbers:?}");
        match here.try_returned().unwrap() {
            Some(message) => numbers.push(u64::from_le_bytes((*message).try_into().unwrap())),
            None => std::thread::yield_now(),
        }
        numbers.sort_unstable();
    }
}

/// Reads messages until a node is reported as failed.
fn wait_for_the_end_of(gone: usize, cluster: &Cluster, here: &Part) -> Result<(), String> {
    let is_it = |event: &Event| matches!(event, Event::PeerFailed { peer, .. } if peer.index() == gone);
    let since = Instant::now();
    let mut events = Vec::new();
    while !events.iter().any(is_it) {
        if since.elapsed() > SOON {
            return Err(format!("waited in vain; there were {events:?}"));
        }
        while here.try_recv().is_some() {}
        std::thread::yield_now();
        events.extend(node(cluster).take_events());
    }
    Ok(())
}
