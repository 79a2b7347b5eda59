//! Groups: parts that call the same things together.
//!
//! A group is for one thread at a time, whichever that is. The lock is only tried: a call while another thread is in one of the same group is
//! refused.

use std::ffi::{c_char, c_void};
use std::sync::{Mutex, MutexGuard, TryLockError};

use pdbp::collective::{Element, Group, GroupError, JoinError, Op, Request};

use crate::call::{Arg, Out, Text, Wait, bytes, exports, named, room, values};
use crate::freed::{boxed, unboxed};
use crate::handle::{Free, Handle, Header, In, Look};
use crate::node::NodeHandle;
use crate::part::PartHandle;
use crate::status::{Failure, Status};

/// `pdbp_group`.
#[repr(C)]
pub struct GroupHandle {
    header: Header,
    rank: u32,
    size: u32,
    group: Mutex<Group>,
}

// SAFETY: see the struct.
unsafe impl Handle for GroupHandle {
    const TAG: u32 = 0x4752_4f55;
    #[cfg(test)]
    const POINTER: &'static str = "pdbp_group *";
    fn header(&self) -> &Header {
        &self.header
    }
    #[cfg(test)]
    fn sample(world: &crate::tests::World) -> *mut Self {
        world.group.get()
    }
}

impl GroupHandle {
    fn boxed(group: Group) -> *mut Self {
        let [rank, size] = [group.rank(), group.size()].map(|number| number as u32);
        boxed(Self { header: Header::new::<Self>(), rank, size, group: Mutex::new(group) })
    }

    /// The group, unless another thread is in a call of it.
    fn enter(&self) -> Result<MutexGuard<'_, Group>, Failure> {
        match self.group.try_lock() {
            Ok(group) => Ok(group),
            // After a panic the header refuses all calls.
            Err(TryLockError::Poisoned(group)) => Ok(group.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Failure::new(
                Status::E_THREAD,
                "another thread is in a call of this group; join a group for each thread".to_owned(),
            )),
        }
    }

    fn call(&self, request: Request<'_>) -> Result<Status, Failure> {
        self.enter()?.call(request)?;
        Ok(Status::DONE)
    }
}

impl From<GroupError> for Failure {
    #[cold]
    fn from(error: GroupError) -> Self {
        let status = match &error {
            GroupError::Refused(_) => Status::E_ARGUMENT,
            GroupError::Lost { .. } | GroupError::CutOff { .. } => Status::E_PEER_FAILED,
            GroupError::TimedOut { .. } => Status::TIMEOUT,
            GroupError::Interrupted => Status::INTERRUPTED,
            _ => Status::E_GROUP,
        };
        Self::new(status, error.to_string())
    }
}

impl From<JoinError> for Failure {
    #[cold]
    fn from(error: JoinError) -> Self {
        let status = match error {
            JoinError::Lookup(error) => return error.into(),
            JoinError::Register(error) => return error.into(),
            JoinError::Call(error) => return error.into(),
            JoinError::TimedOut { .. } => Status::TIMEOUT,
            JoinError::Interrupted => Status::INTERRUPTED,
            JoinError::Lost { .. } => Status::E_PEER_FAILED,
            JoinError::Differs { .. } => Status::E_GROUP,
            JoinError::Blocks { .. } => Status::E_SETTINGS,
            _ => Status::E_ARGUMENT,
        };
        Self::new(status, error.to_string())
    }
}

macro_rules! codes {
    ($type:ident $list:ident $function:ident $what:literal: $($name:ident = $code:literal => $value:ident;)*) => {
        /// The values in the header.
        #[cfg(test)]
        pub(crate) const $list: &[(&str, u32)] = &[$((concat!("PDBP_", stringify!($name)), $code)),*];

        fn $function(code: u32) -> Result<$type, Failure> {
            match code {
                $($code => Ok($type::$value),)*
                _ => Err(Failure::new(Status::E_ARGUMENT, format!(concat!("{} is ", $what), code))),
            }
        }
    };
}

codes! {
    Element ELEMENTS element "not a type of values; use PDBP_U8 to PDBP_F64":
    U8 = 1 => U8;
    U16 = 2 => U16;
    U32 = 3 => U32;
    U64 = 4 => U64;
    I8 = 5 => I8;
    I16 = 6 => I16;
    I32 = 7 => I32;
    I64 = 8 => I64;
    F32 = 9 => F32;
    F64 = 10 => F64;
}

codes! {
    Op OPERATIONS operation "not an operation; use PDBP_SUM to PDBP_XOR":
    SUM = 1 => Sum;
    PRODUCT = 2 => Product;
    MIN = 3 => Min;
    MAX = 4 => Max;
    AND = 5 => And;
    OR = 6 => Or;
    XOR = 7 => Xor;
}

/// Memory that a call reads and writes, or fills.
///
/// # Safety
/// If it is not null it points to so many bytes, which nobody else uses for `'a`.
unsafe fn data<'a>(at: *mut c_void, size: usize) -> Result<&'a mut [u8], Failure> {
    // SAFETY: the caller's promise.
    let room = unsafe { room::<u8>(at.cast(), size) }?;
    // SAFETY: bytes of the program, which have values here whether it has written them or not; a group only copies and combines them.
    Ok(unsafe { std::slice::from_raw_parts_mut(room.as_mut_ptr().cast(), room.len()) })
}

/// Bytes of one block for each of so many members.
fn blocks(each: usize, members: u32) -> Result<usize, Failure> {
    each.checked_mul(members as usize).ok_or_else(|| {
        Failure::new(Status::E_ARGUMENT, format!("{members} blocks of {each} bytes exceed the address space"))
    })
}

/// Checks that two ranges of memory have nothing in common.
fn apart(one: (*const c_void, usize), other: (*const c_void, usize)) -> Result<(), Failure> {
    let [(one, size), (other, room)] = [one, other].map(|(at, length)| (at.addr(), length));
    if size == 0 || room == 0 || one.saturating_add(size) <= other || other.saturating_add(room) <= one {
        return Ok(());
    }
    Err(Failure::new(
        Status::E_ARGUMENT,
        format!(
            "the input of {size} bytes and the output of {room} bytes overlap; pass separate memory for each"
        ),
    ))
}

/// Values that are combined: so many of a type.
///
/// # Safety
/// As for [`data`].
unsafe fn numbers<'a>(
    at: *mut c_void,
    count: usize,
    of: u32,
    by: u32,
) -> Result<(&'a mut [u8], Element, Op), Failure> {
    let (of, by) = (element(of)?, operation(by)?);
    let size = count.saturating_mul(of.size());
    // SAFETY: the caller's promise.
    Ok((unsafe { data(at, size) }?, of, by))
}

exports! {
    /// A group of one member on each node.
    fn pdbp_group_of_nodes(node: In<NodeHandle>, name: Text, patience: Wait, out: Out<*mut GroupHandle>) -> Status {
        let node = &node.node;
        out.put(GroupHandle::boxed(Group::of_nodes(node, name, patience.on(node))?));
        Ok(Status::DONE)
    }

    /// A group of named parts.
    fn pdbp_group_of(
        part: In<PartHandle>, name: Text, members: *const *const c_char, count: usize, patience: Wait, out: Out<*mut GroupHandle>
    ) -> Status {
        // SAFETY: the header's promise.
        let members = unsafe { values(members, count) }?;
        // SAFETY: null is refused; else text that ends with a zero byte (the header's promise).
        let text = |at: &*const c_char| unsafe { Text::check(*at) };
        let members = members.iter().map(text).collect::<Result<Vec<_>, _>>()?;
        let group = Group::of(part.shared(), name, &members, patience.on(part.node()))?;
        out.put(GroupHandle::boxed(group));
        Ok(Status::DONE)
    }

    /// A group of the members near this one.
    fn pdbp_group_local(group: In<GroupHandle>, out: Out<*mut GroupHandle>) -> Status {
        let local = group.enter()?.local()?;
        out.put(GroupHandle::boxed(local));
        Ok(Status::DONE)
    }

    /// A group of the members that give the same colour.
    fn pdbp_group_split(group: In<GroupHandle>, colour: u64, out: Out<*mut GroupHandle>) -> Status {
        let split = group.enter()?.split(colour)?;
        out.put(GroupHandle::boxed(split));
        Ok(Status::DONE)
    }

    /// This member's rank.
    fn pdbp_group_rank(group: Look<GroupHandle>) -> u32 {
        Ok(group.rank)
    }

    /// Number of members.
    fn pdbp_group_size(group: Look<GroupHandle>) -> u32 {
        Ok(group.size)
    }

    /// Sets how long calls wait while nothing moves.
    fn pdbp_group_patience(group: In<GroupHandle>, patience: Wait) -> Status {
        let Some(patience) = patience.given().filter(|_| !patience.is_none()) else {
            return Err(Failure::new(
                Status::E_ARGUMENT,
                "a group's patience must be above 0 nanoseconds; PDBP_SET_TIMEOUT is not valid here, and calls always wait for other members".to_owned(),
            ));
        };
        group.enter()?.set_patience(patience);
        Ok(Status::DONE)
    }

    /// Waits until all members have called it.
    fn pdbp_group_barrier(group: In<GroupHandle>) -> Status {
        group.enter()?.barrier()?;
        Ok(Status::DONE)
    }

    /// Copies the root's data to all.
    fn pdbp_group_broadcast(group: In<GroupHandle>, root: u32, values: *mut c_void, size: usize) -> Status {
        // SAFETY: the header's promise.
        let data = unsafe { data(values, size) }?;
        group.call(Request::broadcast(root as usize, data))
    }

    /// Gives each member its block.
    fn pdbp_group_scatter(group: In<GroupHandle>, root: u32, all: *const c_void, own: *mut c_void, each: usize) -> Status {
        let all_size = if root == group.rank { blocks(each, group.size)? } else { 0 };
        apart((all, all_size), (own, each))?;
        // SAFETY: the header's promise, and they are apart.
        let (all, own) = (unsafe { bytes(all, all_size) }?, unsafe { data(own, each) }?);
        group.call(Request::scatter(root as usize, Some(all), own))
    }

    /// Collects a block of each member at the root.
    fn pdbp_group_gather(group: In<GroupHandle>, root: u32, own: *const c_void, all: *mut c_void, each: usize) -> Status {
        let all_size = if root == group.rank { blocks(each, group.size)? } else { 0 };
        apart((own, each), (all, all_size))?;
        // SAFETY: the header's promise, and they are apart.
        let (own, all) = (unsafe { bytes(own, each) }?, unsafe { data(all, all_size) }?);
        group.call(Request::gather(root as usize, own, Some(all)))
    }

    /// Collects a block of each member at all.
    fn pdbp_group_all_gather(group: In<GroupHandle>, own: *const c_void, all: *mut c_void, each: usize) -> Status {
        let all_size = blocks(each, group.size)?;
        apart((own, each), (all, all_size))?;
        // SAFETY: the header's promise, and they are apart.
        let (own, all) = (unsafe { bytes(own, each) }?, unsafe { data(all, all_size) }?);
        group.call(Request::all_gather(own, all))
    }

    /// Exchanges a block between each two members.
    fn pdbp_group_all_to_all(group: In<GroupHandle>, give: *const c_void, get: *mut c_void, each: usize) -> Status {
        let size = blocks(each, group.size)?;
        apart((give, size), (get, size))?;
        // SAFETY: the header's promise, and they are apart.
        let (give, get) = (unsafe { bytes(give, size) }?, unsafe { data(get, size) }?);
        group.call(Request::all_to_all(give, get))
    }

    /// Combines the values of all; the root gets the result.
    fn pdbp_group_reduce(group: In<GroupHandle>, root: u32, data: *mut c_void, count: usize, element: u32, operation: u32) -> Status {
        // SAFETY: the header's promise.
        let (data, element, op) = unsafe { numbers(data, count, element, operation) }?;
        group.call(Request::reduce_of(root as usize, element, data, op))
    }

    /// Combines the values of all; all get the result.
    fn pdbp_group_all_reduce(group: In<GroupHandle>, data: *mut c_void, count: usize, element: u32, operation: u32) -> Status {
        // SAFETY: the header's promise.
        let (data, element, op) = unsafe { numbers(data, count, element, operation) }?;
        group.call(Request::all_reduce_of(element, data, op))
    }

    /// Combines the values of all; each gets its share of the result.
    fn pdbp_group_reduce_scatter(
        group: In<GroupHandle>, data: *mut c_void, count: usize, element: u32, operation: u32, first: Out<usize>, got: Out<usize>
    ) -> Status {
        // SAFETY: the header's promise.
        let (data, element, op) = unsafe { numbers(data, count, element, operation) }?;
        let mut group = group.enter()?;
        group.call(Request::reduce_scatter_of(element, data, op))?;
        let share = group.share_of(count);
        first.put(share.start);
        got.put(share.len());
        Ok(Status::DONE)
    }

    /// Sends to a member.
    fn pdbp_group_send(group: In<GroupHandle>, to: u32, tag: u32, data: *const c_void, size: usize) -> Status {
        // SAFETY: the header's promise.
        let data = unsafe { bytes(data, size) }?;
        group.call(Request::send(to as usize, tag, data))
    }

    /// Receives from a member.
    fn pdbp_group_recv(group: In<GroupHandle>, from: u32, tag: u32, into: *mut c_void, size: usize) -> Status {
        // SAFETY: the header's promise.
        let into = unsafe { data(into, size) }?;
        group.call(Request::recv(from as usize, tag, into))
    }

    /// Sends to one member, and receives from another.
    fn pdbp_group_send_recv(
        group: In<GroupHandle>, to: u32, give_: *const c_void, size: usize, from: u32, into: *mut c_void, room: usize, tag: u32
    ) -> Status {
        apart((give_, size), (into, room))?;
        // SAFETY: the header's promise, and they are apart.
        let (give, get) = (unsafe { bytes(give_, size) }?, unsafe { data(into, room) }?);
        group.call(Request::send_recv((to as usize, give), (from as usize, get), tag))
    }

    /// Leaves the group.
    fn pdbp_group_free(group: Free<GroupHandle>) -> () {
        let Some(group) = group else { return Ok(()) };
        // SAFETY: `GroupHandle::boxed` has made it, and this is its end.
        drop(unsafe { unboxed(group) });
        Ok(())
    }
}

named! {
    GroupHandle, "pdbp_group";
}
