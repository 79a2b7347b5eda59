//! Parts as what carries messages between members.

use std::time::{Duration, Instant};

use pdbp_core::collective::{Carrier, Sent, sender};
use pdbp_core::id::NodeId;

use crate::error::SendError;
use crate::part::{Interest, Message, Part, Target};

/// How long a member that ends waits for room to say so.
const FAREWELL: Duration = Duration::from_secs(1);

/// The part of a member, and those of the others.
pub(super) struct Line {
    part: Part,
    /// `None` as long as a member is not known.
    targets: Vec<Option<Target>>,
    /// Their addresses, and their nodes.
    addresses: Vec<String>,
    nodes: Vec<NodeId>,
}

impl Line {
    pub(super) fn new(part: Part, addresses: Vec<String>, nodes: &[NodeId]) -> Self {
        Self { part, targets: vec![None; addresses.len()], addresses, nodes: nodes.to_vec() }
    }

    pub(super) fn part(&self) -> &Part {
        &self.part
    }

    pub(super) fn address(&self, rank: usize) -> String {
        self.addresses.get(rank).cloned().unwrap_or_default()
    }

    pub(super) fn target(&self, rank: usize) -> Option<Target> {
        self.targets.get(rank).copied().flatten()
    }

    pub(super) fn set_target(&mut self, rank: usize, target: Target) {
        if let Some(place) = self.targets.get_mut(rank) {
            *place = Some(target);
        }
    }

    /// What to wait for where there was no room for a message to a member.
    pub(super) fn room_for(&self, rank: usize) -> Interest {
        self.target(rank).map_or(Interest::Recv, Interest::Either)
    }

    /// Whether the node of a member has failed.
    pub(super) fn has_failed(&self, rank: usize) -> bool {
        let here = self.part.node().id();
        let node = self.nodes.get(rank).copied().filter(|node| *node != here);
        node.is_some_and(|node| self.part.shared().engine().has_failed(node))
    }

    /// Whether a message is of the member that it says it is of. Others are dropped: the part has a name, and anybody can send to it.
    pub(super) fn is_of_member(&self, message: &Message) -> bool {
        sender(message).and_then(|rank| self.target(rank)).is_some_and(|target| target == message.source())
    }

    /// Tells others until all know or a second is over.
    pub(super) fn tell(&mut self, mut tell: impl FnMut(&mut Self) -> bool) {
        let began = Instant::now();
        while !tell(self) && began.elapsed() < FAREWELL {
            // Whoever has no room for it may be waiting for room itself.
            while self.part.try_recv().is_some() {}
            let _ = self.part.wait(Interest::Recv, Duration::from_millis(2));
        }
    }
}

impl Carrier for Line {
    fn try_send(&mut self, to: usize, header: &[u8], data: &[u8]) -> Sent {
        let Some(target) = self.target(to) else { return Sent::Gone };
        let length = header.len() + data.len();
        match self.part.sender(target).no_wait().loan(length) {
            Ok(mut loan) => {
                if let Some((head, body)) = loan.split_at_mut_checked(header.len()) {
                    head.copy_from_slice(header);
                    body.copy_from_slice(data);
                }
                loan.send();
                Sent::Done
            }
            Err(SendError::WouldBlock) => Sent::NoRoom,
            // The node or the part is gone; a piece fits a block, and nobody else lends from this part.
            Err(_) => Sent::Gone,
        }
    }

    fn try_recv(&mut self, take: impl FnOnce(&[u8])) -> bool {
        while let Some(message) = self.part.try_recv() {
            if self.is_of_member(&message) {
                take(&message);
                return true;
            }
        }
        false
    }

    fn flush(&mut self) {
        self.part.flush();
    }
}
