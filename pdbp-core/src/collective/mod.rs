//! Collective calls among the members of a group: broadcast, reduce and the like, described as data, and the code that performs
//! them.
//!
//! ```text
//! Call (what) ─▶ the table of algorithms (how) ─▶ Steps (who sends what to whom) ─▶ Running (does it, never waits) ─▶ Carrier
//! ```
//!
//! * [`Call`] describes the call. [`Steps`] iterates over one member's actions in it, computed from numbers alone, without memory.
//! * [`Running`] performs the steps over a [`Carrier`]: queues in memory, the parts of a cluster, or anything else that carries
//!   messages between members in order. It is polled and never waits.
//! * [`Member`] is the state that persists from call to call: the progress of the flows to and from each other member, and early
//!   messages.
//! * [`combine`] is the only place where values are combined.
//!
//! # Rules
//! * **A call gives the same bits at all members, and in every run of the same group.** Which values are combined, in which order,
//!   and which is the left operand, follows from ranks and lengths alone, never from the order of arrival. (The payload of a NaN is
//!   not guaranteed.)
//! * The algorithm of a call follows from the call and the length of a piece, so all members choose the same one without
//!   communicating.
//! * Nothing is allocated after set-up. A member accepts everything that arrives, and is at most [`WINDOW`] pieces ahead of what
//!   another one has taken, and as many tagged ones. So memory is bounded, and a group cannot use up the space of others.
//! * Each message identifies its call. Members that make different calls find out ([`Fault::Mismatch`]), even if each waits for a
//!   message from the other ([`Running::announce_wait`]), and so do all others.
//! * A fault ends the group for all members, and identifies the culprit ([`Member::report_fault`]).
//!
//! # Algorithms
//! For n members and data of b bytes (or blocks of b bytes) in one piece; messages and bytes are totals over all members:
//!
//! | call | algorithm | messages | bytes | rounds |
//! |---|---|---|---|---|
//! | barrier | dissemination | n ⌈log₂ n⌉ | 0 | ⌈log₂ n⌉ |
//! | broadcast, reduce to 32 KiB a member | 4-nomial tree, pieces pipelined | n − 1 | (n − 1) b | ≤ 3 ⌈log₄ n⌉ |
//! | broadcast, reduce above | chain, pieces pipelined | n − 1 | (n − 1) b | n − 1 |
//! | scatter, gather | straight from and to the root | n − 1 | (n − 1) b | n − 1 |
//! | all_gather, all_to_all to 4 KiB and a piece | straight from each to each | n (n − 1) | n (n − 1) b | 1 |
//! | all_gather above | ring | n (n − 1) | n (n − 1) b | n − 1 |
//! | all_reduce to 16 KiB | doubling | n log₂ n for powers of two | the same × b | log₂ n, up to 2 more |
//! | all_reduce above | ring, twice round | 2 n (n − 1) | 2 (n − 1) b | 2 (n − 1) |
//! | reduce_scatter | ring | n (n − 1) | (n − 1) b | n − 1 |
//! | all_to_all above | pairwise | n (n − 1) | n (n − 1) b | n − 1 |
//!
//! Other algorithms are available for comparison through [`Steps::with_algorithm`]: binomial and binary trees for broadcast, reduce and
//! all_reduce, and trees, chains and halving for all_reduce ([`Algorithm`]).
//!
//! Members that can all read what each one writes perform short calls without any of these: each writes its input once and reads
//! what it needs ([`Call::writers`], [`Call::read_notes`]). Combined results have the same bits. Members that can read each other's
//! memory move long blocks with a single copy each ([`Call::reads`]).
//!
//! Scatter and gather do not use a tree, because inner members would need memory for their children's blocks and would copy them
//! once more. The price is n − 1 messages at the root, which packs those for one node into blocks anyway.
//!
//! # Example
//! Three members on one thread, with a queue to each.
//!
//! ```
//! use pdbp_core::collective::{Call, Carrier, Data, Element, Kind, Member, MemberStorage, Message, Op, Polled, Running, Sent};
//! use std::{cell::RefCell, collections::VecDeque};
//!
//! struct Queues<'q>(usize, &'q [RefCell<VecDeque<Vec<u8>>>]);
//!
//! impl Carrier for Queues<'_> {
//!     fn try_send(&mut self, to: usize, header: &[u8], data: &[u8]) -> Sent {
//!         self.1[to].borrow_mut().push_back([header, data].concat());
//!         Sent::Done
//!     }
//!     fn try_recv(&mut self, take: impl FnOnce(&mut dyn Message)) -> bool {
//!         let message = self.1[self.0].borrow_mut().pop_front();
//!         message.map(|message| take(&mut &message[..])).is_some()
//!     }
//!     fn flush(&mut self) {}
//! }
//!
//! let queues: Vec<_> = (0..3).map(|_| RefCell::default()).collect();
//! let call = Call::reducing(Kind::AllReduce, 0, Element::U32, Op::Sum, 8);
//! let mut members: Vec<_> = (0..3u32)
//!     .map(|rank| {
//!         let mut member = Member::new(rank as usize, 3, 1024, MemberStorage::allocate(3, 1024)).unwrap();
//!         let running = Running::start(&call, &mut member, 0, 8).unwrap();
//!         (member, running, [rank.to_ne_bytes(), 10u32.to_ne_bytes()].concat())
//!     })
//!     .collect();
//! let mut done = 0;
//! while done < 3 {
//!     done = 0;
//!     for (rank, (member, running, data)) in members.iter_mut().enumerate() {
//!         let mut data = Data { input: &[], output: data, fold: None };
//!         let polled = running.poll(member, &mut Queues(rank, &queues), &mut data).unwrap();
//!         done += usize::from(polled == Polled::Done);
//!     }
//! }
//! for (_, _, data) in &members {
//!     assert_eq!(*data, [3u32.to_ne_bytes(), 30u32.to_ne_bytes()].concat());
//! }
//! ```

mod call;
mod choose;
mod element;
mod exchange;
mod fault;
mod member;
mod message;
mod notes;
mod reads;
mod run;
mod step_cache;
mod steps;
#[cfg(test)]
mod tests;
mod tree;

pub use call::{Call, Kind, Refused};
pub use choose::Algorithm;
pub use element::{Element, Left, Op, combine};
pub use fault::{Cause, Fault};
pub use member::{Member, MemberStorage, Stats, WINDOW};
pub use message::{HEADER, greeting, is_withdrawal, sender};
pub use notes::Writers;
pub use reads::Reads;
pub use run::{Carrier, Data, Fold, Message, Polled, Running, Sent, StartError, Tagged};
pub use steps::{Place, Reception, Step, Steps};
