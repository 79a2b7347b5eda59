//! Algorithms without a tree: what a member sends and receives in each round.

use super::Kind;
use super::element::Left;
use super::steps::{Place, Plan, Reception, Round, Span};

/// Gather: the root receives the other members' blocks in turn, beginning with its neighbour.
pub(super) fn gather(plan: &Plan, number: usize) -> Option<Round> {
    if plan.rank != plan.root {
        return (number == 0).then(|| Round::send(plan.root, Place::Input, plan.whole()));
    }
    let from = other(plan, number)?;
    Some(Round::recv(from, plan.block(from), Reception::Store))
}

/// Scatter: the root sends the other members their blocks in turn.
pub(super) fn scatter(plan: &Plan, number: usize) -> Option<Round> {
    if plan.rank != plan.root {
        return (number == 0).then(|| Round::recv(plan.root, plan.whole(), Reception::Store));
    }
    let to = other(plan, number)?;
    Some(Round::send(to, Place::Input, plan.block(to)))
}

/// All_to_all: in round k, sends to the member k places on and receives from the one k places back.
pub(super) fn pairwise(plan: &Plan, number: usize) -> Option<Round> {
    let to = other(plan, number)?;
    let from = back(plan, plan.rank, number + 1);
    let recv = Round::recv(from, plan.block(from), Reception::Store);
    Some(Round::send(to, Place::Input, plan.block(to)).and(recv))
}

/// All_to_all, and all_gather, in which all members get the same block. Round k sends to the member k places on; afterwards the
/// blocks are received in turn.
pub(super) fn scattered(plan: &Plan, number: usize) -> Option<Round> {
    if let Some(to) = other(plan, number) {
        let gathers = plan.kind == Kind::AllGather;
        let (place, block) = if gathers { (Place::Output, plan.rank) } else { (Place::Input, to) };
        return Some(Round::send(to, place, plan.block(block)));
    }
    let number = number + 1 - plan.members;
    other(plan, number)?;
    let from = back(plan, plan.rank, number + 1);
    Some(Round::recv(from, plan.block(from), Reception::Store))
}

/// Barrier: sends an empty message to the member 2ᵏ places on, and receives one from the member equally far back.
pub(super) fn dissemination(plan: &Plan, number: usize) -> Option<Round> {
    let distance = 1usize.checked_shl(number as u32).filter(|distance| *distance < plan.members)?;
    let nothing = Span::new(0, 0);
    let to = (plan.rank + distance) % plan.members;
    let recv = Round::recv(back(plan, plan.rank, distance), nothing, Reception::Store);
    Some(Round::send(to, Place::Output, nothing).and(recv))
}

/// Reduce_scatter, all_gather, and both in sequence for an all_reduce.
///
/// In the first half, the share of member c starts at c + 1 and goes round once; each member adds its own values on the right. In
/// the second half, the complete shares go round.
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
    let (out, then) =
        if folds { (number + 1, Reception::Fold(Left::Other)) } else { (number, Reception::Store) };
    let send = Round::send((plan.rank + 1) % plan.members, Place::Output, span(back(plan, plan.rank, out)));
    let recv = Round::recv(back(plan, plan.rank, 1), span(back(plan, plan.rank, out + 1)), then);
    Some(send.and(recv))
}

/// All_reduce by doubling. Combined values always cover a range of ranks, with lower ranks on the left.
pub(super) fn doubling(plan: &Plan, number: usize) -> Option<Round> {
    let rounds = plan.members.ilog2() as usize;
    let last = rounds + 1;
    let Some(own) = Half::of(plan, number, last)? else { return Some(outside(plan, number, last)) };
    let partner = own.0 ^ (1 << (number - 1));
    let (rank, all) = (own.rank(plan, partner), plan.whole());
    let left = if partner < own.0 { Left::Other } else { Left::Own };
    Some(Round::send(rank, Place::Output, all).and(Round::recv(rank, all, Reception::Fold(left))))
}

/// All_reduce by halving, then doubling. In each round of the first half, a member keeps half of what it has and sends away the
/// other half, until its own share is combined; then the same in reverse.
pub(super) fn halving(plan: &Plan, number: usize) -> Option<Round> {
    let rounds = plan.members.ilog2() as usize;
    let last = 2 * rounds + 1;
    let Some(own) = Half::of(plan, number, last)? else { return Some(outside(plan, number, last)) };
    let step = (number - 1).min(2 * rounds - number);
    let partner = own.0 ^ (1 << step);
    let rank = own.rank(plan, partner);
    let (keeps, gives) = own.halves(plan, step);
    Some(if number <= rounds {
        let left = if partner < own.0 { Left::Other } else { Left::Own };
        Round::send(rank, Place::Output, gives).and(Round::recv(rank, keeps, Reception::Fold(left)))
    } else {
        Round::send(rank, Place::Output, keeps).and(Round::recv(rank, gives, Reception::Store))
    })
}

/// A member's number among a power of two of members. Each member beyond those gives its data to its neighbour first, and gets the
/// result at the end.
struct Half(usize);

impl Half {
    /// `None` beyond the last round. `Some(None)` in the first and last round, and for members that gave their data away.
    fn of(plan: &Plan, number: usize, last: usize) -> Option<Option<Self>> {
        let extra = beyond(plan);
        let (is_paired, is_even) = (plan.rank < 2 * extra, plan.rank.is_multiple_of(2));
        if number > last {
            return None;
        }
        let takes_part = number > 0 && number < last && !(is_paired && is_even);
        let own = if is_paired { plan.rank / 2 } else { plan.rank - extra.min(plan.rank) };
        Some(takes_part.then_some(Self(own)))
    }

    /// Returns the rank of another member, given its number.
    fn rank(&self, plan: &Plan, other: usize) -> usize {
        let extra = beyond(plan);
        if other < extra { 2 * other + 1 } else { other + extra }
    }

    /// Returns what the member keeps and what it sends away in a step, out of what it kept in the steps before.
    fn halves(&self, plan: &Plan, step: usize) -> (Span, Span) {
        let (mut keeps, mut gives) = (plan.whole(), Span::new(0, 0));
        for step in 0..=step {
            let half = (keeps.end - keeps.start) / plan.unit / 2 * plan.unit;
            let middle = keeps.start + half;
            let (low, high) = (Span { end: middle, ..keeps }, Span { start: middle, ..keeps });
            (keeps, gives) = if self.0 >> step & 1 == 0 { (low, high) } else { (high, low) };
        }
        (keeps, gives)
    }
}

/// Returns the number of members beyond a power of two.
fn beyond(plan: &Plan) -> usize {
    plan.members - (1 << plan.members.ilog2())
}

/// Returns what members do before and after the others combine, if anything.
fn outside(plan: &Plan, number: usize, last: usize) -> Round {
    let (is_paired, is_even) = (plan.rank < 2 * beyond(plan), plan.rank.is_multiple_of(2));
    let (is_first, all) = (number == 0, plan.whole());
    if !is_first && number != last {
        return Round::default();
    }
    match (is_paired, is_even) {
        (true, true) if is_first => Round::send(plan.rank + 1, Place::Output, all),
        (true, false) if is_first => Round::recv(plan.rank - 1, all, Reception::Fold(Left::Other)),
        (false, _) => Round::default(),
        (true, true) => Round::recv(plan.rank + 1, all, Reception::Store),
        (true, false) => Round::send(plan.rank - 1, Place::Output, all),
    }
}

/// Returns the member `number + 1` places on; `None` if that is this member itself.
fn other(plan: &Plan, number: usize) -> Option<usize> {
    (number + 1 < plan.members).then(|| (plan.rank + number + 1) % plan.members)
}

/// Returns the member `distance` places before `rank`; `distance` is at most twice the number of members.
fn back(plan: &Plan, rank: usize, distance: usize) -> usize {
    (rank + 2 * plan.members - distance) % plan.members
}
