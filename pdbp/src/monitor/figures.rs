//! The figures of a node and of a cluster, as types that serialise to JSON.

use pdbp_core::engine::{Counters, PipeUse, RowStats};
use pdbp_core::id::NodeId;
use pdbp_core::pipe::PipeKind;
use serde::{Deserialize, Serialize};

use super::{Monitor, State, Traffic};
use crate::node::names::is_own;
use crate::node::{NodeEngine, Shared};

/// The figures of a cluster, as collected by one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ClusterFigures {
    /// Index of the node that asked.
    pub asked: u16,
    /// Milliseconds until the answers were in.
    pub took_ms: f64,
    /// All nodes of the cluster, by index.
    pub nodes: Vec<NodeReport>,
}

/// State of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// It has answered.
    Up,
    /// It has not answered in time: it is not polled, it has no monitor, or its pipe is full.
    Silent,
    /// Its link has failed.
    Failed,
}

impl NodeState {
    /// The name used in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Silent => "silent",
            Self::Failed => "failed",
        }
    }
}

/// The state and figures of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NodeReport {
    /// Its index.
    pub node: u16,
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: NodeState,
    /// Its answer, or the last one if it has not answered this time.
    pub figures: Option<NodeFigures>,
}

/// The figures of a node. Counters start with the node. They exclude messages between monitors, except those that a relay
/// has forwarded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct NodeFigures {
    /// Its index.
    pub node: u16,
    /// The node's own clock when it answered, in nanoseconds, for rates.
    pub nanos: u64,
    /// The master's term.
    pub epoch: u32,
    /// Names of its parts.
    pub parts: Vec<String>,
    /// Private pipes.
    pub private_pipes: InUse,
    /// Message pipes.
    pub message_pipes: InUse,
    /// Stream pipes.
    pub stream_pipes: InUse,
    /// Blocks of the UMB that are in no row.
    pub free_blocks: u32,
    /// Short messages copied out of their blocks because readers did not keep up.
    pub copied: u64,
    /// Messages of other nodes that this one, as their relay, has forwarded.
    pub relayed: u64,
    /// Counters of errors.
    pub counts: Counts,
    /// SCBP rows ever used; `peer` is the destination.
    pub send: Vec<RowFigures>,
    /// RCBP rows ever used; `peer` is the source.
    pub recv: Vec<RowFigures>,
    /// Links over sockets to all nodes seen so far, and on a gateway its trunks.
    pub links: Vec<LinkFigures>,
    /// Connection attempts refused by its links and trunks.
    pub strangers: Strangers,
}

/// A link over sockets, or a trunk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct LinkFigures {
    /// Index of the other node; 0 for a trunk.
    pub peer: u16,
    /// Name of the other cluster for a trunk; empty for a link.
    pub cluster: String,
    /// `up`, `cut` (the session waits for a new connection) or `down`.
    pub state: String,
    /// For a trunk that is down: why.
    pub error: String,
    /// Blocks that the other end has received, and their bytes before compression.
    pub sent: u64,
    /// See [`sent`](Self::sent).
    pub sent_bytes: u64,
    /// Blocks received, and their bytes after expansion.
    pub received: u64,
    /// See [`received`](Self::received).
    pub received_bytes: u64,
    /// Blocks in a super-element: k.
    pub density: u64,
    /// How the last compressed block was encoded: `raw`, `lz4` or `zstd`.
    pub codec: String,
    /// Bytes of the compressed blocks, before and after.
    pub plain_bytes: u64,
    /// See [`plain_bytes`](Self::plain_bytes).
    pub packed_bytes: u64,
    /// Connections so far. Each but the first has ended an interruption.
    pub connections: u64,
    /// Failed sessions: an outage lasted too long, or the other end has gone.
    pub failures: u64,
    /// Blocks retransmitted after an interruption.
    pub sent_again: u64,
    /// Connections dropped because of malformed data.
    pub malformed: u64,
}

impl LinkFigures {
    /// The fraction of the compressed blocks' bytes that compression saved; 0 if none was compressed.
    pub fn saved(&self) -> f64 {
        if self.plain_bytes == 0 { 0.0 } else { 1.0 - self.packed_bytes as f64 / self.plain_bytes as f64 }
    }
}

/// Use of one group of pipes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InUse {
    /// In use.
    pub busy: u16,
    /// In all.
    pub total: u16,
}

/// One row of SM or RM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct RowFigures {
    /// Index of the other node.
    pub peer: u16,
    /// N, the maximum number of elements.
    pub size: u32,
    /// `curSize`, the number of real elements.
    pub real: u32,
    /// Elements in use.
    pub used: u32,
    /// Density factor DF.
    pub df: f32,
    /// Space utilisation SU.
    pub su: f32,
    /// Receive/send ratio RSR; `null` in JSON for a row that is full, where it is infinite.
    pub rsr: Option<f32>,
    /// Blocks that have passed through.
    pub blocks: u64,
    /// Their messages.
    pub messages: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// How often a sender had to wait for a vacant element.
    pub stalls: u64,
    /// How often the row should have grown but no block was free.
    pub exhausted: u64,
    /// Blocks waiting in it.
    pub waiting: u32,
}

macro_rules! counts {
    ($($(#[doc = $doc:literal])* $name:ident)*) => {
        /// Counters of errors on a node, as in [`Counters`].
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        #[non_exhaustive]
        pub struct Counts {
            $($(#[doc = $doc])* pub $name: u64,)*
        }

        impl Counts {
            /// All counters with their names.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }

        impl From<Counters> for Counts {
            fn from(counters: Counters) -> Self {
                Self { $($name: counters.$name),* }
            }
        }
    };
}

counts! {
    /// Malformed blocks and CDUs, refused.
    malformed
    /// Blocks of another epoch, and duplicates.
    stale
    /// Blocks missing from their link that were not refused.
    out_of_sequence
    /// Messages for parts that do not exist or have no private pipe.
    unroutable
    /// Stream segments without a mapping tuple.
    stray_segments
    /// Control messages from nodes that must not send them.
    misdirected
    /// Messages that a failed peer did not receive.
    undelivered
    /// Blocks that could not be returned because their owner had failed.
    lost_returns
    /// Messages of other nodes that this one, as their relay, could not forward.
    relay_lost
    /// Control messages that found no room.
    dropped_control
    /// Tokens of another engine.
    foreign_tokens
}

macro_rules! strangers {
    ($($(#[doc = $doc:literal])* $name:ident)*) => {
        /// Refused connection attempts, by reason.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        #[non_exhaustive]
        pub struct Strangers {
            $($(#[doc = $doc])* pub $name: u64,)*
        }

        impl Strangers {
            /// All reasons with their names.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }

            #[cfg(feature = "net")]
            pub(super) fn add(&mut self, door: &pdbp_net::DoorStats) {
                $(self.$name += door.$name;)*
            }
        }
    };
}

strangers! {
    /// Not PDBP.
    foreign
    /// Wrong token.
    wrong_token
    /// Handshake timed out.
    too_slow
    /// Displaced by others, since there were too many.
    crowded_out
    /// Right token, but refused with a reason: another version, other blocks, another cluster, or no place free.
    refused
}

impl NodeFigures {
    /// Total blocks, messages and bytes sent.
    pub fn sent(&self) -> (u64, u64, u64) {
        total(&self.send)
    }

    /// Total blocks, messages and bytes received.
    pub fn received(&self) -> (u64, u64, u64) {
        total(&self.recv)
    }

    /// Total number of stalls, over all rows.
    pub fn stalls(&self) -> u64 {
        self.send.iter().chain(&self.recv).map(|row| row.stalls).sum()
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        // Plain numbers and text always serialise.
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

fn total(rows: &[RowFigures]) -> (u64, u64, u64) {
    rows.iter().fold((0, 0, 0), |(b, m, y), row| (b + row.blocks, m + row.messages, y + row.bytes))
}

/// The figures of this node, without its monitor's own traffic.
pub(super) fn of(shared: &Shared, engine: &NodeEngine, state: Option<&State>) -> NodeFigures {
    let me = shared.id;
    let peers = || (0..engine.config().nodes).filter_map(NodeId::new);
    let own = |traffic: Option<&Vec<Traffic>>, row: &RowStats| {
        traffic.and_then(|t| t.get(row.peer.index())).copied().unwrap_or_default()
    };
    let (sent, received) = (state.map(|s| &s.sent), state.map(|s| &s.received));
    let send = peers().filter_map(|p| engine.send_row(p));
    let recv = peers().filter_map(|p| engine.recv_row(p));
    let hidden = u16::from(state.is_some());
    let pipes = |kind, hidden: u16| {
        let PipeUse { busy, total } = engine.pipes(kind);
        InUse { busy: busy.saturating_sub(hidden), total: total.saturating_sub(hidden) }
    };
    let counters = engine.counters();
    let mut counts = Counts::from(counters);
    counts.undelivered = counts.undelivered.saturating_sub(state.map_or(0, |s| s.undelivered));
    let (links, strangers) = super::links::of(shared, engine);
    let mine = engine.parts().filter(|part| part.id.node() == me && !is_own(part.name.as_str()));
    NodeFigures {
        node: me.raw(),
        nanos: shared.now().0,
        epoch: engine.agreement().epoch().0,
        parts: mine.map(|part| part.name.to_string()).collect(),
        private_pipes: pipes(PipeKind::Private, hidden),
        message_pipes: pipes(PipeKind::Message, hidden),
        stream_pipes: pipes(PipeKind::Stream, 0),
        free_blocks: engine.free_blocks(),
        copied: counters.copied,
        relayed: counters.relayed,
        counts,
        send: send.map(|r| row(&r, own(sent, &r))).filter(is_used).collect(),
        recv: recv.map(|r| row(&r, own(received, &r))).filter(is_used).collect(),
        links,
        strangers,
    }
}

fn is_used(row: &RowFigures) -> bool {
    row.messages > 0 || row.stalls > 0
}

fn row(stats: &RowStats, own: Traffic) -> RowFigures {
    let space = stats.space;
    let rsr = space.receive_send_ratio();
    RowFigures {
        peer: stats.peer.raw(),
        size: space.size(),
        real: space.real(),
        used: space.used(),
        df: space.density(),
        su: space.utilisation(),
        rsr: rsr.is_finite().then_some(rsr),
        blocks: stats.blocks.saturating_sub(own.blocks),
        messages: stats.messages.saturating_sub(own.messages),
        bytes: stats.bytes.saturating_sub(own.bytes),
        stalls: stats.stalls,
        exhausted: stats.exhausted,
        waiting: stats.waiting,
    }
}

impl Monitor {
    /// The figures of this node; the caller holds the engine's lock.
    pub(super) fn own_figures(&self, shared: &Shared, engine: &NodeEngine) -> NodeFigures {
        of(shared, engine, Some(&self.state()))
    }
}
