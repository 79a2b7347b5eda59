//! Figures of a running cluster, available from any of its nodes.
//!
//! With the setting `monitor` every node has a part, [`NAME`], that answers requests for the node's figures. It needs no thread:
//! the thread that polls the node answers requests that have arrived. Without requests, the cost is one check of an empty pipe per
//! poll. A node that is not polled does not answer.
//!
//! ```text
//!  Node::observe ──ask──▶ poll of node 0 ──Command 1: round──▶ poll of node i: figures as JSON
//!  ClusterFigures ◀─all, or time is up── poll of node 0 ◀──Command 2: round, piece, pieces, bytes──┘
//! ```
//!
//! The part appears in no listing and counts towards no limit, and messages between monitors are not counted in any row's figures.
//! They are commands, which never wait behind other messages, and take one block each, which may be as short as 256 bytes.
//!
//! ```
//! let cluster = pdbp::Cluster::builder().nodes(3).monitor(pdbp::MonitorKind::On).start()?;
//! let figures = cluster.node(0).unwrap().observe(std::time::Duration::from_secs(5));
//! let names: Vec<_> = figures.nodes.iter().map(|node| node.name.as_str()).collect();
//! assert_eq!(names, ["node0", "node1", "node2"]);
//! # Ok::<(), pdbp::StartError>(())
//! ```
//!
//! The setting `metrics` serves the same figures over [HTTP](Endpoint), for Prometheus and `pdbp top`, together with the program's
//! [own](Endpoint::show).

mod collect;
mod figures;
mod http;
mod links;
mod prometheus;
mod sections;
#[cfg(test)]
mod tests;
mod wire;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use pdbp_core::OpenError;
use pdbp_core::cdu::{CduClass, Route};
use pdbp_core::engine::DeliveryKind;
use pdbp_core::id::{NodeId, PartId, PipeId};
use pdbp_core::tables::PartKind;

use crate::error::RegisterError;
use crate::node::{NodeEngine, Pipe, Shared};
use wire::{Assembly, Frame, Piece};

pub use figures::{
    ClusterFigures, Counts, InUse, LinkFigures, NodeFigures, NodeReport, NodeState, RowFigures, Strangers,
};
pub use http::Endpoint;
pub use sections::{Family, NotShown, Section, Showing};

/// Name of the part that answers. Programs must not use it.
pub const NAME: &str = "pdbp.monitor";

/// The monitor of a node.
pub(crate) struct Monitor {
    part: PartId,
    pipe: PipeId,
    /// Whether `state` has something to send. Only a hint: set under the lock of `state`, and read by the next poll.
    wanted: AtomicBool,
    state: Mutex<State>,
    /// Notified when an answer is complete.
    answered: Condvar,
}

/// Blocks, messages and bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) blocks: u64,
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

#[derive(Default)]
struct State {
    /// The last collection round. Threads that collect at the same time have rounds of their own.
    round: u32,
    /// The number of those threads.
    collecting: usize,
    /// Nodes still to be asked.
    ask: Vec<NodeId>,
    /// Answers to send: for each asker the latest, and before it the one that is being sent.
    replies: Vec<Reply>,
    /// Answers being received, by node.
    arriving: Vec<Assembly>,
    /// By node: the last answer, and its round.
    answers: Vec<Option<(u32, NodeFigures)>>,
    /// By node: traffic of monitors, sent and received.
    sent: Vec<Traffic>,
    received: Vec<Traffic>,
    /// Messages of this monitor that failed peers did not receive.
    undelivered: u64,
}

struct Reply {
    to: PartId,
    round: u32,
    bytes: Vec<u8>,
    next: usize,
}

/// Outcome of sending a message.
enum Sent {
    Done,
    /// There is no room now.
    Later,
    /// There never will be.
    Never,
}

impl Monitor {
    /// Registers the monitor's part. Other nodes know of it some polls later; nothing waits for that.
    pub(crate) fn start(engine: &mut NodeEngine) -> Result<Self, RegisterError> {
        let part = engine.register(NAME, PartKind::Communication).map_err(RegisterError::Refused)?;
        let pipe = engine.bind_pipe(part).map_err(RegisterError::Pipe)?;
        let nodes = usize::from(engine.config().nodes);
        let state = State {
            arriving: (0..nodes).map(|_| Assembly::default()).collect(),
            answers: (0..nodes).map(|_| None).collect(),
            sent: vec![Traffic::default(); nodes],
            received: vec![Traffic::default(); nodes],
            ..State::default()
        };
        Ok(Self {
            part,
            pipe,
            wanted: AtomicBool::new(false),
            state: Mutex::new(state),
            answered: Condvar::new(),
        })
    }

    /// Returns unread deliveries when the node is dropped.
    #[expect(unsafe_code, reason = "the promise that nobody else reads the pipe")]
    pub(crate) fn leave(&self, pipes: &[Pipe], engine: &mut NodeEngine) {
        let Some(pipe) = pipes.get(usize::from(self.pipe.0)) else { return };
        // SAFETY: the pipe belongs to this value alone, which reads it under the engine's lock.
        while let Some(delivery) = unsafe { pipe.next_delivery() } {
            engine.release(delivery);
        }
    }

    /// Answers and asks, after a poll. Returns the number of blocks submitted.
    #[inline]
    pub(crate) fn advance(&self, shared: &Shared, engine: &mut NodeEngine) -> u32 {
        let arrived = shared.pipes.get(usize::from(self.pipe.0)).is_some_and(|pipe| !pipe.is_empty());
        if arrived || self.wanted.load(Ordering::Relaxed) { self.work(shared, engine) } else { 0 }
    }

    /// Lock order: the engine, then `state`.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cold]
    fn work(&self, shared: &Shared, engine: &mut NodeEngine) -> u32 {
        let mut state = self.state();
        self.receive(shared, engine, &mut state);
        let mut blocks = 0;
        let mut ask = std::mem::take(&mut state.ask);
        ask.retain(|node| {
            // A node that has just started is not known to have a monitor yet.
            let Some(to) = engine.lookup(*node, NAME).map(|entry| entry.id) else { return true };
            let round = state.round.to_le_bytes();
            let sent = self.send(engine, &mut state, to, wire::REQUEST, &[&round]);
            blocks += u32::from(matches!(sent, Sent::Done));
            matches!(sent, Sent::Later)
        });
        state.ask = ask;
        let (mut replies, mut waiting) = (std::mem::take(&mut state.replies), Vec::new());
        replies.retain_mut(|reply| {
            // Pieces of one answer must not get among those of another.
            let stays =
                waiting.contains(&reply.to) || self.send_pieces(engine, &mut state, reply, &mut blocks);
            if stays {
                waiting.push(reply.to);
            }
            stays
        });
        state.replies = replies;
        self.wanted.store(!state.ask.is_empty() || !state.replies.is_empty(), Ordering::Relaxed);
        blocks
    }

    /// Reads the messages that have arrived, and releases them.
    #[expect(unsafe_code, reason = "the promise that nobody else reads the pipe")]
    fn receive(&self, shared: &Shared, engine: &mut NodeEngine, state: &mut State) {
        let Some(pipe) = shared.pipes.get(usize::from(self.pipe.0)) else { return };
        // SAFETY: the pipe belongs to this value alone, which reads it under the engine's lock.
        while let Some(delivery) = unsafe { pipe.next_delivery() } {
            let source = delivery.source();
            // The row that it came through: the node's, or the relay's.
            let hop = delivery.block().source().map_or(source.index(), NodeId::index);
            if let DeliveryKind::Returned { .. } = delivery.kind() {
                // No message of the program is lost.
                state.undelivered +=
                    delivery.cdus().flatten().map(|train| u64::from(train.count())).sum::<u64>();
                engine.release(delivery);
                continue;
            }
            for train in delivery.cdus().flatten().filter(|train| train.class() == CduClass::Command) {
                let Some(frame) = Frame::read(train.command(), train.data()) else { continue };
                if let Some(traffic) = state.received.get_mut(hop) {
                    // It was alone in its block.
                    traffic.blocks += 1;
                    traffic.messages += 1;
                    traffic.bytes += delivery.block().length() as u64;
                }
                match frame {
                    Frame::Request { round } => {
                        let Some(to) = PartId::new(source, train.source_part()) else { continue };
                        let bytes = figures::of(shared, engine, Some(state)).encode();
                        state.replies.retain(|reply| reply.to != to || reply.next > 0);
                        state.replies.push(Reply { to, round, bytes, next: 0 });
                    }
                    Frame::Piece(piece) => self.collect_piece(state, source, &piece),
                }
            }
            engine.release(delivery);
        }
        pipe.forget_notices();
    }

    fn collect_piece(&self, state: &mut State, source: NodeId, piece: &Piece<'_>) {
        let Some(bytes) = state.arriving.get_mut(source.index()).and_then(|a| a.take(piece)) else { return };
        let Some(figures) = NodeFigures::decode(&bytes).filter(|f| usize::from(f.node) == source.index())
        else {
            return;
        };
        if let Some(answer) = state.answers.get_mut(source.index()) {
            *answer = Some((piece.round, figures));
            self.answered.notify_all();
        }
    }

    /// Sends pieces of an answer as long as there is room. Returns whether any are left.
    fn send_pieces(
        &self,
        engine: &mut NodeEngine,
        state: &mut State,
        reply: &mut Reply,
        blocks: &mut u32,
    ) -> bool {
        let most = wire::most(engine.config().longest_unsegmented());
        let pieces = reply.bytes.len().div_ceil(most).max(1);
        while reply.next < pieces {
            let bytes = reply.bytes.chunks(most).nth(reply.next).unwrap_or(&[]);
            let head = wire::head(reply.round, reply.next, pieces);
            match self.send(engine, state, reply.to, wire::PIECE, &[&head, bytes]) {
                Sent::Done => *blocks += 1,
                Sent::Later => return true,
                Sent::Never => return false,
            }
            reply.next += 1;
        }
        false
    }

    /// Sends a command in a block of its own.
    fn send(
        &self,
        engine: &mut NodeEngine,
        state: &mut State,
        to: PartId,
        command: u16,
        pieces: &[&[u8]],
    ) -> Sent {
        let node = to.node();
        let hop = engine.relay_to(node).unwrap_or(node);
        let Some(before) = engine.send_row(hop) else { return Sent::Never };
        // On a full row, each attempt would count as a stall.
        if before.space.vacant() == 0 && before.space.used() > 0 && !engine.has_failed(node) {
            return Sent::Later;
        }
        let mut block = match engine.open(node) {
            Ok(block) => block.into_urgent(),
            Err(OpenError::WouldBlock) => return Sent::Later,
            Err(_) => return Sent::Never,
        };
        let route = Route::new(CduClass::Command, command, self.part, to);
        let bytes = pieces.concat();
        let fits = block.push(route, &bytes).is_ok();
        // A block without a message just becomes vacant again.
        engine.submit(block);
        if let (Some(row), Some(traffic)) = (engine.send_row(hop), state.sent.get_mut(hop.index())) {
            traffic.blocks += row.blocks - before.blocks;
            traffic.messages += row.messages - before.messages;
            traffic.bytes += row.bytes - before.bytes;
        }
        if fits { Sent::Done } else { Sent::Never }
    }
}
