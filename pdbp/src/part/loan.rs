//! Loans: space in a block that the sender fills in place.

use std::ops::{Deref, DerefMut};

use pdbp_core::cdu::CduClass;
use pdbp_core::outbox::{self, Hop, Outcome};
use pdbp_local::Copier;

use super::sending::Patience;
use super::{HoldsPart, Target};
use crate::error::SendError;

/// Space for one message, from [`Sender::loan`](super::Sender::loan). Fill it, then [`send`](Self::send) it. Dropping it sends
/// nothing.
pub struct Loan<P: HoldsPart> {
    part: P,
    loan: Option<outbox::Loan>,
    /// Filled instead, and copied past the caches when it is sent.
    staged: Option<Vec<u8>>,
}

impl<P: HoldsPart> Loan<P> {
    /// As [`Sender::loan`](super::Sender::loan), for a loan that holds its part by `Rc` or `&mut`.
    ///
    /// # Errors
    /// As there.
    pub fn new(part: P, to: Target, length: usize) -> Result<Self, SendError> {
        Self::take(part, to, length, Patience::Set)
    }

    pub(super) fn take(holder: P, to: Target, length: usize, patience: Patience) -> Result<Self, SendError> {
        let part = holder.part();
        let limit = part.longest();
        if length > limit {
            return Err(SendError::LoanTooLong { bytes: length, limit });
        }
        part.await_target(to, patience)?;
        if let Some(node) = part.loaned.get() {
            return Err(SendError::Loaned(node));
        }
        let route = part.route(to, CduClass::ShortMessage, 0);
        let hop = Hop::to_node(to.node());
        let loan = match part.lanes.with(|outbox| outbox.lend(hop, route, length)) {
            Some(loan) => loan,
            None => part.when_room((to.node(), length), patience, None, |engine, now| {
                part.lanes.with(|outbox| outbox.lend_anew(engine, now, hop, (route, length)))
            })?,
        };
        part.loaned.set(Some(to.node()));
        let is_staged = length >= Copier::LONG && part.shared().is_read_remotely(to.node());
        let staged = is_staged.then(|| {
            let mut bytes = part.lent.take();
            bytes.resize(length, 0);
            bytes
        });
        Ok(Self { part: holder, loan: Some(loan), staged })
    }

    /// Sends the message. As after [`Part::send`](super::Part::send), it leaves with its block.
    pub fn send(mut self) {
        self.end(Outcome::Committed);
    }

    fn end(&mut self, outcome: Outcome) {
        let Some(mut loan) = self.loan.take() else { return };
        let part = self.part.part();
        if let Some((bytes, node)) = self.staged.take().zip(part.loaned.take()) {
            if outcome == Outcome::Committed {
                part.copying(node, bytes.len(), |copy| copy.copy(loan.bytes_mut(), &bytes));
            }
            part.lent.set(bytes);
        }
        part.loaned.set(None);
        let before = part.lanes.end_loan(loan, outcome);
        debug_assert!(before.is_none(), "nothing was packed for the node meanwhile");
        before.into_iter().for_each(|block| part.shared().engine().submit(block));
    }
}

impl<P: HoldsPart> Deref for Loan<P> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.staged {
            Some(bytes) => bytes,
            None => self.loan.as_ref().map_or(&[], |loan| loan.bytes()),
        }
    }
}

impl<P: HoldsPart> DerefMut for Loan<P> {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.staged {
            Some(bytes) => bytes,
            None => self.loan.as_mut().map_or(&mut [], |loan| loan.bytes_mut()),
        }
    }
}

impl<P: HoldsPart> Drop for Loan<P> {
    fn drop(&mut self) {
        self.end(Outcome::Undone);
    }
}
