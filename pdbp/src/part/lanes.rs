//! Where a part packs its messages: one open block per destination node.

use std::cell::RefCell;
use std::sync::Arc;

use pdbp_core::OpenBlock;
use pdbp_core::cdu::{Full, Route};
use pdbp_core::id::{NodeId, Time};
use spin::mutex::SpinMutex;

use crate::node::NodeEngine;

/// The open block to one node, if any, and since when it is open.
#[derive(Default)]
pub(crate) struct Lane {
    block: Option<OpenBlock>,
    since: Time,
}

/// Which open blocks are to leave though they are not full.
pub(crate) enum Due {
    /// All of them.
    All,
    /// Those that are open since `after` nanoseconds at `now` and whose node has read what was sent before, and those that
    /// have waited [`PATIENCE`] times as long.
    Past { now: Time, after: u64 },
}

/// How many times `flush_after` a block waits for the node to read what was sent before. Until then nothing is gained by
/// sending it: it would lie behind the others, half empty, and take the place of a full one.
const PATIENCE: u64 = 50;

impl Lane {
    fn take_due(&mut self, engine: &NodeEngine, due: &Due) -> Option<OpenBlock> {
        let since = self.since;
        self.block.take_if(|block| match due {
            Due::All => true,
            Due::Past { now, after } => {
                let age = now.since(since);
                age >= *after && (engine.backlog(block.dest()) == 0 || age >= after.saturating_mul(PATIENCE))
            }
        })
    }

    #[inline(always)]
    fn push(&mut self, route: Route, data: &[u8]) -> Result<(), Full> {
        match &mut self.block {
            Some(block) => block.push(route, data),
            None => Err(Full),
        }
    }
}

type Locked = SpinMutex<Lane, spin::Yield>;

/// Lanes that whoever polls the node may flush: one uncontended atomic exchange per message.
pub(crate) struct SharedLanes(Box<[Locked]>);

/// What a look through lanes has done.
#[derive(Default)]
pub(crate) struct Flushed {
    /// Blocks submitted.
    pub(crate) blocks: u32,
    /// Whether there may be open blocks still.
    pub(crate) left: bool,
}

impl std::ops::AddAssign for Flushed {
    fn add_assign(&mut self, other: Self) {
        self.blocks += other.blocks;
        self.left |= other.left;
    }
}

impl SharedLanes {
    /// Submits the open blocks that are due.
    pub(crate) fn flush(&self, engine: &mut NodeEngine, due: &Due) -> Flushed {
        let mut flushed = Flushed::default();
        for lane in &self.0 {
            // A lane that its part is using at this moment can wait for the next time.
            let Some(mut lane) = lane.try_lock() else {
                flushed.left = true;
                continue;
            };
            if let Some(block) = lane.take_due(engine, due) {
                engine.submit(block);
                flushed.blocks += 1;
            }
            flushed.left |= lane.block.is_some();
        }
        flushed
    }
}

/// A part's lanes: its own (inline progress), or shared.
pub(crate) enum Lanes {
    Own(Box<[RefCell<Lane>]>),
    Shared(Arc<SharedLanes>),
}

impl Lanes {
    pub(crate) fn own(nodes: usize) -> Self {
        Self::Own((0..nodes).map(|_| RefCell::default()).collect())
    }

    pub(crate) fn shared(nodes: usize) -> Self {
        Self::Shared(Arc::new(SharedLanes((0..nodes).map(|_| Locked::new(Lane::default())).collect())))
    }

    /// Packs a message into the open block to a node. [`Full`] also when there is no open block.
    #[inline(always)]
    pub(crate) fn push(&self, node: NodeId, route: Route, data: &[u8]) -> Result<(), Full> {
        self.with(node, |lane| lane.push(route, data)).unwrap_or(Err(Full))
    }

    /// Does something with the open block to a node; `None` when there is none.
    pub(crate) fn with_block<R>(&self, node: NodeId, f: impl FnOnce(&mut OpenBlock) -> R) -> Option<R> {
        self.with(node, |lane| lane.block.as_mut().map(f)).flatten()
    }

    /// Takes the open block to a node.
    pub(crate) fn take(&self, node: NodeId) -> Option<OpenBlock> {
        self.with(node, |lane| lane.block.take()).flatten()
    }

    /// Puts an open block into its lane; returns the one that was there.
    pub(crate) fn put(&self, block: OpenBlock, now: Time) -> Option<OpenBlock> {
        let node = block.dest();
        self.with(node, |lane| {
            lane.since = now;
            lane.block.replace(block)
        })
        .flatten()
    }

    /// Submits all open blocks.
    pub(crate) fn flush(&self, engine: &mut NodeEngine) -> u32 {
        self.flush_due(engine, &Due::All)
    }

    /// Submits the open blocks that are due, if this part alone can reach them.
    pub(crate) fn flush_due(&self, engine: &mut NodeEngine, due: &Due) -> u32 {
        match self {
            Self::Own(lanes) => {
                let mut flushed = 0;
                for lane in lanes {
                    let mut lane = lane.borrow_mut();
                    let due = lane.take_due(engine, due);
                    drop(lane);
                    if let Some(block) = due {
                        engine.submit(block);
                        flushed += 1;
                    }
                }
                flushed
            }
            Self::Shared(lanes) => {
                let mut flushed = 0;
                for lane in &lanes.0 {
                    let taken = lane.lock().block.take();
                    if let Some(block) = taken {
                        engine.submit(block);
                        flushed += 1;
                    }
                }
                flushed
            }
        }
    }

    #[inline(always)]
    fn with<R>(&self, node: NodeId, f: impl FnOnce(&mut Lane) -> R) -> Option<R> {
        match self {
            // `f` never calls back into the part, so the cell is never borrowed twice.
            Self::Own(lanes) => {
                let lane = lanes.get(node.index())?;
                Some(f(&mut lane.borrow_mut()))
            }
            Self::Shared(lanes) => {
                let lane = lanes.0.get(node.index())?;
                Some(f(&mut lane.lock()))
            }
        }
    }
}
