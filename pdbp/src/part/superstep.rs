//! Supersteps, in which all parts send and receive, and calls that receive while they wait.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use pdbp_core::engine::{self, SuperstepError};

use super::inbox::Source;
use super::{Message, Part, Share, Target};
use crate::error::{RecvError, SendError};
use crate::node::{Waiter, has_lost_all_masters};

/// The state of a part's superstep, as last reported by the engine.
#[derive(Default)]
pub(super) struct Superstep {
    stage: Cell<engine::Superstep>,
    /// Times the wait since something was received or the state changed.
    waiter: RefCell<Option<Waiter>>,
}

impl From<SuperstepError> for RecvError {
    fn from(error: SuperstepError) -> Self {
        match error {
            SuperstepError::PeerFailed(node) => Self::PeerFailed(node),
            SuperstepError::NoPipe(_) => Self::NoPipe,
            _ => Self::SuperstepTaken,
        }
    }
}

/// Messages that are received between two looks whether a wait is over.
const SERVED: usize = 64;

impl<S: Share> Part<S> {
    /// Drives a loop in which one part of each node sends and receives: `while part.advance(done)? { … }`. `done` means that this part has
    /// nothing more to send on its own initiative. The loop ends on all nodes once all parts are done and have received everything that was
    /// sent before. In the loop, call [`try_recv`](Self::try_recv) or [`try_recv_batch`](Self::try_recv_batch) until it returns `None`, to make
    /// room for others: while a part leaves a message of the superstep unread, its `advance` keeps returning true, and the loops of the others
    /// do not end. A call returns at once, except that it waits briefly if this part is done and has nothing to receive.
    ///
    /// Messages sent after `done`, such as answers to requests, arrive in this superstep or the next, so a program of requests and answers
    /// needs two loops, the second with `advance(true)`. Messages of the next superstep are not received in this one. Streams are not part of
    /// supersteps.
    ///
    /// ```
    /// use pdbp::{Cluster, PartKind, SendError};
    /// use std::time::Duration;
    ///
    /// let counts = Cluster::local(2)?.run(|node| {
    ///     let part = node.register("worker", PartKind::Cpu).unwrap();
    ///     let workers = ["worker@node0", "worker@node1"];
    ///     let workers = workers.map(|name| part.find(name, Duration::from_secs(5)).unwrap());
    ///     let (mut sent, mut counts) = (0, [0; 8]);
    ///     while part.advance(sent == 1000).unwrap() {
    ///         while sent < 1000 {
    ///             let bin = sent * 7 % 16; // the first bit is the node, the others are the index of the bin there
    ///             match part.try_send_value(workers[bin % 2], &(bin / 2)) {
    ///                 Ok(()) => sent += 1,
    ///                 Err(SendError::WouldBlock) => break,
    ///                 Err(e) => panic!("{e}"),
    ///             }
    ///         }
    ///         while let Some(message) = part.try_recv() {
    ///             counts[message.value::<usize>().unwrap()] += 1;
    ///         }
    ///     }
    ///     counts.iter().sum::<usize>()
    /// });
    /// assert_eq!(counts.iter().sum::<usize>(), 2000);
    /// # Ok::<(), pdbp::StartError>(())
    /// ```
    ///
    /// A superstep takes three [barriers](crate::Node::barrier), so all nodes must call barriers and supersteps in the same order.
    ///
    /// # Errors
    /// [`RecvError::PeerFailed`] if a node failed before it was done; [`RecvError::SuperstepTaken`] if another part of this node is in a
    /// superstep; [`RecvError::Timeout`], with the nodes that are not done, if this part is done and nothing has happened for the time of the
    /// setting `timeout_ms`; [`RecvError::Interrupted`], and [`RecvError::NoPipe`]. The next call tries again; until then, messages of the next
    /// superstep can be received as well.
    pub fn advance(&self, done: bool) -> Result<bool, RecvError> {
        let pipe = self.pipe()?;
        let worked = self.poll();
        let before = self.superstep.stage.get();
        // The last call may have failed, and let messages of the next superstep through.
        self.inbox().withhold(before.withholds());
        if !self.may_advance(before, done) {
            self.superstep.waiter.replace(None);
            return Ok(true);
        }
        let stage = self.advance_stage()?;
        if stage != before {
            self.superstep.waiter.replace(None);
        }
        if stage == engine::Superstep::Open {
            return Ok(false);
        }
        let timeout = self.shared().settings.timeout;
        let waiter = self.superstep.waiter.take();
        let mut waits = waiter.unwrap_or_else(|| Waiter::new(timeout, self.shared()));
        let waited = if waits.is_over() {
            let missing = "finished this superstep, or received what was sent to it";
            Err(waits.failure(self.shared().engine().superstep_missing().collect(), missing))
        } else if worked == 0 {
            // Nothing is borrowed here: `pause` may call the program, which may use the part.
            waits.pause(&self.node, &[pipe])
        } else {
            Ok(())
        };
        waits.stop_leading();
        self.superstep.waiter.replace(Some(waits));
        if let Err(failure) = waited {
            self.inbox().withhold(false);
            return Err(failure.into());
        }
        Ok(true)
    }

    /// Whether the superstep can go on: nothing of it is left to read, and the part is `done`, now or earlier.
    fn may_advance(&self, stage: engine::Superstep, done: bool) -> bool {
        stage.may_advance(done, self.inbox().poll(&mut Source(self)))
    }

    /// Advances a superstep in which nothing is left to read.
    fn advance_stage(&self) -> Result<engine::Superstep, SuperstepError> {
        let before = self.superstep.stage.get();
        let mut engine = self.shared().engine();
        self.flush_lanes(&mut engine);
        let stage = engine.advance_superstep(self.id);
        if stage != Ok(before) {
            self.poll_with(&mut engine);
            drop(engine);
            self.superstep.stage.set(stage.unwrap_or(before));
            self.inbox().withhold(stage.is_ok_and(engine::Superstep::withholds));
        }
        stage
    }

    /// As [`Node::quiesce`](crate::Node::quiesce), but passes messages that meanwhile arrive for this part to `receive`, so that no sender
    /// waits for it. Returns once everything that any part sent before has arrived and this part has received all its messages. It does not
    /// wait for other parts to call it, so they may send more. To wait until all have sent everything, use [`advance(true)`](Self::advance).
    ///
    /// # Errors
    /// [`RecvError::Timeout`] if some other part does not read, does not flush or does not stop sending, or if there is no primary master (see
    /// [`Node::quiesce`](crate::Node::quiesce)); [`RecvError::NoPipe`].
    pub fn quiesce(&self, timeout: Duration, mut receive: impl FnMut(Message<S>)) -> Result<(), RecvError> {
        let pipe = self.pipe()?;
        self.flush();
        let (began, request) = (Instant::now(), self.shared().engine().request_quiescence());
        let mut waiter = Waiter::new(timeout, self.shared());
        loop {
            let mut worked = self.poll();
            // Some only, since others may send faster than this part receives.
            for message in std::iter::from_fn(|| self.try_recv()).take(SERVED) {
                waiter.stop_leading();
                receive(message);
                worked += 1;
            }
            let (is_quiescent, is_lost) = {
                let engine = self.shared().engine();
                (engine.is_quiescent(request), has_lost_all_masters(&engine))
            };
            if is_quiescent && self.may_advance(self.superstep.stage.get(), true) {
                return Ok(());
            }
            if is_lost && !is_quiescent {
                return Err(self.node.never_quiescent(began).into());
            }
            if waiter.is_over() {
                return Err(self.node.not_quiescent(waiter.failure(Vec::new(), "")).into());
            }
            self.shared().help_siblings();
            if worked == 0 {
                waiter.pause(&self.node, &[pipe])?;
            } else {
                self.flush();
                waiter.made_progress(&self.node)?;
            }
        }
    }

    /// As [`send`](Self::send), but while there is no room, passes arriving messages to `receive`, so that parts that all send to each other
    /// do not deadlock.
    ///
    /// # Errors
    /// As [`send`](Self::send). [`SendError::Timeout`] if there was no room and nothing arrived for the time of the setting `timeout_ms`, or if
    /// a message longer than a block took that long in all. While such a message is being sent, `receive` cannot send another one
    /// ([`SendError::NeedsWaiting`]).
    pub fn send_or(
        &self,
        to: Target,
        message: &[u8],
        mut receive: impl FnMut(Message<S>),
    ) -> Result<(), SendError> {
        let timeout = self.shared().settings.timeout;
        loop {
            match self.try_send(to, message) {
                Err(SendError::WouldBlock) if self.serve(to, timeout, &mut receive)? => {}
                // A part without a pipe receives nothing, and only waits for room.
                Err(SendError::WouldBlock) => return self.send(to, message),
                Err(SendError::NeedsWaiting { .. }) => {
                    return self.send_long(to, message, timeout, Some(&mut receive));
                }
                sent => return sent,
            }
        }
    }

    /// Passes on messages that have arrived; if there are none, waits for one or for room. Returns `false` if this part has no pipe.
    pub(super) fn serve(
        &self,
        to: Target,
        timeout: Duration,
        receive: &mut dyn FnMut(Message<S>),
    ) -> Result<bool, SendError> {
        match self.recv_or_room(to, timeout) {
            Ok(Some(message)) => {
                receive(message);
                self.hand_on(receive);
                Ok(true)
            }
            Ok(None) => Ok(true),
            Err(RecvError::Timeout(timeout)) => Err(SendError::Timeout(timeout)),
            Err(RecvError::Interrupted) => Err(SendError::Interrupted),
            Err(_) => Ok(false),
        }
    }

    /// Passes on messages that have arrived. Returns whether there were any.
    pub(super) fn hand_on(&self, receive: &mut dyn FnMut(Message<S>)) -> bool {
        let mut received = false;
        while let Some(message) = self.try_recv() {
            receive(message);
            received = true;
        }
        received
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pdbp_core::engine::Superstep;

    use super::Source;
    use crate::{Cluster, Part, PartKind, Progress, RecvError};

    const SOON: Duration = Duration::from_secs(200);

    /// It withheld them no longer until the superstep was over.
    #[test]
    fn a_superstep_that_goes_on_after_an_error_withholds_messages_of_the_next_one() {
        let cluster = Cluster::builder().nodes(2).progress(Progress::Inline).timeout(SOON).start().unwrap();
        let [first, second] = [0, 1].map(|node| {
            let node = cluster.node(node).unwrap();
            node.register("part", PartKind::Cpu).unwrap()
        });
        let to = first.find("part@node1", SOON).unwrap();
        let is_ending = |part: &Part| part.superstep.stage.get() == Superstep::Ending;
        // The first node knows when all have come to the end; the second learns it from the first.
        while !is_ending(&second) {
            if first.superstep.stage.get() != Superstep::Arrived {
                assert!(first.advance(true).unwrap());
            }
            first.poll();
            assert!(second.advance(true).unwrap());
        }
        second.node().interrupt();
        let error = loop {
            match second.advance(true) {
                Ok(is_on) => assert!(is_on),
                Err(error) => break error,
            }
        };
        assert_eq!(error, RecvError::Interrupted);
        while first.advance(true).unwrap() {
            second.poll();
        }
        first.send(to, b"of the next").unwrap();
        first.flush();
        while !second.inbox().poll(&mut Source(&second)).message {
            first.poll();
            second.poll();
        }
        while second.advance(true).unwrap() {
            assert!(second.try_recv().is_none(), "of the next superstep");
            first.poll();
        }
        assert_eq!(&second.recv().unwrap()[..], b"of the next");
    }
}
