//! Supersteps: one part of each node sends and receives until all are done and everything has arrived.

use super::Endpoint;
use crate::engine::{Superstep, SuperstepError};
use crate::id::PartId;
use crate::outbox::{Due, Staging};
use crate::policy::SpacePolicy;
use crate::transport::Transport;
use crate::umb::BlockMemory;

impl<T: Transport, M: BlockMemory, P: SpacePolicy, W: Staging> Endpoint<'_, T, M, P, W> {
    /// Drives a superstep, in which one part of each node sends and receives. Call this after each [`poll`](Self::poll) until it
    /// returns `false`. `done` states that this part has nothing more to send on its own initiative. The call returns `false` on
    /// every node once all parts are done and everything they had sent before has been received; while anything is left to read,
    /// it returns `true`. Messages sent after `done`, such as answers, arrive in this superstep or in the next one. Messages of
    /// the next superstep cannot be read before this one is over. Streams are not part of supersteps.
    ///
    /// A superstep takes three [barriers](Self::barrier), so all nodes must enter barriers and supersteps in the same order.
    ///
    /// ```
    #[doc = include_str!("../embed/pair.md")]
    /// // Each sends to the other whenever there is room, and reads what has arrived.
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
    /// See [`SuperstepError`]. The next call tries again; until then, messages of the next superstep can be read as well.
    pub fn advance(&mut self, part: PartId, done: bool) -> Result<bool, SuperstepError> {
        let Some((inbox, mut source)) = self.inbox_of(part) else {
            return Err(SuperstepError::NoPipe(part));
        };
        let waiting = inbox.poll(&mut source);
        let before = self.engine.superstep(part);
        if !before.may_advance(done, waiting) {
            return Ok(true);
        }
        if before == Superstep::Open {
            self.packing.outbox().flush(&mut self.engine, Due::All);
        }
        let stage = self.engine.advance_superstep(part);
        if stage != Ok(before) {
            self.pipes.dirty = true;
            if let Some((inbox, _)) = self.inbox_of(part) {
                inbox.withhold(stage.is_ok_and(Superstep::withholds));
            }
        }
        stage.map(|stage| stage != Superstep::Open)
    }

    /// Gives up a superstep that cannot end because a node has failed. Messages of the next one can be read as well. Afterwards
    /// this node shares no supersteps or barriers with the nodes that are waiting for it.
    pub fn leave_superstep(&mut self, part: PartId) {
        self.pipes.dirty = true;
        self.engine.leave_superstep(part);
        if let Some((inbox, _)) = self.inbox_of(part) {
            inbox.withhold(false);
        }
    }
}
