//! Counters of the desk.

use std::sync::Arc;

use super::fault::Reason;
use crate::http::{Count, Counts};

/// Counters of the replies of a [`Desk`](super::Desk) since it started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeskStats {
    /// Connections accepted.
    pub connections: u64,
    /// Requests refused with an HTTP status before their envelope was read: malformed, without the secret, no free place, too
    /// large, or too slow.
    pub refused: u64,
    /// Connections closed because they made no progress in time, or had no request for too long.
    pub expired: u64,
    /// Silent connections whose place was given to another client.
    pub displaced: u64,
    /// Messages sent (`Send`).
    pub sent: u64,
    /// Calls answered (`Call`).
    pub called: u64,
    /// Mailboxes opened (`OpenMailbox`).
    pub opened: u64,
    /// Messages of mailboxes that clients have confirmed (`Receive`).
    pub received: u64,
    /// Messages that were in a mailbox when it was closed.
    pub discarded: u64,
    faults: [u64; Reason::ALL.len()],
}

impl DeskStats {
    /// Faults returned to clients, by reason.
    pub fn faults(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Reason::ALL.iter().zip(self.faults).map(|(reason, count)| (reason.name(), count))
    }
}

/// Counted by the desk's thread.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) sent: Count,
    pub(super) called: Count,
    pub(super) opened: Count,
    pub(super) received: Count,
    pub(super) discarded: Count,
    faults: [Count; Reason::ALL.len()],
}

impl Done {
    pub(super) fn fault(&self, reason: Reason) {
        if let Some(count) = self.faults.get(reason as usize) {
            count.add();
        }
    }

    pub(super) fn stats(self: &Arc<Self>, counts: &Counts) -> DeskStats {
        DeskStats {
            connections: counts.connections.get(),
            refused: counts.refused.get(),
            expired: counts.expired.get(),
            displaced: counts.displaced.get(),
            sent: self.sent.get(),
            called: self.called.get(),
            opened: self.opened.get(),
            received: self.received.get(),
            discarded: self.discarded.get(),
            faults: self.faults.each_ref().map(Count::get),
        }
    }
}
