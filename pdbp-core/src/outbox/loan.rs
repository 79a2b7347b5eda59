//! Loans: room in a block that the sender fills in place.

use super::{Blocks, Hop, Outbox, SendError};
use crate::cdu::{Packer, Route};
use crate::id::Time;
use crate::umb::OpenBlock;

impl Outbox<'_> {
    /// Lends room for one message in the open block of a lane, to be filled in place. `None` if there is no room or no open
    /// block. The lane has no open block until the loan [ends](Self::end_loan).
    pub fn lend(&mut self, hop: Hop, route: Route, length: usize) -> Option<Loan> {
        let block = self.block(hop).ok()?;
        let before = block.mark();
        block.reserve(route, length).ok()?;
        let (block, since) = self.take(hop.lane)?;
        Some(Loan { block, before, route, length, lane: hop.lane, since })
    }

    /// As [`lend`](Self::lend), but if there is no room, submits the open block and opens another in its place.
    ///
    /// # Errors
    /// See [`SendError`]; nothing was lent.
    pub fn lend_anew(
        &mut self,
        blocks: &mut impl Blocks,
        now: Time,
        hop: Hop,
        (route, length): (Route, usize),
    ) -> Result<Loan, SendError> {
        if let Some(loan) = self.lend(hop, route, length) {
            return Ok(loan);
        }
        if let Some((full, _)) = self.take(hop.lane) {
            blocks.submit(full);
        }
        let mut block = blocks.open(hop.dest)?;
        let before = block.mark();
        if block.reserve(route, length).is_err() {
            blocks.submit(block);
            return Err(SendError::TooLong);
        }
        Ok(Loan { block, before, route, length, lane: hop.lane, since: now })
    }

    /// Ends a loan: makes its block the lane's open block again, with or without the message. Returns the block that the lane
    /// acquired in the meantime, if any.
    #[must_use = "a block that is not submitted is lost to the pool"]
    pub fn end_loan(&mut self, loan: Loan, outcome: Outcome) -> Option<OpenBlock> {
        let Loan { mut block, before, lane, since, .. } = loan;
        if outcome == Outcome::Undone {
            block.rewind(before);
        }
        self.put(lane, block, since)
    }
}

/// Room for one message in a block, lent by [`Outbox::lend`].
#[derive(Debug)]
#[must_use = "a loan that is not ended takes its block along"]
pub struct Loan {
    block: OpenBlock,
    before: Packer,
    route: Route,
    length: usize,
    lane: usize,
    since: Time,
}

/// What becomes of a loan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The message is sent with its block.
    Committed,
    /// The message is dropped.
    Undone,
}

impl Loan {
    /// When its block was opened.
    pub fn since(&self) -> Time {
        self.since
    }

    /// The bytes of the message.
    pub fn bytes(&self) -> &[u8] {
        self.block.last_reserved(self.length)
    }

    /// The bytes of the message, to be filled in.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // Repeats the reservation at the same place; bytes already written stay.
        self.block.rewind(self.before);
        self.block.reserve(self.route, self.length).unwrap_or(&mut [])
    }
}
