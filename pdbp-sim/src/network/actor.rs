//! Programs in virtual time: state machines that own parts on the nodes of a [`Cluster`].

use std::any::Any;
use std::fmt;

use pdbp_core::endpoint::SendError;
use pdbp_core::engine::RegisterError;
use pdbp_core::id::PartId;
use pdbp_core::tables::PartKind;
use pdbp_core::{Event, Transport};

use super::beside::HostEndpoint;
use super::check::{Breach, Invariant};
use super::host::{Host, Work};
use super::{Cluster, Port};

/// The program of a node: it registers parts, and reads, sends and computes whenever its host runs. Its parts use the same
/// [`Endpoint`](pdbp_core::Endpoint) as the host's own, on the same network, with all its faults and checks. A node that starts
/// again gets a new actor.
///
/// An actor may depend only on its own state and on the [`Context`]; otherwise the same seed does not give the same run.
///
/// ```
/// use pdbp_core::endpoint::SendError;
/// use pdbp_core::engine::RegisterError;
/// use pdbp_core::id::PartId;
/// use pdbp_sim::network::{Actor, Cluster, Context, Fault, Setup, ms, us};
///
/// /// Counts what comes, and passes it on after 10 µs, around a ring of `nodes`.
/// struct Ring { nodes: u16, part: Option<PartId>, due: Option<u64>, rounds: u64 }
///
/// impl Actor for Ring {
///     fn start(&mut self, context: &mut Context<'_>) -> Result<(), RegisterError> {
///         self.part = Some(context.register("ring")?);
///         self.due = (context.node() == 0).then_some(0); // it begins
///         Ok(())
///     }
///
///     fn run(&mut self, context: &mut Context<'_>) -> Result<Option<u64>, String> {
///         let part = self.part.ok_or("it has not started")?;
///         while let Some((_, bytes)) = context.recv(part) {
///             if bytes != b"token" {
///                 return Err(format!("{bytes:?} is no token"));
///             }
///             self.rounds += 1;
///             self.due = Some(context.now() + us(10));
///         }
///         let next = (context.node() + 1) % self.nodes;
///         if self.due.is_some_and(|due| due <= context.now())
///             && let Some(to) = context.find(&format!("ring@n{next}"))
///         {
///             match context.send(part, to, b"token") {
///                 Ok(()) => self.due = None,
///                 Err(SendError::WouldBlock) => {} // it runs again when there is room
///                 Err(error) => return Err(error.to_string()),
///             }
///             context.flush();
///         }
///         Ok(self.due)
///     }
/// }
///
/// let setup = Setup { seed: 7, actor_parts: 1, ..Setup::new(5) };
/// let ring = |_, _| Some(Box::new(Ring { nodes: 5, part: None, due: None, rounds: 0 }) as Box<dyn Actor>);
/// let mut cluster = Cluster::with_actors(setup, ring)?;
/// cluster.plan(ms(2), Fault::slow(3, 50))?;
/// cluster.run_until(ms(4))?;
/// assert!(cluster.actor_mut::<Ring>(4).is_some_and(|ring| ring.rounds > 10));
/// # Ok::<(), pdbp_sim::network::ClusterError>(())
/// ```
pub trait Actor<T: Transport + 'static = Port>: Any {
    /// Called when its node starts. Its parts have ids from now on; others find them a little later.
    ///
    /// # Errors
    /// The error of [`Context::register`], which ends the run.
    fn start(&mut self, context: &mut Context<'_, T>) -> Result<(), RegisterError>;

    /// Called when something may have arrived, room may have become free, or the requested time has come. Anything it leaves unread
    /// keeps blocks. Returns when to run again at the latest, in nanoseconds of [`Context::now`], or `None` to run when something
    /// happens.
    ///
    /// # Errors
    /// What does not hold according to its own books. The run then ends with [`Broken`](super::Broken), which reports that together
    /// with the seed that reproduces it.
    fn run(&mut self, context: &mut Context<'_, T>) -> Result<Option<u64>, String>;

    /// Called for each event of the endpoint, such as a failed link. [`run`](Self::run) follows.
    fn hear(&mut self, event: &Event) {
        let _ = event;
    }

    /// Returns what is not done yet. [`Cluster::settle`] waits for it as long as messages are exchanged.
    fn unrest(&self) -> Option<String> {
        None
    }
}

/// An [`Actor`]'s view of its node.
pub struct Context<'c, T: Transport + 'static = Port> {
    endpoint: &'c mut HostEndpoint<T>,
    parts: &'c mut Vec<PartId>,
    now: u64,
    sent: u64,
    received: u64,
    bytes: u64,
}

impl<T: Transport + 'static> Context<'_, T> {
    /// The time in nanoseconds by the clock of the node, which may be [wrong](super::Fault::Skew).
    pub fn now(&self) -> u64 {
        self.now
    }

    /// The number of the node. Its name is `n` followed by this number.
    pub fn node(&self) -> u16 {
        self.endpoint.engine().config().node.raw()
    }

    /// Registers a new part of this node.
    ///
    /// # Errors
    /// See [`RegisterError`]; there is room for [`Setup::actor_parts`](super::Setup::actor_parts) parts.
    pub fn register(&mut self, name: &str) -> Result<PartId, RegisterError> {
        let part = self.endpoint.register(name, PartKind::Cpu)?;
        self.parts.push(part);
        Ok(part)
    }

    /// Registers a new part of this node without a name, as [`Endpoint::attach`](pdbp_core::Endpoint::attach) does.
    ///
    /// # Errors
    /// See [`RegisterError`]: after [`Busy`](RegisterError::Busy), call this again when the actor next runs. There is room for
    /// [`Setup::actor_parts`](super::Setup::actor_parts) parts, with and without a name.
    pub fn attach(&mut self) -> Result<PartId, RegisterError> {
        let part = self.endpoint.attach()?;
        self.parts.push(part);
        Ok(part)
    }

    /// Unregisters a part of this node. Unread messages to it are returned.
    ///
    /// # Errors
    /// [`Busy`](RegisterError::Busy): call this again when the actor next runs.
    pub fn unregister(&mut self, part: PartId) -> Result<(), RegisterError> {
        self.endpoint.unregister(part)?;
        self.parts.retain(|other| *other != part);
        Ok(())
    }

    /// Finds the part with an address, such as `"pool@n0"`. `None` while this node does not know it.
    pub fn find(&self, address: &str) -> Option<PartId> {
        self.endpoint.find(address)
    }

    /// Length in bytes of the longest message that [`send`](Self::send) takes.
    pub fn longest(&self) -> usize {
        self.endpoint.engine().config().longest_unsegmented()
    }

    /// Sends a message from a part of this node. It leaves as described at [`Endpoint::send`](pdbp_core::Endpoint::send).
    ///
    /// # Errors
    /// See [`SendError`]. After [`WouldBlock`](SendError::WouldBlock), the actor runs again when there is room.
    pub fn send(&mut self, from: PartId, to: PartId, message: &[u8]) -> Result<(), SendError> {
        self.endpoint.send(from, to, message)?;
        self.sent += 1;
        Ok(())
    }

    /// Flushes sent messages, so that they leave at once.
    pub fn flush(&mut self) {
        self.endpoint.flush();
    }

    /// Takes the next message of a part of this node, commands first, with its sender.
    pub fn recv(&mut self, part: PartId) -> Option<(PartId, Vec<u8>)> {
        let message = self.endpoint.poll_recv(part)?;
        let read = (message.source(), message.bytes().to_vec());
        self.endpoint.release(message);
        self.received += 1;
        self.bytes += read.1.len() as u64;
        Some(read)
    }

    /// The endpoint itself: streams, long messages, sets, commands, returned messages. Everything taken from it must be given back.
    pub fn endpoint(&mut self) -> &mut HostEndpoint<T> {
        self.endpoint
    }
}

impl<T: Transport + 'static> fmt::Debug for Context<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("node", &self.node()).field("now", &self.now).finish_non_exhaustive()
    }
}

/// Creates the actor of a node, given its number and the number of this start.
#[allow(clippy::type_complexity, reason = "it has this name")]
pub(super) struct Maker<T: Transport + 'static>(
    pub(super) Box<dyn FnMut(u16, u32) -> Option<Box<dyn Actor<T>>>>,
);

/// An actor, and its parts.
pub(super) struct Acting<T: Transport + 'static> {
    pub(super) actor: Box<dyn Actor<T>>,
    parts: Vec<PartId>,
}

impl<T: Transport + 'static> Host<T> {
    /// Starts an actor at this host.
    pub(super) fn begin(&mut self, mut actor: Box<dyn Actor<T>>, now: u64) -> Result<(), RegisterError> {
        let (mut parts, now) = (Vec::new(), self.machine.clock.local(now));
        let endpoint = &mut self.endpoint;
        actor.start(&mut Context { endpoint, parts: &mut parts, now, sent: 0, received: 0, bytes: 0 })?;
        self.acting = Some(Acting { actor, parts });
        Ok(())
    }

    /// Runs the actor. Returns when it wants to run again, by the clock of the node.
    pub(super) fn act(
        &mut self,
        now: u64,
        is_timely: impl Fn() -> bool,
        work: &mut Work,
    ) -> Result<Option<u64>, Breach> {
        let Some(acting) = &mut self.acting else { return Ok(None) };
        let (parts, endpoint) = (&mut acting.parts, &mut self.endpoint);
        let mut context = Context { endpoint, parts, now, sent: 0, received: 0, bytes: 0 };
        let again = acting.actor.run(&mut context).map_err(|what| Breach::new(Invariant::Actor, what))?;
        let Context { sent, received, bytes, .. } = context;
        for part in &acting.parts {
            // Returned messages that the actor has not taken.
            while let Some(returned) = self.endpoint.poll_returned(*part) {
                self.endpoint.release_returned(returned);
            }
        }
        work.messages += sent + received;
        self.totals.sent += sent;
        self.totals.delivered += received;
        self.totals.bytes += bytes;
        if is_timely() {
            self.totals.timely += received;
            self.totals.timely_bytes += bytes;
        }
        Ok(again)
    }
}

impl<T: Transport + 'static> Cluster<T> {
    /// Returns the actor of a node, for inspection. `None` if the node is down, has no actor, or its actor is not an `A`.
    pub fn actor_mut<A: Actor<T>>(&mut self, node: u16) -> Option<&mut A> {
        let acting = self.hosts.get_mut(usize::from(node))?.as_mut()?.acting.as_mut()?;
        let any: &mut dyn Any = acting.actor.as_mut();
        any.downcast_mut()
    }
}
