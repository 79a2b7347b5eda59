//! Algorithms without a tree: what a member sends and receives in each round.

use super::Kind;
use super::element::Left;
use super::steps::{Place, Plan, Round, Span, Then};

/// The root takes the blocks of the others in turn, beginning with its neighbour.
pub(super) fn gather(plan: &Plan, number: usize) -> Option<Round> {
    if plan.rank != plan.root {
        return (number == 0).then(|| Round::send(plan.root, Place::Input, plan.whole()));
    }
    let from = other(plan, number)?;
    Some(Round::recv(from, plan.block(from), Then::Store))
}

/// The root gives the others their blocks in turn.
pub(super) fn scatter(plan: &Plan, number: usize) -> Option<Round> {
    if plan.rank != plan.root {
        return (number == 0).then(|| Round::recv(plan.root, plan.whole(), Then::Store));
    }
    let to = other(plan, number)?;
    Some(Round::send(to, Place::Input, plan.block(to)))
}

/// All to all: in round k to the one k places on, from the one k places back.
pub(super) fn pairwise(plan: &Plan, number: usize) -> Option<Round> {
    let to = other(plan, number)?;
    let from = back(plan, plan.rank, number + 1);
    let recv = Round::recv(from, plan.block(from), Then::Store);
    Some(Round::send(to, Place::Input, plan.block(to)).and(recv))
}

/// All to all, and all_gather, in which all get the same block: to the one k places on in round k, then from the one k places back.
pub(super) fn scattered(plan: &Plan, number: usize) -> Option<Round> {
    if let Some(to) = other(plan, number) {
        let gathers = plan.kind == Kind::AllGather;
        let (place, block) = if gathers { (Place::Output, plan.rank) } else { (Place::Input, to) };
        return Some(Round::send(to, place, plan.block(block)));
    }
    let number = number + 1 - plan.members;
    other(plan, number)?;
    let from = back(plan, plan.rank, number + 1);
    Some(Round::recv(from, plan.block(from), Then::Store))
}

/// Barrier: an empty message to the one 2ᵏ places on, and one from the one as far back.
pub(super) fn dissemination(plan: &Plan, number: usize) -> Option<Round> {
    let distance = 1usize.checked_shl(number as u32).filter(|distance| *distance < plan.members)?;
    let nothing = Span::new(0, 0);
    let to = (plan.rank + distance) % plan.members;
    let recv = Round::recv(back(plan, plan.rank, distance), nothing, Then::Store);
    Some(Round::send(to, Place::Output, nothing).and(recv))
}

/// Reduce-scatter, all_gather, and both for an all_reduce.
///
/// In the first half the share of member c is begun by c + 1 and goes round once; each adds its own on the right. In the second half the
/// shares that are ready go round.
pub(super) fn ring(plan: &Plan, number: usize) -> Option<Round> {
    let turns = plan.members - 1;
    let gathers = plan.kind == Kind::AllGather;
    let (folds, number) = match number.checked_sub(turns) {
        _ if gathers => (false, number),
        Some(number) if plan.kind == Kind::AllReduce => (false, number),
        _ => (true, number),
    };
    if number >= turns {
        return None;
    }
    let span = |rank| if gathers { plan.block(rank) } else { plan.share(rank) };
    let (out, then) = if folds { (number + 1, Then::Fold(Left::Other)) } else { (number, Then::Store) };
    let send = Round::send((plan.rank + 1) % plan.members, Place::Output, span(back(plan, plan.rank, out)));
    let recv = Round::recv(back(plan, plan.rank, 1), span(back(plan, plan.rank, out + 1)), then);
    Some(send.and(recv))
}

/// All_reduce by doubling. Of members beyond a power of two each gives what it has to its neighbour before, and gets the result after.
/// Whoever has combined has a range of ranks, so that lower ranks are left of higher ones.
pub(super) fn doubling(plan: &Plan, number: usize) -> Option<Round> {
    let rounds = plan.members.ilog2() as usize;
    let power = 1usize << rounds;
    let extra = plan.members - power;
    let (is_paired, is_even) = (plan.rank < 2 * extra, plan.rank.is_multiple_of(2));
    let all = plan.whole();
    if number == 0 || number == rounds + 1 {
        let before = number == 0;
        return Some(match (is_paired, is_even) {
            (true, true) if before => Round::send(plan.rank + 1, Place::Output, all),
            (true, true) => Round::recv(plan.rank + 1, all, Then::Store),
            (true, false) if before => Round::recv(plan.rank - 1, all, Then::Fold(Left::Other)),
            (true, false) => Round::send(plan.rank - 1, Place::Output, all),
            (false, _) => Round::default(),
        });
    }
    if number > rounds {
        return None;
    }
    if is_paired && is_even {
        return Some(Round::default());
    }
    let own = if is_paired { plan.rank / 2 } else { plan.rank - extra };
    let partner = own ^ (1 << (number - 1));
    let rank = if partner < extra { 2 * partner + 1 } else { partner + extra };
    let left = if partner < own { Left::Other } else { Left::Own };
    Some(Round::send(rank, Place::Output, all).and(Round::recv(rank, all, Then::Fold(left))))
}

/// The member `number + 1` places on; `None` when that is the member itself.
fn other(plan: &Plan, number: usize) -> Option<usize> {
    (number + 1 < plan.members).then(|| (plan.rank + number + 1) % plan.members)
}

/// The member `distance` places before another, at most twice the number of members.
fn back(plan: &Plan, rank: usize, distance: usize) -> usize {
    (rank + 2 * plan.members - distance) % plan.members
}
