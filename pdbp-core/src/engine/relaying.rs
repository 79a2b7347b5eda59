//! Two-hop routing: the link by which a message leaves, and the relay's handling of other nodes' messages.
//!
//! A relay does not put a CDU for another node into a pipe. It copies the CDU into an open block for messages to that node, so
//! that messages of many sources share blocks on their second hop; a command gets an urgent block of its own. If there is no
//! room, the arrived block waits in its row of RM, as for a full private pipe: its credit stays with this node, so the source
//! waits, nothing is lost, and nothing is overtaken. See [`routing`](crate::routing) for why this cannot deadlock, and `circuits`
//! for streams.

use super::receiving::{Cursor, Routed};
use super::{Engine, Event, OpenError, PrivatePipes};
use crate::cdu::{Full, Malformed, Train, Via};
use crate::id::NodeId;
use crate::policy::SpacePolicy;
use crate::routing::{LinkId, Topology};
use crate::transport::Transport;
use crate::umb::{BlockMemory, OpenBlock};

/// Where an arrived CDU goes from here.
pub(super) enum NextHop {
    /// To parts of this node; holds the sending node.
    Here(NodeId),
    /// To another node; this one is the relay.
    Relay(Via),
    /// Nowhere: this node is neither its destination nor its relay.
    Invalid,
}

impl Topology {
    /// Returns the next hop of CDUs that arrived from the node `from` with this extension.
    #[inline]
    pub(super) fn next_hop(&self, via: Option<Via>, from: NodeId) -> NextHop {
        match via {
            None => NextHop::Here(from),
            Some(via) => self.next_hop_via(via, from),
        }
    }

    fn next_hop_via(&self, via: Via, from: NodeId) -> NextHop {
        let Via { origin, dest } = via;
        let relay = self.relay(origin, dest);
        if dest == self.own() && relay == Some(from) {
            return NextHop::Here(origin);
        }
        if origin == from && relay == Some(self.own()) { NextHop::Relay(via) } else { NextHop::Invalid }
    }
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Returns the link by which messages for a node leave, and the extension they need if that link leads to a relay.
    #[inline]
    pub(super) fn first_hop(&self, dest: NodeId) -> Result<(LinkId, Option<Via>), OpenError> {
        let id = self.links.id(dest);
        if !self.links.topology.is_grid() || id != LinkId::NONE {
            return Ok((id, None));
        }
        self.hop_by_relay(dest)
    }

    #[inline(never)]
    fn hop_by_relay(&self, dest: NodeId) -> Result<(LinkId, Option<Via>), OpenError> {
        let relay = self.links.topology.relay_to(dest).ok_or(OpenError::NoSuchNode(dest))?;
        if !self.agreement.is_member(dest) {
            return Err(OpenError::PeerFailed(dest));
        }
        Ok((self.links.id(relay), Some(Via { origin: self.config.node, dest })))
    }

    /// Whether messages for the node go through a relay.
    pub fn is_relayed(&self, dest: NodeId) -> bool {
        self.relay_to(dest).is_some()
    }

    /// Returns the relay for messages to a node; `None` if there is a link.
    pub fn relay_to(&self, dest: NodeId) -> Option<NodeId> {
        self.links.topology.relay_to(dest)
    }

    /// Forwards a train, which is `bytes` of the arrived block, as long as there is room. `to.served` counts the messages already
    /// forwarded.
    pub(super) fn relay_train(
        &mut self,
        (train, bytes): (&Train<'_>, &[u8]),
        via: Via,
        urgent: bool,
        to: &mut Cursor,
        pipes: &mut impl PrivatePipes,
    ) -> Routed {
        let id = self.links.id(via.dest);
        let now = self.now;
        while (to.served as u64) < u64::from(train.count()) {
            if !self.links.is_up(id) {
                let left = u64::from(train.count()).saturating_sub(to.served as u64);
                self.drop_relayed(via, left as u32, pipes);
                break;
            }
            let open = if urgent { None } else { self.relayed.take(id.index()) };
            let had = open.is_some();
            let Some((mut block, since)) = open.or_else(|| Some((self.open_row(id, via.dest).ok()?, now)))
            else {
                return Routed::Blocked;
            };
            let before = to.served;
            let copied = block.copy_train(train, bytes, via, &mut to.served);
            self.counters.relayed += (to.served - before) as u64;
            if urgent {
                self.submit(block.into_urgent());
            } else if copied.is_ok() || !had {
                let before = self.relayed.put(id.index(), block, since);
                debug_assert!(before.is_none(), "it was taken above");
                before.into_iter().for_each(|block| self.submit(block));
            } else {
                self.submit(block);
            }
            if copied.is_err() && !had && to.served == before {
                // Too long for this node's blocks: the sender's are larger.
                self.counters.malformed += 1;
                pipes.event(Event::Malformed { peer: via.origin, reason: Malformed::Length });
                break;
            }
        }
        to.served = 0;
        Routed::Done
    }

    /// Drops messages of another node that cannot be forwarded because the link to their destination has failed.
    pub(super) fn drop_relayed(&mut self, via: Via, messages: u32, pipes: &mut impl PrivatePipes) {
        self.counters.relay_lost += u64::from(messages);
        pipes.event(Event::NotForwarded { source: via.origin, dest: via.dest, messages });
    }
}

impl OpenBlock {
    /// Appends the messages of a train from number `served` on, as many as there is room for, and counts them.
    fn copy_train(
        &mut self,
        train: &Train<'_>,
        bytes: &[u8],
        via: Via,
        served: &mut usize,
    ) -> Result<(), Full> {
        let Self { raw, packer, .. } = self;
        packer.turn(Some(via));
        let Some(route) = train.plain_route() else {
            packer.copy(raw.body_mut(), bytes, train.count())?;
            *served = train.count() as usize;
            return Ok(());
        };
        let length = train.length();
        while *served < train.count() as usize {
            let left = train.count() - *served as u32;
            let (room, messages) = packer.reserve_train(raw.body_mut(), route, length, left)?;
            let from = train.data().get(*served * length..).unwrap_or(&[]);
            room.copy_from_slice(from.get(..room.len()).ok_or(Full)?);
            *served += messages as usize;
        }
        Ok(())
    }
}
