//! Trees. Members are numbered from the root on, and a member and its descendants form a range of numbers, which keeps operands in
//! order.

use super::element::Left;
use super::steps::{Place, Plan, Reception, Round};

/// The shape of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// The parent of a number is that number with its lowest nonzero digit in this base set to 0.
    Nomial(usize),
    /// The children of a number are the next number, which heads the first half of the range below, and the first number of the
    /// second half.
    Binary,
    /// The child of a number is the next one.
    Chain,
}

/// Broadcast: receive from the parent, then send to the children, largest subtree first.
pub(super) fn broadcast(plan: &Plan, shape: Shape, number: usize) -> Option<Round> {
    let own = place(plan);
    let Some(child) = number.checked_sub(1) else {
        let parent = shape.parent(own, plan.members);
        let parent = parent.map(|parent| Round::recv(rank(plan, parent), plan.whole(), Reception::Store));
        return Some(parent.unwrap_or_default());
    };
    let child = match shape {
        Shape::Nomial(degree) => {
            let level = levels(own, plan.members, degree).checked_sub(child / (degree - 1) + 1)?;
            level * (degree - 1) + child % (degree - 1)
        }
        _ => child,
    };
    let child = shape.child(own, plan.members, child)?;
    let send = |child| Round::send(rank(plan, child), Place::Output, plan.whole());
    Some(child.map(send).unwrap_or_default())
}

/// Reduce: receive from the children, smallest subtree first since it is ready first, then send to the parent.
pub(super) fn reduce(plan: &Plan, shape: Shape, number: usize) -> Option<Round> {
    let own = place(plan);
    if let Some(child) = shape.child(own, plan.members, number) {
        let fold = |child| Round::recv(rank(plan, child), plan.whole(), Reception::Fold(Left::Own));
        return Some(child.map(fold).unwrap_or_default());
    }
    // The first number past the children.
    let is_next = number.checked_sub(1).is_none_or(|last| shape.child(own, plan.members, last).is_some());
    let parent = shape.parent(own, plan.members).filter(|_| is_next)?;
    Some(Round::send(rank(plan, parent), Place::Output, plan.whole()))
}

impl Shape {
    fn parent(self, place: usize, members: usize) -> Option<usize> {
        if place == 0 {
            return None;
        }
        Some(match self {
            Self::Nomial(degree) => {
                let mut step = 1;
                while place.is_multiple_of(step * degree) {
                    step *= degree;
                }
                place - place / step % degree * step
            }
            Self::Binary => find(place, members).0,
            Self::Chain => place - 1,
        })
    }

    /// Returns a child, counted from the smallest subtree. `None` past the last; `Some(None)` if there is no such member.
    fn child(self, place: usize, members: usize, number: usize) -> Option<Option<usize>> {
        let child = match self {
            Self::Nomial(degree) => {
                let (level, digit) = (number / (degree - 1), number % (degree - 1) + 1);
                (level < levels(place, members, degree)).then(|| place + digit * degree.pow(level as u32))
            }
            Self::Binary => {
                let (_, end) = find(place, members);
                (number < 2)
                    .then(|| if number == 0 { place + 1 } else { middle(place, end) })
                    // With a single descendant, the second half is empty.
                    .map(|child| if child < end { child } else { members })
            }
            Self::Chain => (number == 0).then_some(place + 1),
        };
        child.map(|child| Some(child).filter(|child| *child < members))
    }
}

/// Returns the parent of a nonzero number in a binary tree, and the end of the range of its descendants.
fn find(place: usize, members: usize) -> (usize, usize) {
    let (mut at, mut end, mut parent) = (0, members, 0);
    while at != place {
        parent = at;
        let middle = middle(at, end);
        (at, end) = if place < middle { (at + 1, middle) } else { (middle, end) };
    }
    (parent, end)
}

/// Returns where the second half of a number's descendants begins.
fn middle(place: usize, end: usize) -> usize {
    place + 1 + (end - place - 1).div_ceil(2)
}

/// The number of this member, counted from the root.
fn place(plan: &Plan) -> usize {
    (plan.rank + plan.members - plan.root) % plan.members
}

fn rank(plan: &Plan, place: usize) -> usize {
    (place + plan.root) % plan.members
}

/// Number of levels on which a number may have children.
fn levels(place: usize, members: usize, degree: usize) -> usize {
    let (mut step, mut levels) = (1, 0);
    while step < members && place.is_multiple_of(step * degree) {
        step *= degree;
        levels += 1;
    }
    levels
}
