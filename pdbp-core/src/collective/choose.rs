//! Selects the algorithm of a call from one table. The choice depends only on the call and the length of pieces, so all members
//! choose the same one without communicating.

use super::{Call, Kind};

/// How members perform a call. Normally the call's kind and length decide; [`Steps::with_algorithm`](super::Steps::with_algorithm) accepts any algorithm
/// that [can do](Self::does) the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Algorithm {
    /// A 4-nomial tree: log₄ rounds; each piece is passed on while the next one arrives.
    Tree,
    /// A binomial tree, as in MPI: log₂ rounds, with one message at a time per member.
    Binomial,
    /// A binary tree whose subtrees are ranges of ranks: no member passes a piece on more than twice.
    Binary,
    /// From each member to the next: every byte leaves each member once; takes as many rounds as there are members and pieces.
    Chain,
    /// Directly between the root and each other member: every byte crosses one link, and no member needs memory for another's data.
    Straight,
    /// From neighbour to neighbour: each member sends 1/n of the data at a time. For an all_reduce this adds up to 2 (n − 1)/n of
    /// the data, which is the minimum.
    Ring,
    /// With the partner at distance 1, 2, 4, …: log₂ rounds, each with all of the data.
    Doubling,
    /// As doubling, but with half of the data, a quarter, …, until each member has combined a share, and then in reverse. The
    /// longest messages go to the nearest partner.
    Halving,
    /// In round k, with the members k places before and after.
    Pairwise,
    /// To each other member in turn, then from each: no member waits before all of its own data is in flight. For blocks of a
    /// single piece; with longer blocks, all members would use up their windows and wait for each other.
    Scattered,
    /// In round k, an empty message to the member 2ᵏ places on: after log₂ rounds, all have heard of all.
    Dissemination,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Self; 11] = [
        Self::Tree,
        Self::Binomial,
        Self::Binary,
        Self::Chain,
        Self::Straight,
        Self::Ring,
        Self::Doubling,
        Self::Halving,
        Self::Pairwise,
        Self::Scattered,
        Self::Dissemination,
    ];

    /// Whether the algorithm can perform this kind of call.
    pub fn does(self, kind: Kind) -> bool {
        match self {
            Self::Tree | Self::Binomial | Self::Binary | Self::Chain => {
                matches!(kind, Kind::Broadcast | Kind::Reduce | Kind::AllReduce)
            }
            Self::Straight => matches!(kind, Kind::Scatter | Kind::Gather),
            Self::Ring => matches!(kind, Kind::AllReduce | Kind::AllGather | Kind::ReduceScatter),
            Self::Doubling | Self::Halving => kind == Kind::AllReduce,
            Self::Pairwise => kind == Kind::AllToAll,
            Self::Scattered => matches!(kind, Kind::AllGather | Kind::AllToAll),
            Self::Dissemination => kind == Kind::Barrier,
        }
    }

    /// Whether the pieces of the data go one after the other, each through all rounds.
    pub(super) fn is_pipelined(self) -> bool {
        matches!(self, Self::Tree | Self::Binomial | Self::Binary | Self::Chain)
    }
}

/// Up to this many bytes, the rounds of an all_reduce cost more than the bytes they carry. (Open MPI switches at 10 kB.)
const SHORT: usize = 16 << 10;

/// Blocks up to this length are sent to all before the first is awaited. The messages and their contents are the same as in rounds,
/// but a member may receive the blocks of all others before it needs them, so longer blocks would be copied once more.
const SHORT_BLOCK: usize = 4 << 10;

/// From this many bytes per member, data goes through a chain. With n members and p pieces, a chain takes n + p rounds, in which
/// each member moves one piece in and one out, whereas the root of a tree moves each piece to or from each child. For p, pieces are
/// counted with this length, whatever length they travel with, so all carriers combine values in the same order.
const LONG: usize = 32 << 10;

pub(super) fn choose(call: &Call, members: usize, piece: usize) -> Algorithm {
    let is_long = members > 2 && call.bytes / LONG >= members;
    match call.kind {
        Kind::Barrier => Algorithm::Dissemination,
        Kind::Broadcast | Kind::Reduce if is_long => Algorithm::Chain,
        Kind::Broadcast | Kind::Reduce => Algorithm::Tree,
        Kind::Scatter | Kind::Gather => Algorithm::Straight,
        Kind::AllReduce if call.bytes <= SHORT => Algorithm::Doubling,
        Kind::AllGather | Kind::AllToAll if call.bytes <= SHORT_BLOCK.min(piece) => Algorithm::Scattered,
        Kind::AllReduce | Kind::AllGather | Kind::ReduceScatter => Algorithm::Ring,
        Kind::AllToAll | Kind::Tagged => Algorithm::Pairwise,
    }
}
