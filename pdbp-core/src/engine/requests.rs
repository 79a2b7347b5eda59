//! The changes of the tables that this node requests from the primary, one at a time.

use heapless::Deque;

use super::{Engine, Event, LocalPart, PrivatePipes};
use crate::agreement::Change;
use crate::id::{NodeId, PartId};
use crate::policy::SpacePolicy;
use crate::tables::recurs;
use crate::transport::Transport;
use crate::umb::BlockMemory;

/// Maximum number of waiting requests.
const REQUESTS: usize = 32;

/// Waiting requests, and the one in progress.
#[derive(Debug, Default)]
pub(super) struct Requests {
    waiting: Deque<Change, REQUESTS>,
    /// The request in progress: its number, and its kind.
    in_progress: Option<(u32, RequestKind)>,
    /// Whether this node is in the table of nodes.
    introduced: bool,
    /// The next part to register anew after this node was not a member for a while.
    reregister: Option<u16>,
}

/// What was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestKind {
    /// The node's own row.
    Introduction,
    /// The first of the waiting requests.
    First,
    /// A part that was registered before.
    Reregistration(u16),
    /// The same, but the node was expelled again since, so its answer may be about a registration that is forgotten.
    Outdated,
}

impl Requests {
    /// Whether something is left to request and no request is in progress.
    pub(super) fn is_busy(&self) -> bool {
        let wants = !self.introduced || self.reregister.is_some() || !self.waiting.is_empty();
        wants && self.in_progress.is_none()
    }

    /// Makes this node, which was expelled, register its parts anew when it is readmitted.
    pub(super) fn reregister(&mut self) {
        self.reregister = Some(0);
        if let Some((_, kind @ RequestKind::Reregistration(_))) = &mut self.in_progress {
            *kind = RequestKind::Outdated;
        }
    }
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Whether this node is in the table of nodes, all members are too, so that names can be used, and this node knows which
    /// barrier comes next.
    pub fn is_ready(&self) -> bool {
        let known = |(i, entry): (usize, &Option<_>)| {
            entry.is_some() || !self.agreement.is_member(NodeId::from_index(i))
        };
        self.requests.introduced
            && self.barrier.is_known()
            && self.tables.nodes.iter().take(usize::from(self.config.nodes)).enumerate().all(known)
    }

    /// Queues a request for a change of PTA.
    pub(super) fn request(&mut self, change: Change) -> Result<(), Change> {
        self.requests.waiting.push_back(change)?;
        self.control_dirty = true;
        Ok(())
    }

    /// Requests the next change that this node needs.
    pub(super) fn submit_next(&mut self) {
        if self.requests.in_progress.is_some() || self.agreement.is_requesting() {
            return;
        }
        let (change, in_progress) = if !self.requests.introduced {
            (
                Change::NodeUp(self.config.entry(self.transport.life(self.config.node))),
                RequestKind::Introduction,
            )
        } else if let Some((local, change)) = self.next_reregistration() {
            (change, RequestKind::Reregistration(local))
        } else if let Some(change) = self.requests.waiting.front().cloned() {
            (change, RequestKind::First)
        } else {
            return;
        };
        if let Ok(number) = self.agreement.request(change) {
            self.requests.in_progress = Some((number, in_progress));
        }
    }

    fn next_reregistration(&mut self) -> Option<(u16, Change)> {
        let from = self.requests.reregister.filter(|_| self.agreement.is_member(self.config.node))?;
        let found = self.parts.next_known(from).map(|(i, entry)| (i, Change::PartAdded(entry.clone())));
        // Once, after all slots.
        let found = found.or_else(|| {
            let row = self.parts.nameless.known_row(self.config.node).filter(|_| from < u16::MAX);
            row.map(|row| (u16::MAX, Change::PartAdded(row)))
        });
        if found.is_none() {
            self.requests.reregister = None;
        }
        found
    }

    /// Handles the primary's answer.
    pub(super) fn on_answer(&mut self, number: u32, accepted: bool, pipes: &mut impl PrivatePipes) {
        let Some((_, in_progress)) = self.requests.in_progress.take_if(|(n, _)| *n == number) else { return };
        let (part, state) = match in_progress {
            RequestKind::Introduction => {
                self.requests.introduced = true;
                return;
            }
            RequestKind::Outdated => return,
            RequestKind::Reregistration(local) => {
                self.requests.reregister = self.requests.reregister.map(|_| local.saturating_add(1));
                if accepted {
                    return;
                }
                match self.parts.entry(local) {
                    _ if local == u16::MAX => (PartId::node_itself(self.config.node), LocalPart::Refused),
                    Some(entry) => (entry.id, LocalPart::Refused),
                    None => return,
                }
            }
            RequestKind::First => match self.requests.waiting.pop_front() {
                Some(Change::PartAdded(entry)) if accepted => (entry.id, LocalPart::Registered),
                Some(Change::PartAdded(entry)) => (entry.id, LocalPart::Refused),
                Some(Change::PartRemoved(id)) => (id, LocalPart::Free),
                _ => return,
            },
        };
        if part.local() == PartId::NODE {
            self.parts.nameless.state = state;
        } else if let Some(place) = self.parts.get_mut(part.local()) {
            place.state = state;
        }
        self.parts.recurrence_known |= recurs(part) && state == LocalPart::Registered;
        pipes.event(Event::Changed { part, accepted });
    }
}
