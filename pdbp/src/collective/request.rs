//! A call with its data.

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use pdbp_core::collective::{Call, Data, Element, Kind, Member, Op, Refused, Running, StartError, Tagged};

use super::value::{Fold, parts};
use super::{Number, Operation};

/// A call of a group and its data. The methods of [`Group`](super::Group) with the same names describe each call, and wait until
/// it is done.
#[must_use = "a group has to start it"]
pub struct Request<'d> {
    what: What,
    pub(super) input: &'d [u8],
    pub(super) output: &'d mut [u8],
    pub(super) fold: Option<Fold<'d>>,
}

#[derive(Clone, Copy)]
pub(super) enum What {
    Call(Call),
    Tagged { to: Option<Tagged>, from: Option<Tagged> },
}

impl<'d> Request<'d> {
    fn moving(kind: Kind, root: usize, bytes: usize, input: &'d [u8], output: &'d mut [u8]) -> Self {
        Self { what: What::Call(Call::moving(kind, root, bytes)), input, output, fold: None }
    }

    fn reducing<T: Number>(kind: Kind, root: usize, data: &'d mut [T], op: impl Operation<T> + 'd) -> Self {
        let (element, op, fold) = parts(op);
        let what = What::Call(Call::reducing(kind, root, element, op, size_of_val(data)));
        Self { what, input: &[], output: cast_slice_mut(data), fold }
    }

    fn reducing_of(kind: Kind, root: usize, element: Element, data: &'d mut [u8], op: Op) -> Self {
        let what = What::Call(Call::reducing(kind, root, element, op, data.len()));
        Self { what, input: &[], output: data, fold: None }
    }

    /// See [`Group::barrier`](super::Group::barrier).
    pub fn barrier() -> Self {
        Self::moving(Kind::Barrier, 0, 0, &[], &mut [])
    }

    /// See [`Group::broadcast`](super::Group::broadcast).
    pub fn broadcast<T: Pod>(root: usize, data: &'d mut [T]) -> Self {
        Self::moving(Kind::Broadcast, root, size_of_val(data), &[], cast_slice_mut(data))
    }

    /// See [`Group::scatter`](super::Group::scatter).
    pub fn scatter<T: Pod>(root: usize, all: Option<&'d [T]>, own: &'d mut [T]) -> Self {
        let input = all.map_or(&[][..], cast_slice);
        Self::moving(Kind::Scatter, root, size_of_val(own), input, cast_slice_mut(own))
    }

    /// See [`Group::gather`](super::Group::gather).
    pub fn gather<T: Pod>(root: usize, own: &'d [T], all: Option<&'d mut [T]>) -> Self {
        let output = all.map_or(&mut [][..], cast_slice_mut);
        Self::moving(Kind::Gather, root, size_of_val(own), cast_slice(own), output)
    }

    /// See [`Group::all_gather`](super::Group::all_gather).
    pub fn all_gather<T: Pod>(own: &'d [T], all: &'d mut [T]) -> Self {
        Self::moving(Kind::AllGather, 0, size_of_val(own), cast_slice(own), cast_slice_mut(all))
    }

    /// See [`Group::reduce`](super::Group::reduce).
    pub fn reduce<T: Number>(root: usize, data: &'d mut [T], op: impl Operation<T> + 'd) -> Self {
        Self::reducing(Kind::Reduce, root, data, op)
    }

    /// See [`Group::all_reduce`](super::Group::all_reduce).
    pub fn all_reduce<T: Number>(data: &'d mut [T], op: impl Operation<T> + 'd) -> Self {
        Self::reducing(Kind::AllReduce, 0, data, op)
    }

    /// See [`Group::reduce_scatter`](super::Group::reduce_scatter), which also returns this member's share.
    pub fn reduce_scatter<T: Number>(data: &'d mut [T], op: impl Operation<T> + 'd) -> Self {
        Self::reducing(Kind::ReduceScatter, 0, data, op)
    }

    /// As [`reduce`](Self::reduce), of values whose type is known at run time only. They need not be aligned.
    pub fn reduce_of(root: usize, element: Element, data: &'d mut [u8], op: Op) -> Self {
        Self::reducing_of(Kind::Reduce, root, element, data, op)
    }

    /// As [`all_reduce`](Self::all_reduce), of values whose type is known at run time only. They need not be aligned.
    pub fn all_reduce_of(element: Element, data: &'d mut [u8], op: Op) -> Self {
        Self::reducing_of(Kind::AllReduce, 0, element, data, op)
    }

    /// As [`reduce_scatter`](Self::reduce_scatter), of values whose type is known at run time only. They need not be aligned.
    pub fn reduce_scatter_of(element: Element, data: &'d mut [u8], op: Op) -> Self {
        Self::reducing_of(Kind::ReduceScatter, 0, element, data, op)
    }

    /// See [`Group::all_to_all`](super::Group::all_to_all).
    pub fn all_to_all<T: Pod>(give: &'d [T], get: &'d mut [T]) -> Self {
        // Only the group can tell the length of a block.
        Self::moving(Kind::AllToAll, 0, size_of_val(give), cast_slice(give), cast_slice_mut(get))
    }

    /// See [`Group::send`](super::Group::send).
    pub fn send<T: Pod>(to: usize, tag: u32, data: &'d [T]) -> Self {
        let to = Some(Tagged { rank: to, tag, bytes: size_of_val(data) });
        let what = What::Tagged { to, from: None };
        Self { what, input: cast_slice(data), output: &mut [], fold: None }
    }

    /// See [`Group::recv`](super::Group::recv).
    pub fn recv<T: Pod>(from: usize, tag: u32, data: &'d mut [T]) -> Self {
        let from = Some(Tagged { rank: from, tag, bytes: size_of_val(data) });
        Self { what: What::Tagged { to: None, from }, input: &[], output: cast_slice_mut(data), fold: None }
    }

    /// See [`Group::send_recv`](super::Group::send_recv).
    pub fn send_recv<T: Pod>(
        (to, data): (usize, &'d [T]),
        (from, into): (usize, &'d mut [T]),
        tag: u32,
    ) -> Self {
        let to = Some(Tagged { rank: to, tag, bytes: size_of_val(data) });
        let from = Some(Tagged { rank: from, tag, bytes: size_of_val(into) });
        Self {
            what: What::Tagged { to, from },
            input: cast_slice(data),
            output: cast_slice_mut(into),
            fold: None,
        }
    }

    /// Returns the call, completed with what only the group knows.
    #[inline]
    pub(super) fn resolve(&mut self, member: &Member<'_>) -> Result<What, Refused> {
        if let What::Call(call) = &mut self.what {
            let (members, is_root) = (member.members(), call.root == member.rank());
            match call.kind {
                // Data that only the root needs may be passed by others too.
                Kind::Scatter if !is_root => self.input = &[],
                Kind::Gather if !is_root => self.output = &mut [],
                Kind::AllToAll => {
                    let bytes = self.input.len();
                    if !bytes.is_multiple_of(members) {
                        let needed = bytes.next_multiple_of(members);
                        return Err(Refused::Length { what: "input", bytes, needed });
                    }
                    call.bytes = bytes / members;
                }
                kind if call.op == Some(Op::Function) && self.fold.is_none() => {
                    return Err(Refused::NoOperation { kind });
                }
                _ => {}
            }
        }
        Ok(self.what)
    }

    /// The call's data.
    #[inline]
    pub(super) fn data(&mut self) -> Data<'_, '_> {
        let fold = self.fold.as_mut().map(|fold| &mut **fold as _);
        Data { input: self.input, output: &mut *self.output, fold }
    }

    /// Begins the call.
    #[inline]
    pub(super) fn start(&mut self, member: &mut Member<'_>) -> Result<Running, StartError> {
        match self.resolve(member)? {
            What::Tagged { to, from } => Running::start_tagged(member, to, from),
            What::Call(call) => Running::start(&call, member, self.input.len(), self.output.len()),
        }
    }
}
