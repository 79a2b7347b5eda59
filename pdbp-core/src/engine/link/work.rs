//! The links that have work, kept in a list so that no poll has to search all of them.

use super::{Link, Links};
use crate::routing::LinkId;

/// Work at a link for a later poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) struct Work(u8);

impl Work {
    /// Blocks in its row of SM, waiting for credit or for the transport.
    pub(in crate::engine) const SEND: Self = Self(1);
    /// Blocks in its row of RM, waiting for a private pipe or an onward link.
    pub(in crate::engine) const ROUTE: Self = Self(2);
    /// Blocks that the peer did not receive, for the parts that wrote them.
    pub(in crate::engine) const RETURN: Self = Self(4);
    /// Blocks to receive into: the row has posted fewer than it should.
    pub(in crate::engine) const POST: Self = Self(8);
    /// The transport has refused a block for good: the link fails once everything that the transport gives back has been taken.
    pub(in crate::engine) const FAIL: Self = Self(16);
    /// Whether the link is in the list.
    const LISTED: Self = Self(128);

    fn has(self, kind: Self) -> bool {
        self.0 & kind.0 != 0
    }

    /// Adds a kind of work.
    fn add(&mut self, kind: Self) {
        self.0 |= kind.0;
    }

    /// Removes a kind of work. Returns whether the link had any.
    fn take(&mut self, kind: Self) -> bool {
        let had = self.has(kind);
        self.0 &= !kind.0;
        had
    }
}

/// A list of links, in the order in which they got work.
#[derive(Debug)]
pub(super) struct WorkList {
    first: LinkId,
    last: LinkId,
    /// The kinds of work that any link may have.
    kinds: Work,
}

impl Default for WorkList {
    fn default() -> Self {
        Self { first: LinkId::NONE, last: LinkId::NONE, kinds: Work::default() }
    }
}

impl Links<'_> {
    /// Records work at a link.
    pub(in crate::engine) fn mark(&mut self, id: LinkId, kind: Work) {
        let Some(link) = self.get_mut(id) else { return };
        link.work.add(kind);
        let listed = link.work.has(Work::LISTED);
        link.work.add(Work::LISTED);
        self.work.kinds.add(kind);
        if listed {
            return;
        }
        let last = core::mem::replace(&mut self.work.last, id);
        match self.get_mut(last) {
            Some(last) => last.next = id,
            None => self.work.first = id,
        }
    }

    /// Whether a link may have work of any kind.
    #[inline]
    pub(in crate::engine) fn have_work(&self) -> bool {
        self.work.kinds != Work::default()
    }

    /// Notes that a link has no more work of a kind.
    pub(in crate::engine) fn unmark(&mut self, id: LinkId, kind: Work) {
        if let Some(link) = self.get_mut(id) {
            link.work.take(kind);
        }
    }

    /// Takes the first link with work of a kind; [`next_with`](Self::next_with) takes the others. A link that gets such work
    /// after its turn in this pass is next visited in the following pass.
    #[inline]
    pub(in crate::engine) fn first_with(&mut self, kind: Work) -> Option<LinkId> {
        if self.work.kinds.take(kind) { self.take_from(self.work.first, kind) } else { None }
    }

    /// Takes the next link after `id` with work of a kind.
    pub(in crate::engine) fn next_with(&mut self, id: LinkId, kind: Work) -> Option<LinkId> {
        self.take_from(self.get(id)?.next, kind)
    }

    fn take_from(&mut self, mut id: LinkId, kind: Work) -> Option<LinkId> {
        loop {
            let link = self.get_mut(id)?;
            if link.work.take(kind) {
                return Some(id);
            }
            id = link.next;
        }
    }

    /// Drops links without work from the list, at the end of a poll.
    #[inline]
    pub(in crate::engine) fn forget_idle(&mut self) {
        if self.work.first != LinkId::NONE {
            self.forget_listed();
        }
    }

    #[inline(never)]
    fn forget_listed(&mut self) {
        let (mut id, mut kept) = (self.work.first, LinkId::NONE);
        while let Some(link) = self.get_mut(id) {
            let next = link.next;
            if link.work == Work::LISTED {
                link.work = Work::default();
                link.next = LinkId::NONE;
                self.link_up(kept, next);
            } else {
                kept = id;
            }
            id = next;
        }
        self.work.last = kept;
    }

    /// Makes `next` follow a link of the list, or come first.
    fn link_up(&mut self, before: LinkId, next: LinkId) {
        match self.get_mut(before) {
            Some(Link { next: place, .. }) => *place = next,
            None => self.work.first = next,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::vec::Vec;

    use managed::ManagedSlice;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::id::NodeId;
    use crate::routing::{Routing, Topology};

    const LINKS: u16 = 6;

    fn links() -> Links<'static> {
        let me = NodeId::new(0).expect("a small number names a node");
        let rows = (0..LINKS).map(|_| Link::default()).collect::<Vec<_>>();
        Links::new(ManagedSlice::Owned(rows), Topology::new(Routing::Direct, me, LINKS, 1))
    }

    fn pass(links: &mut Links<'_>, kind: Work) -> Vec<usize> {
        let mut found = Vec::new();
        let mut at = links.first_with(kind);
        while let Some(id) = at {
            found.push(id.index());
            at = links.next_with(id, kind);
        }
        found
    }

    #[test]
    fn links_have_their_turn_in_the_order_in_which_they_got_work() {
        let mut links = links();
        for (id, kind) in
            [(3, Work::SEND), (1, Work::SEND), (4, Work::POST), (3, Work::ROUTE), (1, Work::SEND)]
        {
            links.mark(LinkId::from_index(id), kind);
        }
        assert_eq!(pass(&mut links, Work::SEND), [3, 1]);
        assert!(pass(&mut links, Work::SEND).is_empty());
        links.forget_idle();
        links.mark(LinkId::from_index(1), Work::ROUTE);
        assert_eq!(pass(&mut links, Work::ROUTE), [3, 1]);
        assert_eq!(pass(&mut links, Work::POST), [4]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Each link with work is found once in a pass, whatever is added and removed in between.
        #[test]
        fn no_work_is_lost_or_done_twice(steps in vec((0u8..5, 0..LINKS, 0u8..5), 0..100)) {
            let mut links = links();
            let mut expected: [BTreeSet<usize>; 5] = Default::default();
            for (step, id, bit) in steps {
                let (kind, at) = (Work(1 << bit), usize::from(id));
                match step {
                    0 | 1 => {
                        links.mark(LinkId::from_index(at), kind);
                        expected[usize::from(bit)].insert(at);
                    }
                    2 => {
                        links.unmark(LinkId::from_index(at), kind);
                        expected[usize::from(bit)].remove(&at);
                    }
                    3 => links.forget_idle(),
                    _ => {
                        let mut found = pass(&mut links, kind);
                        found.sort_unstable();
                        let all: Vec<_> = core::mem::take(&mut expected[usize::from(bit)]).into_iter().collect();
                        prop_assert_eq!(found, all);
                    }
                }
            }
        }
    }
}
