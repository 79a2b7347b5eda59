//! The links of a node, found by number or by peer.

use managed::ManagedSlice;

use super::Link;
use super::work::WorkList;
use crate::id::NodeId;
use crate::routing::{LinkId, Topology};

/// All links of a node, including the one to itself, and where they lead.
pub(in crate::engine) struct Links<'a> {
    rows: ManagedSlice<'a, Link>,
    pub(in crate::engine) topology: Topology,
    /// The node's link to itself.
    pub(in crate::engine) own: LinkId,
    /// The links that have work.
    pub(super) work: WorkList,
    /// Whether a link may have changed since [`mark_clean`](Self::mark_clean).
    dirty: bool,
}

impl<'a> Links<'a> {
    /// As many links as `rows` has entries, all initialised.
    pub(in crate::engine) fn new(mut rows: ManagedSlice<'a, Link>, topology: Topology) -> Self {
        for (i, link) in rows.iter_mut().enumerate() {
            let id = LinkId::from_index(i);
            *link = Link::new(id, topology.node(id));
        }
        Self { rows, topology, own: topology.link(topology.own()), work: WorkList::default(), dirty: true }
    }

    pub(in crate::engine) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Number of links to other nodes.
    pub(in crate::engine) fn peers(&self) -> u32 {
        (self.rows.len() as u32).saturating_sub(1)
    }

    /// Number of links to other nodes with posted arrival at this node.
    pub(in crate::engine) fn posted_peers(&self) -> u32 {
        self.iter().filter(|link| link.posted && link.id != self.own).count() as u32
    }

    /// The numbers of all links.
    pub(in crate::engine) fn ids(&self) -> impl Iterator<Item = LinkId> + use<> {
        (0..self.rows.len()).map(LinkId::from_index)
    }

    #[inline]
    pub(in crate::engine) fn get(&self, id: LinkId) -> Option<&Link> {
        self.rows.get(id.index())
    }

    #[inline]
    pub(in crate::engine) fn get_mut(&mut self, id: LinkId) -> Option<&mut Link> {
        self.dirty = true;
        self.rows.get_mut(id.index())
    }

    /// As [`get_mut`](Self::get_mut), for a data block that arrives, is read, or comes back. With in-place arrival, none of this
    /// requires a control block, so the next poll need not check the links for one.
    #[inline]
    pub(in crate::engine) fn data_mut(&mut self, id: LinkId) -> Option<&mut Link> {
        let link = self.rows.get_mut(id.index())?;
        self.dirty |= link.posted;
        Some(link)
    }

    /// Notes that a link obtained by [`data_mut`](Self::data_mut) has changed in other ways.
    pub(in crate::engine) fn mark_dirty(&mut self) {
        self.dirty = true;
    }

    /// Whether a link may have changed since [`mark_clean`](Self::mark_clean): write access to one has been given out.
    #[inline]
    pub(in crate::engine) fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// Notes that the links have been checked in their current state.
    #[inline]
    pub(in crate::engine) fn mark_clean(&mut self) {
        self.dirty = false;
    }

    /// The number of the link to a node; [`LinkId::NONE`] if there is none.
    #[inline]
    pub(in crate::engine) fn id(&self, peer: NodeId) -> LinkId {
        self.topology.link(peer)
    }

    /// The node at the other end of a link.
    #[inline]
    pub(in crate::engine) fn peer(&self, id: LinkId) -> NodeId {
        self.topology.node(id)
    }

    /// The link to a node.
    #[inline]
    pub(in crate::engine) fn to(&self, peer: NodeId) -> Option<&Link> {
        self.get(self.id(peer))
    }

    #[inline]
    pub(in crate::engine) fn to_mut(&mut self, peer: NodeId) -> Option<&mut Link> {
        self.get_mut(self.id(peer))
    }

    pub(in crate::engine) fn own_mut(&mut self) -> Option<&mut Link> {
        self.get_mut(self.own)
    }

    #[inline]
    pub(in crate::engine) fn iter(&self) -> impl Iterator<Item = &Link> {
        self.rows.iter()
    }

    pub(in crate::engine) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Link> {
        self.dirty = true;
        self.rows.iter_mut()
    }

    /// The links in a range of numbers.
    pub(in crate::engine) fn range(&self, range: core::ops::Range<usize>) -> &[Link] {
        self.rows.get(range).unwrap_or(&[])
    }

    /// Number of blocks submitted for a node that have not come back, on the link by which they leave.
    pub(in crate::engine) fn backlog(&self, peer: NodeId) -> u32 {
        let next = self.topology.relay_to(peer).unwrap_or(peer);
        self.to(next).map_or(0, |link| link.send.space.used().saturating_sub(link.send.open))
    }

    /// Whether blocks arrive over a link in blocks posted by this node.
    pub(in crate::engine) fn is_posted(&self, id: LinkId) -> bool {
        self.get(id).is_some_and(|link| link.posted)
    }

    /// Whether a link carries data.
    #[inline]
    pub(in crate::engine) fn is_up(&self, id: LinkId) -> bool {
        self.get(id).is_some_and(Link::is_up)
    }
}
