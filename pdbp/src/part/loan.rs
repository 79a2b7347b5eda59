//! Loans: room in a block that the sender fills in place.

use std::ops::{Deref, DerefMut};

use pdbp_core::OpenBlock;
use pdbp_core::cdu::{CduClass, Packer, Route};

use super::sending::Patience;
use super::{Part, Target};
use crate::error::SendError;

/// Room for one message in a block. Fill it, then [`send`](Self::send) it; dropping it takes the message back. The part is
/// borrowed meanwhile, so that nothing it sends can overtake the messages packed before.
pub struct Loan<'p> {
    part: &'p mut Part,
    block: Option<OpenBlock>,
    before: Packer,
    route: Route,
    length: usize,
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
        self.check_target(to)?;
        let route = self.route(to, CduClass::ShortMessage, 0);
        let fits = |block: &mut OpenBlock| {
            let before = block.mark();
            let fits = block.reserve(route, length).is_ok();
            block.rewind(before);
            fits
        };
        let mut block = match self.lanes.with_block(to.node(), fits) {
            Some(true) => self.lanes.take(to.node()),
            _ => None,
        };
        if block.is_none() {
            block = Some(self.open_block(to.node(), patience)?.0);
        }
        let mut before = Packer::new();
        if let Some(block) = &mut block {
            before = block.mark();
            let reserved = block.reserve(route, length).is_ok();
            debug_assert!(reserved, "an empty block has room for `longest` bytes");
        }
        Ok(Loan { part: self, block, before, route, length })
    }
}

impl Loan<'_> {
    /// Sends the message: it leaves with its block, as after [`Part::send`].
    pub fn send(mut self) {
        if let Some(block) = self.block.take() {
            self.put_back(block);
        }
    }

    fn put_back(&self, block: OpenBlock) {
        let before = self.part.lanes.put(block, self.part.shared().now());
        debug_assert!(before.is_none(), "the part was borrowed, so nobody filled its lane");
    }
}

impl Deref for Loan<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.block.as_ref().map_or(&[], |b| b.last_reserved(self.length))
    }
}

impl DerefMut for Loan<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        let (before, route, length) = (self.before, self.route, self.length);
        let Some(block) = &mut self.block else { return &mut [] };
        // The same reservation again, at the same place: the bytes written before stay.
        block.rewind(before);
        block.reserve(route, length).unwrap_or(&mut [])
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        if let Some(mut block) = self.block.take() {
            block.rewind(self.before);
            self.put_back(block);
        }
    }
}
