//! Parts that all send and receive at the same time: supersteps, and calls that take in what arrives while they wait.

use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering;
use std::time::Duration;

use pdbp_core::id::NodeId;

use super::{Interest, Message, Part, Share, Target};
use crate::error::{RecvError, SendError};
use crate::node::Waiter;

/// What no part has as its number, for [`Shared::stepping`](crate::node::Shared).
pub(crate) const NOBODY: u32 = u32::MAX;

/// How far the superstep of a part has come.
#[derive(Default)]
pub(super) struct Superstep {
    stage: Cell<Stage>,
    /// Since something was received or a stage was reached.
    waiter: RefCell<Option<Waiter>>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    /// The part may have more to send.
    #[default]
    Open,
    /// It has said that it is done, by arriving at a barrier.
    Done { barrier: u32 },
    /// All have. It is found out whether all that was sent has been received.
    Counting { request: u32 },
    /// It has; some nodes may not know yet. What arrives now is of the next superstep, and nobody gets it before that.
    Leaving { barrier: u32 },
}

impl<S: Share> Part<S> {
    /// One turn of a loop in which a part of each node sends and receives: `while part.advance(done)? { … }`. `done` says that this part
    /// sends nothing more of its own accord. The loop ends everywhere when all parts have said so, and all that they had sent before has
    /// been received. Call [`try_recv`](Self::try_recv) or [`try_recv_batch`](Self::try_recv_batch) in the loop until there is nothing, so that
    /// others find room. Once this part is done and there is nothing to receive, a call waits for a moment; before, it returns at once.
    ///
    /// What is sent after `done`, such as an answer to what was received, arrives in this superstep or in the next one. So a program of
    /// requests and answers has two loops, the second one with `advance(true)`. Messages of the next superstep are not received
    /// in this one. (Streams are not part of supersteps.)
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
    /// A superstep takes two [barriers](crate::Node::barrier) of the node: all nodes have to call these and `advance` in the same order.
    ///
    /// # Errors
    /// [`RecvError::PeerFailed`] when a node cannot say any more that it is done; [`RecvError::SuperstepTaken`] when another part of
    /// this node is in a superstep; [`RecvError::Timeout`] when nothing has happened for as long as the setting `timeout_ms` says since
    /// this part was done, with the nodes that are not; and [`RecvError::NoPipe`].
    pub fn advance(&self, done: bool) -> Result<bool, RecvError> {
        let pipe = self.pipe()?;
        let worked = self.poll();
        let mut waiter = self.superstep.waiter.borrow_mut();
        let before = self.superstep.stage.get();
        if !self.is_leaving() && self.has_arrived().0 {
            *waiter = None;
            return Ok(true);
        }
        if before == Stage::Open && !done {
            return Ok(true);
        }
        let stage = self.next_stage(before)?;
        self.superstep.stage.set(stage);
        if before != stage {
            *waiter = None;
        }
        if stage == Stage::Open {
            return Ok(false);
        }
        let timeout = self.shared().settings.timeout;
        let mut waits = waiter.take().unwrap_or_else(|| Waiter::new(timeout, self.shared()));
        drop(waiter);
        let is_over = waits.is_over();
        if !is_over && worked == 0 {
            // With nothing borrowed: it may call the program, which may use the part.
            waits.pause(&self.node, &[pipe]);
        }
        let late = is_over.then(|| {
            let missing = "said that it is done, or received what was sent to it, in this superstep";
            waits.late(self.missing(stage), missing)
        });
        self.superstep.waiter.replace(Some(waits));
        late.map_or(Ok(true), |late| Err(late.into()))
    }

    /// Whether what arrives is for a superstep that has not begun here.
    pub(super) fn is_leaving(&self) -> bool {
        matches!(self.superstep.stage.get(), Stage::Leaving { .. })
    }

    /// Goes on with a superstep in which nothing has arrived. [`Stage::Open`] when it is over.
    fn next_stage(&self, stage: Stage) -> Result<Stage, RecvError> {
        let shared = self.shared();
        let all_received = match stage {
            // In this order: what is counted has been put into the pipe before.
            Stage::Counting { request } => shared.engine().is_quiescent(request) && !self.has_arrived().0,
            _ => false,
        };
        let mut engine = shared.engine();
        let next = match stage {
            Stage::Open => {
                self.begin_stepping()?;
                self.lanes.flush(&mut engine);
                Stage::Done { barrier: engine.arrive() }
            }
            Stage::Done { barrier } if engine.barrier_passed(barrier) => {
                Stage::Counting { request: engine.ask_quiescence() }
            }
            Stage::Counting { .. } if all_received => Stage::Leaving { barrier: engine.arrive() },
            // Others may not know yet, and learn it from this node.
            Stage::Leaving { barrier } if engine.barrier_passed(barrier) && !engine.has_news() => {
                self.end_stepping();
                return Ok(Stage::Open);
            }
            waiting => {
                let missing = waiting.barrier().and_then(|barrier| {
                    engine.barrier_missing(barrier).find(|node| engine.has_failed(*node))
                });
                return match missing {
                    Some(node) => Err(RecvError::PeerFailed(node)),
                    None => Ok(waiting),
                };
            }
        };
        self.poll_with(&mut engine);
        Ok(next)
    }

    fn missing(&self, stage: Stage) -> Vec<NodeId> {
        let engine = self.shared().engine();
        stage.barrier().map_or_else(Vec::new, |barrier| engine.barrier_missing(barrier).collect())
    }

    /// Barriers count calls of a node: its parts cannot be in supersteps at the same time.
    fn begin_stepping(&self) -> Result<(), RecvError> {
        let me = u32::from(self.id.local());
        let stepping = &self.shared().stepping;
        match stepping.compare_exchange(NOBODY, me, Ordering::AcqRel, Ordering::Acquire) {
            Err(other) if other != me => Err(RecvError::SuperstepTaken),
            _ => Ok(()),
        }
    }

    pub(super) fn end_stepping(&self) {
        let me = u32::from(self.id.local());
        // Another part's superstep goes on.
        let _ = self.shared().stepping.compare_exchange(me, NOBODY, Ordering::AcqRel, Ordering::Acquire);
    }

    /// As [`Node::quiesce`](crate::Node::quiesce), for a part that others send to: what arrives here meanwhile is handed to `receive`, so
    /// that nobody waits for this part. Returns when all that any part had sent before has been received; of what came to this
    /// part nothing is left. It does not wait for others to call it, so what a part sends a moment later may still come: where all parts
    /// are to have sent what they send, the call is [`advance(true)`](Self::advance).
    ///
    /// # Errors
    /// [`RecvError::Timeout`]: some other part does not read, does not flush, or does not stop sending; [`RecvError::NoPipe`].
    pub fn quiesce(&self, timeout: Duration, mut receive: impl FnMut(Message<S>)) -> Result<(), RecvError> {
        let pipe = self.pipe()?;
        self.flush();
        let request = self.shared().engine().ask_quiescence();
        let mut waiter = Waiter::new(timeout, self.shared());
        loop {
            let mut worked = self.poll();
            while let Some(message) = self.try_recv() {
                receive(message);
                worked += 1;
            }
            if self.shared().engine().is_quiescent(request) && !self.has_arrived().0 {
                return Ok(());
            }
            if waiter.is_over() {
                let missing =
                    "received all that was sent; some part does not read its pipe, or has not flushed";
                return Err(waiter.late(Vec::new(), missing).into());
            }
            self.shared().help_siblings();
            if worked == 0 {
                waiter.pause(&self.node, &[pipe]);
            } else {
                self.flush();
            }
        }
    }

    /// As [`send`](Self::send), but while there is no room what arrives is handed to `receive`: parts that all send to each other do
    /// not wait in a circle.
    ///
    /// # Errors
    /// As [`send`](Self::send); [`SendError::Timeout`] when there was no room and nothing came for as long as the setting `timeout_ms` says,
    /// and for a message longer than a block when that took as long in all. While one is on its way, `receive` cannot send another
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
                // A part without a pipe gets nothing, and waits for room alone.
                Err(SendError::WouldBlock) => return self.send(to, message),
                Err(SendError::NeedsWaiting { .. }) => {
                    return self.send_long(to, message, timeout, Some(&mut receive));
                }
                sent => return sent,
            }
        }
    }

    /// Hands on what has arrived, or waits until something has, or there is room. `false`: this part has no pipe.
    fn serve(
        &self,
        to: Target,
        timeout: Duration,
        receive: &mut dyn FnMut(Message<S>),
    ) -> Result<bool, SendError> {
        if self.hand_on(receive) {
            return Ok(true);
        }
        match self.wait(Interest::Either(to), timeout) {
            Ok(_) => Ok(true),
            Err(RecvError::Timeout(timeout)) => Err(SendError::Timeout(timeout)),
            Err(RecvError::Interrupted) => Err(SendError::Interrupted),
            Err(_) => Ok(false),
        }
    }

    /// Hands on what has arrived. Whether there was something.
    pub(super) fn hand_on(&self, receive: &mut dyn FnMut(Message<S>)) -> bool {
        let mut received = false;
        while let Some(message) = self.try_recv() {
            receive(message);
            received = true;
        }
        received
    }
}

impl Stage {
    fn barrier(self) -> Option<u32> {
        match self {
            Self::Done { barrier } | Self::Leaving { barrier } => Some(barrier),
            Self::Open | Self::Counting { .. } => None,
        }
    }
}
