//! Supersteps: all send and receive, until nothing is left.

use super::Endpoint;
use crate::engine::{Superstep, SuperstepError};
use crate::flaw::Flaw;
use crate::id::PartId;
use crate::outbox::Due;
use crate::policy::SpacePolicy;
use crate::transport::Transport;
use crate::umb::BlockMemory;

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Endpoint<'_, T, M, P> {
    /// One turn of a superstep, in which a part of each node sends and receives: call it after each [`poll`](Self::poll), until it says
    /// `false`. `done` says that this part sends nothing more of its own accord. It is `false` everywhere when all parts have said so, and all that
    /// they had sent before has been received: it is `true` as long as there is something to read. What is sent after `done`,
    /// such as an answer to what was received, arrives in this superstep or in the next one. Messages of the next superstep cannot be
    /// read before this one is over. (Streams are no part of supersteps.)
    ///
    /// A superstep takes three [barriers](Self::barrier): all nodes enter these and supersteps in the same order.
    ///
    /// ```
    #[doc = include_str!("../embed/pair.md")]
    /// // Each sends to the other, as often as there is room, and reads what has come.
    /// let (mut sent, mut got, mut over) = ([0; 2], [0; 2], [false; 2]);
    /// while over != [true; 2] {
    ///     step();
    ///     for (i, (host, me, other)) in [(&left, asks, reads), (&right, reads, asks)].into_iter().enumerate() {
    ///         while sent[i] < 100 && host.send(me, other, b"to the other").is_ok() {
    ///             sent[i] += 1;
    ///         }
    ///         while host.recv(me).is_some() {
    ///             got[i] += 1;
    ///         }
    ///         if !over[i] {
    ///             over[i] = !host.advance(me, sent[i] == 100)?;
    ///         }
    ///     }
    /// }
    /// assert_eq!(got, [100; 2]);
    /// # Ok::<(), pdbp_core::embed::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`SuperstepError`]: the next call tries again. Until then what comes can be read, be it of the next superstep.
    pub fn advance(&mut self, part: PartId, done: bool) -> Result<bool, SuperstepError> {
        let Some((inbox, mut source)) = self.source_of(part) else {
            return Err(SuperstepError::NoPipe(part));
        };
        let waiting = inbox.look(&mut source);
        let before = self.engine.superstep(part);
        // In one that is ending, what is not read is of the next.
        let is_left = waiting.message || waiting.stalled && before != Superstep::Ending;
        if is_left && !Flaw::EndsUnread.strikes() {
            return Ok(true);
        }
        if before == Superstep::Open {
            if !done {
                return Ok(true);
            }
            self.outbox.flush(&mut self.engine, Due::All);
        }
        let stage = self.engine.advance_superstep(part);
        if stage != Ok(before) {
            self.pipes.stirred = true;
            if let Some((inbox, _)) = self.source_of(part) {
                inbox.withhold(stage == Ok(Superstep::Ending) && !Flaw::ReadsNext.strikes());
            }
        }
        stage.map(|stage| stage != Superstep::Open)
    }

    /// Gives a superstep up that has no end, since a node has gone: what has come can be read, be it of the next. This node and those that wait
    /// for it have no more supersteps and barriers together.
    pub fn leave_superstep(&mut self, part: PartId) {
        self.pipes.stirred = true;
        self.engine.leave_superstep(part);
        if let Some((inbox, _)) = self.source_of(part) {
            inbox.withhold(false);
        }
    }
}
