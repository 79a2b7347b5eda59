//! The conformance suite: one set of cases that checks the contract of [`pdbp_core::transport`] for any backend.
//!
//! All nodes of a domain run every case at the same time, each with its own endpoint. Nodes communicate only through the transport
//! under test, so they may just as well be separate processes. All waiting is polling that fails when nothing happens for too long,
//! so a transport that loses something fails instead of hanging. If a call does not return for that long, a message on standard
//! error names the call, the node and the case; nothing can end the call, and the case keeps waiting.
//!
//! A [`Node`] is an endpoint with blocks of its own and books on everything that moves. Every byte of a block follows from its link
//! and its number there. Every block that arrives or comes back is compared, and a block that came back is overwritten at once,
//! which exposes a transport that still needs it.
//!
//! # Nodes on threads of one process
//! ```
//! use pdbp_core::Arrival;
//! use pdbp_core::umb::HeapMemory;
//! use pdbp_sim::conformance::Node;
//! use pdbp_local::Local;
//!
//! /// A domain of `nodes` nodes. Blocks of the pool are longer than what the transport is asked to carry.
//! fn domain(nodes: usize) -> Vec<Node<Local, HeapMemory>> {
//!     let bytes = Node::<Local, HeapMemory>::memory(nodes, 1024);
//!     let memories: Vec<_> = (0..nodes).filter_map(|_| HeapMemory::new(bytes)).collect();
//!     let ends = Local::network(&memories, Arrival::InPlace, 1000, 4);
//!     ends.into_iter().zip(memories).map(|(end, memory)| Node::new(end, memory, 1024)).collect()
//! }
//!
//! // A module `two_nodes` with one #[test] per case.
//! pdbp_sim::conformance!(two_nodes, domain(2));
//! # pdbp_sim::conformance::check("every_block_comes_back", domain(3));
//! ```
//!
//! # Nodes in processes of their own
//! Each process calls [`run_all`] with a function that makes its endpoint. Each case gets a new endpoint, on a new domain (for MPI:
//! a duplicate of the communicator), so a case that fails, or in which nodes leave, does not disturb the next.
//!
//! ```
//! use pdbp_core::{BlockMemory, Transport};
//! use pdbp_sim::conformance::{Node, run_all};
//!
//! /// Run by every process; `endpoint` makes this process' end of a new domain and the memory for it.
//! fn check<T: Transport, M: BlockMemory>(mut endpoint: impl FnMut() -> (T, M)) -> bool {
//!     let node = || {
//!         let (end, memory) = endpoint();
//!         Node::new(end, memory, 64 << 10)
//!     };
//!     run_all(node, &mut std::io::stdout()).is_passed()
//! }
//! ```
//!
//! # A backend from scratch
//! `examples/backend.rs`:
//! ```ignore
#![doc = include_str!("../../examples/backend.rs")]
//! ```

mod cases;
mod contents;
mod node;
mod report;
#[cfg(test)]
mod tests;
mod threads;
mod watch;

use std::fmt;

use pdbp_core::id::NodeId;
use pdbp_core::{BlockMemory, Transport};

use cases::{delivery, departure, flow, outage, refusal};
pub use node::Node;
pub use report::{Line, Report, run_all};
pub use threads::{check, run_on_threads};
use watch::Watch;

/// How a node leaves in the cases in which one does.
pub enum Leaving<T> {
    /// By calling this function; `drop`, unless more is needed.
    By(fn(T)),
    /// Not at all: these cases are skipped.
    Unsupported,
}

/// The result of a case that found nothing wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The contract holds.
    Passed,
    /// The case does not apply; the text says why.
    Skipped(&'static str),
    /// The contract holds, and the node has left as the case demands.
    Left,
}

/// A breach of the contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The node that noticed it.
    pub node: NodeId,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.node, self.what)
    }
}

impl std::error::Error for Failure {}

/// One case of the suite.
pub struct Case<T: Transport, M: BlockMemory> {
    /// Its name.
    pub name: &'static str,
    steps: fn(&mut Node<T, M>) -> Result<Verdict, Failure>,
}

impl<T: Transport, M: BlockMemory> Case<T, M> {
    /// Runs this node's side of the case: a meeting of all nodes, the steps of the case, and another meeting, after which every
    /// block must be back where it belongs and nothing else may happen.
    ///
    /// # Errors
    /// The breach of the contract that this node noticed.
    pub fn run(&self, mut node: Node<T, M>) -> Result<Verdict, Failure> {
        let _watch = Watch::on(&node, self.name);
        self.run_on(&mut node)
    }

    /// As `run`, for a node that leaves later.
    fn run_on(&self, node: &mut Node<T, M>) -> Result<Verdict, Failure> {
        node.meet()?;
        let verdict = (self.steps)(node)?;
        if verdict == Verdict::Left {
            return Ok(verdict);
        }
        // Peers that have met all others and have all their blocks back may leave while this node still waits for others.
        node.closing = true;
        node.meet()?;
        node.settle()?;
        node.linger(50)?;
        node.leave();
        Ok(verdict)
    }
}

macro_rules! cases {
    ($($group:ident::$name:ident,)*) => {
        /// All cases, in the order in which they run.
        pub fn cases<T: Transport, M: BlockMemory>() -> Vec<Case<T, M>> {
            vec![$(Case { name: stringify!($name), steps: $group::$name }),*]
        }
    };
}

cases! {
    delivery::capabilities_are_constant,
    delivery::blocks_arrive_once_in_order_intact,
    delivery::every_block_comes_back,
    delivery::one_to_many_and_many_to_one,
    delivery::in_place_blocks_leave_without_polls,
    delivery::in_place_blocks_stay_until_returned,
    delivery::posted_blocks_wait_for_room,
    flow::idle_polls_bring_nothing,
    flow::stated_capacity_is_there,
    flow::busy_links_take_the_block_later,
    flow::slow_readers_stop_their_sender_only,
    flow::polls_end_under_a_flood,
    refusal::too_long_blocks_are_refused,
    refusal::the_other_arrival_is_refused,
    refusal::strangers_are_refused,
    refusal::returns_to_others_are_refused,
    departure::peers_that_leave_fail_once,
    departure::everybody_may_leave_at_any_time,
    outage::a_short_outage_is_only_late,
    outage::an_outage_that_was_given_up_brings_all_back,
    outage::a_restored_link_is_a_new_one,
}

/// Defines a module of tests, one per case, for an in-process backend: `conformance!(name, domain)`, where `domain` is an
/// expression that creates all [`Node`]s of a new domain, as a `Vec`. See [`conformance`](mod@crate::conformance) for an example.
#[macro_export]
macro_rules! conformance {
    ($module:ident, $domain:expr) => {
        $crate::conformance!(
            @tests $module, $domain,
            capabilities_are_constant
            blocks_arrive_once_in_order_intact
            every_block_comes_back
            one_to_many_and_many_to_one
            in_place_blocks_leave_without_polls
            in_place_blocks_stay_until_returned
            posted_blocks_wait_for_room
            idle_polls_bring_nothing
            stated_capacity_is_there
            busy_links_take_the_block_later
            slow_readers_stop_their_sender_only
            polls_end_under_a_flood
            too_long_blocks_are_refused
            the_other_arrival_is_refused
            strangers_are_refused
            returns_to_others_are_refused
            peers_that_leave_fail_once
            everybody_may_leave_at_any_time
            a_short_outage_is_only_late
            an_outage_that_was_given_up_brings_all_back
            a_restored_link_is_a_new_one
        );
    };
    (@tests $module:ident, $domain:expr, $($case:ident)*) => {
        #[cfg(test)]
        mod $module {
            #[allow(unused_imports)]
            use super::*;

            $(
                #[test]
                fn $case() {
                    $crate::conformance::check(stringify!($case), $domain);
                }
            )*

            #[test]
            fn no_case_is_left_out() {
                $crate::conformance::check_names(&[$(stringify!($case)),*]);
            }
        }
    };
}

#[doc(hidden)]
pub fn check_names(listed: &[&str]) {
    use pdbp_core::umb::HeapMemory;
    let all: Vec<_> = cases::<crate::recorder::Replay, HeapMemory>().into_iter().map(|c| c.name).collect();
    assert_eq!(all, listed, "the list of cases in the macro `conformance!` is not that of `cases()`");
}
