//! Loans: room in a block that the sender fills in place.

use std::ops::{Deref, DerefMut};

use pdbp_core::id::NodeId;
use pdbp_core::outbox::{self, Outcome};

use super::Part;

/// Room for one message in a block ([`Sender::loan`](super::Sender::loan)). Fill it, then [`send`](Self::send) it; dropping it takes
/// the message back.
pub struct Loan<'p> {
    part: &'p Part,
    loan: Option<outbox::Loan>,
}

impl<'p> Loan<'p> {
    /// `node`: to which nothing else may go meanwhile.
    pub(super) fn new(part: &'p Part, loan: outbox::Loan, node: NodeId) -> Self {
        part.loaned.set(Some(node));
        Self { part, loan: Some(loan) }
    }
}

impl Loan<'_> {
    /// Sends the message: it leaves with its block, as after [`Part::send`].
    pub fn send(mut self) {
        self.end(Outcome::Committed);
    }

    fn end(&mut self, outcome: Outcome) {
        let Some(loan) = self.loan.take() else { return };
        self.part.loaned.set(None);
        let before = self.part.lanes.end_loan(loan, outcome);
        debug_assert!(before.is_none(), "nothing was packed for the node meanwhile");
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
