//! Waiting until something can be received or sent, by one part or by several on a thread.

#[cfg(feature = "rapidio")]
use std::sync::Arc;
use std::time::Duration;

use super::waiting::are_alone;
use super::{Message, Part, Share, Target};
use crate::error::RecvError;
#[cfg(feature = "rapidio")]
use crate::node::Sleeper;
use crate::node::{Node, Pipe, Waiter};

/// What the node of a target has not done when the time is up.
const MISSING: &str = "made room or sent anything";

/// What [`Part::wait`] waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Something to receive.
    Recv,
    /// Room for a message to the target.
    Send(Target),
    /// Either, for parts that send to each other in a cycle.
    Either(Target),
}

/// What [`Part::wait`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ready {
    /// A message can be received.
    pub recv: bool,
    /// A stream can be accepted, or [`Streams`](super::Streams) has the next piece of one that it reads. What is not taken holds its blocks,
    /// and with them the credit of its node.
    pub stream: bool,
    /// A short message can be sent to the target without waiting, or its node has failed.
    pub send: bool,
}

impl Ready {
    /// Whether any of them is set.
    pub fn any(&self) -> bool {
        self.recv || self.stream || self.send
    }
}

impl Interest {
    pub(super) fn target(self) -> Option<Target> {
        match self {
            Self::Send(target) | Self::Either(target) => Some(target),
            Self::Recv => None,
        }
    }

    pub(super) fn wants_recv(self) -> bool {
        !matches!(self, Self::Send(_))
    }
}

impl<S: Share> Part<S> {
    /// Waits until something can be received, or a short message can be sent to the target, whichever comes first. This avoids
    /// deadlock among parts that all wait to send to each other. For several parts on one thread see [`Node::wait_any`].
    ///
    /// # Errors
    /// [`RecvError::Timeout`] names the target's node; [`RecvError::NoPipe`] if nothing can ever be received;
    /// [`RecvError::NobodyLeft`] as [`recv`](Self::recv), from a part that waits with [`Interest::Recv`].
    pub fn wait(&self, interest: Interest, timeout: Duration) -> Result<Ready, RecvError> {
        let ready = |part: &Self| {
            // A member of a group is woken late, perhaps, by a call in switches that is over: that must not keep this wait awake.
            #[cfg(feature = "rapidio")]
            if let Some(pipe) = part.bound_pipe() {
                pipe.take_nudge();
            }
            Ok(Some(part.look(interest)?).filter(Ready::any))
        };
        if let Some(found) = ready(self)? {
            return Ok(found);
        }
        self.flush();
        let peers = interest.target().map(|t| t.node()).into_iter().collect();
        // If the caller does not want to receive, unread messages are no reason to look again at once.
        let pipe = self.pipe().ok().filter(|_| interest.wants_recv());
        let is_hopeless = |part: &Self| interest == Interest::Recv && part.is_alone();
        self.wait_on(pipe, is_hopeless, timeout, peers, MISSING, ready)
    }

    /// Receives a message, or returns `None` once a short message can be sent to the target, whichever comes first: for loops that send, and receive
    /// while there is no room. Unlike [`wait`](Self::wait), it is not ended by streams that are not accepted.
    ///
    /// # Errors
    /// [`RecvError::Timeout`] names the target's node; [`RecvError::NoPipe`] if nothing can ever be received; [`RecvError::Interrupted`].
    pub fn recv_or_room(&self, to: Target, timeout: Duration) -> Result<Option<Message<S>>, RecvError> {
        let pipe = self.pipe()?;
        if let Some(message) = self.try_recv() {
            return Ok(Some(message));
        }
        // A block of this part that is still open has room for a message, perhaps, and none for a stream.
        self.flush();
        self.wait_on(
            Some(pipe),
            |_| false,
            timeout,
            vec![to.node()],
            MISSING,
            |part| {
                Ok(match part.next_message() {
                    None => part.has_room(to).then_some(None),
                    message => Some(message),
                })
            },
        )
    }

    /// Waits until something can be received, or the holder of its [`sleeper`](Self::sleeper) wakes it.
    #[cfg(feature = "rapidio")]
    pub(crate) fn wait_or_be_woken(&self, timeout: Duration) -> Result<(), RecvError> {
        let pipe = self.pipe()?;
        self.flush();
        self.wait_on(
            Some(pipe),
            |_| false,
            timeout,
            Vec::new(),
            "sent anything",
            |part| {
                let is_woken = pipe.take_nudge();
                Ok((is_woken || part.look(Interest::Recv)?.any()).then_some(()))
            },
        )
    }

    /// The handle by which others wake this part.
    #[cfg(feature = "rapidio")]
    pub(crate) fn sleeper(&self) -> Option<Sleeper> {
        Some(Sleeper::new(Arc::downgrade(self.shared()), self.pipe.get()?))
    }

    /// Returns what is ready now.
    pub(super) fn look(&self, interest: Interest) -> Result<Ready, RecvError> {
        let (recv, stream) = if interest.wants_recv() {
            self.pipe()?;
            self.has_arrived()
        } else {
            (false, false)
        };
        Ok(Ready { recv, stream, send: interest.target().is_some_and(|t| self.has_room(t)) })
    }
}

impl Node {
    /// Waits until anything arrives in any of the pipes, including a segment of an accepted stream.
    #[cfg(feature = "net")]
    pub(crate) fn wait_for_any(&self, pipes: &[pdbp_core::id::PipeId], timeout: Duration) {
        let pipes = pipes.iter().filter_map(|pipe| self.shared.pipes.get(usize::from(pipe.0)));
        let pipes: Vec<&Pipe> = pipes.collect();
        let mut waiter = Waiter::new(timeout, &self.shared);
        while pipes.iter().all(|pipe| pipe.is_empty()) && !waiter.is_over() {
            let waited =
                if self.shared.poll() > 0 { waiter.made_progress(self) } else { waiter.pause(self, &pipes) };
            if waited.is_err() {
                return;
            }
        }
    }

    /// Waits until any of several parts of this node on the calling thread, such as a server and a client, is ready. Returns what
    /// was found for each, in the order given.
    ///
    /// ```
    /// use pdbp::{Cluster, Interest, PartKind};
    /// use std::time::Duration;
    ///
    /// let cluster = Cluster::local(1)?;
    /// let node = cluster.node(0).unwrap();
    /// let [client, server] = ["client", "server"].map(|name| node.register(name, PartKind::Cpu).unwrap());
    /// client.send(server.id(), b"a request").unwrap();
    /// client.flush();
    /// let found = node.wait_any(&[(&client, Interest::Recv), (&server, Interest::Recv)], Duration::from_secs(5)).unwrap();
    /// assert!(!found[0].recv && found[1].recv);
    /// # Ok::<(), pdbp::StartError>(())
    /// ```
    ///
    /// # Errors
    /// [`RecvError::Timeout`] names the nodes of the targets; [`RecvError::NoPipe`] if a part can never receive what it waits for;
    /// [`RecvError::OtherNode`] for a part of another node; [`RecvError::NobodyLeft`] as [`Part::recv`], if all of them wait with
    /// [`Interest::Recv`] and no part but these is left.
    pub fn wait_any<S: Share>(
        &self,
        parts: &[(&Part<S>, Interest)],
        timeout: Duration,
    ) -> Result<Vec<Ready>, RecvError> {
        if let Some((part, _)) = parts.iter().find(|(part, _)| part.id().node() != self.id()) {
            return Err(RecvError::OtherNode { part: part.id(), node: self.id() });
        }
        let look =
            || parts.iter().map(|(part, interest)| part.look(*interest)).collect::<Result<Vec<_>, _>>();
        let is_hopeless = || {
            let parts: Option<Vec<_>> =
                parts.iter().map(|(part, interest)| (*interest == Interest::Recv).then_some(*part)).collect();
            parts.is_some_and(|parts| are_alone(&parts))
        };
        let mut flushed = false;
        let mut waiter = Waiter::new(timeout, &self.shared);
        loop {
            let found = look()?;
            if found.iter().any(Ready::any) {
                return Ok(found);
            }
            let is_over = waiter.is_over();
            if (is_over || waiter.is_sleeping()) && is_hopeless() {
                // The last message may have arrived since it was looked for.
                let found = look()?;
                return if found.iter().any(Ready::any) { Ok(found) } else { Err(RecvError::NobodyLeft) };
            }
            if is_over {
                let peers = parts.iter().filter_map(|(_, interest)| interest.target());
                let peers = peers.map(|target| target.node()).collect();
                let missing = "made room for, or sent anything to, any of the parts";
                return Err(waiter.failure(peers, missing).into());
            }
            if !std::mem::replace(&mut flushed, true) {
                parts.iter().for_each(|(part, _)| part.flush());
            }
            // Each poll flushes what its part has packed, once that is due.
            let worked = parts.iter().map(|(part, _)| part.poll()).sum::<u32>();
            if worked > 0 {
                waiter.made_progress(self)?;
            } else {
                let pipes: Vec<&Pipe> = parts
                    .iter()
                    .filter(|(_, interest)| interest.wants_recv())
                    .filter_map(|(part, _)| part.pipe().ok())
                    .collect();
                waiter.pause(self, &pipes)?;
            }
        }
    }
}
