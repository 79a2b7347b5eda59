//! What must hold: at every step, and at rest.

use std::fmt;

use pdbp_core::engine::{Counters, RowStats};
use pdbp_core::id::NodeId;
use pdbp_core::pipe::PipeKind;
use pdbp_core::policy::SpacePolicy;
use pdbp_core::{BlockMemory, Engine, Transport};

/// What must hold in every scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Invariant {
    /// Messages of a link arrive in the order in which they were sent.
    Order,
    /// No message arrives twice.
    Once,
    /// Messages arrive as they were sent.
    Contents,
    /// What does not arrive was lost with a failed link, and its sender has been told.
    Accounted,
    /// Streams arrive whole and in order, or both ends know that they did not.
    Streams,
    /// Nobody passes a barrier before all nodes have arrived at it.
    Barriers,
    /// Nobody ends a superstep before all are done with it and all that was sent in it was read, nor reads what is sent in the next.
    Supersteps,
    /// Who has asked for quiescence is answered when all that was sent before has been received.
    Quiescence,
    /// Every block is in the pool, in a row, or posted.
    Blocks,
    /// No row has more blocks than it may.
    Space,
    /// The engines' counters of what must not happen are 0.
    Counters,
    /// When the traffic has ended, all comes to rest.
    Quiet,
    /// What an [`Actor`](super::Actor) says of itself.
    Actor,
}

/// What does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Breach {
    pub(super) invariant: Invariant,
    pub(super) what: String,
}

impl Breach {
    pub(super) fn new(invariant: Invariant, what: String) -> Self {
        Self { invariant, what }
    }
}

/// A scenario in which something does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The seed that shows it again.
    pub seed: u64,
    /// Nanoseconds of virtual time.
    pub at: u64,
    /// The node that it was seen at.
    pub node: u16,
    /// What does not hold.
    pub invariant: Invariant,
    /// The values.
    pub what: String,
    /// The last events before it.
    pub trace: Vec<String>,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, at, node, invariant, what, trace } = self;
        writeln!(f, "seed {seed}, at {at} ns, node{node}: {invariant:?} does not hold: {what}")?;
        writeln!(f, "the last {} events:", trace.len())?;
        trace.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

impl std::error::Error for Broken {}

/// What the blocks of a node are divided into.
#[derive(Clone, Copy, Debug)]
pub(super) struct Division {
    pub(super) nodes: u16,
    pub(super) blocks: u32,
    pub(super) control: u32,
    pub(super) row: u32,
    pub(super) posted: bool,
}

fn rows<T: Transport, M: BlockMemory, P: SpacePolicy>(
    engine: &Engine<'_, T, M, P>,
    nodes: u16,
) -> impl Iterator<Item = (NodeId, RowStats, RowStats)> {
    let peers = (0..nodes).filter_map(NodeId::new);
    peers.filter_map(|peer| Some((peer, engine.send_row(peer)?, engine.recv_row(peer)?)))
}

/// What holds at any time. `posted` says how many blocks the node has posted for a peer.
pub(super) fn check_blocks<T: Transport, M: BlockMemory, P: SpacePolicy>(
    engine: &Engine<'_, T, M, P>,
    division: Division,
    posted: impl Fn(NodeId) -> u32,
) -> Result<(), Breach> {
    let Division { nodes, blocks, control, row, .. } = division;
    let own = engine.config().node;
    let mut accounted = engine.free_blocks() + control + engine.copy_blocks();
    for (peer, send, recv) in rows(engine, nodes) {
        let (out, incoming) = (send.space, recv.space);
        if out.used() > out.real() || out.real() > row || incoming.used() > row {
            let what = format!(
                "row of {peer}: {} of {} blocks to send in use, {} from it held, {row} allowed",
                out.used(),
                out.real(),
                incoming.used()
            );
            return Err(Breach::new(Invariant::Space, what));
        }
        accounted += out.real();
        if division.posted && peer != own {
            accounted += posted(peer) + recv.unposted + incoming.used();
        }
    }
    if accounted != blocks {
        let what =
            format!("{accounted} of {blocks} blocks are accounted for, {} are free", engine.free_blocks());
        return Err(Breach::new(Invariant::Blocks, what));
    }
    Ok(())
}

/// What is never counted, however many links fail. (Blocks can be stale: what had arrived from a node that is no member.)
/// `steady`: there has been one primary only, or nobody asks one for barriers or quiescence, so that nothing can be of or for one
/// that was.
pub(super) fn check_counters(counters: &Counters, steady: impl Fn() -> bool) -> Result<(), Breach> {
    let never = [
        ("malformed", counters.malformed),
        ("out_of_sequence", counters.out_of_sequence),
        ("unroutable", counters.unroutable),
        ("stray_segments", counters.stray_segments),
        ("misdirected", if counters.misdirected > 0 && steady() { counters.misdirected } else { 0 }),
        ("dropped_control", counters.dropped_control),
        ("foreign_tokens", counters.foreign_tokens),
    ];
    match never.into_iter().find(|(_, count)| *count > 0) {
        Some((name, count)) => Err(Breach::new(Invariant::Counters, format!("{name} is {count}"))),
        None => Ok(()),
    }
}

/// What does not rest yet.
pub(super) fn unrest<T: Transport, M: BlockMemory, P: SpacePolicy>(
    engine: &Engine<'_, T, M, P>,
    nodes: u16,
) -> Option<String> {
    let streams = (engine.pipes(PipeKind::Stream).busy, engine.stream_mappings().count());
    if streams != (0, 0) {
        return Some(format!("{} stream pipes and {} mapping tuples are in use", streams.0, streams.1));
    }
    if engine.copy_blocks() > 0 {
        return Some(format!("copies of messages lie in {} blocks", engine.copy_blocks()));
    }
    rows(engine, nodes).find_map(|(peer, send, recv)| {
        let (out, incoming) = (send.space.used(), recv.space.used());
        let waits = send.waiting + recv.waiting;
        (out + incoming + waits > 0).then(|| {
            format!(
                "row of {peer}: {out} blocks to send and {incoming} received are in use, {waits} of them wait"
            )
        })
    })
}
