//! Short calls of members that can all read what each of them writes, such as those that share memory. Nothing is forwarded: each
//! member writes its input once, if it has any, and reads what it needs from the notes of others.
//!
//! | call | who writes | what | who reads |
//! |---|---|---|---|
//! | broadcast | the root | its data | the others |
//! | scatter | the root | all blocks | the others, each its own |
//! | gather, reduce | all but the root | a block, their data | the root |
//! | all_gather, all_reduce | all | a block, their data | all |
//! | all_to_all | all | all their blocks | all, each its own of each |
//!
//! Values are combined in the same order as when the call is performed by messages, so results have the same bits either way.

use super::element::{Left, Op, combine};
use super::{Call, Data, Kind};

/// Up to this many bytes over all members together, combining them alone takes less time than rounds of messages.
const MOST: usize = 16 << 10;

/// The members that write what others read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writers {
    /// This member only.
    One(usize),
    /// All members but this one, which reads.
    AllBut(usize),
    /// All members.
    All,
}

impl Writers {
    /// Whether this member writes.
    #[inline]
    pub fn contains(self, rank: usize) -> bool {
        match self {
            Self::One(one) => rank == one,
            Self::AllBut(one) => rank != one,
            Self::All => true,
        }
    }

    /// Whether this member reads what others write.
    #[inline]
    pub fn has_reader(self, rank: usize) -> bool {
        match self {
            Self::One(one) => rank != one,
            Self::AllBut(one) => rank == one,
            Self::All => true,
        }
    }
}

impl Call {
    /// Returns the writers if the call can be performed with notes of up to `longest` bytes and gains from it. Depends only on the
    /// call and its arguments.
    #[inline]
    pub fn writers(&self, members: usize, longest: usize) -> Option<Writers> {
        let blocks = |length: usize| length.saturating_mul(members);
        let (writers, written, folded) = match self.kind {
            Kind::Broadcast => (Writers::One(self.root), self.bytes, 0),
            Kind::Scatter => (Writers::One(self.root), blocks(self.bytes), 0),
            Kind::Gather => (Writers::AllBut(self.root), self.bytes, 0),
            Kind::Reduce => (Writers::AllBut(self.root), self.bytes, blocks(self.bytes)),
            Kind::AllGather => (Writers::All, self.bytes, 0),
            Kind::AllReduce => (Writers::All, self.bytes, blocks(self.bytes)),
            Kind::AllToAll => (Writers::All, blocks(self.bytes), 0),
            Kind::Barrier | Kind::ReduceScatter | Kind::Tagged => return None,
        };
        ((1..=longest).contains(&written) && folded <= MOST).then_some(writers)
    }

    /// Returns what a writer writes.
    #[inline]
    pub fn written<'d>(&self, data: &'d Data<'_, '_>) -> &'d [u8] {
        match self.kind {
            Kind::Broadcast | Kind::Reduce | Kind::AllReduce => &*data.output,
            _ => data.input,
        }
    }

    /// Maximum number of bytes that [`read_notes`](Self::read_notes) needs for combining values: one buffer per level of the
    /// combining tree, and one for the next values.
    pub const fn scratch(members: usize, longest: usize) -> usize {
        (usize::BITS - members.leading_zeros()) as usize * longest + 2 * longest
    }

    /// Reads the notes once all [writers](Self::writers) have written, and puts the result in place. `read` copies from a byte
    /// offset in a member's note; `scratch` is memory for combining. Returns `false` if the call is invalid (it must have been
    /// [checked](Self::check)) or `scratch` is too short.
    #[inline]
    pub fn read_notes(
        &self,
        (members, rank): (usize, usize),
        data: &mut Data<'_, '_>,
        scratch: &mut [u8],
        mut read: impl FnMut(usize, usize, &mut [u8]),
    ) -> bool {
        let (bytes, root) = (self.bytes, self.root);
        match self.kind {
            Kind::Broadcast if rank != root => read(root, 0, data.output),
            Kind::Scatter if rank != root => read(root, rank * bytes, data.output),
            Kind::Scatter => return copy(data.output, data.input.get(rank * bytes..)),
            Kind::Gather if rank != root => {}
            Kind::Gather | Kind::AllGather | Kind::AllToAll => {
                let place = if self.kind == Kind::AllToAll { rank * bytes } else { 0 };
                for (from, block) in data.output.chunks_exact_mut(bytes.max(1)).enumerate() {
                    if from != rank {
                        read(from, place, block);
                    } else if !copy(block, data.input.get(place..)) {
                        return false;
                    }
                }
            }
            Kind::Reduce if rank != root => {}
            Kind::Reduce => {
                let order = (0..members).map(|place| (place + root) % members);
                return self.fold((order, 4, 0), rank, data, scratch, read);
            }
            Kind::AllReduce => {
                let beyond = members - (1 << members.ilog2());
                return self.fold((0..members, 2, beyond), rank, data, scratch, read);
            }
            _ => {}
        }
        true
    }

    /// Combines the values of all members in the given order, as a tree of this degree does. The first `pairs` pairs are combined
    /// beforehand.
    fn fold(
        &self,
        (mut order, degree, pairs): (impl ExactSizeIterator<Item = usize>, usize, usize),
        rank: usize,
        data: &mut Data<'_, '_>,
        scratch: &mut [u8],
        mut read: impl FnMut(usize, usize, &mut [u8]),
    ) -> bool {
        let leaves = order.len() - pairs;
        let mut stack = Stack { scratch, bytes: self.bytes, depth: 0 };
        for leaf in 0..leaves {
            for part in 0..1 + usize::from(leaf < pairs) {
                let (Some(from), Some(room)) = (order.next(), stack.push()) else { return false };
                if from != rank {
                    read(from, 0, room);
                } else if !copy(room, Some(&*data.output)) {
                    return false;
                }
                if part == 1 && !stack.combine(self, data) {
                    return false;
                }
            }
            // Combine the value of each complete subtree with the values on its left; after the last leaf, combine everything.
            let (mut place, is_last) = (leaf, leaf + 1 == leaves);
            while if is_last { stack.depth > 1 } else { !place.is_multiple_of(degree) } {
                if !stack.combine(self, data) {
                    return false;
                }
                if !is_last && place % degree + 1 < degree {
                    break;
                }
                place /= degree;
            }
        }
        copy(data.output, stack.scratch.get(..self.bytes))
    }
}

/// Values waiting for those on their right, stored back to back.
struct Stack<'s> {
    scratch: &'s mut [u8],
    bytes: usize,
    depth: usize,
}

impl Stack<'_> {
    fn push(&mut self) -> Option<&mut [u8]> {
        let start = self.depth * self.bytes;
        self.depth += 1;
        self.scratch.get_mut(start..start + self.bytes)
    }

    /// Combines the last value with the one before it.
    fn combine(&mut self, call: &Call, data: &mut Data<'_, '_>) -> bool {
        let Some(depth) = self.depth.checked_sub(1).filter(|depth| *depth > 0) else { return false };
        self.depth = depth;
        let Some((lower, upper)) = self.scratch.split_at_mut_checked(depth * self.bytes) else {
            return false;
        };
        let last = (depth - 1) * self.bytes;
        let (Some(into), Some(from)) = (lower.get_mut(last..), upper.get(..self.bytes)) else { return false };
        match (call.op, &mut data.fold) {
            (Some(Op::Function), Some(fold)) => fold(into, from, Left::Own),
            (Some(op), _) => return combine(op, call.element, Left::Own, into, from),
            (None, _) => return false,
        }
        true
    }
}

/// Copies from `from`; returns whether it was long enough.
fn copy(into: &mut [u8], from: Option<&[u8]>) -> bool {
    let Some(from) = from.and_then(|from| from.get(..into.len())) else { return false };
    into.copy_from_slice(from);
    true
}
