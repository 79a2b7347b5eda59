//! Which algorithm a call takes: one table, which depends on the call and on the length of pieces, which all have agreed on, so that all members
//! choose the same without asking.

use super::{Call, Kind};

/// How the members do a call. Which one a call takes is chosen by its kind and length; [`Steps::by`](super::Steps::by) takes any that
/// [can do](Self::does) it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Algorithm {
    /// A 4-nomial tree: log₄ rounds, and each piece is passed on while the next one comes.
    Tree,
    /// The same with a binomial tree, as MPI's are: log₂ rounds, with one message at a time to a member.
    Binomial,
    /// The same with a binary tree whose subtrees are ranges of ranks: no member passes a piece on more than twice.
    Binary,
    /// From each member to the next: every byte leaves each member once, after as many rounds as there are members and pieces.
    Chain,
    /// Between the root and each other member, without anybody in between: every byte crosses one link, and nobody needs memory for
    /// what is another's.
    Straight,
    /// From neighbour to neighbour: each member sends 1/n of the data at a time, 2 (n − 1)/n of it in all for an all_reduce, which is the
    /// least there can be.
    Ring,
    /// With the partner at distance 1, 2, 4, …: log₂ rounds, each of all the data.
    Doubling,
    /// The same with half of the data, a quarter, …, until each member has a share combined, and back the same way. The longest messages
    /// go to the nearest partner.
    Halving,
    /// In round k with those k places before and behind.
    Pairwise,
    /// To each of the others in turn, then from each: nobody waits before all of its own is under way. For blocks of one piece: with more all
    /// would use up their windows and wait for each other.
    Scattered,
    /// In round k a word to the member 2ᵏ places on: after log₂ rounds all know of all.
    Dissemination,
}

impl Algorithm {
    /// All of them.
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

    /// Whether it can do such a call.
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

    /// Whether the pieces of the data go one behind the other, each by all rounds.
    pub(super) fn is_by_pieces(self) -> bool {
        matches!(self, Self::Tree | Self::Binomial | Self::Binary | Self::Chain)
    }
}

/// Up to so many bytes the rounds of an all_reduce cost more than the bytes they carry. (Open MPI changes at 10 kB.)
const SHORT: usize = 16 << 10;

/// Blocks of up to so many bytes go to all before the first is waited for. The messages are the same as in rounds, and so is what they carry;
/// a member takes up to the blocks of all others before it needs them, for which longer ones would be copied once more.
const SHORT_BLOCK: usize = 4 << 10;

/// From so many bytes for each member on, data goes from each to the next: with n members and p pieces that takes n + p rounds, in which each member
/// moves a piece in and one out, where the root of a tree moves each piece to or from each of its children. In p the pieces have this length, whatever they
/// have on their way, so that values are combined in the same order by all carriers.
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
