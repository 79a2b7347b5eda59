//! The invariants, checked at every step and at rest.

use std::fmt;

use pdbp_core::engine::{Counters, RowStats};
use pdbp_core::id::NodeId;
use pdbp_core::pipe::PipeKind;
use pdbp_core::policy::SpacePolicy;
use pdbp_core::{BlockMemory, Engine, Transport};

/// An invariant of every scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Invariant {
    /// Messages of a link arrive in the order sent.
    Order,
    /// No message arrives twice.
    Once,
    /// Messages arrive unchanged.
    Contents,
    /// A message that does not arrive was lost with a failed link, and its sender has been told.
    Accounted,
    /// Streams arrive whole and in order, or both ends know that they did not.
    Streams,
    /// No node passes a barrier before all nodes have arrived at it.
    Barriers,
    /// No node ends a superstep before all are done with it and everything sent in it was read, nor reads messages sent in the
    /// next.
    Supersteps,
    /// A request for quiescence is answered only once everything sent before it has been received.
    Quiescence,
    /// Every block is in the pool, in a row, or posted.
    Blocks,
    /// No row has more blocks than allowed.
    Space,
    /// The engines' counters of things that must not happen are 0.
    Counters,
    /// Once the traffic has ended, everything comes to rest.
    Quiet,
    /// The checks that an [`Actor`](super::Actor) makes itself.
    Actor,
}

/// A violated invariant.
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

/// A scenario in which an invariant does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The seed that reproduces it.
    pub seed: u64,
    /// Nanoseconds of virtual time.
    pub at: u64,
    /// The node at which it was seen.
    pub node: u16,
    /// The violated invariant.
    pub invariant: Invariant,
    /// The values found.
    pub what: String,
    /// The events just before it.
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

/// How the blocks of a node are divided up.
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

/// Checks the invariants that hold at any time. `posted` returns how many blocks the node has posted for a peer.
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

/// Checks the counters that must stay 0 however many links fail. (Blocks can be stale: those that had arrived from a node that is
/// not a member.) `steady` returns whether there has been only one primary, or no node asks one for anything, so that nothing can
/// come from, or be for, a former primary.
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

/// Returns what has not come to rest yet.
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
