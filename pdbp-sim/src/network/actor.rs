//! Programs in virtual time: state machines that have parts of the nodes of a [`Cluster`].

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

/// The program of a node: it registers parts, and reads, sends and computes whenever its host runs. Its parts use the same [`Endpoint`](pdbp_core::Endpoint) as the
/// host's own, on the same network, with all its faults and checks; a node that starts again has a new one.
///
/// Nothing may depend on anything but its own state and what the [`Context`] says, else the same seed is not the same run.
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
    /// Its node starts. Its parts have ids from now on; others find them a little later.
    ///
    /// # Errors
    /// That of [`Context::register`], which ends the run.
    fn start(&mut self, context: &mut Context<'_, T>) -> Result<(), RegisterError>;

    /// Something may have come, or there may be room again, or it is the time that it has asked for. What it leaves unread keeps blocks.
    /// Returns when to run at the latest, in nanoseconds of [`Context::now`]; `None`: when something happens.
    ///
    /// # Errors
    /// What does not hold, by its own books: the run ends with [`Broken`](super::Broken), which says it, with the seed that shows it again.
    fn run(&mut self, context: &mut Context<'_, T>) -> Result<Option<u64>, String>;

    /// The endpoint has said something: that a link has failed, for example. [`run`](Self::run) follows.
    fn hear(&mut self, event: &Event) {
        let _ = event;
    }

    /// What is not done yet. [`Cluster::settle`] waits for it, as long as messages go to and fro.
    fn unrest(&self) -> Option<String> {
        None
    }
}

/// What an [`Actor`] sees of its node.
pub struct Context<'c, T: Transport + 'static = Port> {
    endpoint: &'c mut HostEndpoint<T>,
    parts: &'c mut Vec<PartId>,
    now: u64,
    sent: u64,
    received: u64,
    bytes: u64,
}

impl<T: Transport + 'static> Context<'_, T> {
    /// Nanoseconds, by the clock of the node, which may be [wrong](super::Fault::Skew).
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Number of the node. Its name is `n` and this.
    pub fn node(&self) -> u16 {
        self.endpoint.engine().config().node.raw()
    }

    /// A new part of this node.
    ///
    /// # Errors
    /// See [`RegisterError`]; there is room for [`Setup::actor_parts`](super::Setup::actor_parts).
    pub fn register(&mut self, name: &str) -> Result<PartId, RegisterError> {
        let part = self.endpoint.register(name, PartKind::Cpu)?;
        self.parts.push(part);
        Ok(part)
    }

    /// A new part of this node without a name, as [`Endpoint::attach`](pdbp_core::Endpoint::attach).
    ///
    /// # Errors
    /// See [`RegisterError`]: [`Busy`](RegisterError::Busy) means to call again when the actor runs next. There is room for
    /// [`Setup::actor_parts`](super::Setup::actor_parts) parts, with and without a name.
    pub fn attach(&mut self) -> Result<PartId, RegisterError> {
        let part = self.endpoint.attach()?;
        self.parts.push(part);
        Ok(part)
    }

    /// Gives up a part of this node. What has come for it and was not read goes back.
    ///
    /// # Errors
    /// [`Busy`](RegisterError::Busy): call again when the actor runs next.
    pub fn unregister(&mut self, part: PartId) -> Result<(), RegisterError> {
        self.endpoint.unregister(part)?;
        self.parts.retain(|other| *other != part);
        Ok(())
    }

    /// The part with an address, such as `"pool@n0"`. `None` as long as this node does not know it.
    pub fn find(&self, address: &str) -> Option<PartId> {
        self.endpoint.find(address)
    }

    /// Bytes of the longest message that [`send`](Self::send) takes.
    pub fn longest(&self) -> usize {
        self.endpoint.engine().config().longest_unsegmented()
    }

    /// Sends a message of a part of this node. It leaves as [`Endpoint::send`](pdbp_core::Endpoint::send) says.
    ///
    /// # Errors
    /// See [`SendError`]. After [`WouldBlock`](SendError::WouldBlock) the actor runs again when there is room.
    pub fn send(&mut self, from: PartId, to: PartId, message: &[u8]) -> Result<(), SendError> {
        self.endpoint.send(from, to, message)?;
        self.sent += 1;
        Ok(())
    }

    /// What was sent leaves at once.
    pub fn flush(&mut self) {
        self.endpoint.flush();
    }

    /// The next message of a part of this node, and who has sent it, commands first.
    pub fn recv(&mut self, part: PartId) -> Option<(PartId, Vec<u8>)> {
        let message = self.endpoint.poll_recv(part)?;
        let read = (message.source(), message.bytes().to_vec());
        self.endpoint.release(message);
        self.received += 1;
        self.bytes += read.1.len() as u64;
        Some(read)
    }

    /// The endpoint itself: streams, long messages, sets, commands, messages that come back. What is taken of it has to be given back.
    pub fn endpoint(&mut self) -> &mut HostEndpoint<T> {
        self.endpoint
    }
}

impl<T: Transport + 'static> fmt::Debug for Context<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("node", &self.node()).field("now", &self.now).finish_non_exhaustive()
    }
}

/// What makes the actor of a node, given its number and which start of it this is.
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
    /// An actor starts at it.
    pub(super) fn begin(&mut self, mut actor: Box<dyn Actor<T>>, now: u64) -> Result<(), RegisterError> {
        let (mut parts, now) = (Vec::new(), self.clock.local(now));
        let endpoint = &mut self.endpoint;
        actor.start(&mut Context { endpoint, parts: &mut parts, now, sent: 0, received: 0, bytes: 0 })?;
        self.acting = Some(Acting { actor, parts });
        Ok(())
    }

    /// Lets the actor run. Returns when it wants to run again, by the clock of the node.
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
            // Those that the actor has not looked at.
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
    /// The actor of a node, to look at it. `None`: the node is down, has none, or it is not an `A`.
    pub fn actor_mut<A: Actor<T>>(&mut self, node: u16) -> Option<&mut A> {
        let acting = self.hosts.get_mut(usize::from(node))?.as_mut()?.acting.as_mut()?;
        let any: &mut dyn Any = acting.actor.as_mut();
        any.downcast_mut()
    }
}
