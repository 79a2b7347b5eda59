//! The 4-nomial tree. Seen from the root, members are numbered from 0 on; the parent of a number is the number with its lowest base-4
//! digit that is not 0 set to 0. So a member and those below it are a range of numbers, and operands stay in that order.

use super::element::Left;
use super::steps::{Place, Plan, Round, Then};

const DEGREE: usize = 4;

/// Broadcast: from the parent, then to the children, those with the most below them first.
pub(super) fn broadcast(plan: &Plan, number: usize) -> Option<Round> {
    let own = place(plan);
    let Some(child) = number.checked_sub(1) else {
        let parent = parent(own).map(|parent| Round::recv(rank(plan, parent), plan.whole(), Then::Store));
        return Some(parent.unwrap_or_default());
    };
    let levels = levels(own, plan.members);
    let level = levels.checked_sub(child / (DEGREE - 1) + 1)?;
    Some(with_child(plan, own, level, child, |child| Round::send(child, Place::Output, plan.whole())))
}

/// Reduce: from the children, those that are ready first first, then to the parent.
pub(super) fn reduce(plan: &Plan, number: usize) -> Option<Round> {
    let own = place(plan);
    let children = (DEGREE - 1) * levels(own, plan.members);
    if number < children {
        let fold = |child| Round::recv(child, plan.whole(), Then::Fold(Left::Own));
        return Some(with_child(plan, own, number / (DEGREE - 1), number, fold));
    }
    let parent = parent(own).filter(|_| number == children)?;
    Some(Round::send(rank(plan, parent), Place::Output, plan.whole()))
}

fn with_child(
    plan: &Plan,
    own: usize,
    level: usize,
    number: usize,
    round: impl FnOnce(usize) -> Round,
) -> Round {
    let child = own + (number % (DEGREE - 1) + 1) * DEGREE.pow(level as u32);
    if child < plan.members { round(rank(plan, child)) } else { Round::default() }
}

/// The number of this member, seen from the root.
fn place(plan: &Plan) -> usize {
    (plan.rank + plan.members - plan.root) % plan.members
}

fn rank(plan: &Plan, place: usize) -> usize {
    (place + plan.root) % plan.members
}

fn parent(place: usize) -> Option<usize> {
    if place == 0 {
        return None;
    }
    let mut step = 1;
    while place.is_multiple_of(step * DEGREE) {
        step *= DEGREE;
    }
    Some(place - place / step % DEGREE * step)
}

/// Levels on which it may have children.
fn levels(place: usize, members: usize) -> usize {
    let (mut step, mut levels) = (1, 0);
    while step < members && place.is_multiple_of(step * DEGREE) {
        step *= DEGREE;
        levels += 1;
    }
    levels
}
