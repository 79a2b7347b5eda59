//! The figures of a node and of a cluster, as types that JSON is made of.

use pdbp_core::engine::{Counters, PipeUse, RowStats};
use pdbp_core::id::NodeId;
use pdbp_core::pipe::PipeKind;
use serde::{Deserialize, Serialize};

use super::{Monitor, State, Traffic};
use crate::node::names::is_own;
use crate::node::{NodeEngine, Shared};

/// What one node sees of the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ClusterFigures {
    /// Index of the node that has asked.
    pub asked: u16,
    /// Milliseconds that the answers took.
    pub took_ms: f64,
    /// All nodes of the cluster, by index.
    pub nodes: Vec<NodeReport>,
}

/// How a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// It has answered.
    Up,
    /// It has not answered in time: nobody polls it, it has no monitor, or it takes nothing in.
    Silent,
    /// Its link has been reported failed.
    Failed,
}

impl NodeState {
    /// As in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Silent => "silent",
            Self::Failed => "failed",
        }
    }
}

/// What is known of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NodeReport {
    /// Its index.
    pub node: u16,
    /// Its name.
    pub name: String,
    /// How it is.
    pub state: NodeState,
    /// Its answer; that of before for a node that has not answered this time.
    pub figures: Option<NodeFigures>,
}

/// What a node says of itself. Counts are since its start; what monitors send each other is not in them,
/// but what a relay has passed on of it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct NodeFigures {
    /// Its index.
    pub node: u16,
    /// When it said so: nanoseconds on its own clock, for rates.
    pub nanos: u64,
    /// The master's term of office.
    pub epoch: u32,
    /// Names of its parts.
    pub parts: Vec<String>,
    /// Private pipes.
    pub private_pipes: InUse,
    /// Message pipes.
    pub message_pipes: InUse,
    /// Stream pipes.
    pub stream_pipes: InUse,
    /// Blocks of the UMB that no row has.
    pub free_blocks: u32,
    /// What went wrong.
    pub counts: Counts,
    /// SCBP rows that were ever used; `peer` is the destination.
    pub send: Vec<RowFigures>,
    /// RCBP rows that were ever used; `peer` is the source.
    pub recv: Vec<RowFigures>,
    /// Links over sockets to nodes that were ever there; and at a gateway its trunks, to other clusters.
    pub links: Vec<LinkFigures>,
    /// Calls at the doors of its links and trunks that were refused.
    pub strangers: Strangers,
}

/// One link over sockets, or trunk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct LinkFigures {
    /// Index of the other node. Of a trunk 0.
    pub peer: u16,
    /// Of a trunk: the name of the other cluster. Of a link empty.
    pub cluster: String,
    /// `up`, `cut` (the session waits for another connection) or `down`.
    pub state: String,
    /// Of a trunk that is not there: what keeps it from being there.
    pub error: String,
    /// Blocks that the other end has taken, and their bytes before they were packed.
    pub sent: u64,
    /// See [`sent`](Self::sent).
    pub sent_bytes: u64,
    /// Blocks that have come, and their bytes expanded.
    pub received: u64,
    /// See [`received`](Self::received).
    pub received_bytes: u64,
    /// Blocks in a super-element: k.
    pub density: u64,
    /// What the last packed block was packed by: `raw`, `lz4` or `zstd`.
    pub codec: String,
    /// Bytes of the blocks that were packed, before and after.
    pub plain_bytes: u64,
    /// See [`plain_bytes`](Self::plain_bytes).
    pub packed_bytes: u64,
    /// Connections there were. All but the first have ended an interruption.
    pub connections: u64,
    /// Sessions that have failed: an outage lasted too long, or the other end has gone.
    pub failures: u64,
    /// Blocks that were sent again after an interruption.
    pub sent_again: u64,
    /// Connections that were given up since what came made no sense.
    pub malformed: u64,
}

impl LinkFigures {
    /// The share of the packed blocks' bytes that did not have to travel; 0 if none was packed.
    pub fn saved(&self) -> f64 {
        if self.plain_bytes == 0 { 0.0 } else { 1.0 - self.packed_bytes as f64 / self.plain_bytes as f64 }
    }
}

/// Pipes of one group.
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
    /// N, the most elements.
    pub size: u32,
    /// `curSize`, the real elements.
    pub real: u32,
    /// Elements in use.
    pub used: u32,
    /// Density factor DF.
    pub df: f32,
    /// Space utilisation SU.
    pub su: f32,
    /// Receive/send ratio RSR; `null` in JSON for a row that is full, where it is infinite.
    pub rsr: Option<f32>,
    /// Blocks that went through.
    pub blocks: u64,
    /// Their messages.
    pub messages: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// How often somebody had to wait for a vacant element.
    pub stalls: u64,
    /// How often the row should have grown and no block was free.
    pub exhausted: u64,
    /// Blocks that wait in it.
    pub waiting: u32,
}

macro_rules! counts {
    ($($(#[doc = $doc:literal])* $name:ident)*) => {
        /// What went wrong on a node, as [`Counters`] has it.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        #[non_exhaustive]
        pub struct Counts {
            $($(#[doc = $doc])* pub $name: u64,)*
        }

        impl Counts {
            /// All of them with their names.
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
    /// Blocks and CDUs refused because their bytes made no sense.
    malformed
    /// Blocks of another epoch, or seen before.
    stale
    /// Blocks that are missing from their link without having been refused.
    out_of_sequence
    /// Messages for parts that do not exist or have no private pipe.
    unroutable
    /// Stream segments without a mapping tuple.
    stray_segments
    /// Control messages from a node that must not send them.
    misdirected
    /// Messages that a failed peer did not get.
    undelivered
    /// Blocks that could not be returned since their owner had failed.
    lost_returns
    /// Messages of other nodes that this one, their relay, could not pass on.
    relay_lost
    /// Control messages that found no room.
    dropped_control
    /// Tokens handed in that are not of this engine.
    foreign_tokens
}

macro_rules! strangers {
    ($($(#[doc = $doc:literal])* $name:ident)*) => {
        /// Calls at a door that were refused, by reason.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        #[non_exhaustive]
        pub struct Strangers {
            $($(#[doc = $doc])* pub $name: u64,)*
        }

        impl Strangers {
            /// All of them with their names.
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
    /// Did not begin as PDBP does.
    foreign
    /// Did not know the token.
    wrong_token
    /// Took too long to say who they are.
    too_slow
    /// Gave way to others, since there were too many.
    crowded_out
    /// Knew the token, and were refused by name: of another version, with other blocks, of another cluster, without a place.
    refused
}

impl NodeFigures {
    /// Blocks, messages and bytes sent to all nodes.
    pub fn sent(&self) -> (u64, u64, u64) {
        total(&self.send)
    }

    /// Blocks, messages and bytes that came from all nodes.
    pub fn received(&self) -> (u64, u64, u64) {
        total(&self.recv)
    }

    /// How often somebody had to wait, in all rows.
    pub fn stalls(&self) -> u64 {
        self.send.iter().chain(&self.recv).map(|row| row.stalls).sum()
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        // Plain numbers and text: there is nothing that JSON cannot say.
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

fn total(rows: &[RowFigures]) -> (u64, u64, u64) {
    rows.iter().fold((0, 0, 0), |(b, m, y), row| (b + row.blocks, m + row.messages, y + row.bytes))
}

/// The figures of this node, without what its monitor has done.
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
    let mut counts = Counts::from(engine.counters());
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
    /// The figures of this node, with the engine's lock held.
    pub(super) fn own_figures(&self, shared: &Shared, engine: &NodeEngine) -> NodeFigures {
        of(shared, engine, Some(&self.state()))
    }
}
