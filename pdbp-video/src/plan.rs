//! The plan of a run: what a pass shows, and the role of each node.
//!
//! Every process computes the same [`Layout`] from the number of nodes and drives the nodes that it hosts. The first half of the nodes decodes, the
//! second half analyses, as the documents pair a CPU node with a GPU node; a single node does both. Each decoder has its own analyser at the other
//! end of its stream. Of two clusters joined by a trunk, one decodes and the other analyses ([`Side`]).

use core::ops::Range;
use core::time::Duration;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::measure::Compare;

/// What a pass shows of each stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// One picture at the next entry point; decoders serve all streams in turn.
    #[default]
    Sample,
    /// The same, but of pictures that were decoded before the first pass.
    Replay,
    /// The next picture; every stream has its own decoder.
    Continuous,
    /// Whatever live sources send in the meantime; a pass is a second.
    Live,
}

impl Mode {
    /// Whether pictures of a stream follow one another, so that they can be compared.
    pub fn compare(self) -> Compare {
        match self {
            Self::Continuous | Self::Live => Compare::Streams,
            Self::Sample | Self::Replay => Compare::Nothing,
        }
    }
}

/// How long a pass over live sources lasts.
pub const LIVE_PASS: Duration = Duration::from_secs(1);

/// The plan of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Plan {
    /// What a pass shows.
    pub mode: Mode,
    /// Number of passes over all streams.
    pub passes: u32,
    /// Threads that decode; with transport each decoding node has at least one.
    pub decoders: usize,
}

/// A decoder and the analyser it sends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair {
    /// Number of the pair, part of the names of both parts.
    pub number: u32,
    /// Index of the node that decodes.
    pub decodes: u16,
    /// Index of the node that analyses.
    pub analyses: u16,
}

/// This cluster's share of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Side {
    /// All of it.
    #[default]
    Whole,
    /// It decodes; the cluster of this name analyses, and has the console.
    Decodes(String),
    /// It analyses and has the console; the cluster of this name decodes.
    Analyses(String),
}

impl Side {
    /// Whether nodes of this cluster decode.
    pub fn decodes(&self) -> bool {
        !matches!(self, Self::Analyses(_))
    }

    /// Whether nodes of this cluster analyse, one of which has the console.
    pub fn analyses(&self) -> bool {
        !matches!(self, Self::Decodes(_))
    }

    /// The other cluster.
    pub fn other(&self) -> Option<&str> {
        match self {
            Self::Whole => None,
            Self::Decodes(other) | Self::Analyses(other) => Some(other),
        }
    }
}

/// The role of each node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// All nodes of the cluster.
    pub nodes: u16,
    /// Decoders and analysers. The nodes of those in another cluster are not known.
    pub pairs: Vec<Pair>,
    /// This cluster's share.
    pub side: Side,
}

impl Layout {
    /// The node of the console.
    pub const CONSOLE: u16 = 0;

    /// Spreads `decoders` decoders over the nodes; at least one for every decoding and every analysing node.
    ///
    /// ```
    /// # use pdbp_video::plan::Layout;
    /// let layout = Layout::new(4, 2);
    /// let nodes: Vec<_> = layout.pairs.iter().map(|pair| (pair.decodes, pair.analyses)).collect();
    /// assert_eq!(nodes, [(0, 2), (1, 3)]);
    /// ```
    pub fn new(nodes: u16, decoders: usize) -> Self {
        let nodes = nodes.max(1);
        let decoding = (nodes / 2).max(1);
        let analysing = (nodes - decoding).max(1);
        let first_analysing = if nodes == 1 { 0 } else { decoding };
        let pairs = u32::try_from(decoders).unwrap_or(u32::MAX).max(u32::from(decoding.max(analysing)));
        let node = |number: u32, of: u16| (number % u32::from(of)) as u16; // less than `of`
        let pair = |number| Pair {
            number,
            decodes: node(number, decoding),
            analyses: first_analysing + node(number, analysing),
        };
        Self { nodes, pairs: (0..pairs).map(pair).collect(), side: Side::Whole }
    }

    /// Spreads `decoders` decoders, or as many analysers, over all nodes of a cluster that does nothing else; both clusters use the same number.
    ///
    /// ```
    /// # use pdbp_video::plan::{Layout, Side};
    /// let layout = Layout::of(Side::Analyses("east".into()), 2, 3);
    /// assert_eq!(layout.pairs.iter().map(|pair| pair.analyses).collect::<Vec<_>>(), [0, 1, 0]);
    /// ```
    pub fn of(side: Side, nodes: u16, decoders: usize) -> Self {
        if side == Side::Whole {
            return Self::new(nodes, decoders);
        }
        let nodes = nodes.max(1);
        let pairs = u32::try_from(decoders).unwrap_or(u32::MAX).max(1);
        let pair = |number: u32| {
            let node = (number % u32::from(nodes)) as u16; // less than `nodes`
            Pair { number, decodes: node, analyses: node }
        };
        Self { nodes, pairs: (0..pairs).map(pair).collect(), side }
    }

    /// Indices of the nodes that analyse.
    pub fn analysing(&self) -> Range<usize> {
        if !self.side.analyses() {
            return 0..0;
        }
        let nodes = || self.pairs.iter().map(|pair| usize::from(pair.analyses));
        nodes().min().unwrap_or_default()..nodes().max().map_or(0, |last| last + 1)
    }
}

/// The streams of the decoders of one process, handed out a few at a time, so that they finish together. Passes follow one another; a pass may
/// begin only when all decoders have finished the previous one.
#[derive(Debug)]
pub struct Pool {
    shares: Vec<Range<u32>>,
    /// Pass in the upper half, streams handed out in it in the lower.
    state: AtomicU64,
}

/// Streams handed out at a time.
const BATCH: u32 = 8;

impl Pool {
    /// A pool of the streams in `shares`.
    pub fn new(shares: Vec<Range<u32>>) -> Self {
        Self { shares, state: AtomicU64::new(u64::MAX << 32) }
    }

    /// The next streams of pass `pass`; `None` when all have been handed out.
    pub fn take(&self, pass: u32) -> Option<Range<u32>> {
        // Relaxed: the numbers guard no other data.
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            let done = if state >> 32 == u64::from(pass) { state as u32 } else { 0 }; // the lower half
            let batch = self.batch(done)?;
            let next = (u64::from(pass) << 32) | u64::from(done + (batch.end - batch.start));
            match self.state.compare_exchange_weak(state, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(batch),
                Err(now) => state = now,
            }
        }
    }

    /// The streams that follow the first `done` ones.
    fn batch(&self, done: u32) -> Option<Range<u32>> {
        let mut skip = done;
        for share in &self.shares {
            let length = share.end - share.start;
            if skip < length {
                let start = share.start + skip;
                return Some(start..(start.saturating_add(BATCH)).min(share.end));
            }
            skip -= length;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_has_work_and_roles_do_not_mix() {
        for nodes in 2..9 {
            for decoders in 1..6 {
                let layout = Layout::new(nodes, decoders);
                assert!(layout.pairs.len() >= decoders);
                for node in 0..nodes {
                    let decodes = layout.pairs.iter().any(|pair| pair.decodes == node);
                    let analyses = layout.pairs.iter().any(|pair| pair.analyses == node);
                    assert!(decodes != analyses, "node {node} of {nodes}");
                }
            }
        }
        let alone = Layout::new(1, 2);
        assert!(alone.pairs.iter().all(|pair| (pair.decodes, pair.analyses) == (0, 0)));
    }

    #[test]
    fn a_pool_hands_out_every_stream_once_per_pass() {
        let pool = Pool::new(vec![3..20, 20..20, 40..51]);
        for pass in 0..3 {
            let taken: Vec<u32> = std::iter::from_fn(|| pool.take(pass)).flatten().collect();
            assert_eq!(taken, (3..20).chain(40..51).collect::<Vec<_>>());
        }
    }

    #[test]
    fn threads_share_a_pool() {
        let pool = Pool::new(vec![0..600, 600..1000]);
        let mut taken: Vec<u32> = std::thread::scope(|scope| {
            let take = || scope.spawn(|| std::iter::from_fn(|| pool.take(7)).flatten().collect::<Vec<_>>());
            let threads = [take(), take(), take()];
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        taken.sort_unstable();
        assert_eq!(taken, (0..1000).collect::<Vec<_>>());
    }
}
