//! A call that is under way.

use std::time::{Duration, Instant};

use pdbp_core::collective::{Data, Fault, Polled, Running};

use super::{Call, Group, GroupError, Request, fail};
use crate::error::RecvError;

/// How long a member waits before it looks whether the one it waits for is still there.
const LOOK: Duration = Duration::from_millis(20);

/// A call under way ([`Group::start`]). It borrows the group and the data until its end; dropped before that it has given the call up,
/// which ends the group.
#[must_use = "it has to be polled until it is done"]
pub struct Started<'g> {
    group: &'g mut Group,
    request: Request<'g>,
    running: Running,
    is_done: bool,
}

impl<'g> Started<'g> {
    pub(super) fn begin(group: &'g mut Group, mut request: Request<'g>) -> Result<Self, GroupError> {
        match request.start(&mut group.member) {
            Ok(running) => Ok(Self { group, request, running, is_done: false }),
            Err(e) => Err(GroupError::from_start(e, group)),
        }
    }

    /// Goes on as far as it can without waiting; whether it is done.
    ///
    /// # Errors
    /// See [`GroupError`]; never [`GroupError::TimedOut`].
    pub fn poll(&mut self) -> Result<bool, GroupError> {
        Ok(self.advance()? == Polled::Done)
    }

    /// Waits until it is done, as long as something moves once in this time.
    ///
    /// # Errors
    /// See [`GroupError`]. After [`GroupError::Interrupted`] it may be called again.
    pub fn wait(&mut self, patience: Duration) -> Result<(), GroupError> {
        // When it was first seen that nothing moves any more.
        let mut since = None;
        let mut moved = self.moved();
        let (mut is_shown, mut idle) = (false, 0);
        loop {
            let (is_full, rank) = match self.advance()? {
                Polled::Done => return Ok(()),
                Polled::Waits(rank) => (false, rank),
                Polled::Full(rank) => (true, rank),
            };
            let now = self.moved();
            if now != moved {
                (moved, since, is_shown, idle) = (now, None, false, 0);
            }
            // The clock is read by who has waited for a while.
            if self.group.line.linger(rank, idle) {
                idle += 1;
                continue;
            }
            let since = *since.get_or_insert_with(Instant::now);
            let waited = since.elapsed();
            if waited >= patience {
                return Err(self.time_out(rank, patience));
            }
            match self.group.line.sleep(rank, is_full, LOOK.min(patience.saturating_sub(waited))) {
                Ok(()) => {}
                Err(RecvError::Interrupted) => return Err(GroupError::Interrupted),
                // The part keeps its pipe as long as the group lives, so that it is the time.
                Err(_) => {
                    if !is_shown {
                        is_shown = self.show();
                    }
                    self.look_for(rank)?;
                }
            }
        }
    }

    /// What is called; of a tagged message nothing but its length.
    pub fn what(&self) -> Call {
        *self.running.call()
    }

    fn advance(&mut self) -> Result<Polled, GroupError> {
        if self.is_done {
            return Ok(Polled::Done);
        }
        let Self { group, request, running, .. } = self;
        let fold = request.fold.as_mut().map(|fold| &mut **fold as _);
        let mut data = Data { input: request.input, output: &mut *request.output, fold };
        let polled = running.poll(&mut group.member, &mut group.line, &mut data);
        let polled = polled.map_err(|fault| self.end(fault))?;
        self.is_done = polled == Polled::Done;
        Ok(polled)
    }

    /// Messages with data that have gone or come.
    fn moved(&self) -> u64 {
        let stats = self.group.member.stats();
        stats.messages + stats.received + stats.early
    }

    fn show(&mut self) -> bool {
        let Group { line, member, .. } = &mut *self.group;
        self.running.show(member, line)
    }

    /// Whether the node of a member that is waited for has failed. What it had sent before has been taken by then, or comes now.
    fn look_for(&mut self, rank: usize) -> Result<(), GroupError> {
        if !self.group.line.has_failed(rank) {
            return Ok(());
        }
        let moved = self.moved();
        match self.advance()? {
            Polled::Waits(still) | Polled::Full(still) if still == rank && moved == self.moved() => {
                Err(self.end(Fault::Lost { rank }))
            }
            _ => Ok(()),
        }
    }

    fn time_out(&mut self, rank: usize, waited: Duration) -> GroupError {
        let call = self.what();
        match fail(self.group, Fault::TimedOut { rank }) {
            Fault::TimedOut { rank } => {
                GroupError::TimedOut { rank, address: self.group.line.address(rank), waited, call }
            }
            other => GroupError::from_fault(other, self.group),
        }
    }

    fn end(&mut self, fault: Fault) -> GroupError {
        let fault = fail(self.group, fault);
        GroupError::from_fault(fault, self.group)
    }
}

impl Drop for Started<'_> {
    fn drop(&mut self) {
        if !self.is_done && self.group.member.fault().is_none() {
            fail(self.group, Fault::GivenUp);
        }
    }
}

impl std::fmt::Debug for Started<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Started({} of {:?})", self.what(), self.group)
    }
}
