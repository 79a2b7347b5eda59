//! Loans: room in a block that the sender fills in place.

use std::ops::{Deref, DerefMut};

use pdbp_core::cdu::CduClass;
use pdbp_core::outbox::{self, Hop, Outbox, Outcome};

use super::sending::Patience;
use super::{Part, Target};
use crate::error::SendError;

/// Room for one message in a block. Fill it, then [`send`](Self::send) it; dropping it takes the message back. The part is
/// borrowed meanwhile, so that nothing it sends can overtake the messages packed before.
pub struct Loan<'p> {
    part: &'p mut Part,
    loan: Option<outbox::Loan>,
}

impl Part {
    /// Gives out room for a message of `length` bytes, to be filled in place: no copy at all. The bytes are whatever the block
    /// held before. Waits for room like [`send`](Self::send).
    ///
    /// # Errors
    /// [`SendError::LoanTooLong`] when it does not fit a block ([`longest`](Self::longest)); else as `send`.
    pub fn loan(&mut self, to: Target, length: usize) -> Result<Loan<'_>, SendError> {
        self.loan_with(to, length, self.patience())
    }

    /// As [`loan`](Self::loan), without waiting.
    ///
    /// # Errors
    /// [`SendError::WouldBlock`] when there is no room.
    pub fn try_loan(&mut self, to: Target, length: usize) -> Result<Loan<'_>, SendError> {
        self.loan_with(to, length, Patience::None)
    }

    fn loan_with(&mut self, to: Target, length: usize, patience: Patience) -> Result<Loan<'_>, SendError> {
        let limit = self.longest();
        if length > limit {
            return Err(SendError::LoanTooLong { bytes: length, limit });
        }
        let route = self.route(to, CduClass::ShortMessage, 0);
        let hop = Hop::to_node(to.node());
        let loan = match self.lanes.with(|outbox| outbox.lend(hop, route, length)) {
            Some(loan) => loan,
            None => {
                let (block, now) = self.open_block(to.node(), patience)?;
                Outbox::lend_in(block, hop, (route, length), now).map_err(|vacant| {
                    self.shared().engine().submit(vacant);
                    SendError::LoanTooLong { bytes: length, limit }
                })?
            }
        };
        Ok(Loan { part: self, loan: Some(loan) })
    }
}

impl Loan<'_> {
    /// Sends the message: it leaves with its block, as after [`Part::send`].
    pub fn send(mut self) {
        self.end(Outcome::Committed);
    }

    fn end(&mut self, outcome: Outcome) {
        let before = self.loan.take().and_then(|loan| self.part.lanes.end_loan(loan, outcome));
        debug_assert!(before.is_none(), "the part was borrowed, so nobody filled its lane");
        before.into_iter().for_each(|block| self.part.shared().engine().submit(block));
    }
}

impl Deref for Loan<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.loan.as_ref().map_or(&[], |loan| loan.bytes())
    }
}

impl DerefMut for Loan<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.loan.as_mut().map_or(&mut [], |loan| loan.bytes_mut())
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        self.end(Outcome::Undone);
    }
}
