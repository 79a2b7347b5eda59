//! Barriers. Each node reports its progress to the primary, which notifies all nodes once the last has arrived.

use super::link::{Link, Links};
use super::{Config, Engine};
use crate::agreement::Start;
use crate::id::NodeId;
use crate::mesp::Control;
use crate::policy::SpacePolicy;
use crate::routing::LinkId;
use crate::transport::Transport;
use crate::umb::BlockMemory;

/// This node's progress. Barriers are numbered from 1, and the numbers wrap around.
#[derive(Debug, Default)]
pub(super) struct Barrier {
    /// The last barrier that this node has arrived at, and the last that has completed.
    arrived: u32,
    passed: u32,
    /// Whether only members are waited for, rather than all nodes.
    open: bool,
    /// What the primary has last reported of a barrier that will not complete.
    lost: Option<Lost>,
    /// Whether this node, admitted at a time when others may already have passed barriers, does not know which comes next.
    unknown: bool,
}

/// A barrier that everyone waits at in vain.
#[derive(Clone, Copy, Debug)]
struct Lost {
    generation: u32,
    /// The failed node that has not arrived.
    node: NodeId,
    /// Whether it has ended.
    ended: bool,
}

impl Barrier {
    pub(super) fn new(config: &Config) -> Self {
        let open = config.is_open();
        Self { open, unknown: open && config.start == Start::Joining, ..Self::default() }
    }

    /// Whether it is known which barrier comes next.
    pub(super) fn is_known(&self) -> bool {
        !self.unknown
    }

    /// Whether all nodes have arrived at barrier `generation`.
    fn has_passed(&self, generation: u32) -> bool {
        self.passed.wrapping_sub(generation) < u32::MAX / 2
    }

    /// By how many barriers a node is ahead of the last completed one.
    fn lead(&self, arrived: u32) -> u32 {
        Some(arrived.wrapping_sub(self.passed)).filter(|n| *n < u32::MAX / 2).unwrap_or(0)
    }

    /// Primary: notes that a node knows barrier `passed` to have completed. A primary that was admitted late may not.
    pub(super) fn learn_passed(&mut self, links: &mut Links<'_>, passed: u32) {
        if self.unknown {
            self.adopt_number(links, passed);
        } else if self.open && !self.has_passed(passed) {
            self.passed = passed;
            if self.has_passed(self.arrived) {
                self.arrived = passed;
            }
            // Others may wait there, and have to be told.
            for link in links.iter_mut().filter(|link| self.has_passed(link.arrived)) {
                link.arrived = passed;
            }
        }
    }

    /// Called when this node has become primary without knowing which barrier is next, and learns which was the last to complete.
    fn adopt_number(&mut self, links: &mut Links<'_>, passed: u32) {
        let waits = self.arrived != self.passed && self.arrived == passed.wrapping_add(1);
        (self.unknown, self.passed) = (false, passed);
        if !waits {
            self.arrived = passed;
        }
        let own = links.own;
        for link in links.iter_mut() {
            link.arrived = if link.id == own { self.arrived } else { passed };
            if link.id != own {
                link.queue_control(Control::Released { generation: passed });
            }
        }
    }

    /// The same when no other member knows either: there has been no barrier.
    fn adopt_none(&mut self, links: &mut Links<'_>) {
        let own = links.own;
        let knows = |link: &Link| link.id != own && link.state.is_member() && !link.asks_barrier;
        if self.unknown && !links.iter().any(knows) {
            self.adopt_number(links, 0);
        }
    }

    /// Notes that, according to the primary, barrier `generation` has completed.
    pub(super) fn release(&mut self, generation: u32) {
        if generation.wrapping_sub(self.passed) < u32::MAX / 2 {
            self.passed = generation;
        }
    }

    /// Primary: notes that a node has arrived at barrier `generation`. (Its own arrival counts once it knows which is next.)
    pub(super) fn record_arrival(&mut self, links: &mut Links<'_>, id: LinkId, generation: u32) {
        if self.unknown {
            return;
        }
        if let Some(link) = links.get_mut(id)
            && self.lead(generation) > self.lead(link.arrived)
        {
            link.arrived = generation;
        }
        self.pass(links);
    }

    /// Primary: completes the barriers at which everyone who counts has arrived, and announces them.
    fn pass(&mut self, links: &mut Links<'_>) {
        let counts = |link: &&Link| !self.open || link.state.is_member();
        let all = links.iter().filter(counts).map(|link| self.lead(link.arrived)).min().unwrap_or(0);
        self.passed = self.passed.wrapping_add(all);
        // Includes nodes that missed the announcement because the primary that made it has failed.
        let (generation, own) = (self.passed, links.own);
        for link in links.iter_mut().filter(|link| link.id != own) {
            if all > 0 || (generation != 0 && link.arrived == generation) {
                link.queue_control(Control::Released { generation });
            }
        }
    }

    /// Notes that, according to the primary, barrier `generation` will not complete.
    pub(super) fn record_lost(&mut self, generation: u32, node: NodeId, ended: bool) {
        self.lost = Some(Lost { generation, node, ended });
    }

    /// The failed node without which, according to the primary, no further barrier completes.
    fn lost(&self) -> Option<Lost> {
        self.lost.filter(|lost| !self.has_passed(lost.generation))
    }

    /// Primary: tells the nodes waiting at the next barrier which node failed before arriving there, and whether it has ended.
    fn announce_lost(&self, links: &mut Links<'_>, has_ended: impl Fn(&Link) -> bool) {
        if self.open {
            return;
        }
        let waits = |link: &Link| self.lead(link.arrived) > 0;
        let lost = || links.iter().filter(|link| !link.is_up() && !waits(link));
        let Some(first) = lost().find(|link| has_ended(link)).or_else(|| lost().next()) else { return };
        let (node, ended) = (first.peer, has_ended(first));
        let (generation, own) = (self.passed.wrapping_add(1), links.own);
        for link in links.iter_mut().filter(|link| link.id != own && waits(link)) {
            link.queue_control(Control::Lost { generation, node, ended });
        }
    }

    /// Starts the term of a new primary, to which nothing has been reported yet.
    fn start_term(&self, links: &mut Links<'_>) {
        let own = links.own;
        links.iter_mut().filter(|link| link.id != own).for_each(|link| self.forget_arrival(link));
    }

    /// A node that has reported nothing counts as one that has arrived at the last barrier that has completed.
    fn forget_arrival(&self, link: &mut Link) {
        (link.arrived, link.asks_barrier) = (self.passed, false);
    }
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Arrives at the next barrier and returns its number; [`barrier_passed`](Self::barrier_passed) reports its completion. Call
    /// this once per node and barrier and, in an open cluster ([`Config::voters`]), not before [`is_ready`](Self::is_ready).
    pub fn arrive(&mut self) -> u32 {
        self.barrier.arrived = self.barrier.arrived.wrapping_add(1);
        self.announce_arrival();
        self.barrier.arrived
    }

    /// Whether all nodes have arrived at barrier `generation`. In an open cluster, only those that were members when the last of
    /// them arrived count.
    pub fn barrier_passed(&self, generation: u32) -> bool {
        self.barrier.has_passed(generation)
    }

    /// Returns a node that [has ended](Self::has_ended) before it arrived at barrier `generation`, which therefore never completes. The primary
    /// knows, and tells the nodes that wait. In an open cluster there is none.
    pub fn barrier_lost(&self, generation: u32) -> Option<NodeId> {
        if self.barrier.open || self.barrier_passed(generation) {
            return None;
        }
        match self.is_master() {
            true => self.barrier_missing(generation).find(|node| self.has_ended(*node)),
            false => self.barrier.lost().filter(|lost| lost.ended).map(|lost| lost.node),
        }
    }

    /// Returns the nodes that have not arrived at barrier `generation`, to this node's knowledge. The primary knows all of them.
    /// Other nodes name a failed node, or else the primary or, if there is none, the masters that could become it.
    pub fn barrier_missing(&self, generation: u32) -> impl Iterator<Item = NodeId> {
        let (me, master) = (self.config.node, self.master());
        let lost = self.barrier.lost().map(|lost| lost.node).filter(|node| self.has_failed(*node));
        (0..usize::from(self.config.nodes)).map(NodeId::from_index).filter(move |n| match master {
            Some(master) if master == me => {
                let arrived = self.links.to(*n).map_or(0, |link| link.arrived);
                let counts = !self.barrier.open || self.agreement.is_member(*n);
                counts && arrived.wrapping_sub(generation) >= u32::MAX / 2
            }
            Some(master) => *n == lost.unwrap_or(master),
            None => *n != me && n.index() < usize::from(self.config.masters),
        })
    }

    fn announce_arrival(&mut self) {
        let (me, generation, passed) = (self.config.node, self.barrier.arrived, self.barrier.passed);
        match self.master() {
            Some(master) if master == me => {
                let own = self.links.own;
                self.barrier.record_arrival(&mut self.links, own, generation);
                self.announce_lost();
            }
            Some(master) => {
                self.queue_control(self.links.id(master), Control::Arrived { generation, passed })
            }
            // The next primary will be told.
            None => {}
        }
    }

    /// Handles the failure of a link, which may lead to the node that all others wait for, or the news that its peer has ended.
    pub(super) fn on_link_lost(&mut self) {
        if self.is_master() {
            self.announce_lost();
        }
    }

    /// Primary: tells the nodes that wait in vain.
    pub(super) fn announce_lost(&mut self) {
        let Self { barrier, links, transport, .. } = self;
        barrier.announce_lost(links, |link| link.state.is_down() && transport.has_ended(link.peer));
    }

    /// Handles the arrival or departure of a node. In an open cluster, its earlier arrivals no longer count, and it may be the
    /// node that all others wait for.
    pub(super) fn on_member_change(&mut self, node: NodeId) {
        if !self.barrier.open {
            return;
        }
        if let Some(link) = self.links.to_mut(node) {
            self.barrier.forget_arrival(link);
        }
        if self.is_master() {
            self.barrier.adopt_none(&mut self.links);
            self.barrier.pass(&mut self.links);
        }
    }

    /// This node is no longer a member. If others do not wait for it, it no longer knows which barrier they have reached.
    pub(super) fn leave_barriers(&mut self) {
        self.barrier.unknown = self.barrier.open;
    }

    /// This node was admitted. If others did not wait for it in the meantime, it asks which barrier is next.
    pub(super) fn request_barrier(&mut self) {
        self.barrier.unknown = self.barrier.open && !self.is_master();
        self.repeat_arrival();
    }

    /// Primary: answers a node that asks which barrier is next. The node is a member, so no barrier completes until it has
    /// arrived.
    pub(super) fn on_barrier_request(&mut self, id: LinkId) {
        if !self.barrier.unknown {
            let generation = self.barrier.passed;
            return self.queue_control(id, Control::Released { generation });
        }
        if let Some(link) = self.links.get_mut(id) {
            link.asks_barrier = true;
        }
        self.barrier.adopt_none(&mut self.links);
    }

    /// Handles the primary's report that barrier `generation` has completed.
    pub(super) fn on_released(&mut self, generation: u32) {
        self.barrier.release(generation);
        let was_unknown = core::mem::take(&mut self.barrier.unknown);
        if self.barrier.open && self.barrier.has_passed(self.barrier.arrived) {
            // Others passed barriers while this node was not a member.
            self.barrier.arrived = self.barrier.passed;
        } else if was_unknown {
            self.announce_arrival();
        }
    }

    /// Repeats this node's arrival: the primary may not know that it is waiting at a barrier.
    pub(super) fn repeat_arrival(&mut self) {
        if self.barrier.unknown {
            if let Some(master) = self.master() {
                self.queue_control(self.links.id(master), Control::BarrierRequest);
            }
            return;
        }
        if !self.barrier.has_passed(self.barrier.arrived) {
            self.announce_arrival();
        }
    }

    /// Handles the election of a new primary: reports to it where this node is. If this node is the primary, it knows nothing of
    /// the others yet.
    pub(super) fn restart_barrier(&mut self) {
        self.barrier.start_term(&mut self.links);
        if self.barrier.unknown && self.is_master() {
            self.barrier.adopt_none(&mut self.links);
        } else if self.barrier.unknown {
            self.repeat_arrival();
        } else if self.barrier.arrived > 0 || self.barrier.open {
            self.announce_arrival();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use managed::ManagedSlice;

    use super::super::link::LinkState;
    use super::*;
    use crate::routing::{Routing, Topology};

    /// The links of the primary, node 0 of three.
    fn links() -> Links<'static> {
        let me = NodeId::new(0).expect("a small number names a node");
        let rows = (0..3).map(|_| Link::default()).collect::<Vec<_>>();
        Links::new(ManagedSlice::Owned(rows), Topology::new(Routing::Direct, me, 3, 1))
    }

    fn id(index: usize) -> LinkId {
        LinkId::from_index(index)
    }

    #[test]
    fn it_is_passed_when_the_last_arrives() {
        let (mut barrier, mut links) = (Barrier::default(), links());
        for node in [2, 0] {
            barrier.record_arrival(&mut links, id(node), 1);
            assert!(!barrier.has_passed(1));
        }
        barrier.record_arrival(&mut links, id(1), 1);
        assert!(barrier.has_passed(1) && !barrier.has_passed(2));
        let told = links.iter().filter(|link| link.control.has_messages()).count();
        assert_eq!(told, 2, "the node itself needs no message");
    }

    #[test]
    fn a_new_primary_learns_from_the_greatest_number() {
        let (mut barrier, mut links) = (Barrier { arrived: 4, passed: 3, ..Barrier::default() }, links());
        barrier.start_term(&mut links);
        barrier.record_arrival(&mut links, id(0), 4);
        barrier.record_arrival(&mut links, id(1), 4);
        // A repeated, outdated message does not undo anything.
        barrier.record_arrival(&mut links, id(1), 3);
        barrier.record_arrival(&mut links, id(2), 4);
        assert!(barrier.has_passed(4));
    }

    /// A number of more than half of them all is not taken for that of a node which has reported none.
    #[test]
    fn who_has_reported_nothing_has_not_arrived_however_many_barriers_there_were() {
        for passed in [0, 1, u32::MAX / 2 + 2, 0x9000_0000, u32::MAX - 1] {
            let arrived = passed + 1;
            let (mut barrier, mut links) = (Barrier { arrived, passed, ..Barrier::default() }, links());
            barrier.start_term(&mut links);
            for node in [0, 1] {
                barrier.record_arrival(&mut links, id(node), arrived);
                assert!(!barrier.has_passed(arrived), "{passed}");
            }
            barrier.record_arrival(&mut links, id(2), arrived);
            assert!(barrier.has_passed(arrived), "{passed}");
        }
    }

    /// It took the last barrier of the others for the next one, and let itself pass that alone.
    #[test]
    fn a_new_primary_that_does_not_know_the_number_passes_no_barrier_alone() {
        for passed in [0, 1, 5, u32::MAX / 2 + 2, 0x9000_0000, u32::MAX - 1, u32::MAX] {
            let next = passed.wrapping_add(1);
            let begin = |arrived| {
                let new = Barrier { arrived, unknown: true, open: true, ..Barrier::default() };
                let mut links = links();
                new.start_term(&mut links);
                links.iter_mut().for_each(|link| link.state = LinkState::OWN);
                (new, links)
            };
            let report = |new: &mut Barrier, links: &mut Links<'_>, node, arrived, passed| {
                new.learn_passed(links, passed);
                new.record_arrival(links, id(node), arrived);
            };
            let (mut new, mut links) = begin(0);
            report(&mut new, &mut links, 1, passed, passed);
            report(&mut new, &mut links, 2, next, passed);
            assert_eq!((new.arrived, new.passed), (passed, passed));
            new.record_arrival(&mut links, id(0), next);
            assert!(!new.has_passed(next), "node 1 has not arrived");
            report(&mut new, &mut links, 1, next, passed);
            assert!(new.has_passed(next));
            // The first to report has not heard of the last barrier.
            let (mut new, mut links) = begin(0);
            report(&mut new, &mut links, 1, passed, passed.wrapping_sub(1));
            report(&mut new, &mut links, 2, passed, passed);
            assert_eq!((new.arrived, new.passed), (passed, passed));
        }
    }

    /// It waits there since before it was declared down, and nobody has passed a barrier in the meantime.
    #[test]
    fn a_new_primary_that_waits_at_the_next_barrier_counts_there() {
        let (mut new, mut links) =
            (Barrier { arrived: 1, unknown: true, open: true, ..Barrier::default() }, links());
        links.iter_mut().for_each(|link| link.state = LinkState::OWN);
        for node in [1, 2] {
            assert!(!new.has_passed(1));
            new.learn_passed(&mut links, 0);
            new.record_arrival(&mut links, id(node), 1);
        }
        assert!(new.has_passed(1));
    }

    /// The former primary had told one only, who told the new one. The others came to a barrier that was passed.
    #[test]
    fn who_has_not_heard_of_a_barrier_that_the_new_primary_learns_to_be_passed_is_told() {
        for comes_first in [false, true] {
            let (mut barrier, mut links) =
                (Barrier { arrived: 13, passed: 12, open: true, ..Barrier::default() }, links());
            links.iter_mut().for_each(|link| link.state = LinkState::OWN);
            barrier.start_term(&mut links);
            let mut reports = [(1, 12), (2, 13)];
            if !comes_first {
                reports.reverse();
            }
            for (node, passed) in reports {
                barrier.learn_passed(&mut links, passed);
                barrier.record_arrival(&mut links, id(node), 13);
            }
            let told = links.get(id(1)).is_some_and(|link| link.control.has_messages());
            assert!(barrier.has_passed(13) && told, "{comes_first}");
        }
    }

    #[test]
    fn numbers_go_round() {
        let (mut barrier, mut links) =
            (Barrier { arrived: u32::MAX, passed: u32::MAX, ..Barrier::default() }, links());
        links.iter_mut().for_each(|link| link.arrived = u32::MAX);
        for node in 0..3 {
            barrier.record_arrival(&mut links, id(node), 0);
        }
        assert!(barrier.has_passed(0) && barrier.has_passed(u32::MAX));
        barrier.release(u32::MAX);
        assert!(barrier.has_passed(0), "what was passed before is no news");
    }
}
