//! The suite fails on broken transports. Each breaks the contract in one way, from time to time, and is detected.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use pdbp_core::id::NodeId;
use pdbp_core::umb::{BlockPool, HeapMemory, Lender};
use pdbp_core::{
    Arrival, ArrivedBlock, Capabilities, Completion, Op, Reason, Refused, SealedBlock, Transport,
};
use pdbp_local::Local;

use super::super::{Leaving, Node, cases, run_on_threads};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    /// None; the wrapper itself is sound.
    None,
    /// An arrived block vanishes (and returns to its sender, which notices nothing).
    Drops,
    /// A block arrives twice.
    Duplicates,
    /// Two blocks of a link swap places.
    Reorders,
    /// One bit of a block is flipped.
    Corrupts,
    /// One byte is missing.
    Truncates,
    /// In place: a block that the reader returns does not reach its owner. Posted: a completion is swallowed.
    LosesReturned,
    /// A sent block is reported as sent before its reader has it.
    CompletesEarly,
    /// A refusal for lack of room keeps the block and hands back another.
    SwapsRefused,
    /// A block that is too long is accepted.
    TakesTooLong,
    /// The failed peer is reported twice.
    ReportsTwice,
    /// Blocks in flight to a failed peer do not come back.
    KeepsFailed,
    /// The capabilities change while running.
    Changes,
    /// Blocks that arrived in place are later declared to arrive posted.
    ChangesArrival,
    /// The best length of blocks changes while running.
    ChangesBestBlock,
    /// A link takes one block fewer than it states.
    OverstatesCapacity,
    /// Submitted blocks leave only when their sender polls.
    LeavesByPolls,
}

struct Broken {
    inner: Local,
    defect: Defect,
    arrived: u64,
    kept: Option<(NodeId, ArrivedBlock)>,
    ready: VecDeque<Completion<Infallible>>,
    /// Blocks handed back in place of the user's, and copies of bytes that were delivered changed.
    own: BlockPool<HeapMemory>,
    copies: Lender,
    originals: Vec<ArrivedBlock>,
    late: VecDeque<(NodeId, SealedBlock)>,
}

const EVERY: u64 = 7;

impl Broken {
    fn copy(&mut self, block: &ArrivedBlock, change: impl FnOnce(&mut Vec<u8>)) -> ArrivedBlock {
        let mut bytes = block.bytes().to_vec();
        change(&mut bytes);
        let mut words = vec![0u64; bytes.len().div_ceil(8)].into_boxed_slice();
        for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
            let mut eight = [0; 8];
            eight[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_ne_bytes(eight);
        }
        let base = std::ptr::NonNull::from(Box::leak(words)).cast();
        // SAFETY: the words are aligned to 8, hold that many bytes, and are neither written again nor freed.
        unsafe { self.copies.lend(block.id(), base, bytes.len() as u32) }
    }

    fn received(&mut self, peer: NodeId, block: ArrivedBlock) -> Option<Completion<Infallible>> {
        self.arrived += 1;
        let hit = self.arrived.is_multiple_of(EVERY);
        let changed = match self.defect {
            Defect::Drops if hit => {
                if block.id().segment == peer {
                    let _ = self.inner.submit(Op::Return { peer, block });
                }
                return self.poll_completion();
            }
            Defect::Duplicates if hit => {
                let again = self.copy(&block, |_| {});
                self.ready.push_back(Completion::Received { peer, block: again });
                return Some(Completion::Received { peer, block });
            }
            Defect::Reorders => {
                if let Some((_, earlier)) = self.kept.take_if(|(from, _)| *from == peer) {
                    self.ready.push_back(Completion::Received { peer, block: earlier });
                } else if hit && self.kept.is_none() {
                    self.kept = Some((peer, block));
                    return None;
                }
                return Some(Completion::Received { peer, block });
            }
            Defect::Corrupts if hit => self.copy(&block, |bytes| *bytes.last_mut().unwrap() ^= 0x10),
            Defect::Truncates if hit => self.copy(&block, |bytes| bytes.truncate(bytes.len() - 1)),
            _ => return Some(Completion::Received { peer, block }),
        };
        self.originals.push(block);
        Some(Completion::Received { peer, block: changed })
    }
}

impl Transport for Broken {
    type Error = Infallible;

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.inner.capabilities();
        if self.defect == Defect::Changes {
            capabilities.largest_block -= self.arrived as usize % 2;
        }
        capabilities
    }

    fn arrival(&self, peer: NodeId) -> Arrival {
        match self.defect {
            Defect::ChangesArrival if self.arrived > EVERY => Arrival::Posted,
            _ => self.inner.arrival(peer),
        }
    }

    fn best_block(&self, peer: NodeId) -> usize {
        let has_changed = self.defect == Defect::ChangesBestBlock && self.arrived > EVERY;
        self.inner.best_block(peer) - usize::from(has_changed)
    }

    fn capacity(&self, peer: NodeId) -> usize {
        self.inner.capacity(peer) + usize::from(self.defect == Defect::OverstatesCapacity)
    }

    fn submit(&mut self, op: Op) -> Result<(), Refused<Infallible>> {
        match (self.defect, op) {
            (Defect::LosesReturned, Op::Return { peer, block }) => {
                self.arrived += 1;
                if self.arrived.is_multiple_of(EVERY) {
                    return Ok(());
                }
                self.inner.submit(Op::Return { peer, block })
            }
            (Defect::TakesTooLong, Op::Send { peer, block }) => {
                if block.bytes().len() <= self.inner.capabilities().largest_block {
                    return self.inner.submit(Op::Send { peer, block });
                }
                self.ready.push_back(Completion::Sent { peer, block });
                Ok(())
            }
            (Defect::CompletesEarly, Op::Send { peer, block }) => {
                if self.late.len() >= 2 {
                    return Err(Refused { op: Op::Send { peer, block }, reason: Reason::Busy });
                }
                // SAFETY: the token goes to the user too soon; that the block may be written while it waits here is the defect.
                // Only this thread uses the two tokens until the block has left.
                let early = unsafe { std::ptr::read(&block) };
                self.late.push_back((peer, block));
                self.ready.push_back(Completion::Sent { peer, block: early });
                Ok(())
            }
            (Defect::LeavesByPolls, Op::Send { peer, block }) => {
                if self.late.len() >= 2 {
                    return Err(Refused { op: Op::Send { peer, block }, reason: Reason::Busy });
                }
                self.late.push_back((peer, block));
                Ok(())
            }
            (Defect::SwapsRefused, op) => self.inner.submit(op).map_err(|refused| match refused.op {
                Op::Send { peer, block } if matches!(refused.reason, Reason::Busy) => {
                    self.originals.push(self.own.take().unwrap().into_arrived(0));
                    let other = self.own.take().unwrap();
                    let length = block.bytes().len();
                    let block = self.own.seal(other, length);
                    Refused { op: Op::Send { peer, block }, reason: refused.reason }
                }
                op => Refused { op, reason: refused.reason },
            }),
            (_, op) => self.inner.submit(op),
        }
    }

    fn poll_completion(&mut self) -> Option<Completion<Infallible>> {
        if let Some(ready) = self.ready.pop_front() {
            return Some(ready);
        }
        if let Some((peer, block)) = self.late.pop_front()
            && let Err(refused) = self.inner.submit(Op::Send { peer, block })
            && let Op::Send { block, .. } = refused.op
        {
            self.late.push_front((peer, block));
        }
        match (self.defect, self.inner.poll_completion()?) {
            (_, Completion::Received { peer, block }) => self.received(peer, block),
            (Defect::CompletesEarly, Completion::Sent { block, .. }) => {
                // The user has this token's twin.
                std::mem::forget(block);
                None
            }
            (Defect::LosesReturned, Completion::Sent { peer, block }) => {
                self.arrived += 1;
                (!self.arrived.is_multiple_of(EVERY)).then_some(Completion::Sent { peer, block })
            }
            (Defect::KeepsFailed, Completion::Failed { .. }) => None,
            (Defect::ReportsTwice, Completion::PeerFailed { peer, cause }) => {
                self.ready.push_back(Completion::PeerFailed { peer, cause: None });
                Some(Completion::PeerFailed { peer, cause })
            }
            (_, other) => Some(other),
        }
    }
}

fn domain(arrival: Arrival, defect: Defect) -> Vec<Node<Broken, HeapMemory>> {
    let bytes = Node::<Broken, HeapMemory>::memory(3, 1024);
    let memories: Vec<_> = (0..3).map(|_| HeapMemory::new(bytes).unwrap()).collect();
    let ends = Local::network(&memories, arrival, 1000, 4);
    let nodes = ends.into_iter().zip(memories).map(|(inner, memory)| {
        let id = inner.capabilities().node;
        let endpoint = Broken {
            inner,
            defect,
            arrived: 0,
            kept: None,
            ready: VecDeque::new(),
            own: BlockPool::new(HeapMemory::new(1 << 16).unwrap(), id, 1024),
            copies: Lender::new(),
            originals: Vec::new(),
            late: VecDeque::new(),
        };
        let node = Node::new(endpoint, memory, 1024).leaving(Leaving::By(drop));
        // Whatever a defect has swallowed never comes.
        if defect == Defect::None { node } else { node.patience(Duration::from_millis(500)) }
    });
    nodes.collect()
}

/// Returns those of the cases that fail.
fn failing(arrival: Arrival, defect: Defect, is_one: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let cases = cases().into_iter().filter(|case| is_one(case.name));
    cases
        .filter(|case| run_on_threads(case, domain(arrival, defect)).is_err())
        .map(|case| case.name)
        .collect()
}

#[track_caller]
fn assert_caught(arrival: Arrival, defect: Defect, by: &str) {
    if failing(arrival, defect, |name| name == by).is_empty() {
        let others = failing(arrival, defect, |name| name != by);
        panic!("{defect:?}, {arrival:?}: {by} passed; only {others:?} failed");
    }
}

macro_rules! caught {
    ($($name:ident: $defect:ident, $arrival:ident, by $case:ident;)*) => {
        $(#[test]
        fn $name() {
            assert_caught(Arrival::$arrival, Defect::$defect, stringify!($case));
        })*
    };
}

caught! {
    drops_in_place: Drops, InPlace, by blocks_arrive_once_in_order_intact;
    drops_posted: Drops, Posted, by blocks_arrive_once_in_order_intact;
    duplicates_in_place: Duplicates, InPlace, by blocks_arrive_once_in_order_intact;
    duplicates_posted: Duplicates, Posted, by blocks_arrive_once_in_order_intact;
    reorders_in_place: Reorders, InPlace, by blocks_arrive_once_in_order_intact;
    reorders_posted: Reorders, Posted, by blocks_arrive_once_in_order_intact;
    corrupts_in_place: Corrupts, InPlace, by blocks_arrive_once_in_order_intact;
    corrupts_posted: Corrupts, Posted, by blocks_arrive_once_in_order_intact;
    truncates_in_place: Truncates, InPlace, by blocks_arrive_once_in_order_intact;
    loses_returned_in_place: LosesReturned, InPlace, by every_block_comes_back;
    loses_completions_posted: LosesReturned, Posted, by every_block_comes_back;
    completes_early_in_place: CompletesEarly, InPlace, by in_place_blocks_stay_until_returned;
    completes_early_posted: CompletesEarly, Posted, by blocks_arrive_once_in_order_intact;
    swaps_refused: SwapsRefused, InPlace, by busy_links_take_the_block_later;
    takes_too_long: TakesTooLong, InPlace, by too_long_blocks_are_refused;
    reports_failed_peers_twice: ReportsTwice, InPlace, by peers_that_leave_fail_once;
    keeps_blocks_of_failed_peers: KeepsFailed, InPlace, by peers_that_leave_fail_once;
    changes_capabilities: Changes, InPlace, by capabilities_are_constant;
    changes_arrival: ChangesArrival, InPlace, by capabilities_are_constant;
    changes_best_block: ChangesBestBlock, InPlace, by capabilities_are_constant;
    leaves_by_polls_alone: LeavesByPolls, InPlace, by in_place_blocks_leave_without_polls;
    overstates_capacity_in_place: OverstatesCapacity, InPlace, by stated_capacity_is_there;
    overstates_capacity_posted: OverstatesCapacity, Posted, by stated_capacity_is_there;
}

#[test]
fn the_wrapper_without_a_defect_passes() {
    assert_eq!(failing(Arrival::InPlace, Defect::None, |_| true), Vec::<&str>::new());
    assert_eq!(failing(Arrival::Posted, Defect::None, |_| true), Vec::<&str>::new());
}
