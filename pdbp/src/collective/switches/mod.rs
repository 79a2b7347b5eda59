//! Groups on a fabric whose switches carry out the calls that they can.
//!
//! A group uses the switches if each member is on a node of its own, no node has turned the setting `group_switches` off, and the
//! switches between them have a mask free for one more group. Members come to share the switches as they do a slate: member 0
//! makes the group there and tells the others its key.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use pdbp_core::collective::{Call, Fault};
use pdbp_core::id::NodeId;
use pdbp_sim::network::{CallFault, GroupKey, SwitchEnd};

use crate::error::RecvError;
use crate::fabric::Fabric;
use crate::node::{Node, Sleeper};
use crate::part::{Part, Shared};

/// A member's end of a group in the switches.
pub(in crate::collective) struct Switches {
    fabric: Arc<Fabric>,
    end: SwitchEnd,
    rank: usize,
    members: usize,
    /// Wakes this member; `None` before it has joined.
    sleeper: Option<Arc<Sleeper>>,
}

impl Switches {
    /// Whether a group of members on these nodes may use switches.
    pub(in crate::collective) fn are_offered(node: &Node, nodes: &[NodeId]) -> bool {
        let is_one_each =
            nodes.iter().enumerate().all(|(i, node)| nodes.iter().skip(i + 1).all(|o| o != node));
        nodes.len() > 1 && node.settings().group_switches && node.shared.fabric.is_some() && is_one_each
    }

    /// The switch that node `of` is attached to, if `node` is on a fabric.
    pub(in crate::collective) fn board(node: &Node, of: NodeId) -> Option<usize> {
        node.shared.fabric.as_ref()?.network().board(of.raw())
    }

    /// Makes the group in the switches; returns its key and the end of member 0.
    pub(in crate::collective) fn make(node: &Node, nodes: &[NodeId]) -> Option<(NonZeroU64, Self)> {
        let fabric = node.shared.fabric.clone()?;
        let (key, end) = fabric.network().open_group(&raw(nodes))?;
        let switches = Self { fabric, end, rank: 0, members: nodes.len(), sleeper: None };
        Some((NonZeroU64::new(key.to_bits())?, switches))
    }

    /// Returns the end of another member.
    pub(in crate::collective) fn find(
        node: &Node,
        nodes: &[NodeId],
        rank: usize,
        key: NonZeroU64,
    ) -> Option<Self> {
        let fabric = node.shared.fabric.clone()?;
        let end = fabric.network().join_group(GroupKey::from_bits(key.get())?, &raw(nodes), rank)?;
        Some(Self { fabric, end, rank, members: nodes.len(), sleeper: None })
    }

    /// Sets this member's part, which is woken when a call ends.
    pub(in crate::collective) fn attach(&mut self, part: &Part<Shared>) {
        self.sleeper = part.sleeper().map(Arc::new);
        if let Some(sleeper) = &self.sleeper {
            self.fabric.add_sleeper(part.id().node(), sleeper);
        }
    }

    /// Announces that this member will sleep; returns whether it has polled its call since it announced that.
    pub(in crate::collective) fn will_sleep(&self) -> bool {
        self.sleeper.as_ref().is_none_or(|sleeper| sleeper.will_sleep())
    }

    /// Sleeps until the call changes or a message arrives.
    pub(in crate::collective) fn sleep(&self, part: &Part<Shared>, time: Duration) -> Result<(), RecvError> {
        let slept = part.wait_or_be_woken(time);
        self.is_awake();
        slept
    }

    fn is_awake(&self) {
        self.sleeper.iter().for_each(|sleeper| sleeper.is_awake());
    }

    /// Whether another member has begun a later call.
    pub(in crate::collective) fn is_behind(&self, number: u32) -> bool {
        (0..self.members).any(|rank| rank != self.rank && self.end.has_begun(rank, number.saturating_add(1)))
    }

    /// Whether switches can do a call.
    pub(in crate::collective) fn does(call: &Call) -> bool {
        SwitchEnd::does(call)
    }

    pub(in crate::collective) fn start(&self, number: u32, call: &Call, input: &[u8], output: &[u8]) {
        // Cannot fail: the call was checked when it was begun.
        let _ = self.end.start(number, call, input, output);
    }

    /// Returns the result of a call, with its output in place; `None` while the call is in progress.
    pub(in crate::collective) fn poll(
        &self,
        number: u32,
        call: &Call,
        into: &mut [u8],
    ) -> Option<Result<(), Fault>> {
        let done = self.end.poll(number)?;
        // A wake-up from now on would be for nothing.
        self.is_awake();
        Some(
            done.map(|output| self.end.put(call, &output, into))
                .map_err(|fault| self.fault(number, call, fault)),
        )
    }

    /// Processes the next event of the fabric. Returns whether anything is in flight.
    pub(in crate::collective) fn advance(&self) -> bool {
        self.fabric.advance()
    }

    /// Members that have not begun a call.
    pub(in crate::collective) fn missing(&self, number: u32) -> impl Iterator<Item = usize> {
        (0..self.members).filter(move |rank| *rank != self.rank && !self.end.has_begun(*rank, number))
    }

    /// Members to tell what this one has called: those that have not begun the call or, if all have begun one, all.
    pub(in crate::collective) fn to_show(&self, number: u32) -> Vec<usize> {
        let missing: Vec<usize> = self.missing(number).collect();
        let others = || (0..self.members).filter(|rank| *rank != self.rank).collect();
        if missing.is_empty() { others() } else { missing }
    }

    /// A number that changes as long as a call advances here, or others begin it.
    pub(in crate::collective) fn state(&self, number: u32) -> u64 {
        let missing = self.missing(number).count() as u64;
        self.end.state(number).wrapping_mul(self.members as u64 + 1).wrapping_add(missing)
    }

    /// This member's view of two members that have made different calls: it may be one of them.
    fn fault(&self, own_number: u32, ours: &Call, CallFault { number, between }: CallFault) -> Fault {
        let Some([one, other]) = between else { return Fault::Garbled { rank: self.rank } };
        let (own, (rank, theirs)) = match (one, other) {
            ((rank, call), other) if rank == self.rank => ((number, call), other),
            (one, (rank, call)) if rank == self.rank => ((number, call), one),
            (one, other) => ((own_number, *ours), if one.1 == *ours { other } else { one }),
        };
        let (own_number, ours) = own;
        Fault::Mismatch { rank, number, theirs, own_number, ours }
    }
}

fn raw(nodes: &[NodeId]) -> Vec<u16> {
    nodes.iter().map(|node| node.raw()).collect()
}
