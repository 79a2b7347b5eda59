//! Collective operations of groups of parts: broadcast, reduce and the like, over any transport.
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
//! # Guarantees
//! * **All members make the same calls in the same order**, with the same lengths, types and operations. If they do not, they get
//!   [`GroupError::Mismatch`], which names both calls.
//! * A call gives the same bits at all members, and in every run of a group of the same size: the order in which values are
//!   combined depends on ranks alone. Min and Max order −0 below +0, and NaN wins.
//! * A call returns when this member has done its part: after a broadcast the root may go on while others still receive. As with
//!   all messages, data that has not been received when the cluster is dropped is lost: end with
//!   [`Node::quiesce`](crate::Node::quiesce) and [`Node::barrier`](crate::Node::barrier).
//! * **If a member dies, the call fails at all others with an error that names it** ([`GroupError::Lost`]). After that, and after
//!   every other error except [`GroupError::Refused`], the group is broken: every call returns the error, and the data of the
//!   failed call is undefined. Make a new group of the remaining members. ([`GroupError::Interrupted`] leaves a call that was
//!   [started](Group::start) intact.) A killed process is detected on its own host by its process number, and on other hosts by
//!   connections kept open for this, over MPI too. Where a firewall prevents those, calls time out.
//! * Groups of the same name may follow each other without further synchronisation: a member that is ahead joins the next group
//!   once all others have joined and left this one. (If it gets the rank that another member on its node had, that one must have left
//!   before: until then the name of its part is taken, [`JoinError::Register`].) A member that gives up joining may join again;
//!   members that may already have joined with it get [`JoinError::Lost`], or an error from their first call.
//! * No call waits forever: if nothing progresses for as long as the group's patience, it ends with [`GroupError::TimedOut`], which
//!   names the member that it waited for, and the others whose data is missing.
//! * Up to 64 members that all share memory (threads of one process, MPI processes of one host on Linux) exchange data through
//!   flags and slots there: a *slate* ([`group_shared_memory`](crate::Settings::group_shared_memory)). Short calls need no
//!   messages: each member writes its input once, up to 512 bytes, and all that need it read it ([`Call::writers`]). In scatter
//!   and all_to_all these bytes are all blocks together; the inputs of a reduction may have 16 KiB together; reduce_scatter always
//!   takes messages. Results have the same bits with and without a slate.
//! * Where the system lets each of them read the others' memory, as a debugger would, such members read long blocks of scatter, and
//!   with five members or more of all_gather and all_to_all, directly from the sender's memory, so each block is copied once
//!   ([`Call::reads`], [`group_reads`](crate::Settings::group_reads), [`pdbp_local::reading`]). If a started call is
//!   [forgotten](std::mem::forget), the others do not learn that its data may have changed, and take what they read for valid.
//! * Members on nodes of a [fabric](crate::Settings::fabric), one on each, let its switches carry out what they can: barrier,
//!   broadcast, reduce and all_reduce with the operations defined here, scatter and gather of blocks up to 125 bytes
//!   ([`Call::fits_switches`], [`group_switches`](crate::Settings::group_switches)). Switches combine in the order of their ports,
//!   so floats may have other bits than with messages; the bits are still the same at all members and in every run on the same
//!   fabric.
//! * [`Group::local`] makes the group of the members on this member's host or board, and [`Group::split`] divides a group by a
//!   colour.
//! * Each member is a part of its own, so its messages never mix with the program's. A group runs one call at a time; to overlap
//!   two calls make two groups. Between two members at most four pieces ([`WINDOW`]) of calls and as many of tagged messages are in
//!   flight, so a group cannot use up the space of all others. A piece fills a block (`block_bytes`, up to 60 KiB) or a slot of the
//!   slate (up to 32 KiB).
//!
//! The algorithms and their cost are described in [`pdbp_core::collective`], which implements them.
//!
//! # What is left out
//! * **A setting that selects an algorithm.** Members with different values would deadlock, and the best algorithm follows from the
//!   kind and length of the call. To compare algorithms, run them by [`Steps::with_algorithm`](pdbp_core::collective::Steps::with_algorithm) over any
//!   carrier, as `pdbp rapidio scale` does.
//! * **Leaders that communicate for their hosts** in groups that span several. Unless all members share memory, all send messages.
//!   Launchers number the ranks of a host consecutively, and the trees here then send little between hosts; no measurement has
//!   shown yet what leaders would gain.

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

use std::ops::Range;
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
/// A group may move to another thread. Dropping it tells the others that this member has left, which may wait up to a second for room.
pub struct Group {
    line: Line,
    member: Member<'static>,
    patience: Duration,
    name: String,
    made: Made,
    /// Until it has joined, others can only know that this member is joining.
    has_joined: bool,
}

impl Group {
    /// This member's rank: its place in the list.
    pub fn rank(&self) -> usize {
        self.member.rank()
    }

    /// Number of members.
    pub fn size(&self) -> usize {
        self.member.members()
    }

    /// Counters of this member's calls and messages.
    pub fn stats(&self) -> Stats {
        self.member.stats()
    }

    /// Whether data goes through shared memory; the same at all members.
    pub fn shares_memory(&self) -> bool {
        self.line.has_slate()
    }

    /// Whether members read long data directly from each other's memory; the same at all members. [`Stats::by_reads`] counts the
    /// calls that did.
    pub fn reads_memory(&self) -> bool {
        self.line.reads_memory()
    }

    /// Whether the switches of a fabric carry out the calls that they can; the same at all members. [`Stats::in_switches`] counts
    /// the calls that they did.
    pub fn has_switches(&self) -> bool {
        self.line.switches().is_some()
    }

    /// How long a call waits without progress.
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// Sets how long a call waits without progress. Members may differ in this.
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Begins a call, which is done once [`Started`] reports so. Other members see nothing of the call before its first poll.
    ///
    /// # Errors
    /// [`GroupError::Refused`], which leaves the group as it was; otherwise the error that broke the group earlier.
    pub fn start<'g>(&'g mut self, request: Request<'g>) -> Result<Started<'g>, GroupError> {
        Started::begin(self, request)
    }

    #[cfg(all(test, feature = "rapidio"))]
    pub(crate) fn part(&self) -> &crate::part::Part<crate::part::Shared> {
        self.line.part()
    }

    /// Makes a call and returns when this member has done its part of it, as the methods below do.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub fn call(&mut self, mut request: Request<'_>) -> Result<(), GroupError> {
        let patience = self.patience;
        let Self { line, member, .. } = self;
        let noted = match request.resolve(member) {
            Ok(What::Call(call)) => line.try_notes(member, &call, &mut request.data()),
            _ => None,
        };
        match noted {
            // Members share memory and made the call at nearly the same time.
            Some(true) => Ok(()),
            Some(false) => Started::with_notes(self, request)?.wait(patience),
            // Not by `start`, whose lifetime is longer: this call ends here. `Started` is large, so the wait happens where it was
            // built.
            None => match &mut Started::begin(self, request) {
                Ok(started) => started.wait(patience),
                Err(error) => Err(error.clone()),
            },
        }
    }

    /// Waits until all members have called it.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub fn barrier(&mut self) -> Result<(), GroupError> {
        match self.line.try_barrier(&mut self.member) {
            // Members share memory and arrived at nearly the same time.
            Some(true) => Ok(()),
            Some(false) => {
                let patience = self.patience;
                Started::arrived(self)?.wait(patience)
            }
            None => self.call(Request::barrier()),
        }
    }

    /// Copies the root's `data` to all members.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub fn broadcast<T: Pod>(&mut self, root: usize, data: &mut [T]) -> Result<(), GroupError> {
        self.call(Request::broadcast(root, data))
    }

    /// Gives each member its block of the root's `all`, which has one block per member, in rank order. Members other than the root
    /// pass `None`.
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

    /// Collects a block of each member at the root, in rank order. Members other than the root pass `None`.
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

    /// Collects a block of each member at all members, in rank order.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub fn all_gather<T: Pod>(&mut self, own: &[T], all: &mut [T]) -> Result<(), GroupError> {
        self.call(Request::all_gather(own, all))
    }

    /// Combines the `data` of all members value by value; the root gets the result in place. At the others `data` is undefined
    /// afterwards.
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

    /// Combines the `data` of all members value by value; all get the result in place.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub fn all_reduce<T: Number>(&mut self, data: &mut [T], op: impl Operation<T>) -> Result<(), GroupError> {
        self.call(Request::all_reduce(data, op))
    }

    /// Combines the `data` of all members value by value, and gives each member its share of the result; the rest of `data` is
    /// undefined afterwards. Shares have equal length; if it does not divide, the first ones have one value more.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub fn reduce_scatter<'d, T: Number>(
        &mut self,
        data: &'d mut [T],
        op: impl Operation<T>,
    ) -> Result<&'d mut [T], GroupError> {
        self.call(Request::reduce_scatter(data, op))?;
        let share = self.share_of(data.len());
        Ok(data.get_mut(share).unwrap_or_default())
    }

    /// Which of so many values [`reduce_scatter`](Self::reduce_scatter) gives this member.
    pub fn share_of(&self, values: usize) -> Range<usize> {
        let (rank, members) = (self.rank(), self.size());
        let (each, more) = (values / members, values % members);
        let start = rank * each + rank.min(more);
        start..start + each + usize::from(rank < more)
    }

    /// Exchanges a block between every two members: block `i` of `give` goes to member `i`, and `get` receives one block from each,
    /// in rank order.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub fn all_to_all<T: Pod>(&mut self, give: &[T], get: &mut [T]) -> Result<(), GroupError> {
        self.call(Request::all_to_all(give, get))
    }

    /// Sends `data` to one member, which receives it by its tag. Returns when the data is in flight: up to three messages of one
    /// piece each (see the [module](self)) may be sent before any is received. **If all members of a ring first send a longer
    /// message, all wait for each other**: use [`send_recv`](Self::send_recv).
    ///
    /// # Errors
    /// See [`GroupError`].
    pub fn send<T: Pod>(&mut self, to: usize, tag: u32, data: &[T]) -> Result<(), GroupError> {
        self.call(Request::send(to, tag, data))
    }

    /// Receives the first message from a member with this tag. It must have as many bytes as `data`.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub fn recv<T: Pod>(&mut self, from: usize, tag: u32, data: &mut [T]) -> Result<(), GroupError> {
        self.call(Request::recv(from, tag, data))
    }

    /// Sends to one member and receives from another at the same time, with the same tag, so a ring cannot deadlock.
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
        // Members that have left need not be told.
        while line.try_recv(|message| _ = member.accept(message)) {}
        line.notify_all(|line| {
            let all_know = member.report_fault(line);
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
    line.reclaim();
    line.notify_all(|line| member.report_fault(line));
    fault
}
