//! Which algorithm a call takes: one table, which depends on the call and on the length of pieces, which all have agreed on, so that all members
//! choose the same without asking.

use super::{Call, Kind};

/// How the members do a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    /// A 4-nomial tree: log₄ rounds, and each piece is passed on while the next one comes.
    Tree,
    /// Between the root and each other member, without anybody in between: every byte crosses one link, and nobody needs memory for
    /// what is another's.
    Straight,
    /// From neighbour to neighbour: each member sends 1/n of the data at a time, 2 (n − 1)/n of it in all for an all_reduce, which is the
    /// least there can be.
    Ring,
    /// With the partner at distance 1, 2, 4, …: log₂ rounds, each of all the data.
    Doubling,
    /// In round k with those k places before and behind.
    Pairwise,
    /// To each of the others in turn, then from each: nobody waits before all of its own is under way. For blocks of one piece: with more all
    /// would use up their windows and wait for each other.
    Scattered,
    /// In round k a word to the member 2ᵏ places on: after log₂ rounds all know of all.
    Dissemination,
}

/// Up to so many bytes the rounds of an all_reduce cost more than the bytes they carry. (Open MPI changes at 10 kB.)
const SHORT: usize = 16 << 10;

/// Blocks of up to so many bytes go to all before the first is waited for. The messages are the same as in rounds, and so is what they carry;
/// a member takes up to the blocks of all others before it needs them, for which longer ones would be copied once more.
const SHORT_BLOCK: usize = 4 << 10;

pub(super) fn choose(call: &Call, piece: usize) -> Algorithm {
    match call.kind {
        Kind::Barrier => Algorithm::Dissemination,
        Kind::Broadcast | Kind::Reduce => Algorithm::Tree,
        Kind::Scatter | Kind::Gather => Algorithm::Straight,
        Kind::AllReduce if call.bytes <= SHORT => Algorithm::Doubling,
        Kind::AllGather | Kind::AllToAll if call.bytes <= SHORT_BLOCK.min(piece) => Algorithm::Scattered,
        Kind::AllReduce | Kind::AllGather | Kind::ReduceScatter => Algorithm::Ring,
        Kind::AllToAll | Kind::Tagged => Algorithm::Pairwise,
    }
}
