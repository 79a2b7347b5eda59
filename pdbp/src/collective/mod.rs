//! Groups of parts that call the same things together: broadcast, reduce and the like, over any transport.
//!
//! ```
//! use pdbp::{Cluster, collective::{Group, Sum}};
//! use std::time::Duration;
//!
//! let cluster = Cluster::local(3)?;
//! cluster.run(|node| {
//!     let mut all = Group::of_nodes(&node, "gradients", Duration::from_secs(60)).unwrap(); // the rank is the index of the node
//!     let mut gradient = vec![all.rank() as f32; 1 << 12];
//!     all.all_reduce(&mut gradient, Sum).unwrap(); // in place; every member has the same bits
//!     assert!(gradient.iter().all(|value| *value == 3.0));
//!
//!     let mut name = if all.rank() == 2 { *b"node two" } else { [0; 8] };
//!     all.broadcast(2, &mut name).unwrap();
//!     assert_eq!(name, *b"node two");
//!
//!     // Begun, and looked at while something else is done:
//!     let mut ranks = [0; 3];
//!     let own = [all.rank() as u32];
//!     let mut call = all.start(pdbp::collective::Request::all_gather(&own, &mut ranks)).unwrap();
//!     while !call.poll().unwrap() {
//!         std::thread::yield_now(); // compute
//!     }
//!     drop(call);
//!     assert_eq!(ranks, [0, 1, 2]);
//!     all.barrier().unwrap();
//! });
//! # Ok::<(), pdbp::StartError>(())
//! ```
//!
//! # What holds
//! * **All members make the same calls in the same order**, with the same lengths, types and operations. Members that do not are told so
//!   ([`GroupError::Mismatch`]), with what each has called.
//! * The same call gives the same bits at all members, and in every run of a group with as many members: the order in which values are
//!   combined follows from ranks alone. Min and Max put −0 below +0, and NaN wins.
//! * A call returns when this member has done its part: after a broadcast the root may go on while others still receive. As with all
//!   messages, what nobody has taken in is lost when the cluster is dropped: processes end with [`Node::quiesce`](crate::Node::quiesce)
//!   and [`Node::barrier`](crate::Node::barrier).
//! * **A member that dies ends the call at all others with its name** ([`GroupError::Lost`]). After that and after all other errors but
//!   [`GroupError::Refused`] the group is broken, every call says so, and data that was under way may hold anything. Make a new group of
//!   those that are left. ([`GroupError::Interrupted`] leaves a call that was [started](Group::start) as it is.) A process that is
//!   killed is noticed on its host by its number, and from other hosts by the connections that processes hold for that, over MPI too. Where
//!   there can be none (a firewall), calls time out.
//! * Groups of one name may follow each other, also without waiting for anybody: who is ahead joins the next one when all others have joined and left
//!   this one. A member that gives up joining may join again; if others may have joined with it by then, they are told that it is
//!   [lost](JoinError::Lost), or will be by their first call.
//! * Nobody waits for ever: a call in which nothing moves for as long as the group's patience ends with
//!   [`GroupError::TimedOut`], which names whom it waited for, and of whom else nothing has come.
//! * Members that all share memory (threads of one process, MPI processes of one host on Linux), up to 64, hand each other what they send through slots and flags there: a *slate*
//!   ([`group_shared_memory`](crate::Settings::group_shared_memory)). Calls of up to 512 bytes are not even messages there: each member writes what it
//!   gives once, and all that need it read it ([`Call::writers`]). Results have the same bits with a slate and without.
//! * Where the system lets each of them read the others' memory, as a debugger would, such members read long blocks of scatter, and of all_gather and all_to_all of five and more,
//!   where they are, so that each is copied once ([`Call::reads`], [`group_reads`](crate::Settings::group_reads), [`pdbp_local::reading`]). A started call that is
//!   [forgotten](std::mem::forget) says to nobody that its data may have changed, which others then take for what it was.
//! * Members on nodes of a [fabric](crate::Settings::fabric), one on each, let its switches carry out what they can: barrier, broadcast, reduce and
//!   all_reduce by the operations here, scatter and gather of blocks to 125 bytes ([`Call::fits_switches`],
//!   [`group_switches`](crate::Settings::group_switches)). What switches combine is combined in the order of their ports, so that floats have other
//!   bits than with messages, and the same at all members and in every run on the same fabric.
//! * [`Group::local`] is the group of the members on this one's host or board, and [`Group::split`] divides a group by a number that each gives.
//! * Each member is a part of its own, so that no message of the program is taken for one of the group. A group has one call under way;
//!   who wants two at a time makes two groups. Between two members at most four pieces ([`WINDOW`]) of calls and as many of
//!   tagged messages are under way, so that a group cannot use up the room of everybody else. A piece fills a block (`block_bytes`, up to 60 KiB), or a slot of
//!   the slate (up to 32 KiB).
//!
//! Which algorithms there are and what they cost is in [`pdbp_core::collective`], which does all of it.
//!
//! # What there is not
//! * **A setting that names an algorithm.** Members that do not all have the same would wait for each other in vain, and what a call takes follows from
//!   its kind and length. Whoever compares algorithms has them all by [`Steps::by`](pdbp_core::collective::Steps::by), over any carrier; `pdbp
//!   rapidio scale` does.
//! * **Leaders that speak for their hosts** in groups that span several. Where not all members share memory, all send messages. Ranks of one host are
//!   neighbours as launchers number them, and the trees here then send little between hosts; no measurement has shown yet what leaders would win.

mod carrier;
mod error;
mod join;
mod request;
mod slate;
mod split;
mod started;
#[cfg(feature = "rapidio")]
mod switches;
#[cfg(not(feature = "rapidio"))]
#[path = "switches/absent.rs"]
mod switches;
mod value;

use std::time::Duration;

use bytemuck::Pod;

pub use pdbp_core::collective::Op::{self, And, Max, Min, Or, Product, Sum, Xor};
pub use pdbp_core::collective::{Call, Cause, Element, Kind, Refused, Stats, WINDOW};
use pdbp_core::collective::{Carrier, Fault, Member};

use carrier::Line;
pub use error::{GroupError, JoinError};
pub use request::Request;
use request::What;
use split::Made;
pub use started::Started;
pub use value::{Number, Operation, With};

/// A member of a group. See the [module](self).
///
/// It belongs to the thread that made it. Dropping it says to the others that it has left, for which it may wait for room for a second.
pub struct Group {
    line: Line,
    member: Member<'static>,
    patience: Duration,
    name: String,
    made: Made,
    /// Before that nobody can have heard more of this member than that it joins.
    has_joined: bool,
}

impl Group {
    /// This member's place in the list.
    pub fn rank(&self) -> usize {
        self.member.rank()
    }

    /// How many members there are.
    pub fn size(&self) -> usize {
        self.member.members()
    }

    /// What this member has done so far.
    pub fn stats(&self) -> Stats {
        self.member.stats()
    }

    /// Whether what members send each other goes through memory that they share; the same at all.
    pub fn shares_memory(&self) -> bool {
        self.line.has_slate()
    }

    /// Whether members read long data where it is in each other's memory; the same at all. [`Stats::by_reads`] says in how many calls they have.
    pub fn reads_memory(&self) -> bool {
        self.line.reads_memory()
    }

    /// Whether the switches of a fabric carry out what they can of the calls; the same at all. [`Stats::in_switches`] says of how many they have.
    pub fn has_switches(&self) -> bool {
        self.line.switches().is_some()
    }

    /// How long a call waits while nothing moves.
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// Sets that. Members need not have the same.
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Begins a call, which is under way until what this returns says that it is done. Others see nothing of it before it is polled.
    ///
    /// # Errors
    /// [`GroupError::Refused`], of which the group is as it was; else what has broken the group before.
    pub fn start<'g>(&'g mut self, request: Request<'g>) -> Result<Started<'g>, GroupError> {
        Started::begin(self, request)
    }

    #[cfg(all(test, feature = "rapidio"))]
    pub(crate) fn part(&self) -> &crate::part::Part {
        self.line.part()
    }

    fn call(&mut self, mut request: Request<'_>) -> Result<(), GroupError> {
        let patience = self.patience;
        let Self { line, member, .. } = self;
        let noted = match request.resolve(member) {
            Ok(What::Call(call)) => line.try_notes(member, &call, &mut request.data()),
            _ => None,
        };
        match noted {
            // Of members that share memory and call it soon one after the other.
            Some(true) => Ok(()),
            Some(false) => Started::noted(self, request)?.wait(patience),
            // Shorter than `'g` of `start`: both end here. It is long, and waits where it was begun.
            None => match &mut Started::begin(self, request) {
                Ok(started) => started.wait(patience),
                Err(error) => Err(error.clone()),
            },
        }
    }

    /// Returns when all members have called it.
    ///
    /// # Errors
    /// See [`GroupError`]; of all calls.
    pub fn barrier(&mut self) -> Result<(), GroupError> {
        match self.line.try_barrier(&mut self.member) {
            // Of members that share memory and come soon one after the other.
            Some(true) => Ok(()),
            Some(false) => {
                let patience = self.patience;
                Started::arrived(self)?.wait(patience)
            }
            None => self.call(Request::barrier()),
        }
    }

    /// All get what the root has.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub fn broadcast<T: Pod>(&mut self, root: usize, data: &mut [T]) -> Result<(), GroupError> {
        self.call(Request::broadcast(root, data))
    }

    /// Each gets its block of what the root has: as many blocks, in the order of ranks, as there are members. Others than the root give
    /// `None`.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub fn scatter<T: Pod>(
        &mut self,
        root: usize,
        all: Option<&[T]>,
        own: &mut [T],
    ) -> Result<(), GroupError> {
        self.call(Request::scatter(root, all, own))
    }

    /// The root gets a block of each, in the order of ranks. Others than the root give `None`.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub fn gather<T: Pod>(
        &mut self,
        root: usize,
        own: &[T],
        all: Option<&mut [T]>,
    ) -> Result<(), GroupError> {
        self.call(Request::gather(root, own, all))
    }

    /// All get a block of each, in the order of ranks.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub fn all_gather<T: Pod>(&mut self, own: &[T], all: &mut [T]) -> Result<(), GroupError> {
        self.call(Request::all_gather(own, all))
    }

    /// The root gets what all have, combined value by value, in place. At the others `data` holds anything then.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub fn reduce<T: Number>(
        &mut self,
        root: usize,
        data: &mut [T],
        op: impl Operation<T>,
    ) -> Result<(), GroupError> {
        self.call(Request::reduce(root, data, op))
    }

    /// All get what all have, combined value by value, in place.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub fn all_reduce<T: Number>(&mut self, data: &mut [T], op: impl Operation<T>) -> Result<(), GroupError> {
        self.call(Request::all_reduce(data, op))
    }

    /// Each gets its share of what all have, combined value by value; the rest of `data` holds anything then. Shares are as long as
    /// each other, but for the first ones, which have one value more where the length does not divide.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub fn reduce_scatter<'d, T: Number>(
        &mut self,
        data: &'d mut [T],
        op: impl Operation<T>,
    ) -> Result<&'d mut [T], GroupError> {
        let (rank, members) = (self.rank(), self.size());
        self.call(Request::reduce_scatter(data, op))?;
        let (each, more) = (data.len() / members, data.len() % members);
        let start = rank * each + rank.min(more);
        Ok(data.get_mut(start..start + each + usize::from(rank < more)).unwrap_or_default())
    }

    /// Each gets a block of each: block `i` of what a member gives is for member `i`, and what that gets is in the order of ranks.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub fn all_to_all<T: Pod>(&mut self, give: &[T], get: &mut [T]) -> Result<(), GroupError> {
        self.call(Request::all_to_all(give, get))
    }

    /// Sends to one member, which receives it by its tag. Returns when it is under way: up to three messages that
    /// fit a block may be so without having been received. **Where all of a ring send something longer first, all wait for ever**: use
    /// [`send_recv`](Self::send_recv).
    ///
    /// # Errors
    /// See [`GroupError`].
    pub fn send<T: Pod>(&mut self, to: usize, tag: u32, data: &[T]) -> Result<(), GroupError> {
        self.call(Request::send(to, tag, data))
    }

    /// Receives the first message from a member that has the tag and was not received. It must have as many bytes as `data`.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub fn recv<T: Pod>(&mut self, from: usize, tag: u32, data: &mut [T]) -> Result<(), GroupError> {
        self.call(Request::recv(from, tag, data))
    }

    /// Sends to one member and receives from one at a time, with the same tag: no ring waits in a circle.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub fn send_recv<T: Pod>(
        &mut self,
        (to, data): (usize, &[T]),
        (from, into): (usize, &mut [T]),
        tag: u32,
    ) -> Result<(), GroupError> {
        self.call(Request::send_recv((to, data), (from, into), tag))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let Self { line, member, has_joined, .. } = self;
        // Those who have left need not be told.
        while line.try_recv(|message| _ = member.accept(message)) {}
        line.tell(|line| {
            let all_know = member.tell_fault(line);
            let all_know_end = if *has_joined { member.leave(line) } else { member.withdraw(line) };
            all_know && all_know_end
        });
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Group({:?}, {:?})", self.line.part(), self.member)
    }
}

/// Ends the group, and tells the others.
fn fail(group: &mut Group, fault: Fault) -> Fault {
    let Group { line, member, .. } = group;
    let fault = member.fail(fault);
    line.take_back();
    line.tell(|line| member.tell_fault(line));
    fault
}
